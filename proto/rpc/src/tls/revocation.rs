//! Certificates that are not accepted any more, although they have not expired.
//!
//! A server asks in each handshake, and then never again: it registers the certificate of each open connection, and a
//! new list looks up the connections that it names. So a call costs nothing, and a revocation costs what it revokes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use muster_proto::revocation::{Revocation, Revoked};
use tokio_util::sync::CancellationToken;

use super::certificate::{CertificateInfo, normal_serial};

/// Certificates to refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RevokedCertificates {
    /// The certificate with this serial number, in hexadecimal.
    Serial(String),
    /// All certificates with this common name, such as `node:n7`, that are valid from this time or from before it. One
    /// that is issued later must begin later, too.
    Subject { common_name: String, issued_until: Timestamp },
}

impl RevokedCertificates {
    /// The certificates of a record. A node's certificate may have one of two names, as Kubernetes' tools issue the
    /// second.
    pub fn of(revocation: &Revocation) -> Vec<RevokedCertificates> {
        let issued_until = revocation.status.revoke_time.unwrap_or(Timestamp::MAX);
        match &revocation.spec.revoked {
            Revoked::Serial(serial) => vec![RevokedCertificates::Serial(serial.to_string())],
            Revoked::Node(node) => [format!("node:{node}"), format!("system:node:{node}")]
                .map(|common_name| RevokedCertificates::Subject { common_name, issued_until })
                .into(),
        }
    }
}

/// The entries, by what is looked up.
#[derive(Debug, Default)]
struct RevocationList {
    serials: HashSet<String>,
    subjects: HashMap<String, Timestamp>,
}

impl RevocationList {
    fn new(entries: Vec<RevokedCertificates>) -> RevocationList {
        let mut list = RevocationList::default();
        for entry in entries {
            match entry {
                RevokedCertificates::Serial(serial) => {
                    list.serials.insert(normal_serial(&serial));
                }
                RevokedCertificates::Subject { common_name, issued_until } => {
                    let until = list.subjects.entry(common_name).or_insert(issued_until);
                    *until = issued_until.max(*until);
                }
            }
        }
        list
    }

    fn revokes(&self, certificate: &CertificateInfo) -> bool {
        let until = self.subjects.get(&certificate.common_name);
        self.serials.contains(&certificate.serial)
            || until.is_some_and(|until| certificate.not_before <= *until)
    }
}

/// What open connections are found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Serial(String),
    Subject(String),
}

impl Key {
    fn of(certificate: &CertificateInfo) -> [Key; 2] {
        [Key::Serial(certificate.serial.clone()), Key::Subject(certificate.common_name.clone())]
    }
}

#[derive(Debug, Default)]
struct State {
    list: RevocationList,
    open: HashMap<Key, HashMap<u64, (Timestamp, CancellationToken)>>,
    next_id: u64,
}

impl State {
    /// Ends the connections under this key whose certificates begin at or before this time.
    fn end(&self, key: &Key, until: Timestamp) {
        let connections = self.open.get(key).into_iter().flat_map(HashMap::values);
        for (_, token) in connections.filter(|(not_before, _)| *not_before <= until) {
            token.cancel();
        }
    }
}

/// The certificates that servers refuse now. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct Revocations {
    state: Arc<Mutex<State>>,
}

impl Revocations {
    /// Replaces the list. Handshakes that end from now on follow it, and open connections of certificates in it end.
    pub fn set(&self, entries: Vec<RevokedCertificates>) {
        let mut state = self.state();
        state.list = RevocationList::new(entries);
        for serial in &state.list.serials {
            state.end(&Key::Serial(serial.clone()), Timestamp::MAX);
        }
        for (common_name, until) in &state.list.subjects {
            state.end(&Key::Subject(common_name.clone()), *until);
        }
    }

    pub(crate) fn is_revoked(&self, certificate: &CertificateInfo) -> bool {
        self.state().list.revokes(certificate)
    }

    /// Registers an open connection with this certificate; `None` if the certificate is revoked.
    pub(crate) fn open(&self, certificate: &CertificateInfo) -> Option<OpenConnection> {
        let mut state = self.state();
        if state.list.revokes(certificate) {
            return None;
        }
        let (id, revoked) = (state.next_id, CancellationToken::new());
        state.next_id += 1;
        let keys = Key::of(certificate);
        for key in keys.clone() {
            let connections = state.open.entry(key).or_default();
            connections.insert(id, (certificate.not_before, revoked.clone()));
        }
        drop(state);
        Some(OpenConnection { revocations: self.clone(), id, keys, revoked })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open connection, registered until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    revocations: Revocations,
    id: u64,
    keys: [Key; 2],
    /// Cancelled when the connection's certificate is revoked.
    pub(crate) revoked: CancellationToken,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut state = self.revocations.state();
        for key in &self.keys {
            if let Some(connections) = state.open.get_mut(key) {
                connections.remove(&self.id);
                if connections.is_empty() {
                    state.open.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hour: u8) -> Timestamp {
        format!("2026-01-01T{hour:02}:00:00Z").parse().unwrap()
    }

    fn certificate(common_name: &str, serial: &str, hour: u8) -> CertificateInfo {
        CertificateInfo {
            common_name: common_name.into(),
            serial: serial.into(),
            not_before: at(hour),
            not_after: at(23),
        }
    }

    fn subject(common_name: &str, hour: u8) -> RevokedCertificates {
        RevokedCertificates::Subject { common_name: common_name.into(), issued_until: at(hour) }
    }

    fn serial(number: &str) -> RevokedCertificates {
        RevokedCertificates::Serial(number.into())
    }

    #[test]
    fn a_certificate_is_revoked_by_its_number_or_by_its_name_and_age() {
        let n7 = certificate("node:n7", "a1", 12);
        for (entries, expected) in [
            (vec![], false),
            (vec![serial("a1")], true),
            (vec![serial("00:A1")], true),
            (vec![serial("a10")], false),
            (vec![subject("node:n7", 12)], true),
            (vec![subject("node:n7", 13)], true),
            (vec![subject("node:n7", 11)], false),
            (vec![subject("node:n77", 13)], false),
            (vec![subject("node:n8", 13), serial("b2")], false),
            (vec![subject("node:n7", 13), subject("node:n7", 11)], true),
            (vec![subject("node:n7", 11), subject("node:n7", 13)], true),
        ] {
            let described = format!("{entries:?}");
            assert_eq!(RevocationList::new(entries).revokes(&n7), expected, "{described}");
        }
    }

    #[test]
    fn a_new_list_ends_the_open_connections_that_it_names_and_no_others() {
        let revocations = Revocations::default();
        let open = |name, serial, hour| revocations.open(&certificate(name, serial, hour)).unwrap();
        let [old, young, other, single] =
            [open("node:a", "1", 10), open("node:a", "2", 14), open("node:b", "3", 10), open("eva", "4", 10)];
        let ended = || [&old, &young, &other, &single].map(|connection| connection.revoked.is_cancelled());

        revocations.set(vec![subject("node:a", 12)]);
        assert_eq!(ended(), [true, false, false, false]);
        revocations.set(vec![serial("4")]);
        assert_eq!(ended(), [true, false, false, true]);

        assert!(revocations.open(&certificate("eva", "4", 10)).is_none(), "it cannot come back");
        assert!(revocations.open(&certificate("eva", "5", 10)).is_some(), "a new certificate can");
        assert!(revocations.open(&certificate("node:a", "1", 10)).is_some(), "the list was replaced");
        drop((old, young, other, single));
        assert!(revocations.state().open.is_empty(), "nothing is kept of closed connections");
    }
}
