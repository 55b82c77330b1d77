//! The errors of calls to the store, and their mapping to gRPC statuses.
//!
//! Every status has a message for people, a stable reason for programs, and the standard details that tools know. All
//! of it is sent in HTTP headers, whose size clients limit, so long texts are truncated and long lists are shortened.

use std::collections::HashMap;
use std::time::Duration;

use muster_proto::ERROR_DOMAIN;
use muster_proto::invalid::{Invalid, Violation};
use muster_rpc::audit::call::RULE;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use muster_store_core::authz::Denial;
use muster_store_core::decision_filter::OrderError;
use muster_store_core::error::{DraftError, Expired};
use muster_store_core::fair_queue::QueueFull;
use muster_store_core::limits::LimitExceeded;
use muster_store_core::rules::{JoinRefusal, RecordId, Refusal};

use crate::decision_log::{Damage, LogError};
use crate::ledger::LedgerError;

#[cfg(test)]
mod tests;

/// The longest message, in bytes. It is sent twice, once percent-encoded with up to three bytes for one.
const MAX_MESSAGE: usize = 512;
/// The total size of the listed violations, in bytes.
const MAX_VIOLATIONS: usize = 3 * 1024;

/// When to retry a read of a resource version that the store has not reached.
const RETRY_VERSION: Duration = Duration::from_secs(1);
/// When to retry while the store cannot write: its disk may stay full for a while.
const RETRY_STORAGE: Duration = Duration::from_secs(5);
/// When to retry while the queue of writes is full.
const RETRY_OVERLOADED: Duration = Duration::from_millis(500);
/// When to retry while there are too many records: somebody must delete some first.
const RETRY_LIMIT: Duration = Duration::from_secs(10);
/// When to retry while too many requests wait for an administrator.
const RETRY_WAITING: Duration = Duration::from_secs(60);
/// When to retry after a node was revoked: certificates have whole seconds.
const RETRY_REVOKED: Duration = Duration::from_secs(1);
/// When to retry while no store leads: a new leader is elected within a few seconds.
const RETRY_LEADER: Duration = Duration::from_millis(500);
/// When to retry while the store restarts.
const RETRY_STOPPING: Duration = Duration::from_secs(1);

/// Why a call to the store failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// The request failed validation.
    #[error("the request is not valid: {0}")]
    Malformed(#[from] Invalid),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    DeniedBy(#[from] Denial),
    #[error(transparent)]
    JoinRefused(#[from] JoinRefusal),
    #[error("the store serves without TLS, so it has no authorities and nobody needs a certificate to join")]
    NoAuthorities,
    #[error("{key} is too large: {bytes} bytes, and a record may have {limit}")]
    TooLarge { key: RecordId, bytes: usize, limit: usize },
    #[error(
        "Expired: changes are kept from resource version {oldest} on, and {requested} was requested; \
         list again and watch from there"
    )]
    Expired { requested: u64, oldest: u64 },
    #[error(
        "ResourceVersionTooLarge: the store is at resource version {head}, and {requested} was requested"
    )]
    FutureVersion { requested: u64, head: u64 },
    #[error(
        "Expired: resource version {requested} is from another history, and the store is at {head}; it was restored \
         from a backup, or it is another store: list again and watch from there"
    )]
    OtherHistory { requested: u64, head: u64 },
    #[error("{0}")]
    Storage(String),
    #[error(
        "this store keeps no decisions: with --engine etcd there is no place for them; a store with the embedded engine \
         keeps them in its --data-dir"
    )]
    NoDecisions,
    /// The batch does not follow the log.
    #[error("{0}")]
    DecisionOrder(OrderError),
    #[error("{reason}")]
    DecisionsDamaged { reason: String, file: String, offset: u64 },
    #[error("Expired: decisions are kept from {oldest} on, and those after {requested} were requested")]
    DecisionsExpired { requested: u64, oldest: u64 },
    #[error("the store is stopping")]
    Stopping,
    /// Another store answers. Nothing of the call was done.
    #[error("this store does not lead: {}", .leader.as_ref().map_or_else(
        || "no store leads at the moment".to_owned(),
        |leader| format!("ask the one that leads, at {leader}")
    ))]
    NotLeader { leader: Option<String> },
    #[error("this store cannot say at the moment whether what it has is current: {reason}")]
    Unconfirmed { reason: String },
    /// Whether it was done is not known.
    #[error("{reason}; whether the write was done is not known")]
    ForwardingFailed { reason: String },
    #[error("the lease was deleted, or another holder acquired it: send a new hello")]
    ClaimLost,
    #[error(
        "another stream of the same agent incarnation took over: an agent that reconnects does that once; if it happens \
         again and again, two agents run with copies of one state directory, as on a cloned machine: delete the copy"
    )]
    StreamReplaced,
    #[error("no hello came within {} s: it must be the first message of a heartbeat stream", .timeout.as_secs())]
    NoHello { timeout: Duration },
    #[error("too many writes are waiting for the disk: the limit is {limit}")]
    Overloaded { limit: QueueFull },
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
    #[error("the store failed to evaluate this request; nothing of it was written")]
    Panicked,
    /// Another request of the same batch panicked.
    #[error("a write of the same batch failed, and nothing of the batch was written: try again")]
    Discarded,
}

