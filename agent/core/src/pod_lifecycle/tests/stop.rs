//! How pods end, and in which order.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::key::Key;
use muster_proto::pod::PodPhase;

use crate::pod_lifecycle::{Action, Ending, Ledger, Outcome, PodReport};
use crate::testing::harness::{Bench, node, now_at};
use crate::testing::{ContainerWords, container, pod, uid};

fn running(pod: crate::testing::PodWords) -> Bench {
    let mut bench = Bench::with([pod]);
    bench.settle();
    bench.log.clear();
    bench
}

#[test]
fn s073_a_pod_ends_in_one_order() {
    let mut bench = running(pod("a"));
    bench.delete("a", 5);
    let plan = bench.settle();
    assert_eq!(bench.log, ["report a Running", "term a/main"], "first not ready, then TERM");
    assert_eq!(plan.wake_at, Some(bench.now().mono + Duration::from_secs(5)));
    bench.log.clear();
    bench.advance(4);
    assert_eq!(bench.steps(), [""; 0], "it ignores TERM");
    bench.advance(1);
    assert_eq!(bench.steps(), ["kill a/main", "release a", "report a Failed", "delete a"]);
    assert!(bench.store.is_empty());
    assert_eq!(bench.settle().wake_at, None);
}

#[test]
fn s073_a_pod_that_ends_well_succeeds_before_it_goes() {
    let mut bench = running(pod("a"));
    bench.delete("a", 5);
    bench.settle();
    bench.exits("a", "main", 0);
    bench.log.clear();
    assert_eq!(bench.steps(), ["release a", "report a Succeeded", "delete a"]);
}

#[test]
fn s073_the_delete_waits_for_the_last_status() {
    let mut bench = running(pod("a"));
    bench.delete("a", 5);
    bench.settle();
    bench.is_connected = false;
    bench.exits("a", "main", 0);
    bench.log.clear();
    assert_eq!(bench.steps(), ["release a", "report a Succeeded, nobody hears"]);
    bench.advance(60);
    assert_eq!(bench.steps(), ["report a Succeeded, nobody hears"]);
    bench.is_connected = true;
    bench.advance(60);
    assert_eq!(bench.steps(), ["report a Succeeded", "delete a"]);
}

#[test]
fn s073_a_store_that_does_not_answer_holds_up_nobodys_end() {
    let mut bench = running(pod("a"));
    bench.delete("a", 5);
    bench.is_frozen = true;
    let plan = bench.settle();
    assert_eq!(bench.log, [""; 0], "what it is asked first is that the pod is not ready");
    assert_eq!(plan.wake_at, Some(bench.now().mono + Duration::from_secs(1)));
    bench.advance(1);
    assert_eq!(bench.steps(), ["term a/main"]);
    bench.advance(4);
    assert_eq!(bench.steps(), ["kill a/main", "release a"]);
    bench.advance(60);
    assert_eq!(bench.steps(), [""; 0], "the rest takes the store");
    bench.answer();
    assert_eq!(bench.steps(), ["report a Running", "report a Failed", "delete a"]);
}

#[test]
fn a_short_grace_leaves_half_of_itself_to_term() {
    let mut bench = running(pod("a"));
    bench.delete("a", 1);
    bench.is_frozen = true;
    let plan = bench.settle();
    assert_eq!(plan.wake_at, Some(bench.now().mono + Duration::from_millis(500)));
}

#[test]
fn a_shortened_grace_is_honoured_at_once() {
    let mut bench = running(pod("a"));
    bench.delete("a", 600);
    bench.settle();
    bench.advance(10);
    bench.delete("a", 15);
    let plan = bench.settle();
    assert_eq!(plan.wake_at, Some(bench.now().mono + Duration::from_secs(5)), "counted from the beginning");
    bench.delete("a", 1);
    bench.log.clear();
    assert_eq!(bench.steps()[0], "kill a/main");
}

#[test]
fn hooks_run_before_term_and_within_the_grace() {
    let mains = vec![container("h").hook(), container("p")];
    let mut bench = running(pod("a").containers(mains));
    bench.delete("a", 5);
    assert_eq!(bench.steps(), ["report a Running", "hook a/h within 5s", "term a/p"]);
    bench.advance(2);
    bench.ledger.hook_ended(uid("a"), "h");
    assert_eq!(bench.steps(), ["term a/h"]);
    bench.advance(3);
    let steps = bench.steps();
    assert_eq!(steps, ["kill a/h", "kill a/p", "release a", "report a Failed", "delete a"]);

    let mut bench = running(pod("b").containers(vec![container("h").hook()]));
    bench.delete("b", 5);
    bench.settle();
    bench.log.clear();
    bench.advance(5);
    assert_eq!(bench.steps()[0], "kill b/h", "a hook that hangs is not waited for");
}

