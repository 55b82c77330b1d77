//! How many renewals a second the store makes durable, and how long one takes.
//!
//! `cargo bench -p muster-tests --bench renewals [-- SECONDS]`
//!
//! The real store runs beside this load generator. Each agent holds one
//! heartbeat stream and has one renewal under way at a time. The bare log is the
//! limit: the same number of writers share an append and an fdatasync on the
//! same disk, with no gRPC, no records and no index.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::Stream;
use futures_util::task::AtomicWaker;
use hdrhistogram::Histogram;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_proto::pb::heartbeat_service_client::HeartbeatServiceClient;
use muster_proto::pb::node_service_client::NodeServiceClient;
use muster_tests::process::Launch;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const CONNECTIONS: usize = 16;
const WARM_UP: Duration = Duration::from_secs(2);

/// What a run came to.
struct Figures {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>9.0}/s  p50 {:>8.3} ms  p99 {:>8.3} ms", self.per_second, self.p50_ms, self.p99_ms)
    }
}

/// Counts what is acknowledged between the warm-up and the end.
struct Meter {
    counting: AtomicBool,
    acknowledged: AtomicU64,
    latencies: Vec<Mutex<Histogram<u64>>>,
}

impl Meter {
    fn new() -> Arc<Self> {
        let histogram =
            || Mutex::new(Histogram::new_with_bounds(1, 60_000_000, 3).expect("bounds are sound"));
        let latencies = (0..64).map(|_| histogram()).collect();
        Arc::new(Self { counting: AtomicBool::new(false), acknowledged: AtomicU64::new(0), latencies })
    }

    fn record(&self, writer: usize, latency: Duration) {
        if self.counting.load(Ordering::Relaxed) {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            let mut histogram = self.latencies[writer % 64].lock().expect("no writer panics");
            histogram.saturating_record(latency.as_micros() as u64);
        }
    }

    fn figures(&self, lasted: Duration) -> Figures {
        let mut all = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3).expect("bounds are sound");
        for part in &self.latencies {
            all.add(&*part.lock().expect("no writer panics")).expect("same bounds");
        }
        Figures {
            per_second: self.acknowledged.load(Ordering::Relaxed) as f64 / lasted.as_secs_f64(),
            p50_ms: all.value_at_quantile(0.5) as f64 / 1000.0,
            p99_ms: all.value_at_quantile(0.99) as f64 / 1000.0,
        }
    }
}

/// An agent's side of its stream: at most one message waits to be sent.
#[derive(Default)]
struct Outbox {
    message: Mutex<Option<pb::HeartbeatRequest>>,
    waker: AtomicWaker,
}

impl Outbox {
    fn send(&self, message: pb::HeartbeatRequest) {
        *self.message.lock().expect("no sender panics") = Some(message);
        self.waker.wake();
    }
}

struct Outgoing(Arc<Outbox>);

impl Stream for Outgoing {
    type Item = pb::HeartbeatRequest;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.waker.register(cx.waker());
        match self.0.message.lock().expect("no sender panics").take() {
            Some(message) => Poll::Ready(Some(message)),
            None => Poll::Pending,
        }
    }
}

