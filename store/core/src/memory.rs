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

use self::compaction::HistoryEntry;
pub use self::compaction::{CompactionLimit, Retention};
use crate::change::Change;
use crate::heartbeat;
use crate::history::{Commit, Revision, StoredChange, StoredRenewal};
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
    InLedger { revision: Revision, bytes: usize },
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
    history: VecDeque<HistoryEntry>,
    /// Pods by the node they are bound to. Counted, since a pod may be deleted and created again on the same node
    /// while history still holds the deletion.
    pods_by_node: HashMap<String, BTreeMap<NamespacedName, u32>>,
    /// The nodes of deleted pods by the revision of the deletion, until it is compacted.
    nodes_of_deleted_pods: HashMap<Revision, String>,
    pub leases: LeaseTable,
}

impl Memory {
    /// An empty memory whose history begins after this revision.
    pub fn with_history_after(compacted: Revision) -> Self {
        Memory { compacted, ..Default::default() }
    }

    /// Applies a stored change while loading, in the order of revisions. Returns the change for watchers if it is not
    /// compacted.
    pub fn load_change(&mut self, revision: Revision, change: &StoredChange) -> Option<Change> {
        let for_watchers = (revision > self.compacted).then(|| {
            let previous = self.get(change.kind, &change.key()).map(|was| was.record.clone());
            Change::from_stored(revision, change.clone(), previous)
        });
        self.apply_change(revision, change);
        self.head = revision;
        for_watchers
    }

    /// Applies a stored pack of renewals while loading, after all changes.
    pub fn load_pack(&mut self, first: Revision, pack: &[StoredRenewal]) {
        self.apply_renewals(first, pack);
        self.head = self.head.max(first + pack.len().saturating_sub(1) as u64);
    }

    /// Ends loading. `head` is the newest revision that was committed.
    ///
    /// # Errors
    /// When changes beyond `head` were loaded: new commits would reuse their revisions.
    pub fn finish_loading(&mut self, head: Revision) -> Result<(), String> {
        let last = std::mem::replace(&mut self.head, head);
        // Records that were deleted before history begins have no version left.
        for of_kind in self.records.values_mut() {
            of_kind.retain(|_, versions| versions.current.is_some() || !versions.older.is_empty());
        }
        if head < last {
            return Err(format!("they end at revision {head}, and hold changes up to {last}"));
        }
        Ok(())
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
        for (revision, change) in &commit.folds {
            self.fold_renewal(*revision, change);
        }
        for (revision, change) in &commit.changes {
            self.apply_change(*revision, change);
        }
        for (first, pack) in &commit.renewals {
            self.apply_renewals(*first, pack);
        }
        for first in &commit.retired {
            self.leases.remove_pack(*first);
        }
        if let Some(compaction) = &commit.compaction {
            self.compact(compaction);
        }
        self.head = commit.head;
    }

    fn apply_change(&mut self, revision: Revision, change: &StoredChange) {
        let key = change.key();
        let versions = self.records.entry(change.kind).or_default().entry(key.clone()).or_default();
        let was = versions.current.take();
        if let Some(was) = &was {
            let bytes = was.record.len() as u32;
            versions.older.push_back(OlderVersion { revision: was.revision, deleted: false, bytes });
        }
        if change.deleted {
            versions.older.push_back(OlderVersion { revision, deleted: true, bytes: 0 });
        } else {
            let current =
                CurrentRecord { revision, record: change.record.clone(), lease_id: change.lease_id };
            versions.current = Some(current);
        }
        if revision <= self.compacted {
            versions.older.clear();
        } else {
            let own = if change.deleted { change.record.len() } else { 0 };
            self.history.push_back(HistoryEntry {
                revision,
                kind: change.kind,
                key: key.clone(),
                previous: change.previous,
                deleted: change.deleted,
                at_millis: change.at_millis,
                bytes: (own + was.as_ref().map_or(0, |was| was.record.len())) as u32,
            });
        }
        match change.kind {
            Kind::Pod => self.index_pod(key, revision, was.as_ref(), change),
            Kind::Lease if change.deleted => self.leases.remove(change.lease_id),
            Kind::Lease => {
                let (holder, folded) = lease_holder(revision, &change.record);
                self.leases.put(change.lease_id, key, &holder, folded);
            }
            _ => {}
        }
    }

    /// Keeps `pods_by_node` up to date. A pod's node is set once, so only a deletion unbinds it; the pod stays indexed
    /// until that deletion is compacted, for reads of older revisions.
    fn index_pod(
        &mut self,
        key: NamespacedName,
        revision: Revision,
        was: Option<&CurrentRecord>,
        change: &StoredChange,
    ) {
        let node = partial_decode::pod_node(&change.record);
        if node.is_empty() {
            return;
        }
        if change.deleted && revision > self.compacted {
            self.nodes_of_deleted_pods.insert(revision, node);
        } else if change.deleted {
            unindex_pod(&mut self.pods_by_node, &node, &key);
        } else if was.is_none_or(|was| partial_decode::pod_node(&was.record) != node) {
            *self.pods_by_node.entry(node).or_default().entry(key).or_default() += 1;
        }
    }

    /// Replaces a lease's value by one with its newest renewal folded in.
    fn fold_renewal(&mut self, revision: Revision, change: &StoredChange) {
        let versions = self.records.entry(Kind::Lease).or_default().get_mut(&change.key());
        if let Some(current) = versions.and_then(|versions| versions.current.as_mut())
            && current.revision == revision
        {
            current.record = change.record.clone();
        }
    }

    fn apply_renewals(&mut self, first: Revision, pack: &[StoredRenewal]) {
        let of_kind = self.records.entry(Kind::Lease).or_default();
        let base = |key: &NamespacedName| {
            of_kind.get(key).and_then(|versions| versions.current.as_ref()).map_or(0, |c| c.revision)
        };
        self.leases.apply_renewals(first, pack, base);
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
        (!deleted).then_some(RecordVersion::InLedger { revision, bytes: bytes as usize })
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

/// The holder that may renew a lease, with its incarnation for a node's lease, and the renewal that was folded into
/// the stored value, if any.
fn lease_holder(revision: Revision, record: &[u8]) -> (String, Option<Renewal>) {
    let lease = pb::Lease::decode(record).unwrap_or_default();
    let holder = heartbeat::holder_instance(&lease);
    let (metadata, spec) = (lease.metadata.unwrap_or_default(), lease.spec.unwrap_or_default());
    let folded = (metadata.resource_version > revision).then(|| {
        let at = spec.renew_time.unwrap_or_default();
        Renewal {
            revision: metadata.resource_version,
            at_micros: at.seconds * 1_000_000 + i64::from(at.nanos) / 1000,
            status_digest: spec.status_digest,
            status_age_millis: spec.status_age_millis,
        }
    });
    (holder, folded)
}

#[cfg(test)]
mod tests;