#[test]
fn sidecars_outlive_the_work() {
    let mut bench = running(pod("a").inits(vec![container("s").sidecar()]));
    bench.delete("a", 5);
    assert_eq!(bench.steps(), ["report a Running", "term a/main"]);
    bench.exits("a", "main", 0);
    assert_eq!(bench.steps(), ["term a/s", "report a Running"]);
    bench.exits("a", "s", 143);
    assert_eq!(bench.steps(), ["release a", "report a Succeeded", "delete a"]);
}

#[test]
fn s025_a_pod_that_never_ran_fails_and_goes() {
    let mut bench = Bench::with([pod("a").deleting(30)]);
    assert_eq!(bench.steps(), ["report a Failed", "delete a"]);
    let mut bench = Bench::with([pod("a").inits(vec![container("i")])]);
    bench.settle();
    bench.delete("a", 30);
    bench.exits("a", "i", 0);
    bench.log.clear();
    assert_eq!(bench.steps(), ["release a", "report a Failed", "delete a"]);
}

#[test]
fn s025_a_finished_pod_is_removed_by_the_store_and_forgotten_here() {
    let mut bench = running(pod("a").restart(muster_proto::pod::RestartPolicy::Never));
    bench.exits("a", "main", 0);
    bench.settle();
    bench.store.clear();
    bench.look();
    bench.log.clear();
    assert_eq!(bench.steps(), ["release a"]);
    assert!(bench.ledger.pod(uid("a")).is_none());
}

#[test]
fn a_pod_that_vanished_is_stopped_with_its_own_grace_and_forgotten() {
    let mut bench = running(pod("a").grace(7));
    bench.store.clear();
    bench.look();
    let plan = bench.settle();
    assert_eq!(bench.log, ["term a/main"], "there is nobody to tell");
    assert_eq!(plan.wake_at, Some(bench.now().mono + Duration::from_secs(7)));
    bench.advance(7);
    bench.log.clear();
    assert_eq!(bench.steps(), ["kill a/main", "release a"]);
    assert!(bench.ledger.pod(uid("a")).is_none());
}

#[test]
fn what_only_the_runtime_knows_is_stopped() {
    let mut bench = running(pod("a").grace(7));
    bench.store.clear();
    let report: &mut PodReport = bench.runtime.get_mut(&uid("a")).unwrap();
    report.own_grace = Some(Duration::from_secs(7));
    bench.restart_agent();
    assert_eq!(bench.steps(), ["term orphan/main"]);
    bench.advance(7);
    assert_eq!(bench.steps(), ["kill orphan/main", "release orphan"]);
}

#[test]
fn s074_after_a_partition_only_what_must_go_goes() {
    let mut bench = Bench::with([pod("p"), pod("q"), pod("r").grace(3)]);
    bench.settle();
    let before = bench.runtime.clone();
    bench.is_connected = false;
    bench.delete("p", 5);
    bench.store.remove(&uid("r"));
    bench.advance(600);
    bench.log.clear();
    assert_eq!(bench.steps(), [""; 0], "cut off, everything keeps running");
    assert_eq!(bench.runtime, before);
    bench.is_connected = true;
    bench.look();
    let mut steps = bench.steps();
    steps.sort();
    assert_eq!(steps, ["report p Running", "term p/main", "term r/main"]);
    bench.advance(5);
    bench.settle();
    assert_eq!(bench.store.keys().copied().collect::<Vec<_>>(), [uid("q")]);
    assert_eq!(bench.runtime[&uid("q")], before[&uid("q")], "untouched");
}

#[test]
fn mirrors_end_but_their_records_are_not_deleted() {
    let mut bench = running(pod("a").mirror());
    bench.delete("a", 5);
    bench.settle();
    bench.exits("a", "main", 0);
    bench.log.clear();
    assert_eq!(bench.steps(), ["release a", "report a Succeeded"]);
}

#[test]
fn a_namesake_is_another_pod() {
    let mut bench = running(pod("a").grace(5));
    bench.store.clear();
    let mut namesake = pod("a").build();
    namesake.meta.uid = Some(uid("a2"));
    bench.store.insert(uid("a2"), namesake);
    bench.look();
    let mut steps = bench.steps();
    steps.sort();
    assert_eq!(steps, ["report a Running ready", "start a/main#0", "term a/main"]);
}

