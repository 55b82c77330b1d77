//! Checks the certificate of a server: its chain and name, as usual, and then its role.

use std::sync::Arc;

use muster_proto::identity::{ServerRole, WrongServerRole};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};

use super::credentials::provider;
use crate::identity::certificate_subject;

/// A server that is not what the client wants to call.
#[derive(Debug, thiserror::Error)]
#[error("the server at {url} {wrong}")]
struct WrongServer {
    url: String,
    wrong: WrongServerRole,
}

/// Accepts servers that an authority has certified for their name and for a role.
#[derive(Debug)]
pub(super) struct RoleVerifier {
    chain: Arc<WebPkiServerVerifier>,
    expected: ServerRole,
    /// The server's address, for the error.
    url: String,
}

impl RoleVerifier {
    /// For the server at `url`, whose certificate must come from one of these authorities.
    pub(super) fn new(roots: Arc<RootCertStore>, expected: ServerRole, url: &str) -> Result<Self, Error> {
        let chain = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        let chain = chain.map_err(|error| Error::General(error.to_string()))?;
        Ok(RoleVerifier { chain, expected, url: url.to_owned() })
    }

    fn check_role(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let subject = certificate_subject(certificate).map_err(|error| Error::General(error.to_string()))?;
        self.expected
            .check(&subject)
            .map_err(|wrong| Error::Other(OtherError(Arc::new(WrongServer { url: self.url.clone(), wrong }))))
    }
}

impl ServerCertVerifier for RoleVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        self.check_role(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
