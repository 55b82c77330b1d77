//! The records of the checkpoints, in files that both checkpoints refer to.
//!
//! A file is written once, by one checkpoint, and never changed: records one after the other, then an index of them. The
//! trees of the checkpoints say where each record lies. So a record is written once for both of them, and not at all by a
//! checkpoint that only moves others. A record that was replaced stays until most of its file is outdated; then the rest
//! is moved, and the file goes when no checkpoint refers to it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};

use super::damage::{Damage, ReadError};
use super::disk::{Disk, DiskFile, at};
use super::entry::{Location, RecordEntry};
use super::manifest::{BLOCK, FileBlocks, Manifest};
use super::parity;
use crate::ledger::LedgerError;

/// The directory of the record files, beside the checkpoints.
pub(super) const DIRECTORY: &str = "records";
/// In format 5, the file of a checkpoint's own records, in its directory.
pub(super) const OWN_FILE: &str = "records";
const EXTENSION: &str = "records";
const MAGIC: &[u8; 8] = b"MUSTERR6";

/// How much is collected before it is written.
const BUFFER: usize = 1 << 20;
/// A file ends when it is this long.
const FILE_BYTES: u64 = 64 << 20;
/// The index ends with the offset at which it begins.
const TRAILER: usize = 8;

pub(super) fn file_name(number: u32) -> String {
    format!("{number:010}.{EXTENSION}")
}

fn number_of(name: &Path) -> Option<u32> {
    let is_ours = name.extension().is_some_and(|extension| extension == EXTENSION);
    is_ours.then(|| name.file_stem()?.to_str()?.parse().ok()).flatten()
}

/// The numbers of all record files, in order.
pub(super) fn numbers(disk: &dyn Disk, directory: &Path) -> io::Result<Vec<u32>> {
    match disk.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => Ok(at(directory, names)?.iter().filter_map(|name| number_of(Path::new(name))).collect()),
    }
}

/// How much of a file a record takes: itself and its place in the index.
pub(super) fn space_of(key: &[u8], entry: &RecordEntry) -> u64 {
    (4 + key.len() + RecordEntry::LEN) as u64 + u64::from(entry.length)
}

/// Writes new record files.
pub(super) struct RecordWriter {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    next_number: u32,
    file: Option<NewFile>,
}

struct NewFile {
    number: u32,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// The length of what is written.
    written: u64,
    /// What is to be written next.
    buffer: Vec<u8>,
    index: Vec<u8>,
}

impl RecordWriter {
    /// Files are numbered from `next_number` on, and are created when there is something to write.
    pub(super) fn new(disk: Arc<dyn Disk>, directory: PathBuf, next_number: u32) -> Self {
        Self { disk, directory, next_number, file: None }
    }

    /// Adds a record; returns its entry with the place where it lies.
    pub(super) fn append(
        &mut self,
        key: &[u8],
        entry: RecordEntry,
        record: &[u8],
    ) -> Result<RecordEntry, LedgerError> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(NewFile::create(&*self.disk, &self.directory, self.next_number)?),
        };
        let location = Location { file: file.number, offset: file.len() };
        let entry = RecordEntry { location, ..entry };
        file.buffer.extend_from_slice(record);
        file.index.put_u32(key.len() as u32);
        file.index.put_slice(key);
        file.index.put_slice(&entry.encode());
        if file.buffer.len() >= BUFFER {
            file.write_out()?;
        }
        if file.len() + file.index.len() as u64 >= FILE_BYTES {
            self.finish()?;
        }
        Ok(entry)
    }

    /// Writes out the last file; not durable yet.
    pub(super) fn finish(&mut self) -> Result<(), LedgerError> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        self.next_number = file.number + 1;
        let begin = file.len();
        let index = std::mem::take(&mut file.index);
        file.buffer.extend_from_slice(&index);
        file.buffer.put_u64(begin);
        file.write_out()
    }
}