impl From<DraftError> for StoreError {
    fn from(error: DraftError) -> Self {
        match error {
            DraftError::Refused(refusal) => StoreError::Refused(refusal),
            DraftError::TooLarge { key, bytes, limit } => StoreError::TooLarge { key, bytes, limit },
            DraftError::JoinRefused(refusal) => StoreError::JoinRefused(refusal),
            DraftError::LimitExceeded(exceeded) => StoreError::LimitExceeded(exceeded),
            DraftError::ClaimLost => StoreError::ClaimLost,
            DraftError::Unreadable(reason) => StoreError::Storage(reason),
        }
    }
}

impl From<Expired> for StoreError {
    fn from(Expired { requested, oldest }: Expired) -> Self {
        StoreError::Expired { requested, oldest }
    }
}

impl From<LedgerError> for StoreError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Deposed(_) => StoreError::NotLeader { leader: None },
            other => StoreError::Storage(other.to_string()),
        }
    }
}

impl From<LogError> for StoreError {
    fn from(error: LogError) -> Self {
        let reason = error.to_string();
        match error {
            LogError::Order(error) => StoreError::DecisionOrder(error),
            LogError::Damaged(Damage { file, offset }) => {
                StoreError::DecisionsDamaged { reason, file: file.display().to_string(), offset }
            }
            LogError::Expired { requested, oldest } => StoreError::DecisionsExpired { requested, oldest },
            // Another log, such as that of a store that was restored: its numbers begin again.
            LogError::Future { requested, last_id } => {
                StoreError::DecisionsExpired { requested, oldest: last_id + 1 }
            }
            LogError::Disk(_) => StoreError::Storage(reason),
        }
    }
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Status {
        let message = error.to_string();
        match error {
            StoreError::Refused(refusal) => refusal_status(refusal),
            StoreError::Malformed(invalid) => {
                invalid_argument(message, &invalid, StatusBuilder::new("INVALID"))
            }
            StoreError::DeniedBy(denial) => StatusBuilder::new("PERMISSION_DENIED")
                .metadata(RULE, &denial.rule)
                .status(Code::PermissionDenied, message),
            StoreError::JoinRefused(refusal) => join_refusal_status(&refusal),
            StoreError::NoAuthorities => {
                StatusBuilder::new("NO_AUTHORITIES").status(Code::FailedPrecondition, message)
            }
            StoreError::TooLarge { key, bytes, limit } => StatusBuilder::new("TOO_LARGE")
                .resource(&key)
                .metadata("bytes", &bytes)
                .metadata("limit", &limit)
                .status(Code::InvalidArgument, message),
            StoreError::Expired { requested, oldest } => StatusBuilder::new("EXPIRED")
                .metadata("requested", &requested)
                .metadata("oldest", &oldest)
                .status(Code::OutOfRange, message),
            // Clients treat it like history that is no longer kept: they list again.
            StoreError::OtherHistory { requested, head } => StatusBuilder::new("EXPIRED")
                .metadata("requested", &requested)
                .metadata("head", &head)
                .status(Code::OutOfRange, message),
            StoreError::FutureVersion { requested, head } => StatusBuilder::new("RESOURCE_VERSION_TOO_LARGE")
                .metadata("requested", &requested)
                .metadata("head", &head)
                .retry_after(RETRY_VERSION)
                .status(Code::Unavailable, message),
            StoreError::Storage(_) => StatusBuilder::new("STORAGE_UNAVAILABLE")
                .retry_after(RETRY_STORAGE)
                .status(Code::Unavailable, message),
            StoreError::NoDecisions => {
                StatusBuilder::new("NO_DECISIONS").status(Code::Unimplemented, message)
            }
            StoreError::DecisionOrder(_) => {
                StatusBuilder::new("DECISION_ORDER").status(Code::FailedPrecondition, message)
            }
            StoreError::DecisionsDamaged { file, offset, .. } => StatusBuilder::new("DECISIONS_DAMAGED")
                .metadata("file", &file)
                .metadata("offset", &offset)
                .status(Code::DataLoss, message),
            StoreError::DecisionsExpired { requested, oldest } => StatusBuilder::new("EXPIRED")
                .metadata("requested", &requested)
                .metadata("oldest", &oldest)
                .status(Code::OutOfRange, message),
            StoreError::ClaimLost => StatusBuilder::new("CLAIM_LOST").status(Code::Aborted, message),
            StoreError::StreamReplaced => {
                StatusBuilder::new("STREAM_REPLACED").status(Code::Aborted, message)
            }
            StoreError::NoHello { .. } => {
                StatusBuilder::new("NO_HELLO").status(Code::DeadlineExceeded, message)
            }
            StoreError::Overloaded { .. } => StatusBuilder::new("TOO_MANY_IN_FLIGHT")
                .retry_after(RETRY_OVERLOADED)
                .status(Code::ResourceExhausted, message),
            StoreError::LimitExceeded(exceeded) => StatusBuilder::new("LIMIT_EXCEEDED")
                .metadata("kind", &exceeded.kind)
                .metadata("scope", &exceeded.scope)
                .metadata("limit", &exceeded.limit)
                .retry_after(RETRY_LIMIT)
                .status(Code::ResourceExhausted, message),
            StoreError::Panicked => StatusBuilder::new("INTERNAL").status(Code::Internal, message),
            StoreError::Discarded => StatusBuilder::new("DISCARDED")
                .retry_after(RETRY_OVERLOADED)
                .status(Code::Unavailable, message),
            StoreError::NotLeader { leader } => StatusBuilder::new("NOT_LEADER")
                .metadata("leader", &leader.unwrap_or_default())
                .retry_after(RETRY_LEADER)
                .status(Code::Unavailable, message),
            StoreError::Unconfirmed { .. } => StatusBuilder::new("READ_NOT_CONFIRMED")
                .retry_after(RETRY_LEADER)
                .status(Code::Unavailable, message),
            StoreError::ForwardingFailed { .. } => StatusBuilder::new("FORWARDING_FAILED")
                .retry_after(RETRY_LEADER)
                .status(Code::Unavailable, message),
            StoreError::Stopping => {
                StatusBuilder::new("STOPPING").retry_after(RETRY_STOPPING).status(Code::Unavailable, message)
            }
        }
    }
}

