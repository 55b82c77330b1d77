//! How pods stop, and in which order.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::key::Key;
use muster_proto::pod::PodPhase;

use crate::pod_lifecycle::{Action, Outcome, PodReport, PodStates, PodTermination};
use crate::testing::harness::{Harness, node, now_at};
use crate::testing::{ContainerBuilder, container, pod, uid};

fn running(pod: crate::testing::PodBuilder) -> Harness {
    let mut harness = Harness::with([pod]);
    harness.settle();
    harness.log.clear();
    harness
}

#[test]
fn s073_a_pod_stops_in_one_order() {
    let mut harness = running(pod("a"));
    harness.delete("a", 5);
    let plan = harness.settle();
    assert_eq!(harness.log, ["report a Running", "term a/main"], "first not ready, then TERM");
    assert_eq!(plan.wake_at, Some(harness.now().mono + Duration::from_secs(5)));
    harness.log.clear();
    harness.advance(4);
    assert_eq!(harness.steps(), [""; 0], "it ignores TERM");
    harness.advance(1);
    assert_eq!(harness.steps(), ["kill a/main", "release a", "report a Failed", "delete a"]);
    assert!(harness.store.is_empty());
    assert_eq!(harness.settle().wake_at, None);
}

#[test]
fn s073_a_pod_that_exits_with_0_succeeds_before_it_is_deleted() {
    let mut harness = running(pod("a"));
    harness.delete("a", 5);
    harness.settle();
    harness.exits("a", "main", 0);
    harness.log.clear();
    assert_eq!(harness.steps(), ["release a", "report a Succeeded", "delete a"]);
}

#[test]
fn s073_the_delete_waits_for_the_last_status() {
    let mut harness = running(pod("a"));
    harness.delete("a", 5);
    harness.settle();
    harness.is_connected = false;
    harness.exits("a", "main", 0);
    harness.log.clear();
    assert_eq!(harness.steps(), ["release a", "report a Succeeded, unreachable"]);
    harness.advance(60);
    assert_eq!(harness.steps(), ["report a Succeeded, unreachable"]);
    harness.is_connected = true;
    harness.advance(60);
    assert_eq!(harness.steps(), ["report a Succeeded", "delete a"]);
}

#[test]
fn s073_a_store_that_does_not_answer_delays_no_stop() {
    let mut harness = running(pod("a"));
    harness.delete("a", 5);
    harness.is_frozen = true;
    let plan = harness.settle();
    assert_eq!(harness.log, [""; 0], "the first call says that the pod is not ready");
    assert_eq!(plan.wake_at, Some(harness.now().mono + Duration::from_secs(1)));
    harness.advance(1);
    assert_eq!(harness.steps(), ["term a/main"]);
    harness.advance(4);
    assert_eq!(harness.steps(), ["kill a/main", "release a"]);
    harness.advance(60);
    assert_eq!(harness.steps(), [""; 0], "the rest needs the store");
    harness.answer();
    assert_eq!(harness.steps(), ["report a Running", "report a Failed", "delete a"]);
}

#[test]
fn half_of_a_short_grace_period_is_left_after_term() {
    let mut harness = running(pod("a"));
    harness.delete("a", 1);
    harness.is_frozen = true;
    let plan = harness.settle();
    assert_eq!(plan.wake_at, Some(harness.now().mono + Duration::from_millis(500)));
}

#[test]
fn a_shortened_grace_is_honoured_at_once() {
    let mut harness = running(pod("a"));
    harness.delete("a", 600);
    harness.settle();
    harness.advance(10);
    harness.delete("a", 15);
    let plan = harness.settle();
    assert_eq!(plan.wake_at, Some(harness.now().mono + Duration::from_secs(5)), "counted from the beginning");
    harness.delete("a", 1);
    harness.log.clear();
    assert_eq!(harness.steps()[0], "kill a/main");
}

