//! Join tokens and signing requests, as `muster token create` and an agent make them.

use muster_proto::join_token::SecretToken;
use muster_proto::pb;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use uuid::Uuid;

/// A new token.
pub fn secret_token() -> SecretToken {
    SecretToken::new(Uuid::new_v4(), Uuid::new_v4())
}

/// The record of a token for that node, valid for so many seconds from now.
#[allow(clippy::disallowed_methods, reason = "the store's clock is the real one")]
pub fn token_for(secret: &SecretToken, node: &str, max_uses: i32, seconds: i64) -> pb::JoinToken {
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    pb::JoinToken {
        metadata: Some(pb::Metadata { name: secret.id().to_string(), ..Default::default() }),
        spec: Some(pb::JoinTokenSpec {
            secret_sha256: secret.secret_sha256().to_string(),
            expire_time: Some(prost_types::Timestamp {
                seconds: expires.as_second(),
                nanos: expires.subsec_nanosecond(),
            }),
            max_uses,
            node_name: node.to_owned(),
            ..Default::default()
        }),
        status: None,
    }
}

/// A signing request for that subject with a new key, PEM.
pub fn signing_request(common_name: &str, organization: &str) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.distinguished_name.push(DnType::OrganizationName, organization);
    let key = KeyPair::generate().expect("a key");
    params.serialize_request(&key).and_then(|request| request.pem()).expect("a signing request")
}

/// A request for the certificate of a node, with a new key.
pub fn join_request(node: &str, token: &str) -> pb::JoinRequest {
    pb::JoinRequest {
        node_name: node.to_owned(),
        request: signing_request(&format!("node:{node}"), "muster:nodes"),
        token: token.to_owned(),
        ..Default::default()
    }
}
