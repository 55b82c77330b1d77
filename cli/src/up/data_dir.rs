//! Where Muster keeps what it must remember: a directory of the user's, or a temporary one.

use std::fmt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::Failure;
use crate::xdg;

/// Not a variable of the flag: that would count as if it were said with each command, and contradict --ephemeral.
const VARIABLE: &str = "MUSTER_UP_DATA_DIR";

/// The data directory, with a room for each part that keeps something; a temporary one goes when this goes.
#[derive(Debug)]
pub(crate) enum Place {
    Kept(PathBuf),
    Temporary(TempDir),
}

impl Place {
    /// A temporary directory, the one asked for, the one that the variable names, or the user's own.
    pub(crate) fn choose(ephemeral: bool, data_dir: Option<&Path>) -> Result<Self, Failure> {
        if ephemeral {
            let directory = tempfile::Builder::new().prefix("muster-up-").tempdir();
            return directory.map(Place::Temporary).map_err(Failure::NoTemporary);
        }
        let usual = || std::env::var_os(VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from);
        let kept = data_dir.map(Path::to_owned).or_else(usual).or_else(xdg::state);
        kept.map(Place::Kept).ok_or(Failure::NoHome)
    }

    /// The store's records.
    pub(super) fn store(&self) -> PathBuf {
        self.directory().join("store")
    }

    /// Who this machine's agent is, and what it runs.
    pub(super) fn agent(&self) -> PathBuf {
        self.directory().join("agent")
    }

    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, Place::Temporary(_))
    }

    fn directory(&self) -> &Path {
        match self {
            Place::Kept(directory) => directory,
            Place::Temporary(directory) => directory.path(),
        }
    }

    /// What becomes of the records after the end.
    pub(super) fn farewell(&self) -> String {
        match self {
            Place::Kept(directory) => format!("the records are in {}", directory.display()),
            Place::Temporary(_) => "the records are gone".to_owned(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.directory().display();
        match self {
            Place::Kept(_) => write!(f, "{directory}"),
            Place::Temporary(_) => write!(f, "{directory}, removed at the end"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_directory_goes_with_its_place() {
        let place = Place::choose(true, None).unwrap();
        let directory = place.directory().to_owned();
        assert!(directory.is_dir() && place.store() != place.agent());
        drop(place);
        assert!(!directory.exists());
    }
}
