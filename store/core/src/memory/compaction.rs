//! Compaction: which old changes may be deleted, and their removal from memory.

use muster_proto::record::Kind;

use super::{Memory, unindex_pod};
use crate::history::{Compaction, Revision};
use crate::namespaced_name::NamespacedName;

/// One change of history that is not compacted yet.
#[derive(Debug, Clone)]
pub(super) struct HistoryEntry {
    pub(super) revision: Revision,
    pub(super) kind: Kind,
    pub(super) key: NamespacedName,
    pub(super) previous: Revision,
    pub(super) deleted: bool,
    pub(super) at_millis: i64,
    /// The total length of the stored records that compacting it deletes.
    pub(super) bytes: u32,
}

/// How much history one compaction deletes.
#[derive(Debug, Clone, Copy)]
pub struct CompactionLimit {
    pub entries: usize,
    /// Stop once the deleted records have this total length.
    pub bytes: usize,
}

/// How much history is kept: a change stays while it is younger than `min_age_millis` or among the newest
/// `min_changes`.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    pub min_age_millis: i64,
    pub min_changes: usize,
}

impl Memory {
    /// The oldest history that the retention no longer keeps, up to a limit; `None` if there is none.
    pub fn compactable(
        &self,
        retention: Retention,
        now_millis: i64,
        limit: CompactionLimit,
    ) -> Option<Compaction> {
        let compactable = self.history.len().saturating_sub(retention.min_changes).min(limit.entries);
        let (mut compaction, mut bytes) = (Compaction::default(), 0);
        for entry in self.history.iter().take(compactable) {
            if now_millis - entry.at_millis < retention.min_age_millis || bytes >= limit.bytes {
                break;
            }
            compaction.entries += 1;
            bytes += entry.bytes as usize;
            compaction.up_to = entry.revision;
            if entry.previous > 0 {
                compaction.obsolete.push(entry.previous);
            }
            if entry.deleted {
                compaction.obsolete.push(entry.revision);
            }
        }
        (compaction.entries > 0).then_some(compaction)
    }

    /// When the oldest change may be compacted if no other change is committed, in milliseconds since 1970.
    pub fn compactable_at(&self, retention: Retention) -> Option<i64> {
        let oldest = self.history.front()?;
        (self.history.len() > retention.min_changes).then(|| oldest.at_millis + retention.min_age_millis)
    }

    pub(super) fn compact(&mut self, compaction: &Compaction) {
        self.compacted = self.compacted.max(compaction.up_to);
        for entry in self.history.drain(..compaction.entries.min(self.history.len())) {
            if let Some(node) = self.nodes_of_deleted_pods.remove(&entry.revision) {
                unindex_pod(&mut self.pods_by_node, &node, &entry.key);
            }
            let Some(of_kind) = self.records.get_mut(&entry.kind) else { continue };
            if let Some(versions) = of_kind.get_mut(&entry.key) {
                // Oldest first: the versions to drop are at the front, so the cost does not depend on the rest.
                let obsolete = if entry.deleted { entry.revision } else { entry.previous };
                while versions.older.front().is_some_and(|older| older.revision <= obsolete) {
                    versions.older.pop_front();
                }
                if versions.current.is_none() && versions.older.is_empty() {
                    of_kind.remove(&entry.key);
                }
            }
        }
    }
}
