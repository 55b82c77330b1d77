//! `muster create`: records from manifests that do not exist yet.

use muster_store_client::Stored;

use crate::connection::{At, ConnectionFlags, NamespaceFlags, Store};
use crate::failure::{Failure, Failures};
use crate::kind::for_stored;
use crate::manifest::Manifest;
use crate::manifest_files::{FileFlags, manifests};
use crate::records::{events_are_recorded, spoken};
use crate::terminal::Terminal;

/// Creates records from manifests; a name that is taken is an error
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
        let created = for_stored!(manifest.kind, create(&store, manifest), else Err(events_are_recorded()));
        if let Some(line) = failures.keep(created.map_err(|failure| failure.about(&manifest.place)))? {
            Terminal::stdout().say(&line)?;
        }
    }
    failures.finish()
}

async fn create<R: Stored>(store: &Store, manifest: &Manifest) -> Result<String, Failure> {
    let key = manifest.key()?;
    store.client.create::<R>(manifest.record()?).await.at(&store.peer)?;
    Ok(format!("{} created\n", spoken(R::KIND, &key)))
}
