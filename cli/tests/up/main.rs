//! `muster up` as an operator starts it: the built binary, its output and its
//! exit code.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use muster_grpc::node_service_client::NodeServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_proto::pb;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tonic::Code;
use tonic::transport::Channel;

/// A store that has not come up or gone down by then never will.
const PATIENCE: Duration = Duration::from_secs(60);

const FREE: &str = "127.0.0.1:0";

/// Every flag that says where to listen.
const LISTENING: [&str; 7] = [
    "--listen",
    "--http-listen",
    "--controller-listen",
    "--controller-http-listen",
    "--agent-listen",
    "--agent-http-listen",
    "--simulation-listen",
];

/// `muster up` with these arguments, on free ports where they do not say otherwise.
fn muster_up(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    // The tester's own settings are not the test's.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MUSTER_") {
            command.env_remove(name);
        }
    }
    // How full the tester's machine is must not matter.
    command.env("MUSTER_EVICTION_HARD", "memory.available<1Mi");
    command.arg("up").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    for flag in LISTENING.iter().filter(|flag| !arguments.contains(flag)) {
        command.args([flag, FREE]);
    }
    command
}

/// A running `muster up`; it does not outlive the test.
struct Up {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
    /// What it leaves behind when it is killed goes with this.
    _temporary: TempDir,
}

impl Up {
    fn start(arguments: &[&str]) -> Up {
        Up::start_with(arguments, &[])
    }

    fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Up {
        let temporary = tempfile::tempdir().unwrap();
        let mut command = muster_up(arguments);
        command.env("TMPDIR", temporary.path()).envs(variables.iter().copied());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        Up { child, lines, said: Vec::new(), _temporary: temporary }
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

impl Up {
    /// The address that a line of the greeting tells first.
    fn at(&self, part: &str) -> String {
        let line = self.told(part);
        line.split_whitespace().next().unwrap().trim_start_matches("http://").replace("/simulation", "")
    }

    async fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::connect(format!("http://{}", self.at("store"))).await.unwrap()
    }

    async fn pods(&self) -> PodServiceClient<Channel> {
        PodServiceClient::connect(format!("http://{}", self.at("store"))).await.unwrap()
    }

    /// Switches simulated machines; the answer's lines come back.
    fn post(&self, path: &str) -> Vec<String> {
        let mut stream = TcpStream::connect(self.at("simulation")).unwrap();
        write!(stream, "POST /simulation/{path} HTTP/1.1\r\nHost: muster\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        body.lines().map(str::to_owned).collect()
    }
}

/// Asks until the answer is the one that is waited for.
async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            match ask().await {
                Some(answer) => return answer,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, asking).await;
    answer.unwrap_or_else(|_| panic!("never: {what}"))
}

/// What the store says of a node's Ready.
async fn ready(nodes: &NodeServiceClient<Channel>, name: &str) -> String {
    let request = pb::GetNodeRequest { name: name.to_owned() };
    let node = nodes.clone().get_node(request).await.unwrap().into_inner().node.unwrap();
    let conditions = node.status.unwrap_or_default().conditions;
    conditions.into_iter().find(|found| found.r#type == "Ready").map(|found| found.status).unwrap_or_default()
}

async fn becomes(nodes: &NodeServiceClient<Channel>, name: &str, wanted: &str) {
    let is_so = || async { (ready(nodes, name).await == wanted).then_some(()) };
    eventually(&format!("{name} becomes {wanted}"), is_so).await;
}

/// A pod that is bound to a node.
fn pod(name: &str, node: &str, command: &[&str]) -> pb::Pod {
    let container = pb::Container {
        name: "main".into(),
        image: "none".into(),
        command: command.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    let metadata = pb::Metadata { name: name.into(), namespace: "default".into(), ..Default::default() };
    let spec = pb::PodSpec { node_name: node.into(), containers: vec![container], ..Default::default() };
    pb::Pod { metadata: Some(metadata), spec: Some(spec), status: None }
}

async fn create(pods: &PodServiceClient<Channel>, pod: pb::Pod) {
    pods.clone().create_pod(pb::CreatePodRequest { pod: Some(pod) }).await.unwrap();
}

/// The pod, if it is there.
async fn find(pods: &PodServiceClient<Channel>, name: &str) -> Option<pb::Pod> {
    let request = pb::GetPodRequest { namespace: "default".into(), name: name.into() };
    match pods.clone().get_pod(request).await {
        Ok(answer) => answer.into_inner().pod,
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => panic!("{status}"),
    }
}

async fn runs(pods: &PodServiceClient<Channel>, name: &str) {
    let is_so = || async {
        let status = find(pods, name).await?.status?;
        let is_ready =
            status.conditions.iter().any(|found| found.r#type == "Ready" && found.status == "True");
        (status.phase == "Running" && is_ready).then_some(())
    };
    eventually(&format!("{name} runs"), is_so).await;
}

async fn delete(pods: &PodServiceClient<Channel>, name: &str) {
    let request =
        pb::DeletePodRequest { namespace: "default".into(), name: name.into(), ..Default::default() };
    pods.clone().delete_pod(request).await.unwrap();
}

async fn goes(pods: &PodServiceClient<Channel>, name: &str) {
    let is_so = || async { find(pods, name).await.is_none().then_some(()) };
    eventually(&format!("{name} goes"), is_so).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_gets_ready_with_its_fleet_and_stops_in_order_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut up = Up::start(&["--ephemeral"]);
        up.wait_for("ready");
        let nodes = up.nodes().await;
        let listed = nodes.clone().list_nodes(pb::ListNodesRequest::default()).await.unwrap().into_inner();
        assert_eq!(listed.nodes.len(), 10, "nine that are simulated, and this machine");
        for node in listed.nodes {
            let name = node.metadata.unwrap().name;
            becomes(&nodes, &name, "True").await;
        }
        drop(nodes);
        let directory = up.told("records").split(',').next().unwrap().to_owned();
        assert!(std::path::Path::new(&directory).is_dir(), "{directory}");
        up.signal(signal);
        let status = up.ended();
        assert_eq!(status.code(), Some(0), "{}", up.complaints());
        assert!(!std::path::Path::new(&directory).exists(), "{directory} is left behind");
        let end: Vec<&str> = up.said.iter().rev().take(5).rev().map(String::as_str).collect();
        assert_eq!(
            end,
            [
                "the agent has stopped",
                "the simulated agents have stopped",
                "the controller has stopped",
                "the store has stopped",
                "stopped; the records are gone",
            ]
        );
        // That the machine was slow to answer for a moment may be so, where others use it.
        let complaints = up.complaints();
        let wrong = complaints.lines().filter(|line| !line.contains("still count"));
        assert_eq!(wrong.collect::<Vec<_>>(), [""; 0], "a run in which nothing went wrong logs nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_outlast_a_restart_and_surplus_simulated_nodes_do_not() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("not/made/yet");
    let node = pb::Node {
        metadata: Some(pb::Metadata { name: "a".into(), ..Default::default() }),
        ..Default::default()
    };
    for (round, simulated) in [("3", ["sim-1", "sim-2", "sim-3"].as_slice()), ("1", &["sim-1"])] {
        let mut up = Up::start(&["--data-dir", directory.to_str().unwrap(), "--no-agent", "--nodes", round]);
        up.wait_for("ready");
        let mut nodes = up.nodes().await;
        if round == "3" {
            nodes.create_node(pb::CreateNodeRequest { node: Some(node.clone()) }).await.unwrap();
        }
        let listed = nodes.list_nodes(pb::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
        let names: Vec<String> = listed.into_iter().map(|node| node.metadata.unwrap().name).collect();
        let mut expected = vec!["a"];
        expected.extend(simulated);
        assert_eq!(names, expected, "with {round} simulated nodes");
        up.signal(Signal::INT);
        assert_eq!(up.ended().code(), Some(0), "{}", up.complaints());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_node_that_is_killed_falls_silent_until_it_is_revived() {
    let mut up = Up::start(&["--ephemeral", "--no-agent", "--nodes", "4", "--zones", "2", "--speed", "10"]);
    up.wait_for("ready");
    let nodes = up.nodes().await;
    assert_eq!(up.post("kill?node=sim-1"), ["sim-1"]);
    becomes(&nodes, "sim-1", "Unknown").await;
    assert_eq!(ready(&nodes, "sim-3").await, "True", "its neighbours are heard");
    assert_eq!(up.post("kill?zone=zone-1"), ["sim-3"], "sim-1 was dead already");
    becomes(&nodes, "sim-3", "Unknown").await;
    assert_eq!(up.post("revive?all"), ["sim-1", "sim-3"]);
    becomes(&nodes, "sim-1", "True").await;
    becomes(&nodes, "sim-3", "True").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_on_simulated_nodes_run_and_end_while_their_machine_is_up() {
    let mut up = Up::start(&["--ephemeral", "--no-agent", "--nodes", "2"]);
    up.wait_for("ready");
    let pods = up.pods().await;
    create(&pods, pod("a", "sim-1", &[])).await;
    create(&pods, pod("b", "sim-2", &[])).await;
    runs(&pods, "a").await;
    runs(&pods, "b").await;
    up.post("kill?node=sim-2");
    delete(&pods, "a").await;
    delete(&pods, "b").await;
    goes(&pods, "a").await;
    let left = find(&pods, "b").await.expect("a dead machine cannot say that it has stopped its pods");
    assert!(left.metadata.unwrap().deletion_timestamp.is_some());
    up.post("revive?node=sim-2");
    goes(&pods, "b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn this_machines_agent_runs_programs_which_do_not_outlive_a_temporary_fleet() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pid");
    let mut up = Up::start(&["--ephemeral", "--nodes", "0"]);
    up.wait_for("ready");
    let mut nodes = up.nodes().await;
    let listed = nodes.list_nodes(pb::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
    let node = listed.into_iter().next().unwrap().metadata.unwrap().name;
    let pods = up.pods().await;
    let script = format!("echo $$ > {}; exec sleep 1000", file.display());
    create(&pods, pod("sleeper", &node, &["sh", "-c", &script])).await;
    runs(&pods, "sleeper").await;
    let pid = || async { std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n')) };
    let pid = eventually("the program tells its number", pid).await;
    let process = std::path::Path::new("/proc").join(pid.trim());
    assert!(process.exists());
    up.signal(Signal::INT);
    assert_eq!(up.ended().code(), Some(0), "{}", up.complaints());
    assert!(!process.exists(), "{} outlived the records of it", process.display());
}

fn refused(arguments: &[&str]) -> String {
    let output = muster_up(arguments).output().unwrap();
    let (out, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(1), "{out}{complaint}");
    assert_eq!(out, "", "nothing is announced that is not so");
    assert!(complaint.contains("\nhint: "), "{complaint}");
    complaint
}

#[test]
fn a_taken_port_is_named_with_a_way_out() {
    let taken = TcpListener::bind(FREE).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in LISTENING {
        let complaint = refused(&["--ephemeral", flag, &address]);
        let message = format!("{flag}: cannot listen on {address}: the port is in use by another process");
        assert!(complaint.contains(&message), "{complaint}");
        assert!(complaint.contains(&format!("{flag} 127.0.0.1:0 picks a free one")), "{complaint}");
    }
}

#[test]
fn machines_are_switched_from_this_machine_only() {
    let complaint = refused(&["--ephemeral", "--simulation-listen", "0.0.0.0:0"]);
    assert!(
        complaint.contains("--simulation-listen: 0.0.0.0:0 can be reached by other machines"),
        "{complaint}"
    );
}

#[test]
fn a_data_directory_in_use_is_named_with_a_way_out() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().to_str().unwrap();
    let arguments = ["--data-dir", directory, "--no-agent", "--nodes", "0"];
    let mut up = Up::start(&arguments);
    up.wait_for("ready");
    let complaint = refused(&arguments);
    assert!(complaint.contains(&format!("{directory}/store is in use by another process")), "{complaint}");
    assert!(complaint.contains("--data-dir"), "{complaint}");
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named_with_a_way_out() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let directory = file.path().join("below-a-file");
    let complaint = refused(&["--data-dir", directory.to_str().unwrap()]);
    assert!(complaint.contains(directory.to_str().unwrap()), "{complaint}");
    assert!(complaint.contains("--ephemeral"), "{complaint}");
}

#[test]
fn the_variable_names_the_usual_directory_and_contradicts_nothing() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("usual");
    for (arguments, is_used) in [(&["--ephemeral"][..], false), (&[], true)] {
        let arguments = [arguments, &["--no-agent", "--nodes", "0"]].concat();
        let mut up = Up::start_with(&arguments, &[("MUSTER_UP_DATA_DIR", directory.to_str().unwrap())]);
        up.wait_for("ready");
        assert_eq!(up.told("records") == directory.to_str().unwrap(), is_used, "{arguments:?}");
        assert_eq!(directory.exists(), is_used, "{arguments:?}");
        up.signal(Signal::INT);
        assert_eq!(up.ended().code(), Some(0), "{}", up.complaints());
    }
}
