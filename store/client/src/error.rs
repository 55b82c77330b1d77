//! Errors of calls to the store, and which of them are worth a retry.
//!
//! The store gives a stable reason (`google.rpc.ErrorInfo` with [`ERROR_DOMAIN`]). A status without one, from a proxy
//! or the transport, is mapped by its code.

use std::error::Error;
use std::time::Duration;

use muster_proto::ERROR_DOMAIN;
use muster_proto::invalid::{Invalid, Violation};
use tonic::{Code, ConnectError, Status, TimeoutExpired};
use tonic_types::{ErrorDetails, StatusExt};

use crate::store_identity::OtherStore;
use muster_proto::watch_event::WatchFailure;
use muster_proto::watch_event::WatchFailureKind;

/// Why a call to the store failed. The texts are the store's.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The request is invalid and must be changed.
    #[error("invalid: {0}")]
    Invalid(Invalid),
    #[error("not found: {0}")]
    NotFound(String),
    #[error("already exists: {0}")]
    AlreadyExists(String),
    /// The record changed since the caller read it, or has another uid: read it again.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The lease of the write's fence has another holder: the caller is not the leader any more.
    #[error("fenced: {0}")]
    Fenced(String),
    #[error("not permitted: {0}")]
    Denied(String),
    /// The requested version or page is no longer in the history: list again.
    #[error("expired: {0}")]
    Expired(String),
    /// The store has not reached the requested version.
    #[error("ahead of the store: {message}")]
    FutureVersion { message: String, retry_after: Option<Duration> },
    /// A disruption budget does not allow the eviction now.
    #[error("disruption budget exhausted: {message}")]
    BudgetExhausted { message: String, retry_after: Option<Duration> },
    /// The store has too many calls.
    #[error("the store is too busy: {message}")]
    TooBusy { message: String, retry_after: Option<Duration> },
    /// No store could be reached, or it cannot serve now. A write may or may not have happened.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// A write may or may not have happened.
    #[error("no answer from the store in time")]
    DeadlineExceeded,
    /// The store's response is not a valid record.
    #[error("the store's answer cannot be read: {0}")]
    Unreadable(Invalid),
    #[error("{}: {}", .0.code(), .0.message())]
    Other(Status),
}

impl ClientError {
    /// Whether the same call may succeed later, unchanged. A write that failed with [`Unavailable`] or
    /// [`DeadlineExceeded`] may have been done: a retry must expect that.
    ///
    /// [`Unavailable`]: ClientError::Unavailable
    /// [`DeadlineExceeded`]: ClientError::DeadlineExceeded
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::FutureVersion { .. }
            | Self::BudgetExhausted { .. }
            | Self::TooBusy { .. }
            | Self::Unavailable(_)
            | Self::DeadlineExceeded => true,
            Self::Invalid(_)
            | Self::NotFound(_)
            | Self::AlreadyExists(_)
            | Self::Conflict(_)
            | Self::Fenced(_)
            | Self::Denied(_)
            | Self::Expired(_)
            | Self::Unreadable(_)
            | Self::Other(_) => false,
        }
    }

    /// How long the store asked the client to wait before a retry.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::FutureVersion { retry_after, .. }
            | Self::BudgetExhausted { retry_after, .. }
            | Self::TooBusy { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The failure of a list or watch, for its session.
    pub(crate) fn into_failure(self) -> WatchFailure {
        let kind = match &self {
            Self::Expired(_) => WatchFailureKind::Expired,
            Self::FutureVersion { .. } => WatchFailureKind::FutureVersion,
            Self::Invalid(_) | Self::Denied(_) => WatchFailureKind::Refused,
            Self::Other(status) if status.code() == Code::Unimplemented => WatchFailureKind::Refused,
            _ => WatchFailureKind::Unreachable,
        };
        WatchFailure { kind, retry_after: self.retry_after(), message: self.to_string() }
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let reason = details.error_info().filter(|info| info.domain == ERROR_DOMAIN);
        if let Some(error) = reason.and_then(|info| by_reason(&info.reason, &status, &details)) {
            return error;
        }
        if is_caused_by::<TimeoutExpired>(&status) {
            return Self::DeadlineExceeded;
        }
        if status.source().is_some() {
            // Created on this side: the connection could not be made or broke.
            return Self::Unavailable(root_cause(&status));
        }
        by_code(status, &details)
    }
}

