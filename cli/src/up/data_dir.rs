//! The data directory of `muster up`: a permanent one of the user, or a temporary one.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::UpError;
use crate::xdg;

/// Not the `env` of the flag: clap would treat it as a given flag, which conflicts with --ephemeral.
const VARIABLE: &str = "MUSTER_UP_DATA_DIR";

/// The directory of the variable, or the user's default.
fn of_this_user() -> Option<PathBuf> {
    let from_env = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    from_env.or_else(xdg::state_dir)
}

/// The unix sockets of a `muster up`, for programs of the same user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sockets {
    pub(crate) store: PathBuf,
    pub(crate) controller: PathBuf,
}

impl Sockets {
    fn below(directory: &Path) -> Sockets {
        let run = directory.join("run");
        Sockets { store: run.join("store.sock"), controller: run.join("controller.sock") }
    }

    /// Those of the `muster up` that this user runs in the default directory, if it runs.
    pub(crate) fn live() -> Option<Sockets> {
        let sockets = Sockets::below(&of_this_user()?);
        let is_live = |path: &PathBuf| UnixStream::connect(path).is_ok();
        (is_live(&sockets.store) && is_live(&sockets.controller)).then_some(sockets)
    }

    /// The directory of both.
    pub(crate) fn directory(&self) -> &Path {
        self.store.parent().unwrap_or(Path::new("/"))
    }
}

/// The data directory, with a subdirectory for each component that has data. A temporary one is removed on drop.
#[derive(Debug)]
pub(crate) enum DataDir {
    Permanent(PathBuf),
    Temporary(TempDir),
}

impl DataDir {
    /// A temporary directory, else the directory of the flag, of the variable, or the user's default.
    pub(crate) fn choose(ephemeral: bool, data_dir: Option<&Path>) -> Result<Self, UpError> {
        if ephemeral {
            let directory = tempfile::Builder::new().prefix("muster-up-").tempdir();
            return directory.map(DataDir::Temporary).map_err(UpError::NoTemporary);
        }
        let directory = data_dir.map(Path::to_owned).or_else(of_this_user);
        directory.map(DataDir::Permanent).ok_or(UpError::NoHome)
    }

    /// The data directory of the store.
    pub(super) fn store(&self) -> PathBuf {
        self.directory().join("store")
    }

    /// The state directory of this machine's agent: its identity and its containers.
    pub(super) fn agent(&self) -> PathBuf {
        self.directory().join("agent")
    }

    /// The sockets of the store and the controller.
    pub(crate) fn sockets(&self) -> Sockets {
        Sockets::below(self.directory())
    }

    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, DataDir::Temporary(_))
    }

    fn directory(&self) -> &Path {
        match self {
            DataDir::Permanent(directory) => directory,
            DataDir::Temporary(directory) => directory.path(),
        }
    }

    /// What happened to the records after the components have stopped.
    pub(super) fn after_exit(&self) -> String {
        match self {
            DataDir::Permanent(directory) => format!("the records are in {}", directory.display()),
            DataDir::Temporary(_) => "the records were removed".to_owned(),
        }
    }
}

impl fmt::Display for DataDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.directory().display();
        match self {
            DataDir::Permanent(_) => write!(f, "{directory}"),
            DataDir::Temporary(_) => write!(f, "{directory}, removed on exit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_directory_is_removed_on_drop() {
        let data_dir = DataDir::choose(true, None).unwrap();
        let directory = data_dir.directory().to_owned();
        assert!(directory.is_dir() && data_dir.store() != data_dir.agent());
        drop(data_dir);
        assert!(!directory.exists());
    }
}
