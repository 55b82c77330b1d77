//! Signals to a real process: the first requests a graceful stop, the second exits at once.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use muster_rpc::shutdown::Shutdown;
use rustix::process::{Pid, Signal, kill_process};

/// The child process of the tests below, which run this test binary again. It prints its progress and never exits by
/// itself.
#[tokio::test]
#[ignore = "no test: the process that the other tests start and signal"]
async fn child() {
    let shutdown = Shutdown::on_signals().unwrap();
    println!("\nready");
    shutdown.requested().await;
    println!("\nasked to stop");
    std::future::pending::<()>().await;
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start() -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Process { child, lines };
        process.wait_for("ready");
        process
    }

    fn wait_for(&mut self, expected: &str) {
        assert!(self.lines.any(|line| line.unwrap() == expected), "the child never says `{expected}`");
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has usually exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_hangup_does_not_end_the_process() {
    let mut process = Process::start();
    process.signal(Signal::HUP);
    // Were it fatal, the process would not see the next signal.
    process.signal(Signal::TERM);
    process.wait_for("asked to stop");
    process.signal(Signal::HUP);
    process.signal(Signal::TERM);
    assert_eq!(process.child.wait().unwrap().code(), Some(130));
}

#[test]
fn the_first_signal_requests_a_stop_and_the_second_exits() {
    for (first, second) in
        [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::INT), (Signal::TERM, Signal::INT)]
    {
        let mut process = Process::start();
        process.signal(first);
        process.wait_for("asked to stop");
        process.signal(second);
        let status = process.child.wait().unwrap();
        assert_eq!(status.code(), Some(130), "{first:?} then {second:?}");
    }
}
