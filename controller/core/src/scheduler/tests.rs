use muster_proto::condition::ConditionStatus::False;
use muster_proto::pod::PodPhase;
use muster_proto::taint::{TaintEffect, Toleration};

use self::harness::{Bench, words};
use super::*;
use crate::fixtures::{NodeSample, at, node, pod, wish};
use crate::plan::{Failure, Plan};

mod binding;
mod harness;
mod invariants;

fn roomy(name: &str) -> NodeSample {
    node(name).allocatable("cpu=4 memory=8Gi pods=10")
}

fn said(plan: &Plan) -> Vec<String> {
    plan.actions.iter().map(words).collect()
}

#[test]
fn s165_cpu_that_is_left_is_given_to_the_last_thousandth() {
    let mut bench = Bench::new();
    bench.node(roomy("n"));
    bench.pod(pod("held").on("n").requests("cpu=3"));
    bench.pod(pod("p").requests("cpu=1001m"));
    assert_eq!(bench.run(), ["p ? 0/1 nodes are available: 1 Insufficient cpu."]);
    bench.pod(pod("q").requests("cpu=1"));
    assert_eq!(bench.run(), ["q -> n"]);
}

#[test]
fn s166_finished_pods_do_not_count_and_ending_ones_do() {
    let mut bench = Bench::new();
    bench.node(roomy("n").allocatable("pods=2"));
    bench.pod(pod("a").on("n"));
    bench.pod(pod("b").on("n").deleting(30));
    bench.pod(pod("c").on("n").phase(PodPhase::Succeeded));
    bench.pod(pod("d").on("n").phase(PodPhase::Failed));
    bench.pod(pod("p"));
    assert_eq!(bench.run(), ["p ? 0/1 nodes are available: 1 Too many pods."]);
    bench.millis = 1_000;
    bench.change_pod("a", |pod| pod.status.phase = PodPhase::Succeeded);
    assert_eq!(bench.run(), ["p -> n"]);
}

#[test]
fn s167_nothing_goes_to_a_node_that_reported_nothing() {
    let mut bench = Bench::new();
    bench.node(node("n"));
    bench.pod(pod("p"));
    assert_eq!(bench.run(), ["p ? 0/1 nodes are available: 1 Too many pods."]);
}

#[test]
fn s169_tolerating_a_taint_for_no_time_is_enough_to_come() {
    let mut bench = Bench::new();
    bench.node(roomy("n").taint("k=v:NoExecute"));
    bench.node(roomy("o").taint("k=v:NoSchedule"));
    bench.pod(pod("p").tolerates(Toleration::exists("k", TaintEffect::NoExecute).for_seconds(0)));
    bench.pod(pod("q"));
    assert_eq!(bench.run(), ["p -> n", "q ? 0/2 nodes are available: 2 node(s) had untolerated taint(s)."]);
}

