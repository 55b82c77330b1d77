//! The pods whose records name no node: the state of each, and when that state ends by itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use muster_proto::backoff::Backoff;
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::time::Mono;

use super::pod_requirements::PodRequirements;
use super::queue::{ClassId, QueuedPod};
use crate::deadlines::Deadlines;

/// A pod whose record names no node.
#[derive(Clone, Debug)]
pub(crate) struct PendingPod {
    pub(crate) uid: Uid,
    /// Since when it has waited.
    pub(crate) since: Mono,
    pub(crate) requirements: Arc<PodRequirements>,
    pub(crate) state: PendingState,
}

/// What happens to a pending pod.
#[derive(Clone, Debug)]
pub(crate) enum PendingState {
    /// It is in the scheduling queue.
    Queued {
        class: ClassId,
        /// When to try again to write why it waits, if that failed.
        report_at: Option<Mono>,
    },
    /// Why it waits is being written into its record; meanwhile it is out of its class.
    Reporting { class: ClassId },
    /// The store was asked to bind it. Its request is allocated on the node.
    Binding {
        node: Name,
        /// Since when the outcome of an earlier attempt to bind it is unknown.
        uncertain_since: Option<Mono>,
    },
    /// It is unknown whether it was bound. Its request stays allocated, and the store is asked again.
    Uncertain { node: Name, since: Mono, retry_at: Mono, why: String },
    /// The store has bound it, but its record does not show that yet.
    Assumed { node: Name, until: Mono },
    /// The store did not bind it; it is queued again later.
    BackingOff { until: Mono, why: String },
    /// Pods of lower priority are being displaced for it on a node. Nothing is allocated for it yet.
    Nominated(Nomination),
    /// It is nominated no more, but that it is is being written; it is queued again after that.
    Withdrawn,
}

/// Where others are displaced for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nomination {
    pub(crate) node: Name,
    /// The pods that were chosen.
    pub(crate) victims: Vec<Key>,
    /// What the pod's record is to say.
    pub(crate) message: String,
    /// Whether it is being written.
    pub(crate) is_writing: bool,
    /// When to look at the pod again if nothing happens before.
    pub(crate) look_at: Mono,
}

impl PendingState {
    /// The node on which the pod's request is allocated.
    pub(crate) fn node(&self) -> Option<&Name> {
        match self {
            PendingState::Binding { node, .. }
            | PendingState::Uncertain { node, .. }
            | PendingState::Assumed { node, .. } => Some(node),
            PendingState::Queued { .. }
            | PendingState::Reporting { .. }
            | PendingState::BackingOff { .. }
            | PendingState::Nominated(_)
            | PendingState::Withdrawn => None,
        }
    }

    pub(crate) fn class(&self) -> Option<ClassId> {
        match self {
            PendingState::Queued { class, .. } | PendingState::Reporting { class } => Some(*class),
            _ => None,
        }
    }

    /// When the state ends if nothing is observed; `None` while a write is in flight, whose outcome ends it.
    fn deadline(&self) -> Option<Mono> {
        match self {
            PendingState::Queued { report_at, .. } => *report_at,
            PendingState::Uncertain { retry_at, .. } => Some(*retry_at),
            PendingState::Assumed { until, .. } | PendingState::BackingOff { until, .. } => Some(*until),
            PendingState::Nominated(nomination) => Some(nomination.look_at),
            PendingState::Reporting { .. } | PendingState::Binding { .. } | PendingState::Withdrawn => None,
        }
    }

    pub(crate) fn nomination(&self) -> Option<&Nomination> {
        match self {
            PendingState::Nominated(nomination) => Some(nomination),
            _ => None,
        }
    }
}

impl PendingPod {
    pub(crate) fn queued(&self, key: &Key) -> QueuedPod {
        QueuedPod { since: self.since, key: key.clone() }
    }
}

/// All pending pods, with their deadlines in order.
#[derive(Clone, Debug)]
pub(crate) struct PendingPods {
    pods: HashMap<Key, PendingPod>,
    /// When each pod's state ends by itself, and how many of its writes failed in a row. Whether a write is in flight
    /// is part of the state and not repeated here.
    deadlines: Deadlines<Key>,
    /// How many pods have their request allocated on a node.
    allocated: usize,
    /// The same by priority.
    allocated_of: BTreeMap<i32, usize>,
    /// The same by node.
    allocated_on: HashMap<Name, usize>,
    /// Nodes on which no pending pod is allocated any more, since [`PendingPods::take_released`].
    released: BTreeSet<Name>,
}

