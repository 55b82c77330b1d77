//! `muster-store migrate`: moves a whole store from a data directory into etcd, or back, while no store runs on either.
//!
//! Records keep their uids and resource versions, and the store keeps its id. The history is left behind: the store
//! continues at a revision far above, as after a restore, so that nobody who has watched one side can mistake changes of the
//! other for those that follow. The source stays as it is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_etcd::requests::get;
use muster_etcd::{Client, EtcdError};
use muster_rpc::clock::SystemClock;
use muster_rpc::private_dir;
use muster_store_core::fingerprint::Fingerprint;
use tokio::runtime::Runtime;

use crate::RunError;
use crate::backup::{first_revision, random_number, sync_parent};
use crate::config::{EtcdConfig, Flags};
use crate::durable_dir::create_dir_all_durable;
use crate::leadership::{Candidate, Holding};
use crate::ledger::LedgerError;
use crate::ledger::embedded::{EmbeddedLedger, OpenError, contents, is_empty_volume, move_into};
use crate::ledger::etcd::{
    BlockingClient, EtcdLedger, Identity, IdentityError, Import, ImportError, Kv, find,
};

/// The directory within the target in which files are prepared.
const STAGING_DIRECTORY: &str = "migrating";
/// What stores that stand by name as the leader meanwhile.
const NAME: &str = "muster-store migrate";
/// How long etcd may take to answer a read.
const DEADLINE: Duration = Duration::from_secs(2);
/// How often the leader's key is claimed while etcd does not answer.
const ATTEMPTS: usize = 10;

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the etcd of --etcd-endpoints.
    Etcd,
    Directory(PathBuf),
}

impl From<&str> for Place {
    /// A directory of the name `etcd` is `./etcd`.
    fn from(text: &str) -> Self {
        match text {
            "etcd" => Place::Etcd,
            directory => Place::Directory(directory.into()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Etcd => f.write_str("etcd"),
            Place::Directory(directory) => directory.display().fmt(f),
        }
    }
}

/// Why a store was not moved. The target does not count as a store, and the source is as it was.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("--from {from} and --to {to}: one of them must be `etcd`, and the other one a data directory")]
    Places { from: Place, to: Place },
    #[error("--from: {0} holds no store")]
    NoDirectory(PathBuf),
    #[error("--from: {0} has an older format: start this version of muster-store on it once, and stop it")]
    NoCurrentDirectory(PathBuf),
    #[error("--from: there is no store below {0} in etcd")]
    NoStore(String),
    #[error("the store below {prefix} in etcd is in use: {leader} leads; stop all stores first")]
    InUse { prefix: String, leader: String },
    #[error("--to: {0} is not empty: give a new directory, or move this one away")]
    Occupied(PathBuf),
    #[error(
        "--to: there is a store below {0} in etcd already: give another --etcd-prefix, or delete its keys"
    )]
    OccupiedPrefix(String),
    #[error("{0}; give another --etcd-prefix, or delete the keys; nothing was written")]
    NotEmpty(ImportError),
    #[error("what was written is not what was read: {0}; nothing of it counts")]
    Differs(String),
    #[error("the source was written to meanwhile: {0}; nothing that was written counts")]
    Changed(String),
    #[error("the records are at revision {0}, and a store cannot continue above it")]
    NoRevisionsLeft(u64),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("etcd: {0}")]
    Etcd(#[from] EtcdError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Import(ImportError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{path}: {source}")]
    Directory { path: PathBuf, source: std::io::Error },
}

impl From<ImportError> for MigrateError {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::NotEmpty(_) => MigrateError::NotEmpty(error),
            other => MigrateError::Import(other),
        }
    }
}

/// `muster-store migrate --from FROM --to TO`.
pub fn main(from: &str, to: &str, flags: &Flags) -> Result<(), RunError> {
    match (Place::from(from), Place::from(to)) {
        (Place::Directory(directory), Place::Etcd) => into_etcd(&directory, flags),
        (Place::Etcd, Place::Directory(directory)) => out_of_etcd(&directory, flags),
        (from, to) => Err(MigrateError::Places { from, to }.into()),
    }
}

