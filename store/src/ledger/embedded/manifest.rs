//! The manifest of a checkpoint: which commit it contains, and a checksum of every block of its files and of the record
//! files that it refers to.
//!
//! It is written last and removed before sled's files are touched again, so a checkpoint with a manifest is complete. With
//! it the files are checked before sled sees them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use muster_store_core::fingerprint::{self, Fingerprint};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::damage::{Damage, ReadError};
use super::disk::{Disk, DiskFile, at};
use super::format::StoreId;
use super::journal::Head;
use super::record_file;

pub(super) const FILE: &str = "MANIFEST";
const MAGIC: &[u8; 8] = b"MUSTERC5";
/// The length of a block with a checksum of its own.
pub(super) const BLOCK: usize = 64 * 1024;

/// What a complete checkpoint contains.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Manifest {
    pub(super) head: Head,
    pub(super) fingerprint: Fingerprint,
    /// The length of sled's keys and entries.
    pub(super) entry_bytes: u64,
    /// sled's files, and in format 5 the checkpoint's own records.
    pub(super) files: Vec<FileBlocks>,
    /// The record files by number.
    pub(super) records: BTreeMap<u32, RecordFileBlocks>,
}

/// A record file that a checkpoint refers to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RecordFileBlocks {
    pub(super) blocks: FileBlocks,
    pub(super) parity: FileBlocks,
    /// How much of it the checkpoint uses.
    pub(super) live_bytes: u64,
}

/// The checksums of one file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FileBlocks {
    /// Relative to the checkpoint's directory.
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(uint64, tag = "2")]
    pub(super) length: u64,
    #[prost(fixed64, repeated, tag = "3")]
    blocks: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct ManifestMessage {
    #[prost(bytes = "vec", tag = "1")]
    store: Vec<u8>,
    #[prost(uint64, tag = "2")]
    frame: u64,
    #[prost(fixed64, tag = "3")]
    frame_hash: u64,
    #[prost(uint64, tag = "4")]
    revision: u64,
    #[prost(uint64, tag = "5")]
    compacted: u64,
    #[prost(bytes = "vec", tag = "6")]
    fingerprint: Vec<u8>,
    #[prost(message, repeated, tag = "7")]
    files: Vec<FileBlocks>,
    #[prost(uint64, tag = "8")]
    entry_bytes: u64,
    #[prost(message, repeated, tag = "9")]
    records: Vec<RecordFileMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct RecordFileMessage {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(message, optional, tag = "2")]
    blocks: Option<FileBlocks>,
    #[prost(message, optional, tag = "3")]
    parity: Option<FileBlocks>,
    #[prost(uint64, tag = "4")]
    live_bytes: u64,
}

