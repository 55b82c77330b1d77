//! The format of a backup file: a line that names the format, the records, a checksum.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::{Buf, BufMut, Bytes};
use muster_proto::record::Kind;
use muster_rpc::private_dir;

const MAGIC: &[u8] = b"muster-backup 2\n";
/// The first format, which has no id of the store.
const MAGIC_WITHOUT_ID: &[u8] = b"muster-backup 1\n";

/// All records at one revision.
#[derive(Debug, PartialEq)]
pub(super) struct Backup {
    /// The id of the store; empty if it has none.
    pub(super) store_id: String,
    pub(super) revision: u64,
    pub(super) entries: Vec<Entry>,
}

/// One record.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) record: Bytes,
}

/// Why a backup file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{0} is not a Muster backup, or was made by a later version")]
    NotABackup(PathBuf),
    #[error("{0} is damaged or cut short: its checksum does not match")]
    Damaged(PathBuf),
}

/// Writes the file under a temporary name, syncs it, then renames it. Only its owner may read it: it holds all records.
pub(super) fn write(path: &Path, backup: &Backup) -> Result<(), FileError> {
    let io = |source| FileError::Io { path: path.to_owned(), source };
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    // A file that an interrupted backup left behind may have another mode.
    remove_if_present(Path::new(&partial)).map_err(io)?;
    let mut file = private_dir::file_options().write(true).create_new(true).open(&partial).map_err(io)?;
    file.write_all(&encode(backup)).and_then(|()| file.sync_all()).map_err(io)?;
    std::fs::rename(&partial, path).and_then(|()| sync_parent(path)).map_err(io)
}

fn remove_if_present(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Syncs the parent directory, which makes a new name in it durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

pub(super) fn read(path: &Path) -> Result<Backup, FileError> {
    let bytes = std::fs::read(path).map_err(|source| FileError::Io { path: path.to_owned(), source })?;
    decode(path, bytes.into())
}

fn encode(backup: &Backup) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.put_u32(backup.store_id.len() as u32);
    bytes.put_slice(backup.store_id.as_bytes());
    bytes.put_u64(backup.revision);
    bytes.put_u64(backup.entries.len() as u64);
    for entry in &backup.entries {
        bytes.put_u8(entry.kind as u8);
        bytes.put_u32(entry.record.len() as u32);
        bytes.put_slice(&entry.record);
    }
    let checksum = crc32fast::hash(&bytes);
    bytes.put_u32(checksum);
    bytes
}

fn decode(path: &Path, mut bytes: Bytes) -> Result<Backup, FileError> {
    let has_id = bytes.starts_with(MAGIC);
    if !has_id && !bytes.starts_with(MAGIC_WITHOUT_ID) {
        return Err(FileError::NotABackup(path.to_owned()));
    }
    let damaged = || FileError::Damaged(path.to_owned());
    let body = bytes.len().checked_sub(4).ok_or_else(damaged)?;
    if crc32fast::hash(&bytes[..body]) != bytes.slice(body..).get_u32() {
        return Err(damaged());
    }
    bytes.truncate(body);
    bytes.advance(MAGIC.len());
    let store_id = if has_id { take_text(&mut bytes).ok_or_else(damaged)? } else { String::new() };
    let revision = bytes.try_get_u64().map_err(|_| damaged())?;
    let count = bytes.try_get_u64().map_err(|_| damaged())?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let kind = bytes.try_get_u8().ok().and_then(Kind::from_byte).ok_or_else(damaged)?;
        entries.push(Entry { kind, record: take_piece(&mut bytes).ok_or_else(damaged)? });
    }
    Ok(Backup { store_id, revision, entries })
}

/// The next bytes, with their length in front.
fn take_piece(bytes: &mut Bytes) -> Option<Bytes> {
    let len = bytes.try_get_u32().ok()? as usize;
    (len <= bytes.len()).then(|| bytes.split_to(len))
}

fn take_text(bytes: &mut Bytes) -> Option<String> {
    String::from_utf8(take_piece(bytes)?.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_mutation::{bytes, cases};
    use proptest::prelude::*;

    fn backup() -> Backup {
        let entry = |kind, record: &'static [u8]| Entry { kind, record: Bytes::from_static(record) };
        let entries = vec![entry(Kind::Node, b"a"), entry(Kind::Pod, b"bc")];
        Backup { store_id: "some-id".to_owned(), revision: 7, entries }
    }

    proptest! {
        #![proptest_config(cases())]

        /// With the checksum that belongs to it: somebody may have made the file on purpose.
        #[test]
        fn any_file_is_a_backup_or_refused(mut file in bytes(vec![encode(&backup())])) {
            file.truncate(file.len().saturating_sub(4));
            let checksum = crc32fast::hash(&file);
            file.put_u32(checksum);
            let path = Path::new("backup");
            if let Ok(decoded) = decode(path, file.into()) {
                prop_assert_eq!(decode(path, encode(&decoded).into()).unwrap(), decoded);
            }
        }
    }

    #[test]
    fn a_backup_is_read_back_completely_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("backup");
        write(&path, &backup()).unwrap();
        assert_eq!(read(&path).unwrap(), backup());
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(read(&path).is_err(), "cut to {cut} bytes");
        }
        for byte in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[byte] ^= 4;
            std::fs::write(&path, &damaged).unwrap();
            assert!(read(&path).is_err(), "byte {byte} damaged");
        }
    }

    #[test]
    fn a_backup_of_the_first_format_is_read_without_an_id() {
        let mut bytes = MAGIC_WITHOUT_ID.to_vec();
        bytes.put_u64(7);
        bytes.put_u64(1);
        bytes.put_u8(Kind::Node as u8);
        bytes.put_u32(1);
        bytes.put_slice(b"a");
        let checksum = crc32fast::hash(&bytes);
        bytes.put_u32(checksum);
        let entries = vec![Entry { kind: Kind::Node, record: Bytes::from_static(b"a") }];
        let expected = Backup { store_id: String::new(), revision: 7, entries };
        assert_eq!(decode(Path::new("backup"), bytes.into()).unwrap(), expected);
    }
}
