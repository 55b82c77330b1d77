//! The single writer: takes queued requests, evaluates them in order, commits them together, then publishes and
//! acknowledges.
//!
//! Under light load a write costs one sync; under heavy load thousands share one. Nothing is acknowledged or seen by a
//! watcher before it is durable.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use muster_proto::record::Kind;
use muster_rpc::exemplar::trace_of;

use crate::commit_span;
use crate::engine::EngineError;
use crate::error::StoreError;
use crate::queue::{Ack, Job, Settle};
use crate::store::Store;
use muster_store_core::draft::{Batch, Draft, Policy};
use muster_store_core::indexes::Indexes;
use muster_store_core::lease_table::Renewal;
use muster_store_core::namespaced_name::NamespacedName;

/// Maintenance (expiry, compaction) runs at least this often.
const IDLE: Duration = Duration::from_secs(30);
/// The wait before a disk that refused writes is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// A request that was evaluated and waits for the commit.
enum Evaluated {
    Write(Settle),
    Renewal(Ack<Renewal>, Result<Renewal, StoreError>),
}

impl Evaluated {
    fn settle(self, committed: Result<(), StoreError>) {
        match self {
            Evaluated::Write(settle) => settle(committed),
            Evaluated::Renewal(ack, renewal) => ack.complete(committed.and(renewal)),
        }
    }
}

/// The writer thread.
pub struct Writer {
    store: Arc<Store>,
    policy: Policy,
    indexes: Indexes,
    orphans: Vec<(Kind, NamespacedName)>,
    /// Set while the disk refuses writes.
    failing: bool,
    /// Set when a commit may be half written, so that the files must be opened again.
    uncertain: bool,
}

impl Writer {
    pub fn new(store: Arc<Store>, policy: Policy) -> Self {
        let indexes = Indexes::rebuild(&store.read(), policy.event_ttl_millis);
        let orphans = indexes.orphans(&store.read());
        let mut writer = Self { store, policy, indexes, orphans, failing: false, uncertain: false };
        match writer.store.ledger().check() {
            Ok(()) => writer.store.commit_health().observe(Ok(())),
            Err(error) => writer.report(&error),
        }
        writer
    }

    /// Writes until the store stops and the queue is empty.
    pub fn run(mut self) {
        while let Some(jobs) = self.store.queue().take(self.patience()) {
            self.store.metrics().queued.dec_by(jobs.len() as i64);
            self.store.commit_health().batch_began(self.store.clock().mono());
            self.write(jobs);
            self.store.commit_health().batch_ended();
        }
    }

    /// How long the writer may sleep if no request comes.
    fn patience(&self) -> Duration {
        if self.failing {
            return RETRY;
        }
        if !self.orphans.is_empty() {
            return Duration::ZERO;
        }
        let memory = self.store.read();
        let due = [self.indexes.next_expiry(), memory.compactable_at(self.policy.retention)];
        let now = self.store.clock().wall().as_millisecond();
        let due = due
            .into_iter()
            .flatten()
            .min()
            .map_or(IDLE, |due| Duration::from_millis((due - now).max(0) as u64));
        due.min(IDLE)
    }

