//! Backup of a running store, and restore into a new data directory.
//!
//! A backup is taken through the store's own API: all records at one revision, each with its uid and resource version,
//! leases with their newest renewal. It has no history: on the restored store, watches from before the backup must list
//! again.

mod file;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use muster_proto::pb;
use muster_proto::record::Kind;
use prost::Message;
use tonic::transport::{Channel, Endpoint};

use muster_store_core::history::StoredChange;
use muster_store_core::partial_decode;

pub use self::file::FileError;
use self::file::{Backup, Entry};
use crate::config::Flags;
use crate::engine::sled::{self, OpenError, SledEngine};
use crate::engine::{Engine, EngineError};
use crate::ledger::Ledger;

/// A restored store continues this many revisions above its backup. A watcher that had read beyond the backup then
/// resumes from a compacted revision and lists again. With lower revisions it would miss the changes that reuse the
/// revisions it has read already.
const REVISION_GAP: u64 = 1 << 32;

/// The directory within the data directory in which the restored files are prepared.
const STAGING_DIRECTORY: &str = "restoring";

/// The number of records in a page.
const PAGE_SIZE: u32 = 500;

/// Why a backup or restore failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "the store at {store} cannot be reached: {source}; check that it runs and that --store is its address"
    )]
    Unreachable { store: String, source: tonic::transport::Error },
    #[error("the store answered: {0}")]
    Refused(Box<tonic::Status>),
    #[error(transparent)]
    Tls(#[from] muster_rpc::tls::TlsError),
    #[error("{0} exists already: restore into a new directory, or move this one away")]
    Occupied(PathBuf),
    #[error("{path}: {source}")]
    Directory { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Write(#[from] EngineError),
    #[error("{0}")]
    Runtime(#[from] std::io::Error),
}

impl From<tonic::Status> for BackupError {
    fn from(status: tonic::Status) -> Self {
        BackupError::Refused(Box::new(status))
    }
}

/// `muster-store backup FILE`.
pub fn main(file: &Path, store: Option<&str>, flags: &Flags) -> Result<(), crate::RunError> {
    let tls = flags.tls.client().map_err(BackupError::from)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let store = store.map_or_else(|| format!("{scheme}://{}", flags.listen), str::to_owned);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let backup = runtime.block_on(async {
        let unreachable = |source| BackupError::Unreachable { store: store.clone(), source };
        let mut endpoint = Endpoint::from_shared(store.clone()).map_err(unreachable)?;
        if let Some(tls) = tls {
            endpoint = endpoint.tls_config(tls.config()).map_err(unreachable)?;
        }
        fetch(endpoint.connect().await.map_err(unreachable)?).await
    })?;
    file::write(file, &backup).map_err(BackupError::from)?;
    println!(
        "{} records of resource version {} are backed up to {}",
        backup.entries.len(),
        backup.revision,
        file.display()
    );
    Ok(())
}

/// `muster-store restore FILE`.
pub fn restore_main(file: &Path, flags: &Flags) -> Result<(), crate::RunError> {
    let backup = file::read(file).map_err(BackupError::from)?;
    let records = backup.entries.len();
    restore(&backup, &flags.data_dir)?;
    println!(
        "{records} records of resource version {} are restored to {}",
        backup.revision,
        flags.data_dir.display()
    );
    Ok(())
}

/// Reads all records at one revision.
async fn fetch(channel: Channel) -> Result<Backup, BackupError> {
    let mut entries = Vec::new();
    let mut revision = 0;
    macro_rules! fetch {
        ($kind:expr, $client:ty, $list:ident, $request:ty, $records:ident) => {{
            let mut client = <$client>::new(channel.clone()).max_decoding_message_size(usize::MAX);
            let mut token = String::new();
            loop {
                let mut request = <$request>::default();
                request.page_size = PAGE_SIZE;
                if token.is_empty() && revision > 0 {
                    request.resource_version = revision;
                    request.resource_version_match = "Exact".to_owned();
                }
                request.page_token = token;
                let page = client.$list(request).await?.into_inner();
                revision = page.resource_version;
                let records = page.$records.iter();
                entries.extend(
                    records.map(|record| Entry { kind: $kind, record: record.encode_to_vec().into() }),
                );
                token = page.next_page_token;
                if token.is_empty() {
                    break;
                }
            }
        }};
    }
    use muster_grpc::{
        disruption_budget_service_client::DisruptionBudgetServiceClient as Budgets,
        event_service_client::EventServiceClient as Events,
        lease_service_client::LeaseServiceClient as Leases, node_service_client::NodeServiceClient as Nodes,
        pod_service_client::PodServiceClient as Pods,
    };
    fetch!(Kind::Node, Nodes<Channel>, list_nodes, pb::ListNodesRequest, nodes);
    fetch!(Kind::Lease, Leases<Channel>, list_leases, pb::ListLeasesRequest, leases);
    fetch!(Kind::Pod, Pods<Channel>, list_pods, pb::ListPodsRequest, pods);
    fetch!(
        Kind::DisruptionBudget,
        Budgets<Channel>,
        list_disruption_budgets,
        pb::ListDisruptionBudgetsRequest,
        disruption_budgets
    );
    fetch!(Kind::Event, Events<Channel>, list_events, pb::ListEventsRequest, events);
    Ok(Backup { revision, entries })
}

/// Fills a new or empty data directory.
///
/// The files are prepared in a directory within it: the data directory may be a mounted volume, which can be neither
/// renamed nor replaced, and the process may have no rights on its parent.
fn restore(backup: &Backup, data_dir: &Path) -> Result<(), BackupError> {
    let failed = |source| BackupError::Directory { path: data_dir.to_owned(), source };
    let staging = data_dir.join(STAGING_DIRECTORY);
    if data_dir.exists() && !sled::is_empty_volume(data_dir, &staging).map_err(failed)? {
        return Err(BackupError::Occupied(data_dir.to_owned()));
    }
    std::fs::create_dir_all(data_dir).map_err(failed)?;
    // Left by an earlier restore that was interrupted.
    if staging.exists() {
        std::fs::remove_dir_all(&staging).map_err(failed)?;
    }
    fill(backup, &staging)?;
    sled::move_into(&staging, data_dir).and_then(|()| file::sync_parent(data_dir)).map_err(failed)
}

fn fill(backup: &Backup, directory: &Path) -> Result<(), BackupError> {
    let engine: Arc<dyn Engine> = Arc::new(SledEngine::open(directory, 32 << 20)?);
    let (leases, others): (Vec<_>, Vec<_>) =
        backup.entries.iter().partition(|entry| entry.kind == Kind::Lease);
    let leases = leases.into_iter().zip(0..).map(|(lease, id)| stored(lease, id));
    let changes: Vec<_> = others.into_iter().map(|entry| stored(entry, 0)).chain(leases).collect();
    // A lease has its newest renewal, which may be later than the backup's revision: history must continue above it.
    let newest = changes.iter().map(|(revision, _)| *revision).max().unwrap_or(0);
    Ok(Ledger::new(engine).import(&changes, backup.revision.max(newest) + REVISION_GAP)?)
}

/// A record of a backup as a stored change at its own resource version.
fn stored(entry: &Entry, lease_id: u32) -> (u64, StoredChange) {
    let metadata = partial_decode::metadata(&entry.record);
    let change = StoredChange {
        kind: entry.kind,
        namespace: metadata.namespace,
        name: metadata.name,
        record: Bytes::clone(&entry.record),
        deleted: false,
        previous: 0,
        at_millis: 0,
        traceparent: String::new(),
        lease_id,
    };
    (metadata.resource_version, change)
}
