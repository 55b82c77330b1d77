use std::collections::BTreeMap;

use muster_proto::condition::ConditionStatus::{self, False, True, Unknown};
use muster_proto::lease::Lease;
use muster_proto::node::{AddressType, NodeAddress};
use muster_proto::wellknown::label;

use super::*;
use crate::explain::{ExplanationAction, ExplanationState};
use crate::fixtures::{NodeSample, at, node};
use crate::plan::{Action, Answer, CloudMachine, CloudQuestion, Failure, PlannedAction};
use crate::world::Change;

mod deletion_limit;
mod initialization;
mod scenarios;

const PERIOD: Duration = Duration::from_secs(5);

/// One answer deletes a node, and there is no limit.
fn unlimited() -> Settings {
    Settings { confirmations: NonZeroU32::MIN, delete_limit: u32::MAX, ..Settings::default() }
}

fn gone() -> Result<Answer, Failure> {
    Ok(Answer::Cloud(false))
}

fn error() -> Result<Answer, Failure> {
    Err(Failure::Later("timed out".to_owned()))
}

/// What the cloud answers about one machine.
#[derive(Clone)]
struct Machine {
    exists: Result<Answer, Failure>,
    shutdown: Result<Answer, Failure>,
    metadata: Result<Answer, Failure>,
}

fn machine() -> Machine {
    let (exists, shutdown) = (Ok(Answer::Cloud(true)), Ok(Answer::Cloud(false)));
    Machine { exists, shutdown, metadata: error() }
}

/// A store with nodes, a cloud with machines, and the controller between them, on virtual time.
struct Harness {
    world: World,
    cloud: CloudNodes,
    machines: BTreeMap<&'static str, Machine>,
    version: u64,
    now: Now,
    /// Until when no node may be deleted.
    hold_until: Mono,
    /// `question node` or `write node` of every action, in order.
    done: Vec<String>,
    /// `reason node` of every event.
    events: Vec<String>,
    /// The failure of every deletion, if there is one.
    refusal: Option<Failure>,
    /// The lease with the recorded deletions.
    lease: Option<Lease>,
}

impl Harness {
    fn new(settings: Settings) -> Harness {
        let mut harness = Harness {
            world: World::new(),
            cloud: CloudNodes::new(settings),
            machines: BTreeMap::new(),
            version: 0,
            now: at(0),
            hold_until: at(0).mono,
            done: Vec::new(),
            events: Vec::new(),
            refusal: None,
            lease: None,
        };
        // The controller learns that no deletion is recorded yet.
        harness.settle();
        harness
    }

    /// A new leader takes over.
    fn fail_over(&mut self) {
        self.cloud = CloudNodes::new(*self.cloud.checks.settings());
        for node in self.world.nodes().cloned().collect::<Vec<_>>() {
            self.observe(&[Delta::Node(Change { old: None, new: Some(node) })]);
        }
    }

    /// Performs a read or write of the lease.
    fn perform_on_lease(&mut self, action: &Action) -> Result<Answer, Failure> {
        if let Action::WriteLease(lease) = action {
            let held = self.lease.as_ref().map_or(0, |lease| lease.meta.resource_version);
            if held != lease.meta.resource_version {
                return Err(Failure::Conflict);
            }
            self.version += 1;
            let mut lease = Lease::clone(lease);
            lease.meta.resource_version = self.version;
            self.lease = Some(lease);
        }
        self.lease.clone().map(|lease| Answer::Lease(Box::new(lease))).ok_or(Failure::Gone)
    }

    fn put(&mut self, node: NodeSample) {
        self.version += 1;
        let deltas = self.world.apply_node(node.at(self.version).build());
        self.observe(&deltas);
    }

    fn ready(&mut self, name: &str, status: ConditionStatus) {
        let node = Node::clone(self.world.node(name).unwrap());
        self.put(NodeSample(node).ready(status));
    }

    fn remove(&mut self, name: &Name) {
        self.version += 1;
        let deltas = self.world.remove_node(name, None, self.version);
        self.observe(&deltas);
    }