#[test]
fn hooks_run_before_term_and_within_the_grace() {
    let mains = vec![container("h").hook(), container("p")];
    let mut harness = running(pod("a").containers(mains));
    harness.delete("a", 5);
    assert_eq!(harness.steps(), ["report a Running", "hook a/h within 5s", "term a/p"]);
    harness.advance(2);
    harness.pod_states.hook_ended(uid("a"), "h");
    assert_eq!(harness.steps(), ["term a/h"]);
    harness.advance(3);
    let steps = harness.steps();
    assert_eq!(steps, ["kill a/h", "kill a/p", "release a", "report a Failed", "delete a"]);

    let mut harness = running(pod("b").containers(vec![container("h").hook()]));
    harness.delete("b", 5);
    harness.settle();
    harness.log.clear();
    harness.advance(5);
    assert_eq!(harness.steps(), ["term b/h"], "a hook that hangs is not waited for");
    harness.advance(2);
    assert_eq!(harness.steps()[0], "kill b/h");
}

#[test]
fn s211_a_container_whose_hook_used_up_the_grace_gets_term_and_2_s() {
    let mut harness = running(pod("a").containers(vec![container("h").hook()]));
    harness.delete("a", 5);
    assert_eq!(harness.steps(), ["report a Running", "hook a/h within 5s"]);
    harness.advance(5);
    harness.pod_states.hook_ended(uid("a"), "h");
    let plan = harness.settle();
    assert_eq!(harness.log, ["term a/h"]);
    assert_eq!(plan.wake_at, Some(harness.now().mono + Duration::from_secs(2)));
    harness.log.clear();
    harness.advance(1);
    assert_eq!(harness.steps(), [""; 0]);
    harness.advance(1);
    assert_eq!(harness.steps()[0], "kill a/h");
}

#[test]
fn s211_sidecars_of_a_main_container_that_ignores_term_get_term_when_it_is_killed() {
    let sidecars = vec![container("s").sidecar(), container("t").sidecar()];
    let mut harness = running(pod("a").inits(sidecars));
    harness.delete("a", 5);
    assert_eq!(harness.steps(), ["report a Running", "term a/main"]);
    harness.advance(5);
    assert_eq!(harness.steps(), ["kill a/main", "term a/s", "term a/t", "report a Running"]);
    harness.exits("a", "t", 0);
    harness.advance(2);
    assert_eq!(harness.steps()[0], "kill a/s", "the one that ignores TERM too");
}

#[test]
fn s211_a_pod_without_any_grace_gets_term_and_2_s() {
    for is_deleted in [false, true] {
        let mut harness = running(pod("a").containers(vec![container("main").hook()]));
        if is_deleted {
            harness.delete("a", 0);
        } else {
            let termination = PodTermination {
                reason: "Evicted".to_owned(),
                message: String::new(),
                grace: Duration::ZERO,
                is_disruption: true,
            };
            harness.pod_states.terminate(uid("a"), termination, harness.now());
        }
        assert_eq!(harness.steps()[0], "term a/main", "without time there is no hook");
        harness.advance(1);
        assert_eq!(harness.steps(), [""; 0], "deleted: {is_deleted}");
        harness.advance(1);
        assert_eq!(harness.steps()[0], "kill a/main", "deleted: {is_deleted}");
    }
}

#[test]
fn s211_a_term_that_cannot_be_sent_does_not_keep_a_container_from_being_killed() {
    let mut harness = running(pod("a"));
    harness.untermable.push("main".to_owned());
    harness.delete("a", 0);
    assert_eq!(harness.steps(), ["term a/main, in vain", "report a Running"]);
    harness.advance(2);
    let steps = harness.steps();
    assert_eq!(steps[..2], ["term a/main, in vain", "kill a/main"]);
}

#[test]
fn a_start_in_progress_is_killed_when_the_grace_is_over() {
    let mut harness = Harness::with([pod("a")]);
    harness.hung.push("main".to_owned());
    harness.settle();
    harness.delete("a", 0);
    harness.log.clear();
    assert_eq!(harness.steps()[0], "kill a/main", "there is nothing yet that could react to TERM");
}

#[test]
fn sidecars_outlive_the_main_containers() {
    let mut harness = running(pod("a").inits(vec![container("s").sidecar()]));
    harness.delete("a", 5);
    assert_eq!(harness.steps(), ["report a Running", "term a/main"]);
    harness.exits("a", "main", 0);
    assert_eq!(harness.steps(), ["term a/s", "report a Running"]);
    harness.exits("a", "s", 143);
    assert_eq!(harness.steps(), ["release a", "report a Succeeded", "delete a"]);
}

