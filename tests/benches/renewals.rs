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
use std::time::{Duration, Instant};

use muster_tests::load::bare_log::bare_log;
use muster_tests::load::{Agents, latencies};
use muster_tests::store_process::StoreLaunch;
use muster_tests::usage::Usage;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The size of a renewal in the bare log.
const RENEWAL_BYTES: usize = 24;
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
        let before = Usage::of(store.pid(), directory.path());
        let renewals = fleet.stream(WARM_UP, lasts).await;
        let after = Usage::of(store.pid(), directory.path());
        let all = renewals.acknowledged as f64;
        println!("{agents:>6} agents   muster     {renewals}");
        println!(
            "                store      {:>9.1} µs of CPU and {:.0} bytes on disk a renewal, {} MiB resident",
            (after.cpu_micros - before.cpu_micros) / all,
            (after.disk_bytes - before.disk_bytes) / all,
            after.resident_mib,
        );
        let path = directory.path().join(format!("{agents}.log"));
        let log = bare_log(&path, agents, RENEWAL_BYTES, WARM_UP, lasts).await;
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
        file.write_all(&[7; RENEWAL_BYTES]).and_then(|()| file.sync_data()).expect("the log is written");
        latencies.saturating_record(started.elapsed().as_micros() as u64);
    }
    latencies.value_at_quantile(0.5) as f64 / 1000.0
}
