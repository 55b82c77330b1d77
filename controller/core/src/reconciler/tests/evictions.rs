use std::time::Duration;

use muster_proto::condition::ConditionStatus::True;
use muster_proto::taint::TaintEffect::NoExecute;
use muster_proto::taint::{Toleration, default_tolerations};

use crate::fixtures::simulator::Stage;
use crate::fixtures::{PodSample, node, pod};

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// A pod as the store completes it.
fn default_pod(name: &str) -> PodSample {
    pod(name).on("a").running(True).with(|pod| default_tolerations(&mut pod.spec.tolerations, 300, 300))
}

fn tolerating(name: &str, key: &str, seconds: Option<i64>) -> PodSample {
    let toleration = Toleration::exists(key, NoExecute);
    pod(name).on("a").tolerates(seconds.map_or(toleration.clone(), |seconds| toleration.for_seconds(seconds)))
}

/// Two nodes that live, before a controller that judges them.
fn two() -> Stage {
    let mut stage = Stage::new();
    stage.start().living("a", "");
    stage.living("b", "");
    stage
}

fn taint(stage: &mut Stage, text: &str) {
    stage.edit_node("a", |node| node.spec.taints.push(text.parse().unwrap()));
}

fn untaint(stage: &mut Stage, key: &str) {
    stage.edit_node("a", |node| node.spec.taints.retain(|taint| taint.key != key));
}

#[test]
fn s109_a_pod_leaves_a_lost_node_when_its_toleration_has_run_out() {
    let mut stage = two();
    stage.put_pod(default_pod("p").with(|pod| pod.spec.termination_grace_period_seconds = Some(45)));
    stage.kill("a");
    stage.run_until(100.0);
    let (tainted, _) = stage.given_up()[0];
    stage.run_until(tainted + 299.9);
    assert!(!stage.is_leaving("p"));
    stage.run_until(tainted + 300.0);
    assert!(stage.is_leaving("p"));
    let target = stage.pod("p").condition("DisruptionTarget").unwrap();
    assert_eq!((target.status, target.reason.as_str()), (True, "DeletionByTaintManager"));
    assert_eq!(stage.pod("p").meta.deletion_grace_period_seconds, Some(45), "the grace is its own");
    assert_eq!(stage.times("event Marking for deletion p").len(), 1);
}

#[test]
fn s110_a_pod_stays_as_long_as_it_tolerates() {
    let mut stage = two();
    for (name, seconds) in [("zero", Some(0)), ("negative", Some(-5)), ("some", Some(200)), ("ever", None)] {
        stage.put_pod(tolerating(name, UNREACHABLE, seconds));
    }
    stage.kill("a");
    stage.run_until(1000.0);
    let (tainted, _) = stage.given_up()[0];
    let mut left = stage.when("evict");
    left.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let expected = [(tainted, "negative"), (tainted, "zero"), (tainted + 200.0, "some")];
    assert_eq!(left, expected.map(|(at, name)| (at, name.to_owned())));
}

#[test]
fn s111_a_taint_that_somebody_puts_on_works_at_once() {
    let mut stage = two();
    for name in ["p", "q"] {
        stage.put_pod(default_pod(name));
    }
    stage.put_pod(tolerating("r", "gpu", None));
    stage.run_until(5.0);
    taint(&mut stage, "gpu=broken:NoExecute");
    assert_eq!(stage.when("evict"), [(5.0, "p".to_owned()), (5.0, "q".to_owned())]);
}

#[test]
fn s112_one_taint_that_is_not_tolerated_is_enough() {
    let mut stage = two();
    stage.put_pod(tolerating("p", "one", Some(100)));
    taint(&mut stage, "one:NoExecute");
    stage.run_until(10.0);
    assert!(!stage.is_leaving("p"));
    taint(&mut stage, "two:NoExecute");
    assert!(stage.is_leaving("p"));
}

#[test]
fn s113_the_shortest_toleration_counts() {
    let mut stage = two();
    stage.put_pod(
        tolerating("p", "one", Some(1)).tolerates(Toleration::exists("two", NoExecute).for_seconds(100)),
    );
    stage.edit_node("a", |node| {
        for text in ["one:NoExecute", "two:NoExecute"] {
            node.spec.taints.push(text.parse().unwrap());
        }
    });
    stage.run_until(2.0);
    assert_eq!(stage.times("evict p"), [1.0]);
}

