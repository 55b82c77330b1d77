//! Marks the pods of a silent node not ready: no agent can confirm any more that they are.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::event::{Event, EventType};
use muster_proto::key::Key;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use crate::deadlines::Deadlines;
use crate::decision::causes;
use crate::plan::{Action, Answer, ControllerName, Outcome, Plan, Subject, event};
use crate::world::{Change, World};
use muster_proto::time::Now;

#[derive(Clone, Debug, Default)]
pub struct PodReadiness {
    pods: Deadlines<Key>,
    /// Events since the last decision.
    events: Vec<Event>,
}

impl PodReadiness {
    /// The leader before us may not have marked all pods of nodes that are Unknown. Pods of a node whose own agent
    /// reports NotReady are left to that agent.
    pub fn begin(world: &World) -> PodReadiness {
        let mut readiness = PodReadiness::default();
        for pod in world.pods().filter(|pod| node_of(pod, world).is_some_and(is_unknown)) {
            readiness.pods.add(Key::of(&**pod));
        }
        readiness
    }

    /// A node's record has become Unknown. This goes by the record and not by the outcome of our own write, because the
    /// response to that write may be lost.
    pub fn node_marked_unknown(&mut self, node: &Node, world: &World) {
        for pod in world.pods_on(node.meta.name.as_str()) {
            self.pods.add(Key::of(&**pod));
        }
    }

    /// A pod that is bound to a node which is not ready is marked too.
    pub fn observe(&mut self, change: &Change<Pod>, world: &World) {
        let Some(pod) = &change.new else { return self.pods.forget(&Key::of(&**change.either())) };
        let node = |pod: &Pod| pod.spec.node_name.clone();
        let (before, after) = change.sides(node);
        if before != after && is_on_unready_node(pod, world) {
            self.pods.add(Key::of(&**pod));
        }
    }

    pub fn decide(&mut self, world: &World, now: Now, plan: &mut Plan) {
        plan.events.append(&mut self.events);
        for key in self.pods.take(now.mono) {
            let Some(pod) = world.pod(&key).filter(|pod| is_on_unready_node(pod, world)) else {
                self.pods.forget(&key);
                continue;
            };
            let Some(marked) = marked_not_ready(pod, now) else {
                self.pods.forget(&key);
                continue;
            };
            let action = Action::UpdatePodStatus(Box::new(marked));
            let cause = pod.spec.node_name.as_ref().map(causes::pod_not_ready);
            plan.act(
                ControllerName::NodeLifecycle,
                Subject::of_pod(pod),
                action,
                "its node is not ready",
                cause,
            );
            self.pods.begin(key);
        }
        if let Some(at) = self.pods.next() {
            plan.wake_by(at);
        }
    }

    pub fn settle(&mut self, key: &Key, outcome: &Outcome, now: Mono) {
        if let Ok(Answer::Pod(pod)) = &outcome.result {
            self.events.push(event(&**pod, EventType::Warning, "NodeNotReady", "Node is not ready"));
        }
        self.pods.settle(key, &outcome.result, now);
    }
}

fn node_of<'a>(pod: &Pod, world: &'a World) -> Option<&'a Node> {
    pod.spec.node_name.as_ref().and_then(|name| world.node(name.as_str())).map(|node| &**node)
}

fn is_on_unready_node(pod: &Pod, world: &World) -> bool {
    node_of(pod, world).is_some_and(|node| node.condition(types::READY).is_some() && !node.is_ready())
}

fn is_unknown(node: &Node) -> bool {
    node.condition(types::READY).is_some_and(|ready| ready.status == ConditionStatus::Unknown)
}

/// The pod with Ready set to False; `None` if that is so already, or if it has no Ready condition.
fn marked_not_ready(pod: &Pod, now: Now) -> Option<Pod> {
    let mut marked = pod.clone();
    let ready = marked.status.conditions.iter_mut().find(|held| held.kind == types::READY)?;
    if ready.status == ConditionStatus::False {
        return None;
    }
    ready.status = ConditionStatus::False;
    ready.last_transition_time = Some(now.wall);
    Some(marked)
}
