//! What a decision was made of, for whoever tells the story of it afterwards.
//!
//! A note is a value in the plan like any other. The controllers that write them know nothing of traces; the shell turns
//! them into spans, or throws them away.

use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::time::Mono;

use crate::node_lifecycle::liveness::Sign;
use crate::node_lifecycle::zone_state::ZoneKey;

/// A step on the way of a node that falls, and of the pods that fall with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A node has been silent for its whole grace.
    DeadlinePassed {
        node: Name,
        heard_at: Mono,
        /// `None` when everybody was given a new grace after it was last heard.
        heard_by: Option<Sign>,
    },
    /// It waits to be given up.
    TaintQueued { node: Name, zone: ZoneKey },
    /// Its turn has come.
    TokenTaken { node: Name, zone: ZoneKey },
    /// The next write of its record says that it is given up.
    GivenUp { node: Name, taint: String },
    /// A pod may not stay any longer.
    TolerationOver {
        pod: Key,
        node: Name,
        taint: String,
        /// When its time began, and when it was over.
        since: Mono,
        over: Mono,
    },
    /// The node is heard, and its record says that it is Ready.
    Recovered { node: Name },
    /// The node is no more.
    Gone { node: Name },
}
