//! Evictions by NoExecute taints: when the toleration time of a pod ends, and when the eviction waits.

use std::time::Duration;

use muster_proto::condition::ConditionStatus::True;
use muster_proto::taint::TaintEffect::NoExecute;
use muster_proto::taint::{Toleration, default_tolerations};

use crate::fixtures::simulator::Simulator;
use crate::fixtures::{PodSample, node, pod};

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// A pod with the tolerations that the store adds by default.
fn default_pod(name: &str) -> PodSample {
    pod(name).on("a").running(True).with(|pod| default_tolerations(&mut pod.spec.tolerations, 300, 300))
}

fn tolerating(name: &str, key: &str, seconds: Option<i64>) -> PodSample {
    let toleration = Toleration::exists(key, NoExecute);
    pod(name).on("a").tolerates(seconds.map_or(toleration.clone(), |seconds| toleration.for_seconds(seconds)))
}

/// Two ready nodes and an active controller.
fn two_ready_nodes() -> Simulator {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.add_ready_node("b", "");
    sim
}

fn taint(sim: &mut Simulator, text: &str) {
    sim.edit_node("a", |node| node.spec.taints.push(text.parse().unwrap()));
}

fn untaint(sim: &mut Simulator, key: &str) {
    sim.edit_node("a", |node| node.spec.taints.retain(|taint| taint.key != key));
}

#[test]
fn s109_a_pod_is_evicted_from_a_silent_node_when_its_toleration_time_is_over() {
    let mut sim = two_ready_nodes();
    sim.put_pod(default_pod("p").with(|pod| pod.spec.termination_grace_period_seconds = Some(45)));
    sim.stop_agent("a");
    sim.run_until(100.0);
    let (tainted, _) = sim.tainted_noexecute()[0];
    sim.run_until(tainted + 299.9);
    assert!(!sim.is_deleting("p"));
    sim.run_until(tainted + 300.0);
    assert!(sim.is_deleting("p"));
    let target = sim.pod("p").condition("DisruptionTarget").unwrap();
    assert_eq!((target.status, target.reason.as_str()), (True, "DeletionByTaintManager"));
    assert_eq!(
        sim.pod("p").meta.deletion_grace_period_seconds,
        Some(45),
        "the termination grace period of the pod"
    );
    assert_eq!(sim.times("event Marking for deletion p").len(), 1);
}

#[test]
fn s110_each_pod_is_evicted_after_its_toleration_seconds() {
    let mut sim = two_ready_nodes();
    for (name, seconds) in [("zero", Some(0)), ("negative", Some(-5)), ("some", Some(200)), ("forever", None)]
    {
        sim.put_pod(tolerating(name, UNREACHABLE, seconds));
    }
    sim.stop_agent("a");
    sim.run_until(1000.0);
    let (tainted, _) = sim.tainted_noexecute()[0];
    let mut evicted = sim.when("evict");
    evicted.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let expected = [(tainted, "negative"), (tainted, "zero"), (tainted + 200.0, "some")];
    assert_eq!(evicted, expected.map(|(at, name)| (at, name.to_owned())));
}

#[test]
fn s111_a_taint_of_another_client_evicts_at_once() {
    let mut sim = two_ready_nodes();
    for name in ["p", "q"] {
        sim.put_pod(default_pod(name));
    }
    sim.put_pod(tolerating("r", "gpu", None));
    sim.run_until(5.0);
    taint(&mut sim, "gpu=broken:NoExecute");
    assert_eq!(sim.when("evict"), [(5.0, "p".to_owned()), (5.0, "q".to_owned())]);
}

#[test]
fn s112_one_taint_that_is_not_tolerated_evicts() {
    let mut sim = two_ready_nodes();
    sim.put_pod(tolerating("p", "one", Some(100)));
    taint(&mut sim, "one:NoExecute");
    sim.run_until(10.0);
    assert!(!sim.is_deleting("p"));
    taint(&mut sim, "two:NoExecute");
    assert!(sim.is_deleting("p"));
}

#[test]
fn s113_the_shortest_toleration_time_counts() {
    let mut sim = two_ready_nodes();
    sim.put_pod(
        tolerating("p", "one", Some(1)).tolerates(Toleration::exists("two", NoExecute).for_seconds(100)),
    );
    sim.edit_node("a", |node| {
        for text in ["one:NoExecute", "two:NoExecute"] {
            node.spec.taints.push(text.parse().unwrap());
        }
    });
    sim.run_until(2.0);
    assert_eq!(sim.times("evict p"), [1.0]);
}