    fn observe(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            self.cloud.observe(delta, &self.world, self.now);
        }
    }

    fn decide(&mut self) -> Plan {
        let mut plan = Plan::default();
        self.cloud.decide(&self.world, self.hold_until, self.now, &mut plan);
        self.events
            .extend(plan.events.iter().map(|event| format!("{} {}", event.reason, event.involved.name)));
        assert!(plan.wake_at.is_none_or(|at| at > self.now.mono), "a wake-up in the past is a busy loop");
        plan
    }

    /// Performs what is planned and all that follows at once. Returns when to look again.
    fn settle(&mut self) -> Option<Mono> {
        loop {
            let plan = self.decide();
            let changed = self.cloud.take_changed();
            if plan.actions.is_empty() && changed.is_empty() {
                return plan.wake_at;
            }
            for name in changed {
                self.write(name.as_str());
            }
            for planned in plan.actions {
                let result = self.perform(&planned);
                self.answer(&planned, result);
            }
        }
    }

    /// Lets time pass and decides at every wake-up.
    fn run_until(&mut self, seconds: u64) {
        let end = at(seconds);
        loop {
            match self.settle() {
                Some(next) if next <= end.mono => self.now = Now { mono: next, wall: self.now.wall_of(next) },
                _ => break,
            }
        }
        self.now = end;
    }

    fn answer(&mut self, planned: &PlannedAction, result: Result<Answer, Failure>) {
        let outcome = Outcome { controller: planned.controller, subject: planned.subject.clone(), result };
        self.cloud.settle(&outcome, &self.world, self.now);
    }

    fn perform(&mut self, planned: &PlannedAction) -> Result<Answer, Failure> {
        let Subject::Node(name, _) = &planned.subject else { return self.perform_on_lease(&planned.action) };
        let machine = self.machines.get(name.as_str()).cloned();
        let (word, result) = match &planned.action {
            Action::AskCloud { question: CloudQuestion::Exists, .. } => {
                ("exists", machine.map_or_else(gone, |machine| machine.exists))
            }
            Action::AskCloud { question: CloudQuestion::Shutdown, .. } => {
                ("shutdown", machine.map_or_else(error, |machine| machine.shutdown))
            }
            Action::AskCloud { question: CloudQuestion::Metadata, .. } => {
                ("metadata", machine.map_or(Err(Failure::Gone), |machine| machine.metadata))
            }
            Action::DeleteNode { .. } => ("delete", self.delete(name)),
            Action::UpdateNodeStatus(node) => {
                self.put(NodeSample(Node::clone(node)));
                ("status", Ok(Answer::Node(node.clone())))
            }
            other => panic!("{other:?}"),
        };
        self.done.push(format!("{word} {name}"));
        result
    }

    fn delete(&mut self, name: &Name) -> Result<Answer, Failure> {
        let node = self.world.node(name.as_str()).expect("it is deleted once");
        assert!(!node.is_ready(), "{name} is Ready");
        if let Some(failure) = &self.refusal {
            return Err(failure.clone());
        }
        let answer = Answer::Node(Box::new(Node::clone(node)));
        self.remove(name);
        Ok(answer)
    }

    /// Writes the record of a node if the controller wants it to differ.
    fn write(&mut self, name: &str) {
        let Some(before) = self.world.node(name).cloned() else { return };
        let mut node = Node::clone(&before);
        self.cloud.apply_to(&mut node, self.now);
        if node != *before {
            self.put(NodeSample(node));
        }
    }

    fn has(&self, name: &str) -> bool {
        self.world.node(name).is_some()
    }

    fn taints(&self, name: &str) -> String {
        let node = self.world.node(name).unwrap();
        node.spec.taints.iter().map(Taint::to_string).collect::<Vec<_>>().join(" ")
    }

    fn explain(&self, name: &str) -> Vec<(ExplanationAction, ExplanationState, String)> {
        let explanations = self.cloud.explain(self.world.node(name).unwrap(), self.hold_until, self.now);
        explanations.into_iter().map(|it| (it.action, it.state, it.reason)).collect()
    }
}

#[test]
fn the_cloud_is_asked_about_one_node_after_the_other_once_a_period() {
    let mut harness = Harness::new(Settings::default());
    for name in ["b", "a", "fine"] {
        harness.machines.insert(name, machine());
        harness.put(node(name).ready(if name == "fine" { True } else { Unknown }));
    }
    let plan = harness.decide();
    assert_eq!((plan.actions.len(), plan.wake_at), (1, None), "its outcome leads to the next step");
    assert_eq!(harness.decide(), Plan::default(), "no action is planned twice");
    let result = harness.perform(&plan.actions[0]);
    harness.answer(&plan.actions[0], result);
    harness.run_until(4);
    assert_eq!(harness.done, ["exists a", "shutdown a", "exists b", "shutdown b"]);
    harness.done.clear();
    harness.run_until(5);
    assert_eq!(harness.done, ["exists a", "shutdown a", "exists b", "shutdown b"]);
    assert_eq!(harness.settle(), Some(at(10).mono));
}

