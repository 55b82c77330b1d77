//! Why `muster up` could not start or had to end, and what the operator can do.

use std::io;

use muster_store::RunError;
use muster_store::engine::sled::{FormatError, OpenError};

/// What ended `muster up`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("neither XDG_STATE_HOME nor HOME says where this user's files are")]
    NoHome,
    #[error("no temporary directory can be made: {0}")]
    NoTemporary(io::Error),
    #[error("a MUSTER_ variable is wrong: {0}")]
    Variables(String),
    #[error(transparent)]
    Store(#[from] RunError),
    #[error("{0}")]
    Process(#[from] io::Error),
}

impl Failure {
    /// What to try, where the message does not say so itself.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Failure::NoHome => Some("name a directory with --data-dir, or try --ephemeral".to_owned()),
            Failure::NoTemporary(_) => Some("TMPDIR names the place for temporary files".to_owned()),
            Failure::Variables(_) => Some("muster-store --help lists the variables".to_owned()),
            Failure::Store(RunError::Bind(error)) => {
                let flag = error.flag.trim_start_matches("--");
                let free = std::net::SocketAddr::new(error.address.ip(), 0);
                match error.error.kind() {
                    io::ErrorKind::AddrInUse => Some(format!(
                        "is Muster running already? Otherwise choose another port; --{flag} {free} picks a free one"
                    )),
                    io::ErrorKind::PermissionDenied => Some(format!(
                        "ports from 1024 on are open to everybody; --{flag} {free} picks a free one"
                    )),
                    _ => Some(format!("--{flag} says where to listen")),
                }
            }
            Failure::Store(RunError::Open(error)) => open_hint(error),
            Failure::Store(_) | Failure::Process(_) => None,
        }
    }
}

impl From<Failure> for crate::failure::Failure {
    fn from(failure: Failure) -> Self {
        let told = Self::new(crate::failure::Exit::Failed, &failure);
        match failure.hint() {
            Some(hint) => told.hint(hint),
            None => told,
        }
    }
}

impl From<clap::Error> for Failure {
    /// clap writes a page; its first line says it.
    fn from(error: clap::Error) -> Self {
        let page = error.to_string();
        let line = page.lines().next().unwrap_or_default();
        Failure::Variables(line.trim_start_matches("error: ").to_owned())
    }
}

/// The other messages name their way out themselves.
fn open_hint(error: &OpenError) -> Option<String> {
    let blocked = match error {
        OpenError::Directory { .. } | OpenError::Format(FormatError::Unreadable { .. }) => true,
        OpenError::Sled { reason, .. } => reason.contains("ermission denied"),
        _ => false,
    };
    let hint = "name a directory that you may write to with --data-dir, or try --ephemeral";
    blocked.then(|| hint.to_owned())
}
