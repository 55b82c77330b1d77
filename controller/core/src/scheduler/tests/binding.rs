//! Pods between the choice of a node and the record that shows it.

use muster_proto::pod::PodPhase;

use super::*;
use crate::plan::PlannedAction;

/// A node with room for one pod, and the action that binds a pod to it.
fn binding() -> (Harness, PlannedAction) {
    let mut harness = Harness::new();
    harness.node(node("n").allocatable("pods=1"));
    harness.pod(pod("p"));
    let mut plan = harness.decide();
    assert_eq!(actions(&plan), ["p -> n"]);
    (harness, plan.actions.remove(0))
}

/// Whether the node has room for another pod.
fn has_room(harness: &mut Harness) -> bool {
    let node = "n".parse().unwrap();
    let fits = harness.scheduler.cache.fits(&PodRequirements::of(&pod("other").build().spec), &node);
    assert_eq!(fits, harness.scheduler.cache.allocated("n").pods == 0);
    fits
}

fn unknown() -> Result<crate::plan::Answer, Failure> {
    Err(Failure::Unknown("no answer came".to_owned()))
}

#[test]
fn a_request_is_allocated_from_the_decision_on() {
    let (mut harness, planned) = binding();
    harness.pod(pod("q"));
    assert_eq!(actions(&harness.decide()), ["q ? 0/1 nodes are available: 1 Too many pods."]);
    assert_eq!(harness.scheduling_status("p").to_string(), "The pod is being bound to node n.");
    assert_eq!(harness.scheduler.pending(), 1, "the other one");
    let outcome = harness.outcome(&planned);
    harness.settle(&planned, outcome);
    assert_eq!((harness.scheduler.cache.allocated("n").pods, has_room(&mut harness)), (1, false));
    harness.decide();
    assert_eq!(harness.events.last().unwrap(), "Scheduled: Successfully assigned default/p to n");
    harness.remove_pod("p");
    assert!(has_room(&mut harness));
}

#[test]
fn the_record_may_come_before_the_outcome() {
    let (mut harness, planned) = binding();
    let answer = harness.outcome(&planned);
    harness.pod(pod("p").on("n"));
    assert!(!has_room(&mut harness));
    harness.settle(&planned, answer);
    harness.decide();
    assert_eq!(harness.events, ["Scheduled: Successfully assigned default/p to n"]);
    harness.change_pod("p", |pod| pod.status.phase = PodPhase::Succeeded);
    assert!(has_room(&mut harness));
}

#[test]
fn after_a_conflict_the_pod_is_queued_again() {
    let (mut harness, planned) = binding();
    harness.settle(&planned, Err(Failure::Conflict));
    assert!(has_room(&mut harness));
    assert_eq!(
        harness.scheduling_status("p").to_string(),
        "The pod could not be bound: its record has changed."
    );
    assert_eq!(harness.run_until(1), ["1: p -> n"]);

    let (mut harness, planned) = binding();
    harness.settle(&planned, Err(Failure::Conflict));
    harness.pod(pod("p").on("elsewhere"));
    assert_eq!(harness.run_until(20), Vec::<String>::new(), "another writer had bound it");
    assert!(has_room(&mut harness));
}

#[test]
fn back_off_doubles_while_the_store_does_not_bind() {
    let (mut harness, mut planned) = binding();
    let mut waits = Vec::new();
    for _ in 0..5 {
        let tried = harness.millis;
        harness.settle(&planned, Err(Failure::Conflict));
        let again_at = harness.scheduling_status("p").again_at().unwrap();
        harness.millis += (again_at - harness.now().mono).as_millis() as u64;
        waits.push(harness.millis - tried);
        planned = harness.decide().actions.remove(0);
    }
    assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 10_000]);
}

#[test]
fn a_pod_that_is_gone_is_forgotten() {
    let (mut harness, planned) = binding();
    harness.settle(&planned, Err(Failure::Gone));
    assert!(has_room(&mut harness));
    assert_eq!(harness.run_until(1_000), Vec::<String>::new());
    harness.change_pod("p", |pod| pod.status.reason = "still here".to_owned());
    assert_eq!(harness.run(), ["p -> n"], "its record shows that it is not gone");
}

#[test]
fn a_request_stays_allocated_while_the_outcome_is_unknown() {
    let (mut harness, planned) = binding();
    harness.settle(&planned, unknown());
    assert!(!has_room(&mut harness));
    let status = harness.scheduling_status("p");
    assert_eq!(status.to_string(), "It is not known whether the pod was bound to node n: no answer came.");
    assert_eq!(status.again_at(), Some(at(1).mono));
    harness.node(roomy("better"));
    assert_eq!(harness.run_until(1), ["1: p -> n"], "the same node is tried again");
    assert_eq!(harness.node_of("p"), "n");
}

#[test]
fn a_conflict_after_an_unknown_outcome_may_be_our_own_binding() {
    let (mut harness, planned) = binding();
    harness.settle(&planned, unknown());
    harness.millis = 1_000;
    let again = harness.decide().actions.remove(0);
    harness.settle(&again, Err(Failure::Conflict));
    assert!(!has_room(&mut harness), "it stays allocated until the record shows the node");
    harness.pod(pod("p").on("n"));
    assert_eq!((harness.scheduler.cache.allocated("n").pods, harness.scheduler.pending()), (1, 0));

    // The record does not show a node: the pod is queued again.
    let (mut harness, planned) = binding();
    harness.settle(&planned, unknown());
    harness.millis = 1_000;
    let again = harness.decide().actions.remove(0);
    harness.settle(&again, Err(Failure::Conflict));
    assert_eq!(harness.run_until(60), ["31: p -> n"]);
}