fn join_refusal_status(refusal: &JoinRefusal) -> Status {
    let builder = StatusBuilder::new(refusal.reason());
    let (builder, code) = match refusal {
        JoinRefusal::TooManyWaiting { .. } => (builder.retry_after(RETRY_WAITING), Code::ResourceExhausted),
        JoinRefusal::JustRevoked { .. } => (builder.retry_after(RETRY_REVOKED), Code::Unavailable),
        _ => (builder, Code::PermissionDenied),
    };
    builder.status(code, refusal.to_string())
}

fn refusal_status(refusal: Refusal) -> Status {
    let message = refusal.to_string();
    match refusal {
        Refusal::Invalid { key, invalid } => {
            invalid_argument(message, &invalid, StatusBuilder::new("INVALID").resource(&key))
        }
        Refusal::NotFound { key } => {
            StatusBuilder::new("NOT_FOUND").resource(&key).status(Code::NotFound, message)
        }
        Refusal::AlreadyExists { key } => {
            StatusBuilder::new("ALREADY_EXISTS").resource(&key).status(Code::AlreadyExists, message)
        }
        Refusal::Stale { key, expected, found } => StatusBuilder::new("CONFLICT")
            .resource(&key)
            .metadata("expected", &expected)
            .metadata("found", &found)
            .precondition("RESOURCE_VERSION", &key, &message)
            .status(Code::Aborted, message),
        Refusal::UidMismatch { key, .. } => StatusBuilder::new("UID_MISMATCH")
            .resource(&key)
            .precondition("UID", &key, &message)
            .status(Code::Aborted, message),
        Refusal::Conflict { key, .. } => {
            StatusBuilder::new("CONFLICT").resource(&key).status(Code::Aborted, message)
        }
        Refusal::BudgetExhausted { key, budget, retry_after_seconds, .. } => {
            StatusBuilder::new("BUDGET_EXHAUSTED")
                .resource(&key)
                .metadata("budget", &budget.path())
                .retry_after(Duration::from_secs(retry_after_seconds))
                .status(Code::ResourceExhausted, message)
        }
        Refusal::SeveralBudgets { key, .. } => {
            StatusBuilder::new("SEVERAL_BUDGETS").resource(&key).status(Code::Internal, message)
        }
        Refusal::Denied { key, .. } => {
            StatusBuilder::new("PERMISSION_DENIED").resource(&key).status(Code::PermissionDenied, message)
        }
        Refusal::Fenced { key, found, .. } => {
            let (holder, transitions) = found.unwrap_or_default();
            StatusBuilder::new("FENCED")
                .resource(&key)
                .metadata("holder", &holder)
                .metadata("transitions", &transitions)
                .precondition("FENCE", &key, &message)
                .status(Code::Aborted, message)
        }
    }
}

