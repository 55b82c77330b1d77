//! One request for the node's certificate: the key, the signing request, and asking until it is decided.

use std::io;

use muster_agent_core::certificate_schedule::poll_after;
use muster_proto::certificate_request::RequestState;
use muster_proto::label::Labels;
use muster_proto::name::Name;
use muster_proto::pb;
use muster_rpc::pki::{CertificateFacts, NODES};
use muster_store_client::{ClientError, StoreClient};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use super::credential_set::CredentialSet;
use super::jitter;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Store(#[from] ClientError),
    #[error("the request {name} was denied: {reason}")]
    Denied { name: String, reason: String },
    #[error("the request {name} was not signed: {reason}")]
    Failed { name: String, reason: String },
    #[error("the store's answer cannot be used: {0}")]
    Answer(String),
    #[error("a key cannot be made or used: {0}")]
    Key(String),
}

/// A new private key, PEM.
///
/// # Errors
/// When the machine has no random numbers.
pub fn new_key() -> io::Result<String> {
    Ok(KeyPair::generate().map_err(io::Error::other)?.serialize_pem())
}

/// A request for the certificate of a node.
pub struct NodeRequest {
    message: pb::JoinRequest,
    key: String,
}

impl NodeRequest {
    /// The request with this key. `token` is empty for a renewal, or to wait for an administrator.
    ///
    /// # Errors
    /// When the key cannot be used.
    pub fn new(
        node: &Name,
        labels: &Labels,
        key: String,
        token: String,
    ) -> Result<NodeRequest, RequestError> {
        let unusable = |error: rcgen::Error| RequestError::Key(error.to_string());
        let pair = KeyPair::from_pem(&key).map_err(unusable)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("node:{node}"));
        params.distinguished_name.push(DnType::OrganizationName, NODES);
        let request = params.serialize_request(&pair).and_then(|request| request.pem()).map_err(unusable)?;
        let message =
            pb::JoinRequest { node_name: node.as_str().to_owned(), request, token, labels: labels.clone() };
        Ok(NodeRequest { message, key })
    }

    /// Asks until the certificate is issued; returns the set and the name for it.
    ///
    /// # Errors
    /// When the request is refused, denied or not signed, or the store does not answer.
    pub async fn wait(&self, client: &StoreClient) -> Result<(String, CredentialSet), RequestError> {
        let mut announced = None;
        let mut answers = 0;
        loop {
            let answer = client.join(self.message.clone()).await?;
            let pb::JoinResponse { name, state, reason, certificate, authorities, .. } = answer;
            match state.parse() {
                Ok(RequestState::Issued) => return self.check(certificate, authorities),
                Ok(RequestState::Denied) => return Err(RequestError::Denied { name, reason }),
                Ok(RequestState::Failed) => return Err(RequestError::Failed { name, reason }),
                Ok(state @ (RequestState::Pending | RequestState::Approved)) => {
                    if announced.replace(state) != Some(state) {
                        announce(&name, state);
                    }
                }
                Err(error) => return Err(RequestError::Answer(format!("the state {state:?} {error}"))),
            }
            answers += 1;
            tokio::time::sleep(poll_after(answers, jitter())).await;
        }
    }

    /// The set, if the certificate is for our key. It is named after the certificate's serial number.
    fn check(
        &self,
        certificate: String,
        authorities: String,
    ) -> Result<(String, CredentialSet), RequestError> {
        let unusable = |what: &str| RequestError::Answer(what.to_owned());
        let chain =
            CertificateFacts::read_pem(&certificate).ok_or_else(|| unusable("it has no certificate"))?;
        CertificateFacts::read_pem(&authorities).ok_or_else(|| unusable("it has no authorities"))?;
        let key = KeyPair::from_pem(&self.key).map_err(|error| RequestError::Key(error.to_string()))?;
        let public = rcgen::PublicKeyData::subject_public_key_info(&key);
        let own = &chain[0].0;
        if own.public_key_sha256 != muster_proto::digest::Sha256::of(&public) {
            return Err(unusable("the certificate is for another key"));
        }
        let serial = own.serial.as_ref().ok_or_else(|| unusable("the certificate has no serial number"))?;
        let key = self.key.clone();
        Ok((serial.to_string(), CredentialSet { certificate, key, authorities }))
    }
}

fn announce(name: &str, state: RequestState) {
    match state {
        RequestState::Pending => {
            tracing::info!(request = name, "the request waits for an administrator: `muster approve {name}`");
        }
        _ => tracing::info!(request = name, "the request is approved and waits for the signer"),
    }
}
