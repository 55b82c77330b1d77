//! The inventory file, which is read again when it has changed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::fs;
use tokio::sync::Mutex;

use super::{Inventory, InventoryError};

#[derive(Debug)]
pub(super) struct InventoryFile {
    path: PathBuf,
    last: Mutex<Last>,
}

/// What was last read.
#[derive(Debug, Default)]
struct Last {
    inventory: Arc<Inventory>,
    /// The fingerprint of the file then.
    fingerprint: Option<Fingerprint>,
    /// Whether the last read failed.
    is_broken: bool,
}

/// What shows that a file has changed. Replacing the file changes its inode, writing to it the time. Two writes of the
/// same length within one tick of the file system's clock have the same fingerprint: replace the file instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    modified: SystemTime,
    bytes: u64,
    inode: u64,
}

/// Why the inventory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} is not an inventory: {error}", path.display())]
    NoInventory { path: PathBuf, error: InventoryError },
}

impl InventoryFile {
    /// # Errors
    /// When the file cannot be read or is not an inventory.
    pub(super) async fn open(path: &Path) -> Result<InventoryFile, FileError> {
        let mut last = Last::default();
        last.refresh(path).await?;
        Ok(InventoryFile { path: path.to_owned(), last: Mutex::new(last) })
    }

    /// The inventory as it is now.
    ///
    /// # Errors
    /// When the file cannot be read any more or is not an inventory now: what it held before may be out of date.
    pub(super) async fn read(&self) -> Result<Arc<Inventory>, FileError> {
        let mut last = self.last.lock().await;
        let read = last.refresh(&self.path).await;
        if let Err(error) = &read
            && !last.is_broken
        {
            tracing::warn!(%error, "the plug-in answers no call until the file is repaired");
        }
        last.is_broken = read.is_err();
        read.map(|()| Arc::clone(&last.inventory))
    }
}

impl Last {
    /// Reads the file if it has changed.
    async fn refresh(&mut self, path: &Path) -> Result<(), FileError> {
        let unreadable = |error| FileError::Unreadable { path: path.to_owned(), error };
        // Taken before the read: a write during the read is read next time.
        let fingerprint = Fingerprint::of(path).await.map_err(unreadable)?;
        if self.fingerprint == Some(fingerprint) {
            return Ok(());
        }
        let text = fs::read_to_string(path).await.map_err(unreadable)?;
        let inventory = Inventory::parse(&text)
            .map_err(|error| FileError::NoInventory { path: path.to_owned(), error })?;
        tracing::info!(path = %path.display(), machines = inventory.count(), "the inventory was read");
        (self.inventory, self.fingerprint) = (Arc::new(inventory), Some(fingerprint));
        Ok(())
    }
}

impl Fingerprint {
    async fn of(path: &Path) -> io::Result<Fingerprint> {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(path).await?;
        Ok(Fingerprint { modified: metadata.modified()?, bytes: metadata.len(), inode: metadata.ino() })
    }
}
