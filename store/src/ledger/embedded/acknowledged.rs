//! How far commits were acknowledged, in a small file of its own.
//!
//! A damaged last frame of the journal looks like one that a crash cut short. This file tells them apart: it is written
//! after the frame is durable, so the frames that it names were complete. It is not synced with each commit, so after a
//! loss of power it may be behind, but never ahead.

use std::io;
use std::path::{Path, PathBuf};

use bytes::{Buf, BufMut};
use xxhash_rust::xxh3::xxh3_64;

use super::damage::{Damage, ReadError};
use super::disk::{Disk, DiskFile, at};
use super::format::StoreId;

pub(super) const FILE: &str = "ACKNOWLEDGED";
const MAGIC: &[u8; 8] = b"MUSTERA5";
/// Two slots in different blocks, written in turn: a write that is cut short, or one bad block, leaves the other.
const SLOT: u64 = 4096;
const LEN: usize = 8 + 8 + 16 + 8 + 8;

/// The last acknowledged frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) number: u64,
    /// The hash of its header.
    pub(super) hash: u64,
}

/// The open file.
pub(super) struct Acknowledged {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    store: StoreId,
}

impl Acknowledged {
    pub(super) fn create(disk: &dyn Disk, directory: &Path, store: StoreId, mark: Mark) -> io::Result<Self> {
        let path = directory.join(FILE);
        let created = Self { file: at(&path, disk.create(&path))?, path, store };
        at(&created.path, created.file.allocate(2 * SLOT))?;
        // Both slots, so that from now on a single one can be lost.
        created.write_slot(0, mark)?;
        created.write_slot(1, mark)?;
        created.sync()?;
        at(directory, disk.sync_dir(directory))?;
        Ok(created)
    }

    /// Opens the file and reads the newest mark.
    pub(super) fn open(
        disk: &dyn Disk,
        directory: &Path,
        store: StoreId,
        writable: bool,
    ) -> Result<(Self, Mark), ReadError> {
        let path = directory.join(FILE);
        let file = disk.open(&path, writable).map_err(|error| ReadError::io(&path, 0, error))?;
        let mut newest: Option<Mark> = None;
        for slot in 0..2 {
            let mut bytes = [0; LEN];
            let read = file.read_at(&mut bytes, slot * SLOT);
            read.map_err(|error| ReadError::io(&path, slot * SLOT, error))?;
            if let Some(mark) = decode(&bytes, store)
                && newest.is_none_or(|newest| mark.number > newest.number)
            {
                newest = Some(mark);
            }
        }
        let unreadable = || Damage::at(&path, 0, "neither of its two marks matches its checksum");
        let mark = newest.ok_or_else(unreadable)?;
        Ok((Self { path, file, store }, mark))
    }

    /// Notes that a frame is durable. Not synced: see above.
    pub(super) fn write(&self, mark: Mark) -> io::Result<()> {
        self.write_slot(mark.number % 2, mark)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        at(&self.path, self.file.sync())
    }

    fn write_slot(&self, slot: u64, mark: Mark) -> io::Result<()> {
        let mut bytes = [0; LEN];
        let mut rest = &mut bytes[16..];
        rest.put_slice(self.store.as_bytes());
        rest.put_u64(mark.number);
        rest.put_u64(mark.hash);
        let hash = xxh3_64(&bytes[16..]);
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&hash.to_be_bytes());
        at(&self.path, self.file.write_all_at(&bytes, slot * SLOT))
    }
}

fn decode(bytes: &[u8; LEN], store: StoreId) -> Option<Mark> {
    let (start, mut rest) = bytes.split_at(16);
    if start[..8] != *MAGIC || start[8..] != xxh3_64(rest).to_be_bytes() {
        return None;
    }
    let mut of = [0; 16];
    rest.copy_to_slice(&mut of);
    (of == *store.as_bytes()).then(|| Mark { number: rest.get_u64(), hash: rest.get_u64() })
}
