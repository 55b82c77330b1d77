//! The embedded ledger: a journal that commits, and sled that remembers.
//!
//! A commit is one frame in the journal and one `fdatasync`. In the background, sled gets the newest value of each record,
//! so that a start reads a checkpoint and the journal behind it. History is the journal itself; whole segments are
//! deleted when neither history nor a checkpoint needs them. Opening changes no file that holds data: what does not match
//! its checksums is refused, with the file and the place in it.

mod acknowledged;
mod background;
mod checkpoint;
mod checkpoint_writer;
mod damage;
mod disk;
mod entry;
mod format;
mod frame;
mod inspect;
mod journal;
mod manifest;
mod older_formats;
mod parity;
mod record_file;
mod segment;
mod sled_files;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use muster_proto::record::Kind;
use muster_rpc::private_dir::{self, PrivateDirError};
use muster_store_core::change::Change;
use muster_store_core::history::{Commit, Revision, StoredChange};
use muster_store_core::memory::Memory;
use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use self::background::Signal;
pub use self::background::{Background, BackgroundMetrics};
use self::checkpoint::{Checkpoints, Unusable};
pub use self::damage::{Damage, ReadError};
use self::disk::{Disk, RealDisk};
use self::format::Tag;
pub use self::format::{FormatError, StoreId, is_empty_volume, move_into};
pub use self::inspect::{Contents, Inspection, Salvage, contents, inspect, salvage};
use self::journal::{Head, Journal, SEGMENT, SHORT_SEGMENT};
use super::{Ledger, LedgerError, Space};

/// How often the lock of the directory is tried before it is another process's, and the wait in between.
const LOCK_ATTEMPTS: usize = 25;
const LOCK_AGAIN: Duration = Duration::from_millis(20);

const JOURNAL: &str = "journal";
/// The flag that names the data directory.
const DATA_DIR: &str = "--data-dir";

/// Writes that add something are refused while less than this, and the space of another checkpoint, would stay free.
/// Deletions, expiry and compaction may use it: they are what frees space.
const RESERVE: u64 = 16 << 20;

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    NotPrivate(#[from] PrivateDirError),
    #[error("the data directory {path} cannot be used: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error(
        "the data directory {0} is in use by another process: stop that one, or give this one its own --data-dir"
    )]
    InUse(PathBuf),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(
        "{0}; nothing was changed: put back the bytes as they were, run `muster-store check` and `muster-store repair`, or restore a backup into a new directory"
    )]
    Damaged(Damage),
    #[error("the data directory {path} cannot be opened: {source}; nothing was changed")]
    Unready { path: PathBuf, source: LedgerError },
}

impl OpenError {
    fn read(directory: &Path, error: ReadError) -> Self {
        match error {
            ReadError::Damaged(damage) => OpenError::Damaged(damage),
            ReadError::Io { .. } => {
                OpenError::Unready { path: directory.to_owned(), source: LedgerError::from(error) }
            }
        }
    }
}

/// The ledger on this machine's disk.
pub struct EmbeddedLedger {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    store: StoreId,
    journal: Journal,
    checkpoints: Mutex<Checkpoints>,
    /// Bytes in the journal that the newest checkpoint does not contain.
    behind: AtomicU64,
    /// The length of the newest checkpoint's files, kept in reserve on the disk.
    checkpoint_bytes: AtomicU64,
    /// The records, from which a checkpoint is written if there is none to continue.
    memory: OnceLock<Arc<RwLock<Memory>>>,
    signal: Signal,
    _lock: File,
}

impl EmbeddedLedger {
    /// Opens or creates the store's files below `directory`. Nothing is loaded yet.
    pub fn open(directory: &Path, cache_bytes: u64) -> Result<Self, OpenError> {
        Self::open_on(Arc::new(RealDisk), directory, cache_bytes)
    }

    fn open_on(disk: Arc<dyn Disk>, directory: &Path, cache_bytes: u64) -> Result<Self, OpenError> {
        let unusable = |source| OpenError::Directory { path: directory.to_owned(), source };
        let found = private_dir::check(DATA_DIR, directory)?;
        crate::durable_dir::create_dir_all_durable(directory).map_err(unusable)?;
        // Before the lock is created: the directory may belong to another program.
        let tag = format::read(directory)?;
        let lock = lock(directory)?;
        let store = match tag {
            Tag::New => create(&*disk, directory, Uuid::new_v4())?,
            Tag::Older => older_formats::convert(directory, cache_bytes)?,
            Tag::Previous(store) | Tag::Current(store) => store,
        };
        // Only now that it is known to be a data directory.
        if let Some(found) = found {
            found.restrict().and_then(|()| private_dir::restrict_below(directory)).map_err(unusable)?;
        }
        let journal = Journal::open(Arc::clone(&disk), &directory.join(JOURNAL), store, true)
            .map_err(|error| OpenError::read(directory, error))?;
        let (checkpoints, damaged) = Checkpoints::open(Arc::clone(&disk), directory, store, cache_bytes)
            .map_err(|error| OpenError::read(directory, error))?;
        warn_of(&damaged);
        Ok(Self::of(disk, directory, store, journal, checkpoints, lock))
    }

