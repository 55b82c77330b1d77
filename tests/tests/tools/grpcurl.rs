//! The store through grpcurl, which needs only the address: it gets the schema by reflection.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::io::BufReader;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use muster_rpc::shutdown::Shutdown;
use muster_store::config::Flags;
use muster_store::run::{Running, start};
use muster_tests::tools::tool;
use serde_json::{Value, json};

/// An event must arrive within this time.
const TIMEOUT: Duration = Duration::from_secs(30);

const NODES: &str = "muster.v1.NodeService";
const NAME: &str = "10.240.79.157";

/// The first example node in the documentation of Kubernetes.
fn example() -> Value {
    json!({"node": {"metadata": {"name": NAME, "labels": {"name": "my-first-k8s-node"}}}})
}

/// A store on a free port with a temporary directory.
struct Store {
    running: Running,
    shutdown: Shutdown,
    _directory: tempfile::TempDir,
}

impl Store {
    async fn start() -> Store {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path().to_str().unwrap();
        let free = "127.0.0.1:0";
        let arguments = ["muster-store", "--data-dir", data_dir, "--listen", free, "--http-listen", free];
        let flags: Flags = muster_rpc::config::parse_with_config(arguments).unwrap();
        let shutdown = Shutdown::new();
        let running = start((&flags).try_into().unwrap(), shutdown.clone()).await.unwrap();
        Store { running, shutdown, _directory: directory }
    }

    async fn stop(self) {
        self.shutdown.trigger();
        self.running.stopped().await.unwrap();
    }

    fn command(&self, data: Option<&Value>, words: &[&str]) -> Command {
        let mut command = Command::new(tool("grpcurl"));
        command.arg("-plaintext");
        if let Some(data) = data {
            command.arg("-d").arg(data.to_string());
        }
        command.arg(self.running.address.to_string()).args(words);
        command
    }

    fn run(&self, data: Option<&Value>, words: &[&str]) -> Output {
        self.command(data, words).output().unwrap()
    }

    /// The output of a grpcurl command that must succeed.
    fn print(&self, words: &[&str]) -> String {
        let output = self.run(None, words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The answer to a call of the node service.
    fn call(&self, method: &str, data: &Value) -> Value {
        let output = self.run(Some(data), &[&format!("{NODES}/{method}")]);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{method} {data}: {complaint}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The error output of a call that must fail.
    fn error_of(&self, method: &str, data: &Value) -> String {
        let output = self.run(Some(data), &[&format!("{NODES}/{method}")]);
        assert!(!output.status.success(), "{method} {data} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// A grpcurl that watches. It is killed when it is dropped.
struct Watching {
    child: Child,
    events: Receiver<Value>,
}

impl Watching {
    fn nodes(store: &Store) -> Watching {
        let mut command = store.command(None, &[&format!("{NODES}/WatchNodes")]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, events) = channel();
        std::thread::spawn(move || {
            let responses = serde_json::Deserializer::from_reader(out).into_iter::<Value>();
            for response in responses.map_while(Result::ok) {
                for event in response["events"].as_array().into_iter().flatten() {
                    if sender.send(event.clone()).is_err() {
                        return;
                    }
                }
            }
        });
        Watching { child, events }
    }

    fn next(&self, kind: &str) -> Value {
        let event = self.events.recv_timeout(TIMEOUT).unwrap_or_else(|e| panic!("no {kind}: {e}"));
        assert_eq!(event["type"], kind, "{event}");
        event["node"].clone()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn version(node: &Value) -> u64 {
    node["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_can_be_listed_and_described() {
    let store = Store::start().await;
    let listed = store.print(&["list"]);
    let listed: Vec<&str> = listed.lines().collect();
    let standard = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"];
    for service in muster_store::service::NAMES.into_iter().chain(standard) {
        assert!(listed.contains(&service), "{service} is not in {listed:?}");
    }
    let described = store.print(&["describe", NODES]);
    for method in
        ["CreateNode", "GetNode", "ListNodes", "UpdateNode", "UpdateNodeStatus", "DeleteNode", "WatchNodes"]
    {
        assert!(described.contains(&format!("rpc {method} (")), "{method} is not in {described}");
    }
    assert!(store.print(&["grpc.health.v1.Health/Check"]).contains("\"SERVING\""));
    store.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_a_node_being_created_updated_and_deleted() {
    let store = Store::start().await;
    let name = json!({"name": NAME});

    let created = store.call("CreateNode", &example())["node"].clone();
    assert_eq!(created["metadata"]["name"], NAME);
    assert_eq!(created["metadata"]["labels"]["name"], "my-first-k8s-node");
    assert!(created["metadata"]["uid"].is_string() && version(&created) > 0, "{created}");
    let taken = store.error_of("CreateNode", &example());
    assert!(taken.contains("Code: AlreadyExists"), "{taken}");

    assert_eq!(store.call("GetNode", &name)["node"], created);
    let listed = store.call("ListNodes", &json!({"labelSelector": "name=my-first-k8s-node"}));
    assert_eq!(listed["nodes"], json!([created]));
    assert_eq!(store.call("ListNodes", &json!({"labelSelector": "name=another"}))["nodes"], Value::Null);

    let watching = Watching::nodes(&store);
    assert_eq!(watching.next("ADDED"), created);

    let mut wanted = created.clone();
    wanted["metadata"]["labels"]["zone"] = "a".into();
    let updated = store.call("UpdateNode", &json!({"node": wanted}))["node"].clone();
    assert_eq!(updated["metadata"]["labels"]["zone"], "a");
    assert!(version(&updated) > version(&created), "{updated}");
    assert_eq!(watching.next("MODIFIED"), updated);
    let stale = store.error_of("UpdateNode", &json!({"node": wanted}));
    assert!(stale.contains("Code: Aborted"), "{stale}");

    let deleted = store.call("DeleteNode", &name)["node"].clone();
    assert_eq!(deleted["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(watching.next("DELETED"), deleted);
    let gone = store.error_of("GetNode", &name);
    assert!(gone.contains("Code: NotFound") && gone.contains(NAME), "{gone}");

    drop(watching);
    store.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_an_invalid_node_names_all_invalid_fields() {
    let store = Store::start().await;
    let invalid = json!({"node": {
        "metadata": {"name": "Not_A_Name", "labels": {"-key": "fine"}},
        "spec": {"podCidrs": ["10.0.0.0/33"]},
    }});
    let refused = store.error_of("CreateNode", &invalid);
    assert!(refused.contains("Code: InvalidArgument"), "{refused}");
    // In the message, and in error details, which grpcurl can decode because reflection describes them.
    for field in ["metadata.name", "metadata.labels[\"-key\"]", "spec.podCidrs[0]"] {
        assert!(refused.contains(&format!("{field}: ")), "{field} is not in {refused}");
        let violation = format!("\"field\": {}", json!(field));
        assert!(refused.contains(&violation), "{violation} is not in {refused}");
    }
    assert!(refused.contains("\"reason\": \"INVALID\""), "{refused}");
    assert_eq!(store.call("ListNodes", &json!({}))["nodes"], Value::Null, "nothing was stored");
    store.stop().await;
}
