//! The manifest of a checkpoint: which commit it contains, and a checksum of every block of its files.
//!
//! It is written last and removed before the files are touched again, so a checkpoint with a manifest is complete. With it
//! the files are checked before sled sees them.

use std::io;
use std::path::{Path, PathBuf};

use muster_store_core::fingerprint::{self, Fingerprint};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::damage::{Damage, ReadError};
use super::disk::{Disk, at};
use super::format::StoreId;
use super::journal::Head;
use super::record_file;

pub(super) const FILE: &str = "MANIFEST";
const MAGIC: &[u8; 8] = b"MUSTERC5";
/// The length of a block with a checksum of its own.
const BLOCK: usize = 64 * 1024;

/// What a complete checkpoint contains.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Manifest {
    pub(super) head: Head,
    pub(super) fingerprint: Fingerprint,
    /// The length of all keys and values.
    pub(super) content_bytes: u64,
    pub(super) files: Vec<FileBlocks>,
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
    content_bytes: u64,
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
        let bytes: &[u8; fingerprint::LEN] =
            wire.fingerprint.first_chunk().ok_or_else(|| damaged("it has no fingerprint"))?;
        Ok(Some(Self {
            head: Head {
                number: wire.frame,
                hash: wire.frame_hash,
                revision: wire.revision,
                compacted: wire.compacted,
            },
            fingerprint: Fingerprint::decode(bytes),
            content_bytes: wire.content_bytes,
            files: wire.files,
        }))
    }

    /// Writes the manifest durably. The files must be durable already.
    pub(super) fn write(&self, disk: &dyn Disk, directory: &Path, store: StoreId) -> io::Result<()> {
        let wire = ManifestMessage {
            store: store.as_bytes().to_vec(),
            frame: self.head.number,
            frame_hash: self.head.hash,
            revision: self.head.revision,
            compacted: self.head.compacted,
            fingerprint: self.fingerprint.encode().to_vec(),
            files: self.files.clone(),
            content_bytes: self.content_bytes,
        };
        let body = wire.encode_to_vec();
        let bytes = [&MAGIC[..], &xxh3_64(&body).to_be_bytes(), &body].concat();
        let (path, temporary) = (directory.join(FILE), directory.join("MANIFEST.new"));
        let file = at(&temporary, disk.create(&temporary))?;
        at(&temporary, file.write_all_at(&bytes, 0).and_then(|()| file.sync()))?;
        at(&path, disk.rename(&temporary, &path))?;
        at(directory, disk.sync_dir(directory))
    }

    /// Checks every block of the files. `pace` is called with the length of each block that was read.
    pub(super) fn verify(
        &self,
        disk: &dyn Disk,
        directory: &Path,
        mut pace: impl FnMut(usize),
    ) -> Result<(), ReadError> {
        for file in &self.files {
            file.verify(disk, directory, |bytes, _| {
                pace(bytes.len());
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Checks every block, and copies sled's files. The records are only read, so they need no copy.
    pub(super) fn copy_sled_files(&self, disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), ReadError> {
        for file in &self.files {
            if file.name == record_file::FILE {
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

    /// The length of all files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }
}

impl FileBlocks {
    /// Makes a file durable and reads it back from the disk.
    pub(super) fn of(disk: &dyn Disk, directory: &Path, name: &str) -> Result<Self, ReadError> {
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
            blocks.push(xxh3_64(&buffer[..read]));
            length += read as u64;
        }
        Ok(Self { name: name.to_owned(), length, blocks })
    }

    fn verify(
        &self,
        disk: &dyn Disk,
        directory: &Path,
        mut each: impl FnMut(&[u8], u64) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let path: PathBuf = directory.join(&self.name);
        let file = disk.open(&path, false).map_err(|error| ReadError::io(&path, 0, error))?;
        let length = file.len().map_err(|error| ReadError::io(&path, 0, error))?;
        if length != self.length {
            let what = format!("the file has {length} bytes and must have {}", self.length);
            return Err(Damage::at(&path, length.min(self.length), what).into());
        }
        let mut buffer = vec![0; BLOCK];
        for (index, expected) in self.blocks.iter().enumerate() {
            let offset = (index * BLOCK) as u64;
            let read = file.read_at(&mut buffer, offset);
            let read = read.map_err(|error| ReadError::io(&path, offset, error))?;
            if xxh3_64(&buffer[..read]) != *expected {
                return Err(Damage::at(&path, offset, "a block does not match its checksum").into());
            }
            each(&buffer[..read], offset)?;
        }
        Ok(())
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
