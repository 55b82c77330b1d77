//! What a call that was refused says, in the parts that programs act on.

use std::time::Duration;

use muster_proto::ERROR_DOMAIN;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// A refused call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    pub code: Code,
    /// `ErrorInfo.reason`; empty when the answer did not come from the store's own rules.
    pub reason: String,
    pub message: String,
    /// The fields that `BadRequest` names, in order.
    pub fields: Vec<String>,
    /// What `ResourceInfo` names, as `Kind name`.
    pub resource: String,
    pub retry_after: Option<Duration>,
    /// What `PreconditionFailure` names.
    pub violations: Vec<String>,
}

impl From<&Status> for RpcError {
    fn from(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        if let Some(info) = info {
            assert_eq!(info.domain, ERROR_DOMAIN, "whose reason is that: {status:?}");
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
    /// Checks that the request was found invalid, in these fields and no others.
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

    /// Checks that the call was not permitted.
    #[track_caller]
    pub fn is_denied(&self) -> &Self {
        self.is(Code::PermissionDenied, "PERMISSION_DENIED")
    }

    /// Checks that the text tells people this.
    #[track_caller]
    pub fn mentions(&self, text: &str) -> &Self {
        assert!(self.message.contains(text), "{:?} does not say {text:?}", self.message);
        self
    }
}
