use std::sync::Arc;

use muster_proto::cidr::Cidr;
use muster_proto::condition::{ConditionStatus, types};

use super::*;
use crate::explain::{ExplanationAction, ExplanationState};
use crate::fixtures::{NodeSample, at, at_ms, node, uid};
use crate::plan::{Action, Answer, Outcome, PlannedAction};
use crate::world::World;

mod failures;
mod invariants;
mod scenarios;

fn settings(clusters: &[&str], mask: Option<u8>, services: &[&str]) -> Settings {
    let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    let flags = Flags {
        cluster_cidr: &texts(clusters),
        node_cidr_mask_size: mask,
        service_cluster_ip_range: &texts(services),
        ..Flags::default()
    };
    Settings::check(&flags).unwrap()
}

/// A store with nodes, and the controller that allocates their blocks.
struct Harness {
    settings: Settings,
    world: World,
    cidrs: Ipam,
    version: u64,
    /// `reason node` of every event, in order.
    events: Vec<String>,
}

impl Harness {
    /// A controller that has not started.
    fn new(settings: Settings) -> Harness {
        let cidrs = Ipam::new(&settings);
        Harness { settings, world: World::new(), cidrs, version: 0, events: Vec::new() }
    }

    /// A controller that knows these nodes from the start.
    fn started(settings: Settings, nodes: Vec<NodeSample>) -> Harness {
        let mut harness = Harness::new(settings);
        nodes.into_iter().for_each(|node| harness.put(node));
        harness.cidrs.start(&harness.world);
        harness.settle();
        harness
    }

    /// A new controller starts with what the store has.
    fn restart(&mut self) {
        self.cidrs = Ipam::new(&self.settings);
        self.cidrs.start(&self.world);
    }

    fn put(&mut self, node: NodeSample) {
        self.version += 1;
        let deltas = self.world.apply_node(node.at(self.version).build());
        self.observe(&deltas);
    }

    fn remove(&mut self, name: &str) {
        self.version += 1;
        let deltas = self.world.remove_node(&name.parse().unwrap(), None, self.version);
        assert_eq!(deltas.len(), 1, "{name} is there");
        self.observe(&deltas);
    }

    fn observe(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            self.cidrs.observe(delta, &self.world, at(0));
        }
    }

    fn decide(&mut self, now: Now) -> Plan {
        let mut plan = Plan::default();
        self.cidrs.decide(&self.world, now, &mut plan);
        while let Some(PlannedAction { controller, subject, action, .. }) = plan.actions.pop() {
            let Action::UpdateNodeStatus(node) = action else {
                panic!("the blocks go into the node's record")
            };
            let result = Ok(Answer::Node(node.clone()));
            self.cidrs.settle(&Outcome { controller, subject, result }, now);
            self.put(NodeSample(*node));
            // A new version of a record is observed, so the event loop decides again.
            self.cidrs.decide(&self.world, now, &mut plan);
        }
        let events = plan.events.iter().map(|event| format!("{} {}", event.reason, event.involved.name));
        self.events.extend(events);
        plan
    }

    /// The record of a node as the controller wants it.
    fn desired(&self, name: &str) -> Node {
        let mut node = Node::clone(self.world.node(name).unwrap());
        self.cidrs.apply_to(&mut node, at(0));
        node
    }

    /// Writes the record of a node if the controller wants it to differ.
    fn write(&mut self, name: &str) {
        let node = self.desired(name);
        if node != **self.world.node(name).unwrap() {
            self.put(NodeSample(node));
        }
    }

    /// Decides and writes the changed records.
    fn settle(&mut self) {
        self.decide(at(0));
        for name in self.cidrs.take_changed() {
            self.write(name.as_str());
        }
    }

    fn subject(&self, name: &str) -> Subject {
        Subject::of_node(self.world.node(name).unwrap())
    }

    /// The networks that a node's record names.
    fn of(&self, name: &str) -> String {
        let node = self.world.node(name).unwrap();
        node.spec.pod_cidrs.iter().map(Cidr::to_string).collect::<Vec<_>>().join(" ")
    }

    /// The condition NetworkUnavailable of a node, and its reason.
    fn network(&self, name: &str) -> Option<(ConditionStatus, String)> {
        let held = self.world.node(name).unwrap().condition(types::NETWORK_UNAVAILABLE);
        held.map(|held| (held.status, held.reason.clone()))
    }

    /// Used, waiting and conflicts of each pool.
    fn counts(&self) -> Vec<[u64; 3]> {
        self.cidrs.pools().iter().map(|pool| [pool.used, pool.waiting, pool.conflicts]).collect()
    }

    fn explain(&self, name: &str) -> (ExplanationState, String) {
        let explanation = self.cidrs.explain(self.world.node(name).unwrap());
        assert_eq!(explanation.action, ExplanationAction::AssignCidr);
        (explanation.state, explanation.reason)
    }
}

