//! The rules of the store: (current record, request, context) -> next record, or a refusal.
//!
//! Pure: time and fresh uids come in with the [`Context`], nothing waits, nothing is written. What can be
//! seen from one record alone was checked when it was read off the wire; here stands what depends on the
//! record already there, and what the store fills in itself. The writer gives each stored record its
//! resource version, so rules carry the current one along and never compare by it.

use jiff::Timestamp;
use muster_proto::invalid::Check;
use muster_proto::name::Uid;
use muster_proto::record::Record;

mod budget;
mod common;
mod event;
mod eviction;
#[cfg(test)]
mod fixtures;
mod lease;
mod node;
mod pod;
mod refusal;

pub use budget::{budget_selects, budget_status, counts_as_healthy};
pub use common::{check_preconditions, create, delete, update, update_status};
pub use event::{event_name, record_event};
pub use eviction::evict;
pub use lease::{Renewal, check_fence, fenced_lease, renew_lease};
pub use pod::{bind, delete_pod};
pub use refusal::{RecordId, Refusal};

/// What a rule needs to know beside the records.
#[derive(Clone, Debug)]
pub struct Context {
    pub now: Timestamp,
    /// The uid a record gets if this request creates it.
    pub uid: Uid,
    pub defaults: Defaults,
}

/// What the store fills in for users who say nothing, as far as operators can set it.
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

/// What a granted request makes of the record.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<R> {
    /// Nothing changes: no new version, no event.
    Unchanged(R),
    Store(R),
    /// The record goes; this is its last content.
    Remove(R),
}

impl<R> Outcome<R> {
    /// The record as the request leaves it, or left it.
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

/// What the caller saw and relies on; `None` asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<Uid>,
    pub resource_version: Option<u64>,
}

/// How a pod is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodDeletion {
    pub preconditions: Preconditions,
    /// `None` means the pod's own grace.
    pub grace_period_seconds: Option<i64>,
}

/// How a kind of record is created and changed.
///
/// The steps all kinds share stand in [`create`] and [`update`]; a kind says only where it differs.
pub trait Rules: Record {
    /// Whether an update of a missing record creates it. If so every other update has to say which
    /// version it replaces: without one the caller could not tell which of the two it did.
    const UPDATE_CREATES: bool = false;

    /// Fills in defaults and what only the store writes.
    fn prepare_create(&mut self, _cx: &Context) {}

    /// Puts back what an update does not reach, and fills in defaults again.
    fn prepare_update(&mut self, _old: &Self, _cx: &Context) {}

    /// Reports every change that is not allowed.
    fn validate_update(&self, _old: &Self, _check: &mut Check) {}
}

/// A kind whose status is written apart from the rest.
pub trait HasStatus: Rules {
    /// Puts back what a status update does not reach. Labels and annotations it does reach.
    fn prepare_status_update(&mut self, old: &Self);

    /// Reports every change that is not allowed.
    fn validate_status_update(&self, _old: &Self, _check: &mut Check) {}
}

/// A kind that knows no grace: a deletion removes the record, or waits for its finalizers only.
pub trait DeletedWithoutGrace: Rules {}