fn by_reason(reason: &str, status: &Status, details: &ErrorDetails) -> Option<ClientError> {
    let message = status.message().to_owned();
    let retry_after = retry_delay(details);
    Some(match reason {
        "INVALID" => ClientError::Invalid(violations(status, details)),
        "NOT_FOUND" => ClientError::NotFound(message),
        "ALREADY_EXISTS" => ClientError::AlreadyExists(message),
        "CONFLICT" | "UID_MISMATCH" => ClientError::Conflict(message),
        "FENCED" => ClientError::Fenced(message),
        "PERMISSION_DENIED" => ClientError::Denied(message),
        "EXPIRED" => ClientError::Expired(message),
        "RESOURCE_VERSION_TOO_LARGE" => ClientError::FutureVersion { message, retry_after },
        "BUDGET_EXHAUSTED" => ClientError::BudgetExhausted { message, retry_after },
        "TOO_MANY_IN_FLIGHT" => ClientError::TooBusy { message, retry_after },
        "STORAGE_UNAVAILABLE" | "NOT_LEADER" | "READ_NOT_CONFIRMED" | "FORWARDING_FAILED" => {
            ClientError::Unavailable(message)
        }
        "SEVERAL_BUDGETS" => ClientError::Other(status.clone()),
        _ => return None,
    })
}

fn by_code(status: Status, details: &ErrorDetails) -> ClientError {
    let message = status.message().to_owned();
    match status.code() {
        Code::InvalidArgument => ClientError::Invalid(violations(&status, details)),
        Code::NotFound => ClientError::NotFound(message),
        Code::AlreadyExists => ClientError::AlreadyExists(message),
        Code::Aborted => ClientError::Conflict(message),
        Code::PermissionDenied | Code::Unauthenticated => ClientError::Denied(message),
        Code::OutOfRange => ClientError::Expired(message),
        Code::ResourceExhausted => ClientError::TooBusy { message, retry_after: retry_delay(details) },
        Code::Unavailable => ClientError::Unavailable(message),
        Code::DeadlineExceeded => ClientError::DeadlineExceeded,
        _ => ClientError::Other(status),
    }
}

fn retry_delay(details: &ErrorDetails) -> Option<Duration> {
    details.retry_info().and_then(|info| info.retry_delay)
}

fn violations(status: &Status, details: &ErrorDetails) -> Invalid {
    let fields = details.bad_request().map(|bad| bad.field_violations.as_slice()).unwrap_or_default();
    if fields.is_empty() {
        return Invalid::of("", status.message());
    }
    let violation = |field: &tonic_types::FieldViolation| Violation {
        field: field.field.clone(),
        reason: field.description.clone(),
    };
    Invalid { violations: fields.iter().map(violation).collect() }
}

/// Whether the request cannot have reached the store, so that even a write can be sent to another address of it.
pub(crate) fn was_never_sent(status: &Status) -> bool {
    is_caused_by::<ConnectError>(status) || is_other_store(status) || is_for_another_store(status)
}

/// Whether the store did nothing and another one may do it: it does not lead, or cannot say whether a read is current.
pub fn is_for_another_store(status: &Status) -> bool {
    let is_of_store = |reason: &str| matches!(reason, "NOT_LEADER" | "READ_NOT_CONFIRMED");
    status.code() == Code::Unavailable
        && status
            .get_details_error_info()
            .is_some_and(|info| info.domain == ERROR_DOMAIN && is_of_store(&info.reason))
}

/// Whether the connection was closing when the call was to be sent, as it does when it has reached its age: the call did
/// not leave this process and can be sent again at once, on a new connection.
pub(crate) fn found_its_connection_closed(status: &Status) -> bool {
    causes(status).filter_map(<dyn Error>::downcast_ref).any(hyper::Error::is_canceled)
}

/// Whether the response came from an unrelated store. A store refuses calls for another one before they do anything.
pub(crate) fn is_other_store(status: &Status) -> bool {
    is_caused_by::<OtherStore>(status)
}

fn is_caused_by<E: Error + 'static>(status: &Status) -> bool {
    causes(status).any(<dyn Error>::is::<E>)
}

