//! Garbage collection within a commit: dependents of deleted nodes, orphans, what has expired, old history.

use muster_proto::event::Event;
use muster_proto::lease::Lease;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;

use super::Draft;
use crate::error::DraftError;
use crate::limits::EVENTS_OF_NODE;
use crate::memory::CompactionLimit;
use crate::namespaced_name::NamespacedName;
use crate::partial_decode;
use crate::rules::{self, PodDeletion};

/// How much maintenance one commit does at least; more if the commit itself adds more.
const MAX_EXPIRED_EVENTS: usize = 256;
const MAX_DROPPED_EVENTS: usize = 4096;
pub(super) const MAX_COMPACTED_CHANGES: usize = 1024;
/// Limited in bytes too: a long record costs an engine as much to delete as to write.
const MAX_COMPACTED_BYTES: usize = 256 * 1024;

impl Draft<'_> {
    /// Deletes the dependents of a deleted node. A failure does not undo the node's deletion: a dependent that cannot
    /// be deleted now becomes an orphan, to be deleted by a later commit.
    pub(super) fn delete_dependents(&mut self, owner_uid: &str) {
        for (kind, key) in self.indexes.dependents(owner_uid) {
            if self.delete_orphan(kind, &key).is_err() {
                self.orphans.push((kind, key));
            }
        }
    }

    /// Deletes a record if it has owners and all of them are gone.
    ///
    /// As in Kubernetes, a single remaining owner keeps its dependents. The store can tell only for nodes whether they
    /// are gone, so an owner of another kind counts as existing.
    pub fn delete_orphan(&mut self, kind: Kind, key: &NamespacedName) -> Result<(), DraftError> {
        let Some(pending) = self.lookup(kind, key) else { return Ok(()) };
        let owners = partial_decode::metadata(&pending.record).owner_references;
        let is_gone =
            |owner: &pb::OwnerReference| owner.kind == "Node" && !self.node_exists(&owner.name, &owner.uid);
        if !owners.is_empty() && owners.iter().all(is_gone) {
            self.delete_without_grace(kind, key)?;
        }
        Ok(())
    }

    fn delete_without_grace(&mut self, kind: Kind, key: &NamespacedName) -> Result<(), DraftError> {
        let cx = self.context();
        if kind == Kind::Lease {
            if let Some(lease) = self.get_by_key::<Lease>(key)? {
                let wanted = rules::RecordId::of(&lease);
                let outcome = rules::delete(&wanted, Some(&lease), &rules::Preconditions::default(), &cx)?;
                self.apply(outcome)?;
            }
        } else if let Some(pod) = self.get_by_key::<Pod>(key)? {
            let at_once = PodDeletion { grace_period_seconds: Some(0), ..Default::default() };
            let wanted = rules::RecordId::of(&pod);
            let outcome = rules::delete_pod(&wanted, Some(&pod), &at_once, &cx)?;
            self.apply(outcome)?;
        }
        Ok(())
    }

    /// Deletes what has expired, and history beyond the retention.
    pub fn maintain(&mut self) -> Result<(), DraftError> {
        let now_millis = self.now.as_millisecond();
        self.begin_request(String::new());
        // At least as many as the batch adds, or the backlog would grow without limit.
        for key in self.indexes.events.expired(now_millis, MAX_EXPIRED_EVENTS.max(self.changes.len())) {
            match self.get_by_key::<Event>(&key) {
                Ok(Some(event)) => drop(self.remove(event)?),
                // An event that cannot be decoded stays; without its expiry it is not tried again and again.
                Ok(None) | Err(_) => self.indexes.events.remove(&key),
            }
        }
        self.drop_excess_events()?;
        self.delete_expired_joining(now_millis, MAX_EXPIRED_EVENTS.max(self.changes.len()))?;
        let limit = CompactionLimit {
            entries: MAX_COMPACTED_CHANGES.max(self.changes.len()),
            bytes: MAX_COMPACTED_BYTES.max(self.bytes),
        };
        self.commit.compaction = self.memory.compactable(self.policy.retention, now_millis, limit);
        Ok(())
    }

    /// Deletes the oldest events of each node whose agent recorded too many, then the oldest of all.
    fn drop_excess_events(&mut self) -> Result<(), DraftError> {
        for host in std::mem::take(&mut self.recording_hosts) {
            while let Some(key) = self.indexes.events.excess_of(&host, EVENTS_OF_NODE) {
                self.drop_event(&key)?;
            }
        }
        // More than this may have to go after the limit was lowered; the next commits go on.
        for _ in 0..MAX_DROPPED_EVENTS {
            let Some(key) = self.indexes.events.excess(self.policy.event_limit) else { break };
            self.drop_event(&key)?;
        }
        Ok(())
    }

    fn drop_event(&mut self, key: &NamespacedName) -> Result<(), DraftError> {
        match self.get_by_key::<Event>(key) {
            Ok(Some(event)) => {
                self.remove(event)?;
                self.dropped_events += 1;
            }
            Ok(None) | Err(_) => self.indexes.events.remove(key),
        }
        Ok(())
    }
}
