//! Load on a store: many agents that write at the same time, and the throughput that they reach.
//!
//! Each agent has one message in flight, on its own heartbeat stream or as consecutive calls. Writes that are
//! acknowledged after the warm-up are counted. [`calls`] has load by calls of any method, [`bare_log`] the upper limit
//! to compare with, and [`shares`] compares rates. [`paced`] has agents that renew at an interval, and [`attack`] callers
//! that mean harm.

#![allow(clippy::disallowed_methods, reason = "load is measured by the real clock")]

pub mod attack;
pub mod bare_log;
pub mod calls;
pub mod flood;
pub mod paced;
pub mod raw_client;
pub mod shares;

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::Stream;
use futures_util::task::AtomicWaker;
use hdrhistogram::Histogram;
use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use self::raw_client::{NUMBER, NumberedMessage, RawClient, connect};
use crate::fixtures::{held, lease, node, status_of};

const HEARTBEAT: &str = "/muster.v1.HeartbeatService/Heartbeat";
const CONNECTIONS: usize = 16;
/// Concurrent calls while the records are created.
const AT_ONCE: usize = 256;

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Throughput {
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// All acknowledged writes, also those of the warm-up: what the resources were used for.
    pub acknowledged: u64,
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.0}/s  p50 {:>8.3} ms  p99 {:>8.3} ms", self.per_second, self.p50_ms, self.p99_ms)
    }
}

/// Counts acknowledged writes, and stops the tasks that write.
#[derive(Debug)]
pub struct Meter {
    counting: AtomicBool,
    stopped: AtomicBool,
    ready: Semaphore,
    acknowledged: AtomicU64,
    /// Those acknowledged while it counts.
    counted: AtomicU64,
    latencies: Vec<Mutex<Histogram<u64>>>,
}

impl Meter {
    #[allow(clippy::new_ret_no_self, reason = "it is shared from the first moment on")]
    pub fn new() -> Arc<Meter> {
        let histogram = || Mutex::new(latencies());
        Arc::new(Meter {
            counting: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            ready: Semaphore::new(0),
            acknowledged: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            latencies: (0..64).map(|_| histogram()).collect(),
        })
    }

    /// A task has started to write.
    pub fn join(&self) {
        self.ready.add_permits(1);
    }

    /// Whether tasks shall continue to write.
    pub fn goes_on(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }

    pub fn record(&self, writer: usize, latency: Duration) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        if self.counting.load(Ordering::Relaxed) {
            self.counted.fetch_add(1, Ordering::Relaxed);
            let mut histogram = self.latencies[writer % 64].lock().expect("no writer panics");
            histogram.saturating_record(latency.as_micros() as u64);
        }
    }

    /// Measures the throughput of these tasks, which use this meter.
    pub async fn measure(&self, mut tasks: JoinSet<()>, warm_up: Duration, lasts: Duration) -> Throughput {
        let all = u32::try_from(tasks.len()).expect("not that many");
        self.ready.acquire_many(all).await.expect("the semaphore stays").forget();
        tokio::time::sleep(warm_up).await;
        self.counting.store(true, Ordering::Relaxed);
        let started = Instant::now();
        tokio::time::sleep(lasts).await;
        self.counting.store(false, Ordering::Relaxed);
        let figures = self.figures(started.elapsed());
        self.stopped.store(true, Ordering::Relaxed);
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no writing task panics");
        }
        Throughput { acknowledged: self.acknowledged.load(Ordering::Relaxed), ..figures }
    }

    fn figures(&self, lasted: Duration) -> Throughput {
        let mut all = latencies();
        for part in &self.latencies {
            all.add(&*part.lock().expect("no writer panics")).expect("same bounds");
        }
        Throughput {
            per_second: self.counted.load(Ordering::Relaxed) as f64 / lasted.as_secs_f64(),
            p50_ms: all.value_at_quantile(0.5) as f64 / 1000.0,
            p99_ms: all.value_at_quantile(0.99) as f64 / 1000.0,
            acknowledged: self.acknowledged.load(Ordering::Relaxed),
        }
    }
}

/// From a microsecond to a minute.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("bounds are sound")
}

/// Agents of one store that share a few connections.
#[derive(Debug)]
pub struct Agents {
    channels: Vec<Channel>,
    /// The uids of their nodes.
    uids: Vec<String>,
    /// How many leases for renewals by call exist.
    leases: usize,
}

impl Agents {
    pub async fn of(url: &str) -> Agents {
        Agents::over(connect(url, CONNECTIONS).await)
    }

    /// Over these connections.
    pub fn over(channels: Vec<Channel>) -> Agents {
        Agents { channels, uids: Vec::new(), leases: 0 }
    }

    /// The connection of an agent.
    pub fn channel(&self, index: usize) -> Channel {
        self.channels[index % self.channels.len()].clone()
    }

    /// The first message of an agent's stream.
    pub fn hello(&self, index: usize) -> pb::HeartbeatHello {
        pb::HeartbeatHello {
            node_name: name(index),
            node_uid: self.uids[index].clone(),
            incarnation: "bench".into(),
            lease_duration: None,
        }
    }

    /// Creates nodes until there are `agents`.
    pub async fn register(&mut self, agents: usize) {
        let mut calls = JoinSet::new();
        for index in self.uids.len()..agents {
            let mut nodes = NodeServiceClient::new(self.channel(index));
            calls.spawn(async move {
                let created =
                    nodes.create_node(pb::CreateNodeRequest { node: Some(node(&name(index))) }).await;
                let created = created.expect("a node is created").into_inner().node.expect("the node");
                (index, created.metadata.expect("metadata").uid)
            });
            if calls.len() >= AT_ONCE {
                self.collect(&mut calls).await;
            }
        }
        self.collect(&mut calls).await;
    }

