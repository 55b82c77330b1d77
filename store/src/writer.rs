//! The single writer: takes queued requests, evaluates them in order, commits them together, then publishes and
//! acknowledges.
//!
//! Under light load a write costs one sync; under heavy load thousands share one. Nothing is acknowledged or seen by a
//! watcher before it is durable.

use std::sync::Arc;
use std::time::Duration;

use muster_proto::record::Kind;
use muster_rpc::exemplar::trace_of;

use crate::commit_span;
use crate::error::StoreError;
use crate::ledger::LedgerError;
use crate::queue::{BatchProgress, Evaluation, Job, Renew, Settle, Taken};
use crate::store::Store;
use muster_store_core::draft::{Batch, Draft, Policy};
use muster_store_core::history::Commit;
use muster_store_core::indexes::Indexes;
use muster_store_core::lease_table::Renewal;
use muster_store_core::namespaced_name::NamespacedName;

/// Maintenance (expiry, compaction) runs at least this often.
const IDLE: Duration = Duration::from_secs(30);
/// The wait before a disk that refused writes is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// A batch takes no further write after this time of evaluation, so that the renewals behind it do not wait long.
const EVALUATION: Duration = Duration::from_millis(50);

/// A request that was evaluated and waits for the commit.
enum Evaluated {
    Write(Settle),
    Renewal(Renew, Result<Renewal, StoreError>),
}

