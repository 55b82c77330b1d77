//! The nodes of one zone that wait for a NoExecute taint, and the token bucket that sets the rate.

use std::collections::BTreeSet;

use muster_proto::name::Name;
use muster_proto::time::Mono;

use crate::token_bucket::TokenBucket;

#[derive(Clone, Debug)]
pub struct TaintQueue {
    pub bucket: TokenBucket,
    /// Nodes that got the taint.
    pub tainted: u64,
    /// By the time since which they are not ready, then by name.
    waiting: BTreeSet<(Mono, Name)>,
}

impl TaintQueue {
    /// An empty queue, with a token in its bucket.
    pub fn new(rate: f64, now: Mono) -> TaintQueue {
        TaintQueue { bucket: TokenBucket::full(rate, now), tainted: 0, waiting: BTreeSet::new() }
    }

    pub fn insert(&mut self, since: Mono, name: Name) {
        self.waiting.insert((since, name));
    }

    /// Returns whether the node was waiting.
    pub fn remove(&mut self, since: Mono, name: &Name) -> bool {
        self.waiting.remove(&(since, name.clone()))
    }

    /// Takes a token for the first node that waits, if there is a node and a token.
    pub fn take(&mut self, now: Mono) -> Option<Name> {
        if self.waiting.is_empty() || !self.bucket.take(now) {
            return None;
        }
        self.waiting.pop_first().map(|(_, name)| name)
    }

    /// When a token comes for a node that waits; `None` if no node waits, or if there will be no token.
    pub fn next_token(&self) -> Option<Mono> {
        self.bucket.ready_at().filter(|_| !self.waiting.is_empty())
    }

    pub fn length(&self) -> usize {
        self.waiting.len()
    }

    /// The nodes that wait, the next one first.
    pub fn iter(&self) -> impl Iterator<Item = &Name> {
        self.waiting.iter().map(|(_, name)| name)
    }

    /// A node's position, from 1; `None` if it does not wait.
    pub fn position(&self, since: Mono, name: &Name) -> Option<usize> {
        let entry = (since, name.clone());
        self.waiting.contains(&entry).then(|| self.waiting.range(..=entry).count())
    }
}