    async fn collect(&mut self, calls: &mut JoinSet<(usize, String)>) {
        let mut done = Vec::new();
        while let Some(created) = calls.join_next().await {
            done.push(created.expect("no call panics"));
        }
        done.sort();
        self.uids.extend(done.into_iter().map(|(_, uid)| uid));
    }

    /// All of them renew over heartbeat streams.
    pub async fn stream(&self, warm_up: Duration, lasts: Duration) -> Throughput {
        self.send(0..self.uids.len(), &Heartbeat::Renewal, warm_up, lasts).await
    }

    /// Some of them send such heartbeats over their streams.
    pub async fn send(
        &self,
        agents: Range<usize>,
        heartbeat: &Heartbeat,
        warm_up: Duration,
        lasts: Duration,
    ) -> Throughput {
        let meter = Meter::new();
        let mut tasks = JoinSet::new();
        for index in agents {
            let client = RawClient::new(self.channel(index), HEARTBEAT);
            tasks.spawn(stream(client, index, self.hello(index), heartbeat.clone(), Arc::clone(&meter)));
        }
        meter.measure(tasks, warm_up, lasts).await
    }

    /// `agents` tasks renew by `RenewLease`, each its own lease.
    pub async fn call(&mut self, agents: usize, warm_up: Duration, lasts: Duration) -> Throughput {
        let mut leases = LeaseServiceClient::new(self.channel(0));
        for index in self.leases..agents {
            let wanted = Some(held(lease(&caller(index)), &caller(index), 40));
            leases.create_lease(pb::CreateLeaseRequest { lease: wanted }).await.expect("a lease is created");
        }
        self.leases = self.leases.max(agents);
        let meter = Meter::new();
        let mut tasks = JoinSet::new();
        for index in 0..agents {
            tasks.spawn(call(LeaseServiceClient::new(self.channel(index)), index, Arc::clone(&meter)));
        }
        meter.measure(tasks, warm_up, lasts).await
    }
}

/// The name of an agent's node.
pub fn name(index: usize) -> String {
    format!("node-{index:05}")
}

/// The name of a lease that is renewed by calls; no stream uses it.
fn caller(index: usize) -> String {
    format!("caller-{index:05}")
}

/// What an agent sends again and again.
#[derive(Clone, Debug)]
pub enum Heartbeat {
    Renewal,
    Status(NumberedMessage),
}

impl Heartbeat {
    /// Statuses of about that many bytes, each different from the one before.
    pub fn status(bytes: usize) -> Heartbeat {
        let status = pb::HeartbeatStatus { status: Some(status_of(bytes, NUMBER)), resource_version: 0 };
        let request = pb::HeartbeatRequest { sequence: 0, message: Some(Message::Status(status)) };
        Heartbeat::Status(NumberedMessage::of(&request))
    }

    fn encode(&self, sequence: u64) -> Bytes {
        match self {
            Heartbeat::Renewal => {
                let renewal = pb::HeartbeatRenewal { status_digest: 7, status_age_millis: 100 };
                let message = Some(Message::Renewal(renewal));
                pb::HeartbeatRequest { sequence, message }.encode_to_vec().into()
            }
            Heartbeat::Status(message) => {
                let mut encoded = message.next();
                // Encoded messages one after the other are one message with the fields of all.
                let sequence = pb::HeartbeatRequest { sequence, message: None };
                sequence.encode(&mut encoded).expect("a vector grows");
                encoded.into()
            }
        }
    }
}

/// The sending side of an agent's stream: at most one message waits.
#[derive(Default)]
struct Outbox {
    message: Mutex<Option<Bytes>>,
    waker: AtomicWaker,
}

impl Outbox {
    fn send(&self, message: Bytes) {
        *self.message.lock().expect("no sender panics") = Some(message);
        self.waker.wake();
    }
}

struct Outgoing(Arc<Outbox>);

impl Stream for Outgoing {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.waker.register(cx.waker());
        match self.0.message.lock().expect("no sender panics").take() {
            Some(message) => Poll::Ready(Some(message)),
            None => Poll::Pending,
        }
    }
}

async fn stream(
    mut client: RawClient,
    index: usize,
    hello: pb::HeartbeatHello,
    heartbeat: Heartbeat,
    meter: Arc<Meter>,
) {
    let outbox = Arc::new(Outbox::default());
    let hello = pb::HeartbeatRequest { sequence: 0, message: Some(Message::Hello(hello)) };
    outbox.send(hello.encode_to_vec().into());
    let mut answers = client.stream(Outgoing(Arc::clone(&outbox))).await.expect("the stream opens");
    answers.message().await.expect("the hello is accepted");
    meter.join();
    let mut sequence = 0;
    while meter.goes_on() {
        sequence += 1;
        let message = heartbeat.encode(sequence);
        let sent = Instant::now();
        outbox.send(message);
        let answer = answers.message().await.expect("the write is durable").expect("the stream stays open");
        let answer = pb::HeartbeatResponse::decode(answer).expect("an answer to a heartbeat");
        assert_eq!(answer.sequence, sequence);
        meter.record(index, sent.elapsed());
    }
}

async fn call(mut client: LeaseServiceClient<Channel>, index: usize, meter: Arc<Meter>) {
    let request = pb::RenewLeaseRequest {
        namespace: String::new(),
        name: caller(index),
        holder_identity: caller(index),
    };
    meter.join();
    while meter.goes_on() {
        let sent = Instant::now();
        client.renew_lease(request.clone()).await.expect("the renewal is durable");
        meter.record(index, sent.elapsed());
    }
}