#[test]
fn uncertainty_ends_after_half_a_minute() {
    let (mut harness, mut planned) = binding();
    harness.node(node("m").allocatable("pods=1"));
    let mut asked = Vec::new();
    while harness.millis < 60_000 {
        harness.settle(&planned, unknown());
        let again_at = harness.scheduling_status("p").again_at().unwrap();
        harness.millis += (again_at - harness.now().mono).as_millis() as u64;
        planned = harness.decide().actions.remove(0);
        asked.push(format!("{} {}", harness.millis / 1000, words(&planned)));
    }
    assert_eq!(asked[..4], ["1 p -> n", "3 p -> n", "7 p -> n", "15 p -> n"]);
    assert_eq!(
        asked[4..6],
        ["25 p -> n", "35 p -> m"],
        "it is scheduled like any other pod, and m is the lower name"
    );
}

#[test]
fn an_unknown_binding_to_a_removed_node_is_waited_out() {
    let (mut harness, planned) = binding();
    harness.settle(&planned, unknown());
    harness.remove_node("n");
    harness.node(roomy("m"));
    assert_eq!(
        harness.run_until(40),
        ["30: p -> m"],
        "it may have been bound, and another node of that name may be created"
    );
}

#[test]
fn a_refused_binding_is_reported_and_retried_after_five_minutes() {
    let (mut harness, planned) = binding();
    harness.settle(&planned, Err(Failure::Refused("not permitted".to_owned())));
    assert_eq!(harness.scheduling_status("p").to_string(), "The pod could not be bound: not permitted.");
    assert_eq!(harness.run_until(299), Vec::<String>::new());
    assert_eq!(harness.events, ["FailedScheduling: not permitted"]);
    assert_eq!(harness.run_until(300), ["300: p -> n"]);
}

#[test]
fn a_pod_deleted_while_it_is_being_bound_is_released() {
    let (mut harness, planned) = binding();
    harness.change_pod("p", |pod| pod.meta.deletion_timestamp = Some(at(0).wall));
    assert!(has_room(&mut harness), "an unbound pod that is being deleted has nothing allocated");
    harness.settle(&planned, Err(Failure::Conflict));
    assert_eq!(harness.run_until(60), Vec::<String>::new());
}

#[test]
fn a_pod_of_the_same_name_with_another_uid_is_another_pod() {
    let (mut harness, planned) = binding();
    harness.pod(pod("p").identity("other"));
    assert!(has_room(&mut harness));
    harness.settle(&planned, Err(Failure::Gone));
    assert_eq!(actions(&harness.decide()), ["p -> n"], "the other pod is scheduled by itself");
}

#[test]
fn a_reason_that_was_not_written_is_written_again() {
    for (failure, again_after) in [
        (Failure::Conflict, Some(1)),
        (Failure::Later("busy".to_owned()), Some(1)),
        (Failure::Unknown("no answer".to_owned()), Some(1)),
        (Failure::Refused("not permitted".to_owned()), None),
    ] {
        let mut harness = Harness::new();
        harness.pod(pod("p"));
        let planned = harness.decide().actions.remove(0);
        assert_eq!(harness.decide().actions, [], "the write is in flight");
        harness.settle(&planned, Err(failure.clone()));
        let done = harness.run_until(100);
        let expected = again_after.map(|at| format!("{at}: p ? 0/0 nodes are available."));
        assert_eq!(done, expected.into_iter().collect::<Vec<_>>(), "{failure:?}");
    }
}

#[test]
fn a_pod_whose_reason_is_being_written_is_bound_after_that() {
    let mut harness = Harness::new();
    harness.pod(pod("p"));
    let report = harness.decide().actions.remove(0);
    harness.millis = 2_000;
    harness.node(roomy("n"));
    assert_eq!(harness.decide().actions, [], "one action per pod at a time");
    harness.settle(&report, Err(Failure::Conflict));
    assert_eq!(actions(&harness.decide()), ["p -> n"]);
}

#[test]
fn a_pod_that_another_writer_bound_gets_no_scheduled_event() {
    let mut harness = Harness::new();
    harness.pod(pod("p"));
    let report = harness.decide().actions.remove(0);
    let mut bound = harness.record("p");
    bound.spec.node_name = Some("elsewhere".parse().unwrap());
    harness.settle(&report, Ok(crate::plan::Answer::Pod(Box::new(bound))));
    harness.decide();
    assert!(!harness.events.iter().any(|event| event.starts_with("Scheduled")), "{:?}", harness.events);
}

#[test]
fn the_outcome_of_a_previous_leaders_action_changes_nothing() {
    let mut harness = Harness::new();
    harness.pod(pod("p"));
    let stray = PlannedAction {
        controller: crate::plan::ControllerName::Scheduler,
        subject: crate::plan::Subject::of_pod(&harness.record("p")),
        action: crate::plan::Action::BindPod { node: "x".parse().unwrap() },
        why: "another leader planned it".into(),
        causes: Vec::new(),
    };
    for failure in [Failure::Conflict, Failure::Gone, Failure::Later(String::new())] {
        harness.settle(&stray, Err(failure));
    }
    harness.node(roomy("n"));
    assert_eq!(harness.run(), ["p -> n"]);
}
