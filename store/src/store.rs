//! The store as handlers use it: reads from memory and the ledger, writes through the writer's queue.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use bytes::Bytes;
use muster_proto::record::Kind;
use muster_rpc::clock::SharedClock;
use tokio::sync::oneshot;
use tokio::time::timeout;

use muster_store_core::draft::{Draft, Policy};
use muster_store_core::history::Revision;
use muster_store_core::lease_table::{Claim, Renewal};
use muster_store_core::list_page::{LedgerRead, ListRequest, ListVersion, Page};
use muster_store_core::memory::Memory;
use muster_store_core::namespaced_name::NamespacedName;

use crate::change_log::ChangeLog;
use crate::commit_health::CommitHealth;
use crate::error::StoreError;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::queue::{Ack, AckSlot, Queue, Renew, Write, WriteClass};
use crate::renewal_log::RenewalLog;
use crate::writer::Writer;

/// How long a read waits for a revision that is not committed yet.
const FUTURE_VERSION_TIMEOUT: Duration = Duration::from_secs(3);

/// A revision this far above the head is not one of this store's, and no wait reaches it. It is half of the least
/// distance that a restore leaves between two histories.
const MAX_AHEAD: Revision = 1 << 31;

/// The shared state of the store and the queue of its writer.
pub struct Store {
    memory: Arc<RwLock<Memory>>,
    ledger: Arc<dyn Ledger>,
    log: Arc<ChangeLog>,
    renewals: RenewalLog,
    queue: Queue,
    metrics: Metrics,
    commit_health: Arc<CommitHealth>,
    clock: SharedClock,
}

impl Store {
    /// Loads all records and starts the writer thread.
    ///
    /// The writer stops after [`stop`](Self::stop) is called, once all queued requests are written.
    pub fn open(
        ledger: Arc<dyn Ledger>,
        policy: Policy,
        clock: SharedClock,
        metrics: Metrics,
    ) -> Result<(Arc<Self>, std::thread::JoinHandle<()>), StoreError> {
        let log = ChangeLog::new(ledger.compacted());
        let memory = ledger.load(&mut |change| log.load(change))?;
        let head = memory.head();
        log.finish_loading(head);
        let store = Arc::new(Self {
            memory: Arc::new(RwLock::new(memory)),
            ledger,
            log,
            renewals: RenewalLog::new(head),
            queue: Queue::new(&metrics),
            metrics,
            commit_health: Arc::new(CommitHealth::new(Arc::clone(&clock))),
            clock,
        });
        let writer = Writer::new(Arc::clone(&store), policy);
        let at_end = Arc::clone(&store);
        let write = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| writer.run()));
            // Also after a panic: requests that are queued or arrive later must fail instead of waiting forever.
            at_end.queue.close();
            ended.unwrap_or_else(|panic| resume_unwind(panic));
        };
        let thread = std::thread::Builder::new().name("writer".into()).spawn(write);
        let thread = thread.map_err(|e| StoreError::Storage(format!("no thread for the writer: {e}")))?;
        Ok((store, thread))
    }

    /// Refuses further writes; the writer finishes the queued ones and stops.
    pub fn stop(&self) {
        self.queue.stop();
    }

    pub fn ledger(&self) -> &dyn Ledger {
        &*self.ledger
    }

    pub fn log(&self) -> &Arc<ChangeLog> {
        &self.log
    }

    pub fn renewals(&self) -> &RenewalLog {
        &self.renewals
    }

    pub fn memory(&self) -> &Arc<RwLock<Memory>> {
        &self.memory
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub fn commit_health(&self) -> &Arc<CommitHealth> {
        &self.commit_health
    }

    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The current records, locked for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the writer evaluate a request; returns once the request's commit is durable.
    pub async fn write<T: Send + 'static>(
        &self,
        traceparent: String,
        class: WriteClass,
        request: impl FnOnce(&mut Draft<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.queue
            .push(&class, Box::new(Write { traceparent, request, answer, deletes: class.deletes() }))?;
        answered.await.unwrap_or(Err(StoreError::Stopping))
    }

    /// Queues a renewal; the slot is filled once the renewal is durable.
    pub fn renew(
        &self,
        claim: Claim,
        status: Option<(u64, u32)>,
        slot: Arc<AckSlot<Renewal>>,
    ) -> Result<(), StoreError> {
        self.queue.push_renewal(Renew { claim, status, ack: Ack::to(slot) })
    }

    /// One record's bytes; for a lease, with its newest renewal.
    pub fn get(&self, kind: Kind, key: &NamespacedName) -> Option<Bytes> {
        let memory = self.read();
        memory.get(kind, key).map(|current| memory.with_newest_renewal(kind, current))
    }

    /// Refuses a revision whose following history is compacted.
    pub fn check_not_compacted(&self, revision: Revision) -> Result<(), StoreError> {
        let oldest = self.read().compacted();
        if revision < oldest {
            return Err(StoreError::Expired { requested: revision, oldest });
        }
        Ok(())
    }

    /// Refuses a revision of another history, such as that of another store that was restored from the same backup.
    pub fn check_own_history(&self, revision: Revision) -> Result<(), StoreError> {
        let head = self.log.head();
        if revision > head.saturating_add(MAX_AHEAD) {
            return Err(StoreError::OtherHistory { requested: revision, head });
        }
        Ok(())
    }

    /// Waits a few seconds for a revision that is not committed yet.
    pub async fn wait_for_revision(&self, revision: Revision) -> Result<(), StoreError> {
        let mut head = self.log.follow_head();
        let waited = timeout(FUTURE_VERSION_TIMEOUT, head.wait_for(|head| *head >= revision)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            _ => Err(StoreError::FutureVersion { requested: revision, head: self.log.head() }),
        }
    }

    /// One page of a list.
    pub async fn list(self: &Arc<Self>, list: ListRequest) -> Result<Page, StoreError> {
        if let ListVersion::NotOlderThan(revision) | ListVersion::Exact(revision) = list.version {
            self.wait_for_revision(revision).await?;
        }
        let mut reader = list.begin(&self.read());
        while !reader.read_chunk(&self.read())? {
            tokio::task::yield_now().await;
        }
        let (mut page, from_ledger) = reader.finish();
        if !from_ledger.is_empty() {
            // Reading the ledger may block.
            let (store, at) = (Arc::clone(self), page.revision);
            let read = tokio::task::spawn_blocking(move || {
                let read =
                    from_ledger.into_iter().map(|LedgerRead { index, key, revision, superseded_by }| {
                        let record = store.ledger.version(revision, superseded_by)?;
                        let record = record.ok_or_else(|| store.expired(at))?;
                        let wanted = list.selectors.matches(list.kind, &key, &record);
                        Ok((index, wanted.then_some(record)))
                    });
                read.collect::<Result<Vec<_>, StoreError>>()
            });
            page.fill(read.await.map_err(|e| StoreError::Storage(e.to_string()))??);
        }
        Ok(page)
    }

    fn expired(&self, requested: Revision) -> StoreError {
        StoreError::Expired { requested, oldest: self.read().compacted() }
    }
}

#[cfg(test)]
mod tests;