    fn of(
        disk: Arc<dyn Disk>,
        directory: &Path,
        store: StoreId,
        journal: Journal,
        checkpoints: Checkpoints,
        lock: File,
    ) -> Self {
        Self {
            disk,
            directory: directory.to_owned(),
            store,
            journal,
            checkpoint_bytes: AtomicU64::new(checkpoints.file_bytes()),
            checkpoints: Mutex::new(checkpoints),
            behind: AtomicU64::new(0),
            memory: OnceLock::new(),
            signal: Signal::default(),
            _lock: lock,
        }
    }

    /// Creates a data directory that holds the given records, without their history.
    pub fn import(
        directory: &Path,
        store: StoreId,
        memory: Memory,
        cache_bytes: u64,
    ) -> Result<(), OpenError> {
        let unusable = |source| OpenError::Directory { path: directory.to_owned(), source };
        let unready = |source| OpenError::Unready { path: directory.to_owned(), source };
        crate::durable_dir::create_dir_all_durable(directory).map_err(unusable)?;
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let revision = memory.head();
        let head = Head { number: 1, hash: 0, revision, compacted: revision };
        let opened = Checkpoints::open(Arc::clone(&disk), directory, store, cache_bytes);
        let (mut checkpoints, _) = opened.map_err(|error| OpenError::read(directory, error))?;
        checkpoints.import(&RwLock::new(memory), head).map_err(unready)?;
        Journal::create(disk, &directory.join(JOURNAL), store, head).map_err(unusable)?;
        format::write_current(directory, store).map_err(unusable)
    }

    /// The identity of the store in this directory.
    pub fn store_id(&self) -> StoreId {
        self.store
    }

    fn load_proven(&self, mut recall: impl FnMut(Change)) -> Result<Memory, LedgerError> {
        let head = self.journal.head();
        let (mut memory, checkpoint, unusable) = self.checkpoints().load(&self.journal, head.compacted)?;
        warn_of(&unusable);
        let first = self.journal.first_frame_after(head.compacted);
        self.journal.read_frames(first, checkpoint.number, |segment, _, body| {
            for (revision, mut change) in body.changes {
                if revision <= head.compacted {
                    continue;
                }
                self.journal.resolve_previous(segment, &mut change)?;
                memory.load_past_change(revision, &change);
                let previous = change.previous_record.clone();
                recall(Change::from_stored(revision, change, previous));
            }
            Ok(())
        })?;
        let mut behind = 0;
        self.journal.read_frames(checkpoint.number + 1, head.number, |segment, header, body| {
            behind += header.frame_len();
            for (revision, change) in body.changes {
                let change = memory.load_change(revision, change);
                if revision > head.compacted {
                    recall(change);
                }
            }
            for (first, pack) in body.renewals {
                memory.load_pack(first, &pack);
            }
            memory.finish_loading(header.head, header.compacted);
            match header.fingerprint.difference(&memory.fingerprint()) {
                None => Ok(()),
                Some(difference) => Err(LedgerError::Damaged(format!(
                    "{}: after frame {} {difference}",
                    segment.path.display(),
                    header.number
                ))),
            }
        })?;
        self.behind.store(behind, Ordering::Relaxed);
        if memory.head() != head.revision {
            let (found, wanted) = (memory.head(), head.revision);
            return Err(LedgerError::Damaged(format!("they end at revision {found}, not at {wanted}")));
        }
        Ok(memory)
    }

    fn checkpoints(&self) -> MutexGuard<'_, Checkpoints> {
        self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What writes that add something must leave: a reserve, and the space of another checkpoint.
    fn kept_free(&self) -> u64 {
        RESERVE + self.checkpoint_bytes.load(Ordering::Relaxed)
    }

