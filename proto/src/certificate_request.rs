//! Requests for certificates of nodes.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

use crate::digest::Sha256;
use crate::label::Labels;
use crate::meta::Metadata;
use crate::name::Name;
use crate::revocation::Serial;

/// A machine's request for the certificate of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateRequest {
    pub meta: Metadata,
    pub spec: CertificateRequestSpec,
    pub status: CertificateRequestStatus,
}

/// What is requested, and who requested it. The store writes it once.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateRequestSpec {
    pub node_name: Name,
    /// PKCS #10, PEM.
    pub request: String,
    /// Of the public key (SubjectPublicKeyInfo).
    pub public_key_sha256: Sha256,
    pub token_id: Option<Name>,
    pub requested_by: String,
    pub source_address: String,
    pub labels: Labels,
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CertificateRequestStatus {
    pub state: RequestState,
    pub reason: String,
    pub decided_by: String,
    /// When the state changed last.
    pub transition_time: Option<Timestamp>,
    /// The certificate, and only if the state is [`RequestState::Issued`].
    pub issued: Option<IssuedCertificate>,
}

/// A certificate that the signer issued.
#[derive(Clone, Debug, PartialEq)]
pub struct IssuedCertificate {
    /// The certificate and its intermediate authorities, PEM.
    pub chain: String,
    pub serial: Serial,
    pub not_after: Timestamp,
}

/// The state of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestState {
    /// It waits for an administrator.
    #[default]
    Pending,
    /// It waits for the signer.
    Approved,
    Denied,
    Issued,
    /// The signer refused it.
    Failed,
}

/// The text is not a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be Pending, Approved, Denied, Issued or Failed")]
pub struct RequestStateError;

impl RequestState {
    /// Whether nothing more will happen to the request.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Denied | Self::Issued | Self::Failed)
    }
}

impl FromStr for RequestState {
    type Err = RequestStateError;

    /// Empty text is the default.
    fn from_str(text: &str) -> Result<Self, RequestStateError> {
        match text {
            "" | "Pending" => Ok(Self::Pending),
            "Approved" => Ok(Self::Approved),
            "Denied" => Ok(Self::Denied),
            "Issued" => Ok(Self::Issued),
            "Failed" => Ok(Self::Failed),
            _ => Err(RequestStateError),
        }
    }
}

impl fmt::Display for RequestState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pending => "Pending",
            Self::Approved => "Approved",
            Self::Denied => "Denied",
            Self::Issued => "Issued",
            Self::Failed => "Failed",
        })
    }
}

/// The name of the request with this public key. Half of the digest is enough: to pass for another's key, a key with
/// the same 128 bits would have to be found, and the whole digest is compared as well.
pub fn request_name(public_key: &Sha256) -> Name {
    format!("csr-{}", &public_key.to_string()[..32])
        .parse()
        .expect("letters and hexadecimal digits make a name")
}