#[test]
fn s025_a_pod_that_never_ran_fails_and_is_deleted() {
    let mut harness = Harness::with([pod("a").deleting(30)]);
    assert_eq!(harness.steps(), ["report a Failed", "delete a"]);
    let mut harness = Harness::with([pod("a").inits(vec![container("i")])]);
    harness.settle();
    harness.delete("a", 30);
    harness.exits("a", "i", 0);
    harness.log.clear();
    assert_eq!(harness.steps(), ["release a", "report a Failed", "delete a"]);
}

#[test]
fn s025_a_finished_pod_that_the_store_removed_is_released() {
    let mut harness = running(pod("a").restart(muster_proto::pod::RestartPolicy::Never));
    harness.exits("a", "main", 0);
    harness.settle();
    harness.store.clear();
    harness.look();
    harness.log.clear();
    assert_eq!(harness.steps(), ["release a"]);
    assert!(harness.pod_states.pod(uid("a")).is_none());
}

#[test]
fn a_pod_that_vanished_is_stopped_with_its_own_grace_and_released() {
    let mut harness = running(pod("a").grace(7));
    harness.store.clear();
    harness.look();
    let plan = harness.settle();
    assert_eq!(harness.log, ["term a/main"], "there is no record to post to");
    assert_eq!(plan.wake_at, Some(harness.now().mono + Duration::from_secs(7)));
    harness.advance(7);
    harness.log.clear();
    assert_eq!(harness.steps(), ["kill a/main", "release a"]);
    assert!(harness.pod_states.pod(uid("a")).is_none());
}

#[test]
fn a_pod_without_a_record_is_stopped() {
    let mut harness = running(pod("a").grace(7));
    harness.store.clear();
    let report: &mut PodReport = harness.runtime.get_mut(&uid("a")).unwrap();
    report.own_grace = Some(Duration::from_secs(7));
    harness.restart_agent();
    assert_eq!(harness.steps(), ["term orphan/main"]);
    harness.advance(7);
    assert_eq!(harness.steps(), ["kill orphan/main", "release orphan"]);
}

#[test]
fn s074_after_a_partition_only_deleted_pods_are_stopped() {
    let mut harness = Harness::with([pod("p"), pod("q"), pod("r").grace(3)]);
    harness.settle();
    let before = harness.runtime.clone();
    harness.is_connected = false;
    harness.delete("p", 5);
    harness.store.remove(&uid("r"));
    harness.advance(600);
    harness.log.clear();
    assert_eq!(harness.steps(), [""; 0], "without the store everything keeps running");
    assert_eq!(harness.runtime, before);
    harness.is_connected = true;
    harness.look();
    let mut steps = harness.steps();
    steps.sort();
    assert_eq!(steps, ["report p Running", "term p/main", "term r/main"]);
    harness.advance(5);
    harness.settle();
    assert_eq!(harness.store.keys().copied().collect::<Vec<_>>(), [uid("q")]);
    assert_eq!(harness.runtime[&uid("q")], before[&uid("q")], "unchanged");
}

#[test]
fn a_pod_with_the_same_name_and_another_uid_is_another_pod() {
    let mut harness = running(pod("a").grace(5));
    harness.store.clear();
    let mut other = pod("a").build();
    other.meta.uid = Some(uid("a2"));
    harness.store.insert(uid("a2"), other);
    harness.look();
    let mut steps = harness.steps();
    steps.sort();
    assert_eq!(steps, ["report a Running ready", "start a/main#0", "term a/main"]);
}

#[test]
fn a_termination_by_the_node_fails_the_pod_and_keeps_the_record() {
    let mut harness = running(pod("a").grace(30));
    let termination = PodTermination {
        reason: "Evicted".to_owned(),
        message: "The node was low on memory.".to_owned(),
        grace: Duration::from_secs(1),
        is_disruption: true,
    };
    harness.pod_states.terminate(uid("a"), termination, harness.now());
    assert_eq!(harness.steps(), ["term a/main", "report a Running"]);
    harness.advance(1);
    assert_eq!(harness.steps(), [""; 0], "2 s are between TERM and KILL");
    harness.advance(1);
    assert_eq!(harness.steps(), ["kill a/main", "release a but files", "report a Failed Evicted"]);
    let stored = harness.stored("a");
    let disrupted = stored.condition(types::DISRUPTION_TARGET).unwrap();
    assert_eq!(
        (disrupted.status, disrupted.reason.as_str()),
        (ConditionStatus::True, "TerminationByKubelet")
    );
    assert_eq!(stored.status.message, "The node was low on memory.");
    harness.advance(1000);
    assert_eq!(harness.steps(), [""; 0], "it is kept, and not started again");
    harness.restart_agent();
    assert_eq!(harness.steps(), ["release a but files"]);
}

