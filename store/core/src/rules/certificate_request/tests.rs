use muster_proto::certificate_request::{
    CertificateRequestSpec, CertificateRequestStatus, IssuedCertificate,
};
use muster_proto::digest::Sha256;
use muster_proto::label::Labels;
use muster_proto::meta::Metadata;
use muster_proto::revocation::{RevocationSpec, RevocationStatus, Revoked};

use super::super::fixtures::{after, at};
use super::*;

fn request(state: RequestState) -> CertificateRequest {
    let mut meta = Metadata::new(None, "csr-1".parse().unwrap());
    meta.creation_timestamp = Some(after(0));
    let spec = CertificateRequestSpec {
        node_name: "a".parse().unwrap(),
        request: "PEM".to_owned(),
        public_key_sha256: Sha256::of(b"key"),
        token_id: None,
        requested_by: "anonymous".to_owned(),
        source_address: "10.0.0.1".to_owned(),
        labels: Labels::new(),
    };
    let status = CertificateRequestStatus { state, ..CertificateRequestStatus::default() };
    CertificateRequest { meta, spec, status }
}

fn issued() -> CertificateRequest {
    let mut request = request(RequestState::Issued);
    let (chain, serial) = ("PEM".to_owned(), "3a".parse().unwrap());
    request.status.issued = Some(IssuedCertificate { chain, serial, not_after: after(100) });
    request
}

fn revoked_at(seconds: i64) -> Revocation {
    Revocation {
        meta: Metadata::new(None, "node-a".parse().unwrap()),
        spec: RevocationSpec {
            revoked: Revoked::Node("a".parse().unwrap()),
            reason: String::new(),
            expire_time: None,
        },
        status: RevocationStatus { revoked_by: String::new(), revoke_time: Some(after(seconds)) },
    }
}

fn approve(
    state: RequestState,
    revocation: Option<&Revocation>,
) -> Result<Outcome<CertificateRequest>, Refusal> {
    let current = request(state);
    let none = Preconditions::default();
    approve_request(&RecordId::of(&current), Some(&current), &none, revocation, "eva", &at(9))
}

#[test]
fn only_what_waits_is_approved_and_only_what_is_not_signed_denied() {
    use RequestState::{Approved, Denied, Failed, Issued, Pending};
    let deny = |state| {
        let current = request(state);
        let none = Preconditions::default();
        deny_request(&RecordId::of(&current), Some(&current), &none, "", "eva", &at(9))
    };
    for (state, approved, denied) in [
        (Pending, "changed", "changed"),
        (Approved, "unchanged", "changed"),
        (Denied, "refused", "unchanged"),
        (Issued, "refused", "refused"),
        (Failed, "refused", "refused"),
    ] {
        let word = |outcome: Result<Outcome<CertificateRequest>, Refusal>| match outcome {
            Ok(outcome) if outcome.is_change() => "changed",
            Ok(_) => "unchanged",
            Err(_) => "refused",
        };
        assert_eq!((word(approve(state, None)), word(deny(state))), (approved, denied), "{state}");
    }
    let status = approve(Pending, None).unwrap().into_record().status;
    assert_eq!((status.state, status.decided_by.as_str()), (Approved, "eva"));
    assert_eq!(status.transition_time, Some(after(9)));
    assert_eq!(deny(Pending).unwrap().into_record().status.reason, "denied by eva");
}

#[test]
fn a_request_from_before_the_nodes_revocation_is_neither_approved_nor_signed() {
    assert!(approve(RequestState::Pending, Some(&revoked_at(-1))).is_ok());
    let refused = approve(RequestState::Pending, Some(&revoked_at(5))).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "CertificateRequest csr-1 was made before node a was revoked: it must ask again"
    );
    let approved = request(RequestState::Approved);
    assert!(record_outcome(Some(&approved), issued(), Some(&revoked_at(-1)), &at(9)).is_ok());
    assert!(record_outcome(Some(&approved), issued(), Some(&revoked_at(5)), &at(9)).is_err());
    let failed = request(RequestState::Failed);
    assert!(record_outcome(Some(&approved), failed, Some(&revoked_at(5)), &at(9)).is_ok());
}

#[test]
fn the_signer_writes_the_outcome_of_an_approved_request_and_nothing_else() {
    let approved = request(RequestState::Approved);
    let mut wanted = issued();
    wanted.spec.node_name = "b".parse().unwrap();
    wanted.status.decided_by = "the signer".to_owned();
    let stored = record_outcome(Some(&approved), wanted, None, &at(9)).unwrap().into_record();
    assert_eq!((stored.spec, stored.status.decided_by), (approved.spec.clone(), String::new()));
    assert_eq!(stored.status.transition_time, Some(after(9)));
    for (from, to, expected) in [
        (RequestState::Approved, issued(), true),
        (RequestState::Approved, request(RequestState::Failed), true),
        (RequestState::Approved, request(RequestState::Denied), false),
        (RequestState::Approved, request(RequestState::Pending), false),
        (RequestState::Pending, issued(), false),
        (RequestState::Denied, issued(), false),
        (RequestState::Failed, issued(), false),
        (RequestState::Issued, request(RequestState::Failed), false),
    ] {
        let found = record_outcome(Some(&request(from)), to.clone(), None, &at(9));
        assert_eq!(found.is_ok(), expected, "{from} to {}", to.status.state);
    }
    assert!(!record_outcome(Some(&issued()), issued(), None, &at(9)).unwrap().is_change(), "said again");
}

#[test]
fn a_request_expires_some_time_after_its_last_change() {
    for (state, changed, expected) in [
        (RequestState::Pending, None, 3600),
        (RequestState::Approved, Some(10), 10 + 24 * 3600),
        (RequestState::Issued, Some(10), 10 + 3600),
        (RequestState::Denied, Some(10), 10 + 3600),
    ] {
        let mut request = request(state);
        request.status.transition_time = changed.map(after);
        assert_eq!(request_expiry(&request), Some(after(expected)), "{state}");
    }
}
