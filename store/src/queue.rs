//! The queue of the writer, and how requests get their answers.
//!
//! It has three lanes (`muster_store_core::lanes`). A batch takes all waiting renewals; then the writer takes writes one
//! by one until its commit is full, those of Muster's parts first. The two lanes of writes are shared fairly by their
//! callers and bounded in bytes.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use muster_proto::identity::Caller;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::metrics::Metrics;
use muster_store_core::draft::{CommitLimits, Draft};
use muster_store_core::fair_queue::{FairQueue, QueueFull, QueueLimits};
use muster_store_core::lanes::Lane;
use muster_store_core::lease_table::{Claim, Renewal};

/// The most renewals in one commit, and the most writes.
pub const BATCH: usize = 4096;

/// What the lane of the parts may hold. Its writes are small.
const PARTS: QueueLimits = QueueLimits { requests: 32 * 1024, bytes: 32 << 20 };
/// What all other writes may hold: some forty of the largest records.
const OTHERS: QueueLimits = QueueLimits { requests: 32 * 1024, bytes: 64 << 20 };

/// Answers a request when the outcome of its commit is known.
pub type Settle = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// What became of a request's evaluation.
pub enum Evaluation {
    /// To be settled with the outcome of the commit.
    Done(Settle),
    /// It panicked, and may have left part of its changes in the draft. The function answers it.
    Panicked(Settle),
}

/// A request of any kind.
pub trait Request: Send {
    /// Evaluates the request in the draft, with its consequences for disruption budgets.
    fn evaluate(self: Box<Self>, draft: &mut Draft<'_>) -> Evaluation;

    /// Answers with an error without evaluating the request.
    fn refuse(self: Box<Self>, error: StoreError);

    /// Whether nobody waits for the answer any more.
    fn is_abandoned(&self) -> bool;

    /// Whether it deletes a record. Such a request is evaluated even when the disk is full.
    fn deletes(&self) -> bool;
}

/// A renewal. `status` is the digest and age of the holder's status, if the renewal carries them.
pub struct Renew {
    pub claim: Claim,
    pub status: Option<(u64, u32)>,
    pub ack: Ack<Renewal>,
}

/// A request to the writer.
pub enum Job {
    Write(Box<dyn Request>),
    Renew(Renew),
}

/// How a write is queued: its lane, whose it is, and how large.
#[derive(Debug, Clone)]
pub struct WriteClass {
    pub lane: Lane,
    caller: Arc<str>,
    bytes: usize,
    deletes: bool,
}

impl WriteClass {
    /// `bytes` is the size of the encoded request.
    pub fn new(lane: Lane, caller: &Caller, bytes: usize) -> Self {
        // A caller without a role can choose its name; all of them have one share.
        let caller = match caller {
            Caller::Unknown(_) => "unknown".into(),
            known => known.to_string().into(),
        };
        Self { lane, caller, bytes, deletes: false }
    }

    /// The same for a request that deletes a record.
    #[must_use]
    pub fn deleting(self) -> Self {
        Self { deletes: true, ..self }
    }

    pub fn deletes(&self) -> bool {
        self.deletes
    }
}

/// A request that is a function of the draft, and the channel for its answer.
pub struct Write<F, T> {
    pub traceparent: String,
    pub request: F,
    pub answer: oneshot::Sender<Result<T, StoreError>>,
    pub deletes: bool,
}

impl<F, T> Request for Write<F, T>
where
    F: FnOnce(&mut Draft<'_>) -> Result<T, StoreError> + Send,
    T: Send + 'static,
{
    fn evaluate(self: Box<Self>, draft: &mut Draft<'_>) -> Evaluation {
        let Write { traceparent, request, answer, .. } = *self;
        // The writer discards a draft in which a request panicked, so nothing half made is seen.
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            draft.begin_request(traceparent);
            let result = request(draft);
            if let Err(error) = draft.update_budget_statuses() {
                tracing::warn!(%error, "the status of a disruption budget could not be updated");
            }
            result
        }));
        match evaluated {
            Ok(result) => Evaluation::Done(Box::new(move |committed| {
                // The caller may be gone; the write is committed all the same.
                let _ = answer.send(committed.and(result));
            })),
            Err(_) => Evaluation::Panicked(Box::new(move |_| {
                let _ = answer.send(Err(StoreError::Panicked));
            })),
        }
    }

    fn refuse(self: Box<Self>, error: StoreError) {
        let _ = self.answer.send(Err(error));
    }

    fn is_abandoned(&self) -> bool {
        self.answer.is_closed()
    }

    fn deletes(&self) -> bool {
        self.deletes
    }
}