/// The last cause: tonic's own text is only "transport error".
fn root_cause(status: &Status) -> String {
    causes(status).last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(status.source(), |&cause| cause.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [(String, String); 0] = [];

    fn with_reason(code: Code, reason: &str) -> Status {
        let details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, NONE);
        Status::with_error_details(code, "why", details)
    }

    /// The variant's name, and whether it is retryable.
    fn read(status: Status) -> (String, bool) {
        let error = ClientError::from(status);
        let debug = format!("{error:?}");
        let end = debug.find(|c: char| !c.is_alphanumeric()).unwrap_or(debug.len());
        (debug[..end].to_owned(), error.is_retryable())
    }

    #[test]
    fn the_stores_reason_takes_precedence_over_the_code() {
        for (code, reason, expected, retryable) in [
            (Code::InvalidArgument, "INVALID", "Invalid", false),
            (Code::NotFound, "NOT_FOUND", "NotFound", false),
            (Code::AlreadyExists, "ALREADY_EXISTS", "AlreadyExists", false),
            (Code::Aborted, "CONFLICT", "Conflict", false),
            (Code::Aborted, "UID_MISMATCH", "Conflict", false),
            (Code::Aborted, "FENCED", "Fenced", false),
            (Code::PermissionDenied, "PERMISSION_DENIED", "Denied", false),
            (Code::OutOfRange, "EXPIRED", "Expired", false),
            (Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE", "FutureVersion", true),
            (Code::ResourceExhausted, "BUDGET_EXHAUSTED", "BudgetExhausted", true),
            (Code::ResourceExhausted, "TOO_MANY_IN_FLIGHT", "TooBusy", true),
            (Code::Internal, "SEVERAL_BUDGETS", "Other", false),
            (Code::Unavailable, "STORAGE_UNAVAILABLE", "Unavailable", true),
            (Code::Aborted, "SOMETHING_NEW", "Conflict", false),
        ] {
            assert_eq!(read(with_reason(code, reason)), (expected.to_owned(), retryable), "{reason}");
        }
    }

    #[test]
    fn a_status_without_a_reason_is_mapped_by_its_code() {
        for (code, expected, retryable) in [
            (Code::InvalidArgument, "Invalid", false),
            (Code::NotFound, "NotFound", false),
            (Code::AlreadyExists, "AlreadyExists", false),
            (Code::Aborted, "Conflict", false),
            (Code::PermissionDenied, "Denied", false),
            (Code::Unauthenticated, "Denied", false),
            (Code::OutOfRange, "Expired", false),
            (Code::ResourceExhausted, "TooBusy", true),
            (Code::Unavailable, "Unavailable", true),
            (Code::DeadlineExceeded, "DeadlineExceeded", true),
            (Code::Unimplemented, "Other", false),
            (Code::Internal, "Other", false),
        ] {
            assert_eq!(read(Status::new(code, "why")), (expected.to_owned(), retryable), "{code:?}");
        }
    }

    #[test]
    fn a_reason_of_another_domain_does_not_count() {
        let details = ErrorDetails::with_error_info("EXPIRED", "example.com", NONE);
        let status = Status::with_error_details(Code::NotFound, "why", details);
        assert_eq!(read(status).0, "NotFound");
    }

    #[test]
    fn every_violation_and_the_retry_delay_are_received() {
        let mut details = ErrorDetails::with_error_info("INVALID", ERROR_DOMAIN, NONE);
        details.add_bad_request_violation("spec.podCidrs[0]", "must be a block");
        details.add_bad_request_violation("metadata.name", "is required");
        let status = Status::with_error_details(Code::InvalidArgument, "invalid", details);
        let ClientError::Invalid(invalid) = ClientError::from(status) else { panic!("not Invalid") };
        assert_eq!(invalid.to_string(), "spec.podCidrs[0]: must be a block; metadata.name: is required");

        let mut details = ErrorDetails::with_error_info("BUDGET_EXHAUSTED", ERROR_DOMAIN, NONE);
        details.set_retry_info(Some(Duration::from_secs(10)));
        let status = Status::with_error_details(Code::ResourceExhausted, "needs 2 healthy, has 2", details);
        assert_eq!(ClientError::from(status).retry_after(), Some(Duration::from_secs(10)));
    }

    #[test]
    fn errors_of_the_transport_mean_that_the_store_was_not_reached() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let connect = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        assert!(was_never_sent(&connect));
        assert_eq!(read(connect).0, "Unavailable");

        let broken = Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)));
        assert!(!was_never_sent(&broken), "it may have been sent");
        assert_eq!(read(broken).0, "Unavailable");

        let late = Status::from_error(Box::new(TimeoutExpired(())));
        assert_eq!(read(late).0, "DeadlineExceeded");

        assert!(!was_never_sent(&Status::unavailable("stopping")));
        let info =
            ErrorDetails::with_error_info("NOT_LEADER", ERROR_DOMAIN, std::collections::HashMap::new());
        let standby = Status::with_error_details(Code::Unavailable, "it stands by", info);
        assert!(was_never_sent(&standby), "a store that stands by does nothing");
        assert_eq!(read(standby).0, "Unavailable");
    }
}
