//! Checkpoints: the present as of some commit, so that a start need not read the whole journal.
//!
//! There are two, used in turn. The newer one is not touched while the older one is brought up to date, and the journal
//! reaches back to the older one. So there is always one from which everything can be read.

use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use muster_proto::record::Kind;
use muster_store_core::fingerprint::Fingerprint;
use muster_store_core::history::{Revision, StoredRenewal};
use muster_store_core::memory::Memory;

use super::damage::ReadError;
use super::disk::{Disk, at};
use super::format::StoreId;
use super::journal::{Head, Journal};
use super::manifest::{self, FileBlocks, Manifest};
use super::record_file::RecordFile;
use super::sled_files::SledFiles;
use crate::ledger::LedgerError;

const SLOTS: [&str; 2] = ["checkpoint-a", "checkpoint-b"];
/// Where a copy of a checkpoint is opened.
const SCRATCH: &str = "checkpoint-opened";

/// A checkpoint is written from scratch once its files are this many times longer than their content.
const MAX_SLACK: u64 = 4;
const SLACK_ALLOWED: u64 = 64 << 20;
/// The same on a disk that is short of space: what was deleted must not keep it full.
const SLACK_ALLOWED_IF_SHORT: u64 = 2 << 20;

/// How many records are copied under one lock of memory.
const CHUNK: usize = 1024;

/// The two checkpoints of a store.
pub(super) struct Checkpoints {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    store: StoreId,
    cache_bytes: u64,
    /// The manifests of complete checkpoints.
    slots: [Option<Manifest>; 2],
}

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub(super) struct Unusable {
    pub(super) path: PathBuf,
    pub(super) reason: String,
}

