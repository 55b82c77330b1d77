//! Certificate signing requests and what is read from certificates: serial numbers, times, and hashes of public keys.

use http::Extensions;
use jiff::Timestamp;
use muster_proto::digest::Sha256;
use muster_proto::name::Name;
use muster_proto::revocation::Serial;
use pem::{EncodeConfig, LineEnding};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_SIG_ED25519};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::identity::certificates;

/// The organisation of a node's certificate.
pub const NODES: &str = "muster:nodes";

/// Why a certificate signing request is not accepted; the text continues after the name of the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SigningRequestError {
    #[error("must be one PKCS #10 certificate request in PEM format")]
    NotPem,
    #[error("cannot be read: {0}")]
    Unreadable(String),
    #[error("is not signed with its own key")]
    Signature,
    #[error("must have an ECDSA key on P-256 or P-384, or an Ed25519 key")]
    KeyType,
    #[error("must have the subject CN=node:{node}, O={NODES} and no other, not {found:?}")]
    Subject { node: Name, found: String },
    #[error("must not ask for extensions: the names in the certificate follow from the node")]
    Extensions,
}

/// A certificate signing request whose key its sender has: it is signed with it.
#[derive(Clone, Debug)]
pub struct CertificateSigningRequest {
    pub public_key_sha256: Sha256,
    common_name: String,
    /// All of the subject, for comparison and for errors.
    subject: String,
}

impl CertificateSigningRequest {
    /// Reads a request in PEM format and checks its signature and the type of its key.
    ///
    /// # Errors
    /// When it is not acceptable, whomever it is for.
    pub fn parse(text: &str) -> Result<Self, SigningRequestError> {
        let blocks = pem::parse_many(text).map_err(|_| SigningRequestError::NotPem)?;
        match blocks.as_slice() {
            [block] if ["CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"].contains(&block.tag()) => {
                Self::parse_der(block.contents())
            }
            _ => Err(SigningRequestError::NotPem),
        }
    }

    fn parse_der(der: &[u8]) -> Result<Self, SigningRequestError> {
        let unreadable = |error: &dyn std::fmt::Display| SigningRequestError::Unreadable(error.to_string());
        let (rest, request) = X509CertificationRequest::from_der(der).map_err(|error| unreadable(&error))?;
        if !rest.is_empty() {
            return Err(unreadable(&"there is something behind it"));
        }
        let info = &request.certification_request_info;
        if !is_allowed(&info.subject_pki) {
            return Err(SigningRequestError::KeyType);
        }
        request.verify_signature().map_err(|_| SigningRequestError::Signature)?;
        if request.requested_extensions().is_some_and(|mut extensions| extensions.next().is_some()) {
            return Err(SigningRequestError::Extensions);
        }
        let common_name = info.subject.iter_common_name().next().and_then(|name| name.as_str().ok());
        Ok(Self {
            public_key_sha256: Sha256::of(info.subject_pki.raw),
            common_name: common_name.unwrap_or_default().to_owned(),
            subject: info.subject.to_string(),
        })
    }

    /// Checks that it is for this node: its subject is that of the node's certificate and nothing else.
    ///
    /// # Errors
    /// When it has another subject.
    pub fn check_subject(&self, node: &Name) -> Result<(), SigningRequestError> {
        let name = format!("node:{node}");
        let expected = [format!("CN={name}, O={NODES}"), format!("O={NODES}, CN={name}")];
        if self.common_name == name && expected.contains(&self.subject) {
            return Ok(());
        }
        Err(SigningRequestError::Subject { node: node.clone(), found: self.subject.clone() })
    }
}

/// The types of keys that certificates are issued for: what rustls uses, and no RSA key of any size.
fn is_allowed(key: &SubjectPublicKeyInfo<'_>) -> bool {
    let curve = || key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    if key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
        curve().is_some_and(|curve| curve == OID_EC_P256 || curve == OID_NIST_EC_P384)
    } else {
        key.algorithm.algorithm == OID_SIG_ED25519
    }
}

/// What is read from a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// `None` for a serial number that no certificate of an authority has.
    pub serial: Option<Serial>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// Of the public key (SubjectPublicKeyInfo).
    pub public_key_sha256: Sha256,
    /// Whether it may issue certificates.
    pub is_authority: bool,
    /// Whether it names itself as its issuer, as a root does.
    pub is_self_issued: bool,
}

