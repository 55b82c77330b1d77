//! Every current record, encoded, and the revisions of the older versions that the ledger holds.
//!
//! A fold of the ledger. Only reads of older versions touch the disk, so all other reads go on when the disk fails.
//! Only the writer changes memory, after its commit is durable.

mod compaction;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;

use bytes::Bytes;
use muster_proto::pb;
use muster_proto::record::Kind;
use prost::Message;

pub use self::compaction::{CompactionLimit, Retention};
use self::compaction::{HistoryEntry, KeptHistory};
use crate::change::Change;
use crate::fingerprint::Fingerprint;
use crate::heartbeat;
use crate::history::{Commit, Compaction, Revision, StoredChange, StoredRenewal};
use crate::lease_table::{LeaseTable, Renewal};
use crate::namespaced_name::NamespacedName;
use crate::partial_decode;

/// The current version of a record.
#[derive(Debug, Clone)]
pub struct CurrentRecord {
    /// The revision of its last change, which for a lease is not its last renewal.
    pub revision: Revision,
    pub record: Bytes,
    pub lease_id: u32,
}

/// The version of a record at some revision: in memory if it is still current, otherwise in the ledger.
#[derive(Debug, Clone)]
pub enum RecordVersion {
    Current(CurrentRecord),
    InLedger {
        revision: Revision,
        /// The change that replaced or deleted this version.
        superseded_by: Revision,
        bytes: usize,
    },
}

/// The versions of one record.
#[derive(Debug, Clone, Default)]
struct RecordVersions {
    current: Option<CurrentRecord>,
    /// Superseded versions and deletions that are not compacted yet, oldest first.
    older: VecDeque<OlderVersion>,
}

/// A superseded version, or a deletion.
#[derive(Debug, Clone, Copy)]
struct OlderVersion {
    revision: Revision,
    deleted: bool,
    /// The length of its record.
    bytes: u32,
}

/// All records, with what compaction and reads of older versions need to know of history.
#[derive(Debug, Default)]
pub struct Memory {
    head: Revision,
    compacted: Revision,
    records: BTreeMap<Kind, BTreeMap<NamespacedName, RecordVersions>>,
    history: KeptHistory,
    /// Pods by the node they are bound to. Counted, since a pod may be deleted and created again on the same node
    /// while history still holds the deletion.
    pods_by_node: HashMap<String, BTreeMap<NamespacedName, u32>>,
    /// The nodes of deleted pods by the revision of the deletion, until it is compacted.
    nodes_of_deleted_pods: HashMap<Revision, String>,
    pub leases: LeaseTable,
    fingerprint: Fingerprint,
}

impl Memory {
    /// An empty memory at a revision, whose history begins after `compacted`. Records, then older history, then later
    /// changes are loaded into it.
    pub fn at(head: Revision, compacted: Revision) -> Self {
        Memory { head, compacted, ..Default::default() }
    }

    /// Loads one current record.
    pub fn load_record(
        &mut self,
        kind: Kind,
        key: NamespacedName,
        revision: Revision,
        lease_id: u32,
        record: Bytes,
    ) {
        self.fingerprint.add_record(kind, &key, revision, lease_id, &record);
        match kind {
            Kind::Lease => self.leases.put(lease_id, key.clone(), &lease_holder(&record)),
            Kind::Pod => self.bind_pod(&key, None, &record),
            _ => {}
        }
        let versions = self.records.entry(kind).or_default().entry(key).or_default();
        versions.current = Some(CurrentRecord { revision, record, lease_id });
    }

    /// Loads the newest renewal of a lease, after its record.
    pub fn load_renewal(&mut self, renewal: &StoredRenewal, revision: Revision) {
        self.apply_renewals(revision, std::slice::from_ref(renewal));
    }

    /// Loads a change that the loaded records already contain. Changes are loaded in order, and only those that are
    /// not compacted.
    pub fn load_past_change(&mut self, revision: Revision, change: &StoredChange) {
        let key = change.key();
        let versions = self.records.entry(change.kind).or_default().entry(key.clone()).or_default();
        let last = versions.older.back().map_or(0, |older| older.revision);
        let replaced = change.previous_record.as_ref().map_or(0, |record| record.len() as u32);
        if change.previous > last {
            let (revision, bytes) = (change.previous, replaced);
            versions.older.push_back(OlderVersion { revision, deleted: false, bytes });
        }
        if change.deleted {
            versions.older.push_back(OlderVersion { revision, deleted: true, bytes: 0 });
            if change.kind == Kind::Pod {
                let node = partial_decode::pod_node(&change.record);
                if !node.is_empty() {
                    *self.pods_by_node.entry(node.clone()).or_default().entry(key.clone()).or_default() += 1;
                    self.nodes_of_deleted_pods.insert(revision, node);
                }
            }
        }
        let own = if change.deleted { change.record.len() as u32 } else { 0 };
        self.history.push(HistoryEntry::of(revision, key, change, own + replaced), change.at_millis);
    }

