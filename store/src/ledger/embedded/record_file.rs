//! The records of a checkpoint, one after the other in a file that only grows. sled says where each one lies.
//!
//! sled rewrites a page of many entries for each few that change, so values in its pages would be written several times.
//! A record that was replaced stays in the file until the checkpoint is written from scratch.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::disk::{Disk, DiskFile};
use crate::ledger::LedgerError;

pub(super) const FILE: &str = "records";

/// How much is collected before it is written.
const BUFFER: usize = 1 << 20;

/// The file of a checkpoint's records.
pub(super) struct RecordFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// The length of what is written.
    written: u64,
    /// What is to be written next.
    buffer: Vec<u8>,
}

impl RecordFile {
    pub(super) fn create(disk: &dyn Disk, directory: &Path) -> Result<Self, LedgerError> {
        let path = directory.join(FILE);
        let file = disk.create(&path).map_err(|error| failed(&path, &error))?;
        Ok(Self { path, file, written: 0, buffer: Vec::new() })
    }

    /// Opens the file of a complete checkpoint.
    pub(super) fn open(disk: &dyn Disk, directory: &Path, writable: bool) -> Result<Self, LedgerError> {
        let path = directory.join(FILE);
        let opened = disk.open(&path, writable).and_then(|file| Ok((file.len()?, file)));
        let (written, file) = opened.map_err(|error| failed(&path, &error))?;
        Ok(Self { path, file, written, buffer: Vec::new() })
    }

    /// Adds a record and returns where it lies.
    pub(super) fn append(&mut self, record: &[u8]) -> Result<u64, LedgerError> {
        let offset = self.written + self.buffer.len() as u64;
        self.buffer.extend_from_slice(record);
        if self.buffer.len() >= BUFFER {
            self.write_out()?;
        }
        Ok(offset)
    }

    /// Writes what was collected; not durable yet.
    pub(super) fn write_out(&mut self) -> Result<(), LedgerError> {
        let written = self.file.write_all_at(&self.buffer, self.written);
        written.map_err(|error| failed(&self.path, &error))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// A record that was written out.
    pub(super) fn read(&self, offset: u64, length: u32) -> Result<Bytes, LedgerError> {
        let mut record = vec![0; length as usize];
        let read = self.file.read_at(&mut record, offset).map_err(|error| failed(&self.path, &error))?;
        if read < record.len() {
            let what = format!("{}: no record of {length} bytes lies at {offset}", self.path.display());
            return Err(LedgerError::Damaged(what));
        }
        Ok(record.into())
    }
}

fn failed(path: &Path, error: &std::io::Error) -> LedgerError {
    LedgerError::Failed(format!("{}: {error}", path.display()))
}
