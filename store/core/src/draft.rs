//! A commit under construction: the current records, and on top of them the changes of the batch so far.
//!
//! Each request of a batch sees the changes of the requests before it. No reader or watcher sees them until the commit
//! is durable.

mod budgets;
mod index;
mod joining;
mod maintenance;
mod priority;

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use muster_proto::budget::DisruptionBudget;
use muster_proto::fence::Fence;
use muster_proto::lease::Lease;
use muster_proto::meta::Metadata;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::record::{Kind, Record};
use prost::Message;

use crate::change::{Change, SharedChange};
use crate::error::DraftError;
use crate::fingerprint::Fingerprint;
use crate::history::{Commit, Revision, StoredChange, StoredRenewal};
use crate::indexes::Indexes;
use crate::lease_table::{Claim, Renewal};
use crate::limits::{Amount, max_record};
use crate::memory::{Memory, Retention, lease_with_renewal};
use crate::namespaced_name::NamespacedName;
use crate::rules::{self, Context, Defaults, Outcome};

/// A draft with this many changes, or bytes of them, takes no further request. The ledger states what suits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitLimits {
    pub changes: usize,
    pub bytes: usize,
}

impl Default for CommitLimits {
    /// sled's batches should stay below a few thousand entries, maintenance included.
    fn default() -> Self {
        Self { changes: 1024, bytes: 1 << 20 }
    }
}

/// The writer's settings.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    pub defaults: Defaults,
    pub retention: Retention,
    pub event_ttl_millis: i64,
    /// Beyond this the oldest events are deleted.
    pub event_limit: Amount,
}

/// A record as of the batch so far.
#[derive(Debug, Clone)]
struct DraftRecord {
    revision: Revision,
    record: Bytes,
    lease_id: u32,
}

/// A record as a request left it, in the form in which it is kept and answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its resource version.
    pub version: Revision,
    /// In the schema's encoding.
    pub record: Bytes,
}

impl Stored {
    /// A record that is not written.
    pub fn unwritten<R: Record>(record: R) -> Self {
        let version = record.meta().resource_version;
        Self { version, record: encode(record) }
    }
}

/// A finished draft.
pub struct Batch {
    pub commit: Commit,
    pub changes: Vec<SharedChange>,
    /// Records whose owning node does not exist; the next commit deletes them.
    pub orphans: Vec<(Kind, NamespacedName)>,
    /// How many events were deleted because there were too many.
    pub dropped_events: usize,
}

/// A commit under construction.
pub struct Draft<'a> {
    memory: &'a Memory,
    indexes: &'a mut Indexes,
    policy: &'a Policy,
    now: Timestamp,
    head: Revision,
    /// Records that the batch wrote; `None` marks one that it deleted.
    written: HashMap<(Kind, NamespacedName), Option<DraftRecord>>,
    /// The newest renewal of each lease that the batch renewed or wrote; `None` if it wrote the lease since.
    renewals: HashMap<u32, Option<Renewal>>,
    /// For each lease that the batch wrote or deleted: whether claims made before the batch are still valid.
    claims_valid: HashMap<u32, bool>,
    new_leases: usize,
    /// Budgets whose status may not match their pods any more.
    stale_budgets: BTreeSet<NamespacedName>,
    orphans: Vec<(Kind, NamespacedName)>,
    /// The nodes whose agents recorded events in this batch.
    recording_hosts: BTreeSet<String>,
    dropped_events: usize,
    commit: Commit,
    changes: Vec<SharedChange>,
    bytes: usize,
    limits: CommitLimits,
    traceparent: String,
    fingerprint: Fingerprint,
}

impl<'a> Draft<'a> {
    pub fn new(memory: &'a Memory, indexes: &'a mut Indexes, policy: &'a Policy, now: Timestamp) -> Self {
        let head = memory.head();
        Self {
            memory,
            indexes,
            policy,
            now,
            head,
            written: HashMap::new(),
            renewals: HashMap::new(),
            claims_valid: HashMap::new(),
            new_leases: 0,
            stale_budgets: BTreeSet::new(),
            orphans: Vec::new(),
            recording_hosts: BTreeSet::new(),
            dropped_events: 0,
            commit: Commit { base: head, head, ..Default::default() },
            changes: Vec::new(),
            bytes: 0,
            limits: CommitLimits::default(),
            traceparent: String::new(),
            fingerprint: memory.fingerprint(),
        }
    }

