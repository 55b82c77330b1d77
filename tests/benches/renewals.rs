//! Durable renewals per second, and the latency of one.
//!
//! `cargo bench -p muster-tests --bench renewals [-- SECONDS]`
//!
//! The real store runs beside this load generator. Each agent has one heartbeat stream with one renewal in flight. The
//! upper limit is a bare log: the same number of writers share an append and an fdatasync on the same disk, without
//! gRPC, records or indexes.

#![allow(clippy::disallowed_methods, reason = "a benchmark is where clocks belong")]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use muster_tests::load::{Agents, Meter, Throughput, latencies};
use muster_tests::store_process::StoreLaunch;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const WARM_UP: Duration = Duration::from_secs(2);
const WARM_UP_ALONE: Duration = Duration::from_millis(200);
const ROUNDS_ALONE: usize = 9;

#[tokio::main]
async fn main() {
    let seconds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(8);
    let lasts = Duration::from_secs(seconds);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the data");
    println!(
        "durable renewals over heartbeat streams, {seconds} s each, against a bare log on the same disk\n"
    );

    let store = StoreLaunch::on(&directory.path().join("data")).start();
    let mut fleet = Agents::of(&store.url()).await;
    fleet.register(1).await;
    alone(&fleet, &directory.path().join("alone.log")).await;
    for agents in [64, 1024, 10_000] {
        fleet.register(agents).await;
        let before = Usage::of(store.pid().as_raw_nonzero().get(), directory.path());
        let renewals = fleet.stream(WARM_UP, lasts).await;
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
        let log = log(&directory.path().join(format!("{agents}.log")), agents, lasts).await;
        println!("                bare log   {log}");
        println!(
            "                ratio      {:.1} % of the log's rate",
            100.0 * renewals.per_second / log.per_second
        );
    }
}

/// Alternates between a single agent and a single writer of the log, because the speed of a shared disk varies.
async fn alone(fleet: &Agents, path: &Path) {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS_ALONE {
        let log = log_alone(path);
        let renewal = fleet.stream(WARM_UP_ALONE, Duration::from_secs(1)).await;
        rounds.push((renewal.p50_ms / log, log, renewal));
    }
    rounds.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
    let (ratio, log, renewal) = rounds[ROUNDS_ALONE / 2];
    let (least, most) = (rounds[0].0, rounds[ROUNDS_ALONE - 1].0);
    println!("     1 writer   bare log   p50 {log:>8.3} ms");
    println!("     1 agent    muster     {renewal}");
    println!(
        "                ratio      {ratio:.2} × the log's latency, median of {ROUNDS_ALONE} rounds in turns \
         ({least:.2} to {most:.2})"
    );
}

/// The median of consecutive appends with fdatasync, in milliseconds.
fn log_alone(path: &Path) -> f64 {
    let mut file = File::create(path).expect("a log file");
    let mut latencies = latencies();
    for _ in 0..1000 {
        let started = Instant::now();
        file.write_all(&[7; 24]).and_then(|()| file.sync_data()).expect("the log is written");
        latencies.saturating_record(started.elapsed().as_micros() as u64);
    }
    latencies.value_at_quantile(0.5) as f64 / 1000.0
}

/// Writers that share one append and fdatasync per batch.
async fn log(path: &Path, writers: usize, lasts: Duration) -> Throughput {
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
    let mut tasks = JoinSet::new();
    for index in 0..writers {
        let (queue, meter) = (queue.clone(), Arc::clone(&meter));
        tasks.spawn(async move {
            meter.join();
            while meter.goes_on() {
                let (done, written) = oneshot::channel();
                let sent = Instant::now();
                queue.send(done).expect("the log's thread lives");
                written.await.expect("the log answers");
                meter.record(index, sent.elapsed());
            }
        });
    }
    drop(queue);
    meter.measure(tasks, WARM_UP, lasts).await
}

/// The resources that a process and its disk have used so far.
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

/// Bytes written to the block device of a directory, by all processes.
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
