use std::sync::Arc;

use super::*;
use crate::explain::{ExplanationAction, ExplanationState};
use crate::fixtures::{NodeSample, at, at_ms, node, uid};
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

/// A store with nodes, and the room that gives them blocks.
struct Fleet {
    settings: Settings,
    world: World,
    cidrs: Ipam,
    version: u64,
    /// `reason node` of everything told, in order.
    told: Vec<String>,
}

impl Fleet {
    /// A room that has not started.
    fn new(settings: Settings) -> Fleet {
        let cidrs = Ipam::new(&settings);
        Fleet { settings, world: World::new(), cidrs, version: 0, told: Vec::new() }
    }

    /// A room that knows these nodes from the start.
    fn started(settings: Settings, nodes: Vec<NodeSample>) -> Fleet {
        let mut fleet = Fleet::new(settings);
        nodes.into_iter().for_each(|node| fleet.put(node));
        fleet.cidrs.start(&fleet.world);
        fleet.settle();
        fleet
    }

    /// The process ends, and another begins with what the store has.
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
        assert!(plan.actions.is_empty(), "its wishes go into the node's record");
        let told = plan.events.iter().map(|event| format!("{} {}", event.reason, event.involved.name));
        self.told.extend(told);
        plan
    }

    /// The record of a node as the room wants it.
    fn shaped(&self, name: &str) -> Node {
        let mut node = Node::clone(self.world.node(name).unwrap());
        self.cidrs.apply_to(&mut node, at(0));
        node
    }

    /// Writes the record of a node if the room wants it to differ.
    fn write(&mut self, name: &str) {
        let node = self.shaped(name);
        if node != **self.world.node(name).unwrap() {
            self.put(NodeSample(node));
        }
    }

    /// Decides and writes what comes of it.
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
fn nothing_is_given_out_before_all_nodes_are_known() {
    let mut fleet = Fleet::new(settings(&["10.10.0.0/16"], None, &[]));
    fleet.put(node("new"));
    fleet.settle();
    assert_eq!((fleet.of("new").as_str(), fleet.counts()), ("", vec![[0, 1, 0]]));
    let waiting = (ExplanationState::Waiting, "No block is allocated before all nodes are known.".to_owned());
    assert_eq!(fleet.explain("new"), waiting);
    fleet.put(node("old").cidrs(&["10.10.0.0/24"]));
    fleet.cidrs.start(&fleet.world);
    fleet.settle();
    assert_eq!((fleet.of("new").as_str(), fleet.counts()), ("10.10.1.0/24", vec![[2, 0, 0]]));
    assert_eq!(
        fleet.explain("new"),
        (ExplanationState::Done, "The node's record has 10.10.1.0/24.".to_owned())
    );
}

#[test]
fn a_room_can_start_on_a_world_it_was_not_told_of() {
    let mut fleet = Fleet::started(
        settings(&["10.10.0.0/16"], None, &[]),
        vec![node("a").cidrs(&["10.10.0.0/24"]), node("b").cidrs(&["10.10.1.0/24"])],
    );
    fleet.restart();
    fleet.put(node("c"));
    fleet.settle();
    assert_eq!((fleet.of("c").as_str(), fleet.counts()), ("10.10.2.0/24", vec![[3, 0, 0]]));
}

#[test]
fn those_who_came_first_are_served_first() {
    let held = node("held").cidrs(&["10.10.0.0/23"]);
    let mut fleet = Fleet::started(settings(&["10.10.0.0/23"], None, &[]), vec![held]);
    for name in ["z", "y", "x"] {
        fleet.put(node(name));
        fleet.settle();
    }
    assert_eq!(fleet.told, ["CIDRNotAvailable z", "CIDRNotAvailable y", "CIDRNotAvailable x"]);
    let reason =
        "All 2 blocks of /24 in 10.10.0.0/23 are taken; 2 nodes wait before this one for a free block.";
    assert_eq!(fleet.explain("x"), (ExplanationState::Waiting, reason.to_owned()));
    fleet.remove("held");
    fleet.settle();
    assert_eq!([fleet.of("z"), fleet.of("y"), fleet.of("x")], ["10.10.0.0/24", "10.10.1.0/24", ""]);
    fleet.settle();
    assert_eq!(fleet.told.len(), 3, "a wait is told of once");
}

#[test]
fn a_promise_gives_way_to_a_record() {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    fleet.put(node("late"));
    fleet.decide(at(0));
    assert_eq!(fleet.shaped("late").spec.pod_cidrs, ["10.10.0.0/24".parse().unwrap()]);
    assert_eq!(
        fleet.explain("late"),
        (ExplanationState::Due, "10.10.0.0/24 is being written to the node's record.".to_owned())
    );
    fleet.put(node("admin").cidrs(&["10.10.0.0/23"]));
    fleet.settle();
    assert_eq!(fleet.of("late"), "10.10.2.0/24");
    assert_eq!((fleet.told.len(), fleet.counts()), (0, vec![[3, 0, 0]]));
}

#[test]
fn a_write_that_was_under_way_when_its_promise_was_taken_back_is_a_conflict_people_see() {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    fleet.put(node("late"));
    fleet.decide(at(0));
    let under_way = fleet.shaped("late");
    fleet.put(node("admin").cidrs(&["10.10.0.0/24"]));
    fleet.decide(at(0));
    fleet.put(NodeSample(under_way));
    fleet.settle();
    assert_eq!(fleet.told, ["CIDRConflict late"]);
    assert_eq!(fleet.counts(), [[1, 0, 1]], "and what it was promised instead is free");
    let reason = "The node's record has 10.10.0.0/24, but node admin has 10.10.0.0/24 too.";
    assert_eq!(fleet.explain("late"), (ExplanationState::Done, reason.to_owned()));
}

