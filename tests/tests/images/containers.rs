//! The three images as customers run them: in a real Docker engine, on a private network, with certificates, without
//! root and with a read-only file system except for their volumes.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]
#![allow(clippy::disallowed_methods, reason = "real containers run by the real clock")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_tests::certificate_authority::Authority;
use muster_tests::docker::{Engine, image};
use muster_tests::tools::{output_of, repository, tool};
use serde_json::{Value, json};

/// What takes longer than this with these timings has failed.
const TIMEOUT: Duration = Duration::from_secs(90);

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The grace is ten seconds, so that a busy machine does not make nodes Unknown.
const CONTROLLER_TIMINGS: [&str; 5] = [
    "--node-monitor-period=1s",
    "--node-monitor-grace-period=10s",
    "--node-startup-grace-period=30s",
    "--eviction-hold=1s",
    "--node-eviction-rate=1",
];
const AGENT_TIMINGS: [&str; 4] = [
    "--node-lease-duration-seconds=8",
    "--node-status-update-frequency=1s",
    // The result must not depend on the memory and swap of the test machine.
    "--eviction-hard=memory.available<1Mi",
    "--fail-swap-on=false",
];

/// Polls until `look` returns a value.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A store, a controller and agents in containers on a private network.
struct Fleet {
    engine: Arc<Engine>,
    authority: Authority,
    /// The prefix of its container names.
    name: &'static str,
    agents: Vec<&'static str>,
}

