//! Backup of a running store, and restore into a new data directory.
//!
//! A backup is taken through the store's own API: all records at one revision, each with its uid and resource version,
//! leases with their newest renewal. It has no history: on the restored store, watches from before the backup must list
//! again.

mod file;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use muster_proto::identity::ServerRole;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_rpc::layers::store_id::STORE_ID_KEY;
use muster_rpc::private_dir;
use prost::Message;
use tonic::transport::{Channel, Endpoint};

use muster_store_core::memory::Memory;
use muster_store_core::namespaced_name::NamespacedName;
use muster_store_core::partial_decode;

pub use self::file::FileError;
pub(crate) use self::file::sync_parent;
use self::file::{Backup, Entry};
use crate::config::Flags;
use crate::durable_dir::create_dir_all_durable;
use crate::ledger::embedded::{self, EmbeddedLedger, OpenError, StoreId};

/// A restored store continues at least this many revisions above its backup. A watcher that had read beyond the backup
/// then resumes from a compacted revision and lists again. With lower revisions it would miss the changes that reuse
/// the revisions it has read already.
const REVISION_GAP: u64 = 1 << 32;
/// A random jump below this comes on top, so that two restores of one backup do not use the same revisions: a watcher of
/// the one that comes to the other must list again, too. 2^48 is far more than a store commits, and small enough that
/// a store can be restored dozens of times before its revisions exceed 2^53, the largest integer of many JSON readers.
const MAX_JUMP: u64 = 1 << 48;
/// Revisions stay below this, since traces and metrics show them as signed numbers.
const MAX_REVISION: u64 = 1 << 63;

/// The directory within the data directory in which the restored files are prepared.
const STAGING_DIRECTORY: &str = "restoring";

/// sled's cache while a checkpoint is written.
const CACHE_BYTES: u64 = 32 << 20;

/// The number of records in a page.
const PAGE_SIZE: u32 = 500;

/// Why a backup or restore failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "the store at {store} cannot be reached: {reason}; check that it runs and that --store is its address"
    )]
    Unreachable { store: String, reason: String },
    #[error("the store answered: {0}")]
    Refused(Box<tonic::Status>),
    #[error(transparent)]
    Tls(#[from] muster_rpc::tls::TlsError),
    #[error("{0} exists already: restore into a new directory, or move this one away")]
    Occupied(PathBuf),
    #[error("{path}: {source}")]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("the backup is of revision {0}, and a store cannot continue above it")]
    NoRevisionsLeft(u64),
    #[error("the backup's store id {0:?} is not one")]
    NotAnId(String),
    #[error(transparent)]
    Open(#[from] OpenError),
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
        let unreachable = |error: tonic::transport::Error| BackupError::Unreachable {
            store: store.clone(),
            reason: root_cause(&error),
        };
        let target = match tls {
            Some(tls) => tls.target(&store, ServerRole::Store)?,
            None => Endpoint::from_shared(store.clone()).map_err(unreachable)?.into(),
        };
        fetch(target.connect().await.map_err(unreachable)?).await
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

/// The last cause: tonic's own text is only "transport error".
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&cause| cause.source());
    causes.last().unwrap_or(error).to_string()
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
    let mut store_id = String::new();
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
                let response = client.$list(request).await?;
                if let Some(Ok(id)) = response.metadata().get(STORE_ID_KEY).map(|id| id.to_str()) {
                    id.clone_into(&mut store_id);
                }
                let page = response.into_inner();
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
        certificate_request_service_client::CertificateRequestServiceClient as Requests,
        disruption_budget_service_client::DisruptionBudgetServiceClient as Budgets,
        event_service_client::EventServiceClient as Events,
        join_token_service_client::JoinTokenServiceClient as Tokens,
        lease_service_client::LeaseServiceClient as Leases, node_service_client::NodeServiceClient as Nodes,
        pod_service_client::PodServiceClient as Pods,
        priority_class_service_client::PriorityClassServiceClient as Classes,
        revocation_service_client::RevocationServiceClient as Revocations,
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
    fetch!(
        Kind::PriorityClass,
        Classes<Channel>,
        list_priority_classes,
        pb::ListPriorityClassesRequest,
        priority_classes
    );
    fetch!(Kind::Event, Events<Channel>, list_events, pb::ListEventsRequest, events);
    fetch!(Kind::JoinToken, Tokens<Channel>, list_join_tokens, pb::ListJoinTokensRequest, join_tokens);
    fetch!(
        Kind::CertificateRequest,
        Requests<Channel>,
        list_certificate_requests,
        pb::ListCertificateRequestsRequest,
        certificate_requests
    );
    fetch!(Kind::Revocation, Revocations<Channel>, list_revocations, pb::ListRevocationsRequest, revocations);
    Ok(Backup { store_id, revision, entries })
}

