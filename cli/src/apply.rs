//! `muster apply`: makes records what manifests say.

use muster_store_client::{ClientError, Stored};

use crate::connection::{ConnectionFlags, NamespaceFlags, Store};
use crate::failure::{Exit, Failure, Failures};
use crate::kind::for_stored;
use crate::manifest::Manifest;
use crate::manifest_files::{FileFlags, manifests};
use crate::records::{ATTEMPTS, events_are_recorded, spoken, version};
use crate::terminal::Terminal;

/// Creates records from manifests, or changes those that exist
///
/// What a manifest names is set, null removes, and what it does not mention stays as it is; lists are set as
/// a whole. A metadata.resourceVersion in the manifest must still be current, unless nothing would change.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    files: FileFlags,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.settle()?;
    let manifests = manifests(&flags.files.filename, &connection.namespaces(&flags.namespace))?;
    let store = connection.store()?;
    let mut failures = Failures::default();
    for manifest in &manifests {
        let applied = for_stored!(manifest.kind, apply(&store, manifest), else Err(events_are_recorded()));
        if let Some(line) = failures.keep(applied.map_err(|failure| failure.about(&manifest.place)))? {
            Terminal::stdout().say(&line)?;
        }
    }
    failures.finish()
}

async fn apply<R: Stored>(store: &Store, manifest: &Manifest) -> Result<String, Failure> {
    let key = manifest.key()?;
    let what = spoken(R::KIND, &key);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let again = attempts < ATTEMPTS;
        let current = match store.client.get::<R>(&key).await {
            Ok(current) => current,
            Err(ClientError::NotFound(_)) => match store.client.create::<R>(manifest.record()?).await {
                Ok(_) => return Ok(format!("{what} created\n")),
                // Somebody was quicker.
                Err(ClientError::AlreadyExists(_)) if again => continue,
                Err(error) => return Err(store.peer.failure(error)),
            },
            Err(error) => return Err(store.peer.failure(error)),
        };
        match store.client.update(manifest.over(&current)?).await {
            Ok(stored) if version(&stored) == version(&current) => return Ok(format!("{what} unchanged\n")),
            Ok(_) => return Ok(format!("{what} configured\n")),
            // Changed since we looked; that matters only to whoever named a version.
            Err(ClientError::Conflict(_)) if again && !manifest.has_version() => {}
            Err(ClientError::NotFound(_)) if again => {}
            Err(ClientError::Conflict(message)) if manifest.has_version() => {
                return Err(Failure::new(Exit::Conflict, message).hint(
                    "it changed since the manifest was printed: print it again, or take metadata.resourceVersion and \
                     metadata.uid out",
                ));
            }
            Err(error) => return Err(store.peer.failure(error)),
        }
    }
}
