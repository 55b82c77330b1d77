//! Brings the content of a checkpoint up to date: records that changed go into new record files, and their entries into
//! sled.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use muster_proto::record::Kind;
use muster_store_core::fingerprint::{Fingerprint, RecordHash};
use muster_store_core::history::{Revision, StoredRenewal};
use muster_store_core::namespaced_name::NamespacedName;

use super::damage::{Damage, ReadError};
use super::disk::Disk;
use super::entry::{
    Location, RENEWALS, RecordEntry, encode_renewal, parse_record_key, parse_renewal, record_key,
    renewal_key, revision_of,
};
use super::frame::Body;
use super::manifest::FileBlocks;
use super::record_file::{self, RecordFiles, RecordWriter, SharedRecords, space_of};
use super::sled_files::SledFiles;
use crate::ledger::LedgerError;

/// How much is collected before it is written in the order of keys, which costs sled less.
const WINDOW_BYTES: usize = 16 << 20;

/// What a checkpoint contains.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    pub(super) fingerprint: Fingerprint,
    /// The length of sled's keys and entries.
    pub(super) entry_bytes: u64,
    /// How much of each record file is in use. Files that are not here are not needed.
    pub(super) live_bytes: BTreeMap<u32, u64>,
}

/// What an entry becomes.
enum Change {
    Record { lease_id: u32, record: Bytes },
    Renewal(StoredRenewal),
    Removed,
}

impl Change {
    fn len(&self) -> usize {
        if let Change::Record { record, .. } = self { record.len() } else { 0 }
    }
}

/// A checkpoint that is being written.
pub(super) struct CheckpointWriter {
    sled: SledFiles,
    new: RecordWriter,
    shared: SharedRecords,
    /// The entries to write, each with the revision of its change.
    window: BTreeMap<Vec<u8>, (Revision, Change)>,
    window_bytes: usize,
    content: Content,
}

impl CheckpointWriter {
    /// `content` is that of sled's files now. Records that are in `shared` are not written again.
    pub(super) fn new(sled: SledFiles, content: Content, new: RecordWriter, shared: SharedRecords) -> Self {
        Self { sled, new, shared, window: BTreeMap::new(), window_bytes: 0, content }
    }

    /// Adds one record.
    pub(super) fn put_record(
        &mut self,
        kind: Kind,
        key: &NamespacedName,
        revision: Revision,
        lease_id: u32,
        record: &Bytes,
    ) -> Result<(), LedgerError> {
        let record = record.clone();
        self.collect(record_key(kind, key), revision, Change::Record { lease_id, record })
    }

    /// Adds the newest renewal of a lease.
    pub(super) fn put_renewal(
        &mut self,
        revision: Revision,
        renewal: StoredRenewal,
    ) -> Result<(), LedgerError> {
        self.collect(renewal_key(renewal.lease_id), revision, Change::Renewal(renewal))
    }

    /// Applies a commit. What is newer already stays.
    pub(super) fn apply(&mut self, body: Body) -> Result<(), LedgerError> {
        // As in memory: changes first, since a renewal before its lease was written does not count.
        for (revision, change) in &body.changes {
            if change.kind == Kind::Lease {
                self.collect(renewal_key(change.lease_id), *revision, Change::Removed)?;
            }
            if change.deleted {
                self.collect(record_key(change.kind, &change.key()), *revision, Change::Removed)?;
            } else {
                self.put_record(change.kind, &change.key(), *revision, change.lease_id, &change.record)?;
            }
        }
        for (first, pack) in body.renewals {
            for (revision, renewal) in (first..).zip(pack) {
                self.put_renewal(revision, renewal)?;
            }
        }
        Ok(())
    }

    fn collect(&mut self, key: Vec<u8>, revision: Revision, change: Change) -> Result<(), LedgerError> {
        if self.window.get(&key).is_some_and(|(known, _)| *known > revision) {
            return Ok(());
        }
        let key_len = key.len();
        self.window_bytes += key_len + change.len();
        if let Some((_, replaced)) = self.window.insert(key, (revision, change)) {
            self.window_bytes -= key_len + replaced.len();
        }
        if self.window_bytes >= WINDOW_BYTES { self.write_window() } else { Ok(()) }
    }