    /// Applies a change that is newer than the loaded records. Returns it for watchers.
    pub fn load_change(&mut self, revision: Revision, change: StoredChange) -> Change {
        let previous = self.get(change.kind, &change.key()).map(|was| was.record.clone());
        self.apply_change(revision, &change);
        Change::from_stored(revision, change, previous)
    }

    /// Applies renewals that are newer than the loaded records.
    pub fn load_pack(&mut self, first: Revision, pack: &[StoredRenewal]) {
        self.apply_renewals(first, pack);
    }

    /// Ends the loading of one commit.
    pub fn finish_loading(&mut self, head: Revision, compacted: Revision) {
        self.head = head;
        let entries = self.history.count_up_to(compacted);
        self.compact(&Compaction { up_to: compacted, entries, ..Default::default() });
    }

    /// The same records without their history, as of a later revision.
    #[must_use]
    pub fn without_history(mut self, head: Revision) -> Self {
        let entries = self.history.len();
        self.compact(&Compaction { up_to: head, entries, ..Default::default() });
        self.head = head;
        self
    }

    /// The fingerprint of all records and renewals.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub fn head(&self) -> Revision {
        self.head
    }

    /// The last compacted revision: history begins after it.
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    pub fn get(&self, kind: Kind, key: &NamespacedName) -> Option<&CurrentRecord> {
        self.records.get(&kind)?.get(key)?.current.as_ref()
    }

    /// The current records of a kind, from a key on.
    pub fn scan<'m>(
        &'m self,
        kind: Kind,
        from: Bound<&NamespacedName>,
    ) -> impl Iterator<Item = (&'m NamespacedName, &'m CurrentRecord)> + use<'m> {
        self.versions(kind, from).filter_map(|(key, versions)| Some((key, versions.current.as_ref()?)))
    }

    /// The records of a kind as they were at a revision that is not compacted.
    pub fn scan_at<'m>(
        &'m self,
        kind: Kind,
        from: Bound<&NamespacedName>,
        at: Revision,
    ) -> impl Iterator<Item = (&'m NamespacedName, RecordVersion)> + use<'m> {
        self.versions(kind, from).filter_map(move |(key, versions)| Some((key, versions.at(at)?)))
    }

    /// One record as it was at a revision that is not compacted.
    pub fn version_at(
        &self,
        kind: Kind,
        key: &NamespacedName,
        at: Revision,
    ) -> Option<(&NamespacedName, RecordVersion)> {
        let (key, versions) = self.records.get(&kind)?.get_key_value(key)?;
        Some((key, versions.at(at)?))
    }

    fn versions<'m>(
        &'m self,
        kind: Kind,
        from: Bound<&NamespacedName>,
    ) -> impl Iterator<Item = (&'m NamespacedName, &'m RecordVersions)> + use<'m> {
        let of_kind = self.records.get(&kind);
        of_kind
            .map(|of_kind| of_kind.range::<NamespacedName, _>((from, Bound::Unbounded)))
            .into_iter()
            .flatten()
    }

    /// The keys of the pods that are bound to a node, or were at a revision that is not compacted.
    pub fn pods_on_node<'m>(
        &'m self,
        node: &str,
        from: Bound<&NamespacedName>,
    ) -> impl Iterator<Item = &'m NamespacedName> + use<'m> {
        let pods = self.pods_by_node.get(node);
        let pods = pods.map(|pods| pods.range::<NamespacedName, _>((from, Bound::Unbounded)));
        pods.into_iter().flatten().map(|(key, _)| key)
    }

    /// A record's bytes; for a lease, with its newest renewal.
    pub fn with_newest_renewal(&self, kind: Kind, current: &CurrentRecord) -> Bytes {
        self.with_renewal_up_to(kind, current, Revision::MAX)
    }

    /// As [`with_newest_renewal`](Self::with_newest_renewal), but without a renewal after `at`.
    pub fn with_renewal_up_to(&self, kind: Kind, current: &CurrentRecord, at: Revision) -> Bytes {
        match (kind, self.leases.newest(current.lease_id)) {
            (Kind::Lease, Some(renewal)) if renewal.revision <= at => {
                lease_with_renewal(&current.record, &renewal)
            }
            _ => current.record.clone(),
        }
    }

    /// Applies a durable commit.
    pub fn apply_commit(&mut self, commit: &Commit) {
        for (revision, change) in &commit.changes {
            self.apply_change(*revision, change);
        }
        for (first, pack) in &commit.renewals {
            self.apply_renewals(*first, pack);
        }
        if let Some(compaction) = &commit.compaction {
            self.compact(compaction);
        }
        self.head = commit.head;
    }

    /// The fingerprint after a commit, without applying it: what another process has committed is checked first.
    pub fn fingerprint_after(&self, commit: &Commit) -> Fingerprint {
        let mut fingerprint = self.fingerprint;
        // What the commit has written so far: records by their key, and of leases the revision and the newest renewal.
        let mut records: HashMap<(Kind, NamespacedName), Option<(Revision, &StoredChange)>> = HashMap::new();
        let mut leases: HashMap<u32, (Option<Revision>, Option<Renewal>)> = HashMap::new();
        for (revision, change) in &commit.changes {
            let (kind, key) = (change.kind, change.key());
            match records.get(&(kind, key.clone())) {
                Some(None) => {}
                Some(Some((at, was))) => {
                    fingerprint.remove_record(kind, &key, *at, was.lease_id, &was.record);
                }
                None => {
                    if let Some(was) = self.get(kind, &key) {
                        fingerprint.remove_record(kind, &key, was.revision, was.lease_id, &was.record);
                    }
                }
            }
            if !change.deleted {
                fingerprint.add_record(kind, &key, *revision, change.lease_id, &change.record);
            }
            if kind == Kind::Lease {
                let known = leases.get(&change.lease_id).map(|(_, newest)| *newest);
                if let Some(newest) = known.unwrap_or_else(|| self.leases.newest(change.lease_id)) {
                    fingerprint.remove_renewal(change.lease_id, &newest);
                }
                leases.insert(change.lease_id, ((!change.deleted).then_some(*revision), None));
            }
            records.insert((kind, key), (!change.deleted).then_some((*revision, change)));
        }
        for (first, pack) in &commit.renewals {
            for (revision, stored) in (*first..).zip(pack) {
                let id = stored.lease_id;
                let (base, newest) = *leases.entry(id).or_insert_with(|| {
                    let lease = self.leases.key(id).and_then(|key| self.get(Kind::Lease, key));
                    (lease.map(|lease| lease.revision), self.leases.newest(id))
                });
                let Some(base) = base else { continue };
                if revision > newest.map_or(base, |newest| newest.revision) {
                    let renewal = stored.at(revision);
                    if let Some(replaced) = newest {
                        fingerprint.remove_renewal(id, &replaced);
                    }
                    fingerprint.add_renewal(id, &renewal);
                    leases.insert(id, (Some(base), Some(renewal)));
                }
            }
        }
        fingerprint
    }

    fn apply_change(&mut self, revision: Revision, change: &StoredChange) {
        let key = change.key();
        let versions = self.records.entry(change.kind).or_default().entry(key.clone()).or_default();
        let was = versions.current.take();
        if let Some(was) = &was {
            let bytes = was.record.len() as u32;
            versions.older.push_back(OlderVersion { revision: was.revision, deleted: false, bytes });
            self.fingerprint.remove_record(change.kind, &key, was.revision, was.lease_id, &was.record);
        }
        if !change.deleted {
            self.fingerprint.add_record(change.kind, &key, revision, change.lease_id, &change.record);
        }
        if change.deleted {
            versions.older.push_back(OlderVersion { revision, deleted: true, bytes: 0 });
        } else {
            let current =
                CurrentRecord { revision, record: change.record.clone(), lease_id: change.lease_id };
            versions.current = Some(current);
        }
        let own = if change.deleted { change.record.len() } else { 0 };
        let bytes = (own + was.as_ref().map_or(0, |was| was.record.len())) as u32;
        self.history.push(HistoryEntry::of(revision, key.clone(), change, bytes), change.at_millis);
        if change.kind == Kind::Lease
            && let Some(renewal) = self.leases.newest(change.lease_id)
        {
            self.fingerprint.remove_renewal(change.lease_id, &renewal);
        }
        match change.kind {
            Kind::Pod => self.index_pod(&key, revision, was.as_ref(), change),
            Kind::Lease if change.deleted => self.leases.remove(change.lease_id),
            Kind::Lease => self.leases.put(change.lease_id, key, &lease_holder(&change.record)),
            _ => {}
        }
    }

    /// Keeps `pods_by_node` up to date. A pod's node is set once, so only a deletion unbinds it; the pod stays indexed
    /// until that deletion is compacted, for reads of older revisions.
    fn index_pod(
        &mut self,
        key: &NamespacedName,
        revision: Revision,
        was: Option<&CurrentRecord>,
        change: &StoredChange,
    ) {
        if !change.deleted {
            return self.bind_pod(key, was, &change.record);
        }
        let node = partial_decode::pod_node(&change.record);
        if !node.is_empty() {
            self.nodes_of_deleted_pods.insert(revision, node);
        }
    }

    /// Indexes a pod by its node, unless it was bound to it before.
    fn bind_pod(&mut self, key: &NamespacedName, was: Option<&CurrentRecord>, record: &[u8]) {
        let node = partial_decode::pod_node(record);
        if !node.is_empty() && was.is_none_or(|was| partial_decode::pod_node(&was.record) != node) {
            *self.pods_by_node.entry(node).or_default().entry(key.clone()).or_default() += 1;
        }
    }

    fn apply_renewals(&mut self, first: Revision, pack: &[StoredRenewal]) {
        let of_kind = self.records.entry(Kind::Lease).or_default();
        let base = |key: &NamespacedName| {
            of_kind.get(key).and_then(|versions| versions.current.as_ref()).map_or(0, |c| c.revision)
        };
        let fingerprint = &mut self.fingerprint;
        self.leases.apply_renewals(first, pack, base, |lease_id, replaced, renewal| {
            if let Some(replaced) = replaced {
                fingerprint.remove_renewal(lease_id, &replaced);
            }
            fingerprint.add_renewal(lease_id, &renewal);
        });
    }
}

