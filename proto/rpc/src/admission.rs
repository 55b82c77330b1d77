//! How much of a server one caller may take.
//!
//! Three things are counted: calls in flight (until their response head is ready), open streams, and the bytes of
//! requests that have not arrived completely. Each is bounded in total, for each caller, and for each connection.
//! Muster's own parts have a reserve that others cannot take: whatever else is refused, heartbeats and leases go on.
//!
//! This module only judges; `connection` counts, and `layers::admission` asks before each call.

pub(crate) mod connection;
#[cfg(test)]
mod tests;

use std::fmt;

use muster_proto::identity::Caller;

use crate::layers::is_infrastructure;

/// What a call counts as, by its caller and method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Health and reflection, which are open to everyone.
    Probe,
    /// Any call of a controller.
    Part,
    /// Heartbeats and leases of many nodes, by an administrator: a simulated fleet, or any caller without TLS.
    FleetHeartbeat,
    /// Heartbeats and lease of one node, by its agent.
    NodeHeartbeat,
    /// The other calls of a node's agent.
    Node,
    /// Every other call.
    Other,
    /// A call without a role, of a method that needs none: a machine that wants to join.
    Anonymous,
}

/// Which calls are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Probes,
    /// Those that may use the reserve.
    Parts,
    Others,
    /// Those without a role, which share a small part of the total.
    Anonymous,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Calls,
    Streams,
    Bytes,
}

/// Whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Connection,
    Caller,
    Server,
}

/// The methods by which a lease is kept. Lists and watches of leases are reads like any other.
fn keeps_a_lease(path: &str) -> bool {
    let lease_method = path.strip_prefix("/muster.v1.LeaseService/");
    path.starts_with("/muster.v1.HeartbeatService/")
        || lease_method.is_some_and(|method| !matches!(method, "ListLeases" | "WatchLeases"))
}

impl Class {
    /// The class of a call; `None` when the caller has no role and the method needs one.
    pub(crate) fn of(caller: &Caller, path: &str, needs_role: bool) -> Option<Class> {
        if is_infrastructure(path) {
            return Some(Class::Probe);
        }
        match caller {
            Caller::Controller => Some(Class::Part),
            Caller::Node(_) if keeps_a_lease(path) => Some(Class::NodeHeartbeat),
            Caller::Node(_) => Some(Class::Node),
            Caller::Admin if keeps_a_lease(path) => Some(Class::FleetHeartbeat),
            Caller::Admin | Caller::Scheduler | Caller::Viewer => Some(Class::Other),
            Caller::Unknown(_) => (!needs_role).then_some(Class::Anonymous),
        }
    }

    pub(crate) fn group(self) -> Group {
        match self {
            Class::Probe => Group::Probes,
            Class::Part | Class::FleetHeartbeat | Class::NodeHeartbeat => Group::Parts,
            Class::Node | Class::Other => Group::Others,
            Class::Anonymous => Group::Anonymous,
        }
    }
}

/// The most that a server takes on in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) calls: usize,
    pub(crate) streams: usize,
    pub(crate) bytes: usize,
}

/// The part of a total that is kept for Muster's own parts: one in so many.
const RESERVE: usize = 4;

