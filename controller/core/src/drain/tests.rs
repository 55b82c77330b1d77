//! Drains on virtual time, with a simulated store and agent.

mod completion;
mod invariants;
mod scenarios;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use muster_proto::drain::{Drain, DrainOptions, DrainState};
use muster_proto::key::Key;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use super::Drains;
use super::progress::{PodState, ProgressState};
use crate::fixtures::{PodSample, at, at_ms, drain, key, node, pod};
use crate::plan::{Action, Answer, ControllerName, Failure, Outcome, Plan, PlannedAction, Subject};
use crate::world::{Change, Delta, World};
use muster_proto::time::Now;

/// The node that is drained.
const NODE: &str = "n";

/// One node, its pods, the drain controller, and a store and an agent that act as the test says.
struct Harness {
    world: World,
    drains: Drains,
    version: u64,
    millis: u64,
    /// The failures that the store answers for pods; it grants all others.
    refusals: BTreeMap<Key, Failure>,
    /// How long the agent takes to stop a pod; `None` means forever.
    stops_after: Option<u64>,
    stops: Vec<(u64, Key)>,
    /// How many pods are being bound to the node.
    binding: usize,
    /// The planned actions, as `seconds verb pod`.
    log: Vec<String>,
    events: Vec<String>,
    wake_at: Option<Mono>,
}

impl Harness {
    /// The node without a drain, with these pods on it.
    fn with(pods: impl IntoIterator<Item = PodSample>) -> Harness {
        let mut harness = Harness {
            world: World::new(),
            drains: Drains::new(),
            version: 1,
            millis: 0,
            refusals: BTreeMap::new(),
            stops_after: Some(1000),
            stops: Vec::new(),
            binding: 0,
            log: Vec::new(),
            events: Vec::new(),
            wake_at: None,
        };
        harness.put_node(node(NODE).build());
        pods.into_iter().for_each(|pod| harness.put_pod(pod.on(NODE).build()));
        harness
    }

    fn now(&self) -> Now {
        at_ms(self.millis)
    }

    fn observe(&mut self, deltas: &[Delta]) {
        let now = self.now();
        deltas.iter().for_each(|delta| self.drains.observe(delta, &self.world, now));
    }

    fn put_node(&mut self, mut node: Node) {
        self.version += 1;
        node.meta.resource_version = self.version;
        let deltas = self.world.apply_node(node);
        self.observe(&deltas);
    }

    fn put_pod(&mut self, mut pod: Pod) {
        self.version += 1;
        pod.meta.resource_version = self.version;
        let deltas = self.world.apply_pod(pod);
        self.observe(&deltas);
    }

    fn remove_pod(&mut self, key: &Key) {
        self.version += 1;
        let deltas = self.world.remove_pod(key, None, self.version);
        self.observe(&deltas);
    }

    fn node(&self) -> Node {
        Node::clone(self.world.node(NODE).unwrap())
    }

    fn change_node(&mut self, change: impl FnOnce(&mut Node)) {
        let mut node = self.node();
        change(&mut node);
        self.put_node(node);
    }

    /// Requests a drain now.
    fn drain(&mut self, options: DrainOptions, timeout: Option<u64>) {
        let requested_at = self.now().wall;
        let deadline = timeout.map(|seconds| requested_at + SignedDuration::from_secs(seconds as i64));
        let drain = Drain { requested_at, deadline, options, ..drain(0) };
        // The same drain again changes nothing.
        if let Some(node) = super::intent::request_drain(&self.node(), drain) {
            self.put_node(node);
        }
    }

    fn decide(&mut self) -> Plan {
        let mut plan = Plan::default();
        self.drains.decide(&self.world, |_| self.binding, self.now(), &mut plan);
        self.wake_at = plan.wake_at;
        self.events.extend(plan.events.iter().map(|event| format!("{}: {}", event.reason, event.message)));
        let mut again = Plan::default();
        self.drains.decide(&self.world, |_| self.binding, self.now(), &mut again);
        assert_eq!(again.actions, [], "no action is planned twice");
        plan
    }

    /// Performs what is planned until there is nothing to do.
    fn work(&mut self) {
        loop {
            let plan = self.decide();
            for planned in &plan.actions {
                let outcome = self.perform(planned);
                self.drains.settle(&outcome, &self.world, self.now());
            }
            if !self.write_changed() && plan.actions.is_empty() {
                return;
            }
        }
    }