    /// Writes what was collected, so that the content includes it.
    pub(super) fn write_window(&mut self) -> Result<(), LedgerError> {
        self.window_bytes = 0;
        for (key, (revision, change)) in std::mem::take(&mut self.window) {
            let old = self.sled.get(&key)?;
            if old.as_ref().is_some_and(|old| revision_of(old) >= revision) {
                continue;
            }
            let new = match change {
                Change::Record { lease_id, record } => {
                    let (kind, name) = parse_record_key(&key)?;
                    let hash = RecordHash::of(kind, &name, revision, lease_id, &record);
                    let location = Location { file: 0, offset: 0 };
                    let length = record.len() as u32;
                    let entry = RecordEntry { revision, lease_id, length, location, hash };
                    Some(self.place(&key, entry, &record)?.encode())
                }
                Change::Renewal(renewal) => Some(encode_renewal(revision, renewal)),
                Change::Removed => None,
            };
            self.replace(&key, old.as_deref(), new.as_deref())?;
        }
        Ok(())
    }

    /// The entry with the place of the record: in a file that the other checkpoint has, or in a new one.
    fn place(&mut self, key: &[u8], entry: RecordEntry, record: &[u8]) -> Result<RecordEntry, LedgerError> {
        match self.shared.find(&entry) {
            Some(shared) => Ok(shared),
            None => self.new.append(key, entry, record),
        }
    }

    fn replace(&mut self, key: &[u8], old: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), LedgerError> {
        if let Some(old) = old {
            self.count(key, old, false)?;
        }
        match new {
            Some(new) => {
                self.count(key, new, true)?;
                self.sled.insert(key, new)
            }
            None if old.is_some() => self.sled.remove(key),
            None => Ok(()),
        }
    }

    /// Adds an entry to the content, or removes it.
    fn count(&mut self, key: &[u8], entry: &[u8], added: bool) -> Result<(), LedgerError> {
        let Content { fingerprint, entry_bytes, live_bytes } = &mut self.content;
        let sum = |sum: u64, length: u64| if added { sum + length } else { sum.saturating_sub(length) };
        *entry_bytes = sum(*entry_bytes, (key.len() + entry.len()) as u64);
        if key.first() == Some(&RENEWALS) {
            let (revision, renewal) = parse_renewal(entry)?;
            let (lease_id, renewal) = (renewal.lease_id, renewal.at(revision));
            match added {
                true => fingerprint.add_renewal(lease_id, &renewal),
                false => fingerprint.remove_renewal(lease_id, &renewal),
            }
            return Ok(());
        }
        let (kind, _) = parse_record_key(key)?;
        let entry = RecordEntry::decode(entry)?;
        match added {
            true => fingerprint.add_hashed(kind, entry.hash),
            false => fingerprint.remove_hashed(kind, entry.hash),
        }
        let file = entry.location.file;
        match sum(live_bytes.remove(&file).unwrap_or(0), space_of(key, &entry)) {
            0 => {}
            live => drop(live_bytes.insert(file, live)),
        }
        Ok(())
    }

    /// How much of a record file is in use.
    pub(super) fn live_bytes(&self, file: u32) -> u64 {
        self.content.live_bytes.get(&file).copied().unwrap_or(0)
    }

    /// Moves the records that are still in use out of a file. The window must be written before.
    pub(super) fn move_records(
        &mut self,
        disk: &dyn Disk,
        directory: &Path,
        blocks: &FileBlocks,
        files: &RecordFiles,
    ) -> Result<(), LedgerError> {
        record_file::read_index(disk, directory, blocks, |key, entry| {
            let current = entry.encode();
            if self.sled.get(key)?.as_deref() != Some(&current) {
                return Ok(());
            }
            let record = files.read(&entry)?;
            let (kind, name) = parse_record_key(key)?;
            let hash = RecordHash::of(kind, &name, entry.revision, entry.lease_id, &record);
            if hash != entry.hash {
                let path = directory.join(&blocks.name);
                let what = "a record is not the one that was written";
                return Err(ReadError::from(Damage::at(&path, entry.location.offset, what)).into());
            }
            let moved = self.place(key, entry, &record)?.encode();
            self.replace(key, Some(&current), Some(&moved))
        })
    }

    /// Writes everything out and closes the files; not durable yet.
    pub(super) fn close(mut self) -> Result<Content, LedgerError> {
        self.write_window()?;
        self.new.finish()?;
        self.sled.close()?;
        Ok(self.content)
    }
}
