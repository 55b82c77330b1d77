//! `muster apply`: creates the records of manifests, or merges the manifests into the records that exist.

use muster_store_client::{ClientError, Stored};

use crate::connection::Store;
use crate::dry_run::DryRunFlags;
use crate::failure::{Exit, Failure};
use crate::manifest_files::{ManifestFlags, WriteManifest, write_manifests};
use crate::records::{ATTEMPTS, kind_and_name, version};
use muster_manifest::Manifest;

/// Creates records from manifests, or updates the records that exist
///
/// Fields that a manifest names are set, null removes a field, and all other fields keep their values. A list is
/// replaced as a whole. If the manifest has a metadata.resourceVersion, it must be the record's current one, unless
/// the manifest would change nothing.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    manifests: ManifestFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    write_manifests::<Apply>(&flags.manifests).await
}

struct Apply;

impl WriteManifest for Apply {
    async fn write<R: Stored>(
        store: &Store,
        manifest: &Manifest,
        dry_run: DryRunFlags,
    ) -> Result<String, Failure> {
        let key = manifest.key()?;
        let name = kind_and_name(R::KIND, &key);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let may_retry = attempts < ATTEMPTS;
            let current = match store.client.get::<R>(&key).await {
                Ok(current) => current,
                Err(ClientError::NotFound(_)) if dry_run.is_dry() => {
                    manifest.to_record::<R>()?;
                    return Ok(format!("{name} created"));
                }
                Err(ClientError::NotFound(_)) => {
                    match store.client.create::<R>(manifest.to_record()?).await {
                        Ok(_) => return Ok(format!("{name} created")),
                        // Another client created the record after our read.
                        Err(ClientError::AlreadyExists(_)) if may_retry => continue,
                        Err(error) => return Err(store.peer.failure(error)),
                    }
                }
                Err(error) => return Err(store.peer.failure(error)),
            };
            let wanted: R = manifest.merged_into(&current)?;
            if dry_run.is_dry() {
                let outcome = if wanted == current { "unchanged" } else { "configured" };
                return Ok(format!("{name} {outcome}"));
            }
            match store.client.update(wanted).await {
                Ok(stored) if version(&stored) == version(&current) => {
                    return Ok(format!("{name} unchanged"));
                }
                Ok(_) => return Ok(format!("{name} configured")),
                // Another client changed the record after our read. A manifest without a version can be merged again.
                Err(ClientError::Conflict(_)) if may_retry && !manifest.has_version() => {}
                Err(ClientError::NotFound(_)) if may_retry => {}
                Err(ClientError::Conflict(message)) if manifest.has_version() => {
                    return Err(Failure::new(Exit::Conflict, message).hint(
                        "the record changed after the manifest was printed: print it again, or remove \
                         metadata.resourceVersion and metadata.uid from the manifest",
                    ));
                }
                Err(error) => return Err(store.peer.failure(error)),
            }
        }
    }
}