#[test]
fn no_block_is_allocated_before_all_nodes_are_known() {
    let mut harness = Harness::new(settings(&["10.10.0.0/16"], None, &[]));
    harness.put(node("new"));
    harness.settle();
    assert_eq!((harness.of("new").as_str(), harness.counts()), ("", vec![[0, 1, 0]]));
    let waiting = (ExplanationState::Waiting, "No block is allocated before all nodes are known.".to_owned());
    assert_eq!(harness.explain("new"), waiting);
    harness.put(node("old").cidrs(&["10.10.0.0/24"]));
    harness.cidrs.start(&harness.world);
    harness.settle();
    assert_eq!((harness.of("new").as_str(), harness.counts()), ("10.10.1.0/24", vec![[2, 0, 0]]));
    assert_eq!(
        harness.explain("new"),
        (ExplanationState::Done, "The node's record has 10.10.1.0/24.".to_owned())
    );
}

#[test]
fn a_controller_starts_on_a_world_that_it_did_not_observe() {
    let mut harness = Harness::started(
        settings(&["10.10.0.0/16"], None, &[]),
        vec![node("a").cidrs(&["10.10.0.0/24"]), node("b").cidrs(&["10.10.1.0/24"])],
    );
    harness.restart();
    harness.put(node("c"));
    harness.settle();
    assert_eq!((harness.of("c").as_str(), harness.counts()), ("10.10.2.0/24", vec![[3, 0, 0]]));
}

#[test]
fn a_node_that_waits_for_a_block_has_no_network_until_it_has_one() {
    let mut harness = Harness::started(settings(&["10.10.0.0/24"], None, &[]), vec![node("a")]);
    assert_eq!((harness.of("a").as_str(), harness.network("a")), ("10.10.0.0/24", None), "it did not wait");
    let foreign = node("foreign").condition(types::NETWORK_UNAVAILABLE, ConditionStatus::True);
    harness.put(node("b"));
    harness.put(foreign);
    harness.settle();
    let waiting = Some((ConditionStatus::True, "CIDRNotAvailable".to_owned()));
    assert_eq!(harness.network("b"), waiting);
    assert_eq!(harness.network("foreign"), Some((ConditionStatus::True, String::new())), "others set it");

    harness.restart();
    harness.settle();
    assert_eq!(harness.network("b"), waiting, "a new controller agrees");
    harness.remove("foreign");
    harness.remove("a");
    harness.settle();
    harness.settle();
    assert_eq!(harness.of("b"), "10.10.0.0/24");
    assert_eq!(harness.network("b"), Some((ConditionStatus::False, "CIDRAssigned".to_owned())));
}

