use muster_proto::condition::ConditionStatus::False;
use muster_proto::pod::PodPhase;
use muster_proto::taint::{TaintEffect, Toleration};

use self::harness::{Harness, words};
use super::*;
use crate::fixtures::{NodeSample, at, node, pod, wish};
use crate::plan::{Failure, Plan};

mod binding;
mod harness;
mod invariants;
mod preemption;

fn roomy(name: &str) -> NodeSample {
    node(name).allocatable("cpu=4 memory=8Gi pods=10")
}

fn actions(plan: &Plan) -> Vec<String> {
    plan.actions.iter().map(words).collect()
}

#[test]
fn s165_remaining_cpu_is_allocated_to_the_last_thousandth() {
    let mut harness = Harness::new();
    harness.node(roomy("n"));
    harness.pod(pod("held").on("n").requests("cpu=3"));
    harness.pod(pod("p").requests("cpu=1001m"));
    assert_eq!(harness.run(), ["p ? 0/1 nodes are available: 1 Insufficient cpu."]);
    harness.pod(pod("q").requests("cpu=1"));
    assert_eq!(harness.run(), ["q -> n"]);
}

#[test]
fn s166_finished_pods_do_not_count_and_terminating_ones_do() {
    let mut harness = Harness::new();
    harness.node(roomy("n").allocatable("pods=2"));
    harness.pod(pod("a").on("n"));
    harness.pod(pod("b").on("n").deleting(30));
    harness.pod(pod("c").on("n").phase(PodPhase::Succeeded));
    harness.pod(pod("d").on("n").phase(PodPhase::Failed));
    harness.pod(pod("p"));
    assert_eq!(harness.run(), ["p ? 0/1 nodes are available: 1 Too many pods."]);
    harness.millis = 1_000;
    harness.change_pod("a", |pod| pod.status.phase = PodPhase::Succeeded);
    assert_eq!(harness.run(), ["p -> n"]);
}

#[test]
fn s167_no_pod_is_bound_to_a_node_without_reported_capacity() {
    let mut harness = Harness::new();
    harness.node(node("n"));
    harness.pod(pod("p"));
    assert_eq!(harness.run(), ["p ? 0/1 nodes are available: 1 Too many pods."]);
}

#[test]
fn s169_tolerating_a_taint_for_zero_seconds_is_enough_to_be_bound() {
    let mut harness = Harness::new();
    harness.node(roomy("n").taint("k=v:NoExecute"));
    harness.node(roomy("o").taint("k=v:NoSchedule"));
    harness.pod(pod("p").tolerates(Toleration::exists("k", TaintEffect::NoExecute).for_seconds(0)));
    harness.pod(pod("q"));
    assert_eq!(harness.run(), ["p -> n", "q ? 0/2 nodes are available: 2 node(s) had untolerated taint(s)."]);
}

