//! Pods that make space for others: who goes, who gets the space, and when nobody goes.

use muster_proto::pod::PodPhase;
use muster_proto::priority_class::PreemptionPolicy;
use muster_proto::taint::{TaintEffect, Toleration};

use super::harness::Harness;
use super::roomy;
use crate::fixtures::{PodSample, pod};
use crate::plan::{Action, Failure};
use crate::scheduler::Settings;

/// A pod on a node that takes so much cpu.
fn held(name: &str, node: &str, cpu: &str, priority: i32) -> PodSample {
    pod(name).on(node).phase(PodPhase::Running).requests(&format!("cpu={cpu}")).priority(priority)
}

fn wants(name: &str, cpu: &str, priority: i32) -> PodSample {
    pod(name).requests(&format!("cpu={cpu}")).priority(priority)
}

/// One node of 4 cpus with two pods of 2 cpus, of the priorities 1 and 2.
fn full() -> Harness {
    let mut harness = Harness::new();
    harness.node(roomy("n"));
    harness.pod(held("one", "n", "2", 1));
    harness.pod(held("two", "n", "2", 2));
    harness
}

fn gone(victim: &str, by: &str, priority: i32, node: &str) -> String {
    format!(
        "{victim}: displaced by pod default/{by} of priority {priority}, which needs its space on node {node}"
    )
}

fn waits(name: &str, nodes: usize, victims: &str, node: &str) -> String {
    format!(
        "{name} ? 0/{nodes} nodes are available: {nodes} Insufficient cpu. It displaces {victims} on node {node}."
    )
}

#[test]
fn s216_the_least_important_pod_goes_and_the_pod_gets_its_space() {
    let mut harness = full();
    harness.pod(wants("p", "2", 10));
    assert_eq!(harness.run(), [gone("one", "p", 10, "n"), waits("p", 1, "one", "n")]);
    assert_eq!(harness.nominated("p"), "n");
    assert_eq!(
        harness.scheduling_status("p").to_string(),
        "The pod displaces one on node n, and is bound there when they have left."
    );
    assert_eq!(
        harness.events,
        [
            "FailedScheduling: 0/1 nodes are available: 1 Insufficient cpu. It displaces one on node n.",
            "Preempted: Preempted by pod default/p on node n",
        ]
    );
    assert_eq!(harness.run_until(299), [""; 0], "its victim is still terminating");
    harness.remove_pod("one");
    assert_eq!(harness.run(), ["p -> n"]);
    assert_eq!((harness.nominated("p").as_str(), harness.node_of("two").as_str()), ("", "n"));
}

#[test]
fn s216_no_more_pods_go_than_must() {
    let mut harness = Harness::new();
    harness.node(roomy("n"));
    for (name, cpu) in [("a", "1"), ("b", "2"), ("c", "1")] {
        harness.pod(held(name, "n", cpu, 0));
    }
    harness.pod(wants("p", "2", 1));
    // a and c fit beside the pod and are spared; of equals the first names are.
    assert_eq!(harness.run(), [gone("b", "p", 1, "n"), waits("p", 1, "b", "n")]);
}

#[test]
fn s216_a_displaced_pod_has_one_event_also_if_its_record_comes_before_the_outcome() {
    let mut harness = full();
    harness.pod(wants("p", "2", 10));
    let plan = harness.decide();
    let outcome = harness.outcome(&plan.actions[0]);
    harness.change_pod("one", |pod| pod.meta.deletion_timestamp = Some(crate::fixtures::epoch()));
    harness.settle(&plan.actions[0], outcome);
    harness.run();
    let about: Vec<&String> = harness.events.iter().filter(|event| !event.starts_with("Failed")).collect();
    assert_eq!(about, ["Preempted: Preempted by pod default/p on node n"]);
    let (key, uid) = super::harness::subject(&plan.actions[0]);
    assert!(harness.scheduler.victims.get(&key, uid).is_none(), "nothing of it is left");
}