#[test]
fn a_retracted_promise_is_given_to_nobody_while_a_write_of_it_may_land() {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/23"], None, &[]), vec![]);
    fleet.put(node("late"));
    fleet.decide(at(0));
    let under_way = fleet.shaped("late");
    fleet.put(node("admin").cidrs(&["10.10.0.0/24"]));
    fleet.remove("admin");
    fleet.decide(at(0));
    fleet.put(node("next"));
    fleet.decide(at(0));
    assert_eq!(fleet.counts(), [[2, 1, 0]]);
    fleet.put(NodeSample(under_way));
    fleet.settle();
    assert_eq!([fleet.of("late"), fleet.of("next")], ["10.10.0.0/24", "10.10.1.0/24"]);
}

#[test]
fn two_nodes_with_one_block_are_told_of_and_keep_it_until_both_are_gone() {
    let nodes = vec![node("a").cidrs(&["10.10.0.0/24"]), node("b").cidrs(&["10.10.0.0/24"])];
    let mut fleet = Fleet::started(settings(&["10.10.0.0/24"], None, &[]), nodes);
    assert_eq!((fleet.told.join(", ").as_str(), fleet.counts()), ("CIDRConflict b", vec![[1, 0, 1]]));
    fleet.put(node("c"));
    fleet.remove("a");
    fleet.settle();
    assert_eq!((fleet.of("c").as_str(), fleet.counts()), ("", vec![[1, 1, 0]]));
    fleet.remove("b");
    fleet.settle();
    assert_eq!(fleet.of("c"), "10.10.0.0/24");
}

#[test]
fn what_another_writer_gave_the_node_replaces_what_we_meant_to() {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    fleet.put(node("a"));
    fleet.decide(at(0));
    fleet.put(node("a").cidrs(&["10.10.9.0/24"]));
    fleet.settle();
    assert_eq!((fleet.of("a").as_str(), fleet.counts()), ("10.10.9.0/24", vec![[1, 0, 0]]));
}

#[test]
fn a_part_of_the_promised_block_is_still_that_block() {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    fleet.put(node("a"));
    fleet.decide(at(0));
    fleet.put(node("a").cidrs(&["10.10.0.128/25"]));
    assert_eq!(fleet.counts(), [[1, 0, 0]]);
    fleet.remove("a");
    assert_eq!(fleet.counts(), [[0, 0, 0]]);
}

#[test]
fn a_node_that_is_leaving_waits_for_nothing_but_keeps_what_may_be_written() {
    let one = settings(&["10.10.0.0/24"], None, &[]);
    let mut fleet = Fleet::started(one, vec![node("old").cidrs(&["10.10.0.0/24"])]);
    fleet.put(node("a"));
    fleet.settle();
    fleet.put(node("a").deleting());
    assert_eq!(fleet.counts(), [[1, 0, 0]]);
    assert_eq!(
        fleet.explain("a"),
        (ExplanationState::None, "A node that is being deleted gets no block.".to_owned())
    );
    fleet.remove("old");
    fleet.settle();
    assert_eq!(fleet.of("a"), "");

    fleet.put(node("b"));
    fleet.decide(at(0));
    let under_way = fleet.shaped("b");
    fleet.put(node("b").deleting());
    fleet.put(node("c"));
    fleet.settle();
    assert_eq!((fleet.of("c").as_str(), fleet.of("b").as_str()), ("", ""), "b's write may still land");
    assert!(fleet.shaped("b").spec.pod_cidrs.is_empty(), "but no new one is made");
    assert_eq!(under_way.spec.pod_cidrs.len(), 1);
    fleet.remove("b");
    fleet.settle();
    assert_eq!(fleet.of("c"), "10.10.0.0/24");
}

#[test]
fn a_namesake_gets_its_own_block() {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), vec![node("a")]);
    assert_eq!(fleet.of("a"), "10.10.0.0/24");
    fleet.put(node("a").identity("another"));
    fleet.settle();
    assert_eq!((fleet.of("a").as_str(), fleet.counts()), ("10.10.1.0/24", vec![[1, 0, 0]]));
}

#[test]
fn a_node_given_a_foreign_network_later_stops_nobody_else() {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    fleet.put(node("odd").cidrs(&["172.16.0.0/24"]));
    fleet.put(node("dual").cidrs(&["10.10.0.0/24", "fd00::/64"]));
    fleet.put(node("a"));
    fleet.settle();
    assert_eq!((fleet.cidrs.failure(), fleet.of("a").as_str()), (None, "10.10.1.0/24"));
    assert_eq!(fleet.told, ["CIDROutsidePool odd", "CIDROutsidePool dual"]);
    let reason = "The node holds 172.16.0.0/24, which lies outside the cluster network 10.10.0.0/16.";
    assert_eq!(fleet.explain("odd"), (ExplanationState::Refused, reason.to_owned()));
    let reason = "The node holds fd00::/64 too, but --cluster-cidr names no network for it.";
    assert_eq!(fleet.explain("dual"), (ExplanationState::Refused, reason.to_owned()));
}
