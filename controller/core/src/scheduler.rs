//! Pods that want a node: which one each gets, and why some get none.
//!
//! What is taken of each node is a running sum, kept as pods come, end and go. It counts the pods that are bound and not
//! finished, those on their way out included, and those that the store was asked to bind and whose record does not say
//! so yet: a place is given once, however late the news of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::event::Event;
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use self::node_cache::{Fleet, Noted};
use self::pending_pods::{Entry, Stage, Waiting};
use self::pod_requirements::{Claim, Demand, claims_alike};
use self::queue::{Place, Queue};
use self::ranking::Rankings;
use crate::plan::uid;
use crate::world::{Change, Delta, World};
use muster_proto::time::Now;

mod decide;
mod filter;
pub(crate) mod fit_error;
mod node_cache;
mod node_info;
mod outcomes;
pub(crate) mod pending_pods;
pub(crate) mod pod_requirements;
mod queue;
mod ranking;
pub(crate) mod resources;
mod score;
#[cfg(test)]
mod tests;

pub use filter::Obstacle;
pub use fit_error::Verdict;

/// The numbers that placement goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long pods that fit nowhere rest before they are tried again, and those the store did not bind.
    pub rests: Backoff,
    /// How long pods that fit nowhere wait if nothing changes.
    pub patience: Duration,
    /// How long what a pod needs stays taken when it is not known whether it was bound.
    pub doubt: Duration,
    /// How many pods are placed, and how many told why they wait, in one decision.
    pub tries: usize,
    /// After how many nodes looked at a decision ends, for the sake of the other controllers.
    pub looks: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            rests: Backoff::new(Duration::from_secs(1), Duration::from_secs(10)),
            patience: Duration::from_secs(300),
            doubt: Duration::from_secs(30),
            tries: 256,
            looks: 1_000_000,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Scheduler {
    settings: Settings,
    fleet: Fleet,
    rankings: Rankings,
    pub(crate) waiting: Waiting,
    pub(crate) queue: Queue,
    /// What happened since the last decision, for people.
    events: Vec<Event>,
}

/// The reason of the event that says why a pod has no node.
const FAILED_SCHEDULING: &str = "FailedScheduling";

impl Scheduler {
    pub fn new(settings: Settings) -> Scheduler {
        let queue = Queue::new(settings.rests, settings.patience);
        let (fleet, rankings, waiting) =
            (Fleet::default(), Rankings::default(), Waiting::new(settings.rests));
        Scheduler { settings, fleet, rankings, waiting, queue, events: Vec::new() }
    }

    /// How many pods want a node and have none taken for them.
    pub fn pending(&self) -> usize {
        self.waiting.seeking()
    }

    /// How many pods are on their way to the node: the store was asked to bind them, and their records do not say so yet.
    pub fn coming_to(&self, node: &Name) -> usize {
        self.waiting.held_on(node)
    }

    /// Nodes to which nobody is on the way any more, since that was last asked.
    pub fn take_released(&mut self) -> BTreeSet<Name> {
        self.waiting.take_released()
    }

    /// Whether the node was cordoned after it was chosen for the pod.
    pub fn is_cordoned_off(&self, key: &Key, uid: Uid, node: &Name) -> bool {
        let entry = self.waiting.get(key, uid);
        entry.is_some_and(|entry| !entry.demand.bears_cordon) && self.fleet.is_cordoned(node)
    }

    pub fn observe(&mut self, delta: &Delta, _world: &World, now: Now) {
        match delta {
            Delta::Node(change) => self.observe_node(change),
            Delta::Pod(change) => self.observe_pod(change, now.mono),
        }
    }

    fn observe_node(&mut self, change: &Change<Node>) {
        match &change.new {
            Some(node) => match self.fleet.set_node(node) {
                Noted::Unchanged => {}
                Noted::New => self.queue.wake(|_| true),
                Noted::Changed(old) => self.queue.wake(|demand| self.fleet.has_come_closer(demand, &old)),
            },
            None => self.fleet.remove_node(&change.either().meta.name),
        }
    }