#[test]
fn s217_nobody_goes_for_a_pod_that_would_not_fit_anyway() {
    for (sample, why) in [
        (wants("p", "5", 10), "1 Insufficient cpu"),
        (wants("p", "2", 1), "1 Insufficient cpu"),
        (wants("p", "2", -1), "1 Insufficient cpu"),
        (wants("p", "2", 10).selects("zone", "x"), "1 node(s) didn't match Pod's node affinity/selector"),
        (
            wants("p", "2", 10).with(|pod| pod.spec.preemption_policy = Some(PreemptionPolicy::Never)),
            "1 Insufficient cpu",
        ),
    ] {
        let mut harness = full();
        harness.pod(sample);
        assert_eq!(harness.run_until(1_000), [format!("0: p ? 0/1 nodes are available: {why}.")]);
    }
    // Mirror pods show what a node runs by itself, and finished pods take nothing.
    let mut harness = Harness::new();
    harness.node(roomy("n"));
    harness.pod(held("mirror", "n", "4", 0).mirror());
    harness.pod(held("done", "n", "4", 0).phase(PodPhase::Succeeded));
    harness.pod(wants("p", "2", 10));
    assert_eq!(harness.run(), ["p ? 0/1 nodes are available: 1 Insufficient cpu."]);
}

#[test]
fn s217_a_pod_displaces_others_as_soon_as_that_makes_enough_space() {
    let mut harness = Harness::new();
    harness.node(roomy("n"));
    harness.pod(held("equal", "n", "2", 10));
    harness.pod(held("low", "n", "2", 0));
    harness.pod(wants("p", "4", 10));
    assert_eq!(harness.run(), ["p ? 0/1 nodes are available: 1 Insufficient cpu."]);
    harness.millis = 20_000;
    harness.remove_pod("equal");
    assert_eq!(harness.run()[0], gone("low", "p", 10, "n"), "it still does not fit, but now it can");
}

#[test]
fn s217_pods_of_daemons_go_like_others() {
    let mut harness = Harness::new();
    harness.node(roomy("n"));
    harness.pod(held("daemon", "n", "4", 0).owned_by("DaemonSet", "ds"));
    harness.pod(wants("p", "2", 10));
    assert_eq!(harness.run()[0], gone("daemon", "p", 10, "n"));
}

#[test]
fn s218_the_space_is_kept_from_pods_of_the_same_or_lower_priority() {
    let mut harness = full();
    harness.pod(wants("p", "2", 10));
    harness.run();
    harness.pod(wants("same", "2", 10).requests("cpu=2 memory=1"));
    harness.pod(wants("lower", "1", 0));
    let done = harness.run();
    assert!(done.contains(&gone("two", "same", 10, "n")), "it takes the other one: {done:?}");
    harness.remove_pod("one");
    assert_eq!(harness.run(), ["p -> n"]);
    harness.remove_pod("two");
    assert_eq!(harness.run(), ["same -> n"]);
    assert_eq!(harness.node_of("lower"), "");
}

#[test]
fn s218_a_more_important_pod_takes_the_space_and_the_first_one_looks_elsewhere() {
    let mut harness = full();
    harness.pod(wants("p", "2", 10));
    harness.run();
    harness.pod(wants("chief", "2", 20));
    let done = harness.run();
    // one is leaving already, so nobody else has to: the space that p waits for goes to chief.
    assert!(
        done.iter().any(|what| what.starts_with("chief ? ") && what.contains("displaces one")),
        "{done:?}"
    );
    assert!(done.contains(&gone("two", "p", 10, "n")), "{done:?}");
    harness.remove_pod("one");
    assert_eq!(harness.run(), ["chief -> n"]);
    harness.remove_pod("two");
    assert_eq!(harness.run(), ["p -> n"]);
}

#[test]
fn s218_space_elsewhere_is_taken_and_the_kept_space_is_free_again() {
    let mut harness = full();
    harness.pod(wants("p", "2", 10));
    harness.run();
    harness.pod(wants("q", "2", 5));
    let waiting = harness.run();
    assert!(waiting.contains(&gone("two", "q", 5, "n")), "{waiting:?}");
    harness.millis = 20_000;
    harness.node(roomy("other").allocatable("cpu=2 pods=10"));
    assert_eq!(harness.run(), ["p -> other"]);
    harness.remove_pod("one");
    assert_eq!(harness.run(), ["q -> n"], "it need not wait for the pod that was displaced for it");
}