impl Manifest {
    /// The manifest of a checkpoint; `None` if it is not complete.
    pub(super) fn read(disk: &dyn Disk, directory: &Path, store: StoreId) -> Result<Option<Self>, ReadError> {
        let path = directory.join(FILE);
        let file = match disk.open(&path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| ReadError::io(&path, 0, error))?,
        };
        let length = file.len().map_err(|error| ReadError::io(&path, 0, error))?;
        let mut bytes = vec![0; length as usize];
        let read = file.read_at(&mut bytes, 0).map_err(|error| ReadError::io(&path, 0, error))?;
        let damaged = |what: &str| ReadError::from(Damage::at(&path, 0, what));
        let (start, body) = bytes[..read].split_at_checked(16).ok_or_else(|| damaged("it is cut short"))?;
        if start[..8] != *MAGIC || start[8..] != xxh3_64(body).to_be_bytes() {
            return Err(damaged("the manifest does not match its checksum"));
        }
        let wire = ManifestMessage::decode(body).map_err(|e| damaged(&e.to_string()))?;
        if wire.store != store.as_bytes() {
            return Err(damaged("the checkpoint belongs to another store"));
        }
        let bytes: Option<&[u8; fingerprint::LEN]> = wire.fingerprint.first_chunk();
        let fingerprint =
            bytes.and_then(Fingerprint::decode).ok_or_else(|| damaged("it has no fingerprint"))?;
        let records = wire.records.into_iter().map(|file| {
            let unchecked = || damaged("a record file has no checksums");
            let (blocks, parity) = (file.blocks.ok_or_else(unchecked)?, file.parity.ok_or_else(unchecked)?);
            Ok((file.number, RecordFileBlocks { blocks, parity, live_bytes: file.live_bytes }))
        });
        Ok(Some(Self {
            records: records.collect::<Result<_, ReadError>>()?,
            head: Head {
                number: wire.frame,
                hash: wire.frame_hash,
                revision: wire.revision,
                compacted: wire.compacted,
            },
            fingerprint,
            entry_bytes: wire.entry_bytes,
            files: wire.files,
        }))
    }

    /// Writes the manifest durably. The files must be durable already.
    pub(super) fn write(&self, disk: &dyn Disk, directory: &Path, store: StoreId) -> io::Result<()> {
        let records = self.records.iter().map(|(number, file)| RecordFileMessage {
            number: *number,
            blocks: Some(file.blocks.clone()),
            parity: Some(file.parity.clone()),
            live_bytes: file.live_bytes,
        });
        let wire = ManifestMessage {
            store: store.as_bytes().to_vec(),
            frame: self.head.number,
            frame_hash: self.head.hash,
            revision: self.head.revision,
            compacted: self.head.compacted,
            fingerprint: self.fingerprint.encode().to_vec(),
            files: self.files.clone(),
            entry_bytes: self.entry_bytes,
            records: records.collect(),
        };
        let body = wire.encode_to_vec();
        let bytes = [&MAGIC[..], &xxh3_64(&body).to_be_bytes(), &body].concat();
        let (path, temporary) = (directory.join(FILE), directory.join("MANIFEST.new"));
        let file = at(&temporary, disk.create(&temporary))?;
        at(&temporary, file.write_all_at(&bytes, 0).and_then(|()| file.sync()))?;
        at(&path, disk.rename(&temporary, &path))?;
        at(directory, disk.sync_dir(directory))
    }

    /// Checks every block of all files. `pace` is called with the length of each block that was read.
    pub(super) fn verify(
        &self,
        disk: &dyn Disk,
        directory: &Path,
        mut pace: impl FnMut(usize),
    ) -> Result<(), ReadError> {
        let mut pace = |bytes: &[u8], _| {
            pace(bytes.len());
            Ok(())
        };
        for file in &self.files {
            file.verify(disk, directory, &mut pace)?;
        }
        let directory = record_file::directory_beside(directory);
        for file in self.records.values() {
            file.blocks.verify(disk, &directory, &mut pace)?;
            file.parity.verify(disk, &directory, &mut pace)?;
        }
        Ok(())
    }

    /// Checks every block of sled's files.
    pub(super) fn verify_sled_files(&self, disk: &dyn Disk, directory: &Path) -> Result<(), ReadError> {
        self.files.iter().try_for_each(|file| file.verify(disk, directory, |_, _| Ok(())))
    }

    /// Checks every block of sled's files and copies them.
    pub(super) fn copy_sled_files(&self, disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), ReadError> {
        for file in &self.files {
            if file.name == record_file::OWN_FILE {
                // Only read, so it needs no copy.
                file.verify(disk, from, |_, _| Ok(()))?;
                continue;
            }
            let path = to.join(&file.name);
            let failed = |error| ReadError::io(&path, 0, error);
            if let Some(parent) = path.parent()
                && !parent.exists()
            {
                disk.create_dir(parent).map_err(failed)?;
            }
            let copy = disk.create(&path).map_err(failed)?;
            file.verify(disk, from, |bytes, offset| copy.write_all_at(bytes, offset).map_err(failed))?;
        }
        Ok(())
    }

    /// Whether the checkpoint has a record file of its own, as format 5 had.
    pub(super) fn has_own_records(&self) -> bool {
        self.files.iter().any(|file| file.name == record_file::OWN_FILE)
    }

    /// The length of sled's files.
    pub(super) fn sled_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }

    /// The length of all files.
    pub(super) fn file_bytes(&self) -> u64 {
        let records = self.records.values().map(|file| file.blocks.length + file.parity.length);
        self.sled_bytes() + records.sum::<u64>()
    }
}

impl FileBlocks {
    /// Makes a file durable and reads it back from the disk.
    pub(super) fn of(disk: &dyn Disk, directory: &Path, name: &str) -> Result<Self, ReadError> {
        Self::of_each(disk, directory, name, |_| ())
    }

    /// The same; `each` gets every block.
    pub(super) fn of_each(
        disk: &dyn Disk,
        directory: &Path,
        name: &str,
        mut each: impl FnMut(&[u8]),
    ) -> Result<Self, ReadError> {
        let path = directory.join(name);
        let failed = |error| ReadError::io(&path, 0, error);
        let file = disk.open(&path, true).map_err(failed)?;
        file.sync().and_then(|()| file.drop_cached()).map_err(failed)?;
        let (mut length, mut blocks, mut buffer) = (0, Vec::new(), vec![0; BLOCK]);
        loop {
            let read = file.read_at(&mut buffer, length);
            let read = read.map_err(|error| ReadError::io(&path, length, error))?;
            if read == 0 {
                break;
            }
            each(&buffer[..read]);
            blocks.push(xxh3_64(&buffer[..read]));
            length += read as u64;
        }
        Ok(Self { name: name.to_owned(), length, blocks })
    }

