//! The content of a checkpoint: the newest value of each record, and the newest renewal of each lease.
//!
//! sled holds an entry for each of them. That of a record says where it lies in the [`RecordFile`] beside it.
//!
//! sled's recovery overwrites what it cannot read, and reports some damage by a panic. So it only gets files that were
//! checked before, and never the only copy of anything; its panics become errors.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use muster_proto::record::Kind;
use muster_store_core::fingerprint::{Fingerprint, RecordHash};
use muster_store_core::history::{Revision, StoredRenewal};
use muster_store_core::memory::Memory;
use muster_store_core::namespaced_name::NamespacedName;
use sled::Db;

use super::disk::Disk;
use super::frame::Body;
use super::record_file::RecordFile;
use crate::ledger::LedgerError;

const RECORDS: u8 = b'k';
const RENEWALS: u8 = b'r';
/// How much is collected before it is written in the order of keys, which costs sled less.
const WINDOW_BYTES: usize = 16 << 20;

/// How long to wait until sled has let go of a file.
const CLOSING_TRIES: u32 = 500;
const CLOSING_PAUSE: Duration = Duration::from_millis(10);

/// What an entry becomes.
enum Change {
    Record { lease_id: u32, record: Bytes },
    Renewal(StoredRenewal),
    Removed,
}

/// The entries to write, each with the revision of its change.
type Entries = BTreeMap<Vec<u8>, (Revision, Change)>;

/// sled's entry of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RecordEntry {
    revision: Revision,
    lease_id: u32,
    length: u32,
    offset: u64,
    hash: RecordHash,
}

impl RecordEntry {
    const LEN: usize = 40;

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::LEN);
        bytes.put_u64(self.revision);
        bytes.put_u32(self.lease_id);
        bytes.put_u32(self.length);
        bytes.put_u64(self.offset);
        bytes.put_u128(self.hash.0);
        bytes
    }

    fn decode(mut entry: &[u8]) -> Result<Self, LedgerError> {
        if entry.len() != Self::LEN {
            return Err(cut_short());
        }
        Ok(Self {
            revision: entry.get_u64(),
            lease_id: entry.get_u32(),
            length: entry.get_u32(),
            offset: entry.get_u64(),
            hash: RecordHash(entry.get_u128()),
        })
    }
}

/// The open files of a checkpoint.
pub(super) struct SledFiles {
    directory: PathBuf,
    db: Db,
    records: RecordFile,
    window: Entries,
    window_bytes: usize,
    pub(super) fingerprint: Fingerprint,
    pub(super) content_bytes: u64,
}

impl SledFiles {
    /// Creates the files of a checkpoint in an empty directory.
    pub(super) fn create(disk: &dyn Disk, directory: &Path, cache_bytes: u64) -> Result<Self, LedgerError> {
        let records = RecordFile::create(disk, directory)?;
        Self::open(directory, records, cache_bytes, Fingerprint::default(), 0)
    }

    /// Opens sled's files beside the records. `fingerprint` and `content_bytes` are those of what they contain.
    pub(super) fn open(
        directory: &Path,
        records: RecordFile,
        cache_bytes: u64,
        fingerprint: Fingerprint,
        content_bytes: u64,
    ) -> Result<Self, LedgerError> {
        let config = sled::Config::new()
            .path(directory)
            .mode(sled::Mode::HighThroughput)
            .cache_capacity(cache_bytes)
            .flush_every_ms(None);
        let db = guarded(|| config.open())?;
        let directory = directory.to_owned();
        let (window, window_bytes) = (Entries::new(), 0);
        Ok(Self { directory, db, records, window, window_bytes, fingerprint, content_bytes })
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
        self.window_bytes += key.len();
        if let Change::Record { record, .. } = &change {
            self.window_bytes += record.len();
        }
        self.window.insert(key, (revision, change));
        if self.window_bytes >= WINDOW_BYTES { self.write_window() } else { Ok(()) }
    }

    /// Writes what was collected.
    fn write_window(&mut self) -> Result<(), LedgerError> {
        self.window_bytes = 0;
        let db = self.db.clone();
        for (key, (revision, change)) in std::mem::take(&mut self.window) {
            let old = guarded(|| db.get(&key))?;
            if old.as_ref().is_some_and(|old| revision_of(old) >= revision) {
                continue;
            }
            let new = match change {
                Change::Record { lease_id, record } => {
                    let (kind, name) = parse_record_key(&key)?;
                    let hash = RecordHash::of(kind, &name, revision, lease_id, &record);
                    let (offset, length) = (self.records.append(&record)?, record.len() as u32);
                    Some(RecordEntry { revision, lease_id, length, offset, hash }.encode())
                }
                Change::Renewal(renewal) => Some(encode_renewal(revision, renewal)),
                Change::Removed => None,
            };
            if let Some(old) = &old {
                self.count(&key, old, false)?;
            }
            match &new {
                Some(new) => {
                    self.count(&key, new, true)?;
                    guarded(|| db.insert(&key, new.as_slice()))?;
                }
                None if old.is_some() => {
                    guarded(|| db.remove(&key))?;
                }
                None => {}
            }
        }
        self.records.write_out()
    }

