//! Join tokens, requests for certificates and revocations by the time they expire, and requests by node and by source.

use std::collections::{BTreeSet, HashMap};

use muster_proto::certificate_request::{CertificateRequest, RequestState};
use muster_proto::join_token::JoinToken;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::revocation::Revocation;
use prost::Message;

use crate::namespaced_name::NamespacedName;
use crate::rules;

/// What is indexed of a request.
#[derive(Debug)]
struct IndexedRequest {
    node: String,
    /// Where it came from, if it waits for an administrator.
    waits_from: Option<String>,
}

/// The index of tokens, requests and revocations.
#[derive(Debug, Default)]
pub struct JoiningIndex {
    expiries: BTreeSet<(i64, Kind, NamespacedName)>,
    expiry_of: HashMap<(Kind, NamespacedName), i64>,
    requests: HashMap<NamespacedName, IndexedRequest>,
    by_node: HashMap<String, BTreeSet<NamespacedName>>,
    waiting: usize,
    waiting_by_source: HashMap<String, usize>,
}

impl JoiningIndex {
    /// Adds or replaces a record. One that cannot be decoded is not indexed, and so never expires.
    pub fn put(&mut self, kind: Kind, key: &NamespacedName, record: &[u8]) {
        self.remove(kind, key);
        let expires = match kind {
            Kind::JoinToken => {
                decoded::<pb::JoinToken, JoinToken>(record).map(|token| token.spec.expire_time)
            }
            Kind::Revocation => decoded::<pb::Revocation, Revocation>(record)
                .and_then(|revocation| revocation.spec.expire_time),
            _ => decoded::<pb::CertificateRequest, CertificateRequest>(record).and_then(|request| {
                let expires = rules::request_expiry(&request);
                self.put_request(key, request);
                expires
            }),
        };
        if let Some(expires) = expires {
            let millis = expires.as_millisecond();
            self.expiries.insert((millis, kind, key.clone()));
            self.expiry_of.insert((kind, key.clone()), millis);
        }
    }

    fn put_request(&mut self, key: &NamespacedName, request: CertificateRequest) {
        let waits = request.status.state == RequestState::Pending;
        let node = String::from(request.spec.node_name);
        let waits_from = waits.then_some(request.spec.source_address);
        if let Some(source) = &waits_from {
            self.waiting += 1;
            *self.waiting_by_source.entry(source.clone()).or_default() += 1;
        }
        self.by_node.entry(node.clone()).or_default().insert(key.clone());
        self.requests.insert(key.clone(), IndexedRequest { node, waits_from });
    }

    pub fn remove(&mut self, kind: Kind, key: &NamespacedName) {
        if let Some(millis) = self.expiry_of.remove(&(kind, key.clone())) {
            self.expiries.remove(&(millis, kind, key.clone()));
        }
        if kind != Kind::CertificateRequest {
            return;
        }
        let Some(IndexedRequest { node, waits_from }) = self.requests.remove(key) else { return };
        if let Some(of_node) = self.by_node.get_mut(&node) {
            of_node.remove(key);
            if of_node.is_empty() {
                self.by_node.remove(&node);
            }
        }
        if let Some(source) = waits_from {
            self.waiting -= 1;
            if let Some(count) = self.waiting_by_source.get_mut(&source) {
                *count -= 1;
                if *count == 0 {
                    self.waiting_by_source.remove(&source);
                }
            }
        }
    }

    /// The requests of a node.
    pub fn requests_of(&self, node: &str) -> impl Iterator<Item = &NamespacedName> {
        self.by_node.get(node).into_iter().flatten()
    }

    /// How many requests wait for an administrator: all, and those from this address.
    pub fn waiting(&self, source: &str) -> (usize, usize) {
        (self.waiting, self.waiting_by_source.get(source).copied().unwrap_or_default())
    }

    /// What has expired, oldest first.
    pub fn expired(&self, now_millis: i64, limit: usize) -> Vec<(Kind, NamespacedName)> {
        let due = self.expiries.iter().take_while(|(at, ..)| *at <= now_millis);
        due.take(limit).map(|(_, kind, key)| (*kind, key.clone())).collect()
    }

