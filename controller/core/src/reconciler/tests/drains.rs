//! Drains beside the other rooms.

use muster_proto::condition::ConditionStatus::True;
use muster_proto::drain::{Drain, DrainState};
use muster_proto::node::Node;

use crate::drain::intent;
use crate::explain;
use crate::fixtures::simulator::Stage;
use crate::fixtures::{EPOCH, drain, key, node, pod};

const BINDING: &str = "no node suits it better";

/// A node that was chosen for a pod, and then drained before the store heard of it.
fn chosen_then_drained() -> Stage {
    let mut stage = Stage::new();
    stage.start().put_node(node("n").allocatable("pods=2").ready(True));
    stage.hold_back(BINDING);
    stage.put_pod(pod("p"));
    assert_eq!(stage.held_back.len(), 1);
    assert_eq!(stage.core.moot(&stage.held_back[0], stage.now()), None);
    stage.edit_node("n", |node| *node = intent::request_drain(node, drain(0)).unwrap());
    stage
}

fn recorded(stage: &Stage) -> Drain {
    stage.core.world().node("n").unwrap().spec.drain.clone().unwrap()
}

#[test]
fn a_drain_waits_for_a_binding_of_our_own_that_is_under_way() {
    let mut stage = chosen_then_drained();
    stage.run_until(8.0);
    assert_eq!(recorded(&stage).state, DrainState::Draining);
    stage.let_go();
    let told = recorded(&stage);
    assert_eq!(told.state, DrainState::Failed, "the pod has no owner, so it may not be moved");
    assert!(told.message.contains("default/p"), "{}", told.message);
}

#[test]
fn a_drain_is_complete_when_the_binding_came_to_nothing() {
    let mut stage = chosen_then_drained();
    stage.fail(BINDING, 1);
    stage.let_go();
    assert_eq!(recorded(&stage).state, DrainState::Complete);
    stage.run_until(60.0);
    assert_eq!(stage.core.world().pod(&key("p")).unwrap().spec.node_name, None);
}

#[test]
fn a_pod_is_not_bound_to_a_node_that_was_cordoned_while_it_had_to_wait() {
    let stage = chosen_then_drained();
    let moot = stage.core.moot(&stage.held_back[0], stage.now());
    assert_eq!(moot, Some("the node was cordoned meanwhile"));

    let mut stage = Stage::new();
    stage.start().put_node(node("n").allocatable("pods=2").ready(True));
    stage.hold_back(BINDING);
    let toleration = muster_proto::taint::Toleration::exists(
        "node.kubernetes.io/unschedulable",
        muster_proto::taint::TaintEffect::NoSchedule,
    );
    stage.put_pod(pod("p").tolerates(toleration));
    stage.edit_node("n", |node| node.spec.unschedulable = true);
    assert_eq!(stage.core.moot(&stage.held_back[0], stage.now()), None, "it does not mind");
}

#[test]
fn an_eviction_that_had_to_wait_is_dropped_when_no_drain_asks_for_it_any_more() {
    type Change = fn(&mut Node);
    let dropped = Some("no drain asks for it like that any more");
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
        let mut stage = Stage::new();
        stage.start().put_node(node("n").ready(True));
        stage.put_pod(pod("p").on("n").owned_by("ReplicaSet", "web").running(True));
        stage.hold_back("the node is being drained");
        stage.edit_node("n", |node| *node = intent::request_drain(node, drain(0)).unwrap());
        let proposal = stage.held_back[0].clone();
        assert_eq!(stage.core.moot(&proposal, stage.now()), None, "{what}");
        stage.edit_node("n", change);
        assert_eq!(stage.core.moot(&proposal, stage.now()), expected, "{what}");
    }
}

#[test]
fn a_pod_that_is_in_the_way_of_a_drain_says_when_it_is_asked_for_again() {
    let mut stage = Stage::new();
    stage.start().put_node(node("n").ready(True));
    stage.put_pod(pod("p").on("n").owned_by("ReplicaSet", "web").running(True));
    stage.fail("the node is being drained", 1);
    stage.edit_node("n", |node| *node = intent::request_drain(node, drain(0)).unwrap());
    let account = explain::node::explain(&stage.core, &"n".parse().unwrap(), stage.now()).unwrap();
    let of_node = account.explanations.into_iter().find(|told| told.action == "Drain").unwrap();
    let account = explain::pod::explain(&stage.core, &key("p"), stage.now()).unwrap();
    let of_pod = account.explanations.into_iter().find(|told| told.action == "Drain").unwrap();
    for told in [of_node, of_pod] {
        let earliest = told.earliest.map(|at| at.seconds - EPOCH);
        assert_eq!((told.state.as_str(), earliest), ("Waiting", Some(5)), "{}", told.reason);
    }
}
