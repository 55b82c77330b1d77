//! The latency of 10,000 agents' renewals beside hostile callers, with mutual TLS.
//!
//! `cargo bench -p muster-tests --bench hostile [-- SECONDS]`
//!
//! The agents share 16 connections of one certificate and renew every two seconds each, five times as often as real
//! ones: alone, then beside each attack. An attacker has a connection and a thread of its own, but shares the processors
//! with the store and the agents. A renewal misses its deadline if it is not acknowledged when the next one of a real
//! agent is due. The benchmark fails if one does, if a stream ends, or if the 99th percentile beside an attack is 250 ms
//! or more.

#![allow(clippy::disallowed_methods, reason = "a benchmark is where clocks belong")]

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_tests::Api;
use muster_tests::fixtures::node;
use muster_tests::load::Agents;
use muster_tests::load::attack::{Answers, Attack, Attacker, FLOODED};
use muster_tests::load::paced::PacedAgents;
use muster_tests::secure_store::SecureStore;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const AGENTS: usize = 10_000;
const CONNECTIONS: usize = 16;
const EVERY: Duration = Duration::from_secs(2);
/// A quarter of a lease: when a real agent renews again.
const DEADLINE: Duration = Duration::from_secs(10);
const P99: Duration = Duration::from_millis(250);

#[tokio::main]
async fn main() -> ExitCode {
    let seconds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(12);
    let lasts = Duration::from_secs(seconds);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the data");
    let store = SecureStore::start(directory.path());
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS {
        channels.push(store.connect("eva", "muster:admins").await);
    }
    let mut fleet = Agents::over(channels);
    fleet.register(AGENTS).await;
    let admin = Api::of(fleet.channel(0));
    admin.create(node(FLOODED)).await.expect("a node for large writes");
    let streams = (0..AGENTS).map(|index| (fleet.channel(index), fleet.hello(index))).collect();
    let agents = PacedAgents::start(streams, EVERY).await;
    println!("renewals of {AGENTS} agents, every {EVERY:?} each, {seconds} s beside each attack");

    let mut is_well = measure("alone", &agents, lasts).await;
    let [stranger, viewer] = [["stranger", ""], ["joe", "muster:viewers"]];
    let flooder = format!("node:{FLOODED}");
    let flooder = [flooder.as_str(), "muster:nodes"];
    for (what, [common_name, organization], attack, calls) in [
        ("20,001 half-open calls, no role", stranger, Attack::HalfOpenCalls, 20_001),
        ("20,001 half-open calls, viewer", viewer, Attack::HalfOpenCalls, 20_001),
        ("20,001 silent heartbeat streams", viewer, Attack::SilentStreams, 20_001),
        ("20,001 watches", viewer, Attack::Watches, 20_001),
        ("200,000 requests of garbage", viewer, Attack::Garbage, 200_000),
        ("statuses of 1.4 MB, node", flooder, Attack::LargeStatuses, 100_000),
        ("events of 1.4 MB, node", flooder, Attack::LargeEvents, 100_000),
    ] {
        let attacker = Attacker::start(store.target(common_name, organization), attack, calls);
        is_well &= measure(what, &agents, lasts).await;
        print_answers(&attacker.answers);
        attacker.stop().await;
    }
    println!("limits: p99 {P99:?}, no missed deadline");
    agents.stop().await;
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the latencies of that time; returns whether they are within the limits.
async fn measure(what: &str, agents: &PacedAgents, lasts: Duration) -> bool {
    agents.take_latencies();
    tokio::time::sleep(lasts).await;
    let latencies = agents.take_latencies();
    let at = |quantile| Duration::from_micros(latencies.value_at_quantile(quantile));
    let (p50, p99, longest) = (at(0.5), at(0.99), at(1.0));
    let missed = latencies.count_between(DEADLINE.as_micros() as u64, latencies.high());
    let renewals = latencies.len();
    println!(
        "  {what:<34} {renewals:>7} renewals  p50 {p50:.1?}  p99 {p99:.1?}  longest {longest:.1?}  {missed} missed"
    );
    if let Some(failure) = agents.failure() {
        println!("  a stream ended: {failure}");
        return false;
    }
    p99 < P99 && missed == 0 && renewals > 0
}

fn print_answers(answers: &Answers) {
    let Answers { opened, denied, exhausted, invalid, others, first_other } = answers;
    let [opened, denied, exhausted, invalid, others] =
        [opened, denied, exhausted, invalid, others].map(|counter| counter.load(Ordering::Relaxed));
    println!(
        "  {:<34} {opened} accepted; {denied} calls denied, {exhausted} one too many, {invalid} invalid, {others} \
         failed otherwise",
        ""
    );
    if let Some(status) = first_other.get() {
        println!("  {:<34} the first of those: {status}", "");
    }
}
