//! How far each pod without a node has come, and when it is to be looked at again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::time::Mono;

use super::demand::Demand;
use super::queue::{LineId, Place};

/// A pod that has no node, as far as its record goes.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) uid: Uid,
    /// Since when it has waited.
    pub(crate) since: Mono,
    pub(crate) demand: Arc<Demand>,
    /// How often in a row a write came to nothing.
    pub(crate) failures: u32,
    pub(crate) stage: Stage,
}

#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// In line for a node.
    Lined {
        line: LineId,
        /// When to try again to tell it why it waits.
        tell_at: Option<Mono>,
    },
    /// Beside its line: why it waits is being written into its record.
    Telling { line: LineId },
    /// The store was asked to bind it. What it needs is taken of the node.
    Binding {
        node: Name,
        /// Since when it is not known whether an earlier asking was heard.
        doubted: Option<Mono>,
    },
    /// Nobody knows whether it was bound. What it needs stays taken, and the store is asked again.
    Doubted { node: Name, since: Mono, again_at: Mono, why: String },
    /// It is bound; its record will say so.
    Bound { node: Name, until: Mono },
    /// The store would not bind it; it lines up again after a while.
    Resting { until: Mono, why: String },
}

impl Stage {
    /// The node of which its needs are taken.
    pub(crate) fn node(&self) -> Option<&Name> {
        match self {
            Stage::Binding { node, .. } | Stage::Doubted { node, .. } | Stage::Bound { node, .. } => {
                Some(node)
            }
            Stage::Lined { .. } | Stage::Telling { .. } | Stage::Resting { .. } => None,
        }
    }

    pub(crate) fn line(&self) -> Option<LineId> {
        match self {
            Stage::Lined { line, .. } | Stage::Telling { line } => Some(*line),
            _ => None,
        }
    }

    /// When something is to be done about it even if nothing is heard.
    fn alarm(&self) -> Option<Mono> {
        match self {
            Stage::Lined { tell_at, .. } => *tell_at,
            Stage::Doubted { again_at, .. } => Some(*again_at),
            Stage::Bound { until, .. } | Stage::Resting { until, .. } => Some(*until),
            Stage::Telling { .. } | Stage::Binding { .. } => None,
        }
    }
}

impl Entry {
    /// A pod that has not lined up yet.
    pub(crate) fn new(uid: Uid, since: Mono, demand: Arc<Demand>) -> Entry {
        let stage = Stage::Resting { until: since, why: String::new() };
        Entry { uid, since, demand, failures: 0, stage }
    }

    pub(crate) fn with(self, stage: Stage) -> Entry {
        Entry { stage, ..self }
    }

    pub(crate) fn place(&self, key: &Key) -> Place {
        Place { since: self.since, key: key.clone() }
    }
}

/// All pods that have no node, with their alarms in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    entries: HashMap<Key, Entry>,
    alarms: BTreeSet<(Mono, Key)>,
    /// How many have a node taken for them.
    held: usize,
    /// The same by node.
    held_on: HashMap<Name, usize>,
    /// Nodes that nobody has taken anything of any more, since that was last asked.
    released: BTreeSet<Name>,
}

impl Waiting {
    pub(crate) fn get(&self, key: &Key, uid: Uid) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| entry.uid == uid)
    }

    pub(crate) fn insert(&mut self, key: Key, entry: Entry) {
        self.remove(&key);
        self.alarms.extend(entry.stage.alarm().map(|at| (at, key.clone())));
        if let Some(node) = entry.stage.node() {
            self.held += 1;
            *self.held_on.entry(node.clone()).or_default() += 1;
        }
        self.entries.insert(key, entry);
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        if let Some(at) = entry.stage.alarm() {
            self.alarms.remove(&(at, key.clone()));
        }
        if let Some(node) = entry.stage.node() {
            self.held -= 1;
            self.release(node);
        }
        Some(entry)
    }

    fn release(&mut self, node: &Name) {
        if let Some(count) = self.held_on.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                self.held_on.remove(node);
                self.released.insert(node.clone());
            }
        }
    }

    /// How many have taken something of that node.
    pub(crate) fn held_on(&self, node: &Name) -> usize {
        self.held_on.get(node).copied().unwrap_or(0)
    }

    /// Nodes that nobody has taken anything of any more.
    pub(crate) fn take_released(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.released)
    }

    /// How many have no node taken for them.
    pub(crate) fn seeking(&self) -> usize {
        self.entries.len() - self.held
    }

    /// Takes out the next whose alarm has come.
    pub(crate) fn take_due(&mut self, now: Mono) -> Option<(Key, Entry)> {
        let (_, key) = self.alarms.first().filter(|(at, _)| *at <= now)?;
        let key = key.clone();
        self.remove(&key).map(|entry| (key, entry))
    }

    pub(crate) fn next_alarm(&self) -> Option<Mono> {
        self.alarms.first().map(|(at, _)| *at)
    }
}
