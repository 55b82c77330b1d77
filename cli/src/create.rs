//! `muster create`: creates the records of manifests.

use muster_store_client::Stored;

use crate::connection::{OrFailure, Store};
use crate::failure::Failure;
use crate::manifest::Manifest;
use crate::manifest_files::{ManifestFlags, WriteManifest, write_manifests};
use crate::records::kind_and_name;

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
    async fn write<R: Stored>(store: &Store, manifest: &Manifest) -> Result<String, Failure> {
        let key = manifest.key()?;
        store.client.create::<R>(manifest.to_record()?).await.or_failure(&store.peer)?;
        Ok(format!("{} created\n", kind_and_name(R::KIND, &key)))
    }
}