    /// When the next record expires, in milliseconds since 1970.
    pub fn next_expiry(&self) -> Option<i64> {
        self.expiries.first().map(|(at, ..)| *at)
    }
}

fn decoded<W: Message + Default, R: TryFrom<W>>(record: &[u8]) -> Option<R> {
    R::try_from(W::decode(record).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64) -> Option<prost_types::Timestamp> {
        Some(prost_types::Timestamp { seconds, nanos: 0 })
    }

    fn request(name: &str, node: &str, source: &str, state: &str) -> (NamespacedName, Vec<u8>) {
        let metadata =
            pb::Metadata { name: name.to_owned(), creation_timestamp: time(0), ..Default::default() };
        let spec = pb::CertificateRequestSpec {
            node_name: node.to_owned(),
            request: "PEM".to_owned(),
            public_key_sha256: "0".repeat(64),
            source_address: source.to_owned(),
            ..Default::default()
        };
        let status = pb::CertificateRequestStatus { state: state.to_owned(), ..Default::default() };
        let request =
            pb::CertificateRequest { metadata: Some(metadata), spec: Some(spec), status: Some(status) };
        (NamespacedName::new("", name), request.encode_to_vec())
    }

    #[test]
    fn requests_are_counted_by_source_while_they_wait_and_found_by_node() {
        let mut index = JoiningIndex::default();
        for (key, record) in [
            request("r1", "a", "10.0.0.1", "Pending"),
            request("r2", "a", "10.0.0.1", "Approved"),
            request("r3", "b", "10.0.0.2", "Pending"),
        ] {
            index.put(Kind::CertificateRequest, &key, &record);
        }
        assert_eq!((index.waiting("10.0.0.1"), index.waiting("10.0.0.9")), ((2, 1), (2, 0)));
        assert_eq!(index.requests_of("a").count(), 2);
        assert_eq!(index.next_expiry(), Some(3600 * 1000));
        let (key, approved) = request("r1", "a", "10.0.0.1", "Approved");
        index.put(Kind::CertificateRequest, &key, &approved);
        assert_eq!(index.waiting("10.0.0.1"), (1, 0));
        for name in ["r1", "r2", "r3", "r3"] {
            index.remove(Kind::CertificateRequest, &NamespacedName::new("", name));
        }
        assert_eq!((index.waiting("10.0.0.2"), index.next_expiry()), ((0, 0), None));
        assert!(index.by_node.is_empty() && index.waiting_by_source.is_empty() && index.requests.is_empty());
    }

    #[test]
    fn tokens_and_revocations_expire_in_order() {
        let mut index = JoiningIndex::default();
        let named = |name: &str| Some(pb::Metadata { name: name.to_owned(), ..Default::default() });
        let token = |expires| {
            let spec = pb::JoinTokenSpec {
                secret_sha256: "0".repeat(64),
                expire_time: time(expires),
                max_uses: 1,
                ..Default::default()
            };
            pb::JoinToken { metadata: named("t"), spec: Some(spec), status: None }.encode_to_vec()
        };
        let spec =
            pb::RevocationSpec { node_name: "a".to_owned(), expire_time: time(5), ..Default::default() };
        let revocation = pb::Revocation { metadata: named("node-a"), spec: Some(spec), status: None };
        let (t, r) = (NamespacedName::new("", "t"), NamespacedName::new("", "node-a"));
        index.put(Kind::JoinToken, &t, &token(9));
        index.put(Kind::Revocation, &r, &revocation.encode_to_vec());
        assert_eq!(index.expired(9_000, 9), [(Kind::Revocation, r.clone()), (Kind::JoinToken, t.clone())]);
        assert_eq!(index.expired(9_000, 1).len(), 1);
        index.put(Kind::JoinToken, &t, &token(4));
        assert_eq!(index.expired(4_999, 9), [(Kind::JoinToken, t)]);
        index.put(Kind::Revocation, &r, b"damaged");
        assert_eq!(index.next_expiry(), Some(4_000));
    }
}