#[test]
fn s114_removing_a_taint_cancels_its_eviction() {
    let mut sim = two_ready_nodes();
    sim.put_pod(tolerating("p", "one", None).tolerates(Toleration::exists("two", NoExecute).for_seconds(60)));
    taint(&mut sim, "one:NoExecute");
    taint(&mut sim, "two:NoExecute");
    sim.run_until(30.0);
    untaint(&mut sim, "two");
    sim.run_until(200.0);
    assert!(!sim.is_deleting("p"));
    assert_eq!(sim.times("event Cancelling deletion of p"), [30.0]);
}

#[test]
fn s115_a_node_that_recovers_in_time_keeps_its_pods() {
    let mut sim = two_ready_nodes();
    sim.put_pod(default_pod("p"));
    sim.stop_agent("a");
    sim.run_until(100.0);
    let (tainted, _) = sim.tainted_noexecute()[0];
    sim.run_until(tainted + 299.0).start_agent("a");
    sim.run_until(tainted + 1000.0);
    assert!(!sim.is_deleting("p"));
}

#[test]
fn s116_a_deadline_is_never_postponed() {
    let mut sim = two_ready_nodes();
    sim.put_pod(tolerating("p", "one", Some(1)));
    taint(&mut sim, "one:NoExecute");
    sim.run_until(0.5);
    sim.edit_pod("p", |pod| pod.spec.tolerations[0].toleration_seconds = Some(100));
    sim.run_until(2.0);
    assert_eq!(sim.times("evict p"), [1.0]);
}

#[test]
fn s116_a_shorter_toleration_time_brings_the_deadline_forward() {
    let mut sim = two_ready_nodes();
    sim.put_pod(
        tolerating("p", "one", Some(300)).tolerates(Toleration::exists("two", NoExecute).for_seconds(5)),
    );
    taint(&mut sim, "one:NoExecute");
    sim.run_until(100.0);
    taint(&mut sim, "two:NoExecute");
    sim.run_until(200.0);
    assert_eq!(sim.times("evict p"), [105.0]);
}

#[test]
fn s117_rewriting_a_taint_does_not_restart_the_toleration_time() {
    let mut sim = two_ready_nodes();
    sim.put_pod(tolerating("p", "one", Some(100)));
    taint(&mut sim, "one:NoExecute");
    sim.run_until(60.0);
    let now = sim.now().wall;
    sim.edit_node("a", |node| node.spec.taints[0].time_added = Some(now));
    sim.run_until(200.0);
    assert_eq!(sim.times("evict p"), [100.0]);
    assert_eq!(sim.times("event Cancelling").len(), 0);
}

#[test]
fn s118_each_pod_has_a_toleration_time_of_its_own() {
    let mut sim = two_ready_nodes();
    sim.put_pod(pod("p1").on("a"));
    sim.put_pod(tolerating("p2", "one", Some(1)));
    sim.put_pod(tolerating("p3", "one", None));
    taint(&mut sim, "one:NoExecute");
    sim.run_until(100.0);
    assert_eq!(sim.when("evict"), [(0.0, "p1".to_owned()), (1.0, "p2".to_owned())]);
}

#[test]
fn s119_a_pod_bound_to_a_tainted_node_is_evicted() {
    let mut sim = two_ready_nodes();
    taint(&mut sim, "one:NoExecute");
    sim.put_pod(pod("p"));
    sim.run_until(10.0);
    assert!(!sim.is_deleting("p"), "it has no node");
    sim.edit_pod("p", |pod| pod.spec.node_name = Some("a".parse().unwrap()));
    assert!(sim.is_deleting("p"));
}

#[test]
fn s121_deadlines_stay_when_the_node_is_deleted() {
    let mut sim = two_ready_nodes();
    sim.put_pod(tolerating("p", "one", Some(20)));
    taint(&mut sim, "one:NoExecute");
    sim.run_until(10.0).delete_node("a");
    sim.run_until(19.9);
    assert!(!sim.is_deleting("p"));
    sim.run_until(20.0);
    assert!(sim.is_deleting("p"));
}

#[test]
fn a_new_node_of_the_same_name_without_taints_cancels_evictions() {
    let mut sim = two_ready_nodes();
    sim.put_pod(tolerating("p", "one", Some(20)));
    taint(&mut sim, "one:NoExecute");
    sim.run_until(10.0).delete_node("a");
    sim.run_until(15.0).put_node(node("a").identity("another").ready(True));
    sim.start_agent("a");
    sim.run_until(600.0);
    assert!(!sim.is_deleting("p"), "the new node has no taint");
    assert_eq!(sim.times("event Cancelling deletion of p"), [15.0]);
}

