use muster_proto::join_token::{JoinTokenSpec, JoinTokenStatus};
use muster_proto::lease::LeaseSpec;
use muster_proto::revocation::{RevocationSpec, RevocationStatus, Revoked};

use super::super::fixtures::{after, at};
use super::*;

const ID: &str = "8000000000";

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn secret(text: &str) -> Sha256 {
    Sha256::of(text.as_bytes())
}

fn attempt(credential: JoinCredential) -> JoinAttempt {
    JoinAttempt {
        node_name: name("a"),
        request: "PEM".to_owned(),
        public_key_sha256: secret("key 1"),
        labels: Labels::from([("pool".to_owned(), "web".to_owned())]),
        credential,
        source_address: "10.0.0.1".to_owned(),
    }
}

fn with_token() -> JoinAttempt {
    attempt(JoinCredential::Token { id: name(ID), secret_sha256: secret("right") })
}

fn with_certificate(node: &str, issued: i64) -> JoinAttempt {
    let serial = Some("3a07".parse().unwrap());
    attempt(JoinCredential::Certificate { node: node.to_owned(), serial, not_before: after(issued) })
}

/// A token for node a, two uses, created at 0 and valid until 1000.
fn token() -> JoinToken {
    let mut meta = Metadata::new(None, name(ID));
    meta.creation_timestamp = Some(after(0));
    JoinToken {
        meta,
        spec: JoinTokenSpec {
            secret_sha256: secret("right"),
            expire_time: after(1000),
            max_uses: 2,
            node_name: Some(name("a")),
            labels: Labels::new(),
            created_by: "eva".to_owned(),
        },
        status: JoinTokenStatus::default(),
    }
}

/// A token for nodes with the label pool=web.
fn label_token() -> JoinToken {
    let mut token = token();
    token.spec.node_name = None;
    token.spec.labels = Labels::from([("pool".to_owned(), "web".to_owned())]);
    token
}

fn knowing(token: JoinToken) -> Known {
    Known { token: Some(token), ..Known::default() }
}

fn revocation(seconds: i64) -> Revocation {
    Revocation {
        meta: Metadata::new(None, name("node-a")),
        spec: RevocationSpec { revoked: Revoked::Node(name("a")), reason: String::new(), expire_time: None },
        status: RevocationStatus { revoked_by: "eva".to_owned(), revoke_time: Some(after(seconds)) },
    }
}

fn lease(renewed: i64) -> Lease {
    let spec = LeaseSpec {
        holder_identity: "a".to_owned(),
        lease_duration_seconds: Some(40),
        renew_time: Some(after(renewed)),
        ..LeaseSpec::default()
    };
    Lease { meta: Metadata::new(Some("kube-node-lease".parse().unwrap()), name("a")), spec }
}

fn request(key: &str, state: RequestState) -> CertificateRequest {
    let attempt = JoinAttempt { public_key_sha256: secret(key), ..attempt(JoinCredential::None) };
    let mut request = new_request(&attempt, &at(0));
    request.status.state = state;
    request
}

fn reason(attempt: &JoinAttempt, known: &Known, seconds: i64) -> &'static str {
    join(attempt, known, &at(seconds)).map_or_else(|refusal| refusal.reason(), |_| "joined")
}

#[test]
fn a_token_approves_a_request_and_counts_its_use() {
    let joined = join(&with_token(), &knowing(token()), &at(10)).unwrap();
    let Outcome::Store(request) = joined.request else { panic!("it is new") };
    assert_eq!((request.status.state, request.spec.token_id), (RequestState::Approved, Some(name(ID))));
    assert_eq!(request.status.decided_by, "token:8000000000");
    assert_eq!(request.meta.name, request_name(&secret("key 1")));
    let used = joined.token.unwrap();
    assert_eq!((used.status.uses, used.status.last_use_time), (1, Some(after(10))));
}