impl Fleet {
    /// Starts the containers and waits until each reports that it is healthy.
    fn start(name: &'static str, agents: &[&'static str]) -> Fleet {
        let engine = Engine::shared();
        // An internal network: the containers call only each other.
        engine.run(["network", "create", "--internal", name]);
        let fleet = Fleet { engine, authority: Authority::new(), name, agents: agents.to_vec() };
        // Pods are evicted one second after the taint of their node.
        fleet.run("store", "store", "muster:stores", &["--default-unreachable-toleration-seconds=1"]);
        fleet.wait_healthy("store");
        let store = format!("--store=https://{}:7400", fleet.container("store"));
        let mut flags = vec![store.as_str()];
        flags.extend(CONTROLLER_TIMINGS);
        fleet.run("controller", "controller", "muster:controllers", &flags);
        fleet.wait_healthy("controller");
        for agent in agents {
            let mut flags = vec![store.as_str()];
            flags.extend(AGENT_TIMINGS);
            fleet.run("worker", agent, "muster:nodes", &flags);
        }
        for agent in agents {
            fleet.wait_healthy(agent);
            eventually(&format!("{agent} is Ready"), || (fleet.ready(agent) == "True").then_some(()));
        }
        fleet
    }

    /// The name of a container, which is also its host name and the name of an agent's node.
    fn container(&self, part: &str) -> String {
        format!("{}-{part}", self.name)
    }

    /// Starts a container with minimal privileges.
    fn run(&self, of: &str, part: &str, organization: &str, flags: &[&str]) {
        let container = self.container(part);
        let name =
            if organization == "muster:nodes" { format!("node:{container}") } else { container.clone() };
        let credentials = self.authority.credentials_of_host(&name, organization, &container);
        let mut run = self.engine.docker(["run", "--detach", "--name", &container, "--hostname", &container]);
        run.args(["--network", self.name, "--read-only", "--cap-drop=ALL"]);
        run.args(["--security-opt=no-new-privileges", "--health-interval=1s"]);
        run.arg("--volume").arg(format!("{}:/certificates:ro", credentials.display()));
        for (flag, file) in [("CERT", "tls.crt"), ("KEY", "tls.key"), ("CLIENT_CA", "ca.crt")] {
            run.arg("--env").arg(format!("MUSTER_TLS_{flag}=/certificates/{file}"));
        }
        output_of(run.arg(image(of)).args(flags));
    }

    fn wait_healthy(&self, part: &str) {
        let container = self.container(part);
        eventually(&format!("{container} is healthy"), || {
            let state = self.engine.inspect(&container)["State"].clone();
            assert_eq!(state["Running"], true, "{container} has exited:\n{}", self.log(part));
            (state["Health"]["Status"] == "healthy").then_some(())
        });
    }

    fn log(&self, part: &str) -> String {
        let mut logs = self.engine.docker(["logs", &self.container(part)]);
        logs.output().map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default()
    }

    /// grpcurl with an administrator's certificate, to a container over the fleet's network.
    fn grpcurl(&self, part: &str, port: u16, call: &str, data: &Value) -> Command {
        let container = self.container(part);
        let network = self.engine.inspect(&container)["NetworkSettings"]["Networks"][self.name].clone();
        let address = network["IPAddress"].as_str().unwrap_or_default().to_owned();
        let credentials = self.authority.credentials("eva", "muster:admins");
        let file = |name: &str| -> PathBuf { credentials.join(name) };
        let mut command = self.engine.in_network(&tool("grpcurl"));
        command.arg("-cacert").arg(file("ca.crt"));
        command.arg("-cert").arg(file("tls.crt")).arg("-key").arg(file("tls.key"));
        command.args(["-servername", &container, "-max-time", "30", "-d", &data.to_string()]);
        command.arg(format!("{address}:{port}")).arg(format!("muster.v1.{call}"));
        command
    }

    /// The answer of the store.
    fn call(&self, call: &str, data: &Value) -> Value {
        let answer = output_of(&mut self.grpcurl("store", 7400, call, data));
        serde_json::from_str(&answer).unwrap()
    }

    /// The answer, or `None` when the record does not exist.
    fn try_call(&self, call: &str, data: &Value) -> Option<Value> {
        let output = self.grpcurl("store", 7400, call, data).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || complaint.contains("Code: NotFound"), "{call}: {complaint}");
        serde_json::from_slice(&output.stdout).ok()
    }

    fn node(&self, part: &str) -> Value {
        let name = self.container(part);
        self.try_call("NodeService/GetNode", &json!({"name": name})).unwrap_or_default()["node"].clone()
    }

    /// The status of the node's condition Ready.
    fn ready(&self, name: &str) -> String {
        let node = self.node(name);
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
        ready.and_then(|ready| ready["status"].as_str()).unwrap_or_default().to_owned()
    }

    /// Whether the node has the taint unreachable:NoExecute.
    fn is_tainted_no_execute(&self, name: &str) -> bool {
        let taints = self.node(name)["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.iter().any(|taint| taint["key"] == UNREACHABLE && taint["effect"] == "NoExecute")
    }

    /// The last renewal of the node's lease.
    fn renewed(&self, part: &str) -> Option<String> {
        let lease = json!({"namespace": "kube-node-lease", "name": self.container(part)});
        let answer = self.try_call("LeaseService/GetLease", &lease)?;
        answer["lease"]["spec"]["renewTime"].as_str().map(str::to_owned)
    }

    fn pod(&self, name: &str) -> Option<Value> {
        let pod = self.try_call("PodService/GetPod", &json!({"namespace": "default", "name": name}))?;
        Some(pod["pod"].clone())
    }

    /// Creates a pod on a node and waits until its process runs.
    fn run_pod(&self, pod: &str, node: &str) -> Value {
        let spec = json!({"nodeName": self.container(node), "containers": [
            {"name": "main", "image": "none", "command": ["/idle"]},
        ]});
        let pod_of = json!({"pod": {"metadata": {"namespace": "default", "name": pod}, "spec": spec}});
        self.call("PodService/CreatePod", &pod_of);
        eventually(&format!("{pod} runs"), || {
            let found = self.pod(pod)?;
            (found["status"]["phase"] == "Running" && self.processes(node) > 0).then_some(found)
        })
    }

    /// How many processes of pods run in a node's container.
    fn processes(&self, node: &str) -> usize {
        let listed = self.engine.run(["top", &self.container(node), "-eo", "pid,args"]);
        // The shim has the program's name among its arguments; the program has no arguments.
        let is_work = |line: &&str| line.split_whitespace().skip(1).eq(["/idle"]);
        listed.lines().filter(is_work).count()
    }

    /// Names and uids of the records of a kind, in order.
    fn uids(&self, list: &str, field: &str) -> BTreeMap<String, String> {
        let answer = self.call(list, &json!({}));
        let records = answer[field].as_array().cloned().unwrap_or_default();
        let text = |record: &Value, field: &str| record["metadata"][field].as_str().unwrap().to_owned();
        records.iter().map(|record| (text(record, "name"), text(record, "uid"))).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for part in ["store", "controller"].iter().chain(&self.agents) {
                eprintln!("the log of {part}:\n{}", self.log(part));
            }
        }
    }
}

