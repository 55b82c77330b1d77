//! sled's files of a checkpoint: a tree with an entry for each record and each renewal.
//!
//! sled's recovery overwrites what it cannot read, and reports some damage by a panic. So it only gets files that were
//! checked before, and never the only copy of anything; its panics become errors.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use muster_store_core::memory::Memory;
use sled::{Db, IVec};

use super::entry::{RECORDS, RENEWALS, RecordEntry, parse_record_key, parse_renewal};
use super::record_file::RecordFiles;
use crate::ledger::LedgerError;

/// How long to wait until sled has let go of a file.
const CLOSING_TRIES: u32 = 500;
const CLOSING_PAUSE: Duration = Duration::from_millis(10);

/// The open files.
pub(super) struct SledFiles {
    directory: PathBuf,
    db: Db,
}

impl SledFiles {
    /// Opens the files in a directory, or creates them.
    pub(super) fn open(directory: &Path, cache_bytes: u64) -> Result<Self, LedgerError> {
        let config = sled::Config::new()
            .path(directory)
            .mode(sled::Mode::HighThroughput)
            .cache_capacity(cache_bytes)
            .flush_every_ms(None);
        Ok(Self { db: guarded(|| config.open())?, directory: directory.to_owned() })
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<IVec>, LedgerError> {
        guarded(|| self.db.get(key))
    }

    pub(super) fn insert(&self, key: &[u8], entry: &[u8]) -> Result<(), LedgerError> {
        guarded(|| self.db.insert(key, entry)).map(drop)
    }

    pub(super) fn remove(&self, key: &[u8]) -> Result<(), LedgerError> {
        guarded(|| self.db.remove(key)).map(drop)
    }

    /// Reads everything into memory.
    pub(super) fn load(&self, records: &RecordFiles, memory: &mut Memory) -> Result<(), LedgerError> {
        let mut entries = self.db.scan_prefix([RECORDS]);
        while let Some((key, entry)) = guarded(|| entries.next().transpose())? {
            let (kind, name) = parse_record_key(&key)?;
            let entry = RecordEntry::decode(&entry)?;
            memory.load_record(kind, name, entry.revision, entry.lease_id, records.read(&entry)?);
        }
        let mut entries = self.db.scan_prefix([RENEWALS]);
        while let Some((_, entry)) = guarded(|| entries.next().transpose())? {
            let (revision, renewal) = parse_renewal(&entry)?;
            memory.load_renewal(&renewal, revision);
        }
        Ok(())
    }

    /// Writes everything out and closes the files.
    pub(super) fn close(self) -> Result<(), LedgerError> {
        let Self { directory, db } = self;
        guarded(|| db.flush())?;
        guarded(|| {
            drop(db);
            Ok(())
        })?;
        wait_until_closed(&directory)
    }
}

/// sled's own threads may hold the file a moment longer, and write to it. It is locked until they are done.
fn wait_until_closed(directory: &Path) -> Result<(), LedgerError> {
    let path = directory.join("db");
    let file =
        File::open(&path).map_err(|error| LedgerError::Failed(format!("{}: {error}", path.display())))?;
    for _ in 0..CLOSING_TRIES {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(CLOSING_PAUSE),
            Err(error) => return Err(LedgerError::Failed(format!("{}: {error}", path.display()))),
        }
    }
    Err(LedgerError::Failed(format!("sled does not close {}", path.display())))
}

thread_local! {
    /// Set while this thread is inside sled.
    static IN_SLED: Cell<bool> = const { Cell::new(false) };
}

/// Calls sled. A panic becomes an error, and is not printed.
pub(super) fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, LedgerError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_sled = |location: &std::panic::Location<'_>| location.file().contains("/sled-");
            if !IN_SLED.get() && !panic.location().is_some_and(is_sled) {
                print(panic);
            }
        }));
    });
    IN_SLED.set(true);
    let called = catch_unwind(AssertUnwindSafe(call));
    IN_SLED.set(false);
    match called {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(error))) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(LedgerError::Failed("the checkpoint is in use by another process".to_owned()))
        }
        Ok(Err(error)) => Err(LedgerError::Failed(format!("the checkpoint: {error}"))),
        Err(_) => Err(LedgerError::Failed("the checkpoint: sled could not go on".to_owned())),
    }
}