impl Totals {
    /// What calls of this class may hold. Each bound is a part of the total, so that the total is all that an operator
    /// has to set.
    ///
    /// A connection may hold half of what its caller may, so that one faulty program leaves something for the others
    /// with the same certificate. Without TLS nobody knows the caller, and each connection counts as one.
    pub(crate) fn budget(&self, class: Class, resource: Resource, is_identified: bool) -> Budget {
        let total = match resource {
            Resource::Calls => self.calls,
            Resource::Streams => self.streams,
            Resource::Bytes => self.bytes,
        };
        // One in so many of the total for each caller.
        let share = match (class, resource) {
            (Class::Probe, Resource::Streams) => 512,
            (Class::Probe, _) => 64,
            (Class::Part, Resource::Streams) => 16,
            (Class::Part, _) => 4,
            // A fleet of many nodes shares few connections, and all its agents may begin at the same time.
            (Class::FleetHeartbeat, Resource::Calls) => 2,
            (Class::FleetHeartbeat, _) => 4,
            // One machine needs one heartbeat stream, a few watches, and seldom two calls at once.
            (Class::NodeHeartbeat | Class::Node, Resource::Streams) => 4096,
            (Class::NodeHeartbeat | Class::Node, _) => 64,
            (Class::Other, Resource::Calls) => 8,
            (Class::Other, Resource::Streams) => 128,
            (Class::Other, Resource::Bytes) => 4,
            // All of them are one caller, as long as nobody knows them.
            (Class::Anonymous, _) => 64,
        };
        let caller = total.div_ceil(share);
        let server = match class.group() {
            Group::Probes => total.div_ceil(16),
            Group::Anonymous => total.div_ceil(64),
            Group::Parts => total,
            Group::Others => total - total / RESERVE,
        };
        let connection = match class {
            Class::Anonymous => caller.div_ceil(16),
            _ if is_identified => caller.div_ceil(2),
            _ => caller,
        };
        Budget { server, caller, connection }
    }
}

/// What calls of one class may hold of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) server: usize,
    pub(crate) caller: usize,
    pub(crate) connection: usize,
}

/// What is held already: by calls of the same group on the same connection, by calls of the same group of the same
/// caller, and on the server by all calls that share the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) server: usize,
    pub(crate) caller: usize,
    pub(crate) connection: usize,
}

impl Budget {
    /// Whether so much more may be taken, or which limit that would exceed: the narrowest, since it names what the
    /// caller can change.
    pub(crate) fn judge(&self, held: Held, amount: usize) -> Result<(), (Scope, usize)> {
        let scopes = [
            (Scope::Connection, held.connection, self.connection),
            (Scope::Caller, held.caller, self.caller),
            (Scope::Server, held.server, self.server),
        ];
        let exceeded = scopes.into_iter().find(|(_, held, limit)| held.saturating_add(amount) > *limit);
        exceeded.map_or(Ok(()), |(scope, _, limit)| Err((scope, limit)))
    }
}

/// A limit that a call would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) resource: Resource,
    pub(crate) scope: Scope,
    pub(crate) limit: usize,
}

impl Exceeded {
    /// The reason in the `ErrorInfo` of a refused call.
    pub(crate) fn reason(&self) -> &'static str {
        match self.resource {
            Resource::Calls => "TOO_MANY_IN_FLIGHT",
            Resource::Streams => "TOO_MANY_STREAMS",
            Resource::Bytes => "TOO_MANY_REQUEST_BYTES",
        }
    }

    /// The limit's name, for programs.
    pub(crate) fn name(&self) -> &'static str {
        match (self.resource, self.scope) {
            (Resource::Calls, Scope::Connection) => "in-flight-per-connection",
            (Resource::Calls, Scope::Caller) => "in-flight-per-caller",
            (Resource::Calls, Scope::Server) => "in-flight",
            (Resource::Streams, Scope::Connection) => "streams-per-connection",
            (Resource::Streams, Scope::Caller) => "streams-per-caller",
            (Resource::Streams, Scope::Server) => "streams",
            (Resource::Bytes, Scope::Connection) => "request-bytes-per-connection",
            (Resource::Bytes, Scope::Caller) => "request-bytes-per-caller",
            (Resource::Bytes, Scope::Server) => "request-bytes",
        }
    }
}

/// What is too much, whose limit it is, its value, and the flag that it comes from.
impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, flag) = match self.resource {
            Resource::Calls => ("calls in flight", "--max-in-flight"),
            Resource::Streams => ("open streams", "--max-open-streams"),
            Resource::Bytes => ("bytes of unfinished requests", "--max-request-bytes"),
        };
        let whose = match self.scope {
            Scope::Connection => " on this connection",
            Scope::Caller => " of this caller",
            Scope::Server => "",
        };
        write!(f, "too many {what}{whose}: limit {} (from {flag})", self.limit)
    }
}
