//! Who may join the fleet: (request for a certificate, what the store knows) -> the request's record, or a refusal.
//!
//! A request is approved by a join token or by the node's own certificate; without either it waits for an administrator.
//! The rule and the count of a token's uses are one step, so a use cannot be spent twice. The same key has one request:
//! asking again changes nothing and spends nothing.

use jiff::{SignedDuration, Timestamp};
use muster_proto::certificate_request::{
    CertificateRequest, CertificateRequestSpec, CertificateRequestStatus, RequestState, request_name,
};
use muster_proto::digest::Sha256;
use muster_proto::join_token::JoinToken;
use muster_proto::label::Labels;
use muster_proto::lease::Lease;
use muster_proto::meta::Metadata;
use muster_proto::name::Name;
use muster_proto::revocation::{Revocation, Serial};

use super::certificate_request::decide;
use super::common::set_creation_metadata;
use super::{Context, Outcome};
use crate::limits::{WAITING_REQUESTS, WAITING_REQUESTS_OF_SOURCE};

#[cfg(test)]
mod tests;

/// A machine that asks for the certificate of a node. Its possession of the key was checked.
#[derive(Clone, Debug)]
pub struct JoinAttempt {
    pub node_name: Name,
    /// PKCS #10, PEM.
    pub request: String,
    pub public_key_sha256: Sha256,
    pub labels: Labels,
    pub credential: JoinCredential,
    /// The IP address that it comes from.
    pub source_address: String,
}

/// What a machine joins with.
#[derive(Clone, Debug)]
pub enum JoinCredential {
    /// The valid certificate of a node.
    Certificate {
        node: String,
        serial: Option<Serial>,
        not_before: Timestamp,
    },
    Token {
        id: Name,
        secret_sha256: Sha256,
    },
    /// It waits for an administrator.
    None,
}

/// What the store knows about an attempt.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The request with the same key, by its name.
    pub request: Option<CertificateRequest>,
    /// The other requests of the same node.
    pub others: Vec<CertificateRequest>,
    /// The token that the attempt names.
    pub token: Option<JoinToken>,
    pub node_exists: bool,
    /// The node's lease, with its newest renewal.
    pub lease: Option<Lease>,
    pub revocation_of_node: Option<Revocation>,
    pub revocation_of_serial: Option<Revocation>,
    /// Requests that wait for an administrator: all, and those from the same address.
    pub waiting: usize,
    pub waiting_of_source: usize,
}

/// What to write for an attempt that is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    pub request: Outcome<CertificateRequest>,
    /// The token with one more use.
    pub token: Option<JoinToken>,
    /// Earlier requests of the node, to be deleted: a node has one at a time.
    pub superseded: Vec<CertificateRequest>,
}

/// Why a machine may not join, in words for its operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefusal {
    /// Nobody learns whether the id or the secret is wrong.
    #[error("the join token is not valid, or it has expired: create one with `muster token create`")]
    TokenInvalid,
    #[error("join token {id} has expired: create one with `muster token create`")]
    TokenExpired { id: Name },
    #[error(
        "join token {id} is used up ({max_uses} of {max_uses} uses): create one with `muster token create`"
    )]
    TokenUsedUp { id: Name, max_uses: i32 },
    #[error("join token {id} is for node {permitted}, not {node}")]
    TokenForOtherNode { id: Name, permitted: Name, node: Name },
    #[error(
        "join token {id} is for nodes with the label {label}: start the agent with --node-labels={label}"
    )]
    TokenForOtherLabels { id: Name, label: String },
    #[error(
        "node {node} exists, and join token {id} does not name it: `muster token create --node {node}` makes one that does"
    )]
    NodeExists { id: Name, node: Name },
    #[error(
        "node {node} has an agent that renewed its lease {seconds} s ago, and another must not take its place: stop \
         that agent first, or choose another name"
    )]
    NodeAlive { node: Name, seconds: i64 },
    #[error(
        "node {node} was revoked after join token {id} was created: create a new one that names the node"
    )]
    TokenBeforeRevocation { id: Name, node: Name },
    #[error("the certificates of node {node} are revoked: it must join again with a new token")]
    Revoked { node: Name },
    #[error("node {node} was revoked just now: try again in a second")]
    JustRevoked { node: Name },
    #[error("a certificate of node {caller} does not entitle to one of node {node}")]
    OtherNode { caller: String, node: Name },
    #[error("the key is already used in a request of node {used_by}: make a new key")]
    KeyOfOtherNode { used_by: Name },
    #[error(
        "too many requests wait for an administrator (the limit is {limit}{}): join with a token, or try again later",
        if *.of_source { " for one address" } else { "" }
    )]
    TooManyWaiting { limit: usize, of_source: bool },
}