impl NewFile {
    fn create(disk: &dyn Disk, directory: &Path, number: u32) -> Result<Self, LedgerError> {
        let created = match disk.create_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        };
        created.map_err(|error| failed(directory, &error))?;
        let path = directory.join(file_name(number));
        let file = disk.create(&path).map_err(|error| failed(&path, &error))?;
        Ok(Self { number, path, file, written: 0, buffer: MAGIC.to_vec(), index: Vec::new() })
    }

    fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn write_out(&mut self) -> Result<(), LedgerError> {
        let written = self.file.write_all_at(&self.buffer, self.written);
        written.map_err(|error| failed(&self.path, &error))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Reads all of a file, and calls `each` with the key and the entry of every record in it. Every block is checked.
pub(super) fn read_index(
    disk: &dyn Disk,
    directory: &Path,
    blocks: &FileBlocks,
    mut each: impl FnMut(&[u8], RecordEntry) -> Result<(), LedgerError>,
) -> Result<(), LedgerError> {
    blocks.verify(disk, directory, |_, _| Ok(()))?;
    let path = directory.join(&blocks.name);
    let damaged = || LedgerError::from(ReadError::from(Damage::at(&path, 0, "its index cannot be read")));
    let file = disk.open(&path, false).map_err(|error| failed(&path, &error))?;
    let read = |from: u64, length: usize| {
        let mut bytes = vec![0; length];
        match file.read_at(&mut bytes, from) {
            Ok(read) if read == length => Ok(bytes),
            Ok(_) => Err(damaged()),
            Err(error) => Err(failed(&path, &error)),
        }
    };
    let end = blocks.length.checked_sub(TRAILER as u64).ok_or_else(damaged)?;
    let begin = read(end, TRAILER)?.as_slice().get_u64();
    let length = end.checked_sub(begin).and_then(|length| usize::try_from(length).ok());
    let index = read(begin, length.ok_or_else(damaged)?)?;
    let mut rest = index.as_slice();
    while let Some((length, following)) = rest.split_first_chunk::<4>() {
        let entry = following.split_at_checked(u32::from_be_bytes(*length) as usize);
        let (key, following) = entry.ok_or_else(damaged)?;
        let (entry, following) = following.split_at_checked(RecordEntry::LEN).ok_or_else(damaged)?;
        each(key, RecordEntry::decode(entry)?)?;
        rest = following;
    }
    if rest.is_empty() { Ok(()) } else { Err(damaged()) }
}

/// Records that lie in files which another checkpoint refers to. They need not be written again.
///
/// By the hash of key, revision and content: it stands for the record in the fingerprint too.
#[derive(Default)]
pub(super) struct SharedRecords(HashMap<u128, Location>);

impl SharedRecords {
    /// Adds the records of a file. Every block of it is checked.
    pub(super) fn add(
        &mut self,
        disk: &dyn Disk,
        directory: &Path,
        blocks: &FileBlocks,
    ) -> Result<(), LedgerError> {
        read_index(disk, directory, blocks, |_, entry| {
            self.0.insert(entry.hash.0, entry.location);
            Ok(())
        })
    }

    /// The entry with the place of the same record, if there is one.
    pub(super) fn find(&self, entry: &RecordEntry) -> Option<RecordEntry> {
        self.0.get(&entry.hash.0).map(|location| RecordEntry { location: *location, ..*entry })
    }
}

/// The record files of a checkpoint, open for reading.
pub(super) struct RecordFiles(BTreeMap<u32, OpenFile>);

struct OpenFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// Blocks that are damaged on the disk, as they were written.
    rebuilt: BTreeMap<usize, Vec<u8>>,
}

impl RecordFiles {
    /// Opens the files that a checkpoint refers to.
    pub(super) fn open(disk: &dyn Disk, checkpoint: &Path, manifest: &Manifest) -> Result<Self, ReadError> {
        let directory = directory_beside(checkpoint);
        let paths =
            manifest.records.iter().map(|(number, file)| (*number, directory.join(&file.blocks.name)));
        let own = manifest.has_own_records().then(|| (0, checkpoint.join(OWN_FILE)));
        let open = |(number, path): (u32, PathBuf)| match disk.open(&path, false) {
            Ok(file) => Ok((number, OpenFile { path, file, rebuilt: BTreeMap::new() })),
            Err(error) => Err(ReadError::opening(&path, error)),
        };
        Ok(Self(paths.chain(own).map(open).collect::<Result<_, _>>()?))
    }

    /// Checks every block. Those that are damaged are rebuilt in memory; the files stay as they are.
    pub(super) fn verify(
        &mut self,
        disk: &dyn Disk,
        checkpoint: &Path,
        manifest: &Manifest,
    ) -> Result<(), ReadError> {
        let directory = directory_beside(checkpoint);
        let mut buffer = vec![0; BLOCK];
        for (number, file) in &manifest.records {
            let Some(OpenFile { path, rebuilt, .. }) = self.0.get_mut(number) else { continue };
            let opened = file.blocks.open(disk, &directory)?;
            for index in 0..file.blocks.len() {
                let Err(error) = opened.read_block(index, &mut buffer) else { continue };
                let Ok(block) = parity::rebuild(disk, &directory, file, index) else { return Err(error) };
                let offset = file.blocks.offset_of(index);
                tracing::error!(path = %path.display(), offset, %error, "a block was rebuilt from its parity");
                rebuilt.insert(index, block);
            }
        }
        Ok(())
    }

    /// Whether a block is damaged on the disk.
    pub(super) fn is_damaged(&self) -> bool {
        self.0.values().any(|file| !file.rebuilt.is_empty())
    }

    pub(super) fn read(&self, entry: &RecordEntry) -> Result<Bytes, LedgerError> {
        let (Location { file, offset }, length) = (entry.location, entry.length);
        let Some(file) = self.0.get(&file) else {
            return Err(LedgerError::Damaged(format!("no record file has the number {file}")));
        };
        let mut record = vec![0; length as usize];
        let read = file.read_at(&mut record, offset).map_err(|error| failed(&file.path, &error))?;
        if read < record.len() {
            let what = format!("no record of {length} bytes lies here");
            return Err(ReadError::from(Damage::at(&file.path, offset, what)).into());
        }
        Ok(record.into())
    }
}

impl OpenFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.rebuilt.is_empty() {
            return self.file.read_at(buffer, offset);
        }
        let mut read = 0;
        while read < buffer.len() {
            let at = offset + read as u64;
            let (index, within) = ((at / BLOCK as u64) as usize, (at % BLOCK as u64) as usize);
            let end = buffer.len().min(read + BLOCK - within);
            let part = &mut buffer[read..end];
            let length = match self.rebuilt.get(&index) {
                Some(block) => {
                    let rest = block.get(within..).unwrap_or_default();
                    let length = rest.len().min(part.len());
                    part[..length].copy_from_slice(&rest[..length]);
                    length
                }
                None => self.file.read_at(part, at)?,
            };
            if length == 0 {
                break;
            }
            read += length;
        }
        Ok(read)
    }
}

/// The directory of the record files, beside that of a checkpoint.
pub(super) fn directory_beside(checkpoint: &Path) -> PathBuf {
    checkpoint.with_file_name(DIRECTORY)
}

fn failed(path: &Path, error: &io::Error) -> LedgerError {
    LedgerError::Failed(format!("{}: {error}", path.display()))
}
