//! The authority's certificate and key, with which the controller signs certificates of nodes.
//!
//! The files are read for each certificate, so that they can be replaced while the controller runs.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use muster_controller_core::signer::validity;
use muster_proto::certificate_request::{CertificateRequest, IssuedCertificate};
use muster_proto::digest::Sha256;
use muster_proto::revocation::Serial;
use muster_rpc::pki::{CertificateFacts, CertificateSigningRequest, NODES, SigningRequestError};
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use uuid::Uuid;

/// The settings of the signer.
#[derive(Clone, Debug)]
pub struct AuthorityFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// How long a node's certificate is valid.
    pub certificate_ttl: Duration,
}

/// Why the authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("{flag}: cannot read {}: {error}", path.display())]
    Unreadable { flag: &'static str, path: PathBuf, error: std::io::Error },
    #[error("{flag}: {} cannot be used: {reason}", path.display())]
    Unusable { flag: &'static str, path: PathBuf, reason: String },
}

/// Why a request is not signed.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// Trying again would not help.
    #[error("the request {0}")]
    Request(#[from] SigningRequestError),
    #[error("the key of the request is not the one that was approved")]
    OtherKey,
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("the authority's own certificate has expired: replace --signer-cert and --signer-key")]
    Expired,
    #[error("the certificate cannot be made: {0}")]
    Certificate(String),
}

impl SigningError {
    /// Whether the request itself is at fault, so that it fails for good.
    pub fn is_final(&self) -> bool {
        matches!(self, SigningError::Request(_) | SigningError::OtherKey)
    }
}

const CERT: &str = "--signer-cert";
const KEY: &str = "--signer-key";

/// What the files hold.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    ends: Timestamp,
    /// The certificates that a peer needs besides its roots: those of the file that are not roots themselves.
    intermediates: String,
}

impl AuthorityFiles {
    /// Checks that the files can be used.
    ///
    /// # Errors
    /// When they cannot be read, or do not fit.
    pub fn check(&self) -> Result<(), AuthorityError> {
        self.read().map(|_| ())
    }

    fn read(&self) -> Result<Authority, AuthorityError> {
        let read = |flag, path: &PathBuf| {
            fs::read_to_string(path).map_err(|error| AuthorityError::Unreadable {
                flag,
                path: path.clone(),
                error,
            })
        };
        let (certificates, key) = (read(CERT, &self.certificate)?, read(KEY, &self.key)?);
        let bad_key = |reason: String| AuthorityError::Unusable { flag: KEY, path: self.key.clone(), reason };
        let bad_cert =
            |reason: String| AuthorityError::Unusable { flag: CERT, path: self.certificate.clone(), reason };
        let key = KeyPair::from_pem(&key).map_err(|error| bad_key(error.to_string()))?;
        let found = CertificateFacts::read_pem(&certificates)
            .ok_or_else(|| bad_cert("it holds no certificate in PEM format".to_owned()))?;
        let own = &found[0].0;
        let public = rcgen::PublicKeyData::subject_public_key_info(&key);
        if own.public_key_sha256 != Sha256::of(&public) {
            return Err(bad_key(format!("it is not the key of {}", self.certificate.display())));
        }
        if !own.is_authority {
            return Err(bad_cert("it is not the certificate of an authority (CA:TRUE)".to_owned()));
        }
        let issuer =
            Issuer::from_ca_cert_pem(&certificates, key).map_err(|error| bad_cert(error.to_string()))?;
        let intermediates = found.iter().filter(|(facts, _)| !facts.is_self_issued);
        let intermediates = intermediates.map(|(_, block)| block.as_str()).collect();
        Ok(Authority { issuer, ends: own.not_after, intermediates })
    }

    /// Issues the certificate of a node. Of the signing request it takes the key and nothing else: subject and names
    /// follow from the record.
    ///
    /// # Errors
    /// When the request or the authority cannot be used.
    pub fn sign(
        &self,
        request: &CertificateRequest,
        now: Timestamp,
    ) -> Result<IssuedCertificate, SigningError> {
        let node = &request.spec.node_name;
        let parsed = CertificateSigningRequest::parse(&request.spec.request)?;
        parsed.check_subject(node)?;
        if parsed.public_key_sha256 != request.spec.public_key_sha256 {
            return Err(SigningError::OtherKey);
        }
        let authority = self.read()?;
        let (begins, ends) =
            validity(request, now, self.certificate_ttl, authority.ends).ok_or(SigningError::Expired)?;
        let failed = |error: rcgen::Error| SigningError::Certificate(error.to_string());
        let mut params = CertificateParams::new(vec![node.as_str().to_owned()]).map_err(failed)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("node:{node}"));
        params.distinguished_name.push(DnType::OrganizationName, NODES);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let epoch = date_time_ymd(1970, 1, 1);
        let time = |at: Timestamp| epoch + Duration::from_secs(at.as_second().max(0).unsigned_abs());
        (params.not_before, params.not_after) = (time(begins), time(ends));
        let serial = serial_bytes(Uuid::new_v4());
        params.serial_number = Some(serial.to_vec().into());
        let csr = CertificateSigningRequestParams::from_pem(&request.spec.request).map_err(failed)?;
        let csr = CertificateSigningRequestParams { params, public_key: csr.public_key };
        let certificate = csr.signed_by(&authority.issuer).map_err(failed)?;
        let serial =
            Serial::from_bytes(&serial).map_err(|error| SigningError::Certificate(error.to_string()))?;
        let not_after = Timestamp::from_second(ends.as_second()).unwrap_or(ends);
        Ok(IssuedCertificate { chain: certificate.pem() + &authority.intermediates, serial, not_after })
    }
}

/// A random serial number: positive, and not 0.
fn serial_bytes(random: Uuid) -> [u8; 16] {
    let mut bytes = *random.as_bytes();
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    bytes
}

#[cfg(test)]
mod tests;