#[test]
fn s114_a_taint_that_goes_takes_its_clock_with_it() {
    let mut stage = two();
    stage.put_pod(
        tolerating("p", "one", None).tolerates(Toleration::exists("two", NoExecute).for_seconds(60)),
    );
    taint(&mut stage, "one:NoExecute");
    taint(&mut stage, "two:NoExecute");
    stage.run_until(30.0);
    untaint(&mut stage, "two");
    stage.run_until(200.0);
    assert!(!stage.is_leaving("p"));
    assert_eq!(stage.times("event Cancelling deletion of p"), [30.0]);
}

#[test]
fn s115_a_node_that_recovers_in_time_keeps_its_pods() {
    let mut stage = two();
    stage.put_pod(default_pod("p"));
    stage.kill("a");
    stage.run_until(100.0);
    let (tainted, _) = stage.given_up()[0];
    stage.run_until(tainted + 299.0).revive("a");
    stage.run_until(tainted + 1000.0);
    assert!(!stage.is_leaving("p"));
}

#[test]
fn s116_a_clock_that_runs_is_never_put_off() {
    let mut stage = two();
    stage.put_pod(tolerating("p", "one", Some(1)));
    taint(&mut stage, "one:NoExecute");
    stage.run_until(0.5);
    stage.edit_pod("p", |pod| pod.spec.tolerations[0].toleration_seconds = Some(100));
    stage.run_until(2.0);
    assert_eq!(stage.times("evict p"), [1.0]);
}

#[test]
fn s116_but_it_is_brought_forward() {
    let mut stage = two();
    stage.put_pod(
        tolerating("p", "one", Some(300)).tolerates(Toleration::exists("two", NoExecute).for_seconds(5)),
    );
    taint(&mut stage, "one:NoExecute");
    stage.run_until(100.0);
    taint(&mut stage, "two:NoExecute");
    stage.run_until(200.0);
    assert_eq!(stage.times("evict p"), [105.0]);
}

#[test]
fn s117_a_taint_that_is_written_anew_starts_no_new_clock() {
    let mut stage = two();
    stage.put_pod(tolerating("p", "one", Some(100)));
    taint(&mut stage, "one:NoExecute");
    stage.run_until(60.0);
    let now = stage.now().wall;
    stage.edit_node("a", |node| node.spec.taints[0].time_added = Some(now));
    stage.run_until(200.0);
    assert_eq!(stage.times("evict p"), [100.0]);
    assert_eq!(stage.times("event Cancelling").len(), 0);
}

#[test]
fn s118_each_pod_has_its_own_time() {
    let mut stage = two();
    stage.put_pod(pod("p1").on("a"));
    stage.put_pod(tolerating("p2", "one", Some(1)));
    stage.put_pod(tolerating("p3", "one", None));
    taint(&mut stage, "one:NoExecute");
    stage.run_until(100.0);
    assert_eq!(stage.when("evict"), [(0.0, "p1".to_owned()), (1.0, "p2".to_owned())]);
}

#[test]
fn s119_a_pod_that_comes_to_a_tainted_node_leaves_again() {
    let mut stage = two();
    taint(&mut stage, "one:NoExecute");
    stage.put_pod(pod("p"));
    stage.run_until(10.0);
    assert!(!stage.is_leaving("p"), "it has no node");
    stage.edit_pod("p", |pod| pod.spec.node_name = Some("a".parse().unwrap()));
    assert!(stage.is_leaving("p"));
}

#[test]
fn s121_a_node_that_goes_leaves_the_clocks_running() {
    let mut stage = two();
    stage.put_pod(tolerating("p", "one", Some(20)));
    taint(&mut stage, "one:NoExecute");
    stage.run_until(10.0).delete_node("a");
    stage.run_until(19.9);
    assert!(!stage.is_leaving("p"));
    stage.run_until(20.0);
    assert!(stage.is_leaving("p"));
}

#[test]
fn a_clean_namesake_of_a_node_that_went_stops_the_clocks() {
    let mut stage = two();
    stage.put_pod(tolerating("p", "one", Some(20)));
    taint(&mut stage, "one:NoExecute");
    stage.run_until(10.0).delete_node("a");
    stage.run_until(15.0).put_node(node("a").identity("another").ready(True));
    stage.revive("a");
    stage.run_until(600.0);
    assert!(!stage.is_leaving("p"), "nothing drives it off any more");
    assert_eq!(stage.times("event Cancelling deletion of p"), [15.0]);
}

