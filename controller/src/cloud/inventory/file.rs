//! The inventory's file, read again when it has changed.

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
    /// How the file looked then.
    look: Option<Look>,
    /// Whether it has been broken since.
    is_broken: bool,
}

/// How a file looks from outside. Replacing it changes its number, writing to it the time. Two writes of the same
/// length within one tick of the file system's clock look alike: replace the file rather than write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    modified: SystemTime,
    bytes: u64,
    number: u64,
}

/// Why there is no inventory.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} is no inventory: {error}", path.display())]
    NoInventory { path: PathBuf, error: InventoryError },
}

impl InventoryFile {
    /// # Errors
    /// When there is no inventory in that file.
    pub(super) async fn open(path: &Path) -> Result<InventoryFile, FileError> {
        let mut last = Last::default();
        last.refresh(path).await?;
        Ok(InventoryFile { path: path.to_owned(), last: Mutex::new(last) })
    }

    /// The inventory as it is now.
    ///
    /// # Errors
    /// When the file cannot be read any more or no longer holds an inventory: what it held before may be wrong by now.
    pub(super) async fn read(&self) -> Result<Arc<Inventory>, FileError> {
        let mut last = self.last.lock().await;
        let read = last.refresh(&self.path).await;
        if let Err(error) = &read
            && !last.is_broken
        {
            tracing::warn!(%error, "no question can be answered until it is mended");
        }
        last.is_broken = read.is_err();
        read.map(|()| Arc::clone(&last.inventory))
    }
}

impl Last {
    /// Reads the file if it has changed.
    async fn refresh(&mut self, path: &Path) -> Result<(), FileError> {
        let unreadable = |error| FileError::Unreadable { path: path.to_owned(), error };
        // Looked at before it is read: what is written meanwhile is read next time.
        let look = Look::at(path).await.map_err(unreadable)?;
        if self.look == Some(look) {
            return Ok(());
        }
        let text = fs::read_to_string(path).await.map_err(unreadable)?;
        let inventory = Inventory::parse(&text)
            .map_err(|error| FileError::NoInventory { path: path.to_owned(), error })?;
        tracing::info!(path = %path.display(), machines = inventory.count(), "the inventory was read");
        (self.inventory, self.look) = (Arc::new(inventory), Some(look));
        Ok(())
    }
}

impl Look {
    async fn at(path: &Path) -> io::Result<Look> {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(path).await?;
        Ok(Look { modified: metadata.modified()?, bytes: metadata.len(), number: metadata.ino() })
    }
}