    /// Adds an entry to the fingerprint and the length of the content, or removes it.
    fn count(&mut self, key: &[u8], entry: &[u8], added: bool) -> Result<(), LedgerError> {
        let mut length = (key.len() + entry.len()) as u64;
        if key.first() == Some(&RENEWALS) {
            let (revision, renewal) = parse_renewal(entry)?;
            let (lease_id, renewal) = (renewal.lease_id, renewal.at(revision));
            match added {
                true => self.fingerprint.add_renewal(lease_id, &renewal),
                false => self.fingerprint.remove_renewal(lease_id, &renewal),
            }
        } else {
            let (kind, _) = parse_record_key(key)?;
            let entry = RecordEntry::decode(entry)?;
            length += u64::from(entry.length);
            match added {
                true => self.fingerprint.add_hashed(kind, entry.hash),
                false => self.fingerprint.remove_hashed(kind, entry.hash),
            }
        }
        self.content_bytes =
            if added { self.content_bytes + length } else { self.content_bytes.saturating_sub(length) };
        Ok(())
    }

    /// Reads everything into memory.
    pub(super) fn load(&self, memory: &mut Memory) -> Result<(), LedgerError> {
        let mut entries = self.db.scan_prefix([RECORDS]);
        while let Some((key, entry)) = guarded(|| entries.next().transpose())? {
            let (kind, name) = parse_record_key(&key)?;
            let RecordEntry { revision, lease_id, length, offset, .. } = RecordEntry::decode(&entry)?;
            memory.load_record(kind, name, revision, lease_id, self.records.read(offset, length)?);
        }
        let mut entries = self.db.scan_prefix([RENEWALS]);
        while let Some((_, entry)) = guarded(|| entries.next().transpose())? {
            let (revision, renewal) = parse_renewal(&entry)?;
            memory.load_renewal(&renewal, revision);
        }
        Ok(())
    }

    /// Writes everything out and closes the files.
    pub(super) fn close(mut self) -> Result<(), LedgerError> {
        self.write_window()?;
        let Self { directory, db, .. } = self;
        guarded(|| db.flush())?;
        guarded(|| {
            drop(db);
            Ok(())
        })?;
        wait_until_closed(&directory)
    }

    /// Writes out what was collected, so that the fingerprint includes it.
    pub(super) fn finish(&mut self) -> Result<(), LedgerError> {
        self.write_window()
    }
}

/// sled's own threads may hold the file a moment longer, and write to it. It is locked until they are done.
fn wait_until_closed(directory: &Path) -> Result<(), LedgerError> {
    let path = directory.join("db");
    let file =
        File::open(&path).map_err(|error| LedgerError::Failed(format!("{}: {error}", path.display())))?;
    for _ in 0..CLOSING_TRIES {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(CLOSING_PAUSE),
            Err(error) => return Err(LedgerError::Failed(format!("{}: {error}", path.display()))),
        }
    }
    Err(LedgerError::Failed(format!("sled does not close {}", path.display())))
}

fn record_key(kind: Kind, key: &NamespacedName) -> Vec<u8> {
    let mut bytes = vec![RECORDS, kind as u8];
    bytes.extend_from_slice(key.namespace().as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(key.name().as_bytes());
    bytes
}

fn parse_record_key(key: &[u8]) -> Result<(Kind, NamespacedName), LedgerError> {
    let parsed = || {
        let (kind, names) = key.get(1..)?.split_first()?;
        let (namespace, name) = std::str::from_utf8(names).ok()?.split_once('\0')?;
        Some((Kind::from_byte(*kind)?, NamespacedName::new(namespace, name)))
    };
    parsed()
        .ok_or_else(|| LedgerError::Damaged(format!("the key {} is not one of a record", key.escape_ascii())))
}

fn renewal_key(lease_id: u32) -> Vec<u8> {
    let mut bytes = vec![RENEWALS];
    bytes.put_u32(lease_id);
    bytes
}

fn encode_renewal(revision: Revision, renewal: StoredRenewal) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    bytes.put_u64(revision);
    StoredRenewal::encode_pack(&[renewal], &mut bytes);
    bytes
}

fn parse_renewal(value: &[u8]) -> Result<(Revision, StoredRenewal), LedgerError> {
    let (mut revision, renewal) = value.split_at_checked(8).ok_or_else(cut_short)?;
    let revision = revision.get_u64();
    let decoded = StoredRenewal::decode_pack(revision, renewal).map_err(LedgerError::Damaged)?;
    Ok((revision, *decoded.first().ok_or_else(cut_short)?))
}

fn revision_of(mut value: &[u8]) -> Revision {
    if value.len() < 8 { 0 } else { value.get_u64() }
}

fn cut_short() -> LedgerError {
    LedgerError::Damaged("an entry of the checkpoint is cut short".to_owned())
}

thread_local! {
    /// Set while this thread is inside sled.
    static IN_SLED: Cell<bool> = const { Cell::new(false) };
}

/// Calls sled. A panic becomes an error, and is not printed.
pub(super) fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, LedgerError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_sled = |location: &std::panic::Location<'_>| location.file().contains("/sled-");
            if !IN_SLED.get() && !panic.location().is_some_and(is_sled) {
                print(panic);
            }
        }));
    });
    IN_SLED.set(true);
    let called = catch_unwind(AssertUnwindSafe(call));
    IN_SLED.set(false);
    match called {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(error))) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(LedgerError::Failed("the checkpoint is in use by another process".to_owned()))
        }
        Ok(Err(error)) => Err(LedgerError::Failed(format!("the checkpoint: {error}"))),
        Err(_) => Err(LedgerError::Failed("the checkpoint: sled could not go on".to_owned())),
    }
}
