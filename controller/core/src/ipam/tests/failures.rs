//! Blocks that could not be written.

use super::*;

fn later() -> Failure {
    Failure::Later("the store is too busy".to_owned())
}

fn unknown() -> Failure {
    Failure::Unknown("no answer from the store in time".to_owned())
}

/// One node for which the first block is reserved.
fn reserved() -> Harness {
    let mut harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), vec![]);
    harness.put(node("a"));
    harness.decide(at(0));
    assert_eq!(harness.cidrs.take_changed(), ["a"]);
    harness
}

fn fail(harness: &mut Harness, failures: &[Failure]) {
    let subject = harness.subject("a");
    for failure in failures {
        harness.cidrs.assignment_failed(&subject, failure, at(0));
    }
}

#[test]
fn the_third_failure_releases_the_block_and_the_node_queues_again_after_a_back_off() {
    let mut harness = reserved();
    fail(&mut harness, &[later(), Failure::Refused("no".to_owned())]);
    assert_eq!(harness.counts(), [[1, 0, 0]], "two failures are allowed");
    let reason = "10.10.0.0/24 could not be written 2 times and is tried again.";
    assert_eq!(harness.explain("a"), (ExplanationState::Due, reason.to_owned()));
    fail(&mut harness, &[later()]);
    assert_eq!(harness.counts(), [[0, 1, 0]]);
    assert_eq!(harness.cidrs.take_changed(), ["a"]);

    let plan = harness.decide(at(0));
    let message = "Node a status is now: CIDRAssignmentFailed: the store is too busy";
    assert_eq!(
        (harness.events.as_slice(), plan.events[0].message.as_str()),
        (&["CIDRAssignmentFailed a".to_owned()][..], message)
    );
    assert_eq!(plan.wake_at, Some(at_ms(5).mono));
    let explanation = harness.cidrs.explain(harness.world.node("a").unwrap());
    assert_eq!((explanation.state, explanation.earliest), (ExplanationState::Waiting, Some(at_ms(5).mono)));
    harness.decide(at_ms(4));
    assert_eq!(harness.counts(), [[0, 1, 0]]);
    harness.decide(at_ms(5));
    assert_eq!(harness.counts(), [[1, 0, 0]]);
    harness.write("a");
    assert_eq!(harness.of("a"), "10.10.1.0/24");
}

#[test]
fn back_off_grows_up_to_a_thousand_seconds() {
    let mut harness = reserved();
    let (mut now, mut waits) = (at(0), Vec::new());
    for _ in 0..20 {
        let subject = harness.subject("a");
        for _ in 0..MAX_WRITES {
            harness.cidrs.assignment_failed(&subject, &later(), now);
        }
        let until = harness.decide(now).wake_at.unwrap();
        waits.push((until - now.mono).as_millis());
        now = Now { mono: until, ..now };
        harness.decide(now);
    }
    assert_eq!(waits[..4], [5, 10, 20, 40]);
    assert_eq!(waits[18..], [1_000_000, 1_000_000]);
}

#[test]
fn a_write_with_an_unknown_outcome_keeps_its_block_until_the_next_version() {
    let mut harness = reserved();
    fail(&mut harness, &[later(), later(), unknown(), later(), later()]);
    assert_eq!(harness.counts(), [[1, 0, 0]]);
    let reason = "10.10.0.0/24 was sent to the store, and it is not known whether the store has it.";
    assert_eq!(harness.explain("a"), (ExplanationState::Due, reason.to_owned()));

    let mut landed = Harness { world: harness.world.clone(), cidrs: harness.cidrs.clone(), ..reserved() };
    landed.version = harness.version;
    landed.put(node("a").cidrs(&["10.10.0.0/24"]));
    assert_eq!((landed.counts(), landed.explain("a").0), (vec![[1, 0, 0]], ExplanationState::Done));

    harness.put(node("a").label("newer", "version"));
    assert_eq!(harness.desired("a").spec.pod_cidrs, ["10.10.0.0/24".parse().unwrap()], "it is written again");
    fail(&mut harness, &[later()]);
    assert_eq!(harness.counts(), [[0, 1, 0]], "writes at the older version can no longer succeed");
}

#[test]
fn a_conflict_is_no_failure() {
    let mut harness = reserved();
    fail(&mut harness, &[Failure::Conflict, Failure::Conflict, Failure::Gone, Failure::Conflict]);
    assert_eq!(harness.counts(), [[1, 0, 0]]);
}

#[test]
fn failures_for_nodes_without_a_reserved_block_are_ignored() {
    let mut harness = reserved();
    harness.write("a");
    fail(&mut harness, &[later(), later(), later()]);
    assert_eq!((harness.counts(), harness.of("a").as_str()), (vec![[1, 0, 0]], "10.10.0.0/24"));
    let stranger = Subject::of_node(&node("stranger").build());
    harness.cidrs.assignment_failed(&stranger, &later(), at(0));
    harness.settle();
    assert!(harness.events.is_empty());
}

#[test]
fn a_node_being_deleted_that_could_not_be_written_is_forgotten() {
    let mut harness = reserved();
    harness.put(node("a").deleting());
    fail(&mut harness, &[later(), later(), later()]);
    assert_eq!(harness.counts(), [[0, 0, 0]]);
    harness.decide(at(5000));
    assert_eq!(harness.counts(), [[0, 0, 0]], "and does not queue again");
}