    fn write(&mut self, jobs: Vec<Job>) {
        // While the disk refuses writes, no request is evaluated. An idle store checks too, or it would report ready
        // until the first write is refused.
        let is_idle = jobs.is_empty();
        let checked = if self.failing || is_idle { self.store.ledger().check() } else { Ok(()) };
        if let Err(error) = checked.and_then(|()| self.recover_if_uncertain()) {
            self.report(&error);
            return refuse(jobs, &error.into());
        }
        let store = Arc::clone(&self.store);
        let memory = store.read();
        let begun = store.clock().wall();
        let mut draft = Draft::new(&memory, &mut self.indexes, &self.policy, begun);
        let mut jobs = jobs.into_iter();
        let mut waiting = Vec::with_capacity(jobs.len());
        while !draft.is_full()
            && let Some(job) = jobs.next()
        {
            waiting.push(evaluate(job, &mut draft));
        }
        let requests = waiting.len();
        store.metrics().queued.inc_by(jobs.len() as i64);
        store.queue().give_back(jobs.collect());
        for (kind, key) in std::mem::take(&mut self.orphans) {
            draft.begin_request(String::new());
            if let Err(error) = draft.delete_orphan(kind, &key) {
                tracing::warn!(%kind, record = %key, %error, "a record whose owner is gone could not be deleted");
            }
        }
        if let Err(error) =
            draft.maintain(|revision| store.ledger().change(revision).map_err(|error| error.to_string()))
        {
            tracing::warn!(%error, "maintenance failed and is tried again later");
        }
        if draft.is_empty() {
            drop(memory);
            waiting.drain(..).for_each(|request| request.settle(Ok(())));
            if self.failing {
                self.probe();
            }
            return;
        }
        let batch = draft.finish();
        drop(memory);
        let span = commit_span::begin(&batch, requests, begun);
        let started = store.clock().mono();
        let committed = store.ledger().commit(&batch.commit);
        commit_span::end(&span, committed.as_ref().copied());
        match committed {
            Ok(()) => {
                let metrics = store.metrics();
                let trace = batch.changes.iter().find_map(|change| trace_of(&change.traceparent));
                metrics.flush.observe((store.clock().mono() - started).as_secs_f64(), trace, None);
                metrics.batch.observe(requests as f64);
                self.publish(batch);
                self.observe_committed();
                waiting.drain(..).for_each(|request| request.settle(Ok(())));
            }
            Err(error) => {
                // The draft changed the indexes; they must match memory again.
                self.indexes = Indexes::rebuild(&store.read(), self.policy.event_ttl_millis);
                self.orphans = self.indexes.orphans(&store.read());
                self.observe_failed(&error);
                let error = StoreError::from(error);
                waiting.drain(..).for_each(|request| request.settle(Err(error.clone())));
            }
        }
    }

    /// After a commit that may be half written: opens the files again and removes history behind memory's head.
    fn recover_if_uncertain(&mut self) -> Result<(), EngineError> {
        if self.uncertain {
            let head = self.store.read().head();
            self.store.ledger().recover(head)?;
            self.uncertain = false;
        }
        Ok(())
    }

    /// Commits nothing, to test the disk. Clients may stay away because the store is not ready; without their writes it
    /// would never find out that the disk works again.
    fn probe(&mut self) {
        let head = self.store.read().head();
        match self.store.ledger().probe(head) {
            Ok(()) => self.observe_committed(),
            Err(error) => self.observe_failed(&error),
        }
    }

    fn observe_committed(&mut self) {
        if std::mem::take(&mut self.failing) {
            tracing::info!("the disk takes writes again");
            self.store.metrics().writable.set(1);
            self.store.commit_health().observe(Ok(()));
        }
    }

    fn observe_failed(&mut self, error: &EngineError) {
        self.uncertain = !matches!(error, EngineError::Full { .. });
        self.report(error);
    }

    fn report(&mut self, error: &EngineError) {
        self.store.metrics().failed_commits.inc();
        self.store.commit_health().observe(Err(error.to_string()));
        if !std::mem::replace(&mut self.failing, true) {
            self.store.metrics().writable.set(0);
            tracing::error!(%error, "writes are refused until the disk takes them; reads go on");
        }
    }

    fn publish(&mut self, batch: Batch) {
        let store = &self.store;
        let head = batch.commit.head;
        {
            let mut memory = store.memory().write().unwrap_or_else(PoisonError::into_inner);
            memory.apply_commit(&batch.commit);
        }
        let metrics = store.metrics();
        metrics.commits.inc();
        metrics.changes.inc_by(batch.changes.len() as u64);
        metrics.revision.set(head as i64);
        let now = store.clock().mono();
        batch.changes.iter().for_each(|change| change.set_published(now));
        for (first, pack) in &batch.commit.renewals {
            metrics.renewals.inc_by(pack.len() as u64);
            store.renewals().publish(*first, pack, now);
        }
        store.log().publish(&batch.changes, head);
        if !batch.commit.renewals.is_empty() {
            store.log().notify(Kind::Lease, head);
        }
        self.orphans = batch.orphans;
    }
}

fn evaluate(job: Job, draft: &mut Draft<'_>) -> Evaluated {
    match job {
        Job::Renew { claim, status, ack } => {
            let renewal = draft.renew(claim, status).map_err(StoreError::from);
            Evaluated::Renewal(ack, renewal)
        }
        Job::Write(request) => {
            let settle = request.evaluate(draft);
            if let Err(error) = draft.update_budget_statuses() {
                tracing::warn!(%error, "the status of a disruption budget could not be updated");
            }
            Evaluated::Write(settle)
        }
    }
}

fn refuse(jobs: Vec<Job>, error: &StoreError) {
    for job in jobs {
        match job {
            Job::Renew { ack, .. } => ack.complete(Err(error.clone())),
            Job::Write(request) => request.refuse(error.clone()),
        }
    }
}
