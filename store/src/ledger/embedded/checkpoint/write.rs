//! Writing checkpoints: which of the two, from what, and out of which record files the records are moved.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use muster_proto::record::Kind;
use muster_store_core::fingerprint::Fingerprint;
use muster_store_core::history::{Revision, StoredRenewal};
use muster_store_core::memory::Memory;

use super::super::checkpoint_writer::{CheckpointWriter, Content};
use super::super::damage::ReadError;
use super::super::disk::at;
use super::super::journal::{Head, Journal};
use super::super::manifest::{self, FileBlocks, Manifest, RecordFileBlocks};
use super::super::parity;
use super::super::record_file::{self, RecordFiles, RecordWriter, SharedRecords};
use super::super::sled_files::SledFiles;
use super::Checkpoints;
use crate::ledger::LedgerError;

/// sled's files are written from scratch once they are this many times longer than their content, and the records are
/// moved out of a record file that is this many times longer than those in use.
const MAX_SLACK: u64 = 4;
/// What sled's files may be longer besides.
const SLACK_ALLOWED: u64 = 64 << 20;
/// The same on a disk that is short of space: what was deleted must not keep it full.
const SLACK_ALLOWED_IF_SHORT: u64 = 2 << 20;
/// Record files below this length are put together once there are more than so many: a checkpoint that has few new records
/// writes a short one.
const SHORT_FILE: u64 = 4 << 20;
const MAX_SHORT_FILES: usize = 16;

/// How many records are copied under one lock of memory.
const CHUNK: usize = 1024;

impl Checkpoints {
    /// Writes a checkpoint of everything that the journal holds by now. The newest complete one stays untouched.
    pub(in super::super) fn write(
        &mut self,
        journal: &Journal,
        memory: &RwLock<Memory>,
    ) -> Result<(), LedgerError> {
        let newest = self.by_age().first().copied();
        let mut target = newest.map_or(0, |newest| 1 - newest);
        let mut base =
            self.slots[target].clone().filter(|manifest| self.can_continue(target, manifest, journal));
        let mut shared = SharedRecords::default();
        if let Some(newest) = newest {
            match self.shared_records(newest, base.as_ref()) {
                Ok(found) => shared = found,
                Err(error) => {
                    tracing::error!(%error, "a checkpoint is damaged; it is written again");
                    self.slots[newest] = None;
                    if self.slots[target].is_some() {
                        // The one that would stay is damaged, so it is the one to replace.
                        target = newest;
                    }
                    base = None;
                }
            }
        }
        let mut written = self.write_slot(target, base.as_ref(), shared, journal, memory);
        if written.is_ok() && self.slots[target].as_ref().is_some_and(|manifest| self.has_slack(manifest)) {
            // sled's files hold little more than what was deleted since.
            written = self
                .shared_records(target, None)
                .and_then(|shared| self.write_slot(target, None, shared, journal, memory));
        }
        match &written {
            Ok(()) => self.remove_unused_records(),
            // Incomplete, and perhaps in the way of what needs the space.
            Err(_) => drop(self.clear(&self.path(target))),
        }
        written
    }

    /// Whether a checkpoint can be brought up to date instead of being written from scratch.
    fn can_continue(&self, slot: usize, manifest: &Manifest, journal: &Journal) -> bool {
        let has_frames = manifest.head.number >= journal.first_base().number;
        let is_usable = !self.is_damaged[slot] && !manifest.has_own_records() && !self.has_slack(manifest);
        if !has_frames || !is_usable || !self.has_space(manifest.sled_bytes() / 2) {
            return false;
        }
        let verified = manifest.verify_sled_files(&*self.disk, &self.path(slot));
        if let Err(error) = &verified {
            tracing::error!(%error, "a checkpoint is damaged; it is written again");
        }
        verified.is_ok()
    }

    fn has_slack(&self, manifest: &Manifest) -> bool {
        let allowed = if self.has_space(4 * SLACK_ALLOWED) { SLACK_ALLOWED } else { SLACK_ALLOWED_IF_SHORT };
        manifest.sled_bytes() > allowed + MAX_SLACK * manifest.entry_bytes
    }

    fn has_space(&self, bytes: u64) -> bool {
        self.disk.available(&self.directory).is_ok_and(|available| available > bytes)
    }

    /// The records of a complete checkpoint in files that `base` does not refer to. Checks those files and sled's: after
    /// this, another checkpoint depends on them.
    fn shared_records(&self, slot: usize, base: Option<&Manifest>) -> Result<SharedRecords, LedgerError> {
        let mut shared = SharedRecords::default();
        let Some(manifest) = &self.slots[slot] else { return Ok(shared) };
        if self.is_damaged[slot] {
            let path = self.path(slot);
            return Err(LedgerError::Damaged(format!("{} was found damaged", path.display())));
        }
        manifest.verify_sled_files(&*self.disk, &self.path(slot))?;
        for (number, file) in &manifest.records {
            if base.is_none_or(|base| !base.records.contains_key(number)) {
                shared.add(&*self.disk, &self.records_directory(), &file.blocks)?;
            }
        }
        Ok(shared)
    }

