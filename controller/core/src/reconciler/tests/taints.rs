use muster_proto::condition::ConditionStatus::{False, True, Unknown};

use crate::fixtures::node;
use crate::fixtures::simulator::Stage;
use crate::trace_event::Note;

/// Three nodes of one zone that live, before a controller that judges them.
fn three() -> Stage {
    let mut stage = Stage::new();
    stage.start();
    for name in ["a", "b", "c"] {
        stage.living(name, "");
    }
    stage
}

#[test]
fn s092_a_node_that_says_it_is_not_ready_gets_both_taints() {
    let mut stage = three();
    stage.run_until(12.0).agent("a", |agent| agent.ready = False);
    stage.post("a", False);
    stage.run_until(12.001);
    assert_eq!(stage.taints("a"), "not-ready:NS", "at once");
    stage.run_until(18.0);
    assert_eq!(stage.taints("a"), "not-ready:NS not-ready:NE");
}

#[test]
fn s093_a_silent_node_gets_both_taints() {
    let mut stage = three();
    stage.kill("a");
    stage.run_until(60.0);
    assert_eq!(stage.taints("a"), "unreachable:NS unreachable:NE");
    assert_eq!(stage.taints("b"), "");
}

#[test]
fn s094_one_illness_is_swapped_for_another_without_a_token() {
    let mut stage = three();
    stage.kill("a");
    stage.kill("b");
    stage.run_until(56.0);
    assert_eq!(stage.given_up().len(), 1, "the other waits for a token");
    let first = stage.given_up()[0].1.clone();
    stage.post(&first, False);
    stage.run_until(56.5);
    assert_eq!(stage.taints(&first), "not-ready:NS not-ready:NE");
}

#[test]
fn of_two_illnesses_the_wrong_one_goes_without_a_token() {
    let mut stage = three();
    stage.run_until(1.0).agent("a", |agent| agent.ready = False);
    let ill = node("a").ready(False).build().status;
    stage.edit_node("a", |node| {
        node.status = ill;
        for key in ["not-ready", "unreachable"] {
            node.spec.taints.push(format!("node.kubernetes.io/{key}:NoExecute").parse().unwrap());
        }
    });
    stage.run_until(6.0);
    assert_eq!(stage.taints("a"), "not-ready:NE not-ready:NS");
    let tokens = stage.notes.iter().filter(|(_, note)| matches!(note, Note::TokenTaken { .. })).count();
    assert_eq!((tokens, stage.given_up().len(), stage.zone("").evictions), (0, 0, 0));
}

#[test]
fn s095_whoever_recovers_in_the_queue_is_never_tainted() {
    let mut stage = three();
    stage.kill("a");
    stage.kill("b");
    stage.run_until(56.0).revive("b");
    stage.run_until(300.0);
    let names: Vec<String> = stage.given_up().into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn s096_a_taint_that_is_taken_off_a_sick_node_comes_back() {
    let mut stage = three();
    stage.kill("a");
    stage.run_until(61.0);
    stage.edit_node("a", |node| node.spec.taints.clear());
    stage.run_until(77.0);
    assert_eq!(stage.taints("a"), "unreachable:NS unreachable:NE");
}

#[test]
fn s097_a_health_taint_on_a_node_that_is_well_is_taken_off() {
    let mut stage = three();
    stage.edit_node("a", |node| {
        node.spec.taints.push("node.kubernetes.io/not-ready:NoExecute".parse().unwrap());
    });
    stage.run_until(6.0);
    assert_eq!(stage.taints("a"), "");
}

#[test]
fn s100_taints_of_others_are_left_alone_through_it_all() {
    let mut stage = Stage::new();
    stage.start().living("b", "");
    stage.put_node(
        node("a")
            .ready(True)
            .taint("dedicated=x:NoSchedule")
            .taint("node.kubernetes.io/memory-pressure:NoExecute"),
    );
    stage.run_until(100.0);
    assert_eq!(stage.ready("a"), Unknown);
    assert!(stage.taints("a").starts_with("dedicated=x:NS memory-pressure:NE"), "{}", stage.taints("a"));
}

#[test]
fn a_failed_write_of_taints_is_tried_again() {
    let mut stage = three();
    stage.fail("its record", 3);
    stage.edit_node("a", |node| node.spec.unschedulable = true);
    stage.run_until(2.0);
    assert_eq!(stage.taints("a"), "unschedulable:NS");
}

#[test]
fn s173_a_taint_that_was_taken_off_by_hand_returns_at_once() {
    let mut stage = three();
    stage.run_until(12.0).agent("a", |agent| agent.ready = False);
    stage.post("a", False);
    stage.run_until(14.0);
    assert_eq!(stage.taints("a"), "not-ready:NS");
    stage.edit_node("a", |node| node.spec.taints.clear());
    assert_eq!(stage.taints("a"), "not-ready:NS");
    assert_eq!(stage.when("+not-ready:NS"), [(12.0, "a".to_owned()), (14.0, "a".to_owned())]);
}
