//! Compaction: which old changes may be deleted, and their removal from memory.

use std::collections::VecDeque;

use muster_proto::record::Kind;

use super::{Memory, unindex_pod};
use crate::history::{Compaction, Revision, StoredChange};
use crate::namespaced_name::NamespacedName;

/// One change of history that is not compacted yet.
#[derive(Debug, Clone)]
pub(super) struct HistoryEntry {
    pub(super) revision: Revision,
    pub(super) kind: Kind,
    pub(super) key: NamespacedName,
    pub(super) previous: Revision,
    pub(super) deleted: bool,
    /// The total length of the stored records that compacting it deletes.
    pub(super) bytes: u32,
}

/// What an entry takes beside the records it keeps, in bytes: about its size in memory.
const ENTRY_BYTES: u64 = 256;

impl HistoryEntry {
    pub(super) fn of(revision: Revision, key: NamespacedName, change: &StoredChange, bytes: u32) -> Self {
        let StoredChange { kind, previous, deleted, .. } = *change;
        Self { revision, kind, key, previous, deleted, bytes }
    }

    fn cost(&self) -> u64 {
        u64::from(self.bytes) + ENTRY_BYTES
    }
}

/// History that is not compacted yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct KeptHistory {
    entries: VecDeque<HistoryEntry>,
    /// The cost of all entries.
    bytes: u64,
    /// When entries were committed, in milliseconds since 1970: each time is that of the entries up to its revision. It
    /// never decreases. After a clock that ran ahead was set back, later times are earlier; then the entries before
    /// count as old as they are, or they would keep all history until the wrong time has come.
    pub(super) times: VecDeque<(Revision, i64)>,
}

impl KeptHistory {
    pub(super) fn push(&mut self, entry: HistoryEntry, at_millis: i64) {
        while self.times.back().is_some_and(|(_, later)| *later >= at_millis) {
            self.times.pop_back();
        }
        self.times.push_back((entry.revision, at_millis));
        self.bytes += entry.cost();
        self.entries.push_back(entry);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many entries there are up to a revision.
    pub(super) fn count_up_to(&self, revision: Revision) -> usize {
        self.entries.partition_point(|entry| entry.revision <= revision)
    }

    fn drain(&mut self, entries: usize) -> impl Iterator<Item = HistoryEntry> {
        let drained: Vec<_> = self.entries.drain(..entries.min(self.entries.len())).collect();
        self.bytes -= drained.iter().map(HistoryEntry::cost).sum::<u64>();
        let oldest = self.entries.front().map_or(Revision::MAX, |entry| entry.revision);
        while self.times.front().is_some_and(|(revision, _)| *revision < oldest) {
            self.times.pop_front();
        }
        drained.into_iter()
    }
}

/// How much history one compaction deletes.
#[derive(Debug, Clone, Copy)]
pub struct CompactionLimit {
    pub entries: usize,
    /// Stop once the deleted records have this total length.
    pub bytes: usize,
}

/// How much history is kept: a change stays while it is younger than `min_age_millis` or among the newest
/// `min_changes`, unless all of history takes more than `max_bytes`.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    pub min_age_millis: i64,
    pub min_changes: usize,
    pub max_bytes: u64,
}

impl Memory {
    /// The oldest history that the retention no longer keeps, up to a limit; `None` if there is none.
    pub fn compactable(
        &self,
        retention: Retention,
        now_millis: i64,
        limit: CompactionLimit,
    ) -> Option<Compaction> {
        let KeptHistory { entries, times, bytes: kept_bytes } = &self.history;
        let mut kept_bytes = *kept_bytes;
        let (mut compaction, mut bytes) = (Compaction::default(), 0);
        let mut times = times.iter().peekable();
        for (entry, kept) in entries.iter().zip((1..=entries.len()).rev()).take(limit.entries) {
            while times.next_if(|(revision, _)| *revision < entry.revision).is_some() {}
            let at_millis = times.peek().map_or(i64::MAX, |(_, at)| *at);
            let is_young = now_millis.saturating_sub(at_millis) < retention.min_age_millis;
            let is_kept = is_young || kept <= retention.min_changes;
            if (is_kept && kept_bytes <= retention.max_bytes) || bytes >= limit.bytes {
                break;
            }
            kept_bytes -= entry.cost();
            compaction.entries += 1;
            bytes += entry.bytes as usize;
            compaction.up_to = entry.revision;
            compaction.obsolete.extend((entry.previous > 0).then_some(entry.previous));
            compaction.obsolete.extend(entry.deleted.then_some(entry.revision));
        }
        (compaction.entries > 0).then_some(compaction)
    }

    /// The compaction of all history up to a revision, as another process has decided it; `None` if that is compacted.
    pub fn compaction_up_to(&self, up_to: Revision) -> Option<Compaction> {
        if up_to <= self.compacted {
            return None;
        }
        let mut compaction = Compaction { up_to, ..Compaction::default() };
        for entry in self.history.entries.iter().take_while(|entry| entry.revision <= up_to) {
            compaction.entries += 1;
            compaction.obsolete.extend((entry.previous > 0).then_some(entry.previous));
            compaction.obsolete.extend(entry.deleted.then_some(entry.revision));
        }
        Some(compaction)
    }

    /// When the oldest change may be compacted if no other change is committed, in milliseconds since 1970.
    pub fn compactable_at(&self, retention: Retention) -> Option<i64> {
        let (_, oldest) = self.history.times.front()?;
        if self.history.bytes > retention.max_bytes {
            return Some(0); // Long ago: at once.
        }
        (self.history.entries.len() > retention.min_changes).then(|| *oldest + retention.min_age_millis)
    }

    pub(super) fn compact(&mut self, compaction: &Compaction) {
        self.compacted = self.compacted.max(compaction.up_to);
        for entry in self.history.drain(compaction.entries) {
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
