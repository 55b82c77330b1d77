//! The queue of the writer, and how requests get their answers.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;

use crate::error::StoreError;
use muster_store_core::draft::Draft;
use muster_store_core::lease_table::{Claim, Renewal};

/// The most requests in one commit; fewer if they make it large.
pub const BATCH: usize = 4096;

/// Answers a request when the outcome of its commit is known.
pub type Settle = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A request of any kind.
pub trait Request: Send {
    /// Evaluates the request in the draft. The returned function answers it when the outcome of the commit is known.
    fn evaluate(self: Box<Self>, draft: &mut Draft<'_>) -> Settle;

    /// Answers with an error without evaluating the request.
    fn refuse(self: Box<Self>, error: StoreError);
}

/// A request to the writer.
pub enum Job {
    Write(Box<dyn Request>),
    /// `status` is the digest and age of the holder's status, if the renewal carries them.
    Renew {
        claim: Claim,
        status: Option<(u64, u32)>,
        ack: Ack<Renewal>,
    },
}

/// A request that is a function of the draft, and the channel for its answer.
pub struct Write<F, T> {
    pub traceparent: String,
    pub request: F,
    pub answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Request for Write<F, T>
where
    F: FnOnce(&mut Draft<'_>) -> Result<T, StoreError> + Send,
    T: Send + 'static,
{
    fn evaluate(self: Box<Self>, draft: &mut Draft<'_>) -> Settle {
        let Write { traceparent, request, answer } = *self;
        draft.begin_request(traceparent);
        let result = request(draft);
        Box::new(move |committed| {
            // The caller may be gone; the write is committed all the same.
            let _ = answer.send(committed.and(result));
        })
    }

    fn refuse(self: Box<Self>, error: StoreError) {
        let _ = self.answer.send(Err(error));
    }
}

#[derive(Default)]
struct QueueState {
    jobs: Vec<Job>,
    stopped: bool,
}

/// The most writes that may wait. Renewals do not count, since a stream has one in flight at a time.
const MAX_QUEUED: usize = 32 * 1024;

/// Requests in the order they arrived.
#[derive(Default)]
pub struct Queue {
    waiting: Mutex<QueueState>,
    ready: Condvar,
}

impl Queue {
    pub fn push(&self, job: Job) -> Result<(), StoreError> {
        let mut waiting = self.lock();
        if waiting.stopped {
            return Err(StoreError::Stopping);
        }
        if waiting.jobs.len() >= MAX_QUEUED && matches!(job, Job::Write(_)) {
            return Err(StoreError::Overloaded { limit: MAX_QUEUED });
        }
        waiting.jobs.push(job);
        // The writer waits only for an empty queue.
        if waiting.jobs.len() == 1 {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Refuses all further requests.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.ready.notify_one();
    }

    /// The next batch: empty when `patience` ran out, `None` when the queue is stopped and empty.
    pub fn take(&self, patience: Duration) -> Option<Vec<Job>> {
        let waiting = self.lock();
        let idle = |waiting: &mut QueueState| waiting.jobs.is_empty() && !waiting.stopped;
        let waited = self.ready.wait_timeout_while(waiting, patience, idle);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if waiting.jobs.is_empty() && waiting.stopped {
            return None;
        }
        let jobs = &mut waiting.jobs;
        let rest = jobs.split_off(jobs.len().min(BATCH));
        Some(std::mem::replace(jobs, rest))
    }

    /// Takes back requests that did not fit into a batch; they are the first of the next one.
    pub fn give_back(&self, mut jobs: Vec<Job>) {
        if !jobs.is_empty() {
            let mut waiting = self.lock();
            jobs.append(&mut waiting.jobs);
            waiting.jobs = jobs;
        }
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