impl Checkpoints {
    /// Reads the manifests. Those that are damaged do not count, and are returned.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        store: StoreId,
        cache_bytes: u64,
    ) -> Result<(Self, Vec<Unusable>), ReadError> {
        let mut unusable = Vec::new();
        let mut slots = [None, None];
        for (slot, name) in slots.iter_mut().zip(SLOTS) {
            let path = directory.join(name);
            match Manifest::read(&*disk, &path, store) {
                Ok(manifest) => *slot = manifest,
                Err(ReadError::Damaged(damage)) => {
                    unusable.push(Unusable { path, reason: damage.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok((Self { disk, directory: directory.to_owned(), store, cache_bytes, slots }, unusable))
    }

    fn path(&self, slot: usize) -> PathBuf {
        self.directory.join(SLOTS[slot])
    }

    /// The complete checkpoints, the newest first.
    fn by_age(&self) -> Vec<usize> {
        let mut complete: Vec<usize> = (0..2).filter(|slot| self.slots[*slot].is_some()).collect();
        complete.sort_by_key(|slot| std::cmp::Reverse(self.slots[*slot].as_ref().map(|m| m.head.number)));
        complete
    }

    /// The manifest and directory of each complete checkpoint, the newest first.
    pub(super) fn complete(&self) -> Vec<(PathBuf, Manifest)> {
        let manifest = |slot: &usize| Some((self.path(*slot), self.slots[*slot].clone()?));
        self.by_age().iter().filter_map(manifest).collect()
    }

    /// The newest frame that every complete checkpoint contains, if there are two of them: the journal must reach back
    /// to it.
    pub(super) fn oldest_number(&self) -> u64 {
        let numbers = self.slots.iter().map(|slot| slot.as_ref().map_or(0, |manifest| manifest.head.number));
        numbers.min().unwrap_or(0)
    }

    /// The length of the newest checkpoint's files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.by_age().first().and_then(|slot| self.slots[*slot].as_ref()).map_or(0, Manifest::file_bytes)
    }

    /// Loads the newest checkpoint that is undamaged and that the journal continues. Returns its head too; without one,
    /// the empty memory and the beginning, if the journal begins there. The others are returned with the reason.
    pub(super) fn load(
        &mut self,
        journal: &Journal,
        compacted: Revision,
    ) -> Result<(Memory, Head, Vec<Unusable>), LedgerError> {
        let mut unusable = Vec::new();
        for slot in self.by_age() {
            let Some(manifest) = self.slots[slot].clone() else { continue };
            let loaded = self.check_joins(slot, &manifest, journal);
            match loaded.and_then(|()| self.load_slot(slot, &manifest, compacted)) {
                Ok(memory) => return Ok((memory, manifest.head, unusable)),
                Err(LedgerError::Damaged(reason)) => {
                    unusable.push(Unusable { path: self.path(slot), reason });
                    self.slots[slot] = None;
                }
                Err(error) => return Err(error),
            }
        }
        let begin = journal.first_base();
        if begin.number == 0 {
            return Ok((Memory::at(0, compacted), Head::EMPTY, unusable));
        }
        let reasons: Vec<_> = unusable.into_iter().map(|one| format!("; {}", one.reason)).collect();
        Err(LedgerError::Damaged(format!(
            "no checkpoint can be used, and the journal begins only after revision {}{}",
            begin.revision,
            reasons.concat()
        )))
    }

    /// Loads the newest undamaged checkpoint without a journal.
    pub(super) fn load_alone(&self) -> Option<Memory> {
        self.by_age().into_iter().find_map(|slot| {
            let manifest = self.slots[slot].as_ref()?;
            self.load_slot(slot, manifest, manifest.head.revision).ok()
        })
    }

    /// Whether the journal continues the checkpoint.
    fn check_joins(&self, slot: usize, manifest: &Manifest, journal: &Journal) -> Result<(), LedgerError> {
        let (begin, end) = (journal.first_base(), journal.head());
        let Manifest { head, .. } = manifest;
        let joins = (begin.number..=end.number).contains(&head.number)
            && journal.hash_of(head.number)? == Some(head.hash);
        if !joins {
            return Err(LedgerError::Damaged(format!(
                "{} contains frame {}, and the journal has frames {} to {}",
                self.path(slot).display(),
                head.number,
                begin.number + 1,
                end.number
            )));
        }
        Ok(())
    }

    fn load_slot(
        &self,
        slot: usize,
        manifest: &Manifest,
        compacted: Revision,
    ) -> Result<Memory, LedgerError> {
        let head = manifest.head;
        let scratch = self.directory.join(SCRATCH);
        let failed = |error: io::Error| LedgerError::Failed(error.to_string());
        self.clear(&scratch).and_then(|()| at(&scratch, self.disk.create_dir(&scratch))).map_err(failed)?;
        manifest.copy_sled_files(&*self.disk, &self.path(slot), &scratch)?;
        let records = RecordFile::open(&*self.disk, &self.path(slot), false)?;
        let (fingerprint, bytes) = (manifest.fingerprint, manifest.content_bytes);
        let files = SledFiles::open(&scratch, records, self.cache_bytes, fingerprint, bytes)?;
        let mut memory = Memory::at(head.revision, compacted);
        files.load(&mut memory)?;
        files.close()?;
        self.clear(&scratch).map_err(failed)?;
        if let Some(difference) = manifest.fingerprint.difference(&memory.fingerprint()) {
            return Err(LedgerError::Damaged(format!("{}: {difference}", self.path(slot).display())));
        }
        Ok(memory)
    }

    fn clear(&self, directory: &Path) -> io::Result<()> {
        match self.disk.remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            cleared => at(directory, cleared),
        }
    }

    /// Writes a checkpoint of everything that the journal holds by now. The newest complete one stays untouched.
    pub(super) fn write(&mut self, journal: &Journal, memory: &RwLock<Memory>) -> Result<(), LedgerError> {
        let complete = self.by_age();
        let newest = complete.first().copied();
        // If the one that would stay is damaged, it is the one to replace.
        let target = match newest {
            Some(newest) if self.is_intact(newest) => 1 - newest,
            Some(damaged) => {
                self.slots[damaged] = None;
                damaged
            }
            None => 0,
        };
        let allowed = if self.has_space(4 * SLACK_ALLOWED) { SLACK_ALLOWED } else { SLACK_ALLOWED_IF_SHORT };
        let has_slack =
            |manifest: &Manifest| manifest.file_bytes() > allowed + MAX_SLACK * manifest.content_bytes;
        let reusable = self.slots[target].clone().filter(|manifest| {
            let slack = has_slack(manifest);
            let has_frames = manifest.head.number >= journal.first_base().number;
            has_frames && !slack && self.has_space(manifest.file_bytes() / 2) && self.is_intact(target)
        });
        let mut written = self.write_slot(target, reusable, journal, memory);
        if written.is_ok() && self.slots[target].as_ref().is_some_and(has_slack) {
            // It holds little more than what was deleted since.
            written = self.write_slot(target, None, journal, memory);
        }
        if written.is_err() {
            // Incomplete, and perhaps in the way of what needs the space.
            let _ = self.clear(&self.path(target));
        }
        written
    }

    fn is_intact(&self, slot: usize) -> bool {
        let Some(manifest) = &self.slots[slot] else { return false };
        match manifest.verify(&*self.disk, &self.path(slot), |_| ()) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%error, "a checkpoint is damaged; it is written again");
                false
            }
        }
    }

    fn has_space(&self, bytes: u64) -> bool {
        self.disk.available(&self.directory).is_ok_and(|available| available > bytes)
    }

    fn write_slot(
        &mut self,
        slot: usize,
        reusable: Option<Manifest>,
        journal: &Journal,
        memory: &RwLock<Memory>,
    ) -> Result<(), LedgerError> {
        let failed = |error: io::Error| LedgerError::Failed(error.to_string());
        let path = self.path(slot);
        self.slots[slot] = None;
        let (mut files, from) = match reusable {
            Some(manifest) => {
                let tag = path.join(manifest::FILE);
                at(&tag, self.disk.remove_file(&tag)).map_err(failed)?;
                at(&path, self.disk.sync_dir(&path)).map_err(failed)?;
                let (fingerprint, bytes) = (manifest.fingerprint, manifest.content_bytes);
                let records = RecordFile::open(&*self.disk, &path, true)?;
                let files = SledFiles::open(&path, records, self.cache_bytes, fingerprint, bytes)?;
                (files, manifest.head.number + 1)
            }
            None => {
                self.clear(&path).map_err(failed)?;
                at(&path, self.disk.create_dir(&path)).map_err(failed)?;
                let mut files = SledFiles::create(&*self.disk, &path, self.cache_bytes)?;
                let from = copy_memory(memory, &mut files)?;
                (files, journal.first_frame_after(from))
            }
        };
        // Copying memory takes a while: what was committed meanwhile is in the journal.
        let (head, expected) = journal.head_and_fingerprint();
        journal.read_frames(from, head.number, |_, _, body| files.apply(body))?;
        files.finish()?;
        let (found, content_bytes) = (files.fingerprint, files.content_bytes);
        files.close()?;
        if let Some(difference) = expected.unwrap_or(found).difference(&found) {
            return Err(LedgerError::Damaged(format!("{}: {difference}", path.display())));
        }
        self.complete_slot(slot, head, found, content_bytes)
    }

    /// Makes the files durable, reads them back and writes the manifest.
    fn complete_slot(
        &mut self,
        slot: usize,
        head: Head,
        fingerprint: Fingerprint,
        content_bytes: u64,
    ) -> Result<(), LedgerError> {
        let path = self.path(slot);
        let failed = |error: io::Error| LedgerError::Failed(error.to_string());
        let names = manifest::file_names(&*self.disk, &path).map_err(failed)?;
        let files = names.iter().map(|name| FileBlocks::of(&*self.disk, &path, name));
        let manifest = Manifest { head, fingerprint, content_bytes, files: files.collect::<Result<_, _>>()? };
        let blobs = path.join("blobs");
        if blobs.exists() {
            at(&blobs, self.disk.sync_dir(&blobs)).map_err(failed)?;
        }
        manifest.write(&*self.disk, &path, self.store).map_err(failed)?;
        at(&self.directory, self.disk.sync_dir(&self.directory)).map_err(failed)?;
        self.slots[slot] = Some(manifest);
        Ok(())
    }

    /// Writes the first checkpoint of a new directory from records that are all in memory.
    pub(super) fn import(&mut self, memory: &RwLock<Memory>, head: Head) -> Result<(), LedgerError> {
        let path = self.path(0);
        let failed = |error: io::Error| LedgerError::Failed(error.to_string());
        at(&path, self.disk.create_dir(&path)).map_err(failed)?;
        let mut files = SledFiles::create(&*self.disk, &path, self.cache_bytes)?;
        copy_memory(memory, &mut files)?;
        files.finish()?;
        let (fingerprint, content_bytes) = (files.fingerprint, files.content_bytes);
        files.close()?;
        self.complete_slot(0, head, fingerprint, content_bytes)
    }
}