#[tokio::main]
#[allow(clippy::disallowed_methods)] // A benchmark is where clocks belong.
async fn main() {
    let seconds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(8);
    let lasts = Duration::from_secs(seconds);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the data");
    println!(
        "durable renewals over heartbeat streams, {seconds} s each, against a bare log on the same disk\n"
    );

    let log_alone = log_alone(&directory.path().join("alone.log"));
    println!("     1 writer   bare log   p50 {log_alone:>8.3} ms");
    let store = Launch::on(&directory.path().join("data")).start();
    let channels = connect(&store.url()).await;
    let mut registered = Vec::new();
    for agents in [1, 64, 1024, 10_000] {
        register(&channels, &mut registered, agents).await;
        let before = Usage::of(store.pid().as_raw_nonzero().get(), directory.path());
        let renewals = renew(&channels, &registered, lasts).await;
        let after = Usage::of(store.pid().as_raw_nonzero().get(), directory.path());
        let count = renewals.per_second * lasts.as_secs_f64();
        let all = count * (1.0 + WARM_UP.as_secs_f64() / lasts.as_secs_f64());
        println!("{agents:>6} agents   muster     {renewals}");
        println!(
            "                store      {:>9.1} µs of CPU and {:.0} bytes on disk a renewal, {} MiB resident",
            (after.cpu_micros - before.cpu_micros) / all,
            (after.disk_bytes - before.disk_bytes) / all,
            after.resident_mib,
        );
        if agents == 1 {
            println!("                ratio      {:.2} × the log's latency", renewals.p50_ms / log_alone);
            continue;
        }
        let log = log(&directory.path().join(format!("{agents}.log")), agents, lasts).await;
        println!("                bare log   {log}");
        println!(
            "                ratio      {:.1} % of the log's rate",
            100.0 * renewals.per_second / log.per_second
        );
    }
}

async fn connect(url: &str) -> Vec<Channel> {
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS {
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("a sound URL").tcp_nodelay(true);
        channels.push(endpoint.connect().await.expect("the store listens"));
    }
    channels
}

/// Creates nodes until there are `agents` of them; keeps their uids.
async fn register(channels: &[Channel], registered: &mut Vec<String>, agents: usize) {
    let mut calls = tokio::task::JoinSet::new();
    for index in registered.len()..agents {
        let mut nodes = NodeServiceClient::new(channels[index % channels.len()].clone());
        calls.spawn(async move {
            let metadata = pb::Metadata { name: format!("node-{index:05}"), ..Default::default() };
            let node = pb::Node { metadata: Some(metadata), ..Default::default() };
            let created = nodes.create_node(pb::CreateNodeRequest { node: Some(node) }).await;
            let created = created.expect("a node is created").into_inner().node.expect("the node");
            (index, created.metadata.expect("metadata").uid)
        });
        if calls.len() >= 256 {
            collect(&mut calls, registered).await;
        }
    }
    collect(&mut calls, registered).await;
}

async fn collect(calls: &mut tokio::task::JoinSet<(usize, String)>, registered: &mut Vec<String>) {
    let mut done = Vec::new();
    while let Some(created) = calls.join_next().await {
        done.push(created.expect("no call panics"));
    }
    done.sort();
    registered.extend(done.into_iter().map(|(_, uid)| uid));
}

#[allow(clippy::disallowed_methods)]
async fn renew(channels: &[Channel], uids: &[String], lasts: Duration) -> Figures {
    let meter = Meter::new();
    let stop = Arc::new(AtomicBool::new(false));
    let ready = Arc::new(tokio::sync::Semaphore::new(0));
    let mut agents = tokio::task::JoinSet::new();
    for (index, uid) in uids.iter().enumerate() {
        let client = HeartbeatServiceClient::new(channels[index % channels.len()].clone());
        agents.spawn(agent(
            client,
            index,
            uid.clone(),
            Arc::clone(&meter),
            Arc::clone(&stop),
            Arc::clone(&ready),
        ));
    }
    let _all = ready.acquire_many(uids.len() as u32).await.expect("the semaphore stays");
    tokio::time::sleep(WARM_UP).await;
    meter.counting.store(true, Ordering::Relaxed);
    let started = Instant::now();
    tokio::time::sleep(lasts).await;
    meter.counting.store(false, Ordering::Relaxed);
    let figures = meter.figures(started.elapsed());
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = agents.join_next().await {
        ended.expect("no agent panics");
    }
    figures
}

