//! Errors as Kubernetes' `Status`: code, reason, and details that its clients branch on. Pure.

use std::time::Duration;

use muster_manifest::kubernetes;
use serde_json::{Map, Value, json};
use tonic::Code;
use tonic_types::StatusExt;

use crate::resources::Resource;

/// Why a request failed, as its answer says it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) code: u16,
    /// Such as `NotFound`.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) details: Map<String, Value>,
    /// Clients repeat the request by themselves after this many seconds.
    pub(crate) retry_after: Option<u64>,
}

/// What a request is about, for the words of its failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) resource: &'a Resource,
    /// Empty for a collection.
    pub(crate) name: &'a str,
    /// Such as `update`.
    pub(crate) verb: &'a str,
}

impl Failure {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Failure {
        Failure { code, reason, message: message.into(), details: Map::new(), retry_after: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Failure {
        Failure::new(400, "BadRequest", message)
    }

    pub(crate) fn unprocessable(message: impl Into<String>) -> Failure {
        Failure::new(422, "Invalid", message)
    }

    pub(crate) fn not_acceptable() -> Failure {
        Failure::new(406, "NotAcceptable", "only the following media types are accepted: application/json")
    }

    pub(crate) fn unsupported_media_type(accepted: &str) -> Failure {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Failure::new(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn too_large(limit: usize) -> Failure {
        Failure::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    pub(crate) fn method_not_allowed() -> Failure {
        Failure::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    pub(crate) fn unknown_resource() -> Failure {
        Failure::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn not_implemented(message: impl Into<String>) -> Failure {
        Failure::new(501, "NotImplemented", message)
    }

    pub(crate) fn forbidden(subject: Subject<'_>, why: &str) -> Failure {
        let Subject { resource, name, .. } = subject;
        let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!("{}{named} is forbidden: {why}", resource.qualified());
        Failure::new(403, "Forbidden", message).about(subject, resource.plural)
    }

    pub(crate) fn not_found(subject: Subject<'_>) -> Failure {
        let Subject { resource, name, .. } = subject;
        Failure::new(404, "NotFound", format!("{} {name:?} not found", resource.qualified()))
            .about(subject, resource.plural)
    }

    pub(crate) fn modified(subject: Subject<'_>) -> Failure {
        let message =
            "the object has been modified; please apply your changes to the latest version and try again";
        Failure::conflict(subject, message)
    }

    pub(crate) fn conflict(subject: Subject<'_>, why: &str) -> Failure {
        let Subject { resource, name, .. } = subject;
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Failure::new(409, "Conflict", message).about(subject, resource.plural)
    }

    /// Fields that are not valid, with the rule that each breaks.
    pub(crate) fn invalid(subject: Subject<'_>, violations: &[(String, String)]) -> Failure {
        let texts: Vec<String> = violations
            .iter()
            .map(|(field, rule)| if field.is_empty() { rule.clone() } else { format!("{field}: {rule}") })
            .collect();
        let list = if texts.len() == 1 { texts.concat() } else { format!("[{}]", texts.join(", ")) };
        let Subject { resource, name, .. } = subject;
        let kind = if resource.group.is_empty() {
            resource.kind.to_owned()
        } else {
            format!("{}.{}", resource.kind, resource.group)
        };
        let mut failure = Failure::unprocessable(format!("{kind} {name:?} is invalid: {list}"))
            .about(subject, resource.kind);
        let causes = violations
            .iter()
            .map(|(field, rule)| json!({"reason": cause(rule), "message": rule, "field": field}));
        failure.details.insert("causes".to_owned(), causes.collect());
        failure
    }

    /// Adds what the failure is about. `kind` is the plural name, or for invalid objects the kind.
    fn about(mut self, subject: Subject<'_>, kind: &str) -> Failure {
        if !subject.name.is_empty() {
            self.details.insert("name".to_owned(), subject.name.into());
        }
        if !subject.resource.group.is_empty() {
            self.details.insert("group".to_owned(), subject.resource.group.into());
        }
        self.details.insert("kind".to_owned(), kind.into());
        self
    }

    fn retry_after(mut self, delay: Option<Duration>) -> Failure {
        if let Some(delay) = delay {
            let seconds = (delay.as_millis() as u64).div_ceil(1000).max(1);
            self.details.insert("retryAfterSeconds".to_owned(), seconds.into());
            self.retry_after = Some(seconds);
        }
        self
    }

    fn caused_by(mut self, reason: &str, message: &str) -> Failure {
        self.details.insert("causes".to_owned(), json!([{"reason": reason, "message": message}]));
        self
    }

    /// The answer to a call that failed.
    pub(crate) fn of(status: &tonic::Status, subject: Subject<'_>) -> Failure {
        let details = status.get_error_details();
        let info = details.error_info();
        let reason = info.map_or("", |info| info.reason.as_str());
        let wait = details.retry_info().and_then(|retry| retry.retry_delay);
        let message = status.message();
        match (status.code(), reason) {
            (Code::NotFound, _) => Failure::not_found(subject),
            (Code::AlreadyExists, _) => {
                let Subject { resource, name, .. } = subject;
                let message = format!("{} {name:?} already exists", resource.qualified());
                Failure::new(409, "AlreadyExists", message).about(subject, resource.plural)
            }
            (Code::Aborted, "CONFLICT")
                if info.is_some_and(|info| info.metadata.contains_key("expected")) =>
            {
                Failure::modified(subject)
            }
            (Code::Aborted | Code::FailedPrecondition, _) => Failure::conflict(subject, message),
            (Code::InvalidArgument, "TOO_LARGE") => {
                Failure::new(413, "RequestEntityTooLarge", message).about(subject, subject.resource.plural)
            }
            (Code::InvalidArgument, _) => {
                let violations =
                    details.bad_request().map(|bad| bad.field_violations.as_slice()).unwrap_or_default();
                let violations: Vec<_> = violations
                    .iter()
                    .map(|violation| (kubernetes::path(&violation.field), violation.description.clone()))
                    .collect();
                match (subject.verb, violations.is_empty()) {
                    ("list" | "watch", _) | (_, true) => list_failure(&violations, message),
                    _ => Failure::invalid(subject, &violations),
                }
            }
            (Code::PermissionDenied, _) => Failure::forbidden(subject, message),
            (Code::Unauthenticated, _) => Failure::new(401, "Unauthorized", "Unauthorized"),
            (Code::ResourceExhausted, "BUDGET_EXHAUSTED") => {
                // Without a time to retry: drains repeat it by themselves, and clients' own repetition would hide the
                // reason for long.
                let refused = "Cannot evict pod as it would violate the pod's disruption budget.";
                Failure::new(429, "TooManyRequests", refused).caused_by("DisruptionBudget", message)
            }
            (Code::ResourceExhausted, _) => Failure::new(429, "TooManyRequests", message)
                .retry_after(wait.or(Some(Duration::from_secs(1)))),
            (Code::OutOfRange, _) => Failure::new(410, "Expired", message),
            (Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE") => Failure::new(504, "Timeout", message)
                .caused_by("ResourceVersionTooLarge", "Too large resource version")
                .retry_after(wait),
            (Code::Unavailable, _) => Failure::new(503, "ServiceUnavailable", message)
                .retry_after(wait.or(Some(Duration::from_secs(1)))),
            (Code::DeadlineExceeded | Code::Cancelled, _) => Failure::new(504, "Timeout", message),
            (Code::Unimplemented, _) => Failure::not_implemented(message),
            _ => Failure::new(500, "InternalError", format!("Internal error occurred: {message}")),
        }
    }

    /// The body of the answer.
    pub(crate) fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_empty() {
            status["details"] = Value::Object(self.details.clone());
        }
        status
    }
}

/// The failure of a list or watch: its parameters are wrong.
fn list_failure(violations: &[(String, String)], message: &str) -> Failure {
    match violations.iter().find(|(field, _)| field == "resourceVersionMatch") {
        Some((field, rule)) => {
            let mut failure =
                Failure::unprocessable(format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: {rule}"));
            failure.details.insert("group".to_owned(), "meta.k8s.io".into());
            failure.details.insert("kind".to_owned(), "ListOptions".into());
            failure.caused_by_field(field, rule)
        }
        None => Failure::bad_request(message),
    }
}

impl Failure {
    fn caused_by_field(mut self, field: &str, rule: &str) -> Failure {
        self.details
            .insert("causes".to_owned(), json!([{"reason": cause(rule), "message": rule, "field": field}]));
        self
    }
}

/// Kubernetes' word for a broken rule.
fn cause(rule: &str) -> &'static str {
    if rule.contains("is required") {
        "FieldValueRequired"
    } else if rule.contains("must not be set") || rule.contains("cannot be changed") {
        "FieldValueForbidden"
    } else if rule.contains("repeat") || rule.contains("twice") {
        "FieldValueDuplicate"
    } else {
        "FieldValueInvalid"
    }
}

/// The `Status` of a request that succeeded without an object to show.
pub(crate) fn success(subject: Subject<'_>, uid: &str) -> Value {
    let mut details = json!({"name": subject.name, "kind": subject.resource.plural});
    if !subject.resource.group.is_empty() {
        details["group"] = subject.resource.group.into();
    }
    if !uid.is_empty() {
        details["uid"] = uid.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// The `Status` of an action that was done.
pub(crate) fn done(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code})
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::{ErrorDetails, FieldViolation};

    use super::*;
    use crate::resources;

    fn failure(code: Code, details: ErrorDetails, group: &str, plural: &str, verb: &str) -> Value {
        let status = tonic::Status::with_error_details(code, "because", details);
        let resource = resources::find(group, plural).expect("a resource");
        Failure::of(&status, Subject { resource, name: "x", verb }).to_json()
    }

    fn reason(reason: &str, metadata: &[(&str, &str)]) -> ErrorDetails {
        let metadata = metadata.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ErrorDetails::with_error_info(reason, "muster", metadata.collect::<HashMap<_, _>>())
    }

    #[test]
    fn the_errors_of_calls_have_the_codes_and_reasons_of_kubernetes() {
        for (code, details, verb, expected_code, expected_reason, expected_message) in [
            (Code::NotFound, reason("NOT_FOUND", &[]), "get", 404, "NotFound", "pods \"x\" not found"),
            (
                Code::AlreadyExists,
                reason("ALREADY_EXISTS", &[]),
                "create",
                409,
                "AlreadyExists",
                "pods \"x\" already exists",
            ),
            (
                Code::Aborted,
                reason("CONFLICT", &[("expected", "1"), ("found", "2")]),
                "update",
                409,
                "Conflict",
                "Operation cannot be fulfilled on pods \"x\": the object has been modified; please apply your changes to \
                 the latest version and try again",
            ),
            (
                Code::Aborted,
                reason("UID_MISMATCH", &[]),
                "delete",
                409,
                "Conflict",
                "Operation cannot be fulfilled on pods \"x\": because",
            ),
            (
                Code::PermissionDenied,
                reason("PERMISSION_DENIED", &[]),
                "get",
                403,
                "Forbidden",
                "pods \"x\" is forbidden: because",
            ),
            (Code::OutOfRange, reason("EXPIRED", &[]), "watch", 410, "Expired", "because"),
            (Code::Unavailable, reason("RESOURCE_VERSION_TOO_LARGE", &[]), "list", 504, "Timeout", "because"),
            (Code::Unavailable, reason("NOT_LEADER", &[]), "list", 503, "ServiceUnavailable", "because"),
            (
                Code::ResourceExhausted,
                reason("TOO_MANY_IN_FLIGHT", &[]),
                "list",
                429,
                "TooManyRequests",
                "because",
            ),
            (Code::InvalidArgument, reason("INVALID", &[]), "list", 400, "BadRequest", "because"),
            (
                Code::Internal,
                reason("INTERNAL", &[]),
                "list",
                500,
                "InternalError",
                "Internal error occurred: because",
            ),
        ] {
            let status = failure(code, details, "", "pods", verb);
            assert_eq!(status["code"], expected_code, "{status}");
            assert_eq!(status["reason"], expected_reason, "{status}");
            assert_eq!(status["message"], expected_message, "{status}");
        }
    }

    #[test]
    fn an_invalid_field_is_a_cause_in_the_spelling_of_kubernetes() {
        let mut details = reason("INVALID", &[]);
        details.set_bad_request(vec![FieldViolation::new("spec.podCidrs[0]", "is required")]);
        let status = failure(Code::InvalidArgument, details, "", "nodes", "update");
        assert_eq!(status["code"], 422);
        assert_eq!(status["message"], "Node \"x\" is invalid: spec.podCIDRs[0]: is required");
        assert_eq!(
            status["details"],
            json!({"name": "x", "kind": "Node", "causes": [
                {"reason": "FieldValueRequired", "message": "is required", "field": "spec.podCIDRs[0]"}]})
        );
    }

    #[test]
    fn an_eviction_that_a_budget_refuses_has_its_reason_and_no_time_to_retry() {
        let refused = Failure::of(
            &tonic::Status::with_error_details(
                Code::ResourceExhausted,
                "b needs 1",
                reason("BUDGET_EXHAUSTED", &[]),
            ),
            Subject { resource: resources::find("", "pods").expect("pods"), name: "x", verb: "create" },
        );
        assert_eq!((refused.code, refused.reason, refused.retry_after), (429, "TooManyRequests", None));
        assert_eq!(
            refused.details["causes"],
            json!([{"reason": "DisruptionBudget", "message": "b needs 1"}])
        );
    }

    #[test]
    fn details_name_the_group_of_a_resource_that_has_one() {
        let status =
            failure(Code::NotFound, reason("NOT_FOUND", &[]), "coordination.k8s.io", "leases", "get");
        assert_eq!(status["message"], "leases.coordination.k8s.io \"x\" not found");
        assert_eq!(status["details"], json!({"name": "x", "group": "coordination.k8s.io", "kind": "leases"}));
    }
}
