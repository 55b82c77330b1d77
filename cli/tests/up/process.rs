//! A `muster up` process: its output, its addresses and its exit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use muster_grpc::node_service_client::NodeServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tonic::transport::Channel;

/// A process that has not started or stopped by then has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const FREE_PORT: &str = "127.0.0.1:0";

/// All flags that set an address to listen on.
pub(crate) const LISTEN_FLAGS: [&str; 9] = [
    "--listen",
    "--http-listen",
    "--kubernetes-listen",
    "--controller-listen",
    "--controller-http-listen",
    "--agent-listen",
    "--agent-http-listen",
    "--simulation-listen",
    "--ui-listen",
];

/// `muster up` with these arguments, and with free ports for the addresses that they do not set.
pub(crate) fn muster_up(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    // The environment of the test run must not change the test.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MUSTER_") {
            command.env_remove(name);
        }
    }
    // The disk and memory usage of the test machine must not change the test either.
    command.env("MUSTER_EVICTION_HARD", "memory.available<1Mi");
    command.arg("up").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    for flag in LISTEN_FLAGS.iter().filter(|flag| !arguments.contains(flag)) {
        command.args([flag, FREE_PORT]);
    }
    command
}

/// A running `muster up`; it is killed on drop.
pub(crate) struct Up {
    child: Child,
    lines: Receiver<String>,
    pub(crate) output: Vec<String>,
    /// Holds what a killed process leaves behind.
    _temporary: TempDir,
}

impl Up {
    pub(crate) fn start(arguments: &[&str]) -> Up {
        Up::start_with(arguments, &[])
    }

    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Up {
        let temporary = tempfile::tempdir().unwrap();
        let mut command = muster_up(arguments);
        command.env("TMPDIR", temporary.path()).envs(variables.iter().copied());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        Up { child, lines, output: Vec::new(), _temporary: temporary }
    }

    /// Reads until this line is printed.
    pub(crate) fn wait_for(&mut self, wanted: &str) {
        while self.output.last().is_none_or(|line| line != wanted) {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => self.output.push(line),
                Err(error) => {
                    let stderr = self.stderr();
                    panic!("no `{wanted}`: {error}; printed {:?}; {stderr}", self.output)
                }
            }
        }
    }

    /// The text after a word at the start of a line.
    pub(crate) fn value_of(&self, word: &str) -> &str {
        let found = self.output.iter().find_map(|line| line.trim_start().strip_prefix(word));
        found.unwrap_or_else(|| panic!("no line starts with {word} in {:?}", self.output)).trim()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Reads until the process has closed its output, and waits for its exit.
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => self.output.push(line),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap(),
                Err(RecvTimeoutError::Timeout) => panic!("still running; printed {:?}", self.output),
            }
        }
    }

    /// Kills the process and returns its standard error.
    pub(crate) fn stderr(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// The first address in a component's line of the banner.
    fn address(&self, component: &str) -> String {
        let line = self.value_of(component);
        line.split_whitespace().next().unwrap().trim_start_matches("http://").replace("/simulation", "")
    }

    pub(crate) async fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::connect(format!("http://{}", self.address("store"))).await.unwrap()
    }

    pub(crate) async fn pods(&self) -> PodServiceClient<Channel> {
        PodServiceClient::connect(format!("http://{}", self.address("store"))).await.unwrap()
    }

    /// Sends a POST request to the simulation's HTTP API; returns the lines of the answer.
    pub(crate) fn post(&self, path: &str) -> Vec<String> {
        let answer = self.post_with(path, &format!("Host: {}", self.address("simulation")));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        body.lines().map(str::to_owned).collect()
    }

    /// Sends a POST request with these headers to the simulation's HTTP API; returns the whole answer.
    pub(crate) fn post_with(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(self.address("simulation")).unwrap();
        write!(stream, "POST /simulation/{path} HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
