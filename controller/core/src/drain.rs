//! Drains nodes: evicts their pods, and reports completion only when the last pod has stopped.
//!
//! The request for a drain is part of the node's record ([`intent`]), and so is its result; everything in between
//! follows from the records of the pods, so a new leader continues where the previous one stopped. [`filters`] decides
//! which pods leave, `eviction_state` how far each has come, [`progress`] reports both to clients. A pod has left when
//! its record is gone: the store keeps the record until the agent has confirmed the stop.

mod eviction_state;
pub mod filters;
pub mod intent;
pub mod progress;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::drain::{Drain, DrainOptions, DrainState};
use muster_proto::event::{Event, EventType};
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use self::eviction_state::{DrainStatus, EvictionState, LastAnswer, LeavingPod, StoreAnswer, eviction_state};
use self::filters::{PlannedPod, PodAction, plan};
use crate::deadlines::Deadlines;
use crate::decision::{DecisionSubject, causes};
use crate::plan::{Action, ControllerName, Outcome, Plan, Subject, event, uid};
use crate::world::{Change, Delta, World};
use muster_proto::time::Now;

/// How long to wait before the eviction of a pod is requested again.
pub const RETRY: Duration = Duration::from_secs(5);
/// The most evictions in flight per node.
const MAX_IN_FLIGHT: usize = 64;

/// The drains that are in progress.
#[derive(Debug, Default)]
pub struct Drains {
    nodes: BTreeMap<Name, ActiveDrain>,
    /// Pods with an action in flight, and their nodes. Kept apart from the drains: a drain that is cancelled and
    /// requested again must not act twice on one pod.
    in_flight: BTreeMap<(Key, Uid), Name>,
    /// Nodes whose drain is to be advanced, because of a change or at a time. A node has several actions in flight, one
    /// per pod, so those are in `in_flight`.
    due: Deadlines<Name>,
    /// Nodes whose record is to be written.
    changed: BTreeSet<Name>,
    events: Vec<Event>,
}

/// A drain that is in progress.
#[derive(Debug)]
struct ActiveDrain {
    uid: Uid,
    request: Drain,
    /// On the monotonic clock, so that a jump of the wall clock ends no drain.
    deadline: Option<Mono>,
    /// The store's last answer for each pod that is still there.
    answers: BTreeMap<Key, LastAnswer>,
    /// Pods that have left since this controller observes the drain.
    gone: Vec<PlannedPod>,
    /// Pods that are being bound to the node, chosen before it was cordoned.
    binding: usize,
    /// What is to be written into the node's record.
    result: Option<DrainResult>,
    /// Whether the event that announces the drain is still to be sent.
    is_unannounced: bool,
}

/// The result of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DrainResult {
    state: DrainState,
    message: String,
    at: Timestamp,
}

impl Drains {
    pub fn new() -> Drains {
        Drains::default()
    }

    /// The nodes that are being drained.
    pub fn under_way(&self) -> impl Iterator<Item = &Name> {
        self.nodes.keys()
    }

    /// How many pods have still to leave a node that is being drained.
    pub fn remaining(&self, world: &World, node: &str, now: Now) -> usize {
        let Some(drain) = self.nodes.get(node) else { return 0 };
        plan(world.pods_on(node).map(|pod| &**pod), &drain.request.options, now.wall).going().count()
    }

    pub fn observe(&mut self, delta: &Delta, _world: &World, now: Now) {
        match delta {
            Delta::Node(change) => self.observe_node(change, now),
            Delta::Pod(change) => self.observe_pod(change, now),
        }
    }

    fn observe_node(&mut self, change: &Change<Node>, now: Now) {
        let name = &change.either().meta.name;
        let Some((node, wanted)) = change.new.as_deref().and_then(|node| Some((node, under_way(node)?)))
        else {
            return self.finish(change);
        };
        let is_known = self.nodes.get(name).is_some_and(|drain| is_same(&drain.request, wanted));
        if !is_known {
            self.forget(name);
            let drain = ActiveDrain {
                uid: uid(&node.meta),
                request: wanted.clone(),
                deadline: wanted.deadline.map(|at| now.mono_of(at)),
                answers: BTreeMap::new(),
                gone: Vec::new(),
                binding: 0,
                result: None,
                is_unannounced: is_new(change, wanted),
            };
            self.nodes.insert(name.clone(), drain);
        }
        self.due.add(name.clone());
        if self.nodes.get(name).is_some_and(|drain| drain.result.is_some()) {
            // Another write came before the one with the result.
            self.changed.insert(name.clone());
        }
    }

