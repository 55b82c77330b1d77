//! Empties nodes: moves their pods away, and says so only when the last has stopped.
//!
//! That a node is to be emptied stands in its record ([`intent`]), and so does what came of it; in between everything
//! follows from the records of its pods, so another controller simply goes on. [`filters`] says which pods go,
//! `standing` how far each has come, [`progress`] tells both to people. A pod has gone when its record is gone: the
//! store keeps that until the agent has confirmed the stop.

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

use self::eviction_state::{Going, Reply, Said, Stand, Standing, standing};
use self::filters::{PlannedPod, PodAction, plan};
use crate::deadlines::Deadlines;
use crate::plan::{Action, ControllerName, Outcome, Plan, Subject, event, uid};
use crate::world::{Change, Delta, World};
use muster_proto::time::Now;

/// When a pod that could not be moved is tried again.
pub const RETRY: Duration = Duration::from_secs(5);
/// The most pods of one node that are being asked for at a time.
const AT_ONCE: usize = 64;

/// The drains that are under way.
#[derive(Debug, Default)]
pub struct Drains {
    nodes: BTreeMap<Name, UnderWay>,
    /// Pods that were asked for and the outcome is not known yet, and their nodes. Kept apart from the drains: one that
    /// is called off and asked for again must not ask twice.
    asked: BTreeMap<(Key, Uid), Name>,
    /// Nodes whose drain is to be looked at, because of a change or the time. What is in flight are actions on their pods,
    /// several per node: `asked` has those.
    due: Deadlines<Name>,
    touched: BTreeSet<Name>,
    untold: Vec<Event>,
}

/// A drain that is under way.
#[derive(Debug)]
struct UnderWay {
    uid: Uid,
    request: Drain,
    /// By our own clock, so that a jump of the calendar ends no drain.
    deadline: Option<Mono>,
    /// What was answered for pods that are still there.
    replies: BTreeMap<Key, Reply>,
    /// Pods that have gone while we looked on.
    gone: Vec<PlannedPod>,
    /// Pods that are being bound to the node, chosen before it was cordoned.
    coming: usize,
    /// What is to be written into the node's record.
    end: Option<End>,
    is_news: bool,
}

