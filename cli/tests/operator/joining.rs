//! The commands about machines that join: tokens, decisions about requests, revocations.

use muster_proto::pb;
use muster_store_client::StoreClient;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use crate::harness::Harness;

/// Asks for a certificate as the agent of that node would; returns the name of the request.
async fn ask(store: &StoreClient, node: &str) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("node:{node}"));
    params.distinguished_name.push(DnType::OrganizationName, "muster:nodes");
    let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let asked = pb::JoinRequest { node_name: node.to_owned(), request, ..Default::default() };
    let answer = store.join(asked).await.unwrap();
    assert_eq!(answer.state, "Pending", "{}", answer.reason);
    answer.name
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_certificates_are_approved_and_denied() {
    let harness = Harness::with_store().await;
    let store = harness.client();
    let (wanted, unwanted) = (ask(&store, "n1").await, ask(&store, "n2").await);
    let approved = harness.muster(&format!("approve {wanted}")).await.ok();
    assert_eq!(approved, format!("certificaterequest/{wanted} approved for node n1\n"));
    let denied = harness.muster(&format!("deny {unwanted} --reason unknown-machine")).await.ok();
    assert_eq!(denied, format!("certificaterequest/{unwanted} denied\n"));
    let listed = harness.muster("get certificaterequests").await.ok();
    assert!(listed.contains("Approved") && listed.contains("Denied"), "{listed}");
    let reason = format!("get csr {unwanted} -o jsonpath={{.status.reason}}");
    let reason = harness.muster(&reason).await.ok();
    assert!(reason.contains("unknown-machine"), "{reason}");
    for command in ["approve", "deny"] {
        harness.muster(&format!("{command} nobody")).await.failed(3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_revoked_until_the_revocation_is_deleted() {
    let harness = Harness::with_store().await;
    harness.muster("revoke node n7 --reason stolen").await.ok();
    harness.muster("revoke serial 3a:07:f1 --keep 24h").await.ok();
    assert_eq!(
        harness.muster("get revocations -o name").await.ok(),
        "revocation/node-n7\nrevocation/serial-3a07f1\n"
    );
    harness.muster("delete revocation node-n7").await.ok();
    assert_eq!(harness.muster("get revocations -o name").await.ok(), "revocation/serial-3a07f1\n");
    assert_eq!(harness.muster("revoke serial xyz").await.code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_created_listed_and_deleted() {
    let mut harness = Harness::empty();
    harness.muster("certs pki store admin").await.ok();
    let file = |name: &str| harness.path("pki").join(name).display().to_string();
    let flags = [
        format!("--tls-cert={}", file("store.crt")),
        format!("--tls-key={}", file("store.key")),
        format!("--tls-client-ca={}", file("ca.crt")),
    ];
    let store = harness.start_store(&flags).await.replace("http://127.0.0.1", "https://localhost");
    let tls = "--tls-ca pki/ca.crt --tls-cert pki/admin.crt --tls-key pki/admin.key";
    harness.muster(&format!("config set-context lab --store {store} {tls}")).await.ok();
    let printed = harness.muster("token create --node n7 --ttl 1h").await.ok();
    let token = printed.lines().next().unwrap();
    let (id, secret) = token.split_once('.').unwrap();
    assert!(printed.contains("--node-name n7") && printed.contains("--ca-hash sha256:"), "{printed}");
    let listed = harness.muster("token list").await.ok();
    assert!(listed.contains(id) && !listed.contains(secret), "{listed}");
    harness.muster(&format!("token delete {id}")).await.ok();
    assert!(!harness.muster("token list").await.ok().contains(id));
    harness.muster(&format!("token delete {id}")).await.failed(3);
    assert_eq!(harness.muster("token create").await.code, 2, "for which node?");

    let clear = Harness::with_store().await;
    let refused = clear.muster("token create --node n7").await;
    assert_ne!(refused.code, 0, "a store without TLS has no authorities: {}", refused.out);
}
