//! How pods begin: admission, init containers, sidecars, and what is said meanwhile.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::pod::{PodPhase, RestartPolicy};
use muster_proto::taint::{Taint, TaintEffect};

use crate::admission::Rejection;
use crate::pod_lifecycle::{Ledger, Outcome, decide};
use crate::testing::harness::{Bench, now_at};
use crate::testing::{ContainerWords, container, labels, pod};

#[test]
fn a_bound_pod_starts_and_is_ready() {
    let mut bench = Bench::with([pod("a").condition(types::POD_SCHEDULED, ConditionStatus::True)]);
    assert_eq!(bench.steps(), ["start a/main#0", "report a Running ready"]);
    let stored = bench.stored("a");
    let conditions: Vec<(&str, ConditionStatus)> =
        stored.status.conditions.iter().map(|each| (each.kind.as_str(), each.status)).collect();
    let expected = ["PodScheduled", "Initialized", "ContainersReady", "Ready"];
    let expected = expected.map(|kind| (kind, ConditionStatus::True));
    assert_eq!(conditions, expected);
    assert_eq!(stored.status.start_time, Some(now_at(0).wall));
    assert_eq!(stored.status.observed_generation, 1);
    assert_eq!(stored.status.container_statuses[0].container_id, "process://1001");
    bench.advance(1000);
    assert_eq!(bench.steps(), [""; 0], "what is said stays said");
}

#[test]
fn nothing_is_concluded_from_half_a_picture() {
    let mut bench = Bench::with([pod("a")]);
    bench.settle();
    let mut ledger = Ledger::new();
    ledger.see_containers(bench.runtime.clone(), now_at(0));
    ledger.see_node(Some(bench.node.clone()), now_at(0));
    assert!(decide(&ledger, now_at(0)).actions.is_empty(), "the store has not been heard: nothing vanished");
    ledger.see_pods([], now_at(1));
    assert_eq!(decide(&ledger, now_at(1)).actions.len(), 1, "now it has");
}

#[test]
fn init_containers_run_in_order_before_the_rest() {
    let inits = vec![container("one"), container("side").sidecar(), container("two")];
    let mut bench = Bench::with([pod("a").inits(inits)]);
    assert_eq!(bench.steps(), ["start a/one#0", "report a Pending"]);
    bench.exits("a", "one", 0);
    assert_eq!(bench.steps(), ["start a/side#0", "start a/two#0", "report a Pending"]);
    bench.exits("a", "two", 1);
    assert_eq!(bench.steps(), ["start a/two#1", "report a Pending"], "tried again");
    bench.exits("a", "side", 1);
    assert_eq!(bench.steps(), ["start a/side#1", "report a Pending"], "a sidecar stays up");
    bench.exits("a", "two", 0);
    assert_eq!(bench.steps(), ["start a/main#0", "report a Running ready"]);
    bench.exits("a", "side", 0);
    bench.advance(10);
    assert_eq!(bench.steps(), ["start a/side#2", "report a Running ready"]);
}

#[test]
fn an_init_container_that_fails_for_good_fails_the_pod() {
    let inits = vec![container("side").sidecar(), container("one")];
    let mut bench = Bench::with([pod("a").inits(inits).restart(RestartPolicy::Never)]);
    bench.settle();
    bench.log.clear();
    bench.exits("a", "one", 3);
    assert_eq!(bench.steps(), ["term a/side", "report a Pending"]);
    bench.exits("a", "side", 0);
    assert_eq!(bench.steps(), ["release a but files", "report a Failed"]);
}

#[test]
fn s075_a_pod_that_does_not_fit_fails_and_stays() {
    let mut bench = Bench::with([pod("a").requests("cpu=3"), pod("b").requests("cpu=5")]);
    assert!(bench.steps().contains(&"report b Failed OutOfcpu".to_owned()));
    bench.node.site.allocatable = crate::testing::amounts("cpu=100 pods=10");
    bench.look();
    bench.advance(1000);
    assert_eq!(bench.steps(), [""; 0], "never tried again");
    bench.restart_agent();
    assert_eq!(bench.steps(), [""; 0], "not even by the next agent");
}

#[test]
fn pods_are_looked_at_oldest_first() {
    let mut bench = Bench::bare([pod("new").requests("cpu=3"), pod("old").requests("cpu=3")]);
    for (name, second) in [("new", 2), ("old", 1)] {
        let pod = bench.store.get_mut(&crate::testing::uid(name)).unwrap();
        pod.meta.creation_timestamp = Some(jiff::Timestamp::from_second(second).unwrap());
    }
    bench.look();
    bench.settle();
    assert_eq!(bench.stored("old").status.phase, PodPhase::Running);
    assert_eq!(bench.stored("new").status.reason, "OutOfcpu");
}