    fn check_space(&self, bytes: u64, frees_space: bool) -> Result<(), LedgerError> {
        let available =
            self.disk.available(&self.directory).map_err(|e| LedgerError::Failed(e.to_string()))?;
        let smallest = if frees_space { SHORT_SEGMENT } else { SEGMENT };
        let segment = if self.journal.needs_segment(bytes) { smallest.max(bytes) } else { 0 };
        let kept = if frees_space { 0 } else { self.kept_free() };
        let reserve = kept + segment;
        if available < reserve {
            // A checkpoint may free segments of the journal.
            self.signal.request_checkpoint();
            return Err(LedgerError::Full { available, reserve });
        }
        Ok(())
    }
}

impl Ledger for EmbeddedLedger {
    fn engine(&self) -> &'static str {
        "embedded"
    }

    fn space(&self) -> Option<io::Result<Space>> {
        let space = || {
            let (total, available) =
                (self.disk.total(&self.directory)?, self.disk.available(&self.directory)?);
            Ok(Space { total, available, reserve: self.kept_free() })
        };
        Some(space())
    }

    fn load(&self, recall: &mut dyn FnMut(Change)) -> Result<Memory, LedgerError> {
        let memory = self.load_proven(recall)?;
        // What was found counts as acknowledged from now on, so it must be durable.
        self.journal.adopt().map_err(|error| LedgerError::Failed(error.to_string()))?;
        // Everything was read, and the next checkpoint is one that the format before did not have.
        format::update(&self.directory, self.store)
            .map_err(|error| LedgerError::Failed(error.to_string()))?;
        Ok(memory)
    }

    fn commit(&self, commit: &Commit) -> Result<(), LedgerError> {
        let records: usize = commit.changes.iter().map(|(_, change)| change.record.len() + 512).sum();
        let renewals: usize = commit.renewals.iter().map(|(_, pack)| pack.len() * 24).sum();
        self.check_space((records + renewals + 4096) as u64, commit.uses_reserve)?;
        let written = self.journal.append(commit)?;
        let behind = self.behind.fetch_add(written, Ordering::Relaxed) + written;
        if behind >= self.checkpoint_due() || commit.compaction.is_some() {
            self.signal.wake(behind >= self.checkpoint_due());
        }
        Ok(())
    }

    fn check(&self) -> Result<(), LedgerError> {
        self.check_space(0, false)
    }

    fn recover(&self) -> Result<(), LedgerError> {
        self.check_space(0, true)?;
        self.journal.recover()?;
        // The disk failed, and memory holds everything: a checkpoint written from it does not depend on what is on disk.
        self.signal.request_checkpoint();
        Ok(())
    }

    fn compacted(&self) -> Revision {
        self.journal.head().compacted
    }

    fn changes_of(
        &self,
        kind: Kind,
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<(Vec<(Revision, StoredChange)>, Revision), LedgerError> {
        self.journal.changes_of(kind, after, until, limit)
    }

    fn version(&self, revision: Revision, superseded_by: Revision) -> Result<Option<Bytes>, LedgerError> {
        self.journal.version(revision, superseded_by)
    }
}

/// Creates the files of a new store. The tag is complete only when they are.
fn create(disk: &dyn Disk, directory: &Path, store: StoreId) -> Result<StoreId, OpenError> {
    let unusable = |source| OpenError::Directory { path: directory.to_owned(), source };
    format::write_creating(directory).map_err(unusable)?;
    let journal = directory.join(JOURNAL);
    if journal.exists() {
        // Left by a creation that was interrupted.
        disk.remove_dir_all(&journal).map_err(unusable)?;
    }
    Journal::create(Arc::new(RealDisk), &journal, store, Head::EMPTY).map_err(unusable)?;
    disk.sync_dir(directory).map_err(unusable)?;
    format::write_current(directory, store).map_err(unusable)?;
    Ok(store)
}

/// Locks the directory for this process.
///
/// The lock of a store that has just ended may last a moment longer: a process that it was starting has all its files until
/// it runs its own program.
fn lock(directory: &Path) -> Result<File, OpenError> {
    let unusable = |source| OpenError::Directory { path: directory.to_owned(), source };
    let path = directory.join(format::LOCK);
    let mut options = private_dir::file_options();
    let file = options.create(true).truncate(false).write(true).open(path).map_err(unusable)?;
    for _ in 0..LOCK_ATTEMPTS {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_AGAIN),
            Err(error) => return Err(unusable(error.into())),
        }
    }
    Err(OpenError::InUse(directory.to_owned()))
}

fn warn_of(unusable: &[Unusable]) {
    for Unusable { path, reason } in unusable {
        tracing::error!(checkpoint = %path.display(), %reason, "a checkpoint is damaged and is not used");
    }
}

#[cfg(test)]
mod tests;
