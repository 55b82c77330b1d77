//! Joining within a commit: what is known about an attempt, and what an attempt that is allowed writes.

use bytes::Bytes;
use muster_proto::certificate_request::{CertificateRequest, request_name};
use muster_proto::join_token::JoinToken;
use muster_proto::lease::Lease;
use muster_proto::name::Name;
use muster_proto::record::{Kind, Record};
use muster_proto::revocation::{Revocation, Revoked, revocation_name};
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;

use super::{Draft, decode};
use crate::error::DraftError;
use crate::namespaced_name::NamespacedName;
use crate::rules::{self, JoinAttempt, JoinCredential, Joined, Known, Outcome};

impl Draft<'_> {
    /// Judges an attempt to join and writes what follows from it; returns the request as it is then.
    pub fn join(&mut self, attempt: &JoinAttempt) -> Result<CertificateRequest, DraftError> {
        let known = self.known_about(attempt)?;
        let Joined { request, token, superseded } = rules::join(attempt, &known, &self.context())?;
        let Outcome::Store(request) = request else { return Ok(request.into_record()) };
        let stored: Bytes = self.put(request.clone())?.record;
        for other in superseded {
            self.remove(other)?;
        }
        if let Some(token) = token {
            self.put(token)?;
        }
        decode(&NamespacedName::new("", request.meta.name.as_str()), &stored)
    }

    fn known_about(&self, attempt: &JoinAttempt) -> Result<Known, DraftError> {
        let node = &attempt.node_name;
        let name = request_name(&attempt.public_key_sha256);
        let others =
            self.indexes.joining.requests_of(node.as_str()).filter(|key| key.name() != name.as_str());
        let others: Result<Vec<_>, _> =
            others.filter_map(|key| self.get_by_key::<CertificateRequest>(key).transpose()).collect();
        let (mut token, mut revocation_of_serial) = (None, None);
        match &attempt.credential {
            JoinCredential::Token { id, .. } => token = self.get::<JoinToken>("", id.as_str())?,
            JoinCredential::Certificate { serial: Some(serial), .. } => {
                revocation_of_serial = self.revocation(&Revoked::Serial(serial.clone()))?;
            }
            JoinCredential::Certificate { serial: None, .. } | JoinCredential::None => {}
        }
        let (waiting, waiting_of_source) = self.indexes.joining.waiting(&attempt.source_address);
        Ok(Known {
            request: self.get("", name.as_str())?,
            others: others?,
            token,
            node_exists: self.lookup(Kind::Node, &NamespacedName::new("", node.as_str())).is_some(),
            lease: self.get::<Lease>(NODE_LEASE_NAMESPACE, node.as_str())?,
            revocation_of_node: self.revocation_of_node(node)?,
            revocation_of_serial,
            waiting,
            waiting_of_source,
        })
    }

    /// The revocation of a node's certificates, if there is one.
    pub fn revocation_of_node(&self, node: &Name) -> Result<Option<Revocation>, DraftError> {
        self.revocation(&Revoked::Node(node.clone()))
    }

    fn revocation(&self, revoked: &Revoked) -> Result<Option<Revocation>, DraftError> {
        self.get("", revocation_name(revoked).as_str())
    }

    /// Deletes tokens, requests and revocations that have expired.
    pub(super) fn delete_expired_joining(&mut self, now_millis: i64, limit: usize) -> Result<(), DraftError> {
        for (kind, key) in self.indexes.joining.expired(now_millis, limit) {
            match kind {
                Kind::JoinToken => self.delete_expired::<JoinToken>(&key)?,
                Kind::CertificateRequest => self.delete_expired::<CertificateRequest>(&key)?,
                _ => self.delete_expired::<Revocation>(&key)?,
            }
        }
        Ok(())
    }

    fn delete_expired<R: Record>(&mut self, key: &NamespacedName) -> Result<(), DraftError> {
        match self.get_by_key::<R>(key) {
            Ok(Some(record)) => drop(self.remove(record)?),
            // A record that cannot be decoded stays; without its expiry it is not tried again and again.
            Ok(None) | Err(_) => self.indexes.joining.remove(R::KIND, key),
        }
        Ok(())
    }
}