#[test]
fn the_nodes_own_ending_fails_the_pod_and_keeps_the_record() {
    let mut bench = running(pod("a").grace(30));
    let ending = Ending {
        reason: "Evicted".to_owned(),
        message: "The node was low on memory.".to_owned(),
        grace: Duration::from_secs(1),
        is_disruption: true,
    };
    bench.ledger.end(uid("a"), ending, bench.now());
    assert_eq!(bench.steps(), ["term a/main", "report a Running"]);
    bench.advance(1);
    assert_eq!(bench.steps(), ["kill a/main", "release a but files", "report a Failed Evicted"]);
    let stored = bench.stored("a");
    let disrupted = stored.condition(types::DISRUPTION_TARGET).unwrap();
    assert_eq!(
        (disrupted.status, disrupted.reason.as_str()),
        (ConditionStatus::True, "TerminationByKubelet")
    );
    assert_eq!(stored.status.message, "The node was low on memory.");
    bench.advance(1000);
    assert_eq!(bench.steps(), [""; 0], "it stays, and is not started again");
    bench.restart_agent();
    assert_eq!(bench.steps(), ["release a but files"]);
}

#[test]
fn a_pod_that_others_call_failed_is_stopped() {
    let mut bench = running(pod("a").grace(3));
    bench.write("a", |pod| pod.status.phase = PodPhase::Failed);
    assert_eq!(bench.steps(), ["term a/main", "report a Failed"]);
    bench.advance(3);
    assert_eq!(bench.steps(), ["kill a/main", "release a but files", "report a Failed"]);
}

#[test]
fn a_stale_list_does_not_bring_back_what_is_gone() {
    let stale = pod("a").deleting(30).phase(PodPhase::Failed).build();
    let now = now_at(0);
    let mut ledger = Ledger::new();
    ledger.see_node(Some(node()), now);
    ledger.see_containers(BTreeMap::new(), now);
    ledger.see_pods([&stale], now);
    let action = Action::Delete { key: Key::of(&stale), uid: uid("a") };
    ledger.observe(&action, Outcome::Gone, now);
    ledger.see_pods([&stale], now);
    assert!(ledger.pod(uid("a")).is_none());
    ledger.see_pods([], now);
    ledger.see_pods([&stale], now);
    assert!(ledger.pod(uid("a")).is_some(), "once a list agreed, the next one is believed again");
}

#[test]
fn without_a_node_what_must_end_ends_and_nothing_is_begun_or_said() {
    let mut bench = Bench::with([pod("a").grace(3), pod("b"), pod("c")]);
    bench.settle();
    bench.is_welcome = false;
    bench.log.clear();
    let late = pod("late").build();
    bench.store.insert(late.meta.uid.unwrap(), late);
    bench.store.remove(&uid("a"));
    bench.delete("b", 5);
    bench.exits("c", "main", 1);
    bench.advance(1);
    let sorted = |bench: &mut Bench| {
        let mut steps = bench.steps();
        steps.sort();
        steps
    };
    assert_eq!(sorted(&mut bench), ["term a/main", "term b/main"], "another may speak for the node");
    bench.advance(5);
    assert_eq!(sorted(&mut bench), ["kill a/main", "kill b/main", "release a", "release b"]);
    bench.restart_agent();
    assert_eq!(sorted(&mut bench), ["release b"], "nor does the next agent say a word");
    bench.is_welcome = true;
    bench.look();
    let expected = [
        "delete b",
        "report b Failed",
        "report c Running ready",
        "report late Running ready",
        "start c/main#1",
        "start late/main#0",
    ];
    assert_eq!(sorted(&mut bench), expected);
}

#[test]
fn what_a_pod_printed_stays_as_long_as_its_record() {
    let mut bench = running(pod("a").restart(muster_proto::pod::RestartPolicy::Never));
    bench.exits("a", "main", 1);
    assert_eq!(bench.steps(), ["release a but files", "report a Failed"]);
    assert!(bench.runtime.contains_key(&uid("a")));
    bench.restart_agent();
    assert_eq!(bench.steps(), ["release a but files"], "the next agent keeps it, too");
    bench.delete("a", 30);
    let steps = bench.steps();
    assert_eq!((&steps[0], steps.last().unwrap()), (&"release a".to_owned(), &"delete a".to_owned()));
    assert!(bench.runtime.is_empty());
}

#[test]
fn a_hook_ends_with_its_container_and_the_pod_waits_for_that() {
    let mut bench = running(pod("a").containers(vec![container("main").hook()]));
    bench.delete("a", 60);
    assert_eq!(bench.steps(), ["report a Running", "hook a/main within 60s"]);
    bench.exits("a", "main", 0);
    let expected = ["kill a/main", "report a Running", "release a", "report a Succeeded", "delete a"];
    assert_eq!(bench.steps(), expected);
}
