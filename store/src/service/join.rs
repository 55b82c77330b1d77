//! JoinService.

use std::net::SocketAddr;

use muster_grpc::join_service_server::JoinService;
use muster_proto::certificate_request::{CertificateRequest, CertificateRequestStatus, request_name};
use muster_proto::identity::Caller;
use muster_proto::invalid::{Check, Path};
use muster_proto::join_token::SecretToken;
use muster_proto::label::check_labels;
use muster_proto::name::Name;
use muster_proto::pb;
use muster_rpc::audit;
use muster_rpc::identity::peer_address;
use muster_rpc::pki::{CertificateSigningRequest, own_certificate};
use tonic::{Request, Response, Status};

use muster_store_core::lanes::Lane;
use muster_store_core::rules::{JoinAttempt, JoinCredential};

use super::{Services, caller};
use crate::error::StoreError;
use crate::queue::WriteClass;

/// The longest certificate signing request. One with an ECDSA key has a few hundred bytes.
const MAX_REQUEST: usize = 8 * 1024;

#[tonic::async_trait]
impl JoinService for Services {
    async fn get_authorities(
        &self,
        _: Request<pb::GetAuthoritiesRequest>,
    ) -> Result<Response<pb::GetAuthoritiesResponse>, Status> {
        Ok(Response::new(pb::GetAuthoritiesResponse { authorities: self.read_authorities().await? }))
    }

    async fn join(&self, request: Request<pb::JoinRequest>) -> Result<Response<pb::JoinResponse>, Status> {
        let attempt = attempt(&request)?;
        audit::note_record("", request_name(&attempt.public_key_sha256).as_str());
        // Not in the lane of the parts, where strangers have no place.
        let class = WriteClass::new(Lane::Others, &caller(&request), attempt.request.len());
        let joined = self.write(class, None, move |draft| Ok(draft.join(&attempt)?)).await?;
        Ok(Response::new(self.answer_join(joined).await?))
    }
}

impl Services {
    /// The authorities that the store trusts now, as their file has them.
    async fn read_authorities(&self) -> Result<String, StoreError> {
        let file = self.authorities.as_ref().ok_or(StoreError::NoAuthorities)?;
        let unreadable = |error| StoreError::Storage(format!("--tls-client-ca: {}: {error}", file.display()));
        tokio::fs::read_to_string(file.as_path()).await.map_err(unreadable)
    }

    async fn answer_join(&self, request: CertificateRequest) -> Result<pb::JoinResponse, StoreError> {
        let CertificateRequestStatus { state, reason, issued, .. } = request.status.clone();
        let mut answer = pb::JoinResponse {
            name: request.meta.name.as_str().to_owned(),
            state: state.to_string(),
            reason,
            ..Default::default()
        };
        if let Some(issued) = issued {
            answer.certificate = issued.chain;
            answer.authorities = self.read_authorities().await?;
            answer.not_after = pb::CertificateRequest::from(request).status.unwrap_or_default().not_after;
        }
        Ok(answer)
    }
}

/// The validated attempt of a request. Possession of the key is checked, and that the key's holder asked for this node
/// and no other: a request cannot be used for a node that it does not name.
fn attempt(request: &Request<pb::JoinRequest>) -> Result<JoinAttempt, StoreError> {
    let pb::JoinRequest { node_name, request: pem, token, labels } = request.get_ref();
    let mut check = Check::new();
    let root = Path::ROOT;
    let node: Option<Name> = check.field(&root.key("nodeName"), node_name.parse());
    let path = root.key("request");
    let parsed = if pem.len() > MAX_REQUEST {
        check.fail(&path, format_args!("must be {MAX_REQUEST} bytes or fewer"));
        None
    } else {
        check.field(&path, CertificateSigningRequest::parse(pem))
    };
    if let (Some(node), Some(parsed)) = (&node, &parsed) {
        check.field(&path, parsed.check_subject(node));
    }
    let token: Option<SecretToken> = match token.as_str() {
        "" => None,
        token => check.field(&root.key("token"), token.parse()),
    };
    check_labels(&mut check, &root.key("labels"), labels);
    let (node_name, parsed) = check.finish_some(node.zip(parsed))?;
    let credential = match (caller(request), token) {
        (Caller::Node(node), _) => {
            let own = own_certificate(request.extensions());
            let own =
                own.ok_or_else(|| StoreError::Storage("the caller's certificate cannot be read".to_owned()))?;
            JoinCredential::Certificate { node, serial: own.serial, not_before: own.not_before }
        }
        (_, Some(token)) => {
            JoinCredential::Token { id: token.id().clone(), secret_sha256: token.secret_sha256() }
        }
        (_, None) => JoinCredential::None,
    };
    let source = peer_address(request.extensions());
    Ok(JoinAttempt {
        node_name,
        request: pem.clone(),
        public_key_sha256: parsed.public_key_sha256,
        labels: labels.clone(),
        credential,
        source_address: source
            .map(|address: SocketAddr| address.ip().to_canonical().to_string())
            .unwrap_or_default(),
    })
}