#[test]
fn the_same_key_spends_no_second_use_whatever_became_of_the_token() {
    for state in [RequestState::Approved, RequestState::Denied, RequestState::Issued, RequestState::Failed] {
        for token in [Some(token()), None] {
            let known = Known { request: Some(request("key 1", state)), token, ..Known::default() };
            let joined = join(&with_token(), &known, &at(5000)).unwrap();
            assert_eq!((joined.request.is_change(), joined.token), (false, None), "{state}");
        }
    }
}

#[test]
fn a_token_that_does_not_fit_is_refused_with_its_reason() {
    let changed = |change: fn(&mut JoinToken)| {
        let mut token = token();
        change(&mut token);
        knowing(token)
    };
    for (known, seconds, expected) in [
        (Known::default(), 1, "TOKEN_INVALID"),
        (changed(|token| token.spec.secret_sha256 = secret("other")), 1, "TOKEN_INVALID"),
        (changed(|_| ()), 999, "joined"),
        (changed(|_| ()), 1000, "TOKEN_EXPIRED"),
        (changed(|token| token.status.uses = 1), 1, "joined"),
        (changed(|token| token.status.uses = 2), 1, "TOKEN_USED_UP"),
        (changed(|token| token.spec.node_name = Some(name("b"))), 1, "TOKEN_FOR_OTHER_NODE"),
        (
            changed(|token| token.spec.labels = [("pool".to_owned(), "db".to_owned())].into()),
            1,
            "TOKEN_FOR_OTHER_LABELS",
        ),
        (
            changed(|token| token.spec.labels = [("rack".to_owned(), "1".to_owned())].into()),
            1,
            "TOKEN_FOR_OTHER_LABELS",
        ),
        (knowing(label_token()), 1, "joined"),
        // Who has the id but not the secret learns nothing of the token's state.
        (
            changed(|token| (token.spec.secret_sha256, token.status.uses) = (secret("other"), 2)),
            2000,
            "TOKEN_INVALID",
        ),
    ] {
        assert_eq!(reason(&with_token(), &known, seconds), expected, "{:?}", known.token);
    }
}

#[test]
fn a_token_takes_no_node_over() {
    for (is_named, known, expected) in [
        (true, Known { node_exists: true, ..Known::default() }, "joined"),
        (false, Known { node_exists: true, ..Known::default() }, "NODE_EXISTS"),
        (true, Known { lease: Some(lease(61)), ..Known::default() }, "NODE_ALIVE"),
        (true, Known { lease: Some(lease(60)), ..Known::default() }, "joined"),
        (true, Known { others: vec![request("key 2", RequestState::Issued)], ..Known::default() }, "joined"),
        (
            false,
            Known { others: vec![request("key 2", RequestState::Issued)], ..Known::default() },
            "NODE_EXISTS",
        ),
        (
            false,
            Known { others: vec![request("key 2", RequestState::Approved)], ..Known::default() },
            "NODE_EXISTS",
        ),
        (
            false,
            Known { others: vec![request("key 2", RequestState::Pending)], ..Known::default() },
            "joined",
        ),
        (
            true,
            Known { revocation_of_node: Some(revocation(50)), ..Known::default() },
            "TOKEN_BEFORE_REVOCATION",
        ),
        (true, Known { revocation_of_node: Some(revocation(-5)), ..Known::default() }, "joined"),
        (false, Known { revocation_of_node: Some(revocation(-5)), ..Known::default() }, "NODE_EXISTS"),
        (true, Known { revocation_of_node: Some(revocation(100)), ..Known::default() }, "JUST_REVOKED"),
    ] {
        let known = Known { token: Some(if is_named { token() } else { label_token() }), ..known };
        assert_eq!(reason(&with_token(), &known, 100), expected, "{known:?}");
    }
}

