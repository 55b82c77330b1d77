//! Drains beside the other controllers.

use muster_proto::condition::ConditionStatus::True;
use muster_proto::drain::{Drain, DrainState};
use muster_proto::node::Node;

use crate::drain::intent;
use crate::explain;
use crate::fixtures::simulator::Simulator;
use crate::fixtures::{EPOCH, drain, key, node, pod};

const BINDING: &str = "no node suits it better";

/// A node that was chosen for a pod, and then drained before the store heard of it.
fn chosen_then_drained() -> Simulator {
    let mut sim = Simulator::new();
    sim.start().put_node(node("n").allocatable("pods=2").ready(True));
    sim.delay_actions(BINDING);
    sim.put_pod(pod("p"));
    assert_eq!(sim.delayed.len(), 1);
    assert_eq!(sim.reconciler.obsolete(&sim.delayed[0], sim.now()), None);
    sim.edit_node("n", |node| *node = intent::request_drain(node, drain(0)).unwrap());
    sim
}

fn recorded(sim: &Simulator) -> Drain {
    sim.reconciler.world().node("n").unwrap().spec.drain.clone().unwrap()
}

#[test]
fn a_drain_waits_for_a_binding_of_our_own_that_is_under_way() {
    let mut sim = chosen_then_drained();
    sim.run_until(8.0);
    assert_eq!(recorded(&sim).state, DrainState::Draining);
    sim.perform_delayed();
    let told = recorded(&sim);
    assert_eq!(told.state, DrainState::Failed, "the pod has no owner, so it may not be moved");
    assert!(told.message.contains("default/p"), "{}", told.message);
}

#[test]
fn a_drain_is_complete_when_the_binding_came_to_nothing() {
    let mut sim = chosen_then_drained();
    sim.fail_actions(BINDING, 1);
    sim.perform_delayed();
    assert_eq!(recorded(&sim).state, DrainState::Complete);
    sim.run_until(60.0);
    assert_eq!(sim.reconciler.world().pod(&key("p")).unwrap().spec.node_name, None);
}

#[test]
fn a_pod_is_not_bound_to_a_node_that_was_cordoned_while_it_had_to_wait() {
    let sim = chosen_then_drained();
    let obsolete = sim.reconciler.obsolete(&sim.delayed[0], sim.now());
    assert_eq!(obsolete, Some("the node was cordoned meanwhile"));

    let mut sim = Simulator::new();
    sim.start().put_node(node("n").allocatable("pods=2").ready(True));
    sim.delay_actions(BINDING);
    let toleration = muster_proto::taint::Toleration::exists(
        "node.kubernetes.io/unschedulable",
        muster_proto::taint::TaintEffect::NoSchedule,
    );
    sim.put_pod(pod("p").tolerates(toleration));
    sim.edit_node("n", |node| node.spec.unschedulable = true);
    assert_eq!(sim.reconciler.obsolete(&sim.delayed[0], sim.now()), None, "it does not mind");
}

#[test]
fn an_eviction_that_had_to_wait_is_dropped_when_no_drain_asks_for_it_any_more() {
    type Change = fn(&mut Node);
    let dropped = Some("no drain requests this any more");
    let cases: [(&str, Change, Option<&str>); 5] = [
        ("called off", |node| *node = intent::uncordon(node).unwrap(), dropped),
        ("uncordoned by hand", |node| node.spec.unschedulable = false, dropped),
        ("asked for anew, to end pods otherwise", |node| ask(node, 7), dropped),
        (
            "asked for anew",
            |node| *node = intent::request_drain(node, drain(9)).unwrap_or(node.clone()),
            None,
        ),
        ("changed otherwise", |node| drop(node.meta.labels.insert("a".to_owned(), "b".to_owned())), None),
    ];
    fn ask(node: &mut Node, grace: i64) {
        let mut wanted = drain(0);
        wanted.options.grace_period_seconds = Some(grace);
        *node = intent::request_drain(node, wanted).unwrap();
    }
    for (what, change, expected) in cases {
        let mut sim = Simulator::new();
        sim.start().put_node(node("n").ready(True));
        sim.put_pod(pod("p").on("n").owned_by("ReplicaSet", "web").running(True));
        sim.delay_actions("the node is being drained");
        sim.edit_node("n", |node| *node = intent::request_drain(node, drain(0)).unwrap());
        let proposal = sim.delayed[0].clone();
        assert_eq!(sim.reconciler.obsolete(&proposal, sim.now()), None, "{what}");
        sim.edit_node("n", change);
        assert_eq!(sim.reconciler.obsolete(&proposal, sim.now()), expected, "{what}");
    }
}

#[test]
fn a_pod_that_is_in_the_way_of_a_drain_says_when_it_is_asked_for_again() {
    let mut sim = Simulator::new();
    sim.start().put_node(node("n").ready(True));
    sim.put_pod(pod("p").on("n").owned_by("ReplicaSet", "web").running(True));
    sim.fail_actions("the node is being drained", 1);
    sim.edit_node("n", |node| *node = intent::request_drain(node, drain(0)).unwrap());
    let account = explain::node::explain(&sim.reconciler, &"n".parse().unwrap(), sim.now()).unwrap();
    let of_node = account.explanations.into_iter().find(|told| told.action == "Drain").unwrap();
    let account = explain::pod::explain(&sim.reconciler, &key("p"), sim.now()).unwrap();
    let of_pod = account.explanations.into_iter().find(|told| told.action == "Drain").unwrap();
    for told in [of_node, of_pod] {
        let earliest = told.earliest.map(|at| at.seconds - EPOCH);
        assert_eq!((told.state.as_str(), earliest), ("Waiting", Some(5)), "{}", told.reason);
    }
}