#[test]
fn an_eviction_that_fails_is_tried_again_until_it_is_done() {
    let mut stage = two();
    stage.put_pod(pod("p").on("a"));
    stage.fail("a NoExecute taint", 7);
    taint(&mut stage, "one:NoExecute");
    stage.run_until(60.0);
    assert!(stage.is_leaving("p"));
}

#[test]
fn a_namesake_is_not_evicted_in_place_of_another() {
    let mut stage = two();
    stage.put_pod(tolerating("p", "one", Some(20)));
    taint(&mut stage, "one:NoExecute");
    stage.run_until(10.0).put_pod(tolerating("p", "one", Some(20)).identity("another"));
    stage.run_until(25.0);
    assert!(!stage.is_leaving("p"), "its own time has just begun");
    stage.run_until(31.0);
    assert!(stage.is_leaving("p"));
}

#[test]
fn a_clock_that_was_stopped_wakes_nobody() {
    let policy = crate::policy::Policy {
        hold: Duration::from_secs(330),
        ..crate::fixtures::simulator::scenario_policy()
    };
    let mut stage = Stage::with(policy);
    stage.living("a", "");
    stage.living("b", "");
    stage.put_pod(
        tolerating("p", UNREACHABLE, Some(0))
            .tolerates(Toleration::exists("one", NoExecute).for_seconds(600)),
    );
    stage.start();
    stage.run_until(10.0);
    taint(&mut stage, "one:NoExecute");
    stage.edit_node("a", |node| node.spec.taints.push(format!("{UNREACHABLE}:NoExecute").parse().unwrap()));
    stage.run_until(300.0);
    stage.edit_node("a", |node| node.spec.taints.clear());
    stage.run_until(400.0);
    taint(&mut stage, "one:NoExecute");
    stage.run_until(700.0);
    assert!(!stage.is_leaving("p"), "its new clock runs until 1000");
    let plan = stage.core.decide(stage.now());
    assert!(plan.wake_at.unwrap() > stage.now().mono, "what is not due yet is not looked at again and again");
    stage.run_until(1001.0);
    assert_eq!(stage.times("evict p"), [1000.0]);
}

#[test]
fn a_namesake_is_evicted_though_the_end_of_another_is_under_way() {
    let mut stage = two();
    stage.put_pod(pod("p").on("a"));
    stage.hold_back("a NoExecute taint");
    taint(&mut stage, "one:NoExecute");
    stage.put_pod(pod("p").on("a").identity("another"));
    stage.let_go();
    stage.run_until(5.0);
    assert!(stage.is_leaving("p"), "each bearer of the name is judged for itself");
}

#[test]
fn while_nobody_may_be_evicted_only_what_somebody_asked_for_happens() {
    let policy = crate::policy::Policy {
        hold: Duration::from_secs(50),
        ..crate::fixtures::simulator::scenario_policy()
    };
    let mut stage = Stage::with(policy);
    stage.living("a", "");
    stage.living("b", "");
    stage.put_node(node("c").ready(True));
    stage.put_pod(tolerating("p", UNREACHABLE, Some(0)));
    stage.put_pod(tolerating("q", UNREACHABLE, None).with(|pod| pod.spec.node_name = "c".parse().ok()));
    stage.start();
    stage.run_until(5.0);
    stage.edit_node("c", |node| node.spec.taints.push("gpu:NoExecute".parse().unwrap()));
    assert_eq!(stage.when("evict"), [(5.0, "q".to_owned())]);
}

#[test]
fn s162_pods_of_a_node_that_is_out_of_service_end_at_once_and_are_removed() {
    let mut stage = two();
    for name in ["p", "q"] {
        stage.put_pod(default_pod(name));
    }
    stage.kill("a");
    stage.run_until(63.0);
    assert!(!stage.is_leaving("p") && !stage.is_leaving("q"), "they tolerate for long that it is lost");
    taint(&mut stage, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute");
    assert!(stage.is_leaving("p") && stage.is_leaving("q"));
    stage.run_until(63.0 + 21.0);
    let removed: Vec<String> = stage.when("remove").into_iter().map(|(_, name)| name).collect();
    assert_eq!(removed, ["p", "q"]);
    assert_eq!(stage.times("evict p"), [63.0]);
}
