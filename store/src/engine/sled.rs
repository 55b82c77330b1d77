//! The embedded engine: sled 0.34, used so that an acknowledged write survives `kill -9` and power loss.
//!
//! A transaction is written to our own journal and synced before sled gets it: one write and one `fdatasync` make it
//! durable and atomic, however large it is. sled's own flush does not reach the disk on Linux. So before sled has written
//! too much, its log is synced by `fdatasync` on a second handle of its file, and the journal starts again. Values above
//! 2 KiB are split, because sled puts long leaves of its tree into files that this sync does not cover.

mod disk;
mod format;
mod journal;
mod sync_window;
mod value_codec;
mod value_pieces;

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use prost::Message;
use sled::Db;

use self::disk::{Blobs, Disk, Files};
pub use self::format::{FormatError, is_empty_volume, move_into};
use self::journal::{End, Entry, Journal, journal_of};
use self::sync_window::{Change, WINDOW, estimated_bytes, windows};
use self::value_pieces::{VALUES, changes_of, get, read_whole, value_key};
use super::{Engine, EngineError, Pair, Transaction};

/// The key of a transaction's number: that transaction and all before it are in the tree.
const APPLIED: &[u8] = b"j";

/// Writes are refused while less than this would stay free. sled cannot go on after it met a full disk, so it must not
/// meet one.
const RESERVE: u64 = 16 << 20;
/// How many bytes on disk a byte of a transaction may take: one in the journal, and sled rewrites leaves.
const AMPLIFICATION: u64 = 5;

/// sled writes its log in segments of this many bytes. Only an undocumented setting of sled changes that.
const SEGMENT: usize = 512 * 1024;

/// How many values of an older format one transaction converts.
const CONVERTED_AT_ONCE: usize = 64;

/// How long to wait for the lock of a file that this process has just closed.
const REOPENING_TRIES: u32 = 100;
const REOPENING_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data directory {path} cannot be used: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error(
        "the data directory {0} is in use by another process: stop that one, or give this one its own --data-dir"
    )]
    InUse(PathBuf),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(
        "the data directory {0} has held records, and its files are gone: put them back, or restore a backup into a new directory"
    )]
    Lost(PathBuf),
    #[error("the data directory {path} cannot be made ready: {source}")]
    Unready { path: PathBuf, source: EngineError },
    #[error("the data directory {path} cannot be opened: {reason}")]
    Sled { path: PathBuf, reason: String },
}

/// How far writing has come.
struct Progress {
    /// The end of the journal, as far as it is synced.
    end: End,
    /// How much sled has written since its log was last synced, as estimated.
    unsynced: usize,
}

impl Progress {
    /// Everything up to this transaction is in sled's log and synced.
    fn at(number: u64) -> Self {
        Self { end: End::restarted(number), unsynced: 0 }
    }

    /// Whether sled can take these changes before its log must be synced.
    fn has_room_for(&self, changes: &[Change]) -> bool {
        self.unsynced == 0 || self.unsynced + estimated_bytes(changes) <= WINDOW
    }
}

/// The engine on sled.
pub struct SledEngine {
    directory: PathBuf,
    cache_bytes: u64,
    disk: Box<dyn Disk>,
    blobs: Blobs,
    journal: Journal,
    /// Locked while a transaction is written: there is one at a time. `None` after a transaction that failed, until
    /// [`Engine::recover`].
    progress: Mutex<Option<Progress>>,
    /// Whether the format tag says that the store was used.
    used: AtomicBool,
    /// `None` while the files are being opened again, until everything acknowledged is there. Locked for writing while a
    /// transaction is put into the tree, so that no reader sees a part of it. After a transaction that failed, a part of
    /// it may be there until [`Engine::recover`].
    db: RwLock<Option<Db>>,
}

impl SledEngine {
    /// Opens or creates the store's files below `directory`.
    pub fn open(directory: &Path, cache_bytes: u64) -> Result<Self, OpenError> {
        let unusable = |source| OpenError::Directory { path: directory.to_owned(), source };
        std::fs::create_dir_all(directory).map_err(unusable)?;
        let tag = format::check_or_create(directory)?;
        let lost = || OpenError::Lost(directory.to_owned());
        let has_log = disk::log_of(directory).exists();
        let lacks_journal = !tag.is_older && !journal_of(directory).exists();
        if tag.used && (!has_log || lacks_journal) {
            return Err(lost());
        }
        if has_log {
            disk::drop_cached_log(directory).map_err(unusable)?;
        }
        let db = open_db(directory, cache_bytes)?;
        let journal = Journal::open(directory).map_err(unusable)?;
        let files = Files::open(directory).map_err(unusable)?;
        let engine = Self::with_disk(directory, cache_bytes, db, journal, Box::new(files));
        // What was found counts as acknowledged from now on, so it must be durable, and so must the files' names.
        engine.sync().and_then(|()| File::open(directory)?.sync_all()).map_err(unusable)?;
        let unready = |source| OpenError::Unready { path: directory.to_owned(), source };
        let progress = engine.replay_journal(opened(engine.exclusive().as_ref()).map_err(unready)?);
        *engine.progress() = Some(progress.map_err(unready)?);
        if tag.used && engine.shared().as_ref().is_some_and(|db| db.is_empty()) {
            return Err(lost());
        }
        // The tag keeps the older format until all values are converted: after a crash the conversion starts again.
        engine.used.store(tag.used || tag.is_older, Ordering::Relaxed);
        if tag.is_older {
            engine.convert_format().map_err(unready)?;
        }
        Ok(engine)
    }

