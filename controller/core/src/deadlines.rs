//! Keys that are due now or later, with at most one action in flight per key and a back-off after failures.
//!
//! Every controller keeps what it has to look at in a [`Deadlines`]: it adds keys as records change, takes those that
//! are due, marks a key as in flight when it plans an action for it, and settles the key with the outcome. A key in
//! flight is never due. All operations cost O(log n) for n keys; none looks at keys that are not due.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::time::Mono;

use crate::plan::Failure;

/// The back-off of most controllers.
const DEFAULT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// How long a key waits after a conflict for the record's next version, which makes it due at once. The version
/// normally comes much earlier; this is the fallback if it does not come.
const CONFLICT_WAIT: Duration = Duration::from_secs(1);

/// A set of keys with deadlines.
#[derive(Clone, Debug)]
pub struct Deadlines<K> {
    backoff: Backoff,
    /// Keys by deadline; ties go to the lower key. A key without a time to wait for is due at [`Mono::ZERO`].
    queue: BTreeSet<(Mono, K)>,
    /// The deadline of each key in `queue`.
    deadlines: HashMap<K, Mono>,
    /// Keys with an action in flight, and when each is due once the outcome is known: `Some` if it was added or
    /// scheduled meanwhile.
    in_flight: HashMap<K, Option<Mono>>,
    /// Keys whose last action failed.
    failed: HashMap<K, Failed>,
}

#[derive(Clone, Copy, Debug)]
struct Failed {
    /// How many in a row.
    failures: u32,
    /// When the wait after the last failure ends.
    retry_at: Mono,
}

impl<K: Clone + Eq + Hash + Ord> Deadlines<K> {
    pub fn new(backoff: Backoff) -> Deadlines<K> {
        Deadlines {
            backoff,
            queue: BTreeSet::new(),
            deadlines: HashMap::new(),
            in_flight: HashMap::new(),
            failed: HashMap::new(),
        }
    }

    /// Makes the key due now, or as soon as its action in flight has settled. A change does not wait for a back-off.
    pub fn add(&mut self, key: K) {
        self.schedule(key, Mono::ZERO);
    }

    /// Makes the key due at that time instead of any earlier or later one.
    pub fn schedule(&mut self, key: K, at: Mono) {
        if let Some(pending) = self.in_flight.get_mut(&key) {
            *pending = Some(at);
            return;
        }
        if let Some(before) = self.deadlines.insert(key.clone(), at) {
            if before == at {
                return;
            }
            self.queue.remove(&(before, key.clone()));
        }
        self.queue.insert((at, key));
    }

    /// The key is not due any more. Its failures still count.
    pub fn cancel(&mut self, key: &K) {
        if let Some(pending) = self.in_flight.get_mut(key) {
            *pending = None;
        }
        if let Some(at) = self.deadlines.remove(key) {
            self.queue.remove(&(at, key.clone()));
        }
    }

    /// Takes all keys that are due, in the order of the keys.
    pub fn take(&mut self, now: Mono) -> Vec<K> {
        let mut due: Vec<K> = std::iter::from_fn(|| self.pop(now)).collect();
        due.sort_unstable();
        due
    }

    /// Takes the key that has been due for longest.
    pub fn pop(&mut self, now: Mono) -> Option<K> {
        self.queue.first().filter(|(at, _)| *at <= now)?;
        let (_, key) = self.queue.pop_first()?;
        self.deadlines.remove(&key);
        Some(key)
    }

    /// An action for the key is in flight from now on.
    pub fn begin(&mut self, key: K) {
        let pending = self.deadlines.remove(&key);
        if let Some(at) = pending {
            self.queue.remove(&(at, key.clone()));
        }
        self.in_flight.insert(key, pending);
    }

    /// The outcome of the key's action. Returns how many have failed in a row.
    ///
    /// A record that is gone needs no more actions, so [`Failure::Gone`] counts as a success.
    pub fn settle<T>(&mut self, key: &K, result: &Result<T, Failure>, now: Mono) -> u32 {
        match result {
            Ok(_) | Err(Failure::Gone) => self.succeed(key),
            Err(Failure::Conflict) => self.conflict(key, now),
            Err(_) => drop(self.fail(key, now)),
        }
        self.failures(key)
    }

    /// The key's action has succeeded: its failures are forgotten, and it is due if it was added or scheduled
    /// meanwhile.
    pub fn succeed(&mut self, key: &K) {
        self.failed.remove(key);
        if let Some(at) = self.in_flight.remove(key).flatten() {
            self.schedule(key.clone(), at);
        }
    }

    /// The key's action met a newer version of the record: the key is due when that version is observed.
    fn conflict(&mut self, key: &K, now: Mono) {
        let pending = self.in_flight.remove(key).flatten();
        let retry_at = pending.unwrap_or(now + CONFLICT_WAIT);
        self.failed.insert(key.clone(), Failed { failures: self.next_failure(key), retry_at });
        self.schedule(key.clone(), retry_at);
    }

    /// The key's action has failed: the key is due after a back-off. Returns when.
    pub fn fail(&mut self, key: &K, now: Mono) -> Mono {
        self.in_flight.remove(key);
        let failures = self.next_failure(key);
        let retry_at = now + self.backoff.delay(failures, 0.0);
        self.failed.insert(key.clone(), Failed { failures, retry_at });
        self.schedule(key.clone(), retry_at);
        retry_at
    }

    fn next_failure(&self, key: &K) -> u32 {
        self.failures(key).saturating_add(1)
    }

    /// The key is not due any more, and its failures are forgotten. An action in flight stays so until it is settled.
    pub fn forget(&mut self, key: &K) {
        self.failed.remove(key);
        self.cancel(key);
    }

    /// When the first key is due; in the past if one is due now.
    pub fn next(&self) -> Option<Mono> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// All keys with a deadline, the earliest first.
    pub fn iter(&self) -> impl Iterator<Item = (Mono, &K)> {
        self.queue.iter().map(|(at, key)| (*at, key))
    }

    /// How many keys have a deadline.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// When the key is due, if it has a deadline and no action in flight.
    pub fn due_at(&self, key: &K) -> Option<Mono> {
        self.deadlines.get(key).copied()
    }

    /// How many actions for the key have failed in a row.
    pub fn failures(&self, key: &K) -> u32 {
        self.failed.get(key).map_or(0, |failed| failed.failures)
    }

    /// When the wait after the key's last failure ends, whether or not the key is due at another time.
    pub fn retry_at(&self, key: &K) -> Option<Mono> {
        self.failed.get(key).map(|failed| failed.retry_at)
    }

    pub fn is_in_flight(&self, key: &K) -> bool {
        self.in_flight.contains_key(key)
    }

    /// The keys with an action in flight, in no order.
    pub fn in_flight(&self) -> impl Iterator<Item = &K> {
        self.in_flight.keys()
    }
}

impl<K: Clone + Eq + Hash + Ord> Default for Deadlines<K> {
    fn default() -> Deadlines<K> {
        Deadlines::new(DEFAULT_BACKOFF)
    }
}

#[cfg(test)]
mod tests;
