//! Reading and changing single records, whatever their kind.

use std::future::Future;

use muster_proto::budget::DisruptionBudget;
use muster_proto::event::Event;
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::{Kind, Record};
use muster_store_client::{ClientError, ListOptions, Stored};

use crate::connection::{At, Namespaces, Store};
use crate::failure::{Exit, Failure};
use crate::kind::singular;
use crate::print::rows::Tabular;

/// How often a change is tried again on what somebody else made of the record meanwhile.
pub(crate) const ATTEMPTS: usize = 5;

/// A kind whose records can be read by name.
pub(crate) trait Readable: Tabular {
    fn read(store: &Store, key: &Key) -> impl Future<Output = Result<Self, ClientError>>;
}

macro_rules! readable {
    ($($kind:ty),*) => {
        $(impl Readable for $kind {
            async fn read(store: &Store, key: &Key) -> Result<Self, ClientError> {
                store.client.get(key).await
            }
        })*
    };
}

readable!(Node, Lease, Pod, DisruptionBudget);

impl Readable for Event {
    /// The store has no call for a single event: nobody knows their names by heart.
    async fn read(store: &Store, key: &Key) -> Result<Self, ClientError> {
        let options = ListOptions {
            namespace: key.namespace.clone(),
            field_selector: format!("metadata.name={}", key.name),
            ..ListOptions::default()
        };
        let found = store.client.list(options).await?.records.into_iter().next();
        found.ok_or_else(|| ClientError::NotFound(format!("event {key} does not exist")))
    }
}

/// The key of the record that a name on the command line means.
pub(crate) fn key(kind: Kind, name: &str, namespaces: &Namespaces) -> Result<Key, Failure> {
    let parsed = name.parse().map_err(|error| {
        Failure::usage(format!("`{name}` is not the name of a {}: it {error}", singular(kind)))
    })?;
    let namespace = kind.is_namespaced().then(|| namespaces.of(kind));
    Ok(Key { namespace, name: parsed })
}

/// A record as messages speak of it: `node/a`.
pub(crate) fn spoken(kind: Kind, key: &Key) -> String {
    format!("{}/{}", singular(kind), key.name)
}

/// Why nothing is done about an event.
pub(crate) fn events_are_recorded() -> Failure {
    Failure::new(Exit::Refused, format!("an {} is what happened: it can be read only", Kind::Event))
        .hint("leave events out of the manifests")
}

/// What a change came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Yes,
    No,
}

/// Changes a record as it is now; somebody who changed it meanwhile is not overwritten.
pub(crate) async fn change<R: Stored>(
    store: &Store,
    key: &Key,
    change: impl Fn(&mut R) -> Result<(), Failure>,
) -> Result<Changed, Failure> {
    let mut attempts = 0;
    loop {
        let current: R = store.client.get(key).await.at(&store.peer)?;
        let mut wanted = current.clone();
        change(&mut wanted)?;
        match store.client.update(wanted).await {
            Ok(stored) if version(&stored) == version(&current) => return Ok(Changed::No),
            Ok(_) => return Ok(Changed::Yes),
            Err(ClientError::Conflict(_)) if attempts + 1 < ATTEMPTS => attempts += 1,
            Err(error) => return Err(store.peer.failure(error)),
        }
    }
}

pub(crate) fn version<R: Record>(record: &R) -> u64 {
    record.meta().resource_version
}

#[cfg(test)]
mod tests;