/// Copies all records and renewals, a part at a time, so that the writer is not held up. Returns the revision that the
/// copy contains at least; it may contain parts of later commits.
fn copy_memory(memory: &RwLock<Memory>, files: &mut SledFiles) -> Result<Revision, LedgerError> {
    let read = || memory.read().unwrap_or_else(PoisonError::into_inner);
    let from = read().head();
    for kind in Kind::ALL {
        let mut last = None;
        loop {
            let after = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let chunk: Vec<_> = {
                let memory = read();
                let records = memory.scan(kind, after).take(CHUNK);
                records.map(|(key, current)| (key.clone(), current.clone())).collect()
            };
            for (key, current) in &chunk {
                files.put_record(kind, key, current.revision, current.lease_id, &current.record)?;
            }
            match chunk.into_iter().next_back() {
                Some((key, _)) => last = Some(key),
                None => break,
            }
        }
    }
    let renewals: Vec<_> = read().leases.renewals().collect();
    for (lease_id, renewal) in renewals {
        let stored = StoredRenewal {
            lease_id,
            status_age_millis: renewal.status_age_millis,
            status_digest: renewal.status_digest,
            at_micros: renewal.at_micros,
        };
        files.put_renewal(renewal.revision, stored)?;
    }
    Ok(from)
}
