//! `muster up` as an operator starts it: the built binary, its output and its
//! exit code.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use muster_proto::pb;
use muster_proto::pb::node_service_client::NodeServiceClient;
use rustix::process::{Pid, Signal, kill_process};

/// A store that has not come up or gone down by then never will.
const PATIENCE: Duration = Duration::from_secs(60);

const FREE: &str = "127.0.0.1:0";

fn muster_up(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    // The tester's own settings are not the test's.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MUSTER_") {
            command.env_remove(name);
        }
    }
    command.arg("up").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running `muster up`; it does not outlive the test.
struct Up {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Up {
    fn start(arguments: &[&str]) -> Up {
        let mut child = muster_up(arguments).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        Up { child, lines, said: Vec::new() }
    }

    /// Reads until a line is said.
    fn wait_for(&mut self, wanted: &str) {
        while self.said.last().is_none_or(|line| line != wanted) {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.said.push(line),
                Err(error) => {
                    let complaints = self.complaints();
                    panic!("no `{wanted}`: {error}; said {:?}; {complaints}", self.said)
                }
            }
        }
    }

    /// What follows a word at the start of a line.
    fn told(&self, word: &str) -> &str {
        let found = self.said.iter().find_map(|line| line.trim_start().strip_prefix(word));
        found.unwrap_or_else(|| panic!("nothing about {word} in {:?}", self.said)).trim()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Reads until the process has closed its output, and says how it ended.
    fn ended(&mut self) -> ExitStatus {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap(),
                Err(RecvTimeoutError::Timeout) => panic!("still running; said {:?}", self.said),
            }
        }
    }

    fn complaints(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_gets_ready_answers_and_stops_on_sigterm() {
    let mut up = Up::start(&["--ephemeral", "--listen", FREE, "--http-listen", FREE]);
    up.wait_for("ready");
    let tried = up.said.iter().filter(|line| line.trim_start().starts_with("grpcurl ")).count();
    assert_eq!(tried, 3, "{:?}", up.said);

    let mut nodes = NodeServiceClient::connect(format!("http://{}", up.told("gRPC"))).await.unwrap();
    let listed = nodes.list_nodes(pb::ListNodesRequest::default()).await.unwrap().into_inner();
    assert!(listed.nodes.is_empty());

    let directory = up.told("records").split(',').next().unwrap().to_owned();
    assert!(std::path::Path::new(&directory).is_dir(), "{directory}");
    up.signal(Signal::TERM);
    let status = up.ended();
    assert_eq!(status.code(), Some(0), "{}", up.complaints());
    assert!(!std::path::Path::new(&directory).exists(), "{directory} is left behind");
    assert_eq!(up.complaints(), "", "a run in which nothing went wrong logs nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_outlast_a_restart_on_the_same_directory() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("not/made/yet");
    let arguments = ["--data-dir", directory.to_str().unwrap(), "--listen", FREE, "--http-listen", FREE];
    let node = pb::Node {
        metadata: Some(pb::Metadata { name: "a".into(), ..Default::default() }),
        ..Default::default()
    };
    for round in 0..2 {
        let mut up = Up::start(&arguments);
        up.wait_for("ready");
        let mut nodes = NodeServiceClient::connect(format!("http://{}", up.told("gRPC"))).await.unwrap();
        if round == 0 {
            nodes.create_node(pb::CreateNodeRequest { node: Some(node.clone()) }).await.unwrap();
        }
        let listed = nodes.list_nodes(pb::ListNodesRequest::default()).await.unwrap().into_inner();
        assert_eq!(listed.nodes.len(), 1, "round {round}");
        up.signal(Signal::INT);
        assert_eq!(up.ended().code(), Some(0), "{}", up.complaints());
    }
}

fn refused(arguments: &[&str]) -> String {
    let output = muster_up(arguments).output().unwrap();
    let (out, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(1), "{out}{complaint}");
    assert_eq!(out, "", "nothing is announced that is not so");
    complaint
}

#[test]
fn a_taken_port_is_named_with_a_way_out() {
    let taken = TcpListener::bind(FREE).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, arguments) in [
        ("--listen", ["--ephemeral", "--listen", &address, "--http-listen", FREE]),
        ("--http-listen", ["--ephemeral", "--listen", FREE, "--http-listen", &address]),
    ] {
        let complaint = refused(&arguments);
        let message = format!("cannot listen on {address}: the port is in use by another process");
        assert!(complaint.contains(&message), "{complaint}");
        assert!(complaint.contains("\nhint: "), "{complaint}");
        assert!(complaint.contains(&format!("{flag} 127.0.0.1:0 picks a free one")), "{complaint}");
    }
}

#[test]
fn a_data_directory_in_use_is_named_with_a_way_out() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().to_str().unwrap();
    let arguments = ["--data-dir", directory, "--listen", FREE, "--http-listen", FREE];
    let mut up = Up::start(&arguments);
    up.wait_for("ready");
    let complaint = refused(&arguments);
    assert!(complaint.contains(&format!("{directory} is in use by another process")), "{complaint}");
    assert!(complaint.contains("--data-dir"), "{complaint}");
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named_with_a_way_out() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let directory = file.path().join("below-a-file");
    let complaint =
        refused(&["--data-dir", directory.to_str().unwrap(), "--listen", FREE, "--http-listen", FREE]);
    assert!(complaint.contains(directory.to_str().unwrap()), "{complaint}");
    assert!(complaint.contains("\nhint: ") && complaint.contains("--ephemeral"), "{complaint}");
}