    fn with_disk(directory: &Path, cache_bytes: u64, db: Db, journal: Journal, disk: Box<dyn Disk>) -> Self {
        let (directory, blobs) = (directory.to_owned(), Blobs::of(directory));
        let (progress, used) = (Mutex::new(Some(Progress::at(0))), AtomicBool::new(false));
        Self { directory, cache_bytes, disk, blobs, journal, progress, used, db: RwLock::new(Some(db)) }
    }

    /// Makes what sled has written durable.
    fn sync(&self) -> io::Result<()> {
        self.blobs.sync(&*self.disk)?;
        self.disk.sync_log()
    }

    /// Splits the values of an older format into pieces of today's length, then writes the tag.
    fn convert_format(&self) -> Result<(), EngineError> {
        let mut long = Vec::new();
        let used = {
            let db = self.shared();
            let db = opened(db.as_ref())?;
            for pair in db.range([VALUES]..[VALUES + 1]) {
                let (key, stored) = pair.map_err(failed)?;
                if value_codec::is_long(&stored) {
                    long.push(key[1..].to_vec());
                }
            }
            !db.is_empty()
        };
        for keys in long.chunks(CONVERTED_AT_ONCE) {
            let mut cut = Transaction::default();
            for key in keys {
                cut.puts.extend(self.get(key)?.map(|value| (key.clone(), value)));
            }
            self.transact(&cut)?;
        }
        format::write(&self.directory, used).map_err(|e| EngineError::Failed(e.to_string()))?;
        self.used.store(used, Ordering::Relaxed);
        Ok(())
    }

    fn progress(&self) -> MutexGuard<'_, Option<Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> RwLockReadGuard<'_, Option<Db>> {
        self.db.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Option<Db>> {
        self.db.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what was put into the tree durable.
    fn flush(&self, db: &Db) -> Result<(), EngineError> {
        // Flush hands the bytes to the kernel, sync makes them durable.
        db.flush().map_err(failed)?;
        self.sync().map_err(|e| EngineError::Failed(format!("fdatasync: {e}")))
    }

    /// Makes everything in sled durable, after which the journal can start again.
    fn checkpoint(&self, db: &Db, number: u64) -> Result<Progress, EngineError> {
        // Inserted last, so that it is in the tree only when everything else is.
        db.insert(APPLIED, &number.to_be_bytes()).map_err(failed)?;
        self.flush(db)?;
        Ok(Progress::at(number))
    }

    /// Puts transactions of the journal into the tree that it may lack.
    fn replay_journal(&self, db: &Db) -> Result<Progress, EngineError> {
        // A process that was killed may have written entries without syncing them. They can be read here and still be
        // lost with the power while they are being applied.
        self.disk.sync_journal().map_err(journal_failed)?;
        let applied = applied(db)?;
        let mut progress = Progress::at(applied);
        for entry in self.journal.read().map_err(journal_failed)? {
            let (before, number) = (progress.end.number, entry.number);
            if number > before + 1 {
                let gap = format!(
                    "the journal goes on with transaction {number}, the rest ends with {before}: put back the files \
                     as they were, or restore a backup into a new directory"
                );
                return Err(EngineError::Damaged(gap));
            }
            if number > before {
                self.apply(db, &entry, &mut progress)?;
                progress.end.number = number;
            }
        }
        match progress.end.number {
            number if number > applied => self.checkpoint(db, number),
            _ => Ok(progress),
        }
    }

    /// Puts a transaction into the tree, and syncs before too much is written.
    fn apply(&self, db: &Db, entry: &Entry, progress: &mut Progress) -> Result<(), EngineError> {
        for window in windows(&entry.changes) {
            if !progress.has_room_for(window) {
                self.flush(db)?;
                progress.unsynced = 0;
            }
            put(db, window)?;
            progress.unsynced += estimated_bytes(window);
        }
        Ok(())
    }

    fn check_space(&self, bytes: u64) -> Result<(), EngineError> {
        let space = rustix::fs::statvfs(&self.directory).map_err(|e| EngineError::Failed(e.to_string()))?;
        let available = space.f_bavail * space.f_frsize;
        let reserve = RESERVE + AMPLIFICATION * bytes;
        if available < reserve {
            return Err(EngineError::Full { available, reserve });
        }
        Ok(())
    }
}

impl Engine for SledEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let db = self.shared();
        get(opened(db.as_ref())?, key)
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize, bytes: usize) -> Result<Vec<Pair>, EngineError> {
        let db = self.shared();
        let db = opened(db.as_ref())?;
        let (mut pairs, mut read) = (Vec::new(), 0);
        for pair in db.range(value_key(from)..value_key(to)).take(limit) {
            let (key, stored) = pair.map_err(failed)?;
            let key = key[1..].to_vec();
            let value = read_whole(db, &key, &stored)?;
            read += value.len();
            pairs.push((key, value));
            if read >= bytes {
                break;
            }
        }
        Ok(pairs)
    }

