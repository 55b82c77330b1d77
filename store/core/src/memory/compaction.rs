//! Compaction: which old changes may be dropped, and dropping them from memory.

use muster_proto::record::Kind;

use super::{Memory, unindex_pod};
use crate::history::{Compaction, Revision};
use crate::namespaced_name::NamespacedName;

/// One kept entry of history, for compaction.
#[derive(Debug, Clone)]
pub(super) struct HistoryEntry {
    pub(super) revision: Revision,
    pub(super) kind: Kind,
    pub(super) key: NamespacedName,
    pub(super) previous: Revision,
    pub(super) deleted: bool,
    pub(super) at_millis: i64,
    /// The length of the records that go with it.
    pub(super) bytes: u32,
}

/// How much history goes at once.
#[derive(Debug, Clone, Copy)]
pub struct CompactionLimit {
    pub entries: usize,
    /// No more once their records have this length.
    pub bytes: usize,
}

/// How much history is kept: what is younger or among the newest stays.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    pub min_age_millis: i64,
    pub min_changes: usize,
}

impl Memory {
    /// History that the retention no longer asks for, at most a portion of it.
    pub fn compactable(
        &self,
        retention: Retention,
        now_millis: i64,
        most: CompactionLimit,
    ) -> Option<Compaction> {
        let spare = self.history.len().saturating_sub(retention.min_changes).min(most.entries);
        let (mut compaction, mut bytes) = (Compaction::default(), 0);
        for entry in self.history.iter().take(spare) {
            if now_millis - entry.at_millis < retention.min_age_millis || bytes >= most.bytes {
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

    /// When the oldest entry of history can go, if nothing else happens.
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
                // Oldest first: what goes is in front, however much there is behind it.
                let gone = if entry.deleted { entry.revision } else { entry.previous };
                while versions.older.front().is_some_and(|older| older.revision <= gone) {
                    versions.older.pop_front();
                }
                if versions.current.is_none() && versions.older.is_empty() {
                    of_kind.remove(&entry.key);
                }
            }
        }
    }
}