    fn observe_pod(&mut self, change: &Change<Pod>, now: Mono) {
        let (before, after) = change.sides(counted_on);
        let (before, after) = (before.flatten(), after.flatten());
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        let alike = || old.zip(new).is_some_and(|(old, new)| claims_alike(&old.spec, &new.spec));
        if before != after || (before.is_some() && !alike()) {
            if let Some((node, pod)) = before.zip(old) {
                self.fleet.give_back(node, &Claim::of(&pod.spec));
            }
            if let Some((node, pod)) = after.zip(new) {
                self.fleet.take(node, &Claim::of(&pod.spec));
            }
        }
        let pod = change.either();
        let held = match new {
            Some(pod) if seeks_node(pod) => {
                let key = Key::of(pod);
                match self.waiting.get(&key, uid(&pod.meta)) {
                    // Most news of a pod that waits are our own words about why, but not always the last ones.
                    Some(entry) if old.is_some_and(|old| old.spec == pod.spec) => {
                        if let Stage::Lined { line, tell_at: None } = entry.stage {
                            self.queue.set_untold(line, entry.place(&key));
                        }
                    }
                    _ => self.line_up(pod, now),
                }
                None
            }
            _ => self.forget(&Key::of(&**pod), uid(&pod.meta)),
        };
        for freed in [before, held.as_ref()].into_iter().flatten().filter(|&node| Some(node) != after) {
            self.wake_for(freed);
        }
    }

    /// Something on the node was given back: wakes the lines of pods that it will do for now.
    ///
    /// That misses nobody: for a line that sleeps no node would do, and whenever one changes for the better, it is held
    /// against the lines that sleep.
    fn wake_for(&mut self, node: &Name) {
        self.queue.wake(|demand| self.fleet.fits(demand, node));
    }

    /// Takes in a pod that seeks a node.
    fn line_up(&mut self, pod: &Pod, now: Mono) {
        let (key, uid) = (Key::of(pod), uid(&pod.meta));
        let demand = Arc::new(Demand::of(&pod.spec));
        let Some(entry) = self.waiting.get(&key, uid) else {
            let line = self.queue.join(&demand, Place { since: now, key: key.clone() });
            let stage = Stage::Lined { line, tell_at: None };
            return self.waiting.insert(key, Entry { uid, since: now, demand, stage });
        };
        // A pod may come to tolerate more while it waits. One that is being bound keeps what was taken for it.
        if let Some(line) = entry.stage.line() {
            self.queue.leave(line, &entry.place(&key));
            self.waiting.set_demand(&key, demand);
            self.enter(&key);
        }
    }

    /// Puts a pod that waits in line.
    fn enter(&mut self, key: &Key) {
        let entry = self.waiting.entry(key);
        let line = self.queue.join(&entry.demand, entry.place(key));
        self.waiting.set_stage(key, Stage::Lined { line, tell_at: None });
    }

    /// The pod seeks no node any more. What was taken for it is given back; says on which node.
    fn forget(&mut self, key: &Key, uid: Uid) -> Option<Name> {
        self.waiting.get(key, uid)?;
        let entry = self.waiting.remove(key)?;
        if let Some(line) = entry.stage.line() {
            self.queue.leave(line, &entry.place(key));
        }
        let node = entry.stage.node()?;
        self.fleet.give_back(node, &entry.demand.claim);
        Some(node.clone())
    }
}

/// Whether a node is to be found for the pod.
pub(crate) fn seeks_node(pod: &Pod) -> bool {
    pod.spec.node_name.is_none()
        && !pod.meta.is_deleting()
        && pod.spec.scheduling_gates.is_empty()
        && !pod.is_finished()
}

/// The node of which the pod takes something, going by its record.
fn counted_on(pod: &Pod) -> Option<&Name> {
    pod.spec.node_name.as_ref().filter(|_| !pod.is_finished())
}
