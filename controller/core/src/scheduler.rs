//! Chooses nodes for pods that have none, and says why some get none.
//!
//! The resources allocated on each node are a running sum, kept as pods come, finish and go. It counts the pods that
//! are bound and not finished, those being deleted included, and those that the store was asked to bind and whose
//! records do not show it yet: nothing is allocated twice, however late the watch is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::event::Event;
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;
use muster_proto::time::Now;

use self::node_cache::{NodeCache, NodeChange};
use self::nomination::NominatedPods;
use self::pending_pods::{Nomination, PendingPod, PendingPods, PendingState};
use self::pod_requirements::{PodRequest, PodRequirements, has_equal_request};
use self::preemption::is_displaceable;
use self::queue::{QueuedPod, SchedulingQueue};
use self::ranking::Rankings;
use self::victims::Victims;
use crate::plan::uid;
use crate::world::{Change, Delta, World};

mod decide;
mod filter;
pub(crate) mod fit_error;
mod node_cache;
mod node_info;
pub(crate) mod nomination;
mod outcomes;
pub(crate) mod pending_pods;
pub(crate) mod pod_requirements;
mod preemption;
mod queue;
mod ranking;
pub(crate) mod resources;
mod score;
#[cfg(test)]
mod tests;
mod victim_search;
pub(crate) mod victims;

pub use filter::UnfitReason;
pub use fit_error::FitError;

/// Times and limits of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a pod waits after it fitted no node and a node has changed, or after the store did not bind it.
    pub backoff: Backoff,
    /// How long a pod that fits no node waits if no node changes.
    pub retry_interval: Duration,
    /// How long a pod's request stays allocated when it is unknown whether the pod was bound.
    pub assume_timeout: Duration,
    /// How many pods are assigned, and how many records get a reason, in one decision.
    pub max_pods: usize,
    /// After how many examined nodes a decision ends, so that the other controllers get their turn.
    pub max_examined_nodes: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(10)),
            retry_interval: Duration::from_secs(300),
            assume_timeout: Duration::from_secs(30),
            max_pods: 256,
            max_examined_nodes: 1_000_000,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Scheduler {
    settings: Settings,
    cache: NodeCache,
    rankings: Rankings,
    pending_pods: PendingPods,
    queue: SchedulingQueue,
    nominated: NominatedPods,
    victims: Victims,
    /// Pods whose records showed that they are bound before the outcome of that was known. The next outcome is of that.
    unanswered: BTreeMap<Key, Uid>,
    /// The slot at which the next search for pods to displace begins.
    search_from: usize,
    /// Events since the last decision.
    events: Vec<Event>,
}

/// The reason of the event that says why a pod has no node.
const FAILED_SCHEDULING: &str = "FailedScheduling";

impl Scheduler {
    pub fn new(settings: Settings) -> Scheduler {
        Scheduler {
            cache: NodeCache::default(),
            rankings: Rankings::default(),
            pending_pods: PendingPods::new(settings.backoff),
            queue: SchedulingQueue::new(settings.backoff, settings.retry_interval),
            nominated: NominatedPods::default(),
            victims: Victims::new(settings.backoff),
            unanswered: BTreeMap::new(),
            search_from: 0,
            events: Vec::new(),
            settings,
        }
    }

    /// How many pods need a node and are allocated on none.
    pub fn pending(&self) -> usize {
        self.pending_pods.unallocated()
    }

    /// How many pods are being bound to the node: the store was asked to, and their records do not show it yet.
    pub fn binding_to(&self, node: &Name) -> usize {
        self.pending_pods.allocated_on(node)
    }

    /// Takes the nodes to which no pod is being bound any more.
    pub fn take_released(&mut self) -> BTreeSet<Name> {
        self.pending_pods.take_released()
    }

    /// Whether the node was cordoned after it was chosen for the pod.
    pub fn is_cordoned_off(&self, key: &Key, uid: Uid, node: &Name) -> bool {
        let pod = self.pending_pods.get(key, uid);
        pod.is_some_and(|pod| !pod.requirements.tolerates_cordon) && self.cache.is_cordoned(node)
    }

