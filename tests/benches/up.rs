//! `muster up`: the time until it is ready, its memory with 1,000 nodes, and whether 20,000 nodes become ready.
//!
//! `cargo bench -p muster-tests --bench up`
//!
//! The real binary runs with its own agent and simulated ones, on a temporary directory. Time is measured from the
//! start of the process. The slowest of several starts counts, the median of several answers, and the peak of memory.
//! The benchmark fails above its limits.

#![allow(clippy::disallowed_methods, reason = "a benchmark is where clocks belong")]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, ExitCode, Stdio};
use std::time::{Duration, Instant};

use muster_tests::store_process::{command, muster};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const STARTS: usize = 5;
const READY: Duration = Duration::from_secs(2);
const MANY: usize = 1000;
const MANY_MIB: u64 = 150;
const ANSWERS: usize = 11;
const ANSWER: Duration = Duration::from_millis(100);
/// Long enough for every node to renew its lease more than once.
const WHILE: Duration = Duration::from_secs(25);
const VERY_MANY: usize = 20_000;

/// A `muster up` that is ready.
struct Up {
    child: Child,
    ready_after: Duration,
    store: String,
    /// Keeps its output open, so that it can still write.
    _out: BufReader<ChildStdout>,
    /// Removes the files that it leaves when it is killed.
    _temporary: TempDir,
}

impl Up {
    fn start(nodes: usize) -> Up {
        let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the data");
        let mut command = command();
        command.env("TMPDIR", temporary.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        command.args(["up", "--ephemeral", "--nodes", &nodes.to_string()]);
        for part in
            ["", "http-", "controller-", "controller-http-", "agent-", "agent-http-", "simulation-", "ui-"]
        {
            command.args([&format!("--{part}listen"), "127.0.0.1:0"]);
        }
        let started = Instant::now();
        let mut child = command.spawn().expect("muster can be run");
        let mut out = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (mut store, mut line) = (String::new(), String::new());
        while line.trim_end() != "ready" {
            line.clear();
            assert_ne!(
                out.read_line(&mut line).expect("its output is text"),
                0,
                "it exited before it was ready"
            );
            if let Some(address) = line.trim_start().strip_prefix("store ") {
                store = format!("http://{}", address.split_whitespace().next().unwrap_or_default());
            }
        }
        Up { child, ready_after: started.elapsed(), store, _out: out, _temporary: temporary }
    }

    /// Lists all nodes with `muster get nodes`; returns how long that took.
    fn get_nodes(&self, expected: usize) -> Duration {
        let started = Instant::now();
        let answer = muster(&["get", "nodes", "--no-headers", "--store", &self.store]);
        let took = started.elapsed();
        let lines = answer.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        // And the node of this machine.
        assert_eq!(lines, expected + 1, "{}", String::from_utf8_lossy(&answer.stderr));
        took
    }

    /// A memory value of `/proc/PID/status`, in MiB.
    fn memory(&self, figure: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(figure)).expect("a process has a size");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("the size is a number");
        kib.div_ceil(1024)
    }

    /// Its peak and current resident memory.
    fn resident(&self) -> (u64, u64) {
        (self.memory("VmHWM:"), self.memory("VmRSS:"))
    }

    /// Stops it as ctrl-C does; returns how long that took.
    fn stop(mut self) -> Duration {
        let started = Instant::now();
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it is our child");
        let status = self.child.wait().expect("it is our child");
        assert!(status.success(), "it exited with {status}");
        started.elapsed()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints and returns whether a limit was met.
fn within<T: Copy + PartialOrd + std::fmt::Debug>(what: &str, found: T, limit: T) -> bool {
    let is_kept = found < limit;
    println!("  {} {what}: {found:.0?}, limit {limit:?}", if is_kept { "ok    " } else { "BEYOND" });
    is_kept
}

fn main() -> ExitCode {
    println!("`muster up` with its own nine simulated nodes, {STARTS} starts");
    let mut starts: Vec<Duration> = (0..STARTS)
        .map(|_| {
            let up = Up::start(9);
            let ready_after = up.ready_after;
            up.stop();
            ready_after
        })
        .collect();
    starts.sort_unstable();
    println!("  ready after {starts:.0?}");
    let mut is_well = within("the slowest start", starts[STARTS - 1], READY);

    println!("with {MANY} simulated nodes");
    let up = Up::start(MANY);
    let mut answers: Vec<Duration> = (0..ANSWERS).map(|_| up.get_nodes(MANY)).collect();
    answers.sort_unstable();
    println!("  ready after {:.0?}; `muster get nodes` {answers:.0?}", up.ready_after);
    std::thread::sleep(WHILE);
    let (most, now) = up.resident();
    println!("  {now} MiB resident after {WHILE:?}, {most} MiB at most");
    is_well &= within("`muster get nodes`, the median", answers[ANSWERS / 2], ANSWER);
    is_well &= within("MiB at most", most, MANY_MIB);
    println!("  stopped within {:.0?}", up.stop());

    println!("with {VERY_MANY} simulated nodes");
    let up = Up::start(VERY_MANY);
    println!("  ready after {:.1?}; `muster get nodes` {:.1?}", up.ready_after, up.get_nodes(VERY_MANY));
    std::thread::sleep(WHILE);
    let (most, now) = up.resident();
    println!("  {now} MiB resident after {WHILE:?}, {most} MiB at most");
    println!("  stopped within {:.0?}", up.stop());
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
