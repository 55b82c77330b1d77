use proptest::prelude::*;

use super::*;
use crate::convert::testing::{any_metadata, any_time, at, complaints, map, named, stored};
use crate::digest::Sha256;

fn with_status(status: pb::CertificateRequestStatus) -> pb::CertificateRequest {
    pb::CertificateRequest {
        metadata: named("", "csr-1"),
        spec: Some(pb::CertificateRequestSpec {
            node_name: "a".into(),
            request: "PEM".into(),
            public_key_sha256: Sha256::of(b"key").to_string(),
            ..Default::default()
        }),
        status: Some(status),
    }
}

fn issued() -> pb::CertificateRequestStatus {
    pb::CertificateRequestStatus {
        state: "Issued".into(),
        certificate: "PEM".into(),
        serial: "3A:07".into(),
        not_after: at(1, 0),
        ..Default::default()
    }
}

#[test]
fn a_request_has_a_certificate_exactly_if_it_is_issued() {
    let record = stored::<CertificateRequest>(with_status(issued()));
    assert_eq!(record.status.issued.unwrap().serial.as_str(), "3a07");
    let nothing = pb::CertificateRequestStatus { state: "Issued".into(), ..Default::default() };
    assert_eq!(
        complaints::<CertificateRequest>(with_status(nothing)),
        "status.certificate: is required if the state is Issued; status.serial: must be a serial number in \
         hexadecimal, such as 3a:07:f1, of 20 bytes or fewer; status.notAfter: is required"
    );
    let early = pb::CertificateRequestStatus { state: "Approved".into(), ..issued() };
    assert_eq!(
        complaints::<CertificateRequest>(with_status(early)).matches("unless the state is Issued").count(),
        3
    );
}

#[test]
fn everything_wrong_with_a_request_is_reported_at_once() {
    let request = pb::CertificateRequest {
        metadata: None,
        spec: Some(pb::CertificateRequestSpec {
            token_id: "T".into(),
            labels: map(&[("a b", "c")]),
            ..Default::default()
        }),
        status: Some(pb::CertificateRequestStatus { state: "Signed".into(), ..Default::default() }),
    };
    let found = CertificateRequest::try_from(request).unwrap_err();
    let fields: Vec<&str> = found.violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "spec.nodeName",
            "spec.request",
            "spec.publicKeySha256",
            "spec.tokenId",
            "spec.labels[\"a b\"]",
            "status.state",
        ]
    );
}

proptest! {
    #[test]
    fn a_request_is_the_same_after_it_was_stored(
        metadata in any_metadata(""), transition_time in any_time(), serial in "[1-9a-f][0-9a-f]{0,39}",
        state in prop::sample::select(vec!["", "Pending", "Approved", "Denied", "Issued", "Failed"]),
        token_id in "[a-z0-9]{0,3}", text in ".{0,9}",
    ) {
        let status = if state == "Issued" { issued() } else { pb::CertificateRequestStatus::default() };
        let serial = if state == "Issued" { serial } else { String::new() };
        let (reason, decided_by) = (text.clone(), text.clone());
        let status = pb::CertificateRequestStatus {
            state: state.to_owned(), reason, decided_by, transition_time, serial, ..status
        };
        let mut request = with_status(status);
        let spec = request.spec.as_mut().unwrap();
        (spec.token_id, spec.source_address, spec.requested_by) = (token_id, text.clone(), text);
        stored::<CertificateRequest>(pb::CertificateRequest { metadata, ..request });
    }
}
