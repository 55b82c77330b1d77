//! The interface of storage: an ordered map of bytes whose transactions are durable when they return.
//!
//! It is small and shaped like etcd's: get, range, transaction with compare. What the store builds on it (history by
//! revision, watch from a revision, compaction: [`crate::ledger`]) is the same for every engine. sled is the embedded
//! default; `conformance` is the test suite that every engine must pass.

pub mod sled;

#[cfg(test)]
pub(crate) mod conformance;

use bytes::Bytes;

/// What can go wrong below the store's rules.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// Another writer changed a value that the transaction compared.
    #[error("another writer changed the store's files in between")]
    Conflict,
    /// Refused before anything was written: the disk is too full to be safe.
    #[error("the disk is full: {available} bytes are left, {reserve} are kept in reserve")]
    Full { available: u64, reserve: u64 },
    /// The write may or may not have reached the disk; it is not acknowledged.
    #[error("the store could not read or write its files: {0}")]
    Failed(String),
    /// What was read is not what was written: a checksum or an invariant does not hold.
    #[error("the store's files are damaged: {0}")]
    Damaged(String),
}

/// A transaction: if every comparison holds, everything is written atomically and durably; otherwise nothing is.
#[derive(Debug, Default, Clone)]
pub struct Transaction {
    pub compare: Vec<Compare>,
    pub puts: Vec<(Vec<u8>, Bytes)>,
    pub deletes: Vec<Vec<u8>>,
}

/// The value that a key must have; `None` means that the key must be absent.
#[derive(Debug, Clone)]
pub struct Compare {
    pub key: Vec<u8>,
    pub expected: Option<Bytes>,
}

/// A stored key and its value.
pub type Pair = (Vec<u8>, Bytes);

/// An ordered, durable map of bytes.
///
/// Calls block. Only the writer thread and `spawn_blocking` reads make them.
pub trait Engine: Send + Sync + 'static {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// Pairs with `from <= key < to`, in order: at most `limit`, and none after their values have reached `bytes`.
    fn range(&self, from: &[u8], to: &[u8], limit: usize, bytes: usize) -> Result<Vec<Pair>, EngineError>;

    /// Durable when it returns `Ok`. After `Conflict` and `Full` nothing was written; after any other error the
    /// transaction may or may not have been written.
    fn transact(&self, transaction: &Transaction) -> Result<(), EngineError>;

    /// Whether a small transaction could be committed now. Cheap.
    fn check(&self) -> Result<(), EngineError>;

    /// Opens the files again after a transaction that may be half written.
    fn recover(&self) -> Result<(), EngineError>;
}
