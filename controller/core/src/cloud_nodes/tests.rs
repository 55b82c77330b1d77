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

/// A cloud that deletes on one answer, as many as it likes.
fn credulous() -> Settings {
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

/// A store with nodes, a cloud with machines, and the room between them, on virtual time.
struct Fleet {
    world: World,
    cloud: Cloud,
    machines: BTreeMap<&'static str, Machine>,
    version: u64,
    now: Now,
    /// Until when nobody may be deleted.
    hold_until: Mono,
    /// What was asked and done, `question node`, in order.
    done: Vec<String>,
    /// `reason node` of everything told.
    told: Vec<String>,
    /// What a deletion comes to, if not to one.
    refusal: Option<Failure>,
    /// What the store remembers of the brake.
    memory: Option<Lease>,
}

impl Fleet {
    fn new(settings: Settings) -> Fleet {
        let mut fleet = Fleet {
            world: World::new(),
            cloud: Cloud::new(settings),
            machines: BTreeMap::new(),
            version: 0,
            now: at(0),
            hold_until: at(0).mono,
            done: Vec::new(),
            told: Vec::new(),
            refusal: None,
            memory: None,
        };
        // There is nothing to remember yet, and that is known.
        fleet.settle();
        fleet
    }

    /// Another controller takes over.
    fn take_over(&mut self) {
        self.cloud = Cloud::new(self.cloud.suspects.settings);
        for node in self.world.nodes().cloned().collect::<Vec<_>>() {
            self.observe(&[Delta::Node(Change { old: None, new: Some(node) })]);
        }
    }

    /// What the store makes of a proposal about its memory.
    fn remember(&mut self, action: &Action) -> Result<Answer, Failure> {
        if let Action::WriteLease(lease) = action {
            let held = self.memory.as_ref().map_or(0, |lease| lease.meta.resource_version);
            if held != lease.meta.resource_version {
                return Err(Failure::Conflict);
            }
            self.version += 1;
            let mut lease = Lease::clone(lease);
            lease.meta.resource_version = self.version;
            self.memory = Some(lease);
        }
        self.memory.clone().map(|lease| Answer::Lease(Box::new(lease))).ok_or(Failure::Gone)
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
        self.told.extend(plan.events.iter().map(|event| format!("{} {}", event.reason, event.involved.name)));
        assert!(plan.wake_at.is_none_or(|at| at > self.now.mono), "a wake in the past is a busy loop");
        plan
    }

    /// Does what is proposed, and all that follows at once; then says when to look again.
    fn settle(&mut self) -> Option<Mono> {
        loop {
            let plan = self.decide();
            let touched = self.cloud.take_changed();
            if plan.actions.is_empty() && touched.is_empty() {
                return plan.wake_at;
            }
            for name in touched {
                self.write(name.as_str());
            }
            for proposal in plan.actions {
                let result = self.perform(&proposal);
                self.answer(&proposal, result);
            }
        }
    }

    /// Time passes until then.
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

    fn answer(&mut self, proposal: &PlannedAction, result: Result<Answer, Failure>) {
        let outcome = Outcome { controller: proposal.controller, subject: proposal.subject.clone(), result };
        self.cloud.settle(&outcome, &self.world, self.now);
    }

    fn perform(&mut self, proposal: &PlannedAction) -> Result<Answer, Failure> {
        let Subject::Node(name, _) = &proposal.subject else { return self.remember(&proposal.action) };
        let machine = self.machines.get(name.as_str()).cloned();
        let (word, result) = match &proposal.action {
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

    /// Writes the record of a node if the room wants it to differ.
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
fn nodes_are_asked_about_one_after_the_other_once_a_period() {
    let mut fleet = Fleet::new(Settings::default());
    for name in ["b", "a", "fine"] {
        fleet.machines.insert(name, machine());
        fleet.put(node(name).ready(if name == "fine" { True } else { Unknown }));
    }
    let plan = fleet.decide();
    assert_eq!((plan.actions.len(), plan.wake_at), (1, None), "its outcome leads on");
    assert_eq!(fleet.decide(), Plan::default(), "nothing is proposed twice");
    let result = fleet.perform(&plan.actions[0]);
    fleet.answer(&plan.actions[0], result);
    fleet.run_until(4);
    assert_eq!(fleet.done, ["exists a", "shutdown a", "exists b", "shutdown b"]);
    fleet.done.clear();
    fleet.run_until(5);
    assert_eq!(fleet.done, ["exists a", "shutdown a", "exists b", "shutdown b"]);
    assert_eq!(fleet.settle(), Some(at(10).mono));
}

#[test]
fn the_question_names_the_machine_as_the_cloud_does() {
    let mut fleet = Fleet::new(Settings::default());
    fleet.put(node("a").with(|node| node.spec.provider_id = "x://1".to_owned()));
    let asked = fleet.decide().actions.remove(0);
    assert_eq!(
        asked.action,
        Action::AskCloud { question: CloudQuestion::Exists, provider_id: "x://1".to_owned() }
    );
}

#[test]
fn an_answer_about_a_node_that_was_ready_meanwhile_does_not_count() {
    let mut fleet = Fleet::new(credulous());
    fleet.put(node("a").ready(Unknown));
    let asked = fleet.decide().actions.remove(0);
    fleet.ready("a", True);
    fleet.ready("a", Unknown);
    fleet.answer(&asked, gone());
    fleet.machines.insert("a", machine());
    fleet.run_until(60);
    assert!(fleet.has("a"));
}

#[test]
fn a_node_that_turns_ready_before_its_deletion_is_kept() {
    let mut fleet = Fleet::new(credulous());
    fleet.put(node("a").ready(Unknown));
    let asked = fleet.decide().actions.remove(0);
    fleet.answer(&asked, gone());
    fleet.ready("a", True);
    fleet.run_until(60);
    assert!(fleet.has("a"));
    let reason = "A node that is Ready is never deleted, whatever the cloud answers.".to_owned();
    assert_eq!(fleet.explain("a"), [(ExplanationAction::DeleteNode, ExplanationState::None, reason)]);
}

#[test]
fn a_ready_node_is_kept_even_before_the_room_was_told() {
    let mut fleet = Fleet::new(credulous());
    fleet.put(node("a").ready(Unknown));
    let asked = fleet.decide().actions.remove(0);
    fleet.answer(&asked, gone());
    fleet.world.apply_node(node("a").ready(True).at(9).build());
    assert_eq!(fleet.decide().actions, []);
}

#[test]
fn a_node_that_is_being_deleted_is_not_asked_about() {
    let mut fleet = Fleet::new(credulous());
    fleet.put(node("a").deleting());
    fleet.run_until(60);
    assert!(fleet.done.is_empty());
}

#[test]
fn a_record_that_outlives_its_deletion_is_deleted_once() {
    let mut fleet = Fleet::new(credulous());
    fleet.put(node("a"));
    let asked = fleet.decide().actions.remove(0);
    fleet.answer(&asked, gone());
    let note = fleet.decide().actions.remove(0);
    let noted = fleet.perform(&note);
    fleet.answer(&note, noted);
    let deletion = fleet.decide().actions.remove(0);
    assert!(matches!(deletion.action, Action::DeleteNode { .. }));
    fleet.answer(&deletion, Ok(Answer::Node(Box::new(node("a").build()))));
    fleet.run_until(60);
    assert!(fleet.done.is_empty(), "it has a finalizer, and its next version is late");
    assert_eq!(fleet.explain("a")[0].1, ExplanationState::Done);
}

#[test]
fn newcomers_are_described_while_nobody_may_be_deleted() {
    let mut fleet = Fleet::new(credulous());
    fleet.hold_until = at(40).mono;
    let described =
        Ok(Answer::Machine(Box::new(CloudMachine { zone: "z".to_owned(), ..CloudMachine::default() })));
    fleet.machines.insert("new", Machine { metadata: described, ..machine() });
    fleet.put(node("new").ready(True).taint("node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"));
    fleet.put(node("lost").ready(Unknown));
    fleet.run_until(1);
    assert_eq!((fleet.taints("new"), fleet.done.join(", ")), (String::new(), "metadata new".to_owned()));
    let reason = "The cloud is not asked before the eviction hold ends.".to_owned();
    assert_eq!(fleet.explain("lost"), [(ExplanationAction::DeleteNode, ExplanationState::Paused, reason)]);
    fleet.run_until(39);
    assert!(fleet.has("lost"));
    fleet.run_until(40);
    assert!(!fleet.has("lost"));
}
