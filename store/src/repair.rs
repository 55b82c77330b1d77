//! `muster-store check` and `muster-store repair`.

use std::path::Path;

use muster_rpc::private_dir;

use crate::RunError;
use crate::backup::{BackupError, first_revision, random_number};
use crate::config::Flags;
use crate::ledger::embedded::{EmbeddedLedger, OpenError, inspect, is_empty_volume, salvage};

/// `muster-store check`: prints what is undamaged and what is not.
pub fn check_main(flags: &Flags) -> Result<(), RunError> {
    let found = inspect(&flags.data_dir, flags.cache_bytes)?;
    for line in &found.intact {
        println!("ok       {line}");
    }
    for line in &found.damaged {
        println!("DAMAGED  {line}");
    }
    match found.damaged.is_empty() {
        true => Ok(()),
        false => Err(RunError::Damaged(flags.data_dir.clone())),
    }
}

/// `muster-store repair`: writes what can be proven into a new directory.
pub fn repair_main(into: &Path, flags: &Flags) -> Result<(), RunError> {
    let unusable = |source| OpenError::Directory { path: into.to_owned(), source };
    let existing = private_dir::check("--into", into).map_err(OpenError::from)?;
    if into.exists() && !is_empty_volume(into, &[]).map_err(unusable)? {
        return Err(BackupError::Occupied(into.to_owned()).into());
    }
    let found = salvage(&flags.data_dir, flags.cache_bytes)?;
    for line in &found.damaged {
        println!("DAMAGED  {line}");
    }
    let (records, head) = (found.memory.fingerprint().records(), found.memory.head());
    // Others may have seen what is lost: its revisions are not used again.
    let next = first_revision(found.newest, random_number());
    let next = next.ok_or(BackupError::NoRevisionsLeft(found.newest))?;
    existing.map_or(Ok(()), |existing| existing.restrict()).map_err(unusable)?;
    EmbeddedLedger::import(into, found.store, found.memory.without_history(next), flags.cache_bytes)?;
    println!("{records} records as of revision {head} are in {}", into.display());
    if found.newest > head {
        println!("LOST     all changes after revision {head}: the files mention revision {}", found.newest);
    }
    Ok(())
}