#[test]
fn s170_a_pod_waits_for_the_end_of_a_cordon() {
    let mut bench = Bench::new();
    bench.node(roomy("n").cordoned());
    bench.pod(pod("p"));
    let daemon = Toleration::exists("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule);
    bench.pod(pod("q").tolerates(daemon));
    assert_eq!(bench.run(), ["q -> n", "p ? 0/1 nodes are available: 1 node(s) were unschedulable."]);
    bench.millis = 5_000;
    bench.node(roomy("n"));
    assert_eq!(bench.run(), ["p -> n"]);
}

#[test]
fn s171_labels_decide_where_a_pod_may_go() {
    let mut bench = Bench::new();
    bench.node(roomy("a").label("zone", "x").label("cores", "6"));
    bench.node(roomy("b").label("zone", "x").label("cores", "many"));
    bench.node(roomy("c").label("cores", "9"));
    bench.pod(pod("p").selects("zone", "x").requires(&[&[wish("cores Gt 5")]]));
    bench.pod(pod("q").requires(&[&[wish("zone NotIn x")]]));
    bench.pod(pod("r").requires(&[&[]]));
    assert_eq!(
        bench.run(),
        [
            "p -> a",
            "q -> c",
            "r ? 0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
        ]
    );
}

#[test]
fn s172_why_no_node_will_do_is_counted_and_a_new_node_is_used_at_once() {
    let mut bench = Bench::new();
    bench.node(roomy("a").cordoned());
    bench.node(roomy("b").allocatable("cpu=1 pods=1"));
    bench.node(roomy("c").allocatable("cpu=1 pods=1"));
    bench.pod(pod("p").requests("cpu=2"));
    let why = "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) were unschedulable.";
    assert_eq!(bench.run_until(100), [format!("0: p ? {why}")], "said once");
    let record = bench.record("p");
    let condition = record.condition("PodScheduled").unwrap();
    assert_eq!((condition.status, condition.last_transition_time), (False, Some(at(0).wall)));
    assert_eq!(bench.events, [format!("FailedScheduling: {why}")]);
    assert_eq!(bench.standing("p").to_string(), why);
    assert_eq!((bench.standing("p").again_at(), bench.placement.pending()), (Some(at(300).mono), 1));

    bench.millis = 100_500;
    bench.node(roomy("d"));
    assert_eq!(bench.run(), ["p -> d"]);
    assert_eq!(
        (bench.events[1].as_str(), bench.placement.pending()),
        ("Scheduled: Successfully assigned default/p to d", 0)
    );
}

#[test]
fn s172_right_after_a_failure_a_pod_rests_a_second_first() {
    let mut bench = Bench::new();
    bench.pod(pod("p"));
    assert_eq!(bench.run(), ["p ? 0/0 nodes are available."]);
    bench.millis = 100;
    bench.node(roomy("n"));
    assert_eq!(bench.run_until(2), ["1: p -> n"]);
}

#[test]
fn s173_only_taints_count_and_not_what_a_node_says_of_its_health() {
    let mut bench = Bench::new();
    bench.node(roomy("n").ready(False).taint("node.kubernetes.io/not-ready:NoSchedule"));
    bench.pod(pod("p"));
    assert_eq!(bench.run(), ["p ? 0/1 nodes are available: 1 node(s) had untolerated taint(s)."]);
    bench.millis = 3_000;
    bench.node(roomy("n").ready(False));
    assert_eq!(bench.run(), ["p -> n"]);
    bench.node(roomy("n").ready(False).taint("node.kubernetes.io/not-ready:NoSchedule"));
    bench.pod(pod("q"));
    assert_eq!(bench.run(), ["q ? 0/1 nodes are available: 1 node(s) had untolerated taint(s)."]);
    assert_eq!(bench.node_of("p"), "n", "who is there stays");
}

#[test]
fn higher_priority_goes_first_then_the_longer_wait_then_the_name() {
    let mut bench = Bench::new();
    bench.pod(pod("d").priority(5));
    bench.pod(pod("c"));
    bench.millis = 10;
    bench.pod(pod("b").priority(-1).requests("cpu=1"));
    bench.pod(pod("z").priority(5));
    bench.pod(pod("a").requests("cpu=1"));
    bench.node(node("n").allocatable("cpu=9 pods=9"));
    assert_eq!(said(&bench.decide()), ["d -> n", "z -> n", "c -> n", "a -> n", "b -> n"]);
}

#[test]
fn pods_are_spread_over_equal_nodes() {
    let mut bench = Bench::new();
    for name in ["a", "b", "c"] {
        bench.node(roomy(name));
    }
    for name in ["p1", "p2", "p3", "p4"] {
        bench.pod(pod(name).requests("cpu=1 memory=1Gi"));
    }
    assert_eq!(bench.run(), ["p1 -> a", "p2 -> b", "p3 -> c", "p4 -> a"]);
}

#[test]
fn who_is_gated_ending_finished_or_bound_seeks_no_node() {
    let mut bench = Bench::new();
    bench.node(roomy("n"));
    bench.pod(pod("gated").with(|pod| pod.spec.scheduling_gates = vec!["quota".to_owned()]));
    bench.pod(pod("ending").deleting(30));
    bench.pod(pod("failed").phase(PodPhase::Failed));
    bench.pod(pod("bound").on("other"));
    assert_eq!((bench.run().len(), bench.placement.pending()), (0, 0));
    for (name, expected) in [
        ("gated", "The pod is not scheduled before its scheduling gates are removed: quota."),
        ("ending", "The pod is terminating or finished, so it is not scheduled."),
        ("failed", "The pod is terminating or finished, so it is not scheduled."),
        ("bound", "The pod is bound to node other."),
    ] {
        assert_eq!(bench.standing(name).to_string(), expected);
    }
    bench.change_pod("gated", |pod| pod.spec.scheduling_gates.clear());
    assert_eq!(bench.run(), ["gated -> n"]);
}

#[test]
fn a_pod_that_waits_can_come_to_tolerate_more() {
    let mut bench = Bench::new();
    bench.node(roomy("n").taint("k:NoSchedule"));
    bench.pod(pod("p"));
    assert_eq!(bench.run().len(), 1);
    bench.change_pod("p", |pod| pod.spec.tolerations.push(Toleration::exists("k", TaintEffect::NoSchedule)));
    assert_eq!(bench.run(), ["p -> n"], "it asks for something else now, and that was never tried");
}

#[test]
fn what_no_change_helps_is_tried_again_after_five_minutes() {
    let mut bench = Bench::new();
    bench.node(roomy("n"));
    bench.pod(pod("p").requests("cpu=9"));
    bench.run();
    for tried in [300, 600] {
        assert_eq!(bench.wake_at, Some(at(tried).mono));
        bench.millis = tried * 1000;
        assert_eq!(bench.run(), Vec::<String>::new(), "it has been told already");
    }
}

#[test]
fn rests_double_up_to_ten_seconds_while_changes_do_not_help() {
    let mut bench = Bench::new();
    bench.node(roomy("n").cordoned());
    bench.pod(pod("p").requests("cpu=9"));
    let mut rests = Vec::new();
    for i in 0..6 {
        bench.run();
        let tried = bench.now().mono;
        // Another node that will not do: somebody has to look, but not yet.
        bench.node(roomy(&format!("n{i}")).cordoned());
        bench.run();
        let again_at = bench.standing("p").again_at().unwrap();
        rests.push((again_at - tried).as_secs());
        bench.millis += (again_at - tried).as_millis() as u64;
    }
    assert_eq!(rests, [1, 2, 4, 8, 10, 10]);
}

#[test]
fn only_those_are_woken_whom_a_change_brings_closer() {
    let mut bench = Bench::new();
    bench.node(roomy("n").label("zone", "a"));
    bench.node(roomy("o").cordoned());
    bench.pod(pod("held").on("n").requests("cpu=4"));
    bench.pod(pod("small").requests("cpu=1"));
    bench.pod(pod("large").requests("cpu=8"));
    bench.pod(pod("picky").selects("zone", "b"));
    bench.run();
    let woken = |bench: &Bench| -> String {
        let soon = |name: &&str| bench.standing(name).again_at() != Some(at(300).mono);
        ["small", "large", "picky"].into_iter().filter(soon).collect::<Vec<_>>().join(" ")
    };
    for (change, expected) in [
        (Box::new(|_: &mut Bench| {}) as Box<dyn Fn(&mut Bench)>, ""),
        (Box::new(|bench| bench.node(roomy("n").label("zone", "a").ready(False))), ""),
        (Box::new(|bench| bench.node(roomy("n").label("zone", "a").cordoned())), ""),
        (Box::new(|bench| bench.node(roomy("n").label("zone", "b").allocatable("pods=5"))), "picky"),
        (Box::new(|bench| bench.node(roomy("n").label("zone", "a").allocatable("cpu=5 pods=5"))), "small"),
        (Box::new(|bench| bench.node(roomy("n").allocatable("cpu=12 pods=5"))), "small large"),
        // Not yet for them, but what they are told is not so any more.
        (Box::new(|bench| bench.node(roomy("o"))), "small large picky"),
        (Box::new(|bench| bench.remove_pod("held")), "small"),
        (Box::new(|bench| bench.change_pod("held", |pod| pod.status.phase = PodPhase::Failed)), "small"),
        (Box::new(|bench| bench.change_pod("held", |pod| pod.status.phase = PodPhase::Running)), ""),
        (Box::new(|bench| bench.remove_node("o")), ""),
        (Box::new(|bench| bench.node(roomy("p").taint("k:NoSchedule"))), "small large picky"),
    ] {
        let mut bench = bench.clone();
        change(&mut bench);
        assert_eq!(woken(&bench), expected);
    }
}

#[test]
fn a_crowd_that_asks_the_same_is_looked_at_once() {
    // One try for each decision: were every pod tried by itself, most would not know yet.
    let mut bench = Bench::with(Settings { tries: 1, ..Settings::default() });
    bench.node(roomy("n"));
    for i in 0..2_000 {
        bench.pod(pod(&format!("p{i}")).requests("cpu=9"));
    }
    let plan = bench.decide();
    assert_eq!(said(&plan), ["p0 ? 0/1 nodes are available: 1 Insufficient cpu."]);
    assert_eq!(plan.wake_at, Some(bench.now().mono), "the others are to be told");
    assert_eq!(bench.standing("p1999").to_string(), "0/1 nodes are available: 1 Insufficient cpu.");

    // A late comer joins those who wait and is told what they were.
    bench.millis = 30_000;
    bench.pod(pod("late").requests("cpu=9"));
    assert_eq!(bench.standing("late").again_at(), Some(at(300).mono));
}

#[test]
fn one_decision_does_only_so_much() {
    let mut bench = Bench::with(Settings { tries: 3, ..Settings::default() });
    bench.node(roomy("n"));
    for i in 0..5 {
        bench.pod(pod(&format!("p{i}")));
    }
    let plan = bench.decide();
    assert_eq!((plan.actions.len(), plan.wake_at), (3, Some(bench.now().mono)));
    let plan = bench.decide();
    assert_eq!((plan.actions.len(), plan.wake_at), (2, None));

    let mut bench = Bench::with(Settings { looks: 4, ..Settings::default() });
    for name in ["a", "b"] {
        bench.node(roomy(name));
    }
    for i in 0..5 {
        bench.pod(pod(&format!("p{i}")).requests(&format!("cpu={i}m")));
    }
    assert_eq!(bench.decide().actions.len(), 2, "two nodes for each, since no two ask the same");
}

#[test]
fn a_daemon_is_not_held_against_the_nodes_it_does_not_name() {
    let mut bench = Bench::with(Settings { looks: 3, ..Settings::default() });
    for i in 0..100 {
        bench.node(roomy(&format!("n{i}")));
    }
    for i in [3, 7, 9] {
        let name = wish(&format!("metadata.name In n{i}"));
        bench.pod(pod(&format!("p{i}")).requires(&[&[name]]));
    }
    assert_eq!(said(&bench.decide()), ["p3 -> n3", "p7 -> n7", "p9 -> n9"]);
    bench.node(roomy("n4").cordoned());
    bench.node(roomy("n5").cordoned());
    bench.pod(pod("p4").requires(&[&[wish("metadata.name In n4")]]));
    let why = "0/100 nodes are available: 98 node(s) didn't match Pod's node affinity/selector, \
               2 node(s) were unschedulable.";
    assert_eq!(bench.run(), [format!("p4 ? {why}")], "why not is said of all");
}
