//! The rules of the store: (current record, request, context) -> next record, or a refusal.
//!
//! Pure: time and new uids come with the [`Context`], nothing waits, nothing is written. Checks that need only the
//! request's record were made when it was parsed; these rules are the checks that need the current record, and the
//! fields that the store itself sets. The writer assigns resource versions, so rules keep the current one and ignore it
//! when they compare records.

use jiff::Timestamp;
use muster_proto::invalid::Check;
use muster_proto::name::Uid;
use muster_proto::record::Record;

mod budget;
mod certificate_request;
mod common;
mod event;
mod eviction;
#[cfg(test)]
mod fixtures;
mod join;
mod join_token;
mod lease;
mod node;
mod pod;
mod priority_class;
mod refusal;
mod revocation;

pub use budget::{budget_selects, budget_status, counts_as_healthy};
pub use certificate_request::{approve_request, deny_request, record_outcome, request_expiry};
pub use common::{check_preconditions, create, delete, update, update_status};
pub use event::{event_name, record_event, validate_event};
pub use eviction::evict;
pub use join::{JoinAttempt, JoinCredential, JoinRefusal, Joined, Known, join};
pub use join_token::create_join_token;
pub use lease::{Renewal, check_fence, fenced_lease, renew_lease};
pub use pod::{bind, delete_pod};
pub use priority_class::{create_priority_class, set_priority, update_priority_class};
pub use refusal::{RecordId, Refusal};
pub use revocation::revoke;

/// What rules depend on besides the records.
#[derive(Clone, Debug)]
pub struct Context {
    pub now: Timestamp,
    /// The uid a record gets if this request creates it.
    pub uid: Uid,
    pub defaults: Defaults,
}

/// Default values that operators can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    pub not_ready_toleration_seconds: i64,
    pub unreachable_toleration_seconds: i64,
}

impl Default for Defaults {
    /// Five minutes each: long enough for a machine to reboot.
    fn default() -> Self {
        Self { not_ready_toleration_seconds: 300, unreachable_toleration_seconds: 300 }
    }
}

/// What to do with the record when a request is allowed.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<R> {
    /// The request changes nothing: no new resource version, no watch event.
    Unchanged(R),
    Store(R),
    /// Delete the record; this is its last content.
    Remove(R),
}

impl<R> Outcome<R> {
    /// The record after the request; for a deletion, its last content.
    pub fn record(&self) -> &R {
        match self {
            Self::Unchanged(record) | Self::Store(record) | Self::Remove(record) => record,
        }
    }

    pub fn into_record(self) -> R {
        match self {
            Self::Unchanged(record) | Self::Store(record) | Self::Remove(record) => record,
        }
    }

    /// Whether there is anything to write.
    pub fn is_change(&self) -> bool {
        !matches!(self, Self::Unchanged(_))
    }
}

/// The uid and resource version that the record must have; `None` is not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<Uid>,
    pub resource_version: Option<u64>,
}

/// The options of a pod's deletion or eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodDeletion {
    pub preconditions: Preconditions,
    /// `None` means the pod's own grace period.
    pub grace_period_seconds: Option<i64>,
}

/// How a kind of record is created and changed.
///
/// [`create`] and [`update`] hold the steps that all kinds share; a kind implements only where it differs.
pub trait Rules: Record {
    /// Whether an update of a missing record creates it. If so, an update of an existing record must give its resource
    /// version: without it the caller could not know whether the update created or replaced the record.
    const UPDATE_CREATES: bool = false;

    /// Sets defaults and the fields that only the store writes.
    fn prepare_create(&mut self, _cx: &Context) {}

    /// Reports what cannot be created, although it is a valid record.
    fn validate_create(&self, _check: &mut Check) {}

    /// Restores the fields that an update cannot change, and sets defaults again.
    fn prepare_update(&mut self, _old: &Self, _cx: &Context) {}

    /// Reports every change that is not allowed.
    fn validate_update(&self, _old: &Self, _check: &mut Check) {}
}

/// A kind whose status has its own update call.
pub trait HasStatus: Rules {
    /// Restores the fields that a status update cannot change. It can change labels and annotations.
    fn prepare_status_update(&mut self, old: &Self);

    /// Reports every change that is not allowed.
    fn validate_status_update(&self, _old: &Self, _check: &mut Check) {}
}

/// A kind without a grace period: a deletion removes the record at once, or after its last finalizer is removed.
pub trait DeletedWithoutGrace: Rules {}
