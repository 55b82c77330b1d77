//! The embedded engine: sled 0.34, used so that an acknowledged write survives
//! `kill -9` and power loss.
//!
//! sled's own flush does not reach the disk on Linux, so every transaction ends
//! with `fdatasync` on a second handle of sled's file. One tree, because batches
//! are atomic per tree; values above 6 KiB are split, because sled puts long leaves
//! of its tree into files that this sync does not cover.

mod codec;
mod disk;
mod format;

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use bytes::Bytes;
use rustix::fs::Advice;
use sled::{Batch, Db};

use self::codec::Piece;
use self::disk::{Blobs, Disk, Files};
pub use self::format::{FormatError, is_vacant, move_into};
use super::{Engine, EngineError, Pair, Transaction};

/// Keys of whole values and of a split value's first piece.
const VALUES: u8 = b'd';
/// Keys of the further pieces of a split value.
const PIECES: u8 = b'p';

/// Writes are refused while less than this would stay free. sled cannot go on
/// after it met a full disk, so it must not meet one.
const RESERVE: u64 = 16 << 20;
/// What a byte of a transaction may take on disk: sled writes pages anew.
const AMPLIFICATION: u64 = 4;

/// sled writes its log in segments of this many bytes. That can be changed, but only
/// by a setting that its makers ask not to rely on.
const SEGMENT: usize = 512 * 1024;

/// How many values of an earlier format are cut anew at once.
const CUT_AT_ONCE: usize = 64;

/// How long a file that this process let go of is waited for.
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
    #[error("the data directory {path} cannot be brought to the present format: {source}")]
    Conversion { path: PathBuf, source: EngineError },
    #[error("the data directory {path} cannot be opened: {reason}")]
    Sled { path: PathBuf, reason: String },
}

/// sled behind the engine's face.
pub struct SledEngine {
    directory: PathBuf,
    cache_bytes: u64,
    disk: Box<dyn Disk>,
    blobs: Blobs,
    /// Whether the format tag says that something was committed.
    used: AtomicBool,
    /// `None` only while [`Engine::recover`] opens the files anew.
    db: RwLock<Option<Db>>,
}

impl SledEngine {
    /// Opens or creates the store's files below `directory`.
    pub fn open(directory: &Path, cache_bytes: u64) -> Result<Self, OpenError> {
        let unusable = |source| OpenError::Directory { path: directory.to_owned(), source };
        std::fs::create_dir_all(directory).map_err(unusable)?;
        let tag = format::check_or_create(directory)?;
        if tag.used && !disk::log_of(directory).exists() {
            return Err(OpenError::Lost(directory.to_owned()));
        }
        let db = open_db(directory, cache_bytes)?;
        if tag.used && db.is_empty() {
            return Err(OpenError::Lost(directory.to_owned()));
        }
        let files = Files::open(directory).map_err(unusable)?;
        let engine = Self::with_disk(directory, cache_bytes, db, Box::new(files));
        // What was found is acknowledged from now on, and the files' own names must
        // survive too.
        engine.sync().and_then(|()| File::open(directory)?.sync_all()).map_err(unusable)?;
        // While values are cut, the tag stays as it is: a crash must begin that anew.
        engine.used.store(tag.used || tag.long_pieces, Ordering::Relaxed);
        if tag.long_pieces {
            let converted = engine.cut_long_values();
            converted.map_err(|source| OpenError::Conversion { path: directory.to_owned(), source })?;
        }
        Ok(engine)
    }

    fn with_disk(directory: &Path, cache_bytes: u64, db: Db, disk: Box<dyn Disk>) -> Self {
        let (directory, blobs) = (directory.to_owned(), Blobs::of(directory));
        Self { directory, cache_bytes, disk, blobs, used: AtomicBool::new(false), db: RwLock::new(Some(db)) }
    }

    /// Brings what sled has written to the disk.
    fn sync(&self) -> io::Result<()> {
        self.blobs.sync(&*self.disk)?;
        self.disk.sync_log()
    }

    /// Brings the values of an earlier version to the present format.
    fn cut_long_values(&self) -> Result<(), EngineError> {
        let db = self.db()?;
        let mut long = Vec::new();
        for pair in db.range([VALUES]..[VALUES + 1]) {
            let (key, stored) = pair.map_err(failed)?;
            if codec::is_long(&stored) {
                long.push(key[1..].to_vec());
            }
        }
        for keys in long.chunks(CUT_AT_ONCE) {
            let mut cut = Transaction::default();
            for key in keys {
                cut.puts.extend(self.get(key)?.map(|value| (key.clone(), value)));
            }
            self.transact(&cut)?;
        }
        let used = !db.is_empty();
        format::write(&self.directory, used).map_err(|e| EngineError::Failed(e.to_string()))?;
        self.used.store(used, Ordering::Relaxed);
        Ok(())
    }