struct QueueState {
    renewals: VecDeque<Job>,
    parts: FairQueue<Box<dyn Request>>,
    others: FairQueue<Box<dyn Request>>,
    /// Why no further request is taken.
    stopped: Option<StoreError>,
}

impl QueueState {
    fn is_empty(&self) -> bool {
        self.renewals.is_empty() && self.parts.is_empty() && self.others.is_empty()
    }
}

/// The renewals of a batch.
pub struct Taken {
    pub renewals: Vec<Job>,
    /// Whether no write waits either.
    pub is_idle: bool,
}

/// How many writes a batch has taken.
#[derive(Debug)]
pub struct BatchProgress {
    writes: usize,
    parts_bytes: usize,
    /// The bytes that the parts' writes may take before the others get their turn: half of a commit.
    parts_turn: usize,
}

impl BatchProgress {
    /// The beginning of a batch with these limits.
    pub fn within(limits: CommitLimits) -> Self {
        Self { writes: 0, parts_bytes: 0, parts_turn: limits.bytes / 2 }
    }
}

impl Default for BatchProgress {
    fn default() -> Self {
        Self::within(CommitLimits::default())
    }
}

/// Requests that wait for the writer.
pub struct Queue {
    waiting: Mutex<QueueState>,
    ready: Condvar,
    queued: Gauge,
    queued_bytes: Gauge,
    abandoned: Counter,
}

impl Queue {
    pub fn new(metrics: &Metrics) -> Self {
        let (parts, others) = (FairQueue::new(PARTS), FairQueue::new(OTHERS));
        let state = QueueState { renewals: VecDeque::new(), parts, others, stopped: None };
        Self {
            waiting: Mutex::new(state),
            ready: Condvar::new(),
            queued: metrics.queued.clone(),
            queued_bytes: metrics.queued_bytes.clone(),
            abandoned: metrics.abandoned.clone(),
        }
    }

    pub fn push_renewal(&self, renewal: Renew) -> Result<(), StoreError> {
        self.enter(|waiting| {
            // A stream has one renewal in flight at a time, which bounds them.
            waiting.renewals.push_back(Job::Renew(renewal));
            Ok(())
        })
    }

    /// Queues a write in its lane.
    pub fn push(&self, class: &WriteClass, request: Box<dyn Request>) -> Result<(), StoreError> {
        let mut displaced = Vec::new();
        let mut limit = 0;
        self.enter(|waiting| {
            if class.lane == Lane::Renewals {
                waiting.renewals.push_back(Job::Write(request));
                return Ok(());
            }
            let lane = if class.lane == Lane::Parts { &mut waiting.parts } else { &mut waiting.others };
            limit = lane.share();
            let pushed = lane.push(&class.caller, class.bytes, request);
            displaced = pushed.map_err(|limit| StoreError::Overloaded { limit })?;
            Ok(())
        })?;
        for request in displaced {
            request.refuse(StoreError::Overloaded { limit: QueueFull::Share(limit) });
        }
        Ok(())
    }

