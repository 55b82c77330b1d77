use std::collections::HashMap;

use super::super::register::{Answer, Call, Sighting, complete};
use super::super::shrink::shrink;
use super::*;

/// An operation between two times, by a client of its own.
fn at(invoked: u64, returned: u64, call: Call, answer: Answer) -> Operation {
    Operation { client: invoked as usize, call, answer, invoked, returned }
}

fn create(value: u64) -> Call {
    Call::Create { value }
}

fn update(expected: u64, value: u64) -> Call {
    Call::Update { expected, value }
}

fn delete(expected: u64) -> Call {
    Call::Delete { expected }
}

fn found(version: u64, value: u64) -> Answer {
    Answer::Found { version, value }
}

const READ: Call = Call::Read;

fn verdict(operations: &[Operation]) -> Verdict {
    check(&complete(operations, &HashMap::new()), State::NEW)
}

#[test]
fn histories_that_some_order_explains_are_accepted() {
    use Answer::{Absent, Conflict, Exists, Unknown, Written};
    let histories: [(&str, Vec<Operation>); 10] = [
        ("nothing", vec![]),
        (
            "one after the other",
            vec![
                at(0, 1, READ, Absent),
                at(2, 3, create(1), Written(5)),
                at(4, 5, READ, found(5, 1)),
                at(6, 7, update(5, 2), Written(6)),
                at(8, 9, update(5, 3), Conflict),
                at(10, 11, create(4), Exists),
                at(12, 13, delete(0), Written(9)),
                at(14, 15, update(0, 5), Absent),
                at(16, 17, READ, Absent),
            ],
        ),
        (
            "a read beside a write sees it or not",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 9, update(1, 2), Written(2)),
                at(3, 4, READ, found(1, 1)),
                at(5, 6, READ, found(2, 2)),
            ],
        ),
        (
            "an open write is seen at last",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 3, update(1, 2), Unknown),
                at(4, 5, READ, found(1, 1)),
                at(6, 7, READ, found(2, 2)),
            ],
        ),
        (
            "an open write that nobody ever sees",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 3, update(1, 2), Unknown),
                at(4, 5, READ, found(1, 1)),
            ],
        ),
        (
            "an open write that explains a refusal",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 3, update(1, 2), Unknown),
                at(4, 5, update(1, 3), Conflict),
                at(6, 7, delete(0), Written(3)),
            ],
        ),
        (
            "an open deletion between two creations",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 3, delete(1), Unknown),
                at(4, 5, READ, found(1, 1)),
                at(6, 7, create(2), Written(9)),
            ],
        ),
        (
            "of two that compare the same version one wins",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 8, update(1, 2), Conflict),
                at(3, 9, update(1, 3), Written(2)),
                at(10, 11, READ, found(2, 3)),
            ],
        ),
        (
            "versions say in which order writes were done",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 9, update(0, 2), Written(3)),
                at(2, 9, update(0, 3), Written(2)),
                at(10, 11, READ, found(3, 2)),
            ],
        ),
        (
            "a refusal of a write that began before the record was there",
            vec![
                at(0, 9, update(0, 7), Absent),
                at(1, 2, create(1), Written(4)),
                at(3, 4, READ, found(4, 1)),
            ],
        ),
    ];
    for (name, history) in histories {
        assert_eq!(verdict(&history), Verdict::Linearizable, "{name}");
    }
}

/// What a store with a fault would show.
fn faults() -> Vec<(&'static str, Vec<Operation>)> {
    use Answer::{Absent, Conflict, Exists, Unknown, Written};
    vec![
        (
            "a stale read: a follower that answers from before an acknowledged write",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 3, update(1, 2), Written(2)),
                at(4, 5, READ, found(1, 1)),
            ],
        ),
        (
            "a stale read after somebody else saw the new value, whose write is still under way",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 9, update(1, 2), Written(2)),
                at(3, 4, READ, found(2, 2)),
                at(5, 6, READ, found(1, 1)),
            ],
        ),
        (
            "a lost write",
            vec![at(0, 1, create(1), Written(1)), at(2, 3, READ, Absent), at(4, 5, create(2), Written(2))],
        ),
        (
            "a lost update: two compared the same version and both were done",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 8, update(1, 2), Written(2)),
                at(3, 9, update(1, 3), Written(3)),
            ],
        ),
        (
            "a deposed leader acknowledged a write that its successor does not have",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 3, update(1, 2), Written(2)),
                at(4, 5, update(1, 3), Written(3)),
                at(6, 7, READ, found(3, 3)),
            ],
        ),
        (
            "a refused write that was done",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 3, update(9, 2), Conflict),
                at(4, 5, READ, found(2, 2)),
            ],
        ),
        (
            "an open write that is seen and then gone",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 3, update(1, 2), Unknown),
                at(4, 5, READ, found(2, 2)),
                at(6, 7, READ, found(1, 1)),
            ],
        ),
        ("a creation of what exists", vec![at(0, 1, create(1), Written(1)), at(2, 3, create(2), Written(2))]),
        ("a refusal without a reason", vec![at(0, 1, create(1), Exists)]),
        (
            "a deletion that came back",
            vec![
                at(0, 1, create(1), Written(1)),
                at(2, 3, delete(1), Written(2)),
                at(4, 5, READ, found(1, 1)),
            ],
        ),
        ("versions that go back", vec![at(0, 1, create(1), Written(7)), at(2, 3, update(0, 2), Written(6))]),
        (
            "a value at a version that is not its write's",
            vec![at(0, 1, create(1), Written(7)), at(2, 3, READ, found(8, 1))],
        ),
    ]
}

