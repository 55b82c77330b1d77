//! Leases: a holder renews them at intervals, a node's agent or a leader.

use jiff::Timestamp;

use crate::meta::Metadata;

#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    pub meta: Metadata,
    pub spec: LeaseSpec,
}

/// The holder of a lease and its last renewal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseSpec {
    pub holder_identity: String,
    /// How long a renewal lasts; more than 0.
    pub lease_duration_seconds: Option<i32>,
    pub acquire_time: Option<Timestamp>,
    /// The store writes it with microsecond precision; a given time is stored unchanged.
    pub renew_time: Option<Timestamp>,
    /// How often the lease changed its holder; 0 or more.
    pub lease_transitions: i32,
    /// A digest of the status that the agent last computed.
    pub status_digest: u64,
    /// How old that status was at the renewal.
    pub status_age_millis: u32,
}