impl JoinRefusal {
    /// For programs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TokenInvalid => "TOKEN_INVALID",
            Self::TokenExpired { .. } => "TOKEN_EXPIRED",
            Self::TokenUsedUp { .. } => "TOKEN_USED_UP",
            Self::TokenForOtherNode { .. } => "TOKEN_FOR_OTHER_NODE",
            Self::TokenForOtherLabels { .. } => "TOKEN_FOR_OTHER_LABELS",
            Self::NodeExists { .. } => "NODE_EXISTS",
            Self::NodeAlive { .. } => "NODE_ALIVE",
            Self::TokenBeforeRevocation { .. } => "TOKEN_BEFORE_REVOCATION",
            Self::Revoked { .. } => "REVOKED",
            Self::JustRevoked { .. } => "JUST_REVOKED",
            Self::OtherNode { .. } => "OTHER_NODE",
            Self::KeyOfOtherNode { .. } => "KEY_OF_OTHER_NODE",
            Self::TooManyWaiting { .. } => "TOO_MANY_WAITING",
        }
    }
}

/// Judges an attempt to join.
///
/// # Errors
/// When it is refused; nothing is to be written then.
pub fn join(attempt: &JoinAttempt, known: &Known, cx: &Context) -> Result<Joined, JoinRefusal> {
    let node = &attempt.node_name;
    if let JoinCredential::Certificate { node: caller, not_before, .. } = &attempt.credential {
        if *node != caller.as_str() {
            return Err(JoinRefusal::OtherNode { caller: caller.clone(), node: node.clone() });
        }
        let is_revoked = known.revocation_of_serial.is_some()
            || known.revocation_of_node.as_ref().is_some_and(|it| it.covers_issue(*not_before));
        if is_revoked {
            return Err(JoinRefusal::Revoked { node: node.clone() });
        }
    }
    if let Some(request) = &known.request {
        let CertificateRequestSpec { node_name, public_key_sha256, .. } = &request.spec;
        if node_name != node || *public_key_sha256 != attempt.public_key_sha256 {
            return Err(JoinRefusal::KeyOfOtherNode { used_by: node_name.clone() });
        }
        let can_be_approved = request.status.state == RequestState::Pending;
        if !can_be_approved || matches!(attempt.credential, JoinCredential::None) {
            let request = Outcome::Unchanged(request.clone());
            return Ok(Joined { request, token: None, superseded: Vec::new() });
        }
    }
    // A certificate that is issued now would count as revoked.
    if known.revocation_of_node.as_ref().is_some_and(|it| it.covers_issue(cx.now)) {
        return Err(JoinRefusal::JustRevoked { node: node.clone() });
    }
    let mut request = known.request.clone().unwrap_or_else(|| new_request(attempt, cx));
    let (by, token) = match &attempt.credential {
        JoinCredential::None => {
            check_waiting(known)?;
            return Ok(Joined { request: Outcome::Store(request), token: None, superseded: Vec::new() });
        }
        JoinCredential::Certificate { .. } => (format!("node:{node}"), None),
        JoinCredential::Token { id, secret_sha256 } => {
            let token = use_token(attempt, id, secret_sha256, known, cx.now)?;
            request.spec.token_id = Some(id.clone());
            (format!("token:{id}"), Some(token))
        }
    };
    decide(&mut request, RequestState::Approved, format!("approved by {by}"), &by, cx.now);
    let superseded = known.others.iter().filter(|other| other.status.state != RequestState::Pending);
    Ok(Joined { request: Outcome::Store(request), token, superseded: superseded.cloned().collect() })
}

