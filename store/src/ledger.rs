//! The interface of storage: what the writer needs of a ledger.
//!
//! A ledger keeps the present (every record and each lease's newest renewal) and its history by revision. It proves that
//! what it loads is complete. [`embedded`] keeps it on this machine's disk, [`etcd`] in an etcd cluster; `conformance` is the
//! test suite that every ledger must pass.

#[cfg(test)]
pub(crate) mod conformance;
pub mod embedded;
pub mod etcd;

use std::io;

use bytes::Bytes;
use muster_proto::record::Kind;
use muster_store_core::change::Change;
use muster_store_core::draft::CommitLimits;
use muster_store_core::history::{Commit, Revision, StoredChange};
use muster_store_core::memory::Memory;

/// What can go wrong below the store's rules.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LedgerError {
    /// Another writer committed in between. Nothing was written, and nothing may be undone: what the other one wrote is
    /// acknowledged.
    #[error("another writer has committed: the history ends at revision {found}, not at {expected}")]
    Conflict { expected: Revision, found: Revision },
    /// Refused before anything was written: the disk is too full to be safe.
    #[error("the disk is full: {available} bytes are left, {reserve} are kept in reserve")]
    Full { available: u64, reserve: u64 },
    /// Refused with nothing written, and so will be all others until an operator has acted.
    #[error("{0}")]
    ReadOnly(String),
    /// Another process may write by now, so this one must not. The commit was not written and never will be.
    #[error("this store does not lead any more: {0}")]
    Deposed(String),
    /// The write may or may not have reached the disk; it is not acknowledged.
    #[error("the store could not read or write its files: {0}")]
    Failed(String),
    /// The same without files.
    #[error("the store could not read or write: {0}")]
    Unreachable(String),
    /// What was read is not what was written.
    #[error("the store's files are damaged: {0}")]
    Damaged(String),
    /// The same without files.
    #[error("the history in etcd is not what was written: {0}")]
    Altered(String),
}

/// The disk that a ledger writes to, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub available: u64,
    /// Kept free: with less than that, writes that add something are refused.
    pub reserve: u64,
}

/// History that survives the process.
///
/// Calls block. Only the writer thread and `spawn_blocking` reads make them.
pub trait Ledger: Send + Sync + 'static {
    /// What operators call this kind of ledger: the value of --engine.
    fn engine(&self) -> &'static str;

    /// The disk that it writes to; `None` if that is not one of this machine.
    fn space(&self) -> Option<io::Result<Space>>;

    /// Reads every record back, and proves that none is missing. `recall` gets each change that history still holds.
    fn load(&self, recall: &mut dyn FnMut(Change)) -> Result<Memory, LedgerError>;

    /// How large a commit should be. A larger one is written as well.
    fn limits(&self) -> CommitLimits {
        CommitLimits::default()
    }

    /// Writes a commit that continues the history from its base; durable when it returns `Ok`. After `Conflict`, `Full`,
    /// `ReadOnly` and `Deposed` nothing was written; after any other error it is unknown whether the commit was written, and
    /// [`recover`](Self::recover) must be called before the next.
    fn commit(&self, commit: &Commit) -> Result<(), LedgerError>;

    /// Whether a commit could be written now. Cheap.
    fn check(&self) -> Result<(), LedgerError>;

    /// Proves that no other process has written since the last commit, so that an answer without a commit is current.
    fn confirm(&self) -> Result<(), LedgerError> {
        Ok(())
    }

    /// Makes the ledger usable after a commit that failed. That commit is not part of the history.
    fn recover(&self) -> Result<(), LedgerError>;

    /// The last revision that is no longer in history.
    fn compacted(&self) -> Revision;

    /// At most `limit` changes of one kind after `after` and up to `until`, in order and with the records they replaced,
    /// and the revision up to which there are no others.
    fn changes_of(
        &self,
        kind: Kind,
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<(Vec<(Revision, StoredChange)>, Revision), LedgerError>;

    /// The record that the change at `superseded_by` replaced, which was written at `revision`. `None` if it is
    /// compacted by now.
    fn version(&self, revision: Revision, superseded_by: Revision) -> Result<Option<Bytes>, LedgerError>;
}
