//! `muster create`: creates the records of manifests.

use muster_store_client::Stored;

use crate::connection::{OrFailure, Store};
use crate::dry_run::DryRunFlags;
use crate::failure::{Exit, Failure};
use crate::manifest_files::{ManifestFlags, WriteManifest, write_manifests};
use crate::records::kind_and_name;
use muster_manifest::Manifest;

/// Creates records from manifests; it is an error if a record exists already
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    manifests: ManifestFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    write_manifests::<Create>(&flags.manifests).await
}

struct Create;

impl WriteManifest for Create {
    async fn write<R: Stored>(
        store: &Store,
        manifest: &Manifest,
        dry_run: DryRunFlags,
    ) -> Result<String, Failure> {
        let key = manifest.key()?;
        let (record, name) = (manifest.to_record::<R>()?, kind_and_name(R::KIND, &key));
        if !dry_run.is_dry() {
            store.client.create(record).await.or_failure(&store.peer)?;
        } else if store.client.get::<R>(&key).await.is_ok() {
            let failure = Failure::new(Exit::Conflict, format!("{name} exists already"));
            return Err(failure.hint("`muster apply` updates existing records"));
        }
        Ok(format!("{name} created"))
    }
}