#[test]
fn a_condition_of_another_program_is_left_alone() {
    let foreign = node("a").condition(types::NETWORK_UNAVAILABLE, ConditionStatus::True);
    let mut harness = Harness::started(settings(&["10.10.0.0/24"], None, &[]), vec![foreign]);
    harness.settle();
    assert_eq!(harness.of("a"), "10.10.0.0/24");
    assert_eq!(harness.network("a"), Some((ConditionStatus::True, String::new())));
}

#[test]
fn nodes_are_served_in_the_order_they_came() {
    let held = node("held").cidrs(&["10.10.0.0/23"]);
    let mut harness = Harness::started(settings(&["10.10.0.0/23"], None, &[]), vec![held]);
    for name in ["z", "y", "x"] {
        harness.put(node(name));
        harness.settle();
    }
    assert_eq!(harness.events, ["CIDRNotAvailable z", "CIDRNotAvailable y", "CIDRNotAvailable x"]);
    let reason =
        "All 2 blocks of /24 in 10.10.0.0/23 are taken; 2 nodes wait before this one for a free block.";
    assert_eq!(harness.explain("x"), (ExplanationState::Waiting, reason.to_owned()));
    harness.remove("held");
    harness.settle();
    assert_eq!([harness.of("z"), harness.of("y"), harness.of("x")], ["10.10.0.0/24", "10.10.1.0/24", ""]);
    harness.settle();
    assert_eq!(harness.events.len(), 3, "one event for each wait");
}

#[test]
fn a_reserved_block_gives_way_to_a_record() {
    let mut harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    harness.put(node("late"));
    harness.decide(at(0));
    assert_eq!(harness.desired("late").spec.pod_cidrs, ["10.10.0.0/24".parse().unwrap()]);
    assert_eq!(
        harness.explain("late"),
        (ExplanationState::Due, "10.10.0.0/24 is being written to the node's record.".to_owned())
    );
    harness.put(node("admin").cidrs(&["10.10.0.0/23"]));
    harness.settle();
    assert_eq!(harness.of("late"), "10.10.2.0/24");
    assert_eq!((harness.events.len(), harness.counts()), (0, vec![[3, 0, 0]]));
}

#[test]
fn a_write_in_flight_of_a_retracted_block_gives_a_visible_conflict() {
    let mut harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    harness.put(node("late"));
    harness.decide(at(0));
    let in_flight = harness.desired("late");
    harness.put(node("admin").cidrs(&["10.10.0.0/24"]));
    harness.decide(at(0));
    harness.put(NodeSample(in_flight));
    harness.settle();
    assert_eq!(harness.events, ["CIDRConflict late"]);
    assert_eq!(harness.counts(), [[1, 0, 1]], "the block reserved instead is free");
    let reason = "The node's record has 10.10.0.0/24, but node admin has 10.10.0.0/24 too.";
    assert_eq!(harness.explain("late"), (ExplanationState::Done, reason.to_owned()));
}

#[test]
fn a_retracted_block_is_not_allocated_while_a_write_of_it_may_succeed() {
    let mut harness = Harness::started(settings(&["10.10.0.0/23"], None, &[]), vec![]);
    harness.put(node("late"));
    harness.decide(at(0));
    let in_flight = harness.desired("late");
    harness.put(node("admin").cidrs(&["10.10.0.0/24"]));
    harness.remove("admin");
    harness.decide(at(0));
    harness.put(node("next"));
    harness.decide(at(0));
    assert_eq!(harness.counts(), [[2, 1, 0]]);
    harness.put(NodeSample(in_flight));
    harness.settle();
    assert_eq!([harness.of("late"), harness.of("next")], ["10.10.0.0/24", "10.10.1.0/24"]);
}

