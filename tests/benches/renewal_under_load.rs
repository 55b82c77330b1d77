//! The latency of one lease's renewals while another caller floods the store.
//!
//! `cargo bench -p muster-tests --bench renewal_under_load`
//!
//! One agent renews over its heartbeat stream every 10 ms: alone, beside one caller with 400 statuses of 1.4 MB in
//! flight, and beside one caller with 1,024 events in flight, each until the flood is over. Renewals that would have
//! been due while one waited for its answer count with the rest of that wait. The flood has a connection and a thread
//! of its own, but shares the processors with the store and the agent. The benchmark fails if the 99th percentile is
//! 100 ms or more.

#![allow(clippy::disallowed_methods, reason = "a benchmark is where clocks belong")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use muster_tests::api::HeartbeatStream;
use muster_tests::fixtures::node;
use muster_tests::load::flood::{Flood, FloodMessage};
use muster_tests::load::latencies;
use muster_tests::store_process::StoreLaunch;
use tokio::time::{MissedTickBehavior, interval};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const EVERY: Duration = Duration::from_millis(10);
/// An agent alone renews this often; with a flood, it stops at ten minutes even if the flood does not.
const ALONE: usize = 500;
const MOST: usize = 60_000;
const P99: Duration = Duration::from_millis(100);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the data");
    let store = StoreLaunch::on(directory.path()).flag("--default-deadline", "0s").start();
    let api = store.api();
    api.create(node("flooded")).await.expect("a node is created");
    let mut agent = api.agent("quiet").await;
    println!("renewals of one lease, every {EVERY:?}");
    renew("alone", &mut agent, ALONE, || false).await;
    let mut is_well = true;
    for (what, message, in_flight, total) in [
        ("beside 400 statuses of 1.4 MB", FloodMessage::large_statuses("flooded"), 400, 800),
        ("beside 1,024 events", FloodMessage::events("flooded"), 1024, 50_000),
    ] {
        let flood = Flood::start(store.url(), message, in_flight, total);
        let p99 = renew(what, &mut agent, MOST, || flood.is_over()).await;
        let (was_flooded, refused) = (flood.is_over(), flood.refused());
        println!("{:34}{} of the flood answered, {refused} of them refused", "", flood.stop().await);
        is_well &= was_flooded && p99 < P99;
    }
    println!("limit: p99 {P99:?}");
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Renews until `is_over`, at most so many times; prints the latencies and returns their 99th percentile.
async fn renew(what: &str, agent: &mut HeartbeatStream, most: usize, is_over: impl Fn() -> bool) -> Duration {
    let (mut latencies, mut renewals) = (latencies(), 0);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while renewals < most && !is_over() {
        ticks.tick().await;
        let sent = Instant::now();
        agent.renew_patiently().await.expect("the renewal is durable");
        let latency = sent.elapsed().as_micros() as u64;
        let recorded = latencies.record_correct(latency.clamp(1, latencies.high()), EVERY.as_micros() as u64);
        recorded.expect("the latency is within bounds");
        renewals += 1;
    }
    let at = |quantile| Duration::from_micros(latencies.value_at_quantile(quantile));
    let (p50, p99, most) = (at(0.5), at(0.99), at(1.0));
    println!("  {what:<31} {renewals:>6} renewals  p50 {p50:.1?}  p99 {p99:.1?}  longest {most:.1?}");
    p99
}
