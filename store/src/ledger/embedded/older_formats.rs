//! Conversion of data directories of the formats 1 to 4, which kept all history in sled.
//!
//! The old files are read from a copy, because opening them may change them. The new ones are written beside them, loaded
//! again and compared; only then do the old ones go. The current records are kept, their history is not: watches from
//! before the conversion list again.

mod value_codec;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use bytes::Bytes;
use muster_proto::record::Kind;
use muster_rpc::private_dir;
use muster_store_core::history::{Revision, StoredChange, StoredRenewal};
use muster_store_core::lease_table::Renewal;
use muster_store_core::memory::{Memory, lease_with_renewal};
use muster_store_core::partial_decode;
use prost::Message;
use sled::Db;
use uuid::Uuid;

use self::value_codec::Piece;
use super::sled_files::guarded;
use super::{EmbeddedLedger, LedgerError, OpenError, StoreId, format};

/// Keys of whole values and of a split value's first piece, and of its further pieces.
const VALUES: u8 = b'd';
const PIECES: u8 = b'p';
/// The number of the last transaction in the tree.
const APPLIED: &[u8] = b"j";
const HEAD: &[u8] = b"m/head";
const CHANGES: u8 = b'v';
const RENEWALS: u8 = b'w';

const LOG: &str = "db";
const OLD_JOURNAL: &str = "journal";
/// Where the old files are copied to and read from.
const COPY: &str = "converting";
/// Where the new files are written.
const CONVERTED: &str = "converted";
/// Where the old files are moved to before they are deleted.
const REPLACED: &str = "replaced-format";

/// Converts a directory to the current format.
pub(super) fn convert(directory: &Path, cache_bytes: u64) -> Result<StoreId, OpenError> {
    let unusable = |source| OpenError::Directory { path: directory.to_owned(), source };
    let unready = |source| OpenError::Unready { path: directory.to_owned(), source };
    let converted = directory.join(CONVERTED);
    let is_complete = converted.exists() && format::read(&converted).is_ok_and(|tag| tag.store().is_some());
    if !is_complete {
        if !directory.join(LOG).exists() {
            return Err(unready(LedgerError::Damaged("the files of its records are gone".to_owned())));
        }
        remove_all(&converted).map_err(unusable)?;
        let memory = read_copy(directory, cache_bytes).map_err(unready)?;
        let fingerprint = memory.fingerprint();
        tracing::info!(
            records = fingerprint.records(),
            "the data directory is converted to the current format"
        );
        EmbeddedLedger::import(&converted, Uuid::new_v4(), memory, cache_bytes)?;
        let loaded = EmbeddedLedger::open(&converted, cache_bytes)?.load_proven(|_| ()).map_err(unready)?;
        if let Some(difference) = fingerprint.difference(&loaded.fingerprint()) {
            return Err(unready(LedgerError::Damaged(format!("after the conversion {difference}"))));
        }
    }
    replace(directory, &converted).map_err(unusable)?;
    let incomplete = || unready(LedgerError::Failed("the conversion was not completed".to_owned()));
    format::read(directory)?.store().ok_or_else(incomplete)
}

/// Puts the new files in the place of the old ones. The new tag comes last: until then this is done again.
fn replace(directory: &Path, converted: &Path) -> io::Result<()> {
    let replaced = directory.join(REPLACED);
    private_dir::create_dir_all(&replaced)?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_old(&name.to_string_lossy(), entry.file_type()?.is_dir()) {
            fs::rename(entry.path(), replaced.join(name))?;
        }
    }
    fs::File::open(directory)?.sync_all()?;
    format::move_into(converted, directory)?;
    remove_all(&replaced)
}

fn is_old(name: &str, is_directory: bool) -> bool {
    match name {
        LOG | "conf" => true,
        "blobs" => is_directory,
        OLD_JOURNAL => !is_directory,
        name => name.starts_with("snap."),
    }
}

fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Reads all current records from a copy of the old files.
fn read_copy(directory: &Path, cache_bytes: u64) -> Result<Memory, LedgerError> {
    let failed = |error: io::Error| LedgerError::Failed(error.to_string());
    let copy = directory.join(COPY);
    remove_all(&copy).and_then(|()| private_dir::create_dir(&copy)).map_err(failed)?;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let is_directory = entry.file_type().map_err(failed)?.is_dir();
        if !is_old(&name.to_string_lossy(), is_directory) {
            continue;
        }
        if is_directory {
            private_dir::create_dir(&copy.join(&name)).map_err(failed)?;
            for file in fs::read_dir(entry.path()).map_err(failed)? {
                let file = file.map_err(failed)?;
                fs::copy(file.path(), copy.join(&name).join(file.file_name())).map_err(failed)?;
            }
        } else {
            fs::copy(entry.path(), copy.join(&name)).map_err(failed)?;
        }
    }
    let config = sled::Config::new().path(&copy).cache_capacity(cache_bytes).flush_every_ms(None);
    let db = guarded(|| config.open())?;
    replay_journal(&db, &copy.join(OLD_JOURNAL))?;
    let memory = read_records(&db)?;
    guarded(|| {
        drop(db);
        Ok(())
    })?;
    remove_all(&copy).map_err(failed)?;
    Ok(memory)
}

/// An entry of the old journal.
#[derive(Clone, PartialEq, Message)]
struct JournalEntry {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(message, repeated, tag = "2")]
    changes: Vec<JournalChange>,
    #[prost(fixed64, tag = "3")]
    generation: u64,
}

#[derive(Clone, PartialEq, Message)]
struct JournalChange {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", optional, tag = "2")]
    value: Option<Vec<u8>>,
}

/// Puts the transactions of the journal into the tree that it lacks.
fn replay_journal(db: &Db, path: &Path) -> Result<(), LedgerError> {
    let written = match fs::read(path) {
        Ok(written) => written,
        // Formats 1 and 2 had none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(LedgerError::Failed(error.to_string())),
    };
    let mut applied = match guarded(|| db.get(APPLIED))?.map(|number| <[u8; 8]>::try_from(&*number)) {
        None => 0,
        Some(Ok(number)) => u64::from_be_bytes(number),
        Some(Err(_)) => return Err(LedgerError::Damaged("the number of the last transaction".to_owned())),
    };
    for entry in journal_entries(&written) {
        if entry.number > applied + 1 {
            let gap = format!(
                "the journal goes on with transaction {}, the rest ends with {applied}",
                entry.number
            );
            return Err(LedgerError::Damaged(gap));
        }
        if entry.number <= applied {
            continue;
        }
        for JournalChange { key, value } in &entry.changes {
            guarded(|| match value {
                Some(value) => db.insert(key, value.as_slice()),
                None => db.remove(key),
            })?;
        }
        applied = entry.number;
    }
    Ok(())
}

/// The entries since the journal was begun anew: those of its first entry's generation. Format 3 held one, with 0.
fn journal_entries(mut written: &[u8]) -> Vec<JournalEntry> {
    let mut entries: Vec<JournalEntry> = Vec::new();
    while let Some((checksum, rest)) = written.split_first_chunk::<4>()
        && let Some((length, body)) = rest.split_first_chunk::<8>()
        && let Ok(length) = usize::try_from(u64::from_be_bytes(*length))
        && let Some((body, following)) = body.split_at_checked(length)
    {
        let is_whole = crc32fast::hash(&rest[..8 + length]) == u32::from_be_bytes(*checksum);
        written = following;
        let Some(entry) = is_whole.then(|| JournalEntry::decode(body).ok()).flatten() else { continue };
        let first = entries.first().map(|first| first.generation);
        if first.is_some_and(|first| first == 0 || first != entry.generation) {
            break;
        }
        entries.push(entry);
    }
    entries
}

