//! Checkpoints: the present as of some commit, so that a start need not read the whole journal.
//!
//! There are two, used in turn. The newer one is not touched while the older one is brought up to date, and the journal
//! reaches back to the older one. So there is always one from which everything can be read, as long as the record files
//! that both refer to are undamaged.

mod write;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_store_core::history::Revision;
use muster_store_core::memory::Memory;

use super::damage::ReadError;
use super::disk::{Disk, at};
use super::format::StoreId;
use super::journal::{Head, Journal};
use super::manifest::Manifest;
use super::record_file::RecordFiles;
use super::sled_files::SledFiles;
use crate::ledger::LedgerError;

const SLOTS: [&str; 2] = ["checkpoint-a", "checkpoint-b"];
/// Where a copy of a checkpoint is opened.
const SCRATCH: &str = "checkpoint-opened";

/// The two checkpoints of a store.
pub(super) struct Checkpoints {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    store: StoreId,
    cache_bytes: u64,
    /// The manifests of complete checkpoints.
    slots: [Option<Manifest>; 2],
    /// Those that were found damaged since they were complete.
    is_damaged: [bool; 2],
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
        Ok((
            Self { disk, directory: directory.to_owned(), store, cache_bytes, slots, is_damaged: [false; 2] },
            unusable,
        ))
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
                Ok((memory, is_damaged)) => {
                    // The other one may refer to the same record file.
                    self.is_damaged = [is_damaged; 2];
                    return Ok((memory, manifest.head, unusable));
                }
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
            self.load_slot(slot, manifest, manifest.head.revision).ok().map(|(memory, _)| memory)
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
    ) -> Result<(Memory, bool), LedgerError> {
        let mut loaded = self.load_copy(slot, manifest, compacted)?;
        if loaded.is_err() {
            // Every block that was copied is as it must be, so it was the copy that sled could not read: it takes a read
            // error for the end of its log.
            loaded = self.load_copy(slot, manifest, compacted)?;
        }
        loaded
    }

    /// Copies a checkpoint, and reads the copy with sled. The inner result is that of what sled read: the records, and
    /// whether some of them had to be rebuilt.
    fn load_copy(
        &self,
        slot: usize,
        manifest: &Manifest,
        compacted: Revision,
    ) -> Result<Result<(Memory, bool), LedgerError>, LedgerError> {
        let scratch = self.directory.join(SCRATCH);
        let failed = |error: io::Error| LedgerError::Failed(error.to_string());
        self.clear(&scratch).and_then(|()| at(&scratch, self.disk.create_dir(&scratch))).map_err(failed)?;
        manifest.copy_sled_files(&*self.disk, &self.path(slot), &scratch)?;
        let mut records = RecordFiles::open(&*self.disk, &self.path(slot), manifest)?;
        records.verify(&*self.disk, &self.path(slot), manifest)?;
        let mut memory = Memory::at(manifest.head.revision, compacted);
        let read = SledFiles::open(&scratch, self.cache_bytes)
            .and_then(|sled| sled.load(&records, &mut memory).and_then(|()| sled.close()));
        self.clear(&scratch).map_err(failed)?;
        let proven = read.and_then(|()| match manifest.fingerprint.difference(&memory.fingerprint()) {
            Some(difference) => Err(LedgerError::Damaged(format!(
                "{}: all blocks match their checksums, but read by sled {difference}",
                self.path(slot).display()
            ))),
            None => Ok((memory, records.is_damaged())),
        });
        Ok(proven)
    }

    fn clear(&self, directory: &Path) -> io::Result<()> {
        match self.disk.remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            cleared => at(directory, cleared),
        }
    }

    /// Whether a complete checkpoint was found damaged, and is not yet replaced.
    pub(super) fn has_damaged(&self) -> bool {
        (0..2).any(|slot| self.is_damaged[slot] && self.slots[slot].is_some())
    }

    /// Notes that a complete checkpoint is damaged: nothing of it is used again. `false` if it was replaced meanwhile.
    pub(super) fn mark_damaged(&mut self, manifest: &Manifest) -> bool {
        let slot = self.slots.iter().position(|slot| slot.as_ref() == Some(manifest));
        slot.inspect(|slot| self.is_damaged[*slot] = true).is_some()
    }
}
