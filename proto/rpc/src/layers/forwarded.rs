//! Calls that one store forwards to another, for a caller that it names.
//!
//! The caller of such a call, for authorization, admission and the audit log alike, is the one that is named. Only a store
//! may name one: from anybody else these headers are refused, not ignored, since who sends them expects something of
//! them. Without TLS every caller is an administrator, so a caller that is named is one too.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Extensions, HeaderMap, HeaderValue, Request};
use rustls::pki_types::CertificateDer;
use tonic::Status;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};

use crate::admission::connection::{Connection, Peer, Server};
use crate::identity::{Identity, denied};

/// The address of the caller for which a call is forwarded.
pub const FORWARDED_FOR: &str = "muster-forwarded-for";
/// Its certificate, if it has one.
pub const FORWARDED_CERTIFICATE: &str = "muster-forwarded-certificate-bin";

/// A caller without an address: it came through a socket of its machine.
const NO_ADDRESS: &str = "local";

/// Callers whose certificates were read, at most. Reading one takes longer than all the rest.
const MAX_KNOWN: usize = 16 * 1024;

/// In the extensions of a forwarded call: the store that forwarded it, by the name in its certificate, or its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedBy(Arc<str>);

impl ForwardedBy {
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// In the extensions of a call that names another caller and may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused(String);

impl Refused {
    pub(crate) fn status(&self) -> Status {
        denied(self.0.clone())
    }
}

/// Names the caller of a call in the headers with which it is forwarded.
pub fn name_caller(extensions: &Extensions, headers: &mut HeaderMap) {
    let peer = extensions.get::<Peer>();
    let address = peer.and_then(|peer| peer.address).map(|address| address.to_string());
    let address = address.and_then(|address| HeaderValue::try_from(address).ok());
    headers.insert(FORWARDED_FOR, address.unwrap_or(HeaderValue::from_static(NO_ADDRESS)));
    headers.remove(FORWARDED_CERTIFICATE);
    let certificates = peer.and_then(|peer| peer.certificates.as_ref());
    if let Some(own) = certificates.and_then(|certificates| certificates.first()) {
        let encoded = BinaryMetadataValue::from_bytes(own);
        if let Ok(value) = HeaderValue::from_bytes(encoded.as_encoded_bytes()) {
            headers.insert(FORWARDED_CERTIFICATE, value);
        }
    }
}

/// A caller with TLS that was named before, as if it had a connection of its own.
#[derive(Clone, Debug)]
struct Known {
    connection: Arc<Connection>,
    certificates: Arc<Vec<CertificateDer<'static>>>,
}

/// Puts the caller that is named in the place of the store that forwards. Clones share what they know.
#[derive(Clone, Debug)]
pub(crate) struct Forwarded {
    load: Arc<Server>,
    /// By the certificate; empty for callers without one.
    known: Arc<Mutex<HashMap<Vec<u8>, Known>>>,
}

impl Forwarded {
    pub(crate) fn new(load: Arc<Server>) -> Forwarded {
        Forwarded { load, known: Arc::default() }
    }

    pub(crate) fn accept<B>(&self, mut request: Request<B>) -> Request<B> {
        let headers = request.headers_mut();
        let (address, certificate) = (headers.remove(FORWARDED_FOR), headers.remove(FORWARDED_CERTIFICATE));
        if address.is_none() && certificate.is_none() {
            return request;
        }
        let peer = request.extensions().get::<Peer>().cloned();
        match self.vouched(peer, address.as_ref(), certificate) {
            Ok((peer, by)) => {
                request.extensions_mut().insert(peer);
                request.extensions_mut().insert(by);
            }
            Err(refused) => drop(request.extensions_mut().insert(Refused(refused))),
        }
        request
    }