    fn enter(&self, push: impl FnOnce(&mut QueueState) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let mut waiting = self.lock();
        if let Some(reason) = &waiting.stopped {
            return Err(reason.clone());
        }
        let was_empty = waiting.is_empty();
        push(&mut waiting)?;
        self.observe(&waiting);
        // The writer waits only for an empty queue.
        if was_empty {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Takes requests, after [`stop`](Self::stop).
    pub fn open(&self) {
        self.lock().stopped = None;
    }

    /// Refuses all further requests. The first reason stays.
    pub fn stop(&self, reason: StoreError) {
        self.lock().stopped.get_or_insert(reason);
        self.ready.notify_one();
    }

    /// Refuses all further requests and drops those that wait, which fails them.
    pub fn close(&self) {
        self.stop(StoreError::Stopping);
        let mut waiting = self.lock();
        let renewals = std::mem::take(&mut waiting.renewals);
        let parts = std::mem::replace(&mut waiting.parts, FairQueue::new(PARTS));
        let others = std::mem::replace(&mut waiting.others, FairQueue::new(OTHERS));
        self.observe(&waiting);
        drop(waiting);
        drop((renewals, parts, others));
    }

    /// Begins a batch with all renewals that wait. `is_idle` when `patience` ran out, `None` when the queue is stopped
    /// and empty.
    pub fn take(&self, patience: Duration) -> Option<Taken> {
        let waiting = self.lock();
        let idle = |waiting: &mut QueueState| waiting.is_empty() && waiting.stopped.is_none();
        let waited = self.ready.wait_timeout_while(waiting, patience, idle);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_idle = waiting.is_empty();
        if is_idle && waiting.stopped.is_some() {
            return None;
        }
        let batch = waiting.renewals.len().min(BATCH);
        let renewals = waiting.renewals.drain(..batch).collect();
        self.observe(&waiting);
        Some(Taken { renewals, is_idle })
    }

    /// Takes the next write of a batch: one of the parts', unless they have had their part of the batch and others
    /// wait. A write whose caller is gone is dropped.
    pub fn next_write(&self, batch: &mut BatchProgress) -> Option<Box<dyn Request>> {
        if batch.writes >= BATCH {
            return None;
        }
        loop {
            let mut waiting = self.lock();
            let others_turn = batch.parts_bytes >= batch.parts_turn && !waiting.others.is_empty();
            let (cost, request) = match if others_turn { None } else { waiting.parts.pop() } {
                Some((cost, request)) => (cost, request),
                None => waiting.others.pop().map(|(_, request)| (0, request))?,
            };
            self.observe(&waiting);
            drop(waiting);
            if request.is_abandoned() {
                self.abandoned.inc();
                continue;
            }
            batch.writes += 1;
            batch.parts_bytes += cost;
            return Some(request);
        }
    }

    /// Takes back the renewals of a batch that was discarded; they are the first of the next one.
    pub fn give_back(&self, renewals: Vec<Job>) {
        let mut waiting = self.lock();
        for job in renewals.into_iter().rev() {
            waiting.renewals.push_front(job);
        }
        self.observe(&waiting);
    }

    fn observe(&self, waiting: &QueueState) {
        let QueueState { renewals, parts, others, .. } = waiting;
        self.queued.set((renewals.len() + parts.len() + others.len()) as i64);
        self.queued_bytes.set((parts.bytes() + others.bytes()) as i64);
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The obligation to fill a slot. Dropping it without an answer completes the slot with an error.
pub struct Ack<T>(Option<Arc<AckSlot<T>>>);

impl<T> Ack<T> {
    pub fn to(slot: Arc<AckSlot<T>>) -> Self {
        Self(Some(slot))
    }

    pub fn complete(mut self, outcome: Result<T, StoreError>) {
        if let Some(slot) = self.0.take() {
            slot.complete(outcome);
        }
    }
}

impl<T> Drop for Ack<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.complete(Err(StoreError::Stopping));
        }
    }
}

/// Where a stream gets the answer to its request: one slot, no channel and no task.
pub struct AckSlot<T> {
    outcome: Mutex<Option<Result<T, StoreError>>>,
    waker: AtomicWaker,
}

impl<T> Default for AckSlot<T> {
    fn default() -> Self {
        Self { outcome: Mutex::new(None), waker: AtomicWaker::new() }
    }
}

impl<T> AckSlot<T> {
    fn complete(&self, outcome: Result<T, StoreError>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.waker.wake();
    }

    pub fn poll(&self, cx: &Context<'_>) -> Poll<Result<T, StoreError>> {
        // Registered before looking, or an answer in between would wake nobody.
        self.waker.register(cx.waker());
        match self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}
