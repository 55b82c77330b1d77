//! How far each pod without a node has come, and when it is to be looked at again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use muster_proto::backoff::Backoff;
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::time::Mono;

use super::pod_requirements::Demand;
use super::queue::{LineId, Place};
use crate::deadlines::Deadlines;

/// A pod that has no node, as far as its record goes.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) uid: Uid,
    /// Since when it has waited.
    pub(crate) since: Mono,
    pub(crate) demand: Arc<Demand>,
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
    pub(crate) fn place(&self, key: &Key) -> Place {
        Place { since: self.since, key: key.clone() }
    }
}

/// All pods that have no node, with their alarms in order.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    entries: HashMap<Key, Entry>,
    /// When each pod's stage ends by itself, and how often in a row its writes failed. Whether a write is in flight is not
    /// kept here: the stage says so.
    alarms: Deadlines<Key>,
    /// How many have a node taken for them.
    held: usize,
    /// The same by node.
    held_on: HashMap<Name, usize>,
    /// Nodes that nobody has taken anything of any more, since that was last asked.
    released: BTreeSet<Name>,
}

impl Waiting {
    pub(crate) fn new(rests: Backoff) -> Waiting {
        Waiting {
            entries: HashMap::new(),
            alarms: Deadlines::new(rests),
            held: 0,
            held_on: HashMap::new(),
            released: BTreeSet::new(),
        }
    }

    pub(crate) fn get(&self, key: &Key, uid: Uid) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| entry.uid == uid)
    }

    /// The pod of that key, which must be here.
    pub(crate) fn entry(&self, key: &Key) -> &Entry {
        self.entries.get(key).expect("a pod has an entry as long as it is in line or being bound")
    }

    /// Takes in a pod that has a line and no node.
    pub(crate) fn insert(&mut self, key: Key, entry: Entry) {
        self.remove(&key);
        self.entries.insert(key, entry);
    }

    pub(crate) fn set_demand(&mut self, key: &Key, demand: Arc<Demand>) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.demand = demand;
        }
    }

    pub(crate) fn set_stage(&mut self, key: &Key, stage: Stage) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        match stage.alarm() {
            Some(at) => self.alarms.schedule(key.clone(), at),
            None => self.alarms.cancel(key),
        }
        let before = std::mem::replace(&mut entry.stage, stage);
        let (before, after) = (before.node(), entry.stage.node());
        if before == after {
            return;
        }
        if let Some(node) = after {
            self.held += 1;
            *self.held_on.entry(node.clone()).or_default() += 1;
        }
        if let Some(node) = before {
            self.release(node);
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.alarms.forget(key);
        if let Some(node) = entry.stage.node() {
            self.release(node);
        }
        Some(entry)
    }

    /// A write for the pod has failed. Returns when to try again; the next stage says whether it is.
    pub(crate) fn fail(&mut self, key: &Key, now: Mono) -> Mono {
        self.alarms.fail(key, now)
    }

    /// A write for the pod has succeeded.
    pub(crate) fn succeed(&mut self, key: &Key) {
        self.alarms.succeed(key);
    }

    fn release(&mut self, node: &Name) {
        self.held -= 1;
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

    /// The next pod whose alarm has come.
    pub(crate) fn take_due(&mut self, now: Mono) -> Option<Key> {
        self.alarms.pop(now)
    }

    pub(crate) fn next_alarm(&self) -> Option<Mono> {
        self.alarms.next()
    }
}
