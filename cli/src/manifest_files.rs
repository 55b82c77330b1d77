//! Commands that read manifests from files: their flags, and the loop over the manifests.

use std::path::PathBuf;

use muster_proto::pod::{Pod, effects};
use muster_proto::record::Kind;
use muster_store_client::Stored;

use crate::connection::{ConnectionFlags, NamespaceFlags, Namespaces, Store};
use crate::dry_run::DryRunFlags;
use crate::failure::{Exit, Failure, Failures};
use crate::kind::for_stored;
use crate::records::not_writable;
use crate::terminal::{Terminal, print_stderr};
use muster_manifest::{Manifest, ManifestError, Problem, read_file};

/// The flags of a command that writes the records of manifests.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ManifestFlags {
    /// File with manifests in YAML or JSON, or - for standard input; can be repeated
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<PathBuf>,

    #[command(flatten)]
    dry_run: DryRunFlags,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// What a command does with one manifest.
pub(crate) trait WriteManifest {
    /// Writes the record, unless it is a dry run; returns the line to print, without its end.
    async fn write<R: Stored>(
        store: &Store,
        manifest: &Manifest,
        dry_run: DryRunFlags,
    ) -> Result<String, Failure>;
}

/// Writes the record of every manifest. A manifest that fails does not stop the ones after it.
pub(crate) async fn write_manifests<W: WriteManifest>(flags: &ManifestFlags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let manifests = read_manifests(&flags.filename, &connection.namespaces(&flags.namespace))?;
    let store = connection.store()?;
    let mut failures = Failures::default();
    for manifest in &manifests {
        let written = for_stored!(manifest.kind, W::write(&store, manifest, flags.dry_run), else Err(not_writable(manifest.kind)));
        if let Some(line) = failures.keep(written.map_err(|failure| failure.about(&manifest.location)))? {
            Terminal::stdout().print(&format!("{line}{}\n", flags.dry_run.suffix()))?;
            if manifest.kind == Kind::Pod
                && let Ok(pod) = manifest.to_record::<Pod>()
            {
                effects::warnings(&pod)
                    .iter()
                    .for_each(|warning| print_stderr(format_args!("warning: {warning}")));
            }
        }
    }
    failures.finish()
}

/// The manifests of all files, in order. All files are read before the caller acts on any manifest.
pub(crate) fn read_manifests(files: &[PathBuf], namespaces: &Namespaces) -> Result<Vec<Manifest>, Failure> {
    let mut manifests = Vec::new();
    for file in files {
        manifests.extend(read_file(file)?);
    }
    for manifest in &mut manifests {
        manifest.set_namespace(namespaces.requested.as_ref(), &namespaces.of(manifest.kind))?;
    }
    Ok(manifests)
}

impl From<ManifestError> for Failure {
    fn from(error: ManifestError) -> Failure {
        let exit = match error.problem {
            // The manifest is readable but breaks a rule, so the store would refuse it.
            Problem::Invalid(_) | Problem::InvalidWithCurrent(_) => Exit::Refused,
            _ => Exit::Usage,
        };
        let failure = Failure::new(exit, &error);
        match error.problem.hint() {
            Some(hint) => failure.hint(hint),
            None => failure.hint("correct the manifest and try again"),
        }
    }
}

#[cfg(test)]
mod tests;