/// How a drain ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct End {
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

    /// How many pods have still to go from a node that is being drained.
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
            let drain = UnderWay {
                uid: uid(&node.meta),
                request: wanted.clone(),
                deadline: wanted.deadline.map(|at| now.mono_of(at)),
                replies: BTreeMap::new(),
                gone: Vec::new(),
                coming: 0,
                end: None,
                is_news: is_new(change, wanted),
            };
            self.nodes.insert(name.clone(), drain);
        }
        self.due.add(name.clone());
        if self.nodes.get(name).is_some_and(|drain| drain.end.is_some()) {
            // Another write came before the one that says how it ended.
            self.touched.insert(name.clone());
        }
    }

    /// The node is gone, or has no drain under way any more.
    fn finish(&mut self, change: &Change<Node>) {
        let Some(drain) = self.forget(&change.either().meta.name) else { return };
        let recorded = change.new.as_deref().and_then(|node| Some((node, node.spec.drain.as_ref()?)));
        if let (Some(End { state, message, .. }), Some((node, recorded))) = (drain.end, recorded)
            && recorded.state == state
        {
            let (kind, reason) = match state {
                DrainState::Failed => (EventType::Warning, "DrainFailed"),
                DrainState::Draining | DrainState::Complete => (EventType::Normal, "DrainComplete"),
            };
            self.untold.push(event(node, kind, reason, message));
        }
    }

    fn forget(&mut self, name: &Name) -> Option<UnderWay> {
        self.due.forget(name);
        self.touched.remove(name);
        self.nodes.remove(name)
    }

    fn observe_pod(&mut self, change: &Change<Pod>, now: Now) {
        let (old, new) = change.sides(|pod| pod.spec.node_name.as_ref());
        for name in [old.flatten(), new.flatten()].into_iter().flatten() {
            let Some(drain) = self.nodes.get_mut(name) else { continue };
            self.due.add(name.clone());
            if let (Some(pod), None) = (&change.old, &change.new) {
                drain.replies.remove(&Key::of(&**pod));
                let planned = filters::planned(pod, &drain.request.options, now.wall);
                if planned.action.moves() {
                    drain.gone.push(planned);
                }
            }
        }
    }

    /// Nodes to which nobody is on the way any more: their drains may have come to their end.
    pub fn stir(&mut self, nodes: impl IntoIterator<Item = Name>) {
        nodes.into_iter().filter(|name| self.nodes.contains_key(name)).for_each(|name| self.due.add(name));
    }

    /// What to do now; `coming` counts the pods that are being bound to a node and that its pods do not show yet.
    pub fn decide(&mut self, world: &World, coming: impl Fn(&Name) -> usize, now: Now, plan: &mut Plan) {
        for name in self.due.take(now.mono) {
            if let Some(drain) = self.nodes.get_mut(&name) {
                drain.coming = coming(&name);
            }
            self.advance(&name, world, now, plan);
        }
        plan.events.append(&mut self.untold);
        if let Some(at) = self.due.next() {
            plan.wake_by(at);
        }
    }

    /// Takes one drain as far as it goes now.
    fn advance(&mut self, name: &Name, world: &World, now: Now, plan: &mut Plan) {
        let (Some(drain), Some(node)) = (self.nodes.get(name), world.node(name.as_str())) else { return };
        let stand = self.stand(drain, world, name, now);
        let end = stand.end(drain, node, now);
        let wake_at = stand.wake_at(drain, now).filter(|_| end.is_none());
        let free = AT_ONCE.saturating_sub(self.asked.values().filter(|on| *on == name).count());
        if end.is_none() {
            // What finds no room now is looked at again with the next outcome.
            for Going { pod, action, .. } in stand.going.iter().filter(|going| going.is_due()).take(free) {
                let Some(action) = deed(*action, &drain.request.options) else { continue };
                self.asked.insert((Key::of(*pod), uid(&pod.meta)), name.clone());
                plan.act(ControllerName::Drain, Subject::of_pod(pod), action, "the node is being drained");
            }
        }
        let drain = self.nodes.get_mut(name).expect("it was there when this began");
        if std::mem::take(&mut drain.is_news) {
            let Drain { requested_by, reason, .. } = &drain.request;
            let message = format!("{requested_by} drains the node: {reason}");
            plan.emit(event(&**node, EventType::Normal, "Draining", message));
        }
        if drain.end.as_ref().map(End::said) != end.as_ref().map(End::said) {
            drain.end = end;
            self.touched.insert(name.clone());
        }
        if let Some(at) = wake_at {
            self.due.schedule(name.clone(), at);
        }
    }

    fn stand<'w>(&self, drain: &UnderWay, world: &'w World, name: &Name, now: Now) -> Stand<'w> {
        let options = &drain.request.options;
        let plan = plan(world.pods_on(name.as_str()).map(|pod| &**pod), options, now.wall);
        let going = plan.going().filter_map(|planned| {
            let pod = world.pod(&planned.key)?;
            Some(Going { pod, action: planned.action, standing: self.standing(pod, options, now) })
        });
        let going = going.collect();
        Stand { plan, going }
    }

    /// How far a pod that is to go has come.
    fn standing(&self, pod: &Pod, options: &DrainOptions, now: Now) -> Standing {
        let (key, uid) = (Key::of(pod), uid(&pod.meta));
        let drain = pod.spec.node_name.as_ref().and_then(|node| self.nodes.get(node));
        let reply = drain.and_then(|drain| drain.replies.get(&key)).filter(|reply| reply.uid == uid);
        standing(pod, options, self.asked.contains_key(&(key, uid)), reply, now)
    }

    /// Whether this very pod, which we asked for, is still to be asked for like that.
    pub fn is_due(&self, key: &Key, uid: Uid, action: &Action, world: &World, now: Now) -> bool {
        let node = self.asked.get(&(key.clone(), uid));
        let drain = node.and_then(|node| self.nodes.get(node)).filter(|drain| drain.end.is_none());
        let pod = world.pod(key).filter(|pod| pod.meta.uid == Some(uid));
        let wanted = drain.zip(pod).and_then(|(drain, pod)| {
            let options = &drain.request.options;
            deed(filters::planned(pod, options, now.wall).action, options)
        });
        wanted.as_ref() == Some(action)
    }

    pub fn settle(&mut self, outcome: &Outcome, world: &World, now: Now) {
        let Subject::Pod(key, uid) = &outcome.subject else { return };
        let Some(node) = self.asked.remove(&(key.clone(), *uid)) else { return };
        let Some(drain) = self.nodes.get_mut(&node) else { return };
        self.due.add(node);
        let Some(pod) = world.pod(key).filter(|pod| pod.meta.uid == Some(*uid)) else { return };
        let reply = Reply { uid: *uid, said: Said::of(outcome, pod.meta.resource_version, now) };
        drain.replies.insert(key.clone(), reply);
    }

    /// The nodes whose record is to say something else.
    pub fn take_changed(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.touched).into_iter().collect()
    }

    /// Writes into the record how the node's drain ended.
    pub fn apply_to(&self, node: &mut Node, _now: Now) {
        let Some(drain) = self.nodes.get(&node.meta.name) else { return };
        if let Some(End { state, message, at }) = &drain.end
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

impl End {
    fn said(&self) -> (DrainState, &str) {
        (self.state, &self.message)
    }
}

/// What moves a pod; `None` if it is not to be moved.
fn deed(action: PodAction, options: &DrainOptions) -> Option<Action> {
    let grace_period_seconds = options.grace_period_seconds;
    match action {
        PodAction::Delete => Some(Action::EndPod { mark: None, grace_period_seconds }),
        PodAction::Evict => Some(Action::EvictPod { grace_period_seconds }),
        PodAction::Leave | PodAction::Skip | PodAction::Refuse(_) => None,
    }
}

/// What a node's record asks for and has not got yet.
fn under_way(node: &Node) -> Option<&Drain> {
    node.spec.drain.as_ref().filter(|drain| drain.is_under_way())
}

/// Whether both are the same request, whatever came of it.
fn is_same(a: &Drain, b: &Drain) -> bool {
    let asked = |drain: &Drain| (drain.requested_at, drain.deadline, drain.options);
    asked(a) == asked(b) && (&a.requested_by, &a.reason) == (&b.requested_by, &b.reason)
}

/// Whether the change brought the request. One that was there before we came has been told of.
fn is_new(change: &Change<Node>, wanted: &Drain) -> bool {
    change.old.as_deref().is_some_and(|old| !under_way(old).is_some_and(|held| is_same(held, wanted)))
}

#[cfg(test)]
mod tests;
