//! What is held now: by the whole server, by each caller, and by each connection.
//!
//! A call's permits count on its [`Connection`], which knows its caller: the certificate is read once for a connection,
//! and a call costs a few additions. Counts are read before they are raised, so calls that race may exceed a limit by
//! as many as there are processors. In return a refused call changes no count, and cannot make others be refused.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::CertificateDer;

use super::{Class, Exceeded, Group, Held, Resource, Totals};
use crate::identity::Identity;

/// The connection of a call, in the call's extensions.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: Option<SocketAddr>,
    pub(crate) connection: Arc<Connection>,
    /// The caller's own certificate first; `None` without TLS.
    pub(crate) certificates: Option<Arc<Vec<CertificateDer<'static>>>>,
}

#[cfg(test)]
impl Peer {
    /// A connection without TLS from this address to a server of its own.
    pub(crate) fn at(address: Option<SocketAddr>) -> Peer {
        let server = Server::new(Totals { calls: 1, streams: 1, bytes: 1 });
        Peer { address, connection: server.connection(Identity::without_tls()), certificates: None }
    }
}

/// Counts by group and resource.
#[derive(Debug, Default)]
struct Load([[AtomicUsize; 3]; 4]);

impl Load {
    fn count(&self, group: Group, resource: Resource) -> &AtomicUsize {
        &self.0[group as usize][resource as usize]
    }

    fn held(&self, group: Group, resource: Resource) -> usize {
        self.count(group, resource).load(Ordering::Relaxed)
    }
}

/// The counts of one server and its callers.
#[derive(Debug)]
pub(crate) struct Server {
    totals: Totals,
    load: Load,
    /// Callers that have a connection, by their identity.
    callers: Mutex<HashMap<String, Arc<Load>>>,
}

impl Server {
    pub(crate) fn new(totals: Totals) -> Arc<Server> {
        Arc::new(Server { totals, load: Load::default(), callers: Mutex::default() })
    }

    /// A new connection of this caller.
    pub(crate) fn connection(self: &Arc<Server>, identity: Identity) -> Arc<Connection> {
        let identified = identity.name.as_ref().map(|name| {
            let key = format!("{} {name}", identity.caller);
            let load = Arc::clone(self.callers().entry(key.clone()).or_default());
            (key, load)
        });
        Arc::new(Connection { server: Arc::clone(self), load: Load::default(), identity, identified })
    }

    /// Probes and callers without a role have totals of their own; parts and others share one.
    fn held(&self, group: Group, resource: Resource) -> usize {
        match group {
            Group::Probes | Group::Anonymous => self.load.held(group, resource),
            Group::Parts | Group::Others => {
                self.load.held(Group::Parts, resource) + self.load.held(Group::Others, resource)
            }
        }
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<String, Arc<Load>>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many calls are in flight now.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.held(Group::Others, Resource::Calls)
    }
}

/// One connection and what its calls hold.
#[derive(Debug)]
pub(crate) struct Connection {
    server: Arc<Server>,
    load: Load,
    identity: Identity,
    /// The key and counts of the certificate's identity; `None` without TLS.
    identified: Option<(String, Arc<Load>)>,
}

impl Connection {
    /// The caller at the other end.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    fn caller_load(&self) -> Option<&Load> {
        self.identified.as_ref().map(|(_, load)| &**load)
    }

    /// Takes so much for a call of this class, until the permit is dropped.
    pub(crate) fn take(
        self: &Arc<Connection>,
        class: Class,
        resource: Resource,
        amount: usize,
    ) -> Result<Permit, Exceeded> {
        let (group, caller) = (class.group(), self.caller_load());
        let on_connection = self.load.held(group, resource);
        let held = Held {
            server: self.server.held(group, resource),
            caller: caller.map_or(on_connection, |caller| caller.held(group, resource)),
            connection: on_connection,
        };
        let budget = self.server.totals.budget(class, resource, caller.is_some());
        budget.judge(held, amount).map_err(|(scope, limit)| Exceeded { resource, scope, limit })?;
        let permit = Permit { connection: Arc::clone(self), group, resource, amount };
        for count in permit.counts() {
            count.fetch_add(amount, Ordering::Relaxed);
        }
        Ok(permit)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some((key, load)) = &self.identified else { return };
        let mut callers = self.server.callers();
        // The map's and this one: no other connection of the caller is left, and none can begin while the map is locked.
        if Arc::strong_count(load) == 2 {
            callers.remove(key);
        }
    }
}

/// Something that a call holds until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    connection: Arc<Connection>,
    group: Group,
    resource: Resource,
    amount: usize,
}

impl Permit {
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    fn counts(&self) -> impl Iterator<Item = &AtomicUsize> {
        let Permit { connection, group, resource, .. } = self;
        let caller = connection.caller_load();
        [Some(&connection.load), caller, Some(&connection.server.load)]
            .into_iter()
            .flatten()
            .map(|load| load.count(*group, *resource))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        for count in self.counts() {
            count.fetch_sub(self.amount, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTALS: Totals = Totals { calls: 64, streams: 64, bytes: 64 };

    fn plain(server: &Arc<Server>) -> Arc<Connection> {
        server.connection(Identity::without_tls())
    }

    #[test]
    fn a_dropped_permit_gives_back_what_it_took() {
        let server = Server::new(TOTALS);
        let connection = plain(&server);
        let permits: Vec<_> =
            (0..8).map(|_| connection.take(Class::Other, Resource::Calls, 1).unwrap()).collect();
        assert_eq!(server.in_flight(), 8);
        let refused = connection.take(Class::Other, Resource::Calls, 1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "too many calls in flight on this connection: limit 8 (from --max-in-flight)"
        );
        assert_eq!(server.in_flight(), 8, "a refused call is not counted");
        connection.take(Class::FleetHeartbeat, Resource::Calls, 1).unwrap();
        plain(&server).take(Class::Other, Resource::Calls, 1).unwrap();
        drop(permits);
        assert_eq!(server.in_flight(), 0);
        connection.take(Class::Other, Resource::Calls, 1).unwrap();
    }

    #[test]
    fn the_reserve_is_left_to_the_parts() {
        let server = Server::new(TOTALS);
        let others: Vec<_> = std::iter::from_fn(|| {
            let permit = plain(&server).take(Class::Other, Resource::Calls, 1);
            permit.ok()
        })
        .collect();
        assert_eq!(others.len(), 48, "three quarters");
        let parts: Vec<_> = std::iter::from_fn(|| {
            let permit = plain(&server).take(Class::NodeHeartbeat, Resource::Calls, 1);
            permit.ok()
        })
        .collect();
        assert_eq!(parts.len(), 16);
        plain(&server).take(Class::Probe, Resource::Calls, 1).unwrap();
    }
}
