use std::path::Path;

use muster_proto::certificate_request::{CertificateRequestSpec, CertificateRequestStatus, request_name};
use muster_proto::meta::Metadata;
use muster_rpc::identity::certificate_subject;
use rcgen::{BasicConstraints, IsCa};

use super::*;

fn now() -> Timestamp {
    "2026-05-04T12:00:00Z".parse().unwrap()
}

/// An authority in files; `is_ca` may be false.
fn authority(directory: &Path, is_ca: bool) -> AuthorityFiles {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "authority");
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    let key = KeyPair::generate().unwrap();
    let files = AuthorityFiles {
        certificate: directory.join("ca.crt"),
        key: directory.join("ca.key"),
        certificate_ttl: Duration::from_secs(3600),
    };
    fs::write(&files.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&files.key, key.serialize_pem()).unwrap();
    files
}

fn request(node: &str, common_name: &str, organization: &str) -> CertificateRequest {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.distinguished_name.push(DnType::OrganizationName, organization);
    let key = KeyPair::generate().unwrap();
    let public_key_sha256 = Sha256::of(&rcgen::PublicKeyData::subject_public_key_info(&key));
    let mut meta = Metadata::new(None, request_name(&public_key_sha256));
    meta.creation_timestamp = Some("2026-05-04T11:59:00Z".parse().unwrap());
    let spec = CertificateRequestSpec {
        node_name: node.parse().unwrap(),
        request: params.serialize_request(&key).unwrap().pem().unwrap(),
        public_key_sha256,
        token_id: None,
        requested_by: String::new(),
        source_address: String::new(),
        labels: Default::default(),
    };
    CertificateRequest { meta, spec, status: CertificateRequestStatus::default() }
}

#[test]
fn a_certificate_has_the_key_of_the_request_and_the_names_of_the_record() {
    let directory = tempfile::tempdir().unwrap();
    let files = authority(directory.path(), true);
    let request = request("a", "node:a", NODES);
    let issued = files.sign(&request, now()).unwrap();
    let found = CertificateFacts::read_pem(&issued.chain).unwrap();
    assert_eq!(found.len(), 1, "the root is not sent along");
    let facts = &found[0].0;
    assert_eq!(facts.public_key_sha256, request.spec.public_key_sha256);
    assert_eq!(facts.serial, Some(issued.serial.clone()));
    assert_eq!(facts.not_before.to_string(), "2026-05-04T11:59:00Z");
    assert_eq!((facts.not_after, facts.is_authority), (issued.not_after, false));
    assert_eq!(issued.not_after.to_string(), "2026-05-04T13:00:00Z");
    let subject = certificate_subject(pem::parse(&issued.chain).unwrap().contents()).unwrap();
    assert_eq!((subject.common_name.as_str(), subject.organizations), ("node:a", vec![NODES.to_owned()]));
    assert_ne!(
        files.sign(&request, now()).unwrap().serial,
        issued.serial,
        "each has a serial number of its own"
    );
}

#[test]
fn what_is_not_the_approved_request_fails_for_good() {
    let directory = tempfile::tempdir().unwrap();
    let files = authority(directory.path(), true);
    let (own, other) = (request("a", "node:a", NODES), request("a", "node:a", NODES));
    let mut swapped = own.clone();
    swapped.spec.request = other.spec.request;
    for (request, expected) in [
        (request("a", "admin", "muster:admins"), "must have the subject CN=node:a, O=muster:nodes"),
        (request("a", "node:b", NODES), "must have the subject CN=node:a"),
        (swapped, "the key of the request is not the one that was approved"),
    ] {
        let error = files.sign(&request, now()).unwrap_err();
        assert!(error.is_final() && error.to_string().contains(expected), "{error}");
    }
    assert!(files.sign(&own, now()).is_ok());
}

#[test]
fn files_are_read_for_each_certificate_and_an_error_names_the_flag() {
    let directory = tempfile::tempdir().unwrap();
    let files = authority(directory.path(), true);
    files.check().unwrap();
    let other = tempfile::tempdir().unwrap();
    fs::copy(authority(other.path(), true).key, &files.key).unwrap();
    let error = files.sign(&request("a", "node:a", NODES), now()).unwrap_err();
    assert!(!error.is_final(), "{error}");
    assert!(
        error.to_string().starts_with("--signer-key:") && error.to_string().contains("not the key of"),
        "{error}"
    );
    authority(directory.path(), true);
    assert!(files.sign(&request("a", "node:a", NODES), now()).is_ok(), "they were replaced");
    authority(directory.path(), false);
    assert!(files.check().unwrap_err().to_string().contains("not the certificate of an authority"));
    fs::remove_file(&files.certificate).unwrap();
    assert!(files.check().unwrap_err().to_string().starts_with("--signer-cert: cannot read"));
}
