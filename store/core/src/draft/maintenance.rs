//! Garbage collection within a commit: dependents of deleted nodes, orphans, expired events, old history, old packs.

use muster_proto::event::Event;
use muster_proto::lease::Lease;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;

use super::Draft;
use crate::error::DraftError;
use crate::history::{Revision, StoredChange};
use crate::memory::{CompactionLimit, lease_with_renewal};
use crate::namespaced_name::NamespacedName;
use crate::partial_decode;
use crate::rules::{self, PodDeletion};

/// How much maintenance one commit does at least; more if the commit itself adds more.
const MAX_EXPIRED_EVENTS: usize = 256;
pub(super) const MAX_COMPACTED_CHANGES: usize = 1024;
/// Limited in bytes too: a long record costs an engine as much to delete as to write.
const MAX_COMPACTED_BYTES: usize = 256 * 1024;
const MAX_RETIRED_PACKS: usize = 64;
/// Leases that stopped renewing are folded when their pack is retired, at most this many in one commit.
const MAX_FOLDED_LEASES: usize = 1024;

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

    /// Deletes a record unless one of its owning nodes exists by now.
    pub fn delete_orphan(&mut self, kind: Kind, key: &NamespacedName) -> Result<(), DraftError> {
        let Some(pending) = self.lookup(kind, key) else { return Ok(()) };
        let owners = partial_decode::metadata(&pending.record).owner_references;
        let nodes: Vec<_> = owners.iter().filter(|owner| owner.kind == "Node").collect();
        if !nodes.is_empty() && nodes.iter().all(|owner| !self.node_exists(&owner.name, &owner.uid)) {
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

    /// Deletes expired events, history beyond the retention, and old packs of renewals. `stored` reads a change from
    /// the ledger.
    pub fn maintain(
        &mut self,
        stored: impl Fn(Revision) -> Result<Option<StoredChange>, String>,
    ) -> Result<(), DraftError> {
        let now_millis = self.now.as_millisecond();
        self.begin_request(String::new());
        // At least as many as the batch adds, or the backlog would grow without limit.
        for key in self.indexes.expired(now_millis, MAX_EXPIRED_EVENTS.max(self.changes.len())) {
            match self.get_by_key::<Event>(&key) {
                Ok(Some(event)) => drop(self.remove(event)?),
                // An event that cannot be decoded stays; without its expiry it is not tried again and again.
                Ok(None) | Err(_) => self.indexes.cancel_expiry(&key),
            }
        }
        let limit = CompactionLimit {
            entries: MAX_COMPACTED_CHANGES.max(self.changes.len()),
            bytes: MAX_COMPACTED_BYTES.max(self.bytes),
        };
        self.commit.compaction = self.memory.compactable(self.policy.retention, now_millis, limit);
        self.retire_packs(stored)
    }

    fn retire_packs(
        &mut self,
        stored: impl Fn(Revision) -> Result<Option<StoredChange>, String>,
    ) -> Result<(), DraftError> {
        // At least as many as the batch adds, or the backlog would grow without limit.
        for skip in 0..MAX_RETIRED_PACKS + self.commit.renewals.len() {
            if self.commit.folds.len() >= MAX_FOLDED_LEASES {
                break;
            }
            let Some((first, leases)) = self.memory.leases.retirable(skip) else { break };
            for id in leases {
                let Some(key) = self.memory.leases.key(id) else { continue };
                let (Some(current), Some(renewal)) =
                    (self.memory.get(Kind::Lease, key), self.memory.leases.newest(id))
                else {
                    continue;
                };
                let found = stored(current.revision).map_err(DraftError::Unreadable)?;
                let missing = || {
                    DraftError::Unreadable(format!("Lease {key} is missing at the revision that wrote it"))
                };
                let mut folded = found.ok_or_else(missing)?;
                folded.record = lease_with_renewal(&current.record, &renewal);
                self.commit.folds.push((current.revision, folded));
            }
            self.commit.retired.push(first);
        }
        Ok(())
    }
}
