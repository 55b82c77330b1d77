//! Compaction: which old changes may be dropped, and dropping them from memory.

use muster_proto::record::Kind;

use super::{Memory, unplace};
use crate::history::{Compaction, Revision};
use crate::namespaced_name::NamespacedName;

/// One kept step of history, for compaction.
#[derive(Debug, Clone)]
pub(super) struct Step {
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
pub struct Portion {
    pub steps: usize,
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
    pub fn compactable(&self, retention: Retention, now_millis: i64, most: Portion) -> Option<Compaction> {
        let spare = self.history.len().saturating_sub(retention.min_changes).min(most.steps);
        let (mut compaction, mut bytes) = (Compaction::default(), 0);
        for step in self.history.iter().take(spare) {
            if now_millis - step.at_millis < retention.min_age_millis || bytes >= most.bytes {
                break;
            }
            compaction.steps += 1;
            bytes += step.bytes as usize;
            compaction.up_to = step.revision;
            if step.previous > 0 {
                compaction.forget.push(step.previous);
            }
            if step.deleted {
                compaction.forget.push(step.revision);
            }
        }
        (compaction.steps > 0).then_some(compaction)
    }

    /// When the oldest step of history can go, if nothing else happens.
    pub fn compactable_at(&self, retention: Retention) -> Option<i64> {
        let oldest = self.history.front()?;
        (self.history.len() > retention.min_changes).then(|| oldest.at_millis + retention.min_age_millis)
    }

    pub(super) fn compact(&mut self, compaction: &Compaction) {
        self.compacted = self.compacted.max(compaction.up_to);
        for step in self.history.drain(..compaction.steps.min(self.history.len())) {
            if let Some(node) = self.departed.remove(&step.revision) {
                unplace(&mut self.pods_by_node, &node, &step.key);
            }
            let Some(shelf) = self.shelves.get_mut(&step.kind) else { continue };
            if let Some(slot) = shelf.get_mut(&step.key) {
                // Oldest first: what goes is in front, however much there is behind it.
                let gone = if step.deleted { step.revision } else { step.previous };
                while slot.older.front().is_some_and(|older| older.revision <= gone) {
                    slot.older.pop_front();
                }
                if slot.current.is_none() && slot.older.is_empty() {
                    shelf.remove(&step.key);
                }
            }
        }
    }
}