    /// Writes what the controller wants in the node's record. Returns whether that changed anything.
    fn write_changed(&mut self) -> bool {
        let mut changed = false;
        for name in self.drains.take_changed() {
            let before = Node::clone(self.world.node(name.as_str()).unwrap());
            let mut after = before.clone();
            self.drains.apply_to(&mut after, self.now());
            if after != before {
                changed = true;
                self.put_node(after);
            }
        }
        changed
    }

    fn perform(&mut self, PlannedAction { controller, subject, action, .. }: &PlannedAction) -> Outcome {
        assert_eq!(*controller, ControllerName::Drain);
        let Subject::Pod(key, uid) = subject else { panic!("{subject:?}") };
        let (verb, grace) = match action {
            Action::EvictPod { grace_period_seconds } => ("evict", *grace_period_seconds),
            Action::EndPod { mark: None, grace_period_seconds } => ("delete", *grace_period_seconds),
            action => panic!("{action:?}"),
        };
        self.log.push(format!("{} {verb} {}", self.millis / 1000, key.name));
        let held = self.world.pod(key).filter(|pod| pod.meta.uid == Some(*uid)).cloned();
        let result = match (self.refusals.get(key), held) {
            (Some(failure), _) if verb == "evict" || !matches!(failure, Failure::Budget { .. }) => {
                Err(failure.clone())
            }
            (_, None) => Err(Failure::Gone),
            (_, Some(pod)) => Ok(Answer::Pod(Box::new(self.end(Pod::clone(&pod), grace)))),
        };
        Outcome { controller: *controller, subject: subject.clone(), result }
    }

    /// Deletes a pod as the store does.
    fn end(&mut self, mut pod: Pod, grace: Option<i64>) -> Pod {
        let grace = if pod.is_finished() { 0 } else { grace.unwrap_or(30) };
        let key = Key::of(&pod);
        if grace == 0 {
            self.remove_pod(&key);
            return pod;
        }
        pod.meta.deletion_timestamp = Some(self.now().wall + SignedDuration::from_secs(grace));
        pod.meta.deletion_grace_period_seconds = Some(grace);
        self.put_pod(pod.clone());
        self.stops.extend(self.stops_after.map(|after| (self.millis + after, key)));
        pod
    }

    /// Lets time pass and performs everything that becomes due.
    fn run_to(&mut self, seconds: u64) {
        let end = seconds * 1000;
        loop {
            self.work();
            let wake = self.wake_at.map(|at| (at - at_ms(0).mono).as_millis() as u64);
            let stop = self.stops.iter().map(|(at, _)| *at).min();
            let next = wake.into_iter().chain(stop).min().filter(|at| *at <= end);
            let Some(next) = next else { break };
            assert!(next >= self.millis, "a wake-up in the past");
            self.millis = next;
            let due = self.stops.extract_if(.., |(at, _)| *at <= next).collect::<Vec<_>>();
            due.iter().for_each(|(_, key)| self.remove_pod(key));
        }
        self.millis = end;
        self.work();
    }

    /// A new leader takes over, with nothing but the records.
    fn restart(&mut self) {
        self.drains = Drains::new();
        let nodes = self.world.nodes().cloned().map(|new| Delta::Node(Change { old: None, new: Some(new) }));
        let pods = self.world.pods().cloned().map(|new| Delta::Pod(Change { old: None, new: Some(new) }));
        let deltas: Vec<_> = nodes.chain(pods).collect();
        self.observe(&deltas);
    }

    fn recorded(&self) -> (DrainState, String) {
        let drain = self.node().spec.drain.unwrap();
        (drain.state, drain.message)
    }

    fn here(&self) -> String {
        self.world.pods_on(NODE).map(|pod| pod.meta.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// The state of the drain, then `pod:action:state` for each pod.
    fn progress(&self) -> String {
        let progress = self.drains.progress(&self.world, NODE, self.now()).unwrap();
        let pods = progress.pods.iter().map(|pod| format!("{}:{}:{}", pod.key.name, pod.action, pod.state));
        format!("{} {}", progress.state, pods.collect::<Vec<_>>().join(" ")).trim_end().to_owned()
    }
}

fn managed(name: &str) -> PodSample {
    pod(name).owned_by("ReplicaSet", "rs")
}

fn budget(message: &str) -> Failure {
    Failure::Budget { message: message.to_owned(), retry_after: None }
}
