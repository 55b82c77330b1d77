//! When a computed status is posted.
//!
//! A status is posted when it changed, and at an interval when it did not, so that its age stays bounded. After a
//! change the next routine post comes at a random time: nodes that changed together must not keep posting together.

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

/// Why a status is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostReason {
    /// It is the first status of this process.
    First,
    /// The node was given an address block.
    PodCidr,
    /// A label of the machine was restored.
    Labels,
    /// It differs from the stored status.
    Changed,
    /// It does not differ, but the last post is one report interval ago.
    Due,
}

/// What to do with a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Post(PostReason),
    /// No post until then, unless something changes.
    Keep {
        until: Mono,
    },
}

/// A computed status, and what it is compared with.
#[derive(Clone, Copy, Debug)]
pub struct StatusComparison<'a> {
    /// The status in the store.
    pub stored: &'a NodeStatus,
    pub computed: &'a NodeStatus,
    /// The node's address blocks in the store.
    pub pod_cidrs: &'a [Cidr],
    /// Whether a label of the machine was restored.
    pub labels_repaired: bool,
}

/// Decides when to post, by the last post of this process.
#[derive(Clone, Debug)]
pub struct StatusReporter {
    frequency: Duration,
    last: Option<Posted>,
    /// Failed attempts at the current post.
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

    /// An attempt failed. Returns whether to try again at once, with the node read again, or at the next interval.
    pub fn observe_failed(&mut self) -> bool {
        self.failures = (self.failures + 1) % POST_ATTEMPTS;
        self.failures > 0
    }

    /// The store has the status.
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