impl CertificateFacts {
    /// Reads a DER certificate; `None` if it is none.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let time = |seconds| Timestamp::from_second(seconds).ok();
        Some(Self {
            serial: Serial::from_bytes(certificate.raw_serial()).ok(),
            not_before: time(certificate.validity().not_before.timestamp())?,
            not_after: time(certificate.validity().not_after.timestamp())?,
            public_key_sha256: Sha256::of(certificate.public_key().raw),
            is_authority: certificate.is_ca(),
            is_self_issued: certificate.subject() == certificate.issuer(),
        })
    }

    /// Reads every certificate in PEM blocks, each with its own block; `None` if there is none, or something else.
    pub fn read_pem(text: &str) -> Option<Vec<(Self, String)>> {
        let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
        let read = |block: &pem::Pem| {
            let facts = (block.tag() == "CERTIFICATE").then(|| Self::read(block.contents()))??;
            Some((facts, pem::encode_config(block, config)))
        };
        let read: Option<Vec<_>> = pem::parse_many(text).ok()?.iter().map(read).collect();
        read.filter(|found| !found.is_empty())
    }
}

/// What is read from the caller's own certificate; `None` without one.
pub fn own_certificate(extensions: &Extensions) -> Option<CertificateFacts> {
    certificates(extensions)?.first().and_then(|own| CertificateFacts::read(own))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn params(common_name: &str, organization: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params
    }

    fn encoded(params: &CertificateParams) -> String {
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    fn for_node(text: &str, node: &str) -> Result<(), SigningRequestError> {
        CertificateSigningRequest::parse(text)?.check_subject(&node.parse().unwrap())
    }

    #[test]
    fn a_request_is_for_the_node_in_its_subject_and_for_nobody_else() {
        let own = encoded(&params("node:a", NODES));
        assert_eq!(for_node(&own, "a"), Ok(()));
        for (text, found) in [
            (own, "CN=node:a, O=muster:nodes"),
            (encoded(&params("admin", "muster:admins")), "CN=admin, O=muster:admins"),
            (encoded(&params("node:b", "muster:admins")), "CN=node:b, O=muster:admins"),
            (encoded(&params("node:b, O=muster:nodes", "x")), "CN=node:b, O=muster:nodes, O=x"),
        ] {
            let refused = for_node(&text, "b").unwrap_err();
            assert_eq!(
                refused,
                SigningRequestError::Subject { node: "b".parse().unwrap(), found: found.into() }
            );
        }
    }

    #[test]
    fn a_request_must_be_signed_with_the_key_it_is_for() {
        let (own, other) = (encoded(&params("node:a", NODES)), encoded(&params("node:a", NODES)));
        let der = |text: &str| pem::parse(text).unwrap().into_contents();
        // The public key of another request in place of its own.
        let key = |der: &[u8]| {
            let (_, request) = X509CertificationRequest::from_der(der).unwrap();
            request.certification_request_info.subject_pki.raw.to_vec()
        };
        let (own, other) = (der(&own), der(&other));
        let (from, to) = (key(&own), key(&other));
        let at = own.windows(from.len()).position(|window| window == from).unwrap();
        let mut forged = own;
        forged[at..at + to.len()].copy_from_slice(&to);
        let refused = CertificateSigningRequest::parse_der(&forged).unwrap_err();
        assert_eq!(refused, SigningRequestError::Signature);
    }

    #[test]
    fn what_is_no_acceptable_request_is_refused() {
        let mut with_names = params("node:a", NODES);
        with_names.subject_alt_names = vec![rcgen::SanType::DnsName("store".try_into().unwrap())];
        let valid = encoded(&params("node:a", NODES));
        for (text, expected) in [
            (String::new(), SigningRequestError::NotPem),
            ("hello".to_owned(), SigningRequestError::NotPem),
            (format!("{valid}{valid}"), SigningRequestError::NotPem),
            (valid.replace("CERTIFICATE REQUEST", "CERTIFICATE"), SigningRequestError::NotPem),
            (encoded(&with_names), SigningRequestError::Extensions),
        ] {
            assert_eq!(for_node(&text, "a"), Err(expected), "{text}");
        }
    }

    #[test]
    fn facts_of_a_certificate_are_read_as_it_has_them() {
        let mut params = params("node:a", NODES);
        params.serial_number = Some(vec![0x3a, 0x07].into());
        let (key, second) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let certificate = params.self_signed(&key).unwrap();
        let facts = CertificateFacts::read(certificate.der()).unwrap();
        assert_eq!(facts.serial.as_ref().map(Serial::as_str), Some("3a07"));
        assert_eq!(facts.public_key_sha256, Sha256::of(&rcgen::PublicKeyData::subject_public_key_info(&key)));
        let both = certificate.pem() + &params.self_signed(&second).unwrap().pem();
        assert_eq!(CertificateFacts::read_pem(&both).map(|found| found.len()), Some(2));
        assert!(CertificateFacts::read_pem("hello").is_none());
        assert!(CertificateFacts::read_pem(&key.serialize_pem()).is_none());
    }
}