    /// The state of a pod that has no node and is not being deleted, as the explanations show it.
    pub(crate) fn pending_pod(&self, key: &Key, uid: Uid) -> Option<&PendingPod> {
        self.pending_pods.get(key, uid)
    }

    /// The queue of pods that need a node, as the explanations show it.
    pub(crate) fn queue(&self) -> &SchedulingQueue {
        &self.queue
    }

    /// The pods that are being displaced and whose records do not show it, as the explanations show them.
    pub(crate) fn victims(&self) -> &Victims {
        &self.victims
    }

    pub fn observe(&mut self, delta: &Delta, world: &World, now: Now) {
        match delta {
            Delta::Node(change) => self.observe_node(change),
            Delta::Pod(change) => self.observe_pod(change, world, now),
        }
    }

    fn observe_node(&mut self, change: &Change<Node>) {
        match &change.new {
            Some(node) => match self.cache.set_node(node) {
                NodeChange::Irrelevant => {}
                NodeChange::New => {
                    self.queue.wake(|_| true);
                    self.wake_nominated(&node.meta.name);
                }
                NodeChange::Changed(old) => {
                    self.queue.wake(|requirements| self.cache.has_improved_for(requirements, &old));
                    self.wake_nominated(&node.meta.name);
                }
            },
            None => {
                let name = &change.either().meta.name;
                self.cache.remove_node(name);
                self.look_at_nominated_on(name);
            }
        }
    }

    fn observe_pod(&mut self, change: &Change<Pod>, world: &World, now: Now) {
        let (before, after) = change.sides(allocated_on);
        let (before, after) = (before.flatten(), after.flatten());
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        let is_equal = || old.zip(new).is_some_and(|(old, new)| has_equal_request(&old.spec, &new.spec));
        if before != after || (before.is_some() && !is_equal()) {
            if let Some((node, pod)) = before.zip(old) {
                self.release(node, pod);
            }
            if let Some((node, pod)) = after.zip(new) {
                self.allocate(node, pod);
            }
        }
        let pod = change.either();
        // Its space is used until it is gone, but its deletion need not be requested any more.
        if new.is_none_or(|pod| pod.meta.is_deleting() || pod.is_finished()) {
            self.victims.observe_end(&Key::of(&**pod), uid(&pod.meta));
        }
        let released = match new {
            Some(pod) if needs_node(pod) => {
                self.observe_pending(pod, old, world, now);
                None
            }
            _ => self.forget(&Key::of(&**pod), uid(&pod.meta)),
        };
        for freed in [before, released.as_ref()].into_iter().flatten().filter(|&node| Some(node) != after) {
            self.wake_for(freed);
        }
    }

    /// Allocates for a pod that is bound by its record.
    fn allocate(&mut self, node: &Name, pod: &Pod) {
        let request = PodRequest::of(&pod.spec);
        if is_displaceable(pod) {
            self.cache.allocate_displaceable(node, pod.spec.priority(), &request);
        } else {
            self.cache.allocate(node, &request);
        }
    }

    /// Releases what was allocated for such a pod.
    fn release(&mut self, node: &Name, pod: &Pod) {
        let request = PodRequest::of(&pod.spec);
        if is_displaceable(pod) {
            self.cache.release_displaceable(node, pod.spec.priority(), &request);
        } else {
            self.cache.release(node, &request);
        }
    }

    fn observe_pending(&mut self, pod: &Pod, old: Option<&Pod>, world: &World, now: Now) {
        let key = Key::of(pod);
        match self.pending_pods.get(&key, uid(&pod.meta)) {
            // Most changes of a pending pod are our own writes of the reason, but the reason may be outdated by now.
            Some(pending) if old.is_some_and(|old| old.spec == pod.spec) => {
                if let PendingState::Queued { class, report_at: None } = pending.state {
                    self.queue.set_unreported(class, pending.queued(&key));
                }
                self.look_later(&key);
            }
            None if pod.status.nominated_node_name.is_some() => {
                if !self.resume_nomination(pod, world, now) {
                    self.set_requirements(pod, now.mono);
                }
            }
            _ => self.set_requirements(pod, now.mono),
        }
    }