#[test]
fn the_images_are_small_and_need_neither_root_nor_a_shell() {
    let engine = Engine::shared();
    for part in ["store", "controller", "agent"] {
        let tags = engine.run(["image", "ls", "--format", "{{.Tag}}", &format!("muster-{part}")]);
        assert!(tags.lines().any(|tag| tag == env!("CARGO_PKG_VERSION")), "no tag of the version: {tags}");
        let image = engine.inspect(&image(part));
        let config = &image["Config"];
        assert_eq!(config["User"], "65532:65532", "{part}");
        assert_eq!(config["Entrypoint"], json!([format!("/muster-{part}")]), "{part}");
        assert_eq!(config["Healthcheck"]["Test"], json!(["CMD", format!("/muster-{part}"), "health"]));
        let labels = &config["Labels"];
        assert_eq!(labels["org.opencontainers.image.title"], format!("muster-{part}"));
        assert_eq!(labels["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
        for label in ["description", "licenses", "revision"] {
            assert!(labels[format!("org.opencontainers.image.{label}")].is_string(), "{part} has no {label}");
        }
        let megabytes = image["Size"].as_f64().unwrap() / 1e6;
        println!("muster-{part}: {megabytes:.1} MB");
        assert!(megabytes < 30.0, "the image of the {part} has {megabytes} MB");
        // One layer for the binary, and one for the empty data directory.
        let layers = image["RootFS"]["Layers"].as_array().unwrap().len();
        assert!(layers <= 2, "the image of the {part} has {layers} layers");
    }
}

#[test]
fn an_image_refuses_to_serve_without_tls_by_default() {
    let engine = Engine::shared();
    let output = engine.docker(["run", "--rm", "--network=none", "--read-only", &image("store")]).output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(said.contains("0.0.0.0:7400 can be reached by other machines and there is no TLS"), "{said}");
}

#[test]
fn the_multistage_images_differ_only_in_the_source_of_their_files() {
    let read = |name: &str| std::fs::read_to_string(repository().join("deploy/images").join(name)).unwrap();
    let stages = |text: String| text.split_once("FROM scratch AS store").unwrap().1.to_owned();
    let compiled = stages(read("Dockerfile.multistage"));
    let compiled = compiled.replace("--from=build ", "").replace("/made/", "");
    assert_eq!(compiled, stages(read("Dockerfile")));
}

#[test]
fn a_partitioned_node_loses_its_pods_and_recovers() {
    let fleet = Fleet::start("cut", &["a", "b", "c"]);
    let doomed = fleet.run_pod("doomed", "a");
    let spared = fleet.run_pod("spared", "b");
    assert!(doomed["metadata"]["deletionTimestamp"].is_null(), "{doomed}");

    fleet.engine.run(["network", "disconnect", fleet.name, &fleet.container("a")]);
    eventually("a is Unknown", || (fleet.ready("a") == "Unknown").then_some(()));
    eventually("a is tainted NoExecute", || fleet.is_tainted_no_execute("a").then_some(()));
    eventually("the pod of a is evicted", || {
        let pod = fleet.pod("doomed").expect("the record stays until the agent confirms the exit");
        (!pod["metadata"]["deletionTimestamp"].is_null()).then_some(())
    });
    // The agent cannot know of the eviction: its process still runs.
    assert_eq!(fleet.processes("a"), 1);
    let other = fleet.pod("spared").expect("the other pod is there");
    assert_eq!(other["metadata"]["uid"], spared["metadata"]["uid"]);
    assert!(other["metadata"]["deletionTimestamp"].is_null(), "a pod of a healthy node was evicted: {other}");

    fleet.engine.run(["network", "connect", fleet.name, &fleet.container("a")]);
    eventually("a is Ready again", || (fleet.ready("a") == "True").then_some(()));
    eventually("the taint of a is removed", || (!fleet.is_tainted_no_execute("a")).then_some(()));
    eventually("the evicted pod is removed", || fleet.pod("doomed").is_none().then_some(()));
    assert_eq!(fleet.processes("a"), 0, "a record is removed after its process has exited");
    fleet.run_pod("successor", "a");
    assert_eq!(fleet.processes("b"), 1, "the other node is not affected");
}

#[test]
fn a_restarted_store_has_lost_nothing() {
    let fleet = Fleet::start("restart", &["d"]);
    fleet.run_pod("steady", "d");
    let budget = json!({"disruptionBudget": {
        "metadata": {"namespace": "default", "name": "all"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": "1"},
    }});
    fleet.call("DisruptionBudgetService/CreateDisruptionBudget", &budget);
    for number in 0..20 {
        // For a node that does not exist, so that they stay pending.
        let spec = json!({"nodeSelector": {"no": "such"}, "containers": [{"name": "main", "image": "none"}]});
        let metadata = json!({"namespace": "default", "name": format!("waiting-{number}")});
        fleet.call("PodService/CreatePod", &json!({"pod": {"metadata": metadata, "spec": spec}}));
    }
    let kept = || {
        [
            fleet.uids("PodService/ListPods", "pods"),
            fleet.uids("NodeService/ListNodes", "nodes"),
            fleet.uids("DisruptionBudgetService/ListDisruptionBudgets", "disruptionBudgets"),
            // The leases of the nodes and of leader election.
            fleet.uids("LeaseService/ListLeases", "leases"),
        ]
    };
    let version = || -> u64 {
        let answer = fleet.call("NodeService/ListNodes", &json!({}));
        answer["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    let (before, reached) = (kept(), version());
    let [pods, nodes, budgets, leases] = &before;
    assert_eq!([pods, nodes, budgets].map(BTreeMap::len), [21, 1, 1]);
    assert!(leases.contains_key("restart-d"), "{leases:?}");

    let store = fleet.container("store");
    fleet.engine.run(["stop", &store]);
    assert_eq!(fleet.engine.inspect(&store)["State"]["ExitCode"], 0, "{}", fleet.log("store"));
    fleet.engine.run(["start", &store]);
    fleet.wait_healthy("store");
    assert_eq!(kept(), before, "after a shutdown");
    assert!(version() >= reached);

    fleet.engine.run(["kill", "--signal=KILL", &store]);
    fleet.engine.run(["start", &store]);
    fleet.wait_healthy("store");
    assert_eq!(kept(), before, "after a kill");
    // The agent has reconnected, and no node was tainted because the store was down. The renewal time is checked, since
    // the store's version also changes with other writes.
    let renewed = fleet.renewed("d");
    assert!(renewed.is_some(), "d has a lease");
    eventually("d renews its lease again", || {
        let now = fleet.renewed("d");
        (now.is_some() && now != renewed).then_some(())
    });
    eventually("d is Ready", || (fleet.ready("d") == "True").then_some(()));
    assert!(fleet.pod("steady").unwrap()["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(fleet.processes("d"), 1);
}