#[test]
fn a_pod_that_another_writer_marked_failed_is_stopped() {
    let mut harness = running(pod("a").grace(3));
    harness.write("a", |pod| pod.status.phase = PodPhase::Failed);
    assert_eq!(harness.steps(), ["term a/main", "report a Failed"]);
    harness.advance(3);
    assert_eq!(harness.steps(), ["kill a/main", "release a but files", "report a Failed"]);
}

#[test]
fn a_stale_list_does_not_bring_back_a_deleted_pod() {
    let stale = pod("a").deleting(30).phase(PodPhase::Failed).build();
    let now = now_at(0);
    let mut pod_states = PodStates::new();
    pod_states.observe_node(Some(node()), now);
    pod_states.observe_containers(BTreeMap::new(), now);
    pod_states.observe_pods([&stale], now);
    let action = Action::Delete { key: Key::of(&stale), uid: uid("a") };
    pod_states.observe(&action, Outcome::Gone, now);
    pod_states.observe_pods([&stale], now);
    assert!(pod_states.pod(uid("a")).is_none());
    pod_states.observe_pods([], now);
    pod_states.observe_pods([&stale], now);
    assert!(pod_states.pod(uid("a")).is_some(), "once a list agreed, the next one is believed again");
}

#[test]
fn without_a_node_pods_stop_but_none_is_started_or_posted() {
    let mut harness = Harness::with([pod("a").grace(3), pod("b"), pod("c")]);
    harness.settle();
    harness.is_accepted = false;
    harness.log.clear();
    let late = pod("late").build();
    harness.store.insert(late.meta.uid.unwrap(), late);
    harness.store.remove(&uid("a"));
    harness.delete("b", 5);
    harness.exits("c", "main", 1);
    harness.advance(1);
    let sorted = |harness: &mut Harness| {
        let mut steps = harness.steps();
        steps.sort();
        steps
    };
    assert_eq!(sorted(&mut harness), ["term a/main", "term b/main"], "another agent may act for the node");
    harness.advance(5);
    assert_eq!(sorted(&mut harness), ["kill a/main", "kill b/main", "release a", "release b"]);
    harness.restart_agent();
    assert_eq!(sorted(&mut harness), ["release b"], "the next agent does not post either");
    harness.is_accepted = true;
    harness.look();
    let expected = [
        "delete b",
        "report b Failed",
        "report c Running ready",
        "report late Running ready",
        "start c/main#1",
        "start late/main#0",
    ];
    assert_eq!(sorted(&mut harness), expected);
}

#[test]
fn logs_stay_as_long_as_the_pods_record() {
    let mut harness = running(pod("a").restart(muster_proto::pod::RestartPolicy::Never));
    harness.exits("a", "main", 1);
    assert_eq!(harness.steps(), ["release a but files", "report a Failed"]);
    assert!(harness.runtime.contains_key(&uid("a")));
    harness.restart_agent();
    assert_eq!(harness.steps(), ["release a but files"], "the next agent keeps it too");
    harness.delete("a", 30);
    let steps = harness.steps();
    assert_eq!((&steps[0], steps.last().unwrap()), (&"release a".to_owned(), &"delete a".to_owned()));
    assert!(harness.runtime.is_empty());
}

#[test]
fn a_hook_is_killed_with_its_container_before_the_pod_is_released() {
    let mut harness = running(pod("a").containers(vec![container("main").hook()]));
    harness.delete("a", 60);
    assert_eq!(harness.steps(), ["report a Running", "hook a/main within 60s"]);
    harness.exits("a", "main", 0);
    let expected = ["kill a/main", "report a Running", "release a", "report a Succeeded", "delete a"];
    assert_eq!(harness.steps(), expected);
}