#[test]
fn s076_an_untolerated_taint_that_drives_off_fails_the_pod() {
    for (effect, source, expected) in [
        (TaintEffect::NoExecute, "api", "report a Failed TaintToleration"),
        (TaintEffect::NoSchedule, "api", "report a Running ready"),
        (TaintEffect::NoExecute, "file", "report a Running ready"),
    ] {
        let mut bench = Bench::bare([pod("a").source(source)]);
        bench.node.site.taints = vec![Taint::new("user", "", effect)];
        bench.look();
        assert_eq!(bench.steps().last().map(String::as_str), Some(expected), "{effect} {source}");
    }
}

#[test]
fn s072_a_node_that_shuts_down_turns_new_pods_away() {
    let mut bench = Bench::with([pod("a")]);
    bench.settle();
    bench.node.site.shutting_down = true;
    let late = pod("b").build();
    bench.store.insert(late.meta.uid.unwrap(), late);
    bench.look();
    bench.log.clear();
    assert_eq!(bench.steps(), ["report b Failed NodeShutdown"]);
}

#[test]
fn labels_that_do_not_fit_are_read_again_once() {
    let mut picky = pod("a").build();
    picky.spec.node_selector = labels("zone=b");
    for (fresh, expected) in
        [("zone=b", "report a Running ready"), ("zone=a", "report a Failed NodeAffinity")]
    {
        let mut bench = Bench::bare([]);
        bench.store.insert(picky.meta.uid.unwrap(), picky.clone());
        bench.look();
        bench.node.site.labels = labels(fresh);
        let steps = bench.steps();
        assert_eq!((steps[0].as_str(), steps.last().unwrap().as_str()), ("read node for a", expected));
    }
}

#[test]
fn a_controllers_false_readiness_is_corrected() {
    let mut bench = Bench::with([pod("a")]);
    bench.settle();
    bench.log.clear();
    bench.write("a", |pod| {
        let ready = pod.status.conditions.iter_mut().find(|each| each.kind == types::READY).unwrap();
        ready.status = ConditionStatus::False;
    });
    assert_eq!(bench.steps(), ["report a Running ready"]);
}

#[test]
fn conditions_of_others_are_kept() {
    let mut bench = Bench::with([pod("a").condition("example.com/gate", ConditionStatus::Unknown)]);
    bench.settle();
    assert_eq!(bench.stored("a").status.conditions[0].kind, "example.com/gate");
}

#[test]
fn a_record_that_moved_on_is_written_again_when_it_is_seen() {
    let mut bench = Bench::with([pod("a")]);
    bench.settle();
    bench.log.clear();
    bench.exits("a", "main", 1);
    bench.settle();
    bench.exits("a", "main", 1);
    bench.log.clear();
    bench.write_unseen("a", |pod| pod.meta.labels = labels("seen=not-yet"));
    assert_eq!(bench.steps(), ["report a Running", "report a Running"], "refused, seen, and posted at once");
    assert_eq!(bench.stored("a").meta.labels, labels("seen=not-yet"));
}

#[test]
fn s077_a_start_that_is_refused_fails_the_pod() {
    let mut bench = Bench::with([pod("a")]);
    let plan = decide(&bench.ledger, bench.now());
    let refusal = Rejection::new("TopologyAffinityError", "too far apart");
    bench.ledger.observe(&plan.actions[0], Outcome::Refused(refusal), bench.now());
    assert_eq!(bench.steps(), ["release a but files", "report a Failed TopologyAffinityError"]);
    assert_eq!(bench.stored("a").condition(types::DISRUPTION_TARGET), None);
    bench.advance(1000);
    assert_eq!(bench.steps(), [""; 0]);
}

#[test]
fn a_start_that_hangs_holds_up_nobody_else_and_ends_when_its_pod_does() {
    let mut bench = Bench::with([pod("a").containers(vec![container("slow")]), pod("b")]);
    bench.hung.push("slow".to_owned());
    assert_eq!(bench.steps(), ["start b/main#0", "report b Running ready"]);
    bench.advance(1);
    assert_eq!(bench.steps(), ["report a Pending"], "that it takes long is told");
    bench.delete("b", 5);
    bench.advance(5);
    assert_eq!(bench.steps().last().unwrap(), "delete b");

    bench.delete("a", 3);
    assert_eq!(bench.steps(), [""; 0], "there is nothing yet that could be asked to stop");
    bench.advance(3);
    assert_eq!(bench.steps(), ["kill a/slow", "release a", "report a Failed", "delete a"]);
}

#[test]
fn a_start_that_took_its_time_is_told_like_any_other() {
    let mut bench = Bench::with([pod("a").containers(vec![container("slow")])]);
    bench.hung.push("slow".to_owned());
    bench.settle();
    bench.advance(5);
    bench.settle();
    bench.log.clear();
    bench.answer();
    assert_eq!(bench.log, ["start a/slow#0"]);
    bench.log.clear();
    assert_eq!(bench.steps(), ["report a Running ready"]);
    assert_eq!(bench.stored("a").status.container_statuses[0].restart_count, 0);
}
