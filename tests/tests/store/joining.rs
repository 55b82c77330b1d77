//! Joining, as the store judges it: tokens, requests, decisions and revocations.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_grpc::certificate_request_service_client::CertificateRequestServiceClient;
use muster_grpc::join_service_client::JoinServiceClient;
use muster_grpc::join_token_service_client::JoinTokenServiceClient;
use muster_grpc::revocation_service_client::RevocationServiceClient;
use muster_proto::pb;
use muster_tests::join::{join_request, secret_token, signing_request, token_for};
use muster_tests::rpc_error::RpcError;
use muster_tests::{TIMEOUT, TestStore, eventually};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// The calls of one caller.
struct Caller(Channel);

impl Caller {
    async fn join(&self, request: &pb::JoinRequest) -> Result<pb::JoinResponse, RpcError> {
        let answer = JoinServiceClient::new(self.0.clone()).join(request.clone()).await;
        answer.map(tonic::Response::into_inner).map_err(|status| RpcError::from(&status))
    }

    async fn refused(&self, request: &pb::JoinRequest) -> (Code, String) {
        let error = self.join(request).await.unwrap_err();
        (error.code, error.reason)
    }

    async fn create_token(&self, token: pb::JoinToken) -> Result<pb::JoinToken, Status> {
        let request = pb::CreateJoinTokenRequest { join_token: Some(token) };
        let answer = JoinTokenServiceClient::new(self.0.clone()).create_join_token(request).await?;
        Ok(answer.into_inner().join_token.unwrap())
    }

    async fn tokens(&self) -> Vec<pb::JoinToken> {
        let mut client = JoinTokenServiceClient::new(self.0.clone());
        client.list_join_tokens(pb::ListJoinTokensRequest::default()).await.unwrap().into_inner().join_tokens
    }

    async fn requests(&self) -> (Vec<pb::CertificateRequest>, u64) {
        let mut client = CertificateRequestServiceClient::new(self.0.clone());
        let all = pb::ListCertificateRequestsRequest::default();
        let answer = client.list_certificate_requests(all).await.unwrap().into_inner();
        (answer.certificate_requests, answer.resource_version)
    }

    async fn approve(&self, name: &str) -> Result<pb::CertificateRequest, RpcError> {
        let request = pb::ApproveCertificateRequestRequest { name: name.to_owned(), preconditions: None };
        let mut client = CertificateRequestServiceClient::new(self.0.clone());
        let answer = client.approve_certificate_request(request).await;
        let approved = answer.map_err(|status| RpcError::from(&status))?.into_inner();
        Ok(approved.certificate_request.unwrap())
    }

    async fn finish(&self, mut request: pb::CertificateRequest, state: &str) -> Result<(), RpcError> {
        request.status.as_mut().unwrap().state = state.to_owned();
        let request = pb::UpdateCertificateRequestStatusRequest { certificate_request: Some(request) };
        let mut client = CertificateRequestServiceClient::new(self.0.clone());
        let answer = client.update_certificate_request_status(request).await;
        answer.map(|_| ()).map_err(|status| RpcError::from(&status))
    }

    async fn revoke(&self, node: &str) -> Result<pb::Revocation, RpcError> {
        let spec = pb::RevocationSpec { node_name: node.to_owned(), ..Default::default() };
        let revocation = pb::Revocation { spec: Some(spec), ..Default::default() };
        let request = pb::CreateRevocationRequest { revocation: Some(revocation) };
        let answer = RevocationServiceClient::new(self.0.clone()).create_revocation(request).await;
        answer.map(|answer| answer.into_inner().revocation.unwrap()).map_err(|status| RpcError::from(&status))
    }
}

