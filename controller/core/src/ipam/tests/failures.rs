//! Blocks that could not be written.

use super::*;

fn later() -> Failure {
    Failure::Later("the store is too busy".to_owned())
}

fn unknown() -> Failure {
    Failure::Unknown("no answer from the store in time".to_owned())
}

/// One node that was promised the first block.
fn promised() -> Fleet {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    fleet.put(node("a"));
    fleet.decide(at(0));
    assert_eq!(fleet.cidrs.take_changed(), ["a"]);
    fleet
}

fn fail(fleet: &mut Fleet, failures: &[Failure]) {
    let subject = fleet.subject("a");
    for failure in failures {
        fleet.cidrs.assignment_failed(&subject, failure, at(0));
    }
}

#[test]
fn the_third_failure_gives_the_block_back_and_the_node_queues_again_after_a_rest() {
    let mut fleet = promised();
    fail(&mut fleet, &[later(), Failure::Refused("no".to_owned())]);
    assert_eq!(fleet.counts(), [[1, 0, 0]], "twice is not too often");
    let reason = "10.10.0.0/24 could not be written 2 times and is tried again.";
    assert_eq!(fleet.explain("a"), (ExplanationState::Due, reason.to_owned()));
    fail(&mut fleet, &[later()]);
    assert_eq!(fleet.counts(), [[0, 1, 0]]);
    assert_eq!(fleet.cidrs.take_changed(), ["a"]);

    let plan = fleet.decide(at(0));
    let message = "Node a status is now: CIDRAssignmentFailed: the store is too busy";
    assert_eq!(
        (fleet.told.as_slice(), plan.events[0].message.as_str()),
        (&["CIDRAssignmentFailed a".to_owned()][..], message)
    );
    assert_eq!(plan.wake_at, Some(at_ms(5).mono));
    let explanation = fleet.cidrs.explain(fleet.world.node("a").unwrap());
    assert_eq!((explanation.state, explanation.earliest), (ExplanationState::Waiting, Some(at_ms(5).mono)));
    fleet.decide(at_ms(4));
    assert_eq!(fleet.counts(), [[0, 1, 0]]);
    fleet.decide(at_ms(5));
    assert_eq!(fleet.counts(), [[1, 0, 0]]);
    fleet.write("a");
    assert_eq!(fleet.of("a"), "10.10.1.0/24");
}

#[test]
fn rests_grow_until_a_thousand_seconds() {
    let mut fleet = promised();
    let (mut now, mut rests) = (at(0), Vec::new());
    for _ in 0..20 {
        let subject = fleet.subject("a");
        for _ in 0..TRIES {
            fleet.cidrs.assignment_failed(&subject, &later(), now);
        }
        let until = fleet.decide(now).wake_at.unwrap();
        rests.push((until - now.mono).as_millis());
        now = Now { mono: until, ..now };
        fleet.decide(now);
    }
    assert_eq!(rests[..4], [5, 10, 20, 40]);
    assert_eq!(rests[18..], [1_000_000, 1_000_000]);
}

#[test]
fn a_write_nobody_knows_the_end_of_keeps_its_block_until_the_record_tells() {
    let mut fleet = promised();
    fail(&mut fleet, &[later(), later(), unknown(), later(), later()]);
    assert_eq!(fleet.counts(), [[1, 0, 0]]);
    let reason = "10.10.0.0/24 was sent to the store, and it is not known whether the store has it.";
    assert_eq!(fleet.explain("a"), (ExplanationState::Due, reason.to_owned()));

    let mut landed = Fleet { world: fleet.world.clone(), cidrs: fleet.cidrs.clone(), ..promised() };
    landed.version = fleet.version;
    landed.put(node("a").cidrs(&["10.10.0.0/24"]));
    assert_eq!((landed.counts(), landed.explain("a").0), (vec![[1, 0, 0]], ExplanationState::Done));

    fleet.put(node("a").label("newer", "version"));
    assert_eq!(fleet.shaped("a").spec.pod_cidrs, ["10.10.0.0/24".parse().unwrap()], "it is tried again");
    fail(&mut fleet, &[later()]);
    assert_eq!(fleet.counts(), [[0, 1, 0]], "that version can no longer be written to");
}

#[test]
fn a_record_that_moved_on_is_no_failure() {
    let mut fleet = promised();
    fail(&mut fleet, &[Failure::Conflict, Failure::Conflict, Failure::Gone, Failure::Conflict]);
    assert_eq!(fleet.counts(), [[1, 0, 0]]);
}

#[test]
fn failures_of_nodes_without_a_promise_say_nothing() {
    let mut fleet = promised();
    fleet.write("a");
    fail(&mut fleet, &[later(), later(), later()]);
    assert_eq!((fleet.counts(), fleet.of("a").as_str()), (vec![[1, 0, 0]], "10.10.0.0/24"));
    let stranger = Subject::of_node(&node("stranger").build());
    fleet.cidrs.assignment_failed(&stranger, &later(), at(0));
    fleet.settle();
    assert!(fleet.told.is_empty());
}

#[test]
fn a_leaving_node_that_could_not_be_written_is_done_with() {
    let mut fleet = promised();
    fleet.put(node("a").deleting());
    fail(&mut fleet, &[later(), later(), later()]);
    assert_eq!(fleet.counts(), [[0, 0, 0]]);
    fleet.decide(at(5000));
    assert_eq!(fleet.counts(), [[0, 0, 0]], "and does not queue again");
}
