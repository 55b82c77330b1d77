//! How pods start: admission, init containers, sidecars, and the statuses that are posted meanwhile.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::pod::{PodPhase, RestartPolicy};
use muster_proto::taint::{Taint, TaintEffect};

use crate::admission::Rejection;
use crate::pod_lifecycle::{Outcome, PodStates, decide};
use crate::testing::harness::{Harness, now_at};
use crate::testing::{ContainerBuilder, container, labels, pod};

#[test]
fn a_bound_pod_starts_and_is_ready() {
    let mut harness = Harness::with([pod("a").condition(types::POD_SCHEDULED, ConditionStatus::True)]);
    assert_eq!(harness.steps(), ["start a/main#0", "report a Running ready"]);
    let stored = harness.stored("a");
    let conditions: Vec<(&str, ConditionStatus)> =
        stored.status.conditions.iter().map(|each| (each.kind.as_str(), each.status)).collect();
    let expected = ["PodScheduled", "Initialized", "ContainersReady", "Ready"];
    let expected = expected.map(|kind| (kind, ConditionStatus::True));
    assert_eq!(conditions, expected);
    assert_eq!(stored.status.start_time, Some(now_at(0).wall));
    assert_eq!(stored.status.observed_generation, 1);
    assert_eq!(stored.status.container_statuses[0].container_id, "process://1001");
    harness.advance(1000);
    assert_eq!(harness.steps(), [""; 0], "an unchanged status is not posted again");
}

#[test]
fn nothing_is_decided_before_store_and_runtime_are_listed() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    let mut pod_states = PodStates::new();
    pod_states.observe_containers(harness.runtime.clone(), now_at(0));
    pod_states.observe_node(Some(harness.node.clone()), now_at(0));
    assert!(
        decide(&pod_states, now_at(0)).actions.is_empty(),
        "the store has not been listed: no pod has vanished"
    );
    pod_states.observe_pods([], now_at(1));
    assert!(decide(&pod_states, now_at(1)).actions.is_empty(), "it may be a static pod");
    pod_states.observe_static_pods([], now_at(1));
    assert_eq!(decide(&pod_states, now_at(1)).actions.len(), 1, "now it has been");
}

#[test]
fn init_containers_run_in_order_before_the_rest() {
    let inits = vec![container("one"), container("side").sidecar(), container("two")];
    let mut harness = Harness::with([pod("a").inits(inits)]);
    assert_eq!(harness.steps(), ["start a/one#0", "report a Pending"]);
    harness.exits("a", "one", 0);
    assert_eq!(harness.steps(), ["start a/side#0", "start a/two#0", "report a Pending"]);
    harness.exits("a", "two", 1);
    assert_eq!(harness.steps(), ["start a/two#1", "report a Pending"], "restarted");
    harness.exits("a", "side", 1);
    assert_eq!(harness.steps(), ["start a/side#1", "report a Pending"], "a sidecar stays up");
    harness.exits("a", "two", 0);
    assert_eq!(harness.steps(), ["start a/main#0", "report a Running ready"]);
    harness.exits("a", "side", 0);
    harness.advance(10);
    assert_eq!(harness.steps(), ["start a/side#2", "report a Running ready"]);
}

#[test]
fn an_init_container_that_fails_for_good_fails_the_pod() {
    let inits = vec![container("side").sidecar(), container("one")];
    let mut harness = Harness::with([pod("a").inits(inits).restart(RestartPolicy::Never)]);
    harness.settle();
    harness.log.clear();
    harness.exits("a", "one", 3);
    assert_eq!(harness.steps(), ["term a/side", "report a Pending"]);
    harness.exits("a", "side", 0);
    assert_eq!(harness.steps(), ["release a but files", "report a Failed"]);
}

#[test]
fn s075_a_pod_that_does_not_fit_fails_and_stays() {
    let mut harness = Harness::with([pod("a").requests("cpu=3"), pod("b").requests("cpu=5")]);
    assert!(harness.steps().contains(&"report b Failed OutOfcpu".to_owned()));
    harness.node.facts.allocatable = crate::testing::amounts("cpu=100 pods=10");
    harness.look();
    harness.advance(1000);
    assert_eq!(harness.steps(), [""; 0], "never tried again");
    harness.restart_agent();
    assert_eq!(harness.steps(), [""; 0], "not even by the next agent");
}

#[test]
fn pods_are_admitted_oldest_first() {
    let mut harness = Harness::bare([pod("new").requests("cpu=3"), pod("old").requests("cpu=3")]);
    for (name, second) in [("new", 2), ("old", 1)] {
        let pod = harness.store.get_mut(&crate::testing::uid(name)).unwrap();
        pod.meta.creation_timestamp = Some(jiff::Timestamp::from_second(second).unwrap());
    }
    harness.look();
    harness.settle();
    assert_eq!(harness.stored("old").status.phase, PodPhase::Running);
    assert_eq!(harness.stored("new").status.reason, "OutOfcpu");
}

