//! Writes decisions to the store's log, in batches, beside the actions: none of them waits for it.
//!
//! What waits to be written is bounded. When it is full, decisions are lost, and one record says how many: it has
//! the number of the last of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_controller_core::decision::takeover::Seed;
use muster_controller_core::decision::{Decision, DecisionState, DecisionSubject};
use muster_controller_core::decision::{Rule, causes};
use muster_proto::backoff::Backoff;
use muster_proto::pb;
use muster_store_client::{ClientError, StoreClient};
use prost::Message;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::leader_election::Leadership;

/// Decisions that wait to be written: more than the budget of the core allows at once.
const QUEUE: usize = 32_768;
/// Decisions of one call.
const BATCH: usize = 1000;
/// Their size: the store accepts messages of 2 MiB.
const BATCH_BYTES: usize = 1 << 20;
/// How long decisions are collected. It bounds the syncs that the log costs the store's disk.
const LINGER: Duration = Duration::from_millis(100);
/// The pause after a call that failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
/// How long the last decisions are waited for when the process stops.
const LAST: Duration = Duration::from_secs(2);
/// The newest decisions that a new leader reads.
const SEED: usize = 10_000;

/// Writes the decisions of one term.
pub struct DecisionRecorder {
    shared: Arc<Shared>,
    leader: String,
    term: u64,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is something to do.
    changed: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<pb::Decision>,
    /// Nothing more comes.
    is_closed: bool,
    /// Nothing more is written in this term.
    is_off: bool,
}

impl DecisionRecorder {
    /// Begins to write the decisions of a term with the fenced client of that term.
    pub fn start(client: StoreClient, leadership: &Leadership) -> DecisionRecorder {
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(write_all(client, Arc::clone(&shared)));
        let term =
            leadership.fence.as_ref().map_or(0, |fence| u64::try_from(fence.transitions()).unwrap_or(0));
        DecisionRecorder { shared, leader: leadership.holder.clone(), term, task }
    }

    /// Queues decisions. Never waits.
    pub fn record(&self, decisions: Vec<Decision>) {
        if decisions.is_empty() {
            return;
        }
        let mut queue = self.shared.queue();
        if queue.is_off {
            return;
        }
        for decision in decisions {
            queue.push(decision, &self.leader, self.term);
        }
        drop(queue);
        self.shared.changed.notify_one();
    }

    /// Writes what is queued, for a short time at most. Call it while this controller still has the lease.
    pub async fn finish(mut self) {
        self.shared.queue().is_closed = true;
        self.shared.changed.notify_one();
        if timeout(LAST, &mut self.task).await.is_err() {
            tracing::warn!("the last decisions could not be recorded in time");
        }
    }
}

impl Drop for DecisionRecorder {
    /// Without [`DecisionRecorder::finish`] another controller leads, and the store would refuse what is left.
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn push(&mut self, decision: Decision, leader: &str, term: u64) {
        if self.waiting.len() < QUEUE {
            return self.waiting.push_back(decision.into_pb(leader, term));
        }
        let last = self.waiting.back().filter(|last| last.rule == Rule::DecisionsLost.id());
        let before = last.and_then(|last| last.inputs.first()?.value.parse::<u64>().ok());
        if before.is_some() {
            self.waiting.pop_back();
        }
        let lost = Decision {
            subject: DecisionSubject::Fleet,
            uid: None,
            node: None,
            zone: None,
            state: DecisionState::Observed,
            action: "",
            cause: causes::lost(before.unwrap_or(0) + 1),
            outcome: None,
            trace_id: String::new(),
            follows: 0,
            aggregate: None,
            ..decision
        };
        self.waiting.push_back(lost.into_pb(leader, term));
    }

    /// The first decisions, as many as fit a call.
    fn take_batch(&mut self) -> Vec<pb::Decision> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.waiting.front() {
            bytes += next.encoded_len() + 8;
            if batch.len() >= BATCH || (bytes > BATCH_BYTES && !batch.is_empty()) {
                break;
            }
            batch.extend(self.waiting.pop_front());
        }
        batch
    }
}

async fn write_all(client: StoreClient, shared: Arc<Shared>) {
    loop {
        let (is_closed, is_full) = {
            let queue = shared.queue();
            (queue.is_closed, queue.waiting.len() >= BATCH)
        };
        if !is_closed && !is_full {
            sleep(LINGER).await;
        }
        let batch = shared.queue().take_batch();
        if !batch.is_empty() {
            if !write(&client, batch, &shared).await {
                *shared.queue() = Queue { is_off: true, ..Queue::default() };
                return;
            }
            continue;
        }
        if is_closed {
            return;
        }
        shared.changed.notified().await;
    }
}