    /// The number of blocks.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn offset_of(&self, index: usize) -> u64 {
        (index * BLOCK) as u64
    }

    pub(super) fn block_len(&self, index: usize) -> usize {
        self.length.saturating_sub(self.offset_of(index)).min(BLOCK as u64) as usize
    }

    /// Whether this is what was written as that block.
    pub(super) fn is_block(&self, index: usize, bytes: &[u8]) -> bool {
        self.blocks.get(index) == Some(&xxh3_64(bytes))
    }

    /// Opens the file to read its blocks.
    pub(super) fn open<'a>(&'a self, disk: &dyn Disk, directory: &Path) -> Result<OpenBlocks<'a>, ReadError> {
        let path = directory.join(&self.name);
        let file = disk.open(&path, false).map_err(|error| ReadError::opening(&path, error))?;
        Ok(OpenBlocks { blocks: self, path, file })
    }

    /// Checks every block, and calls `each` with it and its offset.
    pub(super) fn verify(
        &self,
        disk: &dyn Disk,
        directory: &Path,
        mut each: impl FnMut(&[u8], u64) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let opened = self.open(disk, directory)?;
        opened.check_length()?;
        let mut buffer = vec![0; BLOCK];
        for index in 0..self.len() {
            each(opened.read_block(index, &mut buffer)?, self.offset_of(index))?;
        }
        Ok(())
    }
}

/// A file whose blocks are checked as they are read.
pub(super) struct OpenBlocks<'a> {
    blocks: &'a FileBlocks,
    pub(super) path: PathBuf,
    pub(super) file: Box<dyn DiskFile>,
}

impl OpenBlocks<'_> {
    pub(super) fn check_length(&self) -> Result<(), ReadError> {
        let length = self.file.len().map_err(|error| ReadError::io(&self.path, 0, error))?;
        if length != self.blocks.length {
            let what = format!("the file has {length} bytes and must have {}", self.blocks.length);
            return Err(Damage::at(&self.path, length.min(self.blocks.length), what).into());
        }
        Ok(())
    }

    /// Reads a block, if it is the one that was written.
    pub(super) fn read_block<'b>(&self, index: usize, buffer: &'b mut [u8]) -> Result<&'b [u8], ReadError> {
        let offset = self.blocks.offset_of(index);
        let read = self.file.read_at(buffer, offset);
        let read = read.map_err(|error| ReadError::io(&self.path, offset, error))?;
        if !self.blocks.is_block(index, &buffer[..read]) {
            return Err(Damage::at(&self.path, offset, "a block does not match its checksum").into());
        }
        Ok(&buffer[..read])
    }

    pub(super) fn block(&self, index: usize) -> Result<Vec<u8>, ReadError> {
        let mut block = vec![0; self.blocks.block_len(index)];
        self.read_block(index, &mut block)?;
        Ok(block)
    }
}

/// The files of a checkpoint by name, without its manifest, and those of directories in it.
pub(super) fn file_names(disk: &dyn Disk, directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for name in at(directory, disk.list(directory))? {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with(FILE) {
            continue;
        }
        let path = directory.join(&name);
        if path.is_dir() {
            let below = at(&path, disk.list(&path))?;
            names.extend(below.iter().map(|file| format!("{name}/{}", file.to_string_lossy())));
        } else {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use muster_mutation::{bytes, cases};
    use proptest::prelude::*;

    use super::super::disk::RealDisk;
    use super::*;

    fn message(store: StoreId) -> Vec<u8> {
        let file = FileBlocks { name: "db".into(), length: 3, blocks: vec![xxh3_64(b"abc")] };
        let message = ManifestMessage {
            store: store.as_bytes().to_vec(),
            frame: 3,
            fingerprint: vec![1; fingerprint::LEN],
            files: vec![file],
            ..Default::default()
        };
        message.encode_to_vec()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: cases().cases / 4, ..cases() })]

        /// With the checksum that belongs to it: behind the checksum, too, nothing is taken for granted.
        #[test]
        fn any_manifest_is_read_or_refused(body in bytes(vec![message(StoreId::nil())])) {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("db"), b"abc").unwrap();
            let file = [&MAGIC[..], &xxh3_64(&body).to_be_bytes(), &body].concat();
            std::fs::write(directory.path().join(FILE), file).unwrap();
            if let Ok(Some(manifest)) = Manifest::read(&RealDisk, directory.path(), StoreId::nil()) {
                // Fails unless the file has these blocks.
                let _ = manifest.verify(&RealDisk, directory.path(), |_| ());
            }
        }
    }
}