#[allow(clippy::disallowed_methods)]
async fn agent(
    mut client: HeartbeatServiceClient<Channel>,
    index: usize,
    node_uid: String,
    meter: Arc<Meter>,
    stop: Arc<AtomicBool>,
    ready: Arc<tokio::sync::Semaphore>,
) {
    let outbox = Arc::new(Outbox::default());
    let hello = pb::HeartbeatHello {
        node_name: format!("node-{index:05}"),
        node_uid,
        incarnation: "bench".into(),
        lease_duration: None,
    };
    outbox.send(pb::HeartbeatRequest { sequence: 0, message: Some(Message::Hello(hello)) });
    let answers = client.heartbeat(Outgoing(Arc::clone(&outbox))).await;
    let mut answers = answers.expect("the stream opens").into_inner();
    answers.message().await.expect("the agent is let in");
    ready.add_permits(1);
    let mut sequence = 0;
    while !stop.load(Ordering::Relaxed) {
        sequence += 1;
        let renewal = pb::HeartbeatRenewal { status_digest: 7, status_age_millis: 100 };
        let sent = Instant::now();
        outbox.send(pb::HeartbeatRequest { sequence, message: Some(Message::Renewal(renewal)) });
        let answer = answers.message().await.expect("the renewal is durable").expect("the stream goes on");
        assert_eq!(answer.sequence, sequence);
        meter.record(index, sent.elapsed());
    }
}

/// One append and fdatasync after the other: the median, in milliseconds.
#[allow(clippy::disallowed_methods)]
fn log_alone(path: &Path) -> f64 {
    let mut file = File::create(path).expect("a log file");
    let mut latencies = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3).expect("bounds are sound");
    for _ in 0..2000 {
        let started = Instant::now();
        file.write_all(&[7; 24]).and_then(|()| file.sync_data()).expect("the log is written");
        latencies.saturating_record(started.elapsed().as_micros() as u64);
    }
    latencies.value_at_quantile(0.5) as f64 / 1000.0
}

/// Writers that share one append and fdatasync per batch.
#[allow(clippy::disallowed_methods)]
async fn log(path: &Path, writers: usize, lasts: Duration) -> Figures {
    let mut file = File::create(path).expect("a log file");
    let (queue, queued) = mpsc::channel::<oneshot::Sender<()>>();
    std::thread::spawn(move || {
        while let Ok(first) = queued.recv() {
            let batch: Vec<_> = std::iter::once(first).chain(queued.try_iter().take(4095)).collect();
            let bytes = vec![7; 24 * batch.len()];
            file.write_all(&bytes).and_then(|()| file.sync_data()).expect("the log is written");
            for writer in batch {
                let _ = writer.send(());
            }
        }
    });
    let meter = Meter::new();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..writers {
        let (queue, meter, stop) = (queue.clone(), Arc::clone(&meter), Arc::clone(&stop));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let (done, written) = oneshot::channel();
                let sent = Instant::now();
                queue.send(done).expect("the log's thread lives");
                written.await.expect("the log answers");
                meter.record(index, sent.elapsed());
            }
        });
    }
    drop(queue);
    tokio::time::sleep(WARM_UP).await;
    meter.counting.store(true, Ordering::Relaxed);
    let started = Instant::now();
    tokio::time::sleep(lasts).await;
    meter.counting.store(false, Ordering::Relaxed);
    let figures = meter.figures(started.elapsed());
    stop.store(true, Ordering::Relaxed);
    while tasks.join_next().await.is_some() {}
    figures
}

/// What a process and its disk have used so far.
struct Usage {
    cpu_micros: f64,
    disk_bytes: f64,
    resident_mib: u64,
}

impl Usage {
    fn of(pid: i32, directory: &Path) -> Self {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: f64 = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let resident: u64 = resident.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
        Self { cpu_micros: ticks * 10_000.0, disk_bytes: written(directory), resident_mib: resident / 1024 }
    }
}

/// Bytes written to the block device below a directory, by anybody.
fn written(directory: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(directory).expect("the directory is there").dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stats = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let sectors = stats.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let here = fields.first()?.parse() == Ok(major) && fields.get(1)?.parse() == Ok(minor);
        here.then(|| fields.get(9)?.parse::<f64>().ok()).flatten()
    });
    sectors.unwrap_or(0.0) * 512.0
}
