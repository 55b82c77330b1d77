//! sled as the content of a checkpoint: the newest value of each record, and the newest renewal of each lease.
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
use muster_store_core::fingerprint::Fingerprint;
use muster_store_core::history::{Revision, StoredRenewal};
use muster_store_core::memory::Memory;
use muster_store_core::namespaced_name::NamespacedName;
use sled::Db;

use super::frame::Body;
use crate::ledger::LedgerError;

const RECORDS: u8 = b'k';
const RENEWALS: u8 = b'r';
/// Revision and lease number, in front of a record.
const RECORD_HEADER: usize = 12;

/// How much is collected before it is written in the order of keys, which costs sled less.
const WINDOW_BYTES: usize = 16 << 20;

/// How long to wait until sled has let go of a file.
const CLOSING_TRIES: u32 = 500;
const CLOSING_PAUSE: Duration = Duration::from_millis(10);

/// An entry to write, or `None` to remove it, with the revision of the change.
type Entries = BTreeMap<Vec<u8>, (Revision, Option<Vec<u8>>)>;

/// An open sled database.
pub(super) struct SledFiles {
    directory: PathBuf,
    db: Db,
    window: Entries,
    window_bytes: usize,
    pub(super) fingerprint: Fingerprint,
    pub(super) content_bytes: u64,
}

impl SledFiles {
    /// Opens or creates sled's files. `fingerprint` and `content_bytes` are those of what they contain.
    pub(super) fn open(
        directory: &Path,
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
        Ok(Self { directory, db, window, window_bytes, fingerprint, content_bytes })
    }

    /// Adds one record.
    pub(super) fn put_record(
        &mut self,
        kind: Kind,
        key: &NamespacedName,
        revision: Revision,
        lease_id: u32,
        record: &[u8],
    ) -> Result<(), LedgerError> {
        let mut value = Vec::with_capacity(RECORD_HEADER + record.len());
        value.put_u64(revision);
        value.put_u32(lease_id);
        value.put_slice(record);
        self.collect(record_key(kind, key), revision, Some(value))
    }

    /// Adds the newest renewal of a lease.
    pub(super) fn put_renewal(
        &mut self,
        revision: Revision,
        renewal: StoredRenewal,
    ) -> Result<(), LedgerError> {
        let mut value = Vec::with_capacity(32);
        value.put_u64(revision);
        StoredRenewal::encode_pack(&[renewal], &mut value);
        self.collect(renewal_key(renewal.lease_id), revision, Some(value))
    }

    /// Applies a commit. What is newer already stays.
    pub(super) fn apply(&mut self, body: Body) -> Result<(), LedgerError> {
        // As in memory: changes first, since a renewal before its lease was written does not count.
        for (revision, change) in &body.changes {
            if change.kind == Kind::Lease {
                self.collect(renewal_key(change.lease_id), *revision, None)?;
            }
            if change.deleted {
                self.collect(record_key(change.kind, &change.key()), *revision, None)?;
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

    fn collect(
        &mut self,
        key: Vec<u8>,
        revision: Revision,
        value: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        let bytes = key.len() + value.as_ref().map_or(0, Vec::len);
        if self.window.get(&key).is_some_and(|(known, _)| *known > revision) {
            return Ok(());
        }
        self.window_bytes += bytes;
        self.window.insert(key, (revision, value));
        if self.window_bytes >= WINDOW_BYTES { self.write_window() } else { Ok(()) }
    }

    /// Writes what was collected.
    fn write_window(&mut self) -> Result<(), LedgerError> {
        self.window_bytes = 0;
        for (key, (revision, value)) in std::mem::take(&mut self.window) {
            let db = &self.db;
            let old = guarded(|| db.get(&key))?;
            if old.as_ref().is_some_and(|old| revision_of(old) >= revision) {
                continue;
            }
            if let Some(old) = &old {
                self.content_bytes -= (key.len() + old.len()) as u64;
                count(&mut self.fingerprint, &key, old, false)?;
            }
            match &value {
                Some(value) => {
                    self.content_bytes += (key.len() + value.len()) as u64;
                    count(&mut self.fingerprint, &key, value, true)?;
                    guarded(|| db.insert(&key, value.as_slice()))?;
                }
                None if old.is_some() => {
                    guarded(|| db.remove(&key))?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Reads everything into memory.
    pub(super) fn load(&self, memory: &mut Memory) -> Result<(), LedgerError> {
        let mut entries = self.db.scan_prefix([RECORDS]);
        while let Some(entry) = guarded(|| entries.next().transpose())? {
            let (key, value) = entry;
            let (kind, name) = parse_record_key(&key)?;
            let (mut header, record) = value.split_at_checked(RECORD_HEADER).ok_or_else(cut_short)?;
            let (revision, lease_id) = (header.get_u64(), header.get_u32());
            memory.load_record(kind, name, revision, lease_id, Bytes::copy_from_slice(record));
        }
        let mut entries = self.db.scan_prefix([RENEWALS]);
        while let Some(entry) = guarded(|| entries.next().transpose())? {
            let (revision, renewal) = parse_renewal(&entry.1)?;
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

/// Adds an entry to a fingerprint, or removes it.
fn count(fingerprint: &mut Fingerprint, key: &[u8], value: &[u8], added: bool) -> Result<(), LedgerError> {
    if key.first() == Some(&RENEWALS) {
        let (revision, renewal) = parse_renewal(value)?;
        let (lease_id, renewal) = (renewal.lease_id, renewal.at(revision));
        match added {
            true => fingerprint.add_renewal(lease_id, &renewal),
            false => fingerprint.remove_renewal(lease_id, &renewal),
        }
        return Ok(());
    }
    let (kind, name) = parse_record_key(key)?;
    let (mut header, record) = value.split_at_checked(RECORD_HEADER).ok_or_else(cut_short)?;
    let (revision, lease_id) = (header.get_u64(), header.get_u32());
    match added {
        true => fingerprint.add_record(kind, &name, revision, lease_id, record),
        false => fingerprint.remove_record(kind, &name, revision, lease_id, record),
    }
    Ok(())
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