    /// The node is gone, or has no drain in progress any more.
    fn finish(&mut self, change: &Change<Node>) {
        let Some(drain) = self.forget(&change.either().meta.name) else { return };
        let recorded = change.new.as_deref().and_then(|node| Some((node, node.spec.drain.as_ref()?)));
        if let (Some(DrainResult { state, message, .. }), Some((node, recorded))) = (drain.result, recorded)
            && recorded.state == state
        {
            let (kind, reason) = match state {
                DrainState::Failed => (EventType::Warning, "DrainFailed"),
                DrainState::Draining | DrainState::Complete => (EventType::Normal, "DrainComplete"),
            };
            self.events.push(event(node, kind, reason, message));
        }
    }

    fn forget(&mut self, name: &Name) -> Option<ActiveDrain> {
        self.due.forget(name);
        self.changed.remove(name);
        self.nodes.remove(name)
    }

    fn observe_pod(&mut self, change: &Change<Pod>, now: Now) {
        let (old, new) = change.sides(|pod| pod.spec.node_name.as_ref());
        for name in [old.flatten(), new.flatten()].into_iter().flatten() {
            let Some(drain) = self.nodes.get_mut(name) else { continue };
            self.due.add(name.clone());
            if let (Some(pod), None) = (&change.old, &change.new) {
                drain.answers.remove(&Key::of(&**pod));
                let planned = filters::planned(pod, &drain.request.options, now.wall);
                if planned.action.moves() {
                    drain.gone.push(planned);
                }
            }
        }
    }

    /// Checks the drains of nodes to which no pod is being bound any more: they may be complete.
    pub fn recheck(&mut self, nodes: impl IntoIterator<Item = Name>) {
        nodes.into_iter().filter(|name| self.nodes.contains_key(name)).for_each(|name| self.due.add(name));
    }

    /// What to do now; `binding` counts the pods that are being bound to a node and whose records do not show it yet.
    pub fn decide(&mut self, world: &World, binding: impl Fn(&Name) -> usize, now: Now, plan: &mut Plan) {
        for name in self.due.take(now.mono) {
            if let Some(drain) = self.nodes.get_mut(&name) {
                drain.binding = binding(&name);
            }
            self.advance(&name, world, now, plan);
        }
        plan.events.append(&mut self.events);
        if let Some(at) = self.due.next() {
            plan.wake_by(at);
        }
    }

    /// Plans what one drain allows now.
    fn advance(&mut self, name: &Name, world: &World, now: Now, plan: &mut Plan) {
        let (Some(drain), Some(node)) = (self.nodes.get(name), world.node(name.as_str())) else { return };
        let status = self.status(drain, world, name, now);
        let result = status.result(drain, node, now);
        let wake_at = status.wake_at(drain, now).filter(|_| result.is_none());
        let free = MAX_IN_FLIGHT.saturating_sub(self.in_flight.values().filter(|on| *on == name).count());
        if result.is_none() {
            // Pods beyond the limit are considered again after the next outcome.
            for LeavingPod { pod, action, .. } in status.leaving.iter().filter(|pod| pod.is_due()).take(free)
            {
                let Some(action) = action_for(*action, &drain.request.options) else { continue };
                self.in_flight.insert((Key::of(*pod), uid(&pod.meta)), name.clone());
                let cause = causes::drain_eviction(&drain.request, now);
                let subject = Subject::of_pod(pod);
                plan.act(ControllerName::Drain, subject, action, "the node is being drained", [cause]);
            }
        }
        let drain = self.nodes.get_mut(name).expect("it was there when this began");
        if std::mem::take(&mut drain.is_unannounced) {
            let Drain { requested_by, reason, .. } = &drain.request;
            let message = format!("{requested_by} drains the node: {reason}");
            plan.emit(event(&**node, EventType::Normal, "Draining", message));
            let subject = DecisionSubject::Drain(name.clone());
            let cause = causes::drain_started(&drain.request, now);
            plan.note(cause.observed(ControllerName::Drain, subject).of(node.meta.uid));
        }
        if drain.result.as_ref().map(DrainResult::without_time)
            != result.as_ref().map(DrainResult::without_time)
        {
            drain.result = result;
            self.changed.insert(name.clone());
        }
        if let Some(at) = wake_at {
            self.due.schedule(name.clone(), at);
        }
    }