fn into_etcd(directory: &Path, flags: &Flags) -> Result<(), RunError> {
    let target = Target::new(flags)?;
    // Both sides are looked at before anything is written.
    match find(&*target.kv, &target.etcd.keys) {
        Ok(None) | Err(IdentityError::Unfinished { .. }) => {}
        Ok(Some(_)) => return Err(MigrateError::OccupiedPrefix(target.etcd.prefix).into()),
        Err(error) => return Err(MigrateError::from(error).into()),
    }
    if !directory.is_dir() {
        return Err(MigrateError::NoDirectory(directory.to_owned()).into());
    }
    let source = contents(directory, flags.cache_bytes)?;
    let source = source.ok_or_else(|| MigrateError::NoCurrentDirectory(directory.to_owned()))?;
    let (fingerprint, next) = (source.memory.fingerprint(), next_revision(source.memory.head())?);
    println!(
        "{} as of revision {} are read from {}",
        amount(&fingerprint),
        source.memory.head(),
        directory.display()
    );

    let holding = target.claim(Identity { store: source.store, format_revision: 0 })?;
    let moving = || -> Result<(), MigrateError> {
        let import = Import::begin(Arc::clone(&target.kv), target.etcd.keys.clone(), holding.term.clone())?;
        import.write(&source.memory, next)?;
        compare(&fingerprint, &import.read_back(source.store)?.fingerprint())?;
        Ok(import.complete(source.store)?)
    };
    let moved = moving();
    target.release(holding);
    moved?;
    println!("{} are in etcd below {}, the same as were read", amount(&fingerprint), target.etcd.prefix);
    println!(
        "the store continues there at revision {next}; do not start one on {} again",
        directory.display()
    );
    Ok(())
}

fn out_of_etcd(directory: &Path, flags: &Flags) -> Result<(), RunError> {
    let staging = directory.join(STAGING_DIRECTORY);
    let failed = |source| MigrateError::Directory { path: directory.to_owned(), source };
    let found = private_dir::check("--to", directory).map_err(OpenError::from)?;
    if directory.exists() && !is_empty_volume(directory, &[&staging]).map_err(failed)? {
        return Err(MigrateError::Occupied(directory.to_owned()).into());
    }
    let source = Target::new(flags)?;
    let identity = find(&*source.kv, &source.etcd.keys).map_err(MigrateError::from)?;
    let identity = identity.ok_or_else(|| MigrateError::NoStore(source.etcd.prefix.clone()))?;

    let holding = source.claim(identity)?;
    let moving = || -> Result<(Fingerprint, u64), MigrateError> {
        let (kv, keys) = (Arc::clone(&source.kv), source.etcd.keys.clone());
        let ledger = EtcdLedger::holding(kv, keys, identity, &holding.term);
        let memory = ledger.read_all()?;
        let (fingerprint, head) = (memory.fingerprint(), memory.head());
        println!(
            "{} as of revision {head} are read from etcd below {}",
            amount(&fingerprint),
            source.etcd.prefix
        );
        let next = next_revision(head)?;
        create_dir_all_durable(directory).map_err(failed)?;
        found.map_or(Ok(()), |found| found.restrict()).map_err(failed)?;
        // Left by an earlier migration that was interrupted.
        if staging.exists() {
            std::fs::remove_dir_all(&staging).map_err(failed)?;
        }
        EmbeddedLedger::import(&staging, identity.store, memory.without_history(next), flags.cache_bytes)?;
        let written = contents(&staging, flags.cache_bytes)?;
        let written = written.ok_or_else(|| MigrateError::Differs("there is no store".to_owned()))?;
        compare(&fingerprint, &written.memory.fingerprint())?;
        drop(written);
        let changed = |error: LedgerError| MigrateError::Changed(error.to_string());
        match ledger.read_revision().map_err(changed)? {
            same if same == head => {}
            other => return Err(MigrateError::Changed(format!("it is at revision {other} now"))),
        }
        move_into(&staging, directory).and_then(|()| sync_parent(directory)).map_err(failed)?;
        Ok((fingerprint, next))
    };
    let moved = moving();
    source.release(holding);
    let (fingerprint, next) = moved?;
    println!("{} are in {}, the same as were read", amount(&fingerprint), directory.display());
    println!(
        "the store continues there at revision {next}; do not start one on etcd below {} again",
        source.etcd.prefix
    );
    Ok(())
}

