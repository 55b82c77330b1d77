//! The current records of a watch.
//!
//! A relist takes effect as a whole, at its [`WatchEvent::Synced`]: readers never see half of one. A record's version
//! never goes back, even when the caller applies records that its own writes returned, ahead of the watch.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use muster_proto::record::Record;

use muster_proto::key::Key;
use muster_proto::watch_event::WatchEvent;

/// The records of one kind, as of the events observed.
#[derive(Clone, Debug)]
pub struct Cache<R> {
    records: BTreeMap<Key, R>,
    /// A relist in progress: received, not yet in effect.
    staged: Vec<Step<R>>,
    synced: bool,
    revision: u64,
}

#[derive(Clone, Debug)]
enum Step<R> {
    Put(R),
    Remove { key: Key, revision: u64 },
}

impl<R: Record> Cache<R> {
    pub fn new() -> Cache<R> {
        Cache { records: BTreeMap::new(), staged: Vec::new(), synced: false, revision: 0 }
    }

    /// Applies the next event of a watch.
    pub fn observe(&mut self, event: WatchEvent<R>) {
        match event {
            WatchEvent::Applied { record, .. } => self.step(Step::Put(record)),
            WatchEvent::Gone { key, revision, .. } => self.step(Step::Remove { key, revision }),
            WatchEvent::Synced { revision } => self.swap_in(revision),
            WatchEvent::Lost(_) => self.synced = false,
        }
    }

    /// Applies a record that a write of our own returned; returns whether it was new.
    ///
    /// A record at or below the watch's revision is not: if it were still current, the watch would have delivered it.
    pub fn apply(&mut self, record: R) -> bool {
        record.meta().resource_version > self.revision && self.put(record)
    }

    pub fn get(&self, key: &Key) -> Option<&R> {
        self.records.get(key)
    }

    /// The records, ordered by namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        self.records.values()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether the watch is synced; otherwise the records are as of when it was lost.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The revision up to which all changes are applied.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn step(&mut self, step: Step<R>) {
        if self.synced { self.take(step) } else { self.staged.push(step) }
    }

    fn swap_in(&mut self, revision: u64) {
        if revision < self.revision {
            // The store was restored to an older state, and the relist delivered all records again.
            self.records.clear();
        }
        for step in std::mem::take(&mut self.staged) {
            self.take(step);
        }
        self.revision = revision;
        self.synced = true;
    }

    fn take(&mut self, step: Step<R>) {
        match step {
            Step::Put(record) => {
                self.revision = self.revision.max(record.meta().resource_version);
                self.put(record);
            }
            Step::Remove { key, revision } => {
                self.revision = self.revision.max(revision);
                if self.get(&key).is_some_and(|held| held.meta().resource_version <= revision) {
                    self.records.remove(&key);
                }
            }
        }
    }

    fn put(&mut self, record: R) -> bool {
        match self.records.entry(Key::of(&record)) {
            Entry::Vacant(entry) => {
                entry.insert(record);
                true
            }
            Entry::Occupied(mut entry) => {
                let newer = entry.get().meta().resource_version < record.meta().resource_version;
                if newer {
                    entry.insert(record);
                }
                newer
            }
        }
    }
}

impl<R: Record> Default for Cache<R> {
    fn default() -> Cache<R> {
        Cache::new()
    }
}

#[cfg(test)]
mod tests;
