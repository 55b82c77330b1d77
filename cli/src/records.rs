//! Reads and changes single records of any kind.

use std::future::Future;

use muster_proto::budget::DisruptionBudget;
use muster_proto::certificate_request::CertificateRequest;
use muster_proto::event::Event;
use muster_proto::join_token::JoinToken;
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::priority_class::PriorityClass;
use muster_proto::record::{Kind, Record};
use muster_proto::revocation::Revocation;
use muster_store_client::{ClientError, ListOptions, Stored};

use crate::connection::{Namespaces, OrFailure, Store};
use crate::dry_run::DryRunFlags;
use crate::failure::{Exit, Failure, Failures};
use crate::kind::{plural, singular};
use crate::print::rows::Tabular;
use crate::terminal::Terminal;

/// How often a change is tried in all when other clients change the same record at the same time.
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

readable!(Node, Lease, Pod, DisruptionBudget, JoinToken, CertificateRequest, Revocation, PriorityClass);

impl Readable for Event {
    /// The store has no call to get a single event, so this lists by name.
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

/// The key of a record named on the command line.
pub(crate) fn key(kind: Kind, name: &str, namespaces: &Namespaces) -> Result<Key, Failure> {
    let parsed = name.parse().map_err(|error| {
        Failure::usage(format!("`{name}` is not a valid name for a {}: it {error}", singular(kind)))
    })?;
    let namespace = kind.is_namespaced().then(|| namespaces.of(kind));
    Ok(Key { namespace, name: parsed })
}

/// The kind and name of a record as messages show it: `node/a`.
pub(crate) fn kind_and_name(kind: Kind, key: &Key) -> String {
    format!("{}/{}", singular(kind), key.name)
}

/// The failure of a command that would write a record of a kind that it cannot write.
pub(crate) fn not_writable(kind: Kind) -> Failure {
    let hint = match kind {
        Kind::JoinToken => "`muster token create` creates a token",
        Kind::CertificateRequest => {
            "agents create them; `muster approve` and `muster deny` decide about them"
        }
        Kind::Revocation => "`muster revoke` revokes certificates",
        _ => "remove them from the manifests",
    };
    let message = match kind {
        Kind::Event => "events are read-only".to_owned(),
        kind => format!("{} cannot be written by this command", plural(kind)),
    };
    Failure::new(Exit::Refused, message).hint(hint)
}

/// Whether a change changed the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changed {
    Yes,
    No,
}

/// Changes the records one after the other and prints a line for each, such as `node/a labeled`. A record that
/// cannot be changed does not stop the ones after it.
pub(crate) async fn change_each<R: Stored>(
    store: &Store,
    keys: &[Key],
    done: &str,
    dry_run: DryRunFlags,
    edit: impl Fn(&mut R) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut failures = Failures::default();
    for key in keys {
        let name = kind_and_name(R::KIND, key);
        let edit = |record: &mut R| edit(record).map_err(|failure| failure.about(&name));
        let line = change(store, key, dry_run, edit).await.map(|changed| match changed {
            Changed::Yes => format!("{name} {done}{}\n", dry_run.suffix()),
            Changed::No => format!("{name} not {done}: nothing to change\n"),
        });
        if let Some(line) = failures.keep(line)? {
            Terminal::stdout().print(&line)?;
        }
    }
    failures.finish()
}

/// Reads a record, edits it and writes it back. After a conflict it starts again from the current record, so a
/// concurrent change by another client is kept.
async fn change<R: Stored>(
    store: &Store,
    key: &Key,
    dry_run: DryRunFlags,
    edit: impl Fn(&mut R) -> Result<(), Failure>,
) -> Result<Changed, Failure> {
    let mut attempts = 0;
    loop {
        let current: R = store.client.get(key).await.or_failure(&store.peer)?;
        let mut wanted = current.clone();
        edit(&mut wanted)?;
        if dry_run.is_dry() {
            return Ok(if wanted == current { Changed::No } else { Changed::Yes });
        }
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