    fn vouched(
        &self,
        peer: Option<Peer>,
        address: Option<&HeaderValue>,
        certificate: Option<HeaderValue>,
    ) -> Result<(Peer, ForwardedBy), String> {
        let peer = peer.ok_or_else(|| format!("{FORWARDED_FOR} is not taken here"))?;
        let address = address.ok_or_else(|| format!("{FORWARDED_CERTIFICATE} needs {FORWARDED_FOR}"))?;
        let named: Option<SocketAddr> = address.to_str().ok().and_then(|address| address.parse().ok());
        if named.is_none() && address != NO_ADDRESS {
            return Err(format!("{FORWARDED_FOR} must be an address with a port"));
        }
        if peer.certificates.is_none() {
            if certificate.is_some() {
                return Err(format!("{FORWARDED_CERTIFICATE} cannot be given without TLS"));
            }
            let by = peer.address.map_or_else(|| NO_ADDRESS.to_owned(), |address| address.to_string());
            return Ok((Peer { address: named, ..peer }, ForwardedBy(by.into())));
        }
        let store = peer.connection.identity();
        if !store.is_store {
            let caller = &store.caller;
            return Err(format!(
                "{caller} may not send {FORWARDED_FOR}: only a store may name another caller"
            ));
        }
        let by = ForwardedBy(store.name.as_deref().unwrap_or_default().into());
        let certificate = certificate.map(decode).transpose()?.unwrap_or_default();
        let Known { connection, certificates } = self.known(certificate);
        Ok((Peer { address: named, connection, certificates: Some(certificates) }, by))
    }

    fn known(&self, certificate: Vec<u8>) -> Known {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&certificate) {
            return known.clone();
        }
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        let own = (!certificate.is_empty()).then_some(&*certificate);
        let connection = self.load.connection(Identity::of(own));
        let certificates = own.map(|own| CertificateDer::from(own.to_vec())).into_iter().collect();
        let caller = Known { connection, certificates: Arc::new(certificates) };
        known.insert(certificate, caller.clone());
        caller
    }
}

fn decode(value: HeaderValue) -> Result<Vec<u8>, String> {
    let mut headers = HeaderMap::new();
    headers.insert(FORWARDED_CERTIFICATE, value);
    let metadata = MetadataMap::from_headers(headers);
    let certificate = metadata.get_bin(FORWARDED_CERTIFICATE).and_then(|value| value.to_bytes().ok());
    let certificate = certificate.filter(|certificate| !certificate.is_empty());
    Ok(certificate.ok_or_else(|| format!("{FORWARDED_CERTIFICATE} must be a certificate"))?.to_vec())
}

#[cfg(test)]
mod tests {
    use muster_proto::identity::Caller;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;
    use crate::admission::Totals;
    use crate::identity::{caller, certificates, peer_address, requester};

    fn certificate(common_name: &str, organization: &str) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    /// A connection from 10.0.0.1 with this certificate; without TLS if it has none.
    fn peer(load: &Arc<Server>, certificate: Option<&[u8]>) -> Peer {
        let identity = certificate.map_or_else(Identity::without_tls, |own| Identity::of(Some(own)));
        let certificates = certificate.map(|own| Arc::new(vec![CertificateDer::from(own.to_vec())]));
        Peer { address: "10.0.0.1:1".parse().ok(), connection: load.connection(identity), certificates }
    }

    fn load() -> Arc<Server> {
        Server::new(Totals { calls: 64, streams: 64, bytes: 64 })
    }

    /// A call of this caller as its store forwards it.
    fn forwarded(of: Peer) -> HeaderMap {
        let (mut extensions, mut headers) = (Extensions::new(), HeaderMap::new());
        extensions.insert(of);
        name_caller(&extensions, &mut headers);
        headers
    }

    fn arrive(layer: &Forwarded, from: Peer, headers: HeaderMap) -> Extensions {
        let mut request = Request::new(());
        *request.headers_mut() = headers;
        request.extensions_mut().insert(from);
        let request = layer.accept(request);
        assert!(request.headers().keys().all(|key| !key.as_str().starts_with("muster-forwarded")));
        request.into_parts().0.extensions
    }