    fn transact(&self, transaction: &Transaction) -> Result<(), EngineError> {
        let mut held = self.progress();
        let changes = {
            let db = self.shared();
            let db = opened(db.as_ref())?;
            for compare in &transaction.compare {
                if get(db, &compare.key)? != compare.expected {
                    return Err(EngineError::Conflict);
                }
            }
            changes_of(db, transaction)?
        };
        if changes.is_empty() {
            return Ok(());
        }
        self.check_space(changes.iter().map(|change| change.encoded_len() as u64).sum())?;
        // If anything fails from here on, it is unknown how far writing has come.
        let unknown = || EngineError::Failed("a transaction failed before".into());
        let mut progress = held.take().ok_or_else(unknown)?;
        if !progress.has_room_for(&changes) {
            progress = self.checkpoint(opened(self.shared().as_ref())?, progress.end.number)?;
        }
        let (entry, end) = self.journal.write(progress.end, changes).map_err(journal_failed)?;
        self.disk.sync_journal().map_err(journal_failed)?;
        // The transaction is committed.
        progress.end = end;
        self.apply(opened(self.exclusive().as_ref())?, &entry, &mut progress)?;
        *held = Some(progress);
        if !transaction.puts.is_empty() && !self.used.load(Ordering::Relaxed) {
            format::write(&self.directory, true).map_err(|e| EngineError::Failed(e.to_string()))?;
            self.used.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), EngineError> {
        self.check_space(0)
    }

    fn recover(&self) -> Result<(), EngineError> {
        self.check_space(0)?;
        let mut progress = self.progress();
        let mut db = self.exclusive();
        // sled locks its file, so the old handle must be dropped first. Dropping panics if its last sync fails, which
        // after a failed sync is to be expected.
        let old = db.take();
        let _ = catch_unwind(AssertUnwindSafe(move || drop(old)));
        let unusable = |e: io::Error| EngineError::Failed(e.to_string());
        disk::drop_cached_log(&self.directory).map_err(unusable)?;
        let reopened = reopen_db(&self.directory, self.cache_bytes);
        let reopened = reopened.map_err(|e| EngineError::Failed(e.to_string()))?;
        // What was found counts as acknowledged from now on.
        self.sync().map_err(unusable)?;
        *progress = Some(self.replay_journal(&reopened)?);
        *db = Some(reopened);
        Ok(())
    }
}

/// Puts changes into the tree one by one. The journal makes them atomic.
fn put(db: &Db, changes: &[Change]) -> Result<(), EngineError> {
    for Change { key, value, .. } in changes {
        match value {
            Some(value) => db.insert(key, value.as_slice()),
            None => db.remove(key),
        }
        .map_err(failed)?;
    }
    Ok(())
}

fn opened(db: Option<&Db>) -> Result<&Db, EngineError> {
    db.ok_or_else(|| EngineError::Failed("the files could not be opened again".into()))
}

/// Opens files that this process has just closed. A thread of sled, or a child between fork and exec, may hold the lock a
/// moment longer.
fn reopen_db(directory: &Path, cache_bytes: u64) -> Result<Db, OpenError> {
    for _ in 0..REOPENING_TRIES {
        match open_db(directory, cache_bytes) {
            Err(OpenError::InUse(_)) => std::thread::sleep(REOPENING_PAUSE),
            opened => return opened,
        }
    }
    open_db(directory, cache_bytes)
}

fn open_db(directory: &Path, cache_bytes: u64) -> Result<Db, OpenError> {
    let config = sled::Config::new()
        .path(directory)
        .mode(sled::Mode::HighThroughput)
        .cache_capacity(cache_bytes)
        .flush_every_ms(None);
    config.open().map_err(|error| match error {
        sled::Error::Io(e) if e.kind() == io::ErrorKind::WouldBlock || e.to_string().contains("lock") => {
            OpenError::InUse(directory.to_owned())
        }
        other => OpenError::Sled { path: directory.to_owned(), reason: other.to_string() },
    })
}

/// The number of the last transaction that is in the tree together with all before it.
fn applied(db: &Db) -> Result<u64, EngineError> {
    match db.get(APPLIED).map_err(failed)?.map(|number| <[u8; 8]>::try_from(&*number)) {
        None => Ok(0),
        Some(Ok(number)) => Ok(u64::from_be_bytes(number)),
        Some(Err(_)) => {
            Err(EngineError::Damaged("the number of the last applied transaction is not a number".into()))
        }
    }
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn journal_failed(error: io::Error) -> EngineError {
    EngineError::Failed(format!("the journal: {error}"))
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn failed(error: sled::Error) -> EngineError {
    match error {
        sled::Error::Corruption { .. } => EngineError::Damaged(error.to_string()),
        other => EngineError::Failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests;
