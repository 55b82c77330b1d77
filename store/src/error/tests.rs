use muster_proto::fence::Fence;
use muster_proto::identity::Caller;
use muster_proto::invalid::{Check, Path};
use muster_proto::name::Uid;
use muster_proto::record::Kind;
use tonic::codegen::http::HeaderMap;
use uuid::Uuid;

use muster_store_core::authz::Rule;
use muster_store_core::limits::{Limit, Scope};

use super::*;

fn key() -> RecordId {
    RecordId { kind: Kind::Pod, namespace: Some("default".parse().unwrap()), name: "web-0".parse().unwrap() }
}

fn budget() -> RecordId {
    RecordId { kind: Kind::DisruptionBudget, name: "web".parse().unwrap(), ..key() }
}

fn fence() -> Box<Fence> {
    Box::new("default/web-0;transitions=3;holder=a".parse().unwrap())
}

fn denial() -> Denial {
    Denial { caller: Caller::Viewer, rule: Rule::NotAllowed, what: "update Node a".into() }
}

fn uid(number: u128) -> Uid {
    Uid::new(Uuid::from_u128(number))
}

/// One of each error with its expected code, reason, and retry delay in seconds.
fn table() -> Vec<(StoreError, Code, &'static str, Option<u64>)> {
    use Code::*;
    let invalid = Invalid::of("spec.nodeName", "cannot be changed");
    let refused = |refusal: Refusal| StoreError::Refused(refusal);
    vec![
        (StoreError::Malformed(invalid.clone()), InvalidArgument, "INVALID", None),
        (refused(Refusal::Invalid { key: key(), invalid }), InvalidArgument, "INVALID", None),
        (refused(Refusal::NotFound { key: key() }), NotFound, "NOT_FOUND", None),
        (refused(Refusal::AlreadyExists { key: key() }), AlreadyExists, "ALREADY_EXISTS", None),
        (refused(Refusal::Stale { key: key(), expected: 3, found: 4 }), Aborted, "CONFLICT", None),
        (
            refused(Refusal::UidMismatch { key: key(), expected: uid(1), found: Some(uid(2)) }),
            Aborted,
            "UID_MISMATCH",
            None,
        ),
        (
            refused(Refusal::UidMismatch { key: key(), expected: uid(1), found: None }),
            Aborted,
            "UID_MISMATCH",
            None,
        ),
        (refused(Refusal::Conflict { key: key(), why: "is bound".into() }), Aborted, "CONFLICT", None),
        (
            refused(Refusal::BudgetExhausted {
                key: key(),
                budget: budget(),
                needed: 2,
                healthy: 1,
                retry_after_seconds: 10,
            }),
            ResourceExhausted,
            "BUDGET_EXHAUSTED",
            Some(10),
        ),
        (
            refused(Refusal::SeveralBudgets { key: key(), budgets: vec![budget().name; 2] }),
            Internal,
            "SEVERAL_BUDGETS",
            None,
        ),
        (
            refused(Refusal::Denied { key: key(), why: "is not yours".into() }),
            PermissionDenied,
            "PERMISSION_DENIED",
            None,
        ),
        (
            refused(Refusal::Fenced { key: key(), fence: fence(), found: Some(("b".into(), 4)) }),
            Aborted,
            "FENCED",
            None,
        ),
        (StoreError::DeniedBy(denial()), PermissionDenied, "PERMISSION_DENIED", None),
        (StoreError::TooLarge { key: key(), bytes: 2, limit: 1 }, InvalidArgument, "TOO_LARGE", None),
        (StoreError::Expired { requested: 3, oldest: 9 }, OutOfRange, "EXPIRED", None),
        (StoreError::OtherHistory { requested: 9, head: 3 }, OutOfRange, "EXPIRED", None),
        (
            StoreError::FutureVersion { requested: 9, head: 3 },
            Unavailable,
            "RESOURCE_VERSION_TOO_LARGE",
            Some(1),
        ),
        (StoreError::Storage("disk full".into()), Unavailable, "STORAGE_UNAVAILABLE", Some(5)),
        (StoreError::Stopping, Unavailable, "STOPPING", Some(1)),
        (StoreError::NotLeader { leader: None }, Unavailable, "NOT_LEADER", Some(0)),
        (StoreError::Unconfirmed { reason: "no head".into() }, Unavailable, "READ_NOT_CONFIRMED", Some(0)),
        (StoreError::ForwardingFailed { reason: "cut".into() }, Unavailable, "FORWARDING_FAILED", Some(0)),
        (StoreError::NotLeader { leader: Some("b:7400".into()) }, Unavailable, "NOT_LEADER", Some(0)),
        (StoreError::StreamReplaced, Aborted, "STREAM_REPLACED", None),
        (StoreError::NoHello { timeout: Duration::from_secs(10) }, DeadlineExceeded, "NO_HELLO", None),
        (StoreError::ClaimLost, Aborted, "CLAIM_LOST", None),
        (
            StoreError::Overloaded { limit: QueueFull::Bytes(9) },
            ResourceExhausted,
            "TOO_MANY_IN_FLIGHT",
            Some(0),
        ),
        (
            StoreError::LimitExceeded(LimitExceeded {
                kind: Kind::Pod,
                scope: Scope::Node("n1".into()),
                limit: Limit::Records(9),
            }),
            ResourceExhausted,
            "LIMIT_EXCEEDED",
            Some(10),
        ),
        (StoreError::Panicked, Internal, "INTERNAL", None),
        (StoreError::Discarded, Unavailable, "DISCARDED", Some(0)),
    ]
}