/// Where the store continues.
fn next_revision(head: u64) -> Result<u64, MigrateError> {
    first_revision(head, random_number()).ok_or(MigrateError::NoRevisionsLeft(head))
}

fn compare(read: &Fingerprint, written: &Fingerprint) -> Result<(), MigrateError> {
    read.difference(written).map_or(Ok(()), |difference| Err(MigrateError::Differs(difference)))
}

fn amount(fingerprint: &Fingerprint) -> impl fmt::Display {
    format!("{} records", fingerprint.records())
}

/// An etcd, and the leader's key in it while this process holds it.
struct Target {
    runtime: Runtime,
    client: Arc<Client>,
    kv: Arc<dyn Kv>,
    etcd: EtcdConfig,
}

impl Target {
    fn new(flags: &Flags) -> Result<Self, RunError> {
        let etcd = EtcdConfig::try_from(&flags.etcd)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let within = runtime.enter();
        let client = Arc::new(Client::new(&etcd.endpoints, &etcd.tls)?);
        let kv: Arc<dyn Kv> = Arc::new(BlockingClient::new(Arc::clone(&client)));
        drop(within);
        Ok(Self { runtime, client, kv, etcd })
    }

    /// Takes the leader's key, which no store may have, and keeps it.
    ///
    /// Everything that is written compares the key, so its loss needs no other care.
    fn claim(&self, identity: Identity) -> Result<Holding, MigrateError> {
        let (client, keys) = (Arc::clone(&self.client), self.etcd.keys.clone());
        let clock = SystemClock::shared();
        let candidate = Candidate { client, keys, identity, address: NAME.to_owned(), clock };
        self.runtime.block_on(async {
            let mut last = EtcdError::Unknown("the leader's key could not be claimed".to_owned());
            for _ in 0..ATTEMPTS {
                match self.leader_or_key(&candidate).await {
                    Ok(Ok(holding)) => return Ok(holding),
                    Ok(Err(Some(leader))) => {
                        return Err(MigrateError::InUse { prefix: self.etcd.prefix.clone(), leader });
                    }
                    Ok(Err(None)) => {}
                    Err(error) if error.is_passing() => last = error,
                    Err(error) => return Err(error.into()),
                }
                candidate.wait(false).await;
            }
            Err(last.into())
        })
    }

    /// The leader's key, or who has it.
    async fn leader_or_key(
        &self,
        candidate: &Candidate,
    ) -> Result<Result<Holding, Option<String>>, EtcdError> {
        let found = self.client.range(get(candidate.keys.leader()), DEADLINE).await?;
        if let Some(leader) = found.kvs.first() {
            return Ok(Err(Some(String::from_utf8_lossy(&leader.value).into_owned())));
        }
        Ok(candidate.claim().await?.ok_or(None))
    }

    fn release(&self, holding: Holding) {
        self.runtime.block_on(holding.resign());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_etcd_or_a_directory() {
        assert_eq!(Place::from("etcd"), Place::Etcd);
        for directory in ["./etcd", "/var/lib/muster/store", "etcd/", "http://a:1"] {
            assert_eq!(Place::from(directory), Place::Directory(directory.into()), "{directory}");
        }
    }
}
