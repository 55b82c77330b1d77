//! A bounded queue that its callers share fairly.
//!
//! Each caller has a line of its own. Lines are served in turn, each up to a number of bytes (deficit round-robin), so
//! a caller with many or large requests delays the others by no more than a round. The queue is bounded in requests and
//! in bytes, and one caller cannot take all of it from the others.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// What a caller may take in one turn, in bytes: many small requests, or one of common size.
const QUANTUM: usize = 64 * 1024;
/// What a request counts at least, in bytes: a small one costs time and memory too.
const MIN_COST: usize = 1024;
/// While others wait, one caller may hold this part of the queue's bytes.
const SHARE: usize = 4;

/// How much a queue holds.
#[derive(Debug, Clone, Copy)]
pub struct QueueLimits {
    pub requests: usize,
    pub bytes: usize,
}

/// Which limit a request exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueFull {
    #[error("{0} requests")]
    Requests(usize),
    #[error("{0} bytes of requests")]
    Bytes(usize),
    #[error("{0} bytes of requests of one caller while others wait")]
    Share(usize),
}

/// The waiting requests of one caller.
#[derive(Debug)]
struct Line<T> {
    requests: VecDeque<(usize, T)>,
    bytes: usize,
    /// What is left of its turn, in bytes.
    deficit: usize,
}

/// Requests by caller.
#[derive(Debug)]
pub struct FairQueue<T> {
    limits: QueueLimits,
    lines: HashMap<Arc<str>, Line<T>>,
    /// The callers that have requests, the one whose turn it is first.
    turns: VecDeque<Arc<str>>,
    /// The same callers, by the bytes they hold.
    by_bytes: BTreeSet<(usize, Arc<str>)>,
    requests: usize,
    bytes: usize,
}

impl<T> FairQueue<T> {
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            lines: HashMap::new(),
            turns: VecDeque::new(),
            by_bytes: BTreeSet::new(),
            requests: 0,
            bytes: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.requests
    }

    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// What the waiting requests count, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What one caller may hold while others wait, in bytes.
    pub fn share(&self) -> usize {
        self.limits.bytes / SHARE
    }

    /// Queues a request. Returns the requests that gave way to it: a caller that was alone may hold more than its
    /// share, and its newest requests give way when another caller comes.
    ///
    /// # Errors
    /// When the queue is full and no caller holds more than its share, or this caller does while others wait.
    pub fn push(&mut self, caller: &Arc<str>, bytes: usize, request: T) -> Result<Vec<T>, QueueFull> {
        let cost = bytes.max(MIN_COST);
        let share = self.share();
        let held = self.lines.get(caller).map_or(0, |line| line.bytes);
        let others_wait = self.bytes > held;
        // The first request of a caller is never too large for its share.
        if others_wait && held > 0 && held + cost > share {
            return Err(QueueFull::Share(share));
        }
        let mut displaced = Vec::new();
        if let Some(full) = self.full_with(cost) {
            let (most, heaviest) = self.by_bytes.last().cloned().ok_or(full)?;
            let missing = (self.bytes + cost).saturating_sub(self.limits.bytes);
            if heaviest == *caller || most.saturating_sub(share) < missing.max(1) {
                return Err(full);
            }
            while self.full_with(cost).is_some()
                && let Some(request) = self.take_from(&heaviest, End::Newest)
            {
                displaced.push(request);
            }
        }
        if !self.lines.contains_key(caller) {
            self.turns.push_back(Arc::clone(caller));
            let line = Line { requests: VecDeque::new(), bytes: 0, deficit: QUANTUM };
            self.lines.insert(Arc::clone(caller), line);
        }
        if let Some(line) = self.lines.get_mut(caller) {
            line.requests.push_back((cost, request));
        }
        self.account(caller, held, held + cost);
        self.requests += 1;
        Ok(displaced)
    }

    /// Takes the next request in turn, with what it counts in bytes.
    pub fn pop(&mut self) -> Option<(usize, T)> {
        loop {
            let caller = Arc::clone(self.turns.front()?);
            let line = self.lines.get_mut(&caller)?;
            let cost = line.requests.front()?.0;
            if line.deficit >= cost {
                line.deficit -= cost;
                return self.take_from(&caller, End::Oldest).map(|request| (cost, request));
            }
            line.deficit += QUANTUM;
            self.turns.rotate_left(1);
        }
    }

    fn full_with(&self, cost: usize) -> Option<QueueFull> {
        let QueueLimits { requests, bytes } = self.limits;
        if self.requests >= requests {
            return Some(QueueFull::Requests(requests));
        }
        (self.bytes + cost > bytes).then_some(QueueFull::Bytes(bytes))
    }

    fn take_from(&mut self, caller: &Arc<str>, end: End) -> Option<T> {
        let line = self.lines.get_mut(caller)?;
        let (cost, request) = match end {
            End::Oldest => line.requests.pop_front()?,
            End::Newest => line.requests.pop_back()?,
        };
        let (held, is_empty) = (line.bytes, line.requests.is_empty());
        self.account(caller, held, held - cost);
        self.requests -= 1;
        if is_empty {
            self.lines.remove(caller);
            // The oldest is taken from the first line, so this does not search.
            if let Some(turn) = self.turns.iter().position(|waiting| waiting == caller) {
                self.turns.remove(turn);
            }
        }
        Some(request)
    }

    fn account(&mut self, caller: &Arc<str>, held: usize, holds: usize) {
        self.by_bytes.remove(&(held, Arc::clone(caller)));
        if holds > 0 {
            self.by_bytes.insert((holds, Arc::clone(caller)));
        }
        if let Some(line) = self.lines.get_mut(caller) {
            line.bytes = holds;
        }
        self.bytes = self.bytes - held + holds;
    }
}

/// Which end of a line a request is taken from.
#[derive(Clone, Copy)]
enum End {
    Oldest,
    Newest,
}
