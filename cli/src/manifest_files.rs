//! The files of manifests that a command is given.

use std::path::PathBuf;

use crate::connection::Namespaces;
use crate::failure::{Exit, Failure};
use crate::manifest::{Manifest, ManifestError, Problem, read_file};

/// Where manifests are.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FileFlags {
    /// File of manifests in YAML or JSON, - for standard input; may be given again
    #[arg(short, long, value_name = "FILE", required = true)]
    pub(crate) filename: Vec<PathBuf>,
}

/// The manifests of all files, in order. All are read before anything is done.
pub(crate) fn manifests(files: &[PathBuf], namespaces: &Namespaces) -> Result<Vec<Manifest>, Failure> {
    let mut manifests = Vec::new();
    for file in files {
        manifests.extend(read_file(file)?);
    }
    for manifest in &mut manifests {
        manifest.settle(namespaces)?;
    }
    Ok(manifests)
}

impl From<ManifestError> for Failure {
    fn from(error: ManifestError) -> Failure {
        let exit = match error.problem {
            // It was understood, and breaks a rule that the store would refuse it by.
            Problem::Invalid(_) | Problem::Together(_) => Exit::Refused,
            _ => Exit::Usage,
        };
        let failure = Failure::new(exit, &error);
        match error.problem.hint() {
            Some(hint) => failure.hint(hint),
            None => failure.hint("correct the manifest, and try again"),
        }
    }
}
