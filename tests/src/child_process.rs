//! A Muster binary that runs as a child process of the test: its log, its addresses and its exit.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::store_process::{TIMEOUT, metric, metrics};

/// A process that runs or has exited. It is killed when it is dropped.
pub struct ChildProcess {
    name: &'static str,
    child: Child,
    log: Arc<Log>,
    reader: Option<JoinHandle<()>>,
}

impl ChildProcess {
    /// Starts a command, without the `MUSTER_` variables of the test's environment, and does not wait.
    pub(crate) fn start(name: &'static str, mut command: Command) -> ChildProcess {
        without_settings(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name} cannot be run: {error}"));
        let stderr = child.stderr.take().expect("stderr is piped");
        let log = Arc::new(Log::default());
        let reader = std::thread::spawn({
            let log = Arc::clone(&log);
            move || log.fill(stderr)
        });
        ChildProcess { name, child, log, reader: Some(reader) }
    }

    /// Waits until it serves.
    pub fn wait_ready(&self) {
        self.wait_logged(&format!("{} is ready", self.name));
    }

    /// Waits until it serves or has exited; returns whether it serves.
    pub fn is_ready_or_exits(&mut self) -> bool {
        let is_ready = self.log.wait_for(&format!("{} is ready", self.name)).is_ok();
        if !is_ready {
            self.wait();
        }
        is_ready
    }

    /// Waits until its log contains a text.
    pub fn wait_logged(&self, text: &str) {
        if let Err(log) = self.log.wait_for(text) {
            panic!("{} did not log {text:?}; its log:\n{log}", self.name);
        }
    }

    /// Its whole log so far.
    pub fn log(&self) -> String {
        self.log.lock().0.clone()
    }

    /// An address from its first log lines, such as `grpc=127.0.0.1:7400`.
    pub(crate) fn address(&self, field: &str) -> SocketAddr {
        let field = format!("{field}=");
        self.wait_logged(&field);
        let log = self.log();
        let (_, rest) = log.split_once(&field).expect("it has logged the field");
        let address = rest.split_whitespace().next().unwrap_or_default();
        address.parse().unwrap_or_else(|_| panic!("{address:?} is not an address"))
    }

    /// Where it serves gRPC.
    pub fn url(&self) -> String {
        format!("http://{}", self.grpc_address())
    }

    /// The address of that URL.
    pub fn grpc_address(&self) -> SocketAddr {
        self.address("grpc")
    }

    /// Where it serves metrics.
    pub fn http_address(&self) -> SocketAddr {
        self.address("http")
    }

    /// All metrics of its HTTP port.
    pub fn metrics(&self) -> String {
        metrics(self.http_address())
    }

    /// One metric of its HTTP port, by its name in the text.
    pub fn metric(&self, name: &str) -> f64 {
        metric(&self.metrics(), name)
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal. After STOP it does nothing any more when this returns.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is our child");
        // Its threads stop a moment later, and until then they answer.
        let deadline = Instant::now() + TIMEOUT;
        while signal == Signal::STOP && !self.is_stopped() {
            assert!(Instant::now() < deadline, "{} does not stop", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether all of its threads are stopped.
    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it is our child");
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // After the name, which may hold anything, comes the state.
            stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
        })
    }

    /// Waits until it exits.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            assert!(Instant::now() < deadline, "{} does not exit; its log:\n{}", self.name, self.log());
            std::thread::sleep(Duration::from_millis(1));
        };
        // The pipe closes when the process exits; then the log is complete.
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the log's reader does not panic");
        }
        status
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of {}:\n{}", self.name, self.log());
        }
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl fmt::Debug for ChildProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.name).field("pid", &self.child.id()).finish_non_exhaustive()
    }
}

/// The command that runs a program, directly or by a wrapper. A wrapper takes the program as its last argument and must
/// `exec` it, so that the child's process id is the program's.
pub(crate) fn within(wrapper: &[OsString], program: &Path) -> Command {
    match wrapper {
        [] => Command::new(program),
        [first, further @ ..] => {
            let mut command = Command::new(first);
            command.args(further).arg(program);
            command
        }
    }
}

/// Removes the `MUSTER_` variables of the test's environment, which the binaries read as flags.
pub(crate) fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MUSTER_")) {
        command.env_remove(name);
    }
}

/// The log of a process so far, and whether it is complete.
#[derive(Default)]
struct Log {
    text: Mutex<(String, bool)>,
    grown: Condvar,
}

impl Log {
    fn fill(&self, stderr: impl Read) {
        let mut lines = BufReader::new(stderr);
        let mut line = Vec::new();
        while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
            self.lock().0.push_str(&plain(&String::from_utf8_lossy(&line)));
            self.grown.notify_all();
            line.clear();
        }
        self.lock().1 = true;
        self.grown.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, (String, bool)> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the log contains a text or is complete.
    fn wait_for(&self, text: &str) -> Result<(), String> {
        let waiting = |(log, ended): &mut (String, bool)| !log.contains(text) && !*ended;
        let waited = self.grown.wait_timeout_while(self.lock(), TIMEOUT, waiting);
        let (log, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if log.0.contains(text) { Ok(()) } else { Err(log.0.clone()) }
    }
}

/// A line without the colours of a terminal.
fn plain(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}
