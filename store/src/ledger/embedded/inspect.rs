//! `muster-store check` and `repair`: the same reading code as a start. Neither changes a file that holds data.

use std::path::Path;
use std::sync::Arc;

use muster_store_core::history::Revision;
use muster_store_core::memory::Memory;

use super::checkpoint::Checkpoints;
use super::disk::{Disk, RealDisk};
use super::journal::Journal;
use super::{EmbeddedLedger, JOURNAL, OpenError, StoreId, format, lock, warn_of};

/// What was found in a data directory.
#[derive(Debug, Default)]
pub struct Inspection {
    /// One line about each part that is undamaged.
    pub intact: Vec<String>,
    /// One line about each damage, with the file and the place in it.
    pub damaged: Vec<String>,
}

/// Reads everything in a data directory that no store is running on.
pub fn inspect(directory: &Path, cache_bytes: u64) -> Result<Inspection, OpenError> {
    let mut found = Inspection::default();
    let Some(store) = current_store(directory)? else {
        found.intact.push(format!("{} is new or of an older format", directory.display()));
        return Ok(found);
    };
    let lock = lock(directory)?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let opened = Checkpoints::open(Arc::clone(&disk), directory, store, cache_bytes);
    let (checkpoints, unusable) = opened.map_err(|error| OpenError::read(directory, error))?;
    found.damaged.extend(unusable.into_iter().map(|one| one.reason));
    for (path, manifest) in checkpoints.complete() {
        match manifest.verify(&*disk, &path, |_| ()) {
            Ok(()) => found.intact.push(format!(
                "{} has {} records as of revision {}",
                path.display(),
                manifest.fingerprint.records(),
                manifest.head.revision
            )),
            Err(error) => found.damaged.push(error.to_string()),
        }
    }
    // Both may refer to the same record file.
    found.damaged.dedup();
    let journal = match Journal::open(Arc::clone(&disk), &directory.join(JOURNAL), store, false) {
        Ok(journal) => journal,
        Err(error) => {
            found.damaged.push(error.to_string());
            return Ok(found);
        }
    };
    let (first, last) = (journal.first_base(), journal.head());
    found.intact.push(format!(
        "the journal has frames {} to {}, up to revision {}",
        first.number + 1,
        last.number,
        last.revision
    ));
    let ledger = EmbeddedLedger::of(disk, directory, store, journal, checkpoints, lock);
    match ledger.load_proven(|_| ()) {
        Ok(memory) => found.intact.push(format!(
            "all {} records as of revision {} are there",
            memory.fingerprint().records(),
            memory.head()
        )),
        Err(error) => found.damaged.push(error.to_string()),
    }
    Ok(found)
}

/// All of a data directory. It stays locked.
pub struct Contents {
    pub store: StoreId,
    pub memory: Memory,
    _ledger: EmbeddedLedger,
}

/// Reads all of a data directory that no store is running on, and changes nothing. `None` if it is new or of an older format.
pub fn contents(directory: &Path, cache_bytes: u64) -> Result<Option<Contents>, OpenError> {
    let Some(store) = current_store(directory)? else { return Ok(None) };
    let lock = lock(directory)?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let read = |error| OpenError::read(directory, error);
    let journal = Journal::open(Arc::clone(&disk), &directory.join(JOURNAL), store, false).map_err(read)?;
    let opened = Checkpoints::open(Arc::clone(&disk), directory, store, cache_bytes);
    let (checkpoints, unusable) = opened.map_err(read)?;
    warn_of(&unusable);
    let ledger = EmbeddedLedger::of(disk, directory, store, journal, checkpoints, lock);
    let unready = |source| OpenError::Unready { path: directory.to_owned(), source };
    let memory = ledger.load_proven(|_| ()).map_err(unready)?;
    Ok(Some(Contents { store, memory, _ledger: ledger }))
}

/// What can be proven of a damaged directory.
pub struct Salvage {
    pub store: StoreId,
    /// The records as of the last commit that can be proven.
    pub memory: Memory,
    /// What is damaged.
    pub damaged: Vec<String>,
    /// The newest revision that the files mention. What lies between the records' and this one is lost.
    pub newest: Revision,
}

/// Reads the newest state that can be proven: a checkpoint and the undamaged frames that continue it.
pub fn salvage(directory: &Path, cache_bytes: u64) -> Result<Salvage, OpenError> {
    let unready = |what: &str| OpenError::Unready {
        path: directory.to_owned(),
        source: super::LedgerError::Damaged(what.to_owned()),
    };
    let Some(store) = current_store(directory)? else {
        return Err(unready("it is new or of an older format, so there is nothing to repair"));
    };
    let _lock = lock(directory)?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let read = |error| OpenError::read(directory, error);
    let (parts, mut damaged) = Journal::open_parts(&disk, &directory.join(JOURNAL), store).map_err(read)?;
    let mut newest = parts.iter().map(|part| part.head().revision).max().unwrap_or(0);
    let checkpoints = || Checkpoints::open(Arc::clone(&disk), directory, store, cache_bytes).map_err(read);
    let (alone, unusable) = checkpoints()?;
    damaged.extend(unusable.into_iter().map(|one| one.reason));
    let mut best = alone.load_alone();
    for part in parts {
        let (checkpoints, _) = checkpoints()?;
        let scratch_lock = std::fs::File::open(directory.join(format::LOCK))
            .map_err(|source| OpenError::Directory { path: directory.to_owned(), source })?;
        let ledger = EmbeddedLedger::of(Arc::clone(&disk), directory, store, part, checkpoints, scratch_lock);
        match ledger.load_proven(|_| ()) {
            Ok(memory) if best.as_ref().is_none_or(|best| best.head() < memory.head()) => best = Some(memory),
            Ok(_) => {}
            Err(error) => damaged.push(error.to_string()),
        }
    }
    let memory = best.ok_or_else(|| unready("nothing in it can be proven to be complete"))?;
    newest = newest.max(memory.head());
    Ok(Salvage { store, memory, damaged, newest })
}

fn current_store(directory: &Path) -> Result<Option<StoreId>, OpenError> {
    Ok(format::read(directory)?.store())
}