#[test]
fn s170_a_pod_waits_until_the_node_is_uncordoned() {
    let mut harness = Harness::new();
    harness.node(roomy("n").cordoned());
    harness.pod(pod("p"));
    let daemon = Toleration::exists("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule);
    harness.pod(pod("q").tolerates(daemon));
    assert_eq!(harness.run(), ["q -> n", "p ? 0/1 nodes are available: 1 node(s) were unschedulable."]);
    harness.millis = 5_000;
    harness.node(roomy("n"));
    assert_eq!(harness.run(), ["p -> n"]);
}

#[test]
fn s171_selectors_and_affinity_restrict_the_nodes() {
    let mut harness = Harness::new();
    harness.node(roomy("a").label("zone", "x").label("cores", "6"));
    harness.node(roomy("b").label("zone", "x").label("cores", "many"));
    harness.node(roomy("c").label("cores", "9"));
    harness.pod(pod("p").selects("zone", "x").requires(&[&[wish("cores Gt 5")]]));
    harness.pod(pod("q").requires(&[&[wish("zone NotIn x")]]));
    harness.pod(pod("r").requires(&[&[]]));
    assert_eq!(
        harness.run(),
        [
            "p -> a",
            "q -> c",
            "r ? 0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
        ]
    );
}

#[test]
fn s172_the_reasons_are_counted_and_a_new_node_is_used_at_once() {
    let mut harness = Harness::new();
    harness.node(roomy("a").cordoned());
    harness.node(roomy("b").allocatable("cpu=1 pods=1"));
    harness.node(roomy("c").allocatable("cpu=1 pods=1"));
    harness.pod(pod("p").requests("cpu=2"));
    let why = "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) were unschedulable.";
    assert_eq!(harness.run_until(100), [format!("0: p ? {why}")], "written once");
    let record = harness.record("p");
    let condition = record.condition("PodScheduled").unwrap();
    assert_eq!((condition.status, condition.last_transition_time), (False, Some(at(0).wall)));
    assert_eq!(harness.events, [format!("FailedScheduling: {why}")]);
    assert_eq!(harness.scheduling_status("p").to_string(), why);
    assert_eq!(
        (harness.scheduling_status("p").again_at(), harness.scheduler.pending()),
        (Some(at(300).mono), 1)
    );

    harness.millis = 100_500;
    harness.node(roomy("d"));
    assert_eq!(harness.run(), ["p -> d"]);
    assert_eq!(
        (harness.events[1].as_str(), harness.scheduler.pending()),
        ("Scheduled: Successfully assigned default/p to d", 0)
    );
}

#[test]
fn s172_a_pod_backs_off_for_a_second_after_a_failed_attempt() {
    let mut harness = Harness::new();
    harness.pod(pod("p"));
    assert_eq!(harness.run(), ["p ? 0/0 nodes are available."]);
    harness.millis = 100;
    harness.node(roomy("n"));
    assert_eq!(harness.run_until(2), ["1: p -> n"]);
}

#[test]
fn s173_taints_count_and_the_ready_condition_does_not() {
    let mut harness = Harness::new();
    harness.node(roomy("n").ready(False).taint("node.kubernetes.io/not-ready:NoSchedule"));
    harness.pod(pod("p"));
    assert_eq!(harness.run(), ["p ? 0/1 nodes are available: 1 node(s) had untolerated taint(s)."]);
    harness.millis = 3_000;
    harness.node(roomy("n").ready(False));
    assert_eq!(harness.run(), ["p -> n"]);
    harness.node(roomy("n").ready(False).taint("node.kubernetes.io/not-ready:NoSchedule"));
    harness.pod(pod("q"));
    assert_eq!(harness.run(), ["q ? 0/1 nodes are available: 1 node(s) had untolerated taint(s)."]);
    assert_eq!(harness.node_of("p"), "n", "a running pod stays");
}

#[test]
fn pods_are_ordered_by_priority_then_waiting_time_then_name() {
    let mut harness = Harness::new();
    harness.pod(pod("d").priority(5));
    harness.pod(pod("c"));
    harness.millis = 10;
    harness.pod(pod("b").priority(-1).requests("cpu=1"));
    harness.pod(pod("z").priority(5));
    harness.pod(pod("a").requests("cpu=1"));
    harness.node(node("n").allocatable("cpu=9 pods=9"));
    assert_eq!(actions(&harness.decide()), ["d -> n", "z -> n", "c -> n", "a -> n", "b -> n"]);
}

#[test]
fn pods_are_spread_over_equal_nodes() {
    let mut harness = Harness::new();
    for name in ["a", "b", "c"] {
        harness.node(roomy(name));
    }
    for name in ["p1", "p2", "p3", "p4"] {
        harness.pod(pod(name).requests("cpu=1 memory=1Gi"));
    }
    assert_eq!(harness.run(), ["p1 -> a", "p2 -> b", "p3 -> c", "p4 -> a"]);
}

#[test]
fn gated_terminating_finished_and_bound_pods_need_no_node() {
    let mut harness = Harness::new();
    harness.node(roomy("n"));
    harness.pod(pod("gated").with(|pod| pod.spec.scheduling_gates = vec!["quota".to_owned()]));
    harness.pod(pod("ending").deleting(30));
    harness.pod(pod("failed").phase(PodPhase::Failed));
    harness.pod(pod("bound").on("other"));
    assert_eq!((harness.run().len(), harness.scheduler.pending()), (0, 0));
    for (name, expected) in [
        ("gated", "The pod is not scheduled before its scheduling gates are removed: quota."),
        ("ending", "The pod is terminating or finished, so it is not scheduled."),
        ("failed", "The pod is terminating or finished, so it is not scheduled."),
        ("bound", "The pod is bound to node other."),
    ] {
        assert_eq!(harness.scheduling_status(name).to_string(), expected);
    }
    harness.change_pod("gated", |pod| pod.spec.scheduling_gates.clear());
    assert_eq!(harness.run(), ["gated -> n"]);
}

#[test]
fn a_pending_pod_with_new_tolerations_is_tried_at_once() {
    let mut harness = Harness::new();
    harness.node(roomy("n").taint("k:NoSchedule"));
    harness.pod(pod("p"));
    assert_eq!(harness.run().len(), 1);
    harness
        .change_pod("p", |pod| pod.spec.tolerations.push(Toleration::exists("k", TaintEffect::NoSchedule)));
    assert_eq!(harness.run(), ["p -> n"], "its new requirements were never tried");
}

#[test]
fn an_unschedulable_pod_is_retried_after_five_minutes_without_a_change() {
    let mut harness = Harness::new();
    harness.node(roomy("n"));
    harness.pod(pod("p").requests("cpu=9"));
    harness.run();
    for tried in [300, 600] {
        assert_eq!(harness.wake_at, Some(at(tried).mono));
        harness.millis = tried * 1000;
        assert_eq!(harness.run(), Vec::<String>::new(), "the record has the reason already");
    }
}

#[test]
fn back_off_doubles_up_to_ten_seconds_while_changes_do_not_help() {
    let mut harness = Harness::new();
    harness.node(roomy("n").cordoned());
    harness.pod(pod("p").requests("cpu=9"));
    let mut waits = Vec::new();
    for i in 0..6 {
        harness.run();
        let tried = harness.now().mono;
        // A new node that does not fit either: the pod has to be tried again, but only after its back-off.
        harness.node(roomy(&format!("n{i}")).cordoned());
        harness.run();
        let again_at = harness.scheduling_status("p").again_at().unwrap();
        waits.push((again_at - tried).as_secs());
        harness.millis += (again_at - tried).as_millis() as u64;
    }
    assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
}

#[test]
fn a_change_wakes_only_the_pods_that_it_helps() {
    let mut harness = Harness::new();
    harness.node(roomy("n").label("zone", "a"));
    harness.node(roomy("o").cordoned());
    harness.pod(pod("held").on("n").requests("cpu=4"));
    harness.pod(pod("small").requests("cpu=1"));
    harness.pod(pod("large").requests("cpu=8"));
    harness.pod(pod("picky").selects("zone", "b"));
    harness.run();
    let woken = |harness: &Harness| -> String {
        let soon = |name: &&str| harness.scheduling_status(name).again_at() != Some(at(300).mono);
        ["small", "large", "picky"].into_iter().filter(soon).collect::<Vec<_>>().join(" ")
    };
    for (change, expected) in [
        (Box::new(|_: &mut Harness| {}) as Box<dyn Fn(&mut Harness)>, ""),
        (Box::new(|harness| harness.node(roomy("n").label("zone", "a").ready(False))), ""),
        (Box::new(|harness| harness.node(roomy("n").label("zone", "a").cordoned())), ""),
        (Box::new(|harness| harness.node(roomy("n").label("zone", "b").allocatable("pods=5"))), "picky"),
        (
            Box::new(|harness| harness.node(roomy("n").label("zone", "a").allocatable("cpu=5 pods=5"))),
            "small",
        ),
        (Box::new(|harness| harness.node(roomy("n").allocatable("cpu=12 pods=5"))), "small large"),
        // No pod fits yet, but the reasons in their records are outdated.
        (Box::new(|harness| harness.node(roomy("o"))), "small large picky"),
        (Box::new(|harness| harness.remove_pod("held")), "small"),
        (Box::new(|harness| harness.change_pod("held", |pod| pod.status.phase = PodPhase::Failed)), "small"),
        (Box::new(|harness| harness.change_pod("held", |pod| pod.status.phase = PodPhase::Running)), ""),
        (Box::new(|harness| harness.remove_node("o")), ""),
        (Box::new(|harness| harness.node(roomy("p").taint("k:NoSchedule"))), "small large picky"),
    ] {
        let mut harness = harness.clone();
        change(&mut harness);
        assert_eq!(woken(&harness), expected);
    }
}

#[test]
fn pods_with_equal_requirements_are_tried_once() {
    // One attempt per decision: if every pod were tried by itself, most would have no reason yet.
    let mut harness = Harness::with(Settings { max_pods: 1, ..Settings::default() });
    harness.node(roomy("n"));
    for i in 0..2_000 {
        harness.pod(pod(&format!("p{i}")).requests("cpu=9"));
    }
    let plan = harness.decide();
    assert_eq!(actions(&plan), ["p0 ? 0/1 nodes are available: 1 Insufficient cpu."]);
    assert_eq!(plan.wake_at, Some(harness.now().mono), "the other records are to be written");
    assert_eq!(
        harness.scheduling_status("p1999").to_string(),
        "0/1 nodes are available: 1 Insufficient cpu."
    );

    // A pod that comes later joins the class and gets the same reason.
    harness.millis = 30_000;
    harness.pod(pod("late").requests("cpu=9"));
    assert_eq!(harness.scheduling_status("late").again_at(), Some(at(300).mono));
}

#[test]
fn one_decision_is_limited_in_pods_and_in_examined_nodes() {
    let mut harness = Harness::with(Settings { max_pods: 3, ..Settings::default() });
    harness.node(roomy("n"));
    for i in 0..5 {
        harness.pod(pod(&format!("p{i}")));
    }
    let plan = harness.decide();
    assert_eq!((plan.actions.len(), plan.wake_at), (3, Some(harness.now().mono)));
    let plan = harness.decide();
    assert_eq!((plan.actions.len(), plan.wake_at), (2, None));

    let mut harness = Harness::with(Settings { max_examined_nodes: 4, ..Settings::default() });
    for name in ["a", "b"] {
        harness.node(roomy(name));
    }
    for i in 0..5 {
        harness.pod(pod(&format!("p{i}")).requests(&format!("cpu={i}m")));
    }
    assert_eq!(harness.decide().actions.len(), 2, "two nodes for each, since all requirements differ");
}

#[test]
fn a_pod_that_names_its_nodes_is_compared_with_those_only() {
    let mut harness = Harness::with(Settings { max_examined_nodes: 3, ..Settings::default() });
    for i in 0..100 {
        harness.node(roomy(&format!("n{i}")));
    }
    for i in [3, 7, 9] {
        let name = wish(&format!("metadata.name In n{i}"));
        harness.pod(pod(&format!("p{i}")).requires(&[&[name]]));
    }
    assert_eq!(actions(&harness.decide()), ["p3 -> n3", "p7 -> n7", "p9 -> n9"]);
    harness.node(roomy("n4").cordoned());
    harness.node(roomy("n5").cordoned());
    harness.pod(pod("p4").requires(&[&[wish("metadata.name In n4")]]));
    let why = "0/100 nodes are available: 98 node(s) didn't match Pod's node affinity/selector, \
               2 node(s) were unschedulable.";
    assert_eq!(harness.run(), [format!("p4 ? {why}")], "the reasons cover all nodes");
}
