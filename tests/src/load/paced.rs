//! Agents that renew at an interval, as real ones do, while something else goes on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use prost::Message as _;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tonic::transport::Channel;

use super::raw_client::RawClient;
use super::{HEARTBEAT, Heartbeat, Outbox, Outgoing, latencies};

/// Agents with a heartbeat stream each.
#[derive(Debug)]
pub struct PacedAgents {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    every: Duration,
    /// How often each agent's renewal was acknowledged.
    acknowledged: Vec<AtomicU64>,
    latencies: Mutex<Histogram<u64>>,
    /// Why an agent's stream ended.
    failure: Mutex<Option<String>>,
    ready: Semaphore,
    is_stopped: AtomicBool,
}

impl PacedAgents {
    /// Opens a stream for each of these agents, on its connection; returns when the store has accepted all hellos.
    pub async fn start(agents: Vec<(Channel, pb::HeartbeatHello)>, every: Duration) -> PacedAgents {
        let count = agents.len();
        let shared = Arc::new(Shared {
            every,
            acknowledged: (0..count).map(|_| AtomicU64::new(0)).collect(),
            latencies: Mutex::new(latencies()),
            failure: Mutex::default(),
            ready: Semaphore::new(0),
            is_stopped: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        for (index, (channel, hello)) in agents.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            tasks.spawn(async move {
                let client = RawClient::new(channel, HEARTBEAT);
                if let Err(reason) = renew(client, index, hello, &shared).await {
                    lock(&shared.failure).get_or_insert(reason);
                    // Nobody waits for an agent that has failed.
                    shared.ready.add_permits(1);
                }
            });
        }
        let all = u32::try_from(count).expect("not that many");
        shared.ready.acquire_many(all).await.expect("the semaphore stays").forget();
        let agents = PacedAgents { shared, tasks };
        assert_eq!(agents.failure(), None, "every agent is accepted");
        agents
    }

    /// Why the first stream that ended did so.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }

    /// How often each agent has renewed.
    pub fn acknowledged(&self) -> Vec<u64> {
        self.shared.acknowledged.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// The latencies since the last time they were taken.
    pub fn take_latencies(&self) -> Histogram<u64> {
        std::mem::replace(&mut *lock(&self.shared.latencies), latencies())
    }

    /// Lets them finish their last renewals.
    pub async fn stop(mut self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no agent panics");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn renew(
    mut client: RawClient,
    index: usize,
    hello: pb::HeartbeatHello,
    shared: &Shared,
) -> Result<(), String> {
    let outbox = Arc::new(Outbox::default());
    let name = hello.node_name.clone();
    let failed = |what: &str, why: String| format!("{name}: {what}: {why}");
    let hello = pb::HeartbeatRequest { sequence: 0, message: Some(Message::Hello(hello)) };
    outbox.send(hello.encode_to_vec().into());
    let opened = client.stream(Outgoing(Arc::clone(&outbox))).await;
    let mut answers = opened.map_err(|status| failed("the stream", status.to_string()))?;
    answers.message().await.map_err(|status| failed("the hello", status.to_string()))?;
    shared.ready.add_permits(1);
    // Spread over the interval, as the store's own answers spread a fleet.
    tokio::time::sleep(shared.every.mul_f64(index as f64 / shared.acknowledged.len() as f64)).await;
    let mut ticks = interval(shared.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sequence = 0;
    while !shared.is_stopped.load(Ordering::Relaxed) {
        ticks.tick().await;
        sequence += 1;
        let message = Heartbeat::Renewal.encode(sequence);
        let sent = Instant::now();
        outbox.send(message);
        let answer = answers.message().await.map_err(|status| failed("a renewal", status.to_string()))?;
        let answer = answer.ok_or_else(|| failed("a renewal", "the stream ended".to_owned()))?;
        let answer =
            pb::HeartbeatResponse::decode(answer).map_err(|error| failed("an answer", error.to_string()))?;
        if answer.sequence != sequence {
            return Err(failed("a renewal", format!("answer {} to renewal {sequence}", answer.sequence)));
        }
        lock(&shared.latencies).saturating_record(sent.elapsed().as_micros() as u64);
        shared.acknowledged[index].fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
