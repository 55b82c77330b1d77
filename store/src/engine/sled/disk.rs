//! How what sled wrote becomes durable.
//!
//! sled's log is one file, `db`. A message that is too long for the log goes into a file of its own below `blobs/`.
//! Values are split so that there is no such message. If there is one all the same (a directory of an earlier version has
//! some until it is converted), its file is synced before the log that refers to it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::journal::journal_of;

const LOG: &str = "db";
const BLOBS: &str = "blobs";

/// The log of a data directory.
pub(super) fn log_of(directory: &Path) -> PathBuf {
    directory.join(LOG)
}

/// Drops a file from the page cache, so that it is read from the disk: the kernel keeps pages whose write failed, and
/// treats them as written.
pub(super) fn drop_cached(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// The same for sled's log, before sled opens it.
pub(super) fn drop_cached_log(directory: &Path) -> io::Result<()> {
    let log = File::open(log_of(directory))?;
    log.sync_data()?;
    drop_cached(&log)
}

/// Makes written bytes durable. Tests replace it to inject faults.
pub(super) trait Disk: Send + Sync {
    /// Makes the log durable.
    fn sync_log(&self) -> io::Result<()>;

    /// Makes the journal durable.
    fn sync_journal(&self) -> io::Result<()>;

    /// Makes files and their names below `directory` durable.
    fn sync_files(&self, directory: &Path, files: &[PathBuf]) -> io::Result<()>;
}

/// The real files.
pub(super) struct Files {
    log: File,
    journal: File,
}

impl Files {
    /// A second handle of the log: sled never syncs its own.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        Ok(Self { log: File::open(log_of(directory))?, journal: File::open(journal_of(directory))? })
    }
}

impl Disk for Files {
    fn sync_log(&self) -> io::Result<()> {
        self.log.sync_data()
    }

    fn sync_journal(&self) -> io::Result<()> {
        self.journal.sync_data()
    }

    fn sync_files(&self, directory: &Path, files: &[PathBuf]) -> io::Result<()> {
        for file in files {
            match File::open(file) {
                Ok(file) => file.sync_all()?,
                // sled has replaced its content and removed the file since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        File::open(directory)?.sync_all()
    }
}

/// The files of messages that were too long for the log.
pub(super) struct Blobs {
    directory: PathBuf,
    /// Names of files that are durable. sled never uses a name twice.
    synced: Mutex<BTreeSet<OsString>>,
}

impl Blobs {
    pub(super) fn of(directory: &Path) -> Self {
        Self { directory: directory.join(BLOBS), synced: Mutex::default() }
    }

    /// Makes new files durable. Costs the listing of an empty directory if there are none.
    pub(super) fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        let found = match fs::read_dir(&self.directory) {
            Ok(entries) => {
                entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<BTreeSet<_>>>()?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<PathBuf> = found.difference(&synced).map(|name| self.directory.join(name)).collect();
        if !new.is_empty() {
            disk.sync_files(&self.directory, &new)?;
        }
        *synced = found;
        Ok(())
    }
}
