//! A promise renewed at intervals: a node's sign of life, or a leader's claim.

use jiff::Timestamp;

use crate::meta::Metadata;

#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    pub meta: Metadata,
    pub spec: LeaseSpec,
}

/// Who holds a lease, and since when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseSpec {
    pub holder_identity: String,
    /// How long the holder means each renewal to last; more than 0.
    pub lease_duration_seconds: Option<i32>,
    pub acquire_time: Option<Timestamp>,
    /// Written to the microsecond; kept as it was given.
    pub renew_time: Option<Timestamp>,
    /// How often the lease changed hands; 0 or more.
    pub lease_transitions: i32,
    /// What the holder's last computed status amounted to.
    pub status_digest: u64,
    /// How old that status was at the renewal.
    pub status_age_millis: u32,
}