    fn records_directory(&self) -> PathBuf {
        self.directory.join(record_file::DIRECTORY)
    }

    fn write_slot(
        &mut self,
        slot: usize,
        base: Option<&Manifest>,
        shared: SharedRecords,
        journal: &Journal,
        memory: &RwLock<Memory>,
    ) -> Result<(), LedgerError> {
        let failed = |error: io::Error| LedgerError::Failed(error.to_string());
        let path = self.path(slot);
        let known = self.known_record_files(base);
        let first_new = self.next_file_number(&known).map_err(failed)?;
        self.slots[slot] = None;
        let written = match base {
            Some(manifest) => self.continue_slot(&path, manifest, shared, first_new, journal),
            None => self.write_from_memory(&path, shared, first_new, memory, Some(journal)),
        };
        let completed = written.and_then(|(head, content)| self.complete_slot(slot, head, content, &known));
        if completed.is_err() {
            self.remove_records(|number| number >= first_new);
        }
        completed
    }

    /// Brings a checkpoint up to date from the journal.
    fn continue_slot(
        &self,
        path: &Path,
        base: &Manifest,
        shared: SharedRecords,
        first_new: u32,
        journal: &Journal,
    ) -> Result<(Head, Content), LedgerError> {
        let failed = |error: io::Error| LedgerError::Failed(error.to_string());
        let tag = path.join(manifest::FILE);
        at(&tag, self.disk.remove_file(&tag)).map_err(failed)?;
        at(path, self.disk.sync_dir(path)).map_err(failed)?;
        let content = Content {
            fingerprint: base.fingerprint,
            entry_bytes: base.entry_bytes,
            live_bytes: base.records.iter().map(|(number, file)| (*number, file.live_bytes)).collect(),
        };
        let mut writer = self.writer(path, content, shared, first_new)?;
        let (head, expected) = journal.head_and_fingerprint();
        journal.read_frames(base.head.number + 1, head.number, |_, _, body| writer.apply(body))?;
        writer.write_window()?;
        let files = RecordFiles::open(&*self.disk, path, base)?;
        for number in self.outdated_files(base, &writer) {
            let blocks = &base.records[&number].blocks;
            writer.move_records(&*self.disk, &self.records_directory(), blocks, &files)?;
        }
        Ok((head, proven(path, writer.close()?, expected)?))
    }

    /// Writes a checkpoint from scratch, and from the journal what was committed meanwhile.
    fn write_from_memory(
        &self,
        path: &Path,
        shared: SharedRecords,
        first_new: u32,
        memory: &RwLock<Memory>,
        journal: Option<&Journal>,
    ) -> Result<(Head, Content), LedgerError> {
        let failed = |error: io::Error| LedgerError::Failed(error.to_string());
        self.clear(path).map_err(failed)?;
        at(path, self.disk.create_dir(path)).map_err(failed)?;
        let mut writer = self.writer(path, Content::default(), shared, first_new)?;
        let revision = copy_memory(memory, &mut writer)?;
        let Some(journal) = journal else { return Ok((Head::EMPTY, writer.close()?)) };
        let from = journal.first_frame_after(revision);
        // Copying memory takes a while: what was committed meanwhile is in the journal.
        let (head, expected) = journal.head_and_fingerprint();
        journal.read_frames(from, head.number, |_, _, body| writer.apply(body))?;
        Ok((head, proven(path, writer.close()?, expected)?))
    }

    fn writer(
        &self,
        path: &Path,
        content: Content,
        shared: SharedRecords,
        first_new: u32,
    ) -> Result<CheckpointWriter, LedgerError> {
        let sled = SledFiles::open(path, self.cache_bytes)?;
        let new = RecordWriter::new(Arc::clone(&self.disk), self.records_directory(), first_new);
        Ok(CheckpointWriter::new(sled, content, new, shared))
    }

    /// The record files of a checkpoint out of which its records are to be moved.
    fn outdated_files(&self, base: &Manifest, writer: &CheckpointWriter) -> Vec<u32> {
        // The other checkpoint has them elsewhere by now.
        let other = self.by_age().first().and_then(|slot| self.slots[*slot].as_ref());
        let is_short = |file: &RecordFileBlocks| file.blocks.length < SHORT_FILE;
        let has_many_short = base.records.values().filter(|file| is_short(file)).count() > MAX_SHORT_FILES;
        let is_outdated = |number: u32, file: &RecordFileBlocks| {
            let live = writer.live_bytes(number);
            live > 0
                && (live * MAX_SLACK < file.blocks.length
                    || other.is_some_and(|other| !other.records.contains_key(&number))
                    || (has_many_short && is_short(file)))
        };
        let files = base.records.iter().filter(|(number, file)| is_outdated(**number, file));
        files.map(|(number, _)| *number).collect()
    }

