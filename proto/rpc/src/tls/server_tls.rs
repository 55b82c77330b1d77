//! How a server accepts connections: with the certificates that the files hold then, from peers that are not revoked.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
};

use super::certificate::CertificateInfo;
use super::credentials::{Credentials, provider};
use super::revocation::Revocations;

/// The TLS setup of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerTls {
    pub(crate) credentials: Credentials,
    pub(crate) revocations: Revocations,
    /// What may be spoken, the best first.
    pub(crate) protocols: &'static [&'static [u8]],
    /// Whether clients may come without a certificate.
    pub(crate) allow_anonymous: bool,
}

impl ServerTls {
    /// The settings of the next handshake. They are made anew for each, which costs little beside the handshake.
    pub(crate) fn config(&self) -> Result<Arc<ServerConfig>, Error> {
        let material = self.credentials.current();
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::clone(&material.roots), provider());
        let chain = if self.allow_anonymous { chain.allow_unauthenticated() } else { chain };
        let chain = chain.build().map_err(|error| Error::General(error.to_string()))?;
        let verifier = ClientVerifier { chain, revocations: self.revocations.clone() };
        let identity = Arc::new(SingleCertAndKey::from(Arc::clone(&material.identity)));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(identity);
        config.alpn_protocols = self.protocols.iter().map(|name| name.to_vec()).collect();
        // A resumed session would skip the checks of the client's certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// Accepts clients that an authority has certified and that are not revoked.
#[derive(Debug)]
struct ClientVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    revocations: Revocations,
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        // One whose name cannot be read is not revoked by it; it has no role either.
        match CertificateInfo::read(end_entity) {
            Ok(certificate) if self.revocations.is_revoked(&certificate) => {
                Err(Error::InvalidCertificate(CertificateError::Revoked))
            }
            _ => Ok(verified),
        }
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
