//! Drains together with the other controllers.

use muster_proto::condition::ConditionStatus::True;
use muster_proto::drain::{Drain, DrainState};
use muster_proto::node::Node;
use muster_proto::pb;

use crate::drain::intent;
use crate::explain;
use crate::fixtures::simulator::Simulator;
use crate::fixtures::{EPOCH, drain, key, node, pod};

const BINDING: &str = "no node suits it better";

/// The scheduler chose the node for a pod, and a drain began before the binding was written.
fn drained_before_binding() -> Simulator {
    let mut sim = Simulator::new();
    sim.start().put_node(node("n").allocatable("pods=2").ready(True));
    sim.delay_actions(BINDING);
    sim.put_pod(pod("p"));
    assert_eq!(sim.delayed.len(), 1);
    assert_eq!(sim.reconciler.obsolete(&sim.delayed[0], sim.now()), None);
    sim.edit_node("n", |node| *node = intent::request_drain(node, drain(0)).unwrap());
    sim
}

fn recorded_drain(sim: &Simulator) -> Drain {
    sim.reconciler.world().node("n").unwrap().spec.drain.clone().unwrap()
}

#[test]
fn a_drain_waits_for_a_binding_in_flight() {
    let mut sim = drained_before_binding();
    sim.run_until(8.0);
    assert_eq!(recorded_drain(&sim).state, DrainState::Draining);
    sim.perform_delayed();
    let drain = recorded_drain(&sim);
    assert_eq!(drain.state, DrainState::Failed, "the pod has no owner, so it may not be moved");
    assert!(drain.message.contains("default/p"), "{}", drain.message);
}

#[test]
fn a_drain_is_complete_when_the_binding_failed() {
    let mut sim = drained_before_binding();
    sim.fail_actions(BINDING, 1);
    sim.perform_delayed();
    assert_eq!(recorded_drain(&sim).state, DrainState::Complete);
    sim.run_until(60.0);
    assert_eq!(sim.reconciler.world().pod(&key("p")).unwrap().spec.node_name, None);
}

#[test]
fn a_binding_is_obsolete_if_the_node_was_cordoned_meanwhile() {
    let sim = drained_before_binding();
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
    assert_eq!(sim.reconciler.obsolete(&sim.delayed[0], sim.now()), None, "the pod tolerates the cordon");
}

#[test]
fn an_eviction_is_obsolete_if_no_drain_requests_it_any_more() {
    type Change = fn(&mut Node);
    let obsolete = Some("no drain requests this any more");
    let cases: [(&str, Change, Option<&str>); 5] = [
        ("cancelled", |node| *node = intent::uncordon(node, "", true).unwrap(), obsolete),
        ("uncordoned by a client", |node| node.spec.unschedulable = false, obsolete),
        ("requested again with another grace period", |node| request(node, 7), obsolete),
        (
            "requested again",
            |node| *node = intent::request_drain(node, drain(9)).unwrap_or(node.clone()),
            None,
        ),
        ("another change", |node| drop(node.meta.labels.insert("a".to_owned(), "b".to_owned())), None),
    ];
    fn request(node: &mut Node, grace: i64) {
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
        let planned = sim.delayed[0].clone();
        assert_eq!(sim.reconciler.obsolete(&planned, sim.now()), None, "{what}");
        sim.edit_node("n", change);
        assert_eq!(sim.reconciler.obsolete(&planned, sim.now()), expected, "{what}");
    }
}

#[test]
fn a_pod_that_blocks_a_drain_is_explained_with_its_next_try() {
    let mut sim = Simulator::new();
    sim.start().put_node(node("n").ready(True));
    sim.put_pod(pod("p").on("n").owned_by("ReplicaSet", "web").running(True));
    sim.fail_actions("the node is being drained", 1);
    sim.edit_node("n", |node| *node = intent::request_drain(node, drain(0)).unwrap());
    let of_node = explain::node::explain(&sim.reconciler, &"n".parse().unwrap(), sim.now()).unwrap();
    let of_node = of_node
        .explanations
        .into_iter()
        .find(|explanation| explanation.action() == pb::ExplanationAction::Drain)
        .unwrap();
    let of_pod = explain::pod::explain(&sim.reconciler, &key("p"), sim.now()).unwrap();
    let of_pod = of_pod
        .explanations
        .into_iter()
        .find(|explanation| explanation.action() == pb::ExplanationAction::Drain)
        .unwrap();
    for explanation in [of_node, of_pod] {
        let earliest = explanation.earliest.map(|at| at.seconds - EPOCH);
        assert_eq!(
            (explanation.state(), earliest),
            (pb::ExplanationState::Waiting, Some(5)),
            "{}",
            explanation.reason
        );
    }
}

#[test]
fn s226_the_explanation_of_a_drained_node_says_what_the_drain_says() {
    let mut sim = Simulator::new();
    sim.start().put_node(node("n").ready(True));
    sim.put_pod(pod("p").on("n").owned_by("ReplicaSet", "web").running(True));
    sim.fail_actions("the node is being drained", 1);
    sim.edit_node("n", |node| *node = intent::request_drain(node, drain(0)).unwrap());
    let progress = sim.controllers().drains.progress(sim.reconciler.world(), "n", sim.now()).unwrap();
    assert_eq!(progress.message, "1 pod has still to go: 1 blocked");
    let explained = explain::node::explain(&sim.reconciler, &"n".parse().unwrap(), sim.now()).unwrap();
    assert_eq!(explained.summary, "n is Ready. It is being drained: 1 pod has still to go: 1 blocked.");
    let [of_pod] = &explained.pods[..] else { panic!("one pod: {:?}", explained.pods) };
    assert_eq!(of_pod.decision(), pb::EvictionDecision::Evict, "no taint evicts it, and the drain does");
    assert!(of_pod.reason.starts_with("The drain of the node tries again: "), "{}", of_pod.reason);
    let blocked = progress.pods[0].reason.to_lowercase();
    assert!(of_pod.reason.to_lowercase().contains(&blocked), "{} and {blocked}", of_pod.reason);
    assert!(of_pod.earliest_eviction.is_some());

    sim.edit_node("n", |node| *node = intent::uncordon(node, "", true).unwrap());
    let explained = explain::node::explain(&sim.reconciler, &"n".parse().unwrap(), sim.now()).unwrap();
    assert_eq!(explained.summary, "n is Ready.");
    assert_eq!(explained.pods[0].reason, "No taint evicts the pod.");
}
