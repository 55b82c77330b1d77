//! The memory and CPU that an idle agent uses.
//!
//! `cargo bench -p muster-tests --bench idle [-- SECONDS]`, for ten minutes unless given
//!
//! One real store and one real agent on default flags; only ports, the node's name and swap are set. Once the node is
//! ready and the agent's first statuses are posted, the benchmark measures its memory, its CPU time and its calls. It
//! fails above 20 MiB, 0.2 % of a core, or more than one status in each ten minutes.
//!
//! The first statuses are the one of the registration and one more. An unchanged status is posted every five minutes,
//! the first time after half to one and a half of that, so that the agents of a fleet do not post at the same time.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the machine's clock")]
#![allow(clippy::unwrap_used, reason = "a benchmark says what broke by panicking")]

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use muster_tests::agent_process::{AgentHost, AgentProcess, is_ready, lease_where, node_where};
use muster_tests::eventually;
use muster_tests::store_process::StoreLaunch;

/// The frequent checks after a start, and their posts, are over by then.
const SETTLE: Duration = Duration::from_secs(15);
/// The next status comes within seven and a half minutes and one check.
const FIRST_STATUS: Duration = Duration::from_secs(480);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const MOST_MIB: f64 = 20.0;
const MOST_OF_A_CORE: f64 = 0.002;
/// Posts are more than five minutes apart, so two posts never fit into ten minutes.
const EACH_POST: Duration = Duration::from_secs(600);

/// Counters of the kernel and of the agent.
struct Count {
    resident_mib: f64,
    cpu: Duration,
    renewals: f64,
    posts: f64,
}

impl Count {
    fn of(agent: &AgentProcess) -> Count {
        let pid = agent.pid().as_raw_nonzero();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: f64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The program's name, in brackets, may contain spaces. User and system time are fields 14 and 15.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        let per_second = rustix::param::clock_ticks_per_second();
        Count {
            resident_mib: kib / 1024.0,
            cpu: Duration::from_millis(ticks * 1000 / per_second),
            renewals: agent.metric("muster_agent_renewals_total"),
            posts: agent.metric("muster_agent_status_posts_total"),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    // Cargo passes its own flags on.
    let seconds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(600);
    let time = Duration::from_secs(seconds);
    let (directory, host) = (tempfile::tempdir().unwrap(), AgentHost::new());
    let store = StoreLaunch::on(directory.path()).start();
    let mut launch = host.agent("idle", &store.url());
    for flag in [
        "node-status-update-frequency",
        "node-status-report-frequency",
        "node-lease-duration-seconds",
        "eviction-hard",
    ] {
        launch = launch.without(flag);
    }
    let agent = launch.start();
    node_where(&store.api(), "idle", "it is ready", is_ready).await;
    lease_where(&store.api(), "idle", "it exists", |_| true).await;
    tokio::time::sleep(SETTLE).await;
    let settled = Count::of(&agent).posts;
    eventually(FIRST_STATUS, "the first status without a change", || async {
        tokio::time::sleep(LOOK_AGAIN).await;
        (Count::of(&agent).posts > settled).then_some(())
    })
    .await;

    let (before, since) = (Count::of(&agent), Instant::now());
    tokio::time::sleep(time).await;
    let (after, elapsed) = (Count::of(&agent), since.elapsed());
    let cpu = after.cpu - before.cpu;
    let share = cpu.as_secs_f64() / elapsed.as_secs_f64();
    let (renewals, posts) = (after.renewals - before.renewals, after.posts - before.posts);
    println!(
        "idle for {:.0} s: {:.1} MiB resident, {:.3} % of a core ({cpu:?}), {renewals} renewals, {posts} statuses",
        elapsed.as_secs_f64(),
        after.resident_mib,
        share * 100.0,
    );
    let most_posts = time.as_secs().div_ceil(EACH_POST.as_secs()).max(1) as f64;
    let is_light = after.resident_mib <= MOST_MIB && share <= MOST_OF_A_CORE && posts <= most_posts;
    if is_light { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