    /// Something was released on the node: wakes the classes of pods that now fit it, or would if they displaced others.
    ///
    /// No class is missed: a waiting class fitted no node when it was tried, and every node that changes in favour of
    /// pods is compared with the waiting classes.
    fn wake_for(&mut self, node: &Name) {
        self.queue.wake(|requirements| self.cache.may_fit(requirements, node));
        self.wake_nominated(node);
    }

    /// Something has changed on the node: looks at the pods that are nominated there, and at others that now fit it.
    fn wake_nominated(&mut self, node: &Name) {
        self.look_at_nominated_on(node);
        self.nominated.wake(|requirements| self.cache.fits(requirements, node));
    }

    /// Queues a pod that is new, or whose requirements have changed.
    fn set_requirements(&mut self, pod: &Pod, now: Mono) {
        let (key, uid) = (Key::of(pod), uid(&pod.meta));
        let requirements = Arc::new(PodRequirements::of(&pod.spec));
        let Some(pending) = self.pending_pods.get(&key, uid) else {
            let class = self.queue.add(&requirements, QueuedPod { since: now, key: key.clone() });
            let state = PendingState::Queued { class, report_at: None };
            return self.pending_pods.insert(key, PendingPod { uid, since: now, requirements, state });
        };
        // A pod may tolerate more than before. One that is being bound keeps what was allocated for it.
        if let Some(nomination) = pending.state.nomination().cloned() {
            self.end_nomination(&key);
            self.pending_pods.set_requirements(&key, Arc::clone(&requirements));
            self.keep_space(&key, &requirements, nomination);
            return self.look_later(&key);
        }
        if matches!(pending.state, PendingState::Withdrawn) {
            return self.pending_pods.set_requirements(&key, requirements);
        }
        if let Some(class) = pending.state.class() {
            self.queue.remove(class, &pending.queued(&key));
            self.pending_pods.set_requirements(&key, requirements);
            self.enqueue(&key);
        }
    }

    /// Puts a pending pod into the queue.
    fn enqueue(&mut self, key: &Key) {
        let pod = self.pending_pods.pod(key);
        let class = self.queue.add(&pod.requirements, pod.queued(key));
        self.pending_pods.set_state(key, PendingState::Queued { class, report_at: None });
    }

    /// The pod needs no node any more. Returns the node on which its request was allocated, or space kept, now released.
    fn forget(&mut self, key: &Key, uid: Uid) -> Option<Name> {
        let nomination = self.pending_pods.get(key, uid)?.state.nomination().cloned();
        if let Some(Nomination { node, .. }) = nomination {
            self.end_nomination(key);
            self.pending_pods.remove(key);
            return Some(node);
        }
        let pod = self.pending_pods.remove(key)?;
        if matches!(pod.state, PendingState::Binding { .. }) {
            self.unanswered.insert(key.clone(), pod.uid);
        }
        if let Some(class) = pod.state.class() {
            self.queue.remove(class, &pod.queued(key));
        }
        let node = pod.state.node()?;
        self.cache.release(node, &pod.requirements.request);
        Some(node.clone())
    }
}

/// Whether a node is to be chosen for the pod.
pub(crate) fn needs_node(pod: &Pod) -> bool {
    pod.spec.node_name.is_none()
        && !pod.meta.is_deleting()
        && pod.spec.scheduling_gates.is_empty()
        && !pod.is_finished()
}

/// The node on which the pod's record allocates something.
fn allocated_on(pod: &Pod) -> Option<&Name> {
    pod.spec.node_name.as_ref().filter(|_| !pod.is_finished())
}
