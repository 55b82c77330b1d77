//! Calls about certificates: joining, tokens, decisions about requests, revocations.

use muster_grpc::certificate_request_service_client::CertificateRequestServiceClient;
use muster_grpc::join_service_client::JoinServiceClient;
use muster_grpc::join_token_service_client::JoinTokenServiceClient;
use muster_grpc::revocation_service_client::RevocationServiceClient;
use muster_proto::certificate_request::CertificateRequest;
use muster_proto::join_token::JoinToken;
use muster_proto::name::Name;
use muster_proto::pb;
use muster_proto::revocation::Revocation;

use crate::client::StoreClient;
use crate::error::ClientError;
use crate::resource::unwrap_record;

impl StoreClient {
    /// The authorities that the store trusts now, PEM.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn authorities(&self) -> Result<String, ClientError> {
        let answer = self.call(pb::GetAuthoritiesRequest {}, |transport, request| async move {
            JoinServiceClient::new(transport).get_authorities(request).await
        });
        Ok(answer.await?.authorities)
    }

    /// Asks for a node's certificate, or what became of that request.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn join(&self, request: pb::JoinRequest) -> Result<pb::JoinResponse, ClientError> {
        let answer = self.call(request, |transport, request| async move {
            JoinServiceClient::new(transport).join(request).await
        });
        answer.await
    }

    /// Creates a join token, of whose secret the record has only the hash.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn create_join_token(&self, token: JoinToken) -> Result<JoinToken, ClientError> {
        let request = pb::CreateJoinTokenRequest { join_token: Some(token.into()) };
        let answer = self.call(request, |transport, request| async move {
            JoinTokenServiceClient::new(transport).create_join_token(request).await
        });
        unwrap_record(answer.await?.join_token)
    }

    /// Approves a request for a certificate.
    ///
    /// # Errors
    /// [`ClientError::Conflict`] when it is decided already; any [`ClientError`].
    pub async fn approve_request(&self, name: &Name) -> Result<CertificateRequest, ClientError> {
        let request =
            pb::ApproveCertificateRequestRequest { name: name.as_str().to_owned(), preconditions: None };
        let answer = self.call(request, |transport, request| async move {
            CertificateRequestServiceClient::new(transport).approve_certificate_request(request).await
        });
        unwrap_record(answer.await?.certificate_request)
    }

    /// Denies a request for a certificate.
    ///
    /// # Errors
    /// [`ClientError::Conflict`] when it is signed already; any [`ClientError`].
    pub async fn deny_request(&self, name: &Name, reason: &str) -> Result<CertificateRequest, ClientError> {
        let request = pb::DenyCertificateRequestRequest {
            name: name.as_str().to_owned(),
            reason: reason.to_owned(),
            preconditions: None,
        };
        let answer = self.call(request, |transport, request| async move {
            CertificateRequestServiceClient::new(transport).deny_certificate_request(request).await
        });
        unwrap_record(answer.await?.certificate_request)
    }

    /// Revokes certificates.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn revoke(&self, revocation: Revocation) -> Result<Revocation, ClientError> {
        let request = pb::CreateRevocationRequest { revocation: Some(revocation.into()) };
        let answer = self.call(request, |transport, request| async move {
            RevocationServiceClient::new(transport).create_revocation(request).await
        });
        unwrap_record(answer.await?.revocation)
    }
}
