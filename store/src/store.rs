//! The store as handlers use it: reads from memory and the ledger, writes through the writer's queue.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use bytes::Bytes;
use muster_proto::record::Kind;
use muster_rpc::clock::SharedClock;
use tokio::sync::oneshot;
use tokio::time::timeout;

use muster_store_core::change::{Change, SharedChange};
use muster_store_core::draft::{Draft, Policy};
use muster_store_core::history::{Commit, Revision};
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
    policy: Policy,
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
        let store = Self::load(ledger, policy, clock, metrics)?;
        let writer = store.start_writer()?;
        Ok((store, writer))
    }

    /// Loads all records. Requests are queued until there is a writer.
    pub fn load(
        ledger: Arc<dyn Ledger>,
        policy: Policy,
        clock: SharedClock,
        metrics: Metrics,
    ) -> Result<Arc<Self>, StoreError> {
        let log = ChangeLog::new(ledger.compacted());
        let memory = ledger.load(&mut |change| log.load(change))?;
        let head = memory.head();
        log.finish_loading(head);
        metrics.revision.set(head as i64);
        Ok(Arc::new(Self {
            memory: Arc::new(RwLock::new(memory)),
            ledger,
            log,
            renewals: RenewalLog::new(head),
            queue: Queue::new(&metrics),
            metrics,
            commit_health: Arc::new(CommitHealth::new(Arc::clone(&clock))),
            policy,
            clock,
        }))
    }

    /// Starts the writer thread.
    pub fn start_writer(self: &Arc<Self>) -> Result<std::thread::JoinHandle<()>, StoreError> {
        self.queue.open();
        let writer = Writer::new(Arc::clone(self), self.policy);
        let at_end = Arc::clone(self);
        let write = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| writer.run()));
            // Also after a panic: requests that are queued or arrive later must fail instead of waiting forever.
            at_end.queue.close();
            ended.unwrap_or_else(|panic| resume_unwind(panic));
        };
        let thread = std::thread::Builder::new().name("writer".into()).spawn(write);
        thread.map_err(|e| StoreError::Storage(format!("no thread for the writer: {e}")))
    }

    /// Refuses further writes; the writer finishes the queued ones and stops.
    pub fn stop(&self) {
        self.queue.stop(StoreError::Stopping);
    }

    /// As [`stop`](Self::stop), for a store that does not lead any more, or does not lead yet.
    pub fn stop_leading(&self) {
        self.queue.stop(StoreError::NotLeader { leader: None });
        self.commit_health.observe(Err("this store does not lead".to_owned()));
    }

    /// Makes a durable commit visible: to reads, then to watchers.
    pub fn publish(&self, commit: &Commit, changes: &[SharedChange]) {
        {
            let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
            memory.apply_commit(commit);
            debug_assert_eq!(memory.fingerprint(), commit.fingerprint, "what was committed");
        }
        self.metrics.revision.set(commit.head as i64);
        let now = self.clock.mono();
        changes.iter().for_each(|change| change.set_published(now));
        for (first, pack) in &commit.renewals {
            self.renewals.publish(*first, pack, now);
        }
        self.log.publish(changes, commit.head);
        if !commit.renewals.is_empty() {
            self.log.notify(Kind::Lease, commit.head);
        }
    }

    /// Makes a commit of another store visible, and sets its compaction. One that does not lead to the records that its
    /// store had is refused before anybody sees it; the error says how it differs.
    pub fn replicate(&self, commit: &mut Commit, compacted: Revision) -> Result<(), String> {
        let changes = {
            let memory = self.read();
            let found = memory.fingerprint_after(commit);
            if let Some(difference) = commit.fingerprint.difference(&found) {
                return Err(difference);
            }
            commit.compaction = memory.compaction_up_to(compacted);
            shared_changes(&memory, commit)
        };
        self.publish(commit, &changes);
        Ok(())
    }

    pub fn ledger(&self) -> &dyn Ledger {
        &*self.ledger
    }

    /// The same for a thread that may wait for the disk.
    pub(crate) fn shared_ledger(&self) -> Arc<dyn Ledger> {
        Arc::clone(&self.ledger)
    }

    /// The settings that writes are evaluated with.
    pub fn policy(&self) -> &Policy {
        &self.policy
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

/// The changes of a commit for watchers, with the records that they replace.
fn shared_changes(memory: &Memory, commit: &Commit) -> Vec<SharedChange> {
    let mut written: HashMap<(Kind, NamespacedName), Bytes> = HashMap::new();
    let changes = commit.changes.iter().map(|(revision, stored)| {
        let (kind, key) = (stored.kind, stored.key());
        let before = memory.get(kind, &key).map(|current| current.record.clone());
        let before = written.insert((kind, key), stored.record.clone()).or(before);
        // A record that was created again has none before it.
        let previous = before.filter(|_| stored.previous > 0);
        Arc::new(Change::from_stored(*revision, stored.clone(), previous))
    });
    changes.collect()
}

#[cfg(test)]
mod tests;