    /// The record files that complete checkpoints refer to, and those of `base`.
    fn known_record_files(&self, base: Option<&Manifest>) -> BTreeMap<u32, RecordFileBlocks> {
        let manifests = self.slots.iter().flatten().chain(base);
        let files = manifests.flat_map(|manifest| &manifest.records);
        files.map(|(number, file)| (*number, file.clone())).collect()
    }

    fn next_file_number(&self, known: &BTreeMap<u32, RecordFileBlocks>) -> io::Result<u32> {
        let found = record_file::numbers(&*self.disk, &self.records_directory())?;
        Ok(found.into_iter().chain(known.keys().copied()).max().unwrap_or(0) + 1)
    }

    /// Deletes the record files that no complete checkpoint refers to.
    fn remove_unused_records(&self) {
        let known = self.known_record_files(None);
        self.remove_records(|number| !known.contains_key(&number));
    }

    /// Deletes record files. If that fails, it is done again after the next checkpoint.
    fn remove_records(&self, which: impl Fn(u32) -> bool) {
        let directory = self.records_directory();
        let removed = record_file::numbers(&*self.disk, &directory).and_then(|numbers| {
            for number in numbers.into_iter().filter(|number| which(*number)) {
                parity::remove(&*self.disk, &directory, number)?;
            }
            Ok(())
        });
        if let Err(error) = removed {
            tracing::warn!(%error, "a record file that is not needed any more could not be deleted");
        }
    }

    /// Makes the files durable, reads the new ones back and writes the manifest.
    fn complete_slot(
        &mut self,
        slot: usize,
        head: Head,
        content: Content,
        known: &BTreeMap<u32, RecordFileBlocks>,
    ) -> Result<(), LedgerError> {
        let (path, records_directory) = (self.path(slot), self.records_directory());
        let failed = |error: io::Error| LedgerError::Failed(error.to_string());
        let names = manifest::file_names(&*self.disk, &path).map_err(failed)?;
        let files = names.iter().map(|name| FileBlocks::of(&*self.disk, &path, name));
        let Content { fingerprint, entry_bytes, live_bytes } = content;
        let records = live_bytes.into_iter().map(|(number, live_bytes)| {
            let file = match known.get(&number) {
                Some(file) => file.clone(),
                None => parity::complete(&*self.disk, &records_directory, number)?,
            };
            Ok((number, RecordFileBlocks { live_bytes, ..file }))
        });
        let manifest = Manifest {
            head,
            fingerprint,
            entry_bytes,
            files: files.collect::<Result<_, _>>()?,
            records: records.collect::<Result<_, ReadError>>()?,
        };
        for directory in [records_directory, path.join("blobs")] {
            if directory.exists() {
                at(&directory, self.disk.sync_dir(&directory)).map_err(failed)?;
            }
        }
        manifest.write(&*self.disk, &path, self.store).map_err(failed)?;
        at(&self.directory, self.disk.sync_dir(&self.directory)).map_err(failed)?;
        self.slots[slot] = Some(manifest);
        self.is_damaged[slot] = false;
        Ok(())
    }

    /// Writes the first checkpoint of a new directory from records that are all in memory.
    pub(in super::super) fn import(
        &mut self,
        memory: &RwLock<Memory>,
        head: Head,
    ) -> Result<(), LedgerError> {
        let (_, content) =
            self.write_from_memory(&self.path(0), SharedRecords::default(), 1, memory, None)?;
        self.complete_slot(0, head, content, &BTreeMap::new())
    }
}

/// The content, if its fingerprint is the one that was committed.
fn proven(path: &Path, content: Content, expected: Option<Fingerprint>) -> Result<Content, LedgerError> {
    match expected.and_then(|expected| expected.difference(&content.fingerprint)) {
        Some(difference) => Err(LedgerError::Damaged(format!("{}: {difference}", path.display()))),
        None => Ok(content),
    }
}

/// Copies all records and renewals, a part at a time, so that the writer is not held up. Returns the revision that the
/// copy contains at least; it may contain parts of later commits.
fn copy_memory(memory: &RwLock<Memory>, writer: &mut CheckpointWriter) -> Result<Revision, LedgerError> {
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
                writer.put_record(kind, key, current.revision, current.lease_id, &current.record)?;
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
        writer.put_renewal(renewal.revision, stored)?;
    }
    Ok(from)
}