/// The current records: the newest change of each, and of leases the newest renewal.
fn read_records(db: &Db) -> Result<Memory, LedgerError> {
    let head = match read_value(db, HEAD)? {
        None => 0,
        Some(head) => {
            let number = <[u8; 8]>::try_from(&*head);
            u64::from_be_bytes(number.map_err(|_| LedgerError::Damaged("m/head is not a number".to_owned()))?)
        }
    };
    let mut current: BTreeMap<_, (Revision, StoredChange)> = BTreeMap::new();
    for (revision, value) in values(db, CHANGES)? {
        let change = StoredChange::decode(&value)
            .map_err(|reason| LedgerError::Damaged(format!("revision {revision}: {reason}")))?;
        if revision > head {
            let beyond = format!("they end at revision {head}, and hold changes up to {revision}");
            return Err(LedgerError::Damaged(beyond));
        }
        let key = (change.kind, change.key());
        match change.deleted {
            true => drop(current.remove(&key)),
            false => drop(current.insert(key, (revision, change))),
        }
    }
    let mut renewals: BTreeMap<u32, Renewal> = BTreeMap::new();
    for (first, value) in values(db, RENEWALS)? {
        let pack = StoredRenewal::decode_pack(first, &value).map_err(LedgerError::Damaged)?;
        for (revision, renewal) in (first..).zip(pack) {
            renewals.insert(renewal.lease_id, renewal.at(revision));
        }
    }
    let mut memory = Memory::at(head, head);
    for ((kind, key), (revision, change)) in current {
        let (revision, record) = match (kind, renewals.get(&change.lease_id)) {
            (Kind::Lease, newest) => with_newest_renewal(revision, change.record, newest),
            _ => (revision, change.record),
        };
        memory.load_record(kind, key, revision, change.lease_id, record);
    }
    Ok(memory)
}

/// A lease with its newest renewal, as of that renewal's revision. One that was folded into the stored value gave it a
/// higher version than that of the change.
fn with_newest_renewal(revision: Revision, record: Bytes, newest: Option<&Renewal>) -> (Revision, Bytes) {
    let version = partial_decode::metadata(&record).resource_version.max(revision);
    match newest.filter(|renewal| renewal.revision > version) {
        Some(renewal) => (renewal.revision, lease_with_renewal(&record, renewal)),
        None => (version, record),
    }
}

/// All values below a prefix, by revision.
fn values(db: &Db, prefix: u8) -> Result<Vec<(Revision, Bytes)>, LedgerError> {
    let mut found = Vec::new();
    let mut entries = db.scan_prefix([VALUES, prefix]);
    while let Some(entry) = guarded(|| entries.next().transpose())? {
        let (key, stored) = entry;
        let revision = <[u8; 8]>::try_from(&key[2..])
            .map_err(|_| LedgerError::Damaged(format!("the key {} is not a revision", key.escape_ascii())))?;
        found.push((u64::from_be_bytes(revision), whole_value(db, &key[1..], &stored)?));
    }
    Ok(found)
}

fn read_value(db: &Db, key: &[u8]) -> Result<Option<Bytes>, LedgerError> {
    let stored = guarded(|| db.get([&[VALUES], key].concat()))?;
    stored.map(|stored| whole_value(db, key, &stored)).transpose()
}

fn whole_value(db: &Db, key: &[u8], stored: &[u8]) -> Result<Bytes, LedgerError> {
    let damaged = |reason: String| LedgerError::Damaged(format!("key {}: {reason}", key.escape_ascii()));
    match value_codec::decode(stored).map_err(damaged)? {
        Piece::Whole(value) => Ok(Bytes::copy_from_slice(value)),
        Piece::Next(_) => Err(damaged("a following piece stands where a value begins".to_owned())),
        Piece::First { following, value } => {
            let mut whole = value.to_vec();
            for index in 0..following as u32 {
                let piece = guarded(|| db.get([&[PIECES], key, &index.to_be_bytes()].concat()))?;
                let piece =
                    piece.ok_or_else(|| damaged(format!("piece {index} of {following} is missing")))?;
                match value_codec::decode(&piece).map_err(damaged)? {
                    Piece::Next(value) => whole.extend_from_slice(value),
                    _ => return Err(damaged(format!("piece {index} is not a following piece"))),
                }
            }
            Ok(whole.into())
        }
    }
}

#[cfg(test)]
mod tests;
