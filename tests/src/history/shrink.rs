//! Reduces a history that no order explains to the calls that show it.

use super::linearizability::{Verdict, check};
use super::register::{Answer, NEVER, Operation, State};

/// The part of a history that shows why no order explains it, and whether it begins in the middle of the whole.
pub struct Offence {
    pub operations: Vec<Operation>,
    pub is_from_the_start: bool,
}

/// Reduces operations that are not linearizable. What is left out only made fewer orders possible.
pub fn shrink(operations: &[Operation]) -> Offence {
    let shortest = shortest_beginning(operations);
    let (mut left, start) = latest_start(shortest);
    let mut index = 0;
    while index < left.len() {
        let without = [&left[..index], &left[index + 1..]].concat();
        if left[index].is_read_only() && check(&without, start) == Verdict::NotLinearizable {
            left = without;
        } else {
            index += 1;
        }
    }
    Offence { operations: left, is_from_the_start: start == State::NEW }
}

/// What was known at a moment: calls that had not ended then may not have been done.
fn as_of(operations: &[Operation], at: u64) -> Vec<Operation> {
    let begun = operations.iter().filter(|operation| operation.invoked <= at);
    begun
        .filter(|operation| operation.returned <= at || !operation.is_read_only())
        .map(|operation| match operation.returned {
            returned if returned <= at => *operation,
            _ => Operation { answer: Answer::Unknown, returned: NEVER, ..*operation },
        })
        .collect()
}

/// The history up to the first moment at which it cannot be explained any more.
fn shortest_beginning(operations: &[Operation]) -> Vec<Operation> {
    let mut ends: Vec<u64> =
        operations.iter().map(|operation| operation.returned).filter(|end| *end != NEVER).collect();
    ends.sort_unstable();
    ends.dedup();
    // Once it cannot be explained, no further call explains it.
    let explained =
        ends.partition_point(|end| check(&as_of(operations, *end), State::NEW) != Verdict::NotLinearizable);
    match ends.get(explained) {
        Some(end) => as_of(operations, *end),
        None => operations.to_vec(),
    }
}

/// Leaves out all up to the last moment without a call under way from which on it still cannot be explained, whatever the
/// record was then. Writes without an answer may be done at any time, so they stay.
fn latest_start(operations: Vec<Operation>) -> (Vec<Operation>, State) {
    let ended = || operations.iter().filter(|operation| !operation.is_open());
    let mut moments: Vec<u64> = ended().map(|operation| operation.invoked).collect();
    moments.sort_unstable();
    moments.dedup();
    for moment in moments.into_iter().rev() {
        if ended().any(|operation| operation.invoked < moment && operation.returned >= moment) {
            continue;
        }
        let kept: Vec<Operation> = operations
            .iter()
            .filter(|operation| operation.is_open() || operation.invoked >= moment)
            .copied()
            .collect();
        if check(&kept, State::ANY) == Verdict::NotLinearizable {
            return (kept, State::ANY);
        }
    }
    (operations, State::NEW)
}
