//! Whether the calls on one record can be put into an order in which each did what it says, at some moment between its
//! beginning and its end.
//!
//! A search with a memory of what was tried, after Wing and Gong, and Lowe. Three things keep it short: a call that changes
//! nothing is taken as soon as it fits, since that never rules anything out; versions order the writes; and a write without
//! an answer is tried only where it fits.

use std::collections::HashSet;

use super::register::{NEVER, Operation, State};

/// The outcome of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    /// No order explains the answers.
    NotLinearizable,
    /// The search was ended: there are too many possibilities.
    Undecided,
}

/// How many partial orders are looked at, at most.
const BUDGET: usize = 400_000;

/// What was put in order so far, and the state after it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Partial {
    done: Vec<u64>,
    state: State,
}

impl Partial {
    fn has(&self, index: usize) -> bool {
        self.done[index / 64] & (1 << (index % 64)) != 0
    }

    fn with(mut self, index: usize, state: State) -> Partial {
        self.done[index / 64] |= 1 << (index % 64);
        self.state = state;
        self
    }
}

/// Searches for an order of operations, which are sorted by their beginning.
pub fn check(operations: &[Operation], start: State) -> Verdict {
    debug_assert!(operations.is_sorted_by_key(|operation| operation.invoked));
    let mut waiting = vec![Partial { done: vec![0; operations.len().div_ceil(64)], state: start }];
    let mut tried = HashSet::new();
    while let Some(partial) = waiting.pop() {
        let partial = take_what_changes_nothing(partial, operations);
        let pending = Pending::of(&partial, operations);
        if pending.is_empty {
            return Verdict::Linearizable;
        }
        if tried.contains(&partial) {
            continue;
        }
        if tried.len() == BUDGET {
            return Verdict::Undecided;
        }
        let mut next = Vec::new();
        for index in pending.candidates(&partial, operations) {
            let operation = &operations[index];
            if operation.version().is_some_and(|version| version != pending.lowest_version) {
                continue;
            }
            if let Some(state) = partial.state.after(operation) {
                next.push((operation.is_open(), partial.clone().with(index, state)));
            }
        }
        // The last one is tried first: writes that were done before those that perhaps were not.
        next.sort_by_key(|(is_open, _)| !*is_open);
        waiting.extend(next.into_iter().map(|(_, partial)| partial));
        tried.insert(partial);
    }
    Verdict::NotLinearizable
}

/// What is not in order yet.
struct Pending {
    /// Nothing is left that was certainly done.
    is_empty: bool,
    /// When the first of them ended: what began later comes after it.
    first_end: u64,
    /// Of those that may come next: writes are in the order of their versions.
    lowest_version: u64,
}

impl Pending {
    fn of(partial: &Partial, operations: &[Operation]) -> Pending {
        let mut pending = Pending { is_empty: true, first_end: NEVER, lowest_version: u64::MAX };
        for (index, operation) in operations.iter().enumerate() {
            if operation.invoked > pending.first_end {
                break;
            }
            if operation.is_open() || partial.has(index) {
                continue;
            }
            pending.is_empty = false;
            pending.first_end = pending.first_end.min(operation.returned);
            pending.lowest_version = pending.lowest_version.min(operation.version().unwrap_or(u64::MAX));
        }
        pending
    }

    /// What may come next by the times of calls.
    fn candidates<'a>(
        &'a self,
        partial: &'a Partial,
        operations: &'a [Operation],
    ) -> impl Iterator<Item = usize> + 'a {
        let possible =
            operations.iter().enumerate().take_while(|(_, operation)| operation.invoked <= self.first_end);
        possible.map(|(index, _)| index).filter(|index| !partial.has(*index))
    }
}

/// Puts into the order all that may come next and leaves the state as it is.
fn take_what_changes_nothing(mut partial: Partial, operations: &[Operation]) -> Partial {
    loop {
        let pending = Pending::of(&partial, operations);
        let fitting: Vec<usize> = pending
            .candidates(&partial, operations)
            .filter(|index| !operations[*index].is_open())
            .filter(|index| partial.state.after(&operations[*index]) == Some(partial.state))
            .collect();
        if fitting.is_empty() {
            return partial;
        }
        for index in fitting {
            let state = partial.state;
            partial = partial.with(index, state);
        }
    }
}

#[cfg(test)]
mod tests;