#[test]
fn histories_of_a_store_with_a_fault_are_refused() {
    for (name, history) in faults() {
        assert_eq!(verdict(&history), Verdict::NotLinearizable, "{name}");
    }
}

#[test]
fn what_a_watcher_has_seen_must_be_read_from_then_on() {
    let history = [
        at(0, 1, create(1), Answer::Written(1)),
        at(2, 3, update(1, 2), Answer::Unknown),
        at(10, 11, READ, found(1, 1)),
    ];
    assert_eq!(verdict(&history), Verdict::Linearizable);
    for (seen_at, expected) in [(9, Verdict::NotLinearizable), (10, Verdict::Linearizable)] {
        let sightings = [(2, Sighting { version: 2, at: seen_at })].into();
        let completed = complete(&history, &sightings);
        assert_eq!(check(&completed, State::NEW), expected, "seen at {seen_at}");
    }
}

/// A history of some clients that take turns on a correct register: each call takes effect at one moment.
fn correct(seed: u64, calls: u64) -> Vec<Operation> {
    let mut random = crate::store_process::SeededRandom::from_seed(seed);
    let (mut record, mut version, mut operations) = (None::<(u64, u64)>, 0, Vec::new());
    // What somebody was answered, and when.
    let mut answered = vec![(0, 0)];
    for moment in 1..=calls {
        let (invoked, returned) =
            ((moment * 10).saturating_sub(random.below(40)), moment * 10 + random.below(40));
        let known = answered.iter().filter(|(at, _)| *at < invoked).max().map_or(0, |(_, version)| *version);
        let expected = if random.one_in(3) { 0 } else { known };
        let call = match random.below(6) {
            0 | 1 => READ,
            2 => create(moment),
            3 => delete(expected),
            _ => update(expected, moment),
        };
        let fits = |expected: u64| record.is_none_or(|(at, _)| expected == 0 || expected == at);
        let refused = match (call, record) {
            (Call::Create { .. }, Some(_)) => Some(Answer::Exists),
            (Call::Update { .. } | Call::Delete { .. }, None) => Some(Answer::Absent),
            (Call::Update { expected, .. } | Call::Delete { expected }, _) if !fits(expected) => {
                Some(Answer::Conflict)
            }
            (Call::Read, Some((version, value))) => Some(found(version, value)),
            (Call::Read, None) => Some(Answer::Absent),
            _ => None,
        };
        let is_lost = random.one_in(12);
        let answer = refused.unwrap_or_else(|| {
            version += 1 + random.below(3);
            record = match call {
                Call::Delete { .. } => None,
                _ => Some((version, moment)),
            };
            Answer::Written(version)
        });
        let answer = if is_lost && call != READ { Answer::Unknown } else { answer };
        if let Answer::Written(version) | Answer::Found { version, .. } = answer {
            answered.push((returned, version));
        }
        operations.push(at(invoked, returned, call, answer));
    }
    operations
}

#[test]
fn what_a_correct_register_answers_is_always_accepted() {
    for seed in 0..300 {
        let history = correct(seed, 120);
        assert_eq!(verdict(&history), Verdict::Linearizable, "seed {seed}");
    }
}

#[test]
fn an_answer_from_the_past_is_found_among_many_others_and_shown_with_few_of_them() {
    let (mut refused, mut longest) = (0, 0);
    for seed in 0..30 {
        let mut history = correct(seed, 120);
        // One read answers what the first one after the middle found, though it was written over since.
        let old = history[60..].iter().find(|operation| matches!(operation.answer, Answer::Found { .. }));
        let Some(old) = old.copied() else { continue };
        let overwritten = history
            .iter()
            .any(|later| later.invoked > old.returned && later.version().is_some() && later.returned < 1150);
        if !overwritten {
            continue;
        }
        history.push(at(1400, 1401, READ, old.answer));
        assert_eq!(verdict(&history), Verdict::NotLinearizable, "seed {seed}");
        let offence = shrink(&complete(&history, &HashMap::new()));
        assert_eq!(
            check(&offence.operations, State::ANY) == Verdict::NotLinearizable,
            !offence.is_from_the_start
        );
        assert!(offence.operations.iter().any(|operation| operation.invoked == 1400), "seed {seed}");
        refused += 1;
        longest = longest.max(offence.operations.iter().filter(|it| !it.is_open()).count());
    }
    assert!(refused > 15, "{refused}");
    assert!(longest < 60, "{longest} calls are too many to read");
}

#[test]
fn every_fault_is_shown_by_calls_that_show_it_on_their_own() {
    for (name, history) in faults() {
        let completed = complete(&history, &HashMap::new());
        let offence = shrink(&completed);
        let start = if offence.is_from_the_start { State::NEW } else { State::ANY };
        assert_eq!(check(&offence.operations, start), Verdict::NotLinearizable, "{name}");
        assert!(offence.operations.len() <= history.len(), "{name}");
    }
}