impl PendingPods {
    pub(crate) fn new(backoff: Backoff) -> PendingPods {
        PendingPods {
            pods: HashMap::new(),
            deadlines: Deadlines::new(backoff),
            allocated: 0,
            allocated_of: BTreeMap::new(),
            allocated_on: HashMap::new(),
            released: BTreeSet::new(),
        }
    }

    pub(crate) fn get(&self, key: &Key, uid: Uid) -> Option<&PendingPod> {
        self.pods.get(key).filter(|pod| pod.uid == uid)
    }

    /// The pod of that key.
    ///
    /// # Panics
    /// If it is not pending.
    pub(crate) fn pod(&self, key: &Key) -> &PendingPod {
        self.pods.get(key).expect("a pod is pending while it is queued or being bound")
    }

    /// Adds a pod that is allocated on no node.
    pub(crate) fn insert(&mut self, key: Key, pod: PendingPod) {
        self.remove(&key);
        if let Some(at) = pod.state.deadline() {
            self.deadlines.schedule(key.clone(), at);
        }
        self.pods.insert(key, pod);
    }

    pub(crate) fn set_requirements(&mut self, key: &Key, requirements: Arc<PodRequirements>) {
        if let Some(pod) = self.pods.get_mut(key) {
            pod.requirements = requirements;
        }
    }

    pub(crate) fn set_state(&mut self, key: &Key, state: PendingState) {
        let Some(pod) = self.pods.get_mut(key) else { return };
        match state.deadline() {
            Some(at) => self.deadlines.schedule(key.clone(), at),
            None => self.deadlines.cancel(key),
        }
        let before = std::mem::replace(&mut pod.state, state);
        let priority = pod.requirements.priority();
        let (before, after) = (before.node(), pod.state.node());
        if before == after {
            return;
        }
        if let Some(node) = after {
            self.allocated += 1;
            *self.allocated_of.entry(priority).or_default() += 1;
            *self.allocated_on.entry(node.clone()).or_default() += 1;
        }
        if let Some(node) = before {
            self.release(node, priority);
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<PendingPod> {
        let pod = self.pods.remove(key)?;
        self.deadlines.forget(key);
        if let Some(node) = pod.state.node() {
            self.release(node, pod.requirements.priority());
        }
        Some(pod)
    }

    fn release(&mut self, node: &Name, priority: i32) {
        self.allocated -= 1;
        if let Some(count) = self.allocated_of.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                self.allocated_of.remove(&priority);
            }
        }
        if let Some(count) = self.allocated_on.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                self.allocated_on.remove(node);
                self.released.insert(node.clone());
            }
        }
    }

    /// A write for the pod has failed. Returns when its back-off ends; the caller sets the state that follows.
    pub(crate) fn fail(&mut self, key: &Key, now: Mono) -> Mono {
        self.deadlines.fail(key, now)
    }

    /// A write for the pod has succeeded.
    pub(crate) fn succeed(&mut self, key: &Key) {
        self.deadlines.succeed(key);
    }

    /// How many pending pods are allocated on that node.
    pub(crate) fn allocated_on(&self, node: &Name) -> usize {
        self.allocated_on.get(node).copied().unwrap_or(0)
    }

    /// Whether a pod of a lower priority is being bound.
    pub(crate) fn has_allocated_below(&self, priority: i32) -> bool {
        self.allocated_of.first_key_value().is_some_and(|(lowest, _)| *lowest < priority)
    }

    /// Takes the nodes on which no pending pod is allocated any more.
    pub(crate) fn take_released(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.released)
    }

    /// How many pods are allocated on no node.
    pub(crate) fn unallocated(&self) -> usize {
        self.pods.len() - self.allocated
    }

    /// Takes the next pod whose deadline has passed.
    pub(crate) fn pop_due(&mut self, now: Mono) -> Option<Key> {
        self.deadlines.pop(now)
    }

    pub(crate) fn next_deadline(&self) -> Option<Mono> {
        self.deadlines.next()
    }
}