    /// The same draft for a ledger with these limits.
    #[must_use]
    pub fn within(self, limits: CommitLimits) -> Self {
        Self { limits, ..self }
    }

    /// Begins a request: the changes that follow carry its trace context.
    pub fn begin_request(&mut self, traceparent: String) {
        self.traceparent = traceparent;
    }

    /// Whether the remaining requests must wait for the next commit.
    pub fn is_full(&self) -> bool {
        self.changes.len() >= self.limits.changes || self.bytes >= self.limits.bytes
    }

    /// The revision of the newest change so far.
    pub fn revision(&self) -> Revision {
        self.head
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The context in which rules are evaluated.
    pub fn context(&self) -> Context {
        Context { now: self.now, uid: Uid::new(uuid::Uuid::new_v4()), defaults: self.policy.defaults }
    }

    fn lookup(&self, kind: Kind, key: &NamespacedName) -> Option<DraftRecord> {
        if let Some(pending) = self.written.get(&(kind, key.clone())) {
            return pending.clone();
        }
        let current = self.memory.get(kind, key)?;
        let (revision, lease_id) = (current.revision, current.lease_id);
        Some(DraftRecord { revision, record: current.record.clone(), lease_id })
    }

    /// A record as of the batch so far.
    pub fn get<R: Record>(&self, namespace: &str, name: &str) -> Result<Option<R>, DraftError> {
        self.get_by_key(&NamespacedName::new(namespace, name))
    }

    fn get_by_key<R: Record>(&self, key: &NamespacedName) -> Result<Option<R>, DraftError> {
        let Some(pending) = self.lookup(R::KIND, key) else { return Ok(None) };
        let record = match (R::KIND, self.newest_renewal(&pending)) {
            (Kind::Lease, Some(renewal)) => lease_with_renewal(&pending.record, &renewal),
            _ => pending.record,
        };
        decode(key, &record).map(Some)
    }

    fn newest_renewal(&self, lease: &DraftRecord) -> Option<Renewal> {
        self.renewal_of(lease.lease_id).filter(|renewal| renewal.revision > lease.revision)
    }

    fn renewal_of(&self, lease_id: u32) -> Option<Renewal> {
        let in_batch = self.renewals.get(&lease_id).copied();
        in_batch.unwrap_or_else(|| self.memory.leases.newest(lease_id))
    }

    /// Sets the newest renewal of a lease; `None` when the lease itself was written or deleted.
    fn set_renewal(&mut self, lease_id: u32, renewal: Option<Renewal>) {
        if let Some(replaced) = self.renewal_of(lease_id) {
            self.fingerprint.remove_renewal(lease_id, &replaced);
        }
        if let Some(renewal) = &renewal {
            self.fingerprint.add_renewal(lease_id, renewal);
        }
        self.renewals.insert(lease_id, renewal);
    }

    /// Applies the outcome of a rule and returns the record as stored.
    pub fn apply<R: Record>(&mut self, outcome: Outcome<R>) -> Result<Stored, DraftError> {
        match outcome {
            Outcome::Unchanged(record) => Ok(Stored::unwritten(record)),
            Outcome::Store(record) => self.put(record),
            Outcome::Remove(record) => self.remove(record),
        }
    }

    /// Writes a record at the next revision. A budget gets the status of its pods at that revision: no revision shows a
    /// new spec with an old status.
    pub fn put<R: Record>(&mut self, mut record: R) -> Result<Stored, DraftError> {
        let key = key_of(record.meta());
        let budget = (&mut record as &mut dyn Any).downcast_mut::<DisruptionBudget>();
        let counts = budget.map(|budget| self.set_budget_status(&key, budget)).transpose()?;
        self.stamp(record.meta_mut());
        let meta = record.meta().clone();
        let bytes = encode(record);
        let was = self.lookup(R::KIND, &key);
        self.check_limits(R::KIND, &meta, &bytes, was.as_ref())?;
        let lease_id = match (&was, R::KIND) {
            (Some(was), _) => was.lease_id,
            (None, Kind::Lease) => {
                self.new_leases += 1;
                self.memory.leases.next_id(self.new_leases - 1)
            }
            (None, _) => 0,
        };
        self.index_put(R::KIND, &key, &meta, &bytes, was.as_ref(), lease_id)?;
        if let Some(counts) = counts {
            self.indexes.put_budget(key.clone(), counts);
        }
        let replaced = was.as_ref().map(|was| &was.record);
        self.indexes.usage.replace(R::KIND, key.namespace(), replaced, Some(&bytes));
        let pending = DraftRecord { revision: self.head + 1, record: bytes.clone(), lease_id };
        self.written.insert((R::KIND, key.clone()), Some(pending));
        let stored = Stored { version: self.head + 1, record: bytes.clone() };
        self.push(R::KIND, key, bytes, was, false, lease_id);
        Ok(stored)
    }

    /// Deletes a record at the next revision, and the dependents of a deleted node with it.
    pub fn remove<R: Record>(&mut self, mut record: R) -> Result<Stored, DraftError> {
        let (key, uid) = (key_of(record.meta()), record.meta().uid);
        self.stamp(record.meta_mut());
        let bytes = encode(record);
        let was = self.lookup(R::KIND, &key);
        self.index_remove(&key, was.as_ref(), R::KIND)?;
        self.indexes.usage.replace(R::KIND, key.namespace(), was.as_ref().map(|was| &was.record), None);
        let lease_id = was.as_ref().map_or(0, |was| was.lease_id);
        self.written.insert((R::KIND, key.clone()), None);
        let stored = Stored { version: self.head + 1, record: bytes.clone() };
        self.push(R::KIND, key, bytes, was, true, lease_id);
        if R::KIND == Kind::Node
            && let Some(uid) = uid
        {
            self.delete_dependents(&uid.to_string());
        }
        Ok(stored)
    }

    /// Refuses a record that is too large, or one too many. A record that was stored before there was the limit may stay
    /// as large as it is.
    fn check_limits(
        &self,
        kind: Kind,
        meta: &Metadata,
        bytes: &Bytes,
        was: Option<&DraftRecord>,
    ) -> Result<(), DraftError> {
        let was = was.map(|was| &was.record);
        let limit = max_record(kind);
        if bytes.len() > was.map_or(limit, |was| was.len().max(limit)) {
            let key = rules::RecordId::new(kind, meta);
            return Err(DraftError::TooLarge { key, bytes: bytes.len(), limit });
        }
        let namespace = meta.namespace.as_ref().map_or("", |namespace| namespace.as_str());
        Ok(self.indexes.usage.check(kind, namespace, was, bytes)?)
    }

    /// Sets the metadata that the next change gives its record.
    fn stamp(&self, meta: &mut Metadata) {
        meta.resource_version = self.head + 1;
        meta.traceparent = Some(self.traceparent.clone()).filter(|text| !text.is_empty());
    }

    fn push(
        &mut self,
        kind: Kind,
        key: NamespacedName,
        record: Bytes,
        was: Option<DraftRecord>,
        deleted: bool,
        lease_id: u32,
    ) {
        self.head += 1;
        self.bytes += record.len();
        if let Some(was) = &was {
            self.fingerprint.remove_record(kind, &key, was.revision, was.lease_id, &was.record);
        }
        if !deleted {
            self.fingerprint.add_record(kind, &key, self.head, lease_id, &record);
        }
        if kind == Kind::Lease {
            self.set_renewal(lease_id, None);
        }
        let stored = StoredChange {
            kind,
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            record: record.clone(),
            deleted,
            previous: was.as_ref().map_or(0, |was| was.revision),
            previous_record: was.as_ref().map(|was| was.record.clone()),
            at_millis: self.now.as_millisecond(),
            traceparent: self.traceparent.clone(),
            lease_id,
        };
        self.commit.changes.push((self.head, stored));
        let (previous, traceparent) = (was.map(|was| was.record), self.traceparent.clone());
        let change = Change::new(kind, self.head, key, deleted, record, previous, traceparent);
        self.changes.push(Arc::new(change));
    }

    /// The uid of a node, if the node exists.
    pub fn node_uid(&self, name: &str) -> Result<Option<Uid>, DraftError> {
        Ok(self.get::<Node>("", name)?.and_then(|node| node.meta.uid))
    }

    /// Refuses a write whose fence names a holder that no longer holds the lease.
    pub fn check_fence(&self, fence: &Fence) -> Result<(), DraftError> {
        let lease: Option<Lease> = self.get(fence.namespace().as_str(), fence.name().as_str())?;
        Ok(rules::check_fence(fence, lease.as_ref())?)
    }

    /// Whether a claim on a lease is still valid.
    pub fn is_claim_valid(&self, claim: Claim) -> bool {
        let valid_in_batch = self.claims_valid.get(&claim.lease_id).copied().unwrap_or(true);
        valid_in_batch && self.memory.leases.claim(claim.lease_id) == Some(claim)
    }

    /// Renews a lease by its holder's claim. `status` is digest and age of the holder's status; without it the last
    /// known ones stay.
    pub fn renew(&mut self, claim: Claim, status: Option<(u64, u32)>) -> Result<Renewal, DraftError> {
        if !self.is_claim_valid(claim) {
            return Err(DraftError::ClaimLost);
        }
        let (digest, age_millis) = status.unwrap_or_else(|| self.last_status(claim.lease_id));
        self.head += 1;
        let renewal = Renewal {
            revision: self.head,
            at_micros: self.now.as_microsecond(),
            status_digest: digest,
            status_age_millis: age_millis,
        };
        let stored = StoredRenewal {
            lease_id: claim.lease_id,
            status_age_millis: age_millis,
            status_digest: digest,
            at_micros: renewal.at_micros,
        };
        match self.commit.renewals.last_mut() {
            // The revisions of a pack are consecutive: a change in between starts a new pack.
            Some((first, pack)) if *first + pack.len() as u64 == self.head => {
                pack.push(stored);
            }
            _ => self.commit.renewals.push((self.head, vec![stored])),
        }
        self.set_renewal(claim.lease_id, Some(renewal));
        Ok(renewal)
    }

    /// Digest and age of the status that the lease's holder reported last.
    fn last_status(&self, lease_id: u32) -> (u64, u32) {
        let lease = self.memory.leases.key(lease_id).and_then(|key| self.lookup(Kind::Lease, key));
        let Some(lease) = lease else { return (0, 0) };
        match self.newest_renewal(&lease) {
            Some(renewal) => (renewal.status_digest, renewal.status_age_millis),
            None => {
                let spec = pb::Lease::decode(&*lease.record).unwrap_or_default().spec.unwrap_or_default();
                (spec.status_digest, spec.status_age_millis)
            }
        }
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.head == self.commit.base && self.commit.compaction.is_none()
    }

    pub fn finish(mut self) -> Batch {
        self.commit.head = self.head;
        self.commit.fingerprint = self.fingerprint;
        let Self { commit, changes, orphans, dropped_events, .. } = self;
        Batch { commit, changes, orphans, dropped_events }
    }
}

fn encode<R: Record>(record: R) -> Bytes {
    let wire: R::Pb = record.into();
    wire.encode_to_vec().into()
}

fn key_of(meta: &Metadata) -> NamespacedName {
    NamespacedName::new(
        meta.namespace.as_ref().map_or("", |namespace| namespace.as_str()),
        meta.name.as_str(),
    )
}

/// A stored record as its domain type. Records were valid when stored, so a failure means damage, or a record that a
/// later version of Muster wrote.
fn decode<R: Record>(key: &NamespacedName, bytes: &[u8]) -> Result<R, DraftError> {
    let damaged =
        |reason: String| DraftError::Unreadable(format!("{} {key} cannot be read: {reason}", R::KIND));
    let wire = R::Pb::decode(bytes).map_err(|e| damaged(e.to_string()))?;
    R::try_from(wire).map_err(|e| damaged(e.to_string()))
}

#[cfg(test)]
mod tests;