/// A secure store with an administrator and the agent of node a.
async fn store() -> (TestStore, Caller, Caller) {
    let store = TestStore::secure().await;
    let (admin, node) = (Caller(store.api().channel()), Caller(store.api_as_node("a").channel()));
    (store, admin, node)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_spent_once_for_each_key_and_two_machines_cannot_share_one_use() {
    let (_store, admin, _) = store().await;
    let secret = secret_token();
    admin.create_token(token_for(&secret, "a", 1, 600)).await.unwrap();
    let attempts: Vec<pb::JoinRequest> = (0..8).map(|_| join_request("a", &secret.reveal())).collect();
    let answers = futures_util::future::join_all(attempts.iter().map(|attempt| admin.join(attempt))).await;
    let approved: Vec<usize> = (0..8).filter(|&i| answers[i].is_ok()).collect();
    assert_eq!(approved.len(), 1, "{answers:?}");
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    assert!(refused.clone().all(|error| error.reason == "TOKEN_USED_UP"), "{answers:?}");
    let again = admin.join(&attempts[approved[0]]).await.unwrap();
    assert_eq!(again.state, "Approved");
    assert_eq!(admin.tokens().await[0].status.as_ref().unwrap().uses, 1);
    assert_eq!(admin.requests().await.0.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_join_is_refused_with_its_reason_and_nothing_is_written() {
    let (_store, admin, node) = store().await;
    let secret = secret_token();
    admin.create_token(token_for(&secret, "b", 1, 600)).await.unwrap();
    let (_, before) = admin.requests().await;
    let wrong = format!("{}.{}", secret.id(), "0".repeat(32));
    let mut for_admin = join_request("b", &secret.reveal());
    for_admin.request = signing_request("eva", "muster:admins");
    let mut of_other = join_request("b", &secret.reveal());
    of_other.request = signing_request("node:a", "muster:nodes");
    for (caller, request, expected) in [
        (&admin, join_request("a", &secret.reveal()), (Code::PermissionDenied, "TOKEN_FOR_OTHER_NODE")),
        (&admin, join_request("b", &secret_token().reveal()), (Code::PermissionDenied, "TOKEN_INVALID")),
        (&admin, join_request("b", &wrong), (Code::PermissionDenied, "TOKEN_INVALID")),
        (&admin, for_admin, (Code::InvalidArgument, "INVALID")),
        (&admin, of_other, (Code::InvalidArgument, "INVALID")),
        (&node, join_request("b", &secret.reveal()), (Code::PermissionDenied, "OTHER_NODE")),
        (&node, join_request("b", ""), (Code::PermissionDenied, "OTHER_NODE")),
    ] {
        let (code, reason) = caller.refused(&request).await;
        assert_eq!((code, reason.as_str()), expected, "{request:?}");
    }
    let (requests, after) = admin.requests().await;
    assert_eq!((requests, after), (Vec::new(), before), "nothing was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_renews_with_its_certificate_until_it_is_revoked() {
    let (_store, admin, node) = store().await;
    let first = node.join(&join_request("a", "")).await.unwrap();
    assert_eq!((first.state.as_str(), first.reason.as_str()), ("Approved", "approved by node:a"));
    let second = node.join(&join_request("a", "")).await.unwrap();
    let names: Vec<String> =
        admin.requests().await.0.into_iter().map(|it| it.metadata.unwrap().name).collect();
    assert_eq!(names, [second.name], "a node has one request at a time");
    let revocation = admin.revoke("a").await.unwrap();
    assert_eq!(revocation.status.unwrap().revoked_by, "eva");
    let refused = node.join(&join_request("a", "")).await.unwrap_err();
    // Its connection is closed, and that may come before the answer that says why.
    assert!(refused.reason == "REVOKED" || refused.reason.is_empty(), "{refused:?}");
    assert_eq!(admin.requests().await.0.len(), 1, "no new request");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_decide_and_only_the_controller_writes_the_outcome() {
    let (store, admin, node) = store().await;
    let controller = Caller(store.api_as("c1", "muster:controllers").channel());
    let waiting = admin.join(&join_request("b", "")).await.unwrap();
    assert_eq!(waiting.state, "Pending");
    for caller in [&node, &controller] {
        assert_eq!(caller.approve(&waiting.name).await.unwrap_err().code, Code::PermissionDenied);
        assert_eq!(caller.revoke("b").await.unwrap_err().code, Code::PermissionDenied);
        let token = caller.create_token(token_for(&secret_token(), "b", 1, 600)).await;
        assert_eq!(token.unwrap_err().code(), Code::PermissionDenied);
    }
    let approved = admin.approve(&waiting.name).await.unwrap();
    assert_eq!(approved.status.as_ref().unwrap().decided_by, "eva");
    assert_eq!(node.finish(approved.clone(), "Failed").await.unwrap_err().code, Code::PermissionDenied);
    controller.finish(approved.clone(), "Denied").await.unwrap_err();
    controller.finish(approved, "Failed").await.unwrap();
    assert_eq!(admin.approve(&waiting.name).await.unwrap_err().code, Code::Aborted, "it has failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_is_deleted_and_what_exists_survives_a_restart() {
    let (store, admin, _) = store().await;
    let (short, long) = (secret_token(), secret_token());
    admin.create_token(token_for(&short, "a", 1, 1)).await.unwrap();
    admin.create_token(token_for(&long, "a", 1, 600)).await.unwrap();
    admin.join(&join_request("b", "")).await.unwrap();
    admin.revoke("c").await.unwrap();
    let left = eventually(TIMEOUT, "the token has expired", || async {
        Some(admin.tokens().await).filter(|tokens| tokens.len() == 1)
    });
    assert_eq!(left.await[0].metadata.as_ref().unwrap().name, long.id().as_str());
    let (code, reason) = admin.refused(&join_request("a", &short.reveal())).await;
    assert_eq!((code, reason.as_str()), (Code::PermissionDenied, "TOKEN_INVALID"));
    let before = admin.requests().await.0;
    drop(admin);
    let store = store.restart().await;
    let admin = Caller(store.api().channel());
    assert_eq!((admin.tokens().await.len(), admin.requests().await.0), (1, before));
    let again = join_request("d", &long.reveal());
    assert_eq!(admin.refused(&again).await.1, "TOKEN_FOR_OTHER_NODE");
}