#[test]
fn s076_an_untolerated_no_execute_taint_fails_the_pod() {
    for (effect, source, expected) in [
        (TaintEffect::NoExecute, "api", "report a Failed TaintToleration"),
        (TaintEffect::NoSchedule, "api", "report a Running ready"),
        (TaintEffect::NoExecute, "file", "report a Failed TaintToleration"),
    ] {
        let mut harness = Harness::bare([pod("a").source(source)]);
        harness.node.facts.taints = vec![Taint::new("user", "", effect)];
        harness.look();
        assert_eq!(harness.steps().last().map(String::as_str), Some(expected), "{effect} {source}");
    }
}

#[test]
fn s072_a_node_that_shuts_down_rejects_new_pods() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    harness.node.facts.shutting_down = true;
    let late = pod("b").build();
    harness.store.insert(late.meta.uid.unwrap(), late);
    harness.look();
    harness.log.clear();
    assert_eq!(harness.steps(), ["report b Failed NodeShutdown"]);
}

#[test]
fn the_node_is_read_again_once_if_only_its_labels_do_not_match() {
    let mut picky = pod("a").build();
    picky.spec.node_selector = labels("zone=b");
    for (fresh, expected) in
        [("zone=b", "report a Running ready"), ("zone=a", "report a Failed NodeAffinity")]
    {
        let mut harness = Harness::bare([]);
        harness.store.insert(picky.meta.uid.unwrap(), picky.clone());
        harness.look();
        harness.node.facts.labels = labels(fresh);
        let steps = harness.steps();
        assert_eq!((steps[0].as_str(), steps.last().unwrap().as_str()), ("read node for a", expected));
    }
}

#[test]
fn a_ready_condition_that_another_writer_cleared_is_posted_again() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    harness.log.clear();
    harness.write("a", |pod| {
        let ready = pod.status.conditions.iter_mut().find(|each| each.kind == types::READY).unwrap();
        ready.status = ConditionStatus::False;
    });
    assert_eq!(harness.steps(), ["report a Running ready"]);
}

#[test]
fn conditions_of_others_are_kept() {
    let mut harness = Harness::with([pod("a").condition("example.com/gate", ConditionStatus::Unknown)]);
    harness.settle();
    assert_eq!(harness.stored("a").status.conditions[0].kind, "example.com/gate");
}

#[test]
fn a_post_that_conflicted_is_repeated_when_the_newer_record_arrives() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    harness.log.clear();
    harness.exits("a", "main", 1);
    harness.settle();
    harness.exits("a", "main", 1);
    harness.log.clear();
    harness.write_unseen("a", |pod| pod.meta.labels = labels("seen=not-yet"));
    assert_eq!(
        harness.steps(),
        ["report a Running", "report a Running"],
        "conflict, newer record, and posted at once"
    );
    assert_eq!(harness.stored("a").meta.labels, labels("seen=not-yet"));
}

#[test]
fn s077_a_start_that_is_refused_fails_the_pod() {
    let mut harness = Harness::with([pod("a")]);
    let plan = decide(&harness.pod_states, harness.now());
    let refusal = Rejection::new("TopologyAffinityError", "too far apart");
    harness.pod_states.observe(&plan.actions[0], Outcome::Refused(refusal), harness.now());
    assert_eq!(harness.steps(), ["release a but files", "report a Failed TopologyAffinityError"]);
    assert_eq!(harness.stored("a").condition(types::DISRUPTION_TARGET), None);
    harness.advance(1000);
    assert_eq!(harness.steps(), [""; 0]);
}

#[test]
fn a_start_that_hangs_delays_no_other_pod_and_is_killed_with_its_pod() {
    let mut harness = Harness::with([pod("a").containers(vec![container("slow")]), pod("b")]);
    harness.hung.push("slow".to_owned());
    assert_eq!(harness.steps(), ["start b/main#0", "report b Running ready"]);
    harness.advance(1);
    assert_eq!(harness.steps(), ["report a Pending"], "a start in progress is posted");
    harness.delete("b", 5);
    harness.settle();
    harness.advance(5);
    assert_eq!(harness.steps().last().unwrap(), "delete b");

    harness.delete("a", 3);
    assert_eq!(harness.steps(), [""; 0], "there is no process yet that could be signalled");
    harness.advance(3);
    assert_eq!(harness.steps(), ["kill a/slow", "release a", "report a Failed", "delete a"]);
}

#[test]
fn a_slow_start_is_posted_like_any_other() {
    let mut harness = Harness::with([pod("a").containers(vec![container("slow")])]);
    harness.hung.push("slow".to_owned());
    harness.settle();
    harness.advance(5);
    harness.settle();
    harness.log.clear();
    harness.answer();
    assert_eq!(harness.log, ["start a/slow#0"]);
    harness.log.clear();
    assert_eq!(harness.steps(), ["report a Running ready"]);
    assert_eq!(harness.stored("a").status.container_statuses[0].restart_count, 0);
}