/// The token with one more use.
fn use_token(
    attempt: &JoinAttempt,
    id: &Name,
    secret_sha256: &Sha256,
    known: &Known,
    now: Timestamp,
) -> Result<JoinToken, JoinRefusal> {
    let (id, node) = (id.clone(), attempt.node_name.clone());
    let token = known.token.as_ref().filter(|token| token.spec.secret_sha256 == *secret_sha256);
    let token = token.ok_or(JoinRefusal::TokenInvalid)?;
    if token.spec.expire_time <= now {
        return Err(JoinRefusal::TokenExpired { id });
    }
    if token.status.uses >= token.spec.max_uses {
        return Err(JoinRefusal::TokenUsedUp { id, max_uses: token.spec.max_uses });
    }
    if let Some(permitted) = token.spec.node_name.as_ref().filter(|permitted| **permitted != node) {
        return Err(JoinRefusal::TokenForOtherNode { id, permitted: permitted.clone(), node });
    }
    if let Some((key, value)) =
        token.spec.labels.iter().find(|(key, value)| attempt.labels.get(*key) != Some(*value))
    {
        return Err(JoinRefusal::TokenForOtherLabels { id, label: format!("{key}={value}") });
    }
    let names_node = token.spec.node_name.is_some();
    let has_joined = |other: &CertificateRequest| {
        matches!(other.status.state, RequestState::Approved | RequestState::Issued)
    };
    if !names_node
        && (known.node_exists || known.revocation_of_node.is_some() || known.others.iter().any(has_joined))
    {
        return Err(JoinRefusal::NodeExists { id, node });
    }
    if let Some(revocation) = &known.revocation_of_node
        && token.meta.creation_timestamp.is_none_or(|created| revocation.covers_issue(created))
    {
        return Err(JoinRefusal::TokenBeforeRevocation { id, node });
    }
    if let Some(age) = known.lease.as_ref().and_then(|lease| age_if_alive(lease, now)) {
        return Err(JoinRefusal::NodeAlive { node, seconds: age.as_secs() });
    }
    let mut used = token.clone();
    used.status.uses += 1;
    used.status.last_use_time = Some(now);
    Ok(used)
}

/// How long ago the lease was renewed, if that renewal still lasts.
fn age_if_alive(lease: &Lease, now: Timestamp) -> Option<SignedDuration> {
    let duration = SignedDuration::from_secs(i64::from(lease.spec.lease_duration_seconds?));
    let age = now.duration_since(lease.spec.renew_time?);
    (!lease.spec.holder_identity.is_empty() && age < duration).then_some(age.max(SignedDuration::ZERO))
}

fn check_waiting(known: &Known) -> Result<(), JoinRefusal> {
    for (waiting, limit, of_source) in [
        (known.waiting_of_source, WAITING_REQUESTS_OF_SOURCE, true),
        (known.waiting, WAITING_REQUESTS, false),
    ] {
        if waiting >= limit {
            return Err(JoinRefusal::TooManyWaiting { limit, of_source });
        }
    }
    Ok(())
}

fn new_request(attempt: &JoinAttempt, cx: &Context) -> CertificateRequest {
    let requested_by = match &attempt.credential {
        JoinCredential::Certificate { node, .. } => format!("node:{node}"),
        JoinCredential::Token { .. } | JoinCredential::None => "anonymous".to_owned(),
    };
    let mut meta = Metadata::new(None, request_name(&attempt.public_key_sha256));
    set_creation_metadata(&mut meta, cx);
    CertificateRequest {
        meta,
        spec: CertificateRequestSpec {
            node_name: attempt.node_name.clone(),
            request: attempt.request.clone(),
            public_key_sha256: attempt.public_key_sha256,
            token_id: None,
            requested_by,
            source_address: attempt.source_address.clone(),
            labels: attempt.labels.clone(),
        },
        status: CertificateRequestStatus::default(),
    }
}
