//! Limits of what the store keeps, by kind: the largest record, and the records of a namespace or of a node.
//!
//! They are far above what a healthy fleet needs. They bound what one tenant, or one machine that went astray, can make
//! the store keep in memory.

use std::fmt;

use muster_proto::record::Kind;

#[cfg(test)]
mod tests;

/// A number of records and their total size in bytes: what is kept, or what may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub records: usize,
    pub bytes: usize,
}

impl Amount {
    /// Replaces a record of size `was` by one of size `is`; `None` where there is no record.
    pub fn replace(&mut self, was: Option<usize>, is: Option<usize>) {
        self.records = self.records.saturating_sub(was.iter().count()) + is.iter().count();
        self.bytes = self.bytes.saturating_sub(was.unwrap_or(0)) + is.unwrap_or(0);
    }

    pub fn exceeds(self, limit: Amount) -> bool {
        self.records > limit.records || self.bytes > limit.bytes
    }
}

/// The largest record of a kind, in bytes.
pub fn max_record(kind: Kind) -> usize {
    match kind {
        // As in etcd: the list of a node's images and the specs of pods have no limits of their own.
        Kind::Node | Kind::Pod => 1_500_000,
        // A holder, some times and numbers; annotations in rare cases.
        Kind::Lease => 64 * 1024,
        // A selector and counts.
        Kind::DisruptionBudget => 64 * 1024,
        // A reason of 128 bytes, a message of 1024, and names.
        Kind::Event => 16 * 1024,
        // A hash and some labels.
        Kind::JoinToken => 16 * 1024,
        // A request and a chain of certificates.
        Kind::CertificateRequest => 64 * 1024,
        // A number and a description.
        Kind::PriorityClass | Kind::Revocation => 8 * 1024,
    }
}

/// What a namespace may hold of a kind; for kinds that are in none, what the fleet may hold. `None` for events, of
/// which the oldest give way instead.
pub fn namespace_limit(kind: Kind) -> Option<Amount> {
    const MIB: usize = 1 << 20;
    match kind {
        // Several times the largest fleet that is tested (100,000), with statuses of a common size.
        Kind::Node => Some(Amount { records: 1_000_000, bytes: 16_384 * MIB }),
        // One namespace holds the leases of all nodes.
        Kind::Lease => Some(Amount { records: 1_000_000, bytes: usize::MAX }),
        // A fleet of 100,000 nodes with a score of pods each may be in one namespace.
        Kind::Pod => Some(Amount { records: 4_000_000, bytes: 16_384 * MIB }),
        // Each change of a pod is matched against every budget of its namespace.
        Kind::DisruptionBudget => Some(Amount { records: 5_000, bytes: 64 * MIB }),
        Kind::Event => None,
        Kind::JoinToken => Some(Amount { records: 10_000, bytes: 16 * MIB }),
        // A node has one at a time, and a request is kept for an hour after it was signed.
        Kind::CertificateRequest => Some(Amount { records: 1_000_000, bytes: 1_024 * MIB }),
        // Every server reads all of them.
        Kind::Revocation => Some(Amount { records: 100_000, bytes: 64 * MIB }),
        Kind::PriorityClass => Some(Amount { records: 1_000, bytes: 8 * MIB }),
    }
}

/// The mirror pods of one node, which its agent creates as it likes. A machine runs a few hundred pods at most.
pub const MIRROR_PODS_OF_NODE: Amount = Amount { records: 1_000, bytes: 16 << 20 };

/// The events that one node's agent recorded. Beyond this its oldest give way, so a machine that fails in a loop does
/// not displace the events of others.
pub const EVENTS_OF_NODE: Amount = Amount { records: 1_000, bytes: 1 << 20 };

/// All events. Beyond this the oldest give way.
pub const EVENTS: Amount = Amount { records: 100_000, bytes: 64 << 20 };

/// Requests for certificates that wait for an administrator: in total, and from one address. Everybody who reaches the
/// store can make them.
pub const WAITING_REQUESTS: usize = 200;
pub const WAITING_REQUESTS_OF_SOURCE: usize = 10;

/// An update that adds no more than this may use the reserve.
const SMALL_GROWTH: usize = 4 * 1024;
/// This part above the limit of bytes is for small growth: a full namespace must take a deletion time or a taint.
const RESERVE: usize = 8;

/// Whose limit is exceeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The empty namespace is that of kinds without one.
    Namespace(String),
    /// The mirror pods of a node.
    Node(String),
}

/// Which limit is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Records(usize),
    Bytes(usize),
}

/// A write would exceed a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are too many {kind} records {scope}: the limit is {limit}")]
pub struct LimitExceeded {
    pub kind: Kind,
    pub scope: Scope,
    pub limit: Limit,
}

/// Whether a record of size `is` may replace one of size `was` where `used` is kept. A record that does not grow always
/// may, so that a scope above its limit can be cleaned up.
pub fn check(used: Amount, limit: Amount, was: Option<usize>, is: usize) -> Result<(), Limit> {
    if was.is_none() && used.records >= limit.records {
        return Err(Limit::Records(limit.records));
    }
    let growth = is.saturating_sub(was.unwrap_or(0));
    let reserve = if was.is_some() && growth <= SMALL_GROWTH { limit.bytes / RESERVE } else { 0 };
    if growth > 0 && used.bytes.saturating_add(growth) > limit.bytes.saturating_add(reserve) {
        return Err(Limit::Bytes(limit.bytes));
    }
    Ok(())
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Namespace(namespace) if namespace.is_empty() => f.write_str("in the fleet"),
            Scope::Namespace(namespace) => write!(f, "in namespace {namespace}"),
            Scope::Node(node) => write!(f, "of node {node}"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Records(records) => write!(f, "{records} records"),
            Limit::Bytes(bytes) => write!(f, "{bytes} bytes"),
        }
    }
}
