//! Steps of a node's failure and recovery, for tracing.
//!
//! Trace events are values in the plan. The controllers that add them know nothing about tracing; the shell turns them
//! into spans or drops them.

use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::time::Mono;

use crate::node_lifecycle::liveness::SignOfLife;
use crate::node_lifecycle::zone_state::ZoneKey;

/// Why a node waited for a token of its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWait {
    /// No node is tainted before the hold ends.
    EvictionHold,
    /// Other nodes took the tokens before, or the rate of the zone was lower.
    Rate,
}

/// One step in the failure or recovery of a node, or in the eviction of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A node's grace has passed without a sign of life.
    DeadlinePassed {
        node: Name,
        seen_at: Mono,
        /// `None` when all graces were renewed after the node was last seen.
        seen_by: Option<SignOfLife>,
    },
    /// The node waits for a token of its zone.
    TaintQueued { node: Name, zone: ZoneKey },
    /// The node took a token of its zone.
    TokenTaken {
        node: Name,
        zone: ZoneKey,
        /// What it waited for; `None` if there was a token when it joined the queue.
        waited_for: Option<TokenWait>,
    },
    /// The next write of the node's record adds this NoExecute taint.
    NoExecuteTainted { node: Name, taint: String },
    /// A pod's toleration time has passed.
    TolerationOver {
        pod: Key,
        node: Name,
        taint: String,
        /// When the toleration time began, and when it ended.
        since: Mono,
        over: Mono,
    },
    /// The node gives signs of life, and its record says that it is Ready.
    Recovered { node: Name },
    /// The node was deleted.
    Gone { node: Name },
}