/// Fills a new or empty data directory.
///
/// The files are prepared in a directory within it: the data directory may be a mounted volume, which can be neither
/// renamed nor replaced, and the process may have no rights on its parent.
fn restore(backup: &Backup, data_dir: &Path) -> Result<(), BackupError> {
    let failed = |source| BackupError::Directory { path: data_dir.to_owned(), source };
    let staging = data_dir.join(STAGING_DIRECTORY);
    let found = private_dir::check("--data-dir", data_dir).map_err(OpenError::from)?;
    if data_dir.exists() && !embedded::is_empty_volume(data_dir, &[&staging]).map_err(failed)? {
        return Err(BackupError::Occupied(data_dir.to_owned()));
    }
    create_dir_all_durable(data_dir).map_err(failed)?;
    found.map_or(Ok(()), |found| found.restrict()).map_err(failed)?;
    // Left by an earlier restore that was interrupted.
    if staging.exists() {
        std::fs::remove_dir_all(&staging).map_err(failed)?;
    }
    fill(backup, &staging)?;
    embedded::move_into(&staging, data_dir).and_then(|()| sync_parent(data_dir)).map_err(failed)
}

fn fill(backup: &Backup, directory: &Path) -> Result<(), BackupError> {
    let versioned: Vec<_> =
        backup.entries.iter().map(|entry| (partial_decode::metadata(&entry.record), entry)).collect();
    // A lease has its newest renewal, which may be later than the backup's revision: history must continue above it.
    let newest = versioned.iter().map(|(metadata, _)| metadata.resource_version).max().unwrap_or(0);
    let newest = backup.revision.max(newest);
    let head = first_revision(newest, random_number()).ok_or(BackupError::NoRevisionsLeft(newest))?;
    let mut memory = Memory::at(head, head);
    let mut leases = 0;
    for (metadata, entry) in versioned {
        let lease_id = if entry.kind == Kind::Lease { leases } else { 0 };
        leases += u32::from(entry.kind == Kind::Lease);
        let key = NamespacedName::new(&metadata.namespace, &metadata.name);
        let (version, record) = (metadata.resource_version, Bytes::clone(&entry.record));
        memory.load_record(entry.kind, key, version, lease_id, record);
    }
    // The restored store belongs to the same fleet. The first format of backups has no id.
    let store = match backup.store_id.as_str() {
        "" => StoreId::new_v4(),
        id => id.parse().map_err(|_| BackupError::NotAnId(id.to_owned()))?,
    };
    Ok(EmbeddedLedger::import(directory, store, memory, CACHE_BYTES)?)
}

/// The revision at which a store continues that is restored from a backup of `newest`; `None` if there are none left.
pub(crate) fn first_revision(newest: u64, random: u64) -> Option<u64> {
    newest.checked_add(REVISION_GAP + random % MAX_JUMP).filter(|head| *head < MAX_REVISION)
}

pub(crate) fn random_number() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_store_continues_at_a_random_revision_far_above_its_backup() {
        for (newest, random, expected) in [
            (0, 0, Some(1 << 32)),
            (7, 0, Some((1 << 32) + 7)),
            (7, 5, Some((1 << 32) + 12)),
            (7, (1 << 48) - 1, Some((1 << 32) + (1 << 48) + 6)),
            (7, 1 << 48, Some((1 << 32) + 7)),
            ((1 << 63) - (1 << 32) - 1, 0, Some((1 << 63) - 1)),
            ((1 << 63) - (1 << 32), 0, None),
            (u64::MAX, 0, None),
        ] {
            assert_eq!(first_revision(newest, random), expected, "{newest}, {random}");
        }
        let draws: std::collections::BTreeSet<u64> = (0..100).map(|_| random_number() % MAX_JUMP).collect();
        assert_eq!(draws.len(), 100, "each restore jumps by another number");
    }
}
