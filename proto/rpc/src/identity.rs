//! Who is calling: from the peer's certificate to a role.
//!
//! The role comes from the organisation (O), never from the name alone: whoever can get a certificate for the name
//! `node:a` without the node group has no rights. Without TLS every caller is the administrator; `tls` makes sure that
//! this happens on loopback addresses only, or where an operator insisted.

use std::fmt;
use std::net::SocketAddr;

use http::Extensions;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

/// What a certificate says about its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    pub common_name: String,
    pub organizations: Vec<String>,
}

/// A certificate that could not be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the peer's certificate cannot be read: {0}")]
pub struct UnreadableCertificate(String);

impl Subject {
    /// Reads the subject of a DER certificate. It checks no signature: the TLS handshake has done that.
    ///
    /// # Errors
    /// When the bytes are no X.509 certificate, or its name is not text.
    pub fn from_der(der: &[u8]) -> Result<Subject, UnreadableCertificate> {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|error| UnreadableCertificate(error.to_string()))?;
        let name = certificate.subject();
        Ok(Subject {
            common_name: name.iter_common_name().next().map(text).transpose()?.unwrap_or_default(),
            organizations: name.iter_organization().map(text).collect::<Result<_, _>>()?,
        })
    }

    fn is_in(&self, organization: &str) -> bool {
        self.organizations.iter().any(|o| o == organization)
    }
}

fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<String, UnreadableCertificate> {
    attribute.as_str().map(str::to_owned).map_err(|error| UnreadableCertificate(error.to_string()))
}

/// The group of nodes and how a node's name is written in it; the second row is what Kubernetes tools issue.
const NODE_GROUPS: [(&str, &str); 2] = [("muster:nodes", "node:"), ("system:nodes", "system:node:")];
const CONTROLLERS: &str = "muster:controllers";
const SCHEDULERS: &str = "muster:schedulers";
const ADMINS: [&str; 2] = ["muster:admins", "system:masters"];
const VIEWERS: &str = "muster:viewers";

/// Who is calling, as authorisation sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The agent of the node of this name, which is never empty.
    Node(String),
    Controller,
    Scheduler,
    Admin,
    Viewer,
    /// Somebody with no rights; the text says who, for the log and the refusal.
    Nobody(String),
}

impl Caller {
    /// The role of a certificate's holder.
    ///
    /// Being a node comes first: a certificate that is a node's and something else's too is bound to its node.
    pub fn from_subject(subject: &Subject) -> Caller {
        for (group, prefix) in NODE_GROUPS {
            if let Some(name) = subject.common_name.strip_prefix(prefix)
                && subject.is_in(group)
            {
                return if name.is_empty() { nobody(subject) } else { Caller::Node(name.to_owned()) };
            }
        }
        if subject.is_in(CONTROLLERS) {
            Caller::Controller
        } else if subject.is_in(SCHEDULERS) {
            Caller::Scheduler
        } else if ADMINS.iter().any(|group| subject.is_in(group)) {
            Caller::Admin
        } else if subject.is_in(VIEWERS) {
            Caller::Viewer
        } else {
            nobody(subject)
        }
    }

    /// The caller of a request, from its extensions (`request.extensions()`).
    pub fn of(extensions: &Extensions) -> Caller {
        match subject(extensions) {
            None => Caller::Admin,
            Some(Ok(subject)) => Caller::from_subject(&subject),
            Some(Err(reason)) => Caller::Nobody(reason),
        }
    }
}

/// Who made a request, for records that people read: the name in the certificate, or the role of who showed none.
pub fn requester(extensions: &Extensions) -> String {
    match subject(extensions) {
        Some(Ok(subject)) if !subject.common_name.is_empty() => subject.common_name,
        _ => Caller::of(extensions).to_string(),
    }
}

/// What the certificate of a request says; `None` without TLS.
fn subject(extensions: &Extensions) -> Option<Result<Subject, String>> {
    let connection = extensions.get::<TlsConnectInfo<TcpConnectInfo>>()?;
    let certificates = connection.peer_certs().unwrap_or_default();
    let own = certificates.first().ok_or_else(|| "no certificate".to_owned());
    Some(own.and_then(|own| Subject::from_der(own).map_err(|error| error.to_string())))
}

/// Where a call came from.
pub fn peer_address(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get::<TcpConnectInfo>()?.remote_addr()
}

fn nobody(subject: &Subject) -> Caller {
    Caller::Nobody(format!("CN={} O={}", subject.common_name, subject.organizations.join(",")))
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Node(name) => write!(f, "node:{name}"),
            Caller::Controller => f.write_str("controller"),
            Caller::Scheduler => f.write_str("scheduler"),
            Caller::Admin => f.write_str("admin"),
            Caller::Viewer => f.write_str("viewer"),
            Caller::Nobody(who) => write!(f, "nobody ({who})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    /// The caller that a real certificate with this subject makes.
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
        Caller::from_subject(&Subject::from_der(certificate.der()).unwrap())
    }

    #[test]
    fn the_role_comes_from_the_organisation_and_a_node_needs_both() {
        for (common_name, organization, expected) in [
            ("node:a", "muster:nodes", "node:a"),
            ("system:node:a", "system:nodes", "node:a"),
            ("node:node:a", "muster:nodes", "node:node:a"),
            ("node:", "muster:nodes", "nobody (CN=node: O=muster:nodes)"),
            ("system:node:", "system:nodes", "nobody (CN=system:node: O=system:nodes)"),
            ("a", "muster:nodes", "nobody (CN=a O=muster:nodes)"),
            ("node:a", "", "nobody (CN=node:a O=)"),
            ("node:a", "system:nodes", "nobody (CN=node:a O=system:nodes)"),
            ("system:node:a", "muster:nodes", "nobody (CN=system:node:a O=muster:nodes)"),
            ("node:a", "muster:viewers", "viewer"),
            ("c1", "muster:controllers", "controller"),
            ("s1", "muster:schedulers", "scheduler"),
            ("eva", "muster:admins", "admin"),
            ("eva", "system:masters", "admin"),
            ("admin", "", "nobody (CN=admin O=)"),
            ("eva", "MUSTER:ADMINS", "nobody (CN=eva O=MUSTER:ADMINS)"),
            ("eva", "muster:admins ", "nobody (CN=eva O=muster:admins )"),
            ("", "", "nobody (CN= O=)"),
        ] {
            let found = caller(common_name, organization).to_string();
            assert_eq!(found, expected, "CN={common_name:?} O={organization:?}");
        }
    }

    #[test]
    fn a_node_that_is_in_other_groups_too_stays_a_node() {
        let organizations = vec!["muster:admins".to_owned(), "muster:nodes".to_owned()];
        let subject = Subject { common_name: "node:a".to_owned(), organizations };
        assert_eq!(Caller::from_subject(&subject), Caller::Node("a".to_owned()));
    }

    #[test]
    fn bytes_that_are_no_certificate_are_refused() {
        assert!(Subject::from_der(b"not a certificate").is_err());
    }

    #[test]
    fn without_tls_the_caller_is_the_administrator() {
        let mut extensions = Extensions::new();
        extensions.insert(TcpConnectInfo { local_addr: None, remote_addr: None });
        assert_eq!(Caller::of(&extensions), Caller::Admin);
        assert_eq!(requester(&extensions), "admin");
    }
}
