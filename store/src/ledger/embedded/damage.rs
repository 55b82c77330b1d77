//! Why something could not be read: the file, the place in it, and what is wrong.

use std::io;
use std::path::{Path, PathBuf};

use crate::ledger::LedgerError;

/// Bytes that are not what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is damaged at byte {offset}: {what}", path.display())]
pub struct Damage {
    pub path: PathBuf,
    pub offset: u64,
    pub what: String,
}

impl Damage {
    pub(super) fn at(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), offset, what: what.into() }
    }
}

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Damaged(#[from] Damage),
    #[error("{} cannot be read at byte {offset}: {source}", path.display())]
    Io { path: PathBuf, offset: u64, source: io::Error },
}

impl ReadError {
    pub(super) fn io(path: &Path, offset: u64, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), offset, source }
    }

    /// Why a file that must be there could not be opened.
    pub(super) fn opening(path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotFound => Damage::at(path, 0, "the file is missing").into(),
            _ => Self::io(path, 0, source),
        }
    }
}

impl From<ReadError> for LedgerError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged(damage) => LedgerError::Damaged(damage.to_string()),
            ReadError::Io { .. } => LedgerError::Failed(error.to_string()),
        }
    }
}