#[test]
fn s218_a_nomination_ends_when_its_node_cannot_take_the_pod_any_more() {
    let mut harness = full();
    harness.node(roomy("other"));
    harness.pod(held("big", "other", "4", 5));
    harness.pod(wants("p", "2", 10));
    assert_eq!(harness.run()[0], gone("one", "p", 10, "n"));
    harness.node(roomy("n").cordoned());
    harness.millis = 20_000;
    let done = harness.run_until(40);
    assert!(done.iter().any(|what| what.ends_with(&gone("big", "p", 10, "other"))), "{done:?}");
    assert_eq!(harness.nominated("p"), "other");
    harness.remove_node("other");
    harness.run_until(80);
    assert_eq!(harness.nominated("p"), "", "there is no node to displace anybody on");
    harness.node(roomy("n"));
    harness.remove_pod("one");
    assert_eq!(harness.run_until(120).last().map(|what| what.ends_with("p -> n")), Some(true));
}

#[test]
fn s218_several_pods_of_one_kind_displace_one_each() {
    let mut harness = full();
    harness.pod(wants("p", "2", 10));
    harness.pod(wants("q", "2", 10));
    harness.pod(wants("r", "2", 10));
    let done = harness.run();
    assert_eq!(done.iter().filter(|what| what.contains(": displaced by ")).count(), 2, "{done:?}");
    assert!(done.contains(&"r ? 0/1 nodes are available: 1 Insufficient cpu.".to_owned()), "{done:?}");
    harness.remove_pod("two");
    harness.remove_pod("one");
    assert_eq!(harness.run(), ["p -> n", "q -> n"]);
}

#[test]
fn s218_another_leader_continues_where_the_first_one_was() {
    let mut harness = full();
    harness.pod(wants("p", "2", 10));
    harness.run();
    harness.restart();
    assert_eq!(harness.run_until(200), [""; 0], "nobody is displaced again, and nothing is written");
    assert_eq!(
        harness.scheduling_status("p").to_string(),
        "The pod displaces one on node n, and is bound there when they have left."
    );
    harness.pod(
        wants("same", "2", 10)
            .requests("cpu=2 memory=1")
            .tolerates(Toleration::exists("x", TaintEffect::NoSchedule)),
    );
    harness.remove_pod("one");
    assert_eq!(harness.run()[0], "p -> n", "its space was kept");
}

#[test]
fn s218_a_deletion_that_failed_is_tried_again_while_it_is_needed() {
    let mut harness = full();
    harness.pod(wants("p", "2", 10));
    let plan = harness.decide();
    let (end, report) = (&plan.actions[0], &plan.actions[1]);
    assert!(matches!(end.action, Action::EndPod { .. }), "{plan:?}");
    harness.settle(end, Err(Failure::Unknown("no answer".to_owned())));
    let reported = harness.outcome(report);
    harness.settle(report, reported);
    assert_eq!(harness.run_until(5), [format!("1: {}", gone("one", "p", 10, "n"))]);

    let mut harness = full();
    harness.pod(wants("p", "2", 10));
    let plan = harness.decide();
    harness.settle(&plan.actions[0], Err(Failure::Conflict));
    harness.remove_pod("p");
    assert_eq!(harness.run_until(100), [""; 0], "the pod that needed the space is gone");
    let (key, uid) = super::harness::subject(&plan.actions[0]);
    assert!(!harness.scheduler.is_victim(&key, uid));
}

#[test]
fn s218_nobody_is_displaced_before_the_budgets_are_known() {
    let mut harness = full();
    harness.world.budgets.set_synced(false);
    harness.pod(wants("p", "2", 10));
    assert_eq!(harness.run(), ["p ? 0/1 nodes are available: 1 Insufficient cpu."]);
    harness.world.budgets.set_synced(true);
    assert_eq!(harness.run_until(3)[0], format!("1: {}", gone("one", "p", 10, "n")));
}

#[test]
fn a_pod_that_is_just_being_bound_is_displaced_when_its_record_shows_it() {
    let mut harness = Harness::with(Settings::default());
    harness.node(roomy("n"));
    harness.pod(wants("low", "4", 0));
    let plan = harness.decide();
    harness.pod(wants("p", "2", 10));
    let waiting = harness.decide();
    assert_eq!(waiting.actions.len(), 1, "it only says why it waits: {waiting:?}");
    let outcome = harness.outcome(&waiting.actions[0]);
    harness.settle(&waiting.actions[0], outcome);
    let outcome = harness.outcome(&plan.actions[0]);
    harness.settle(&plan.actions[0], outcome);
    assert_eq!(harness.run_until(3)[0], format!("1: {}", gone("low", "p", 10, "n")));
}