    #[test]
    fn the_caller_that_a_store_names_is_the_caller() {
        let (load, store) = (load(), certificate("store-1", "muster:stores"));
        let layer = Forwarded::new(Arc::clone(&load));
        let node = certificate("node:a", "muster:nodes");
        for own in [Some(node.as_slice()), None] {
            let mut of = peer(&load, own);
            of.address = "[::1]:77".parse().ok();
            // A client with TLS and without a certificate.
            of.certificates.get_or_insert_default();
            let headers = forwarded(of);
            let found = arrive(&layer, peer(&load, Some(&store)), headers);
            assert_eq!(found.get::<Refused>(), None);
            assert_eq!(found.get::<ForwardedBy>().unwrap().name(), "store-1");
            assert_eq!(peer_address(&found), "[::1]:77".parse().ok());
            match own {
                Some(own) => {
                    assert_eq!((caller(&found), &*requester(&found)), (Caller::Node("a".into()), "node:a"));
                    assert_eq!(certificates(&found).unwrap().first().unwrap().as_ref(), own);
                }
                None => assert!(matches!(caller(&found), Caller::Unknown(_)), "not an administrator"),
            }
        }
    }

    #[test]
    fn nobody_but_a_store_may_name_another_caller() {
        let load = load();
        let layer = Forwarded::new(Arc::clone(&load));
        let admin = certificate("eva", "muster:admins");
        for (name, organization) in [
            ("node:a", "muster:nodes"),
            ("c1", "muster:controllers"),
            ("eva", "muster:admins"),
            ("up", "muster:up"),
            ("store-1", "example"),
        ] {
            let own = certificate(name, organization);
            let found = arrive(&layer, peer(&load, Some(&own)), forwarded(peer(&load, Some(&admin))));
            let refused = found.get::<Refused>().expect("it is refused").status();
            assert_eq!(refused.code(), tonic::Code::PermissionDenied);
            assert!(refused.message().contains("muster-forwarded-for: only a store"), "{refused}");
            assert_eq!(caller(&found), Identity::of(Some(&own)).caller, "it stays who it is");
        }
    }

    #[test]
    fn without_tls_a_certificate_proves_nothing_and_is_refused() {
        let load = load();
        let layer = Forwarded::new(Arc::clone(&load));
        let found = arrive(&layer, peer(&load, None), forwarded(peer(&load, None)));
        assert_eq!((found.get::<Refused>(), caller(&found)), (None, Caller::Admin));
        assert_eq!(found.get::<ForwardedBy>().unwrap().name(), "10.0.0.1:1");
        let node = certificate("node:a", "muster:nodes");
        let found = arrive(&layer, peer(&load, None), forwarded(peer(&load, Some(&node))));
        assert!(found.get::<Refused>().is_some());
    }

    #[test]
    fn headers_that_make_no_sense_are_refused_by_name() {
        let (load, store) = (load(), certificate("store-1", "muster:stores"));
        let layer = Forwarded::new(Arc::clone(&load));
        for (name, value, expected) in [
            (FORWARDED_FOR, "somewhere", "muster-forwarded-for must be an address"),
            (FORWARDED_CERTIFICATE, "AAAA", "muster-forwarded-certificate-bin needs muster-forwarded-for"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            let found = arrive(&layer, peer(&load, Some(&store)), headers);
            let refused = found.get::<Refused>().expect("it is refused").status();
            assert!(refused.message().contains(expected), "{refused}");
        }
        // Bytes that are no certificate give no rights.
        let mut headers = forwarded(peer(&load, None));
        headers.insert(FORWARDED_CERTIFICATE, HeaderValue::from_static("AAAA"));
        let found = arrive(&layer, peer(&load, Some(&store)), headers);
        assert!(matches!(caller(&found), Caller::Unknown(_)));
    }
}
