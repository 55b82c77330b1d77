//! The records an event stream adds up to.
//!
//! A relist takes effect at its [`WatchEvent::Synced`], as a whole: nobody sees half of one. No record's version ever goes
//! back, even when the caller folds in what its own writes returned ahead of the watch.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use muster_proto::record::Record;

use muster_proto::key::Key;
use muster_proto::watch_event::WatchEvent;

/// The records of one kind, as of the events observed.
#[derive(Clone, Debug)]
pub struct Cache<R> {
    records: BTreeMap<Key, R>,
    /// A relist on its way: told, not yet in force.
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

    /// Takes in the next event of a watch.
    pub fn observe(&mut self, event: WatchEvent<R>) {
        match event {
            WatchEvent::Applied { record, .. } => self.step(Step::Put(record)),
            WatchEvent::Gone { key, revision, .. } => self.step(Step::Remove { key, revision }),
            WatchEvent::Synced { revision } => self.swap_in(revision),
            WatchEvent::Lost(_) => self.synced = false,
        }
    }

    /// Takes in a record that a write of our own returned; says whether it was news.
    ///
    /// A record that the watch has already passed by is not: had it lasted, it would be here.
    pub fn apply(&mut self, record: R) -> bool {
        record.meta().resource_version > self.revision && self.put(record)
    }

    pub fn get(&self, key: &Key) -> Option<&R> {
        self.records.get(key)
    }

    /// The records by namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        self.records.values()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether the watch runs; otherwise the records are those of when it was lost.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The revision up to which everything is known.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn step(&mut self, step: Step<R>) {
        if self.synced { self.take(step) } else { self.staged.push(step) }
    }

    fn swap_in(&mut self, revision: u64) {
        if revision < self.revision {
            // The store was put back to an older state and the relist told everything anew.
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