/// Builds a status with its details.
struct StatusBuilder {
    reason: &'static str,
    metadata: Vec<(String, String)>,
    details: ErrorDetails,
}

impl StatusBuilder {
    fn new(reason: &'static str) -> Self {
        Self { reason, metadata: Vec::new(), details: ErrorDetails::new() }
    }

    /// Sets the ResourceInfo: the record of the request.
    fn resource(mut self, key: &RecordId) -> Self {
        self.details.set_resource_info(key.kind.to_string(), key.path().to_string(), "", "");
        self
    }

    /// Adds metadata to the ErrorInfo, for programs.
    fn metadata(mut self, name: &str, value: &impl ToString) -> Self {
        self.metadata.push((name.to_owned(), value.to_string()));
        self
    }

    /// Adds a PreconditionFailure.
    fn precondition(mut self, kind: &str, key: &RecordId, message: &str) -> Self {
        self.details.add_precondition_failure_violation(kind, key.to_string(), message);
        self
    }

    fn retry_after(mut self, delay: Duration) -> Self {
        self.details.set_retry_info(Some(delay));
        self
    }

    fn status(mut self, code: Code, message: String) -> Status {
        let metadata: HashMap<String, String> = self.metadata.into_iter().collect();
        self.details.set_error_info(self.reason, ERROR_DOMAIN, metadata);
        Status::with_error_details(code, truncate(message, MAX_MESSAGE), self.details)
    }
}

/// A status that lists as many violations as fit.
fn invalid_argument(message: String, invalid: &Invalid, mut builder: StatusBuilder) -> Status {
    let mut remaining = MAX_VIOLATIONS;
    let mut listed = Vec::new();
    for Violation { field, reason } in &invalid.violations {
        let violation =
            FieldViolation::new(truncate(field.clone(), MAX_MESSAGE), truncate(reason.clone(), MAX_MESSAGE));
        let size = violation.field.len() + violation.description.len();
        if size > remaining {
            break;
        }
        remaining -= size;
        listed.push(violation);
    }
    let unlisted = invalid.violations.len() - listed.len();
    if unlisted > 0 {
        listed.push(FieldViolation::new("", format!("{unlisted} more violations are not listed")));
    }
    builder.details.set_bad_request(listed);
    builder.status(Code::InvalidArgument, message)
}

/// The text, shortened to the limit and ended with `...` if it is longer.
fn truncate(mut text: String, limit: usize) -> String {
    const MORE: &str = "...";
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit - MORE.len()));
        text.push_str(MORE);
    }
    text
}
