//! When a computed status is posted. Pure.
//!
//! A status is posted when it says something new, and now and then when it does not, so that its age stays
//! bounded. After a change the next routine post comes at a time of its own for each node: a fleet that changed
//! together must not go on reporting together.

use std::time::Duration;

use muster_proto::cidr::Cidr;
use muster_proto::node::NodeStatus;
use muster_proto::time::Mono;

mod digest;
#[cfg(test)]
mod tests;

pub use digest::digest;

/// Attempts at one post, without a pause.
const POST_ATTEMPTS: u32 = 5;

/// PostReason a status is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostReason {
    /// It is the first of this process.
    First,
    /// The node was given an address block.
    PodCidr,
    /// A label of the machine was put back.
    Labels,
    /// It differs from what the store has.
    Changed,
    /// It does not differ, but the last post is long ago.
    Due,
}

/// What to do with a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Post(PostReason),
    /// Nothing to say, unless something changes, until then.
    Keep {
        until: Mono,
    },
}

/// A status, and what it is compared with.
#[derive(Clone, Copy, Debug)]
pub struct StatusComparison<'a> {
    /// What the store has.
    pub stored: &'a NodeStatus,
    pub computed: &'a NodeStatus,
    /// The node's address blocks in the store.
    pub pod_cidrs: &'a [Cidr],
    /// Whether a label of the machine had to be put back.
    pub labels_repaired: bool,
}

/// Remembers the last post of this process.
#[derive(Clone, Debug)]
pub struct StatusReporter {
    frequency: Duration,
    last: Option<Posted>,
    /// Attempts at the present post that came to nothing.
    failures: u32,
}

#[derive(Clone, Debug)]
struct Posted {
    due: Mono,
    pod_cidrs: Vec<Cidr>,
}

impl StatusReporter {
    /// `frequency` is the age at which an unchanged status is posted again.
    pub fn new(frequency: Duration) -> StatusReporter {
        StatusReporter { frequency, last: None, failures: 0 }
    }

    /// Whether the status is posted now.
    pub fn decide(&self, comparison: StatusComparison<'_>, now: Mono) -> Decision {
        let Some(last) = &self.last else { return Decision::Post(PostReason::First) };
        if last.pod_cidrs != comparison.pod_cidrs {
            Decision::Post(PostReason::PodCidr)
        } else if comparison.labels_repaired {
            Decision::Post(PostReason::Labels)
        } else if digest(comparison.stored) != digest(comparison.computed) {
            Decision::Post(PostReason::Changed)
        } else if now >= last.due {
            Decision::Post(PostReason::Due)
        } else {
            Decision::Keep { until: last.due }
        }
    }

    /// Notes that an attempt failed; it is decided on again. Says whether at once, with the node read anew, or at the
    /// next look.
    pub fn observe_failed(&mut self) -> bool {
        self.failures = (self.failures + 1) % POST_ATTEMPTS;
        self.failures > 0
    }

    /// Notes that the store has the status.
    ///
    /// `draw` lies in 0..1 and moves the next routine post after a change by up to half the frequency either way.
    pub fn observe_posted(&mut self, reason: PostReason, pod_cidrs: &[Cidr], draw: f64, now: Mono) {
        let wait = match reason {
            PostReason::Due => self.frequency,
            PostReason::First | PostReason::PodCidr | PostReason::Labels | PostReason::Changed => {
                self.frequency.mul_f64(0.5 + crate::renewal_schedule::unit(draw))
            }
        };
        self.failures = 0;
        self.last = Some(Posted { due: now + wait, pod_cidrs: pod_cidrs.to_vec() });
    }
}