impl RecordVersions {
    fn at(&self, at: Revision) -> Option<RecordVersion> {
        if let Some(current) = &self.current
            && current.revision <= at
        {
            return Some(RecordVersion::Current(current.clone()));
        }
        let newer = self.older.partition_point(|older| older.revision <= at);
        let OlderVersion { revision, deleted, bytes } = *self.older.get(newer.checked_sub(1)?)?;
        let next = self.older.get(newer).map(|next| next.revision);
        let superseded_by = next.or(self.current.as_ref().map(|current| current.revision))?;
        (!deleted).then_some(RecordVersion::InLedger { revision, superseded_by, bytes: bytes as usize })
    }
}

fn unindex_pod(
    pods_by_node: &mut HashMap<String, BTreeMap<NamespacedName, u32>>,
    node: &str,
    key: &NamespacedName,
) {
    let Some(pods) = pods_by_node.get_mut(node) else { return };
    if let Some(times) = pods.get_mut(key) {
        *times -= 1;
        if *times == 0 {
            pods.remove(key);
        }
    }
    if pods.is_empty() {
        pods_by_node.remove(node);
    }
}

/// The lease's bytes with a renewal folded in.
pub fn lease_with_renewal(record: &[u8], renewal: &Renewal) -> Bytes {
    let mut lease = pb::Lease::decode(record).unwrap_or_default();
    lease.metadata.get_or_insert_default().resource_version = renewal.revision;
    let spec = lease.spec.get_or_insert_default();
    spec.renew_time = Some(prost_types::Timestamp {
        seconds: renewal.at_micros.div_euclid(1_000_000),
        nanos: (renewal.at_micros.rem_euclid(1_000_000) * 1000) as i32,
    });
    spec.status_digest = renewal.status_digest;
    spec.status_age_millis = renewal.status_age_millis;
    lease.encode_to_vec().into()
}

/// The holder that may renew a lease, with its incarnation for a node's lease.
fn lease_holder(record: &[u8]) -> String {
    heartbeat::holder_instance(&pb::Lease::decode(record).unwrap_or_default())
}

#[cfg(test)]
mod tests;