#[test]
fn two_nodes_with_one_block_are_reported_and_keep_it_until_both_are_gone() {
    let nodes = vec![node("a").cidrs(&["10.10.0.0/24"]), node("b").cidrs(&["10.10.0.0/24"])];
    let mut harness = Harness::started(settings(&["10.10.0.0/24"], None, &[]), nodes);
    assert_eq!((harness.events.join(", ").as_str(), harness.counts()), ("CIDRConflict b", vec![[1, 0, 1]]));
    harness.put(node("c"));
    harness.remove("a");
    harness.settle();
    assert_eq!((harness.of("c").as_str(), harness.counts()), ("", vec![[1, 1, 0]]));
    harness.remove("b");
    harness.settle();
    assert_eq!(harness.of("c"), "10.10.0.0/24");
}

#[test]
fn a_network_from_another_writer_replaces_the_reserved_block() {
    let mut harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    harness.put(node("a"));
    harness.decide(at(0));
    harness.put(node("a").cidrs(&["10.10.9.0/24"]));
    harness.settle();
    assert_eq!((harness.of("a").as_str(), harness.counts()), ("10.10.9.0/24", vec![[1, 0, 0]]));
}

#[test]
fn a_part_of_the_reserved_block_uses_that_block() {
    let mut harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    harness.put(node("a"));
    harness.decide(at(0));
    harness.put(node("a").cidrs(&["10.10.0.128/25"]));
    assert_eq!(harness.counts(), [[1, 0, 0]]);
    harness.remove("a");
    assert_eq!(harness.counts(), [[0, 0, 0]]);
}

#[test]
fn a_node_being_deleted_does_not_wait_but_keeps_what_may_be_written() {
    let one = settings(&["10.10.0.0/24"], None, &[]);
    let mut harness = Harness::started(one, vec![node("old").cidrs(&["10.10.0.0/24"])]);
    harness.put(node("a"));
    harness.settle();
    harness.put(node("a").deleting());
    assert_eq!(harness.counts(), [[1, 0, 0]]);
    assert_eq!(
        harness.explain("a"),
        (ExplanationState::None, "A node that is being deleted gets no block.".to_owned())
    );
    harness.remove("old");
    harness.settle();
    assert_eq!(harness.of("a"), "");

    harness.put(node("b"));
    harness.decide(at(0));
    let in_flight = harness.desired("b");
    harness.put(node("b").deleting());
    harness.put(node("c"));
    harness.settle();
    assert_eq!((harness.of("c").as_str(), harness.of("b").as_str()), ("", ""), "b's write may still succeed");
    assert!(harness.desired("b").spec.pod_cidrs.is_empty(), "but no new one is made");
    assert_eq!(in_flight.spec.pod_cidrs.len(), 1);
    harness.remove("b");
    harness.settle();
    assert_eq!(harness.of("c"), "10.10.0.0/24");
}

#[test]
fn a_node_of_the_same_name_with_another_uid_gets_its_own_block() {
    let mut harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), vec![node("a")]);
    assert_eq!(harness.of("a"), "10.10.0.0/24");
    harness.put(node("a").identity("another"));
    harness.settle();
    assert_eq!((harness.of("a").as_str(), harness.counts()), ("10.10.1.0/24", vec![[1, 0, 0]]));
}

#[test]
fn a_node_that_gets_a_foreign_network_later_does_not_stop_allocation() {
    let mut harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    harness.put(node("odd").cidrs(&["172.16.0.0/24"]));
    harness.put(node("dual").cidrs(&["10.10.0.0/24", "fd00::/64"]));
    harness.put(node("a"));
    harness.settle();
    assert_eq!((harness.cidrs.failure(), harness.of("a").as_str()), (None, "10.10.1.0/24"));
    assert_eq!(harness.events, ["CIDROutsidePool odd", "CIDROutsidePool dual"]);
    let reason = "The node holds 172.16.0.0/24, which lies outside the cluster network 10.10.0.0/16.";
    assert_eq!(harness.explain("odd"), (ExplanationState::Refused, reason.to_owned()));
    let reason = "The node holds fd00::/64 too, but --cluster-cidr names no network for it.";
    assert_eq!(harness.explain("dual"), (ExplanationState::Refused, reason.to_owned()));
}
