//! What waits for the writer, and how it answers.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;

use crate::error::StoreError;
use muster_store_core::draft::Draft;
use muster_store_core::lease_table::{Claim, Renewal};

/// The most requests one commit takes; fewer, if they make it large before.
pub const BATCH: usize = 4096;

/// Tells a request how its commit went.
pub type Settle = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A request of any kind.
pub trait Request: Send {
    /// Writes it into the draft; the answer goes out when the commit is known.
    fn evaluate(self: Box<Self>, draft: &mut Draft<'_>) -> Settle;

    /// Answers without looking at it.
    fn refuse(self: Box<Self>, error: StoreError);
}

/// A request to the writer.
pub enum Job {
    Write(Box<dyn Request>),
    /// With digest and age of the holder's status, if the renewal tells of them.
    Renew {
        claim: Claim,
        status: Option<(u64, u32)>,
        ack: Ack<Renewal>,
    },
}

/// A request that is a function of the draft, and who waits for its answer.
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
        draft.begin(traceparent);
        let result = request(draft);
        Box::new(move |committed| {
            // Whoever asked may have gone; the write stands.
            let _ = answer.send(committed.and(result));
        })
    }

    fn refuse(self: Box<Self>, error: StoreError) {
        let _ = self.answer.send(Err(error));
    }
}

#[derive(Default)]
struct Waiting {
    jobs: Vec<Job>,
    stopped: bool,
}

/// The most writes that may wait: more than this the disk will not take soon.
/// Renewals are not counted, since a stream has one under way at a time.
const WAITING: usize = 32 * 1024;

/// Requests in the order they came.
#[derive(Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    ready: Condvar,
}

impl Queue {
    pub fn push(&self, job: Job) -> Result<(), StoreError> {
        let mut waiting = self.lock();
        if waiting.stopped {
            return Err(StoreError::Stopping);
        }
        if waiting.jobs.len() >= WAITING && matches!(job, Job::Write(_)) {
            return Err(StoreError::Overloaded { limit: WAITING });
        }
        waiting.jobs.push(job);
        // Only an empty queue can have the writer waiting.
        if waiting.jobs.len() == 1 {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Refuses what comes from here on.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.ready.notify_one();
    }

    /// The next batch; empty when `patience` ran out, `None` once all is done.
    pub fn take(&self, patience: Duration) -> Option<Vec<Job>> {
        let waiting = self.lock();
        let idle = |waiting: &mut Waiting| waiting.jobs.is_empty() && !waiting.stopped;
        let waited = self.ready.wait_timeout_while(waiting, patience, idle);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if waiting.jobs.is_empty() && waiting.stopped {
            return None;
        }
        let jobs = &mut waiting.jobs;
        let rest = jobs.split_off(jobs.len().min(BATCH));
        Some(std::mem::replace(jobs, rest))
    }

    /// Takes back what a batch had no room for; it is the next.
    pub fn give_back(&self, mut jobs: Vec<Job>) {
        if !jobs.is_empty() {
            let mut waiting = self.lock();
            jobs.append(&mut waiting.jobs);
            waiting.jobs = jobs;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The promise to fill a slot. Dropped without an answer, it says that there will
/// be none.
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

/// Where a stream hears of its request: one slot, no channel and no task.
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