#[test]
fn a_node_renews_with_its_own_certificate_unless_that_is_revoked() {
    let known = Known { node_exists: true, lease: Some(lease(99)), ..Known::default() };
    let joined = join(&with_certificate("a", 0), &known, &at(100)).unwrap();
    let Outcome::Store(request) = joined.request else { panic!("it is new") };
    assert_eq!(
        (request.status.state, request.status.decided_by.as_str()),
        (RequestState::Approved, "node:a")
    );
    assert_eq!((request.spec.requested_by.as_str(), joined.token), ("node:a", None));
    let revoked = |at| Known { revocation_of_node: Some(revocation(at)), ..known.clone() };
    for (attempt, known, expected) in [
        (with_certificate("b", 0), known.clone(), "OTHER_NODE"),
        (with_certificate("a", 50), revoked(49), "joined"),
        (with_certificate("a", 50), revoked(50), "REVOKED"),
        (with_certificate("a", 50), revoked(60), "REVOKED"),
        (
            with_certificate("a", 50),
            Known { revocation_of_serial: Some(revocation(0)), ..known.clone() },
            "REVOKED",
        ),
        // Also one that was approved before.
        (with_certificate("a", 50), Known { request: Some(request_of_node()), ..revoked(60) }, "REVOKED"),
    ] {
        assert_eq!(reason(&attempt, &known, 100), expected, "{attempt:?} {known:?}");
    }
}

fn request_of_node() -> CertificateRequest {
    request("key 1", RequestState::Approved)
}

#[test]
fn a_new_request_of_a_node_supersedes_those_that_do_not_wait() {
    let others = vec![
        request("key 2", RequestState::Issued),
        request("key 3", RequestState::Pending),
        request("key 4", RequestState::Approved),
    ];
    let known = Known { others: others.clone(), ..Known::default() };
    let joined = join(&with_certificate("a", 0), &known, &at(100)).unwrap();
    assert_eq!(joined.superseded, [others[0].clone(), others[2].clone()]);
}

#[test]
fn a_key_of_another_node_is_refused() {
    let mut other = request("key 1", RequestState::Issued);
    other.spec.node_name = name("b");
    for attempt in [with_token(), with_certificate("a", 0), attempt(JoinCredential::None)] {
        let known = Known { request: Some(other.clone()), token: Some(token()), ..Known::default() };
        assert_eq!(reason(&attempt, &known, 1), "KEY_OF_OTHER_NODE");
    }
    let collision = request("key 2", RequestState::Issued);
    let known = Known { request: Some(collision), ..Known::default() };
    assert_eq!(reason(&attempt(JoinCredential::None), &known, 1), "KEY_OF_OTHER_NODE");
}

#[test]
fn without_a_token_a_bounded_number_of_requests_waits() {
    let waiting = |waiting, waiting_of_source| Known { waiting, waiting_of_source, ..Known::default() };
    let alone = attempt(JoinCredential::None);
    let joined = join(&alone, &waiting(199, 9), &at(1)).unwrap();
    let Outcome::Store(first) = joined.request else { panic!("it is new") };
    assert_eq!((first.status.state, first.spec.requested_by.as_str()), (RequestState::Pending, "anonymous"));
    assert_eq!(reason(&alone, &waiting(200, 0), 1), "TOO_MANY_WAITING");
    assert_eq!(reason(&alone, &waiting(10, 10), 1), "TOO_MANY_WAITING");
    // Asking again is not one more, and a token approves what waited.
    let known = Known { request: Some(first), token: Some(token()), ..waiting(200, 10) };
    assert!(!join(&alone, &known, &at(2)).unwrap().request.is_change());
    let approved = join(&with_token(), &known, &at(3)).unwrap();
    assert_eq!(approved.request.record().status.state, RequestState::Approved);
    assert_eq!(approved.token.unwrap().status.uses, 1);
}

#[test]
fn refusals_say_what_to_do() {
    let known = Known { lease: Some(lease(61)), ..knowing(token()) };
    let refusal = join(&with_token(), &known, &at(100)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "node a has an agent that renewed its lease 39 s ago, and another must not take its place: stop that agent \
         first, or choose another name"
    );
    let refusal = JoinRefusal::TooManyWaiting { limit: 10, of_source: true };
    assert_eq!(
        refusal.to_string(),
        "too many requests wait for an administrator (the limit is 10 for one address): join with a token, or try \
         again later"
    );
}
