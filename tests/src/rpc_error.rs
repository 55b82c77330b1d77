//! The error of a failed call, with the details that programs use.

use std::time::Duration;

use muster_proto::ERROR_DOMAIN;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// The error of a failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    pub code: Code,
    /// `ErrorInfo.reason`; empty when the error did not come from the store's own checks.
    pub reason: String,
    pub message: String,
    /// The fields of `BadRequest`, in order.
    pub fields: Vec<String>,
    /// The resource of `ResourceInfo`, as `Kind name`.
    pub resource: String,
    pub retry_after: Option<Duration>,
    /// The types in `PreconditionFailure`.
    pub violations: Vec<String>,
}

impl From<&Status> for RpcError {
    fn from(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        if let Some(info) = info {
            assert_eq!(info.domain, ERROR_DOMAIN, "unknown error domain: {status:?}");
        }
        let violations = details.bad_request().map(|bad| bad.field_violations.as_slice());
        let preconditions = details.precondition_failure().map(|failure| failure.violations.as_slice());
        Self {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            message: status.message().to_owned(),
            fields: violations.unwrap_or_default().iter().map(|violation| violation.field.clone()).collect(),
            resource: details
                .resource_info()
                .map(|resource| format!("{} {}", resource.resource_type, resource.resource_name))
                .unwrap_or_default(),
            retry_after: details.retry_info().and_then(|retry| retry.retry_delay),
            violations: preconditions
                .unwrap_or_default()
                .iter()
                .map(|violation| violation.r#type.clone())
                .collect(),
        }
    }
}

impl RpcError {
    /// Checks that exactly these fields were invalid.
    #[track_caller]
    pub fn is_invalid(&self, fields: &[&str]) -> &Self {
        self.is(Code::InvalidArgument, "INVALID");
        assert_eq!(self.fields, fields, "{}", self.message);
        self
    }

    /// Checks code and reason.
    #[track_caller]
    pub fn is(&self, code: Code, reason: &str) -> &Self {
        assert_eq!((self.code, self.reason.as_str()), (code, reason), "{self:#?}");
        self
    }

    /// Checks that permission was denied.
    #[track_caller]
    pub fn is_denied(&self) -> &Self {
        self.is(Code::PermissionDenied, "PERMISSION_DENIED")
    }

    /// Checks that the message contains a text.
    #[track_caller]
    pub fn mentions(&self, text: &str) -> &Self {
        assert!(self.message.contains(text), "{:?} does not contain {text:?}", self.message);
        self
    }
}