#[test]
fn the_question_carries_the_provider_id() {
    let mut harness = Harness::new(Settings::default());
    harness.put(node("a").with(|node| node.spec.provider_id = "x://1".to_owned()));
    let asked = harness.decide().actions.remove(0);
    assert_eq!(
        asked.action,
        Action::AskCloud { question: CloudQuestion::Exists, provider_id: "x://1".to_owned() }
    );
}

#[test]
fn an_answer_about_a_node_that_was_ready_meanwhile_is_ignored() {
    let mut harness = Harness::new(unlimited());
    harness.put(node("a").ready(Unknown));
    let asked = harness.decide().actions.remove(0);
    harness.ready("a", True);
    harness.ready("a", Unknown);
    harness.answer(&asked, gone());
    harness.machines.insert("a", machine());
    harness.run_until(60);
    assert!(harness.has("a"));
}

#[test]
fn a_node_that_turns_ready_before_its_deletion_is_kept() {
    let mut harness = Harness::new(unlimited());
    harness.put(node("a").ready(Unknown));
    let asked = harness.decide().actions.remove(0);
    harness.answer(&asked, gone());
    harness.ready("a", True);
    harness.run_until(60);
    assert!(harness.has("a"));
    let reason = "A node that is Ready is never deleted, whatever the cloud answers.".to_owned();
    assert_eq!(harness.explain("a"), [(ExplanationAction::DeleteNode, ExplanationState::None, reason)]);
}

#[test]
fn a_ready_node_is_kept_even_before_the_controller_has_observed_it() {
    let mut harness = Harness::new(unlimited());
    harness.put(node("a").ready(Unknown));
    let asked = harness.decide().actions.remove(0);
    harness.answer(&asked, gone());
    harness.world.apply_node(node("a").ready(True).at(9).build());
    assert_eq!(harness.decide().actions, []);
}

#[test]
fn the_cloud_is_not_asked_about_a_node_that_is_being_deleted() {
    let mut harness = Harness::new(unlimited());
    harness.put(node("a").deleting());
    harness.run_until(60);
    assert!(harness.done.is_empty());
}

#[test]
fn a_record_that_outlives_its_deletion_is_deleted_once() {
    let mut harness = Harness::new(unlimited());
    harness.put(node("a"));
    let asked = harness.decide().actions.remove(0);
    harness.answer(&asked, gone());
    let record = harness.decide().actions.remove(0);
    let recorded = harness.perform(&record);
    harness.answer(&record, recorded);
    let deletion = harness.decide().actions.remove(0);
    assert!(matches!(deletion.action, Action::DeleteNode { .. }));
    harness.answer(&deletion, Ok(Answer::Node(Box::new(node("a").build()))));
    harness.run_until(60);
    assert!(harness.done.is_empty(), "it has a finalizer, and its next version is late");
    assert_eq!(harness.explain("a")[0].1, ExplanationState::Done);
}

#[test]
fn new_nodes_are_initialized_while_no_node_may_be_deleted() {
    let mut harness = Harness::new(unlimited());
    harness.hold_until = at(40).mono;
    let described =
        Ok(Answer::Machine(Box::new(CloudMachine { zone: "z".to_owned(), ..CloudMachine::default() })));
    harness.machines.insert("new", Machine { metadata: described, ..machine() });
    harness.put(node("new").ready(True).taint("node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"));
    harness.put(node("lost").ready(Unknown));
    harness.run_until(1);
    assert_eq!((harness.taints("new"), harness.done.join(", ")), (String::new(), "metadata new".to_owned()));
    let reason = "The cloud is not asked before the eviction hold ends.".to_owned();
    assert_eq!(harness.explain("lost"), [(ExplanationAction::DeleteNode, ExplanationState::Paused, reason)]);
    harness.run_until(39);
    assert!(harness.has("lost"));
    harness.run_until(40);
    assert!(!harness.has("lost"));
}
