//! The caller's role, read from the certificate of its connection.
//!
//! Without TLS every caller is the administrator; `tls` allows that on loopback addresses only, or with `--insecure`.
//! What the caller may do is decided elsewhere; every refusal looks the same ([`denied`]).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use http::Extensions;
use muster_proto::ERROR_DOMAIN;
use muster_proto::identity::{Caller, CertificateSubject};
use rustls::pki_types::CertificateDer;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

use crate::admission::connection::Peer;

/// A certificate that could not be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the peer's certificate cannot be read: {0}")]
pub struct UnreadableCertificate(String);

impl UnreadableCertificate {
    pub(crate) fn new(error: impl std::fmt::Display) -> UnreadableCertificate {
        UnreadableCertificate(error.to_string())
    }
}

/// Reads the subject of a DER certificate. It checks no signature: the TLS handshake has done that.
///
/// # Errors
/// When the bytes are not an X.509 certificate, or its name is not text.
pub fn certificate_subject(der: &[u8]) -> Result<CertificateSubject, UnreadableCertificate> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(UnreadableCertificate::new)?;
    let name = certificate.subject();
    Ok(CertificateSubject {
        common_name: name.iter_common_name().next().map(text).transpose()?.unwrap_or_default(),
        organizations: name.iter_organization().map(text).collect::<Result<_, _>>()?,
    })
}

fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<String, UnreadableCertificate> {
    attribute.as_str().map(str::to_owned).map_err(UnreadableCertificate::new)
}

/// What is known about a caller with TLS and without a certificate.
pub(crate) const NO_CERTIFICATE: &str = "no certificate";

/// A caller's role, and the name in its certificate; no name without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) caller: Caller,
    pub(crate) name: Option<String>,
    /// A store, which may name another caller.
    pub(crate) is_store: bool,
}

impl Identity {
    /// Every caller without TLS.
    pub(crate) fn without_tls() -> Identity {
        Identity { caller: Caller::Admin, name: None, is_store: false }
    }

    /// The caller with this DER certificate, or with none, on a connection with TLS.
    pub(crate) fn of(certificate: Option<&[u8]>) -> Identity {
        let unknown = |reason: &str| Identity {
            caller: Caller::Unknown(reason.to_owned()),
            name: Some(String::new()),
            is_store: false,
        };
        match certificate.map(certificate_subject) {
            None => unknown(NO_CERTIFICATE),
            Some(Err(error)) => unknown(&error.to_string()),
            Some(Ok(subject)) => Identity {
                caller: Caller::from_subject(&subject),
                is_store: subject.is_store(),
                name: Some(subject.common_name),
            },
        }
    }
}

/// The caller of a request, from its extensions (`request.extensions()`).
pub fn caller(extensions: &Extensions) -> Caller {
    let peer = extensions.get::<Peer>();
    peer.map_or(Caller::Admin, |peer| peer.connection.identity().caller.clone())
}

/// The requester's name for records that people read: the name in the certificate, or without one the role.
pub fn requester(extensions: &Extensions) -> String {
    let peer = extensions.get::<Peer>();
    let name = peer.and_then(|peer| peer.connection.identity().name.clone());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| caller(extensions).to_string())
}

/// The certificates of the request's connection, the caller's own first; `None` without TLS.
pub(crate) fn certificates(extensions: &Extensions) -> Option<Arc<Vec<CertificateDer<'static>>>> {
    extensions.get::<Peer>()?.certificates.clone()
}

/// The reason of a denied call, in its error details.
const DENIED: &str = "PERMISSION_DENIED";

/// The error of a call that the caller may not make. The message says why, and which callers may.
pub fn denied(message: impl Into<String>) -> Status {
    let details = ErrorDetails::with_error_info(DENIED, ERROR_DOMAIN, HashMap::new());
    Status::with_error_details(Code::PermissionDenied, message, details)
}

/// A caller as people identify it later: its role, and subject and serial number of its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identified {
    pub caller: String,
    /// Empty without a certificate that can be read.
    pub subject: String,
    pub serial: String,
}

/// The caller with this DER certificate; `None` without TLS, empty if its connection has no certificate.
pub fn identified(certificate: Option<&[u8]>) -> Identified {
    let (caller, parsed) = match certificate {
        None => (Caller::Admin, None),
        Some(der) => match certificate_subject(der) {
            Ok(subject) => (Caller::from_subject(&subject), X509Certificate::from_der(der).ok()),
            Err(error) => (Caller::Unknown(error.to_string()), None),
        },
    };
    let (subject, serial) = parsed.map_or_else(Default::default, |(_, certificate)| {
        (certificate.subject().to_string(), certificate.raw_serial_as_string())
    });
    Identified { caller: caller.to_string(), subject, serial }
}

/// The peer address of a call.
pub fn peer_address(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get::<Peer>()?.address
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    /// The caller of a real certificate with this subject.
    fn caller(common_name: &str, organization: &str) -> Caller {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !common_name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, common_name);
        }
        if !organization.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Caller::from_subject(&certificate_subject(certificate.der()).unwrap())
    }

    #[test]
    fn the_role_comes_from_the_organisation_and_a_node_needs_both() {
        for (common_name, organization, expected) in [
            ("node:a", "muster:nodes", "node:a"),
            ("system:node:a", "system:nodes", "node:a"),
            ("node:node:a", "muster:nodes", "node:node:a"),
            ("node:", "muster:nodes", "unknown caller (CN=node: O=muster:nodes)"),
            ("system:node:", "system:nodes", "unknown caller (CN=system:node: O=system:nodes)"),
            ("a", "muster:nodes", "unknown caller (CN=a O=muster:nodes)"),
            ("node:a", "", "unknown caller (CN=node:a O=)"),
            ("node:a", "system:nodes", "unknown caller (CN=node:a O=system:nodes)"),
            ("system:node:a", "muster:nodes", "unknown caller (CN=system:node:a O=muster:nodes)"),
            ("node:a", "muster:viewers", "viewer"),
            ("c1", "muster:controllers", "controller"),
            ("s1", "muster:schedulers", "scheduler"),
            ("eva", "muster:admins", "admin"),
            ("eva", "system:masters", "admin"),
            ("admin", "", "unknown caller (CN=admin O=)"),
            ("eva", "MUSTER:ADMINS", "unknown caller (CN=eva O=MUSTER:ADMINS)"),
            ("eva", "muster:admins ", "unknown caller (CN=eva O=muster:admins )"),
            ("", "", "unknown caller (CN= O=)"),
        ] {
            let found = caller(common_name, organization).to_string();
            assert_eq!(found, expected, "CN={common_name:?} O={organization:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_a_certificate_are_refused() {
        assert!(certificate_subject(b"not a certificate").is_err());
    }

    #[test]
    fn without_tls_the_caller_is_the_administrator() {
        let mut extensions = Extensions::new();
        extensions.insert(Peer::at(None));
        assert_eq!(super::caller(&extensions), Caller::Admin);
        assert_eq!(requester(&extensions), "admin");
    }
}