/// Writes a batch, as often as it takes. Returns whether to go on.
async fn write(client: &StoreClient, batch: Vec<pb::Decision>, shared: &Shared) -> bool {
    for attempt in 1.. {
        let Err(error) = client.record_decisions(batch.clone()).await else { return true };
        match &error {
            ClientError::Fenced(_) => return false,
            ClientError::Other(status) if status.code() == Code::Unimplemented => {
                tracing::warn!(%error, "decisions are not recorded");
                return false;
            }
            error if error.is_retryable() => {
                tracing::debug!(%error, "decisions could not be recorded yet");
                if shared.queue().is_closed && attempt > 3 {
                    return false;
                }
                sleep(BACKOFF.delay(attempt, 0.0)).await;
            }
            error => {
                tracing::error!(%error, decisions = batch.len(), "decisions were not recorded, and those after them are not either");
                return false;
            }
        }
    }
    false
}

/// The newest decisions of the log, for a leader that continues it. Waits until the store has answered.
pub async fn read_seed(client: StoreClient) -> Seed {
    for attempt in 1.. {
        match read_newest(&client).await {
            Ok(seed) => return seed,
            Err(error) if error.is_retryable() => {
                tracing::debug!(%error, "the log of decisions could not be read yet");
                sleep(BACKOFF.delay(attempt, 0.0)).await;
            }
            // Such as a store that keeps none.
            Err(error) => {
                tracing::debug!(%error, "there is no log of decisions to continue");
                return Seed::default();
            }
        }
    }
    Seed::default()
}

async fn read_newest(client: &StoreClient) -> Result<Seed, ClientError> {
    let (mut decisions, mut last_id) = (Vec::new(), 0);
    let mut request = pb::ListDecisionsRequest { page_size: BATCH as u32, ..Default::default() };
    while decisions.len() < SEED {
        let page = match client.list_decisions(request.clone()).await {
            Ok(page) => page,
            // What is newer than the damage is enough.
            Err(error) if last_id > 0 && !error.is_retryable() => {
                tracing::warn!(%error, "the log of decisions is continued from what could be read of it");
                break;
            }
            Err(error) => return Err(error),
        };
        last_id = last_id.max(page.last_id);
        decisions.extend(page.decisions);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let mut seed = Seed::of(decisions);
    seed.continue_after(last_id);
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_controller_core::fixtures::at;
    use muster_controller_core::plan::ControllerName;

    fn decision(id: u64) -> Decision {
        Decision {
            id,
            at: at(1).wall,
            controller: ControllerName::NodeLifecycle,
            subject: DecisionSubject::Node("n".parse().unwrap()),
            uid: None,
            node: None,
            zone: None,
            state: DecisionState::Observed,
            action: "",
            cause: causes::node_ready(),
            outcome: None,
            trace_id: String::new(),
            follows: id - 1,
            aggregate: None,
        }
    }

    #[test]
    fn a_full_queue_says_how_many_decisions_are_lost() {
        let mut queue = Queue::default();
        for id in 1..=QUEUE as u64 + 5 {
            queue.push(decision(id), "me", 3);
        }
        assert_eq!(queue.waiting.len(), QUEUE + 1);
        let lost = queue.waiting.back().unwrap();
        assert_eq!((lost.id, lost.rule.as_str()), (QUEUE as u64 + 5, "decisions-lost"));
        assert_eq!((lost.inputs[0].value.as_str(), lost.inputs[0].name.as_str()), ("5", "count"));
        let batch = queue.take_batch();
        assert_eq!((batch.len(), batch[0].id, batch[0].leader.as_str(), batch[0].term), (BATCH, 1, "me", 3));
        queue.push(decision(QUEUE as u64 + 6), "me", 3);
        let last = queue.waiting.back().unwrap();
        assert_eq!((last.id, last.rule.as_str()), (QUEUE as u64 + 6, "node-ready"), "there is space again");
    }

    #[test]
    fn a_batch_is_no_larger_than_the_store_accepts() {
        let mut queue = Queue::default();
        for id in 1..=900 {
            let mut large = decision(id);
            large.cause.reason = "x".repeat(4000);
            queue.push(large, "me", 3);
        }
        let mut ids = Vec::new();
        while !queue.waiting.is_empty() {
            let batch = queue.take_batch();
            let request = pb::RecordDecisionsRequest { decisions: batch };
            assert!(request.encoded_len() <= BATCH_BYTES, "{}", request.encoded_len());
            ids.extend(request.decisions.iter().map(|decision| decision.id));
        }
        assert_eq!(ids, (1..=900).collect::<Vec<u64>>());
    }
}