    fn db(&self) -> Result<Db, EngineError> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        db.clone().ok_or_else(|| EngineError::Failed("the files are being opened again".into()))
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
        let db = self.db()?;
        match db.get(value_key(key)).map_err(failed)? {
            Some(stored) => read_whole(&db, key, &stored).map(Some),
            None => Ok(None),
        }
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize, bytes: usize) -> Result<Vec<Pair>, EngineError> {
        let db = self.db()?;
        let (mut pairs, mut read) = (Vec::new(), 0);
        for pair in db.range(value_key(from)..value_key(to)).take(limit) {
            let (key, stored) = pair.map_err(failed)?;
            let key = key[1..].to_vec();
            let value = read_whole(&db, &key, &stored)?;
            read += value.len();
            pairs.push((key, value));
            if read >= bytes {
                break;
            }
        }
        Ok(pairs)
    }

    fn transact(&self, transaction: &Transaction) -> Result<(), EngineError> {
        let db = self.db()?;
        for compare in &transaction.compare {
            if self.get(&compare.key)? != compare.expected {
                return Err(EngineError::Conflict);
            }
        }
        let bytes = transaction.puts.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        self.check_space(bytes as u64)?;
        let mut batch = Batch::default();
        for key in &transaction.deletes {
            remove_pieces(&db, &mut batch, key)?;
            batch.remove(value_key(key));
        }
        for (key, value) in &transaction.puts {
            remove_pieces(&db, &mut batch, key)?;
            let (first, further) = codec::encode(value);
            batch.insert(value_key(key), first);
            for (index, piece) in further.into_iter().enumerate() {
                batch.insert(piece_key(key, index), piece);
            }
        }
        db.apply_batch(batch).map_err(failed)?;
        // Flush hands the bytes to the kernel, sync brings them to the disk:
        // only after both may anybody hear of the write.
        db.flush().map_err(failed)?;
        self.sync().map_err(|e| EngineError::Failed(format!("fdatasync: {e}")))?;
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
        let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
        // sled locks its file: the old handle has to go before a new one comes. It
        // panics if its last sync fails, which after a failed one is to be expected.
        let old = db.take();
        let _ = catch_unwind(AssertUnwindSafe(move || drop(old)));
        let failed = |e: &dyn std::fmt::Display| EngineError::Failed(e.to_string());
        // The kernel counts pages whose write failed as written: the disk, not the
        // cache, says what is there.
        let file = File::open(disk::log_of(&self.directory)).map_err(|e| failed(&e))?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(|e| failed(&e))?;
        *db = Some(reopen_db(&self.directory, self.cache_bytes).map_err(|e| failed(&e))?);
        // What was found is acknowledged from now on.
        self.sync().map_err(|e| failed(&e))
    }
}

/// Opens what this process has just let go of. A thread of sled's, or a child between its fork and its program, may hold
/// the file for a moment longer.
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

fn value_key(key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(key.len() + 1);
    full.push(VALUES);
    full.extend_from_slice(key);
    full
}

fn piece_key(key: &[u8], index: usize) -> Vec<u8> {
    let mut full = Vec::with_capacity(key.len() + 5);
    full.push(PIECES);
    full.extend_from_slice(key);
    // A value has at most a few hundred pieces; the API's limit on records sees to it.
    full.extend_from_slice(&(index as u32).to_be_bytes());
    full
}

/// A value that is replaced or removed takes its further pieces along.
fn remove_pieces(db: &Db, batch: &mut Batch, key: &[u8]) -> Result<(), EngineError> {
    // Revisions and packs are written once under a new key, so this look-up is
    // almost always a miss in the cached tree.
    let Some(stored) = db.get(value_key(key)).map_err(failed)? else { return Ok(()) };
    if let Piece::First { further, .. } = codec::decode(&stored).map_err(EngineError::Damaged)? {
        for index in 0..further {
            batch.remove(piece_key(key, index));
        }
    }
    Ok(())
}

fn read_whole(db: &Db, key: &[u8], stored: &[u8]) -> Result<Bytes, EngineError> {
    let damaged = |reason: String| EngineError::Damaged(format!("key {}: {reason}", key.escape_ascii()));
    match codec::decode(stored).map_err(damaged)? {
        Piece::Whole(value) => Ok(Bytes::copy_from_slice(value)),
        Piece::Further(_) => Err(damaged("a further piece stands where a value begins".into())),
        Piece::First { further, value } => {
            let mut whole = value.to_vec();
            for index in 0..further {
                let piece = db.get(piece_key(key, index)).map_err(failed)?;
                let piece = piece.ok_or_else(|| damaged(format!("piece {index} of {further} is missing")))?;
                match codec::decode(&piece).map_err(damaged)? {
                    Piece::Further(value) => whole.extend_from_slice(value),
                    _ => return Err(damaged(format!("piece {index} is not a further piece"))),
                }
            }
            Ok(whole.into())
        }
    }
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