    fn status<'w>(&self, drain: &ActiveDrain, world: &'w World, name: &Name, now: Now) -> DrainStatus<'w> {
        let options = &drain.request.options;
        let plan = plan(world.pods_on(name.as_str()).map(|pod| &**pod), options, now.wall);
        let leaving = plan.going().filter_map(|planned| {
            let pod = world.pod(&planned.key)?;
            Some(LeavingPod { pod, action: planned.action, state: self.eviction_state(pod, options, now) })
        });
        let leaving = leaving.collect();
        DrainStatus { plan, leaving }
    }

    /// How far the eviction of a pod has come.
    fn eviction_state(&self, pod: &Pod, options: &DrainOptions, now: Now) -> EvictionState {
        let (key, uid) = (Key::of(pod), uid(&pod.meta));
        let drain = pod.spec.node_name.as_ref().and_then(|node| self.nodes.get(node));
        let last = drain.and_then(|drain| drain.answers.get(&key)).filter(|last| last.uid == uid);
        eviction_state(pod, options, self.in_flight.contains_key(&(key, uid)), last, now)
    }

    /// Whether the planned action for the pod, which is not performed yet, is still what its drain requires.
    pub fn is_due(&self, key: &Key, uid: Uid, action: &Action, world: &World, now: Now) -> bool {
        let node = self.in_flight.get(&(key.clone(), uid));
        let drain = node.and_then(|node| self.nodes.get(node)).filter(|drain| drain.result.is_none());
        let pod = world.pod(key).filter(|pod| pod.meta.uid == Some(uid));
        let wanted = drain.zip(pod).and_then(|(drain, pod)| {
            let options = &drain.request.options;
            action_for(filters::planned(pod, options, now.wall).action, options)
        });
        wanted.as_ref() == Some(action)
    }

    pub fn settle(&mut self, outcome: &Outcome, world: &World, now: Now) {
        let Subject::Pod(key, uid) = &outcome.subject else { return };
        let Some(node) = self.in_flight.remove(&(key.clone(), *uid)) else { return };
        let Some(drain) = self.nodes.get_mut(&node) else { return };
        self.due.add(node);
        let Some(pod) = world.pod(key).filter(|pod| pod.meta.uid == Some(*uid)) else { return };
        let last = LastAnswer { uid: *uid, answer: StoreAnswer::of(outcome, pod.meta.resource_version, now) };
        drain.answers.insert(key.clone(), last);
    }

    /// Takes the nodes whose record is to be written.
    pub fn take_changed(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }

    /// Writes the result of the node's drain into its record.
    pub fn apply_to(&self, node: &mut Node, _now: Now) {
        let Some(drain) = self.nodes.get(&node.meta.name) else { return };
        if let Some(DrainResult { state, message, at }) = &drain.result
            && let Some(recorded) = &mut node.spec.drain
            && node.meta.uid == Some(drain.uid)
            && recorded.is_under_way()
            && is_same(recorded, &drain.request)
        {
            recorded.state = *state;
            recorded.message.clone_from(message);
            recorded.finished_at = Some(*at);
        }
    }
}

impl DrainResult {
    fn without_time(&self) -> (DrainState, &str) {
        (self.state, &self.message)
    }
}

/// The action that makes a pod leave; `None` if it stays.
fn action_for(action: PodAction, options: &DrainOptions) -> Option<Action> {
    let grace_period_seconds = options.grace_period_seconds;
    match action {
        PodAction::Delete => Some(Action::EndPod { mark: None, grace_period_seconds }),
        PodAction::Evict => Some(Action::EvictPod { grace_period_seconds }),
        PodAction::Leave | PodAction::Skip | PodAction::Refuse(_) => None,
    }
}

/// The drain in a node's record that has no result yet.
fn under_way(node: &Node) -> Option<&Drain> {
    node.spec.drain.as_ref().filter(|drain| drain.is_under_way())
}

/// Whether both are the same request, whatever their results.
fn is_same(a: &Drain, b: &Drain) -> bool {
    let request = |drain: &Drain| (drain.requested_at, drain.deadline, drain.options);
    request(a) == request(b) && (&a.requested_by, &a.reason) == (&b.requested_by, &b.reason)
}

/// Whether the change brought the request. One that was there when the controller started was announced before.
fn is_new(change: &Change<Node>, wanted: &Drain) -> bool {
    change.old.as_deref().is_some_and(|old| !under_way(old).is_some_and(|held| is_same(held, wanted)))
}

#[cfg(test)]
mod tests;