#[test]
fn a_failed_eviction_is_retried_until_it_succeeds() {
    let mut sim = two_ready_nodes();
    sim.put_pod(pod("p").on("a"));
    sim.fail_actions("a NoExecute taint", 7);
    taint(&mut sim, "one:NoExecute");
    sim.run_until(60.0);
    assert!(sim.is_deleting("p"));
}

#[test]
fn a_new_pod_of_the_same_name_has_a_deadline_of_its_own() {
    let mut sim = two_ready_nodes();
    sim.put_pod(tolerating("p", "one", Some(20)));
    taint(&mut sim, "one:NoExecute");
    sim.run_until(10.0).put_pod(tolerating("p", "one", Some(20)).identity("another"));
    sim.run_until(25.0);
    assert!(!sim.is_deleting("p"), "its toleration time began at 10");
    sim.run_until(31.0);
    assert!(sim.is_deleting("p"));
}

#[test]
fn a_cancelled_eviction_asks_for_no_decision() {
    let policy = crate::policy::Policy {
        hold: Duration::from_secs(330),
        ..crate::fixtures::simulator::scenario_policy()
    };
    let mut sim = Simulator::with(policy);
    sim.add_ready_node("a", "");
    sim.add_ready_node("b", "");
    sim.put_pod(
        tolerating("p", UNREACHABLE, Some(0))
            .tolerates(Toleration::exists("one", NoExecute).for_seconds(600)),
    );
    sim.start();
    sim.run_until(10.0);
    taint(&mut sim, "one:NoExecute");
    sim.edit_node("a", |node| node.spec.taints.push(format!("{UNREACHABLE}:NoExecute").parse().unwrap()));
    sim.run_until(300.0);
    sim.edit_node("a", |node| node.spec.taints.clear());
    sim.run_until(400.0);
    taint(&mut sim, "one:NoExecute");
    sim.run_until(700.0);
    assert!(!sim.is_deleting("p"), "its new deadline is at 1000");
    let plan = sim.reconciler.decide(sim.now());
    assert!(
        plan.wake_at.unwrap() > sim.now().mono,
        "a deadline in the future must not ask for a decision now"
    );
    sim.run_until(1001.0);
    assert_eq!(sim.times("evict p"), [1000.0]);
}

#[test]
fn a_new_pod_of_the_same_name_is_evicted_though_an_eviction_is_in_flight() {
    let mut sim = two_ready_nodes();
    sim.put_pod(pod("p").on("a"));
    sim.delay_actions("a NoExecute taint");
    taint(&mut sim, "one:NoExecute");
    sim.put_pod(pod("p").on("a").identity("another"));
    sim.perform_delayed();
    sim.run_until(5.0);
    assert!(sim.is_deleting("p"), "pods are identified by uid");
}

#[test]
fn during_a_hold_only_taints_of_other_clients_evict() {
    let policy = crate::policy::Policy {
        hold: Duration::from_secs(50),
        ..crate::fixtures::simulator::scenario_policy()
    };
    let mut sim = Simulator::with(policy);
    sim.add_ready_node("a", "");
    sim.add_ready_node("b", "");
    sim.put_node(node("c").ready(True));
    sim.put_pod(tolerating("p", UNREACHABLE, Some(0)));
    sim.put_pod(tolerating("q", UNREACHABLE, None).with(|pod| pod.spec.node_name = "c".parse().ok()));
    sim.start();
    sim.run_until(5.0);
    sim.edit_node("c", |node| node.spec.taints.push("gpu:NoExecute".parse().unwrap()));
    assert_eq!(sim.when("evict"), [(5.0, "q".to_owned())]);
}

#[test]
fn s162_pods_of_a_node_out_of_service_are_evicted_at_once_and_then_removed() {
    let mut sim = two_ready_nodes();
    for name in ["p", "q"] {
        sim.put_pod(default_pod(name));
    }
    sim.stop_agent("a");
    sim.run_until(63.0);
    assert!(!sim.is_deleting("p") && !sim.is_deleting("q"), "they tolerate unreachable for 300 s");
    taint(&mut sim, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute");
    assert!(sim.is_deleting("p") && sim.is_deleting("q"));
    sim.run_until(63.0 + 21.0);
    let removed: Vec<String> = sim.when("remove").into_iter().map(|(_, name)| name).collect();
    assert_eq!(removed, ["p", "q"]);
    assert_eq!(sim.times("evict p"), [63.0]);
}