impl Evaluated {
    fn settle(self, committed: Result<(), StoreError>) {
        match self {
            Evaluated::Write(settle) => settle(committed),
            Evaluated::Renewal(Renew { ack, .. }, renewal) => ack.complete(committed.and(renewal)),
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
        while let Some(taken) = self.store.queue().take(self.patience()) {
            self.store.commit_health().batch_began(self.store.clock().mono());
            self.write(taken);
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

    fn write(&mut self, taken: Taken) {
        // While the disk refuses writes, no request is evaluated. An idle store checks too, or it would report ready
        // until the first write is refused.
        let checked = if self.failing || taken.is_idle { self.store.ledger().check() } else { Ok(()) };
        let full = match checked.and_then(|()| self.recover_if_uncertain()) {
            Ok(()) => None,
            // What frees space goes on: deletions, expiry and compaction.
            Err(error @ LedgerError::Full { .. }) if !self.uncertain => {
                self.report(&error);
                Some(StoreError::from(error))
            }
            Err(error) => {
                self.report(&error);
                return self.refuse(taken.renewals, &error.into());
            }
        };
        let store = Arc::clone(&self.store);
        let memory = store.read();
        let begun = store.clock().wall();
        let limits = store.ledger().limits();
        let mut draft = Draft::new(&memory, &mut self.indexes, &self.policy, begun).within(limits);
        let mut waiting = Vec::with_capacity(taken.renewals.len());
        if let Err(panicked) = evaluate_batch(&store, taken.renewals, &mut draft, &mut waiting, full.as_ref())
        {
            drop(draft);
            drop(memory);
            return self.discard(waiting, panicked);
        }
        let requests = waiting.len();
        for (kind, key) in std::mem::take(&mut self.orphans) {
            draft.begin_request(String::new());
            if let Err(error) = draft.delete_orphan(kind, &key) {
                tracing::warn!(%kind, record = %key, %error, "a record whose owner is gone could not be deleted");
            }
        }
        if let Err(error) = draft.maintain() {
            tracing::warn!(%error, "maintenance failed and is tried again later");
        }
        if draft.is_empty() {
            drop(memory);
            // Refusals, and writes that change nothing: they are answers from memory.
            let current = if waiting.is_empty() { Ok(()) } else { store.ledger().confirm() };
            let current = current.map_err(StoreError::from);
            waiting.drain(..).for_each(|request| request.settle(current.clone()));
            if self.failing && full.is_none() {
                self.probe();
            }
            return;
        }
        let mut batch = draft.finish();
        batch.commit.uses_reserve = full.is_some();
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
                if full.is_none() {
                    self.observe_committed();
                }
                waiting.drain(..).for_each(|request| request.settle(Ok(())));
            }
            Err(error) => {
                self.rebuild_indexes();
                self.observe_failed(&error);
                let error = StoreError::from(error);
                waiting.drain(..).for_each(|request| request.settle(Err(error.clone())));
            }
        }
    }

    /// Discards a batch in which a request panicked: its draft may hold some of that request's changes, and so may the
    /// indexes. Writes run once and cannot be evaluated again, so their callers are asked to retry. Renewals can, and
    /// must not be lost to somebody else's request.
    fn discard(&mut self, waiting: Vec<Evaluated>, panicked: Panicked) {
        tracing::error!("a request panicked; its batch is discarded and nothing of it is written");
        self.store.metrics().panics.inc();
        self.rebuild_indexes();
        (panicked.answer)(Ok(()));
        let mut renewals = Vec::new();
        for evaluated in waiting {
            match evaluated {
                Evaluated::Renewal(renewal, _) => renewals.push(Job::Renew(renewal)),
                write @ Evaluated::Write(_) => write.settle(Err(StoreError::Discarded)),
            }
        }
        renewals.extend(panicked.not_evaluated);
        self.store.queue().give_back(renewals);
    }

    /// Makes the indexes match memory again, after a draft changed them and was not committed.
    fn rebuild_indexes(&mut self) {
        let memory = self.store.read();
        self.indexes = Indexes::rebuild(&memory, self.policy.event_ttl_millis);
        self.orphans = self.indexes.orphans(&memory);
    }

    /// Answers the waiting requests with an error.
    fn refuse(&self, renewals: Vec<Job>, error: &StoreError) {
        renewals.into_iter().for_each(|job| refuse(job, error));
        let mut batch = BatchProgress::default();
        while let Some(request) = self.store.queue().next_write(&mut batch) {
            request.refuse(error.clone());
        }
    }

    /// After a commit that may be half written: has the ledger continue after the last one that was acknowledged.
    fn recover_if_uncertain(&mut self) -> Result<(), LedgerError> {
        if self.uncertain {
            self.store.ledger().recover()?;
            self.uncertain = false;
        }
        Ok(())
    }

    /// Commits nothing, to test the disk. Clients may stay away because the store is not ready; without their writes it
    /// would never find out that the disk works again.
    fn probe(&mut self) {
        let (head, fingerprint) = {
            let memory = self.store.read();
            (memory.head(), memory.fingerprint())
        };
        let nothing = Commit { base: head, head, fingerprint, ..Default::default() };
        match self.store.ledger().commit(&nothing) {
            Ok(()) => self.observe_committed(),
            Err(error) => self.observe_failed(&error),
        }
    }

    fn observe_committed(&mut self) {
        if std::mem::take(&mut self.failing) {
            tracing::info!("writes are taken again");
            self.store.metrics().writable.set(1);
            self.store.commit_health().observe(Ok(()));
        }
    }

    fn observe_failed(&mut self, error: &LedgerError) {
        self.uncertain = !matches!(
            error,
            LedgerError::Full { .. }
                | LedgerError::Conflict { .. }
                | LedgerError::ReadOnly(_)
                | LedgerError::Deposed(_)
        );
        self.report(error);
    }

    fn report(&mut self, error: &LedgerError) {
        self.store.metrics().failed_commits.inc();
        self.store.commit_health().observe(Err(error.to_string()));
        if !std::mem::replace(&mut self.failing, true) {
            self.store.metrics().writable.set(0);
            tracing::error!(%error, "writes are refused for now; reads go on");
        }
    }

    fn publish(&mut self, batch: Batch) {
        self.store.publish(&batch.commit, &batch.changes);
        let metrics = self.store.metrics();
        metrics.commits.inc();
        metrics.changes.inc_by(batch.changes.len() as u64);
        metrics.events_dropped.inc_by(batch.dropped_events as u64);
        for (_, pack) in &batch.commit.renewals {
            metrics.renewals.inc_by(pack.len() as u64);
        }
        self.orphans = batch.orphans;
    }
}

/// A request panicked.
struct Panicked {
    /// Answers it.
    answer: Settle,
    /// The renewals after it.
    not_evaluated: Vec<Job>,
}

/// Evaluates renewals, then queued writes until the draft is full or the time is used up. Collects what was evaluated.
fn evaluate_batch(
    store: &Store,
    renewals: Vec<Job>,
    draft: &mut Draft<'_>,
    waiting: &mut Vec<Evaluated>,
    full: Option<&StoreError>,
) -> Result<(), Panicked> {
    if let Some(error) = full {
        return evaluate_deletions(store, renewals, draft, waiting, error);
    }
    let mut renewals = renewals.into_iter();
    while let Some(job) = renewals.next() {
        let evaluated = evaluate(job, draft);
        let panicked = |answer| Panicked { answer, not_evaluated: renewals.by_ref().collect() };
        waiting.push(evaluated.map_err(panicked)?);
    }
    let until = store.clock().mono() + EVALUATION;
    let mut batch = BatchProgress::within(store.ledger().limits());
    while !draft.is_full()
        && store.clock().mono() < until
        && let Some(request) = store.queue().next_write(&mut batch)
    {
        let panicked = |answer| Panicked { answer, not_evaluated: Vec::new() };
        waiting.push(evaluate(Job::Write(request), draft).map_err(panicked)?);
    }
    Ok(())
}

/// Evaluates the deletions among the waiting requests; the others are refused, since the disk is full.
fn evaluate_deletions(
    store: &Store,
    renewals: Vec<Job>,
    draft: &mut Draft<'_>,
    waiting: &mut Vec<Evaluated>,
    error: &StoreError,
) -> Result<(), Panicked> {
    renewals.into_iter().for_each(|job| refuse(job, error));
    let mut batch = BatchProgress::default();
    while !draft.is_full()
        && let Some(request) = store.queue().next_write(&mut batch)
    {
        if request.deletes() {
            let panicked = |answer| Panicked { answer, not_evaluated: Vec::new() };
            waiting.push(evaluate(Job::Write(request), draft).map_err(panicked)?);
        } else {
            request.refuse(error.clone());
        }
    }
    Ok(())
}

fn refuse(job: Job, error: &StoreError) {
    match job {
        Job::Renew(Renew { ack, .. }) => ack.complete(Err(error.clone())),
        Job::Write(request) => request.refuse(error.clone()),
    }
}

/// The error is the answer to a request that panicked.
fn evaluate(job: Job, draft: &mut Draft<'_>) -> Result<Evaluated, Settle> {
    match job {
        Job::Renew(renew) => {
            let renewal = draft.renew(renew.claim, renew.status).map_err(StoreError::from);
            Ok(Evaluated::Renewal(renew, renewal))
        }
        Job::Write(request) => match request.evaluate(draft) {
            Evaluation::Done(settle) => Ok(Evaluated::Write(settle)),
            Evaluation::Panicked(answer) => Err(answer),
        },
    }
}