#[test]
fn every_error_has_its_code_reason_and_details() {
    for (error, code, reason, retry) in table() {
        let text = error.to_string();
        let is_refusal = matches!(error, StoreError::Refused(_) | StoreError::TooLarge { .. });
        let status = Status::from(error);
        let details = status.get_error_details();
        assert_eq!(status.code(), code, "{text}");
        assert_eq!(status.message(), text);
        let info = details.error_info().expect("every error has its ErrorInfo");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), (reason, ERROR_DOMAIN), "{text}");
        let wait = details.retry_info().map(|info| info.retry_delay.expect("a delay").as_secs());
        assert_eq!(wait, retry, "{text}");
        assert_eq!(details.bad_request().is_some(), reason == "INVALID", "{text}");
        assert_eq!(details.resource_info().is_some(), is_refusal, "{text}");
        if let Some(resource) = details.resource_info() {
            assert_eq!(
                (resource.resource_type.as_str(), resource.resource_name.as_str()),
                ("Pod", "default/web-0")
            );
        }
    }
}

#[test]
fn a_failed_precondition_is_named() {
    for (refusal, what) in [
        (Refusal::Stale { key: key(), expected: 3, found: 4 }, "RESOURCE_VERSION"),
        (Refusal::UidMismatch { key: key(), expected: uid(1), found: None }, "UID"),
        (Refusal::Fenced { key: key(), fence: fence(), found: None }, "FENCE"),
    ] {
        let text = refusal.to_string();
        let details = Status::from(StoreError::from(refusal)).get_error_details();
        let [violation] = &details.precondition_failure().expect("a PreconditionFailure").violations[..]
        else {
            panic!("one precondition failed");
        };
        assert_eq!((violation.r#type.as_str(), violation.subject.as_str()), (what, "Pod default/web-0"));
        assert_eq!(violation.description, text);
    }
}

#[test]
fn messages_contain_the_words_of_kubernetes_errors() {
    for (error, words) in [
        (StoreError::Expired { requested: 3, oldest: 9 }, "Expired"),
        (StoreError::FutureVersion { requested: 9, head: 3 }, "ResourceVersionTooLarge"),
    ] {
        assert!(Status::from(error).message().contains(words), "{words}");
    }
    let refusal = Refusal::BudgetExhausted {
        key: key(),
        budget: budget(),
        needed: 2,
        healthy: 1,
        retry_after_seconds: 0,
    };
    let status = Status::from(StoreError::from(refusal));
    assert_eq!(
        status.message(),
        "Pod default/web-0 cannot be evicted: DisruptionBudget default/web needs 2 healthy, has 1"
    );
    // A delay of zero is set explicitly: the client may retry at once.
    let details = status.get_error_details();
    assert_eq!(details.retry_info().and_then(|info| info.retry_delay), Some(Duration::ZERO));
}

#[test]
fn every_violation_is_listed() {
    let mut check = Check::new();
    for i in 0..Check::LISTED {
        check.fail(&Path::ROOT.key("spec.taints").index(i).key("effect"), "must be NoSchedule or NoExecute");
    }
    let invalid = check.finish(()).unwrap_err();
    let details = Status::from(StoreError::Malformed(invalid.clone())).get_error_details();
    let listed = &details.bad_request().unwrap().field_violations;
    assert_eq!(listed.len(), Check::LISTED);
    for (listed, violation) in listed.iter().zip(&invalid.violations) {
        assert_eq!((&listed.field, &listed.description), (&violation.field, &violation.reason));
    }
}

#[test]
fn the_largest_error_fits_the_headers_that_clients_accept() {
    /// The size at which gRPC's C core starts to refuse headers.
    const LIMIT: usize = 8 * 1024;
    // The worst case of each part: fields of all lengths, and texts in which every byte is percent-encoded.
    let long = "\u{1f4a5}".repeat(10_000);
    let mut check = Check::new();
    for i in 0..100 {
        check.fail(&Path::ROOT.key(&"f".repeat(i * 9)), &long);
    }
    let name = "n".repeat(253).parse().unwrap();
    let longest = RecordId { namespace: Some("s".repeat(63).parse().unwrap()), name, ..key() };
    let invalid = check.finish(()).unwrap_err();
    for error in [
        StoreError::Refused(Refusal::Invalid { key: longest.clone(), invalid: invalid.clone() }),
        StoreError::Refused(Refusal::Stale { key: longest.clone(), expected: u64::MAX, found: u64::MAX }),
        StoreError::Refused(Refusal::SeveralBudgets {
            key: longest.clone(),
            budgets: vec![longest.name; 9000],
        }),
        StoreError::Malformed(invalid),
        StoreError::Storage(long),
    ] {
        let status = Status::from(error);
        let mut headers = HeaderMap::new();
        status.add_header(&mut headers).unwrap();
        let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        assert!(size < LIMIT, "{size} bytes of headers for {:.60}", status.message());
        assert!(status.get_error_details().error_info().is_some());
    }
}

#[test]
fn violations_that_do_not_fit_are_counted() {
    let mut check = Check::new();
    for _ in 0..20 {
        check.fail(&Path::ROOT.key("spec"), "x".repeat(400));
    }
    let details = Status::from(StoreError::Malformed(check.finish(()).unwrap_err())).get_error_details();
    let listed = &details.bad_request().unwrap().field_violations;
    assert_eq!(
        listed.last().unwrap().description,
        format!("{} more violations are not listed", 21 - listed.len())
    );
}
