//! The three images as a customer runs them: in a real Docker engine, on a network of their own, with certificates,
//! without root and without a disk to write to but their volumes.

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

/// Whatever takes longer than this in a fleet of these timings has failed.
const TIMEOUT: Duration = Duration::from_secs(90);

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// A node is given up after ten seconds: a machine that is busy with other things must not look like a silent one.
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
    // How full the machine is that runs the tests must not matter, nor where it puts what does not fit.
    "--eviction-hard=memory.available<1Mi",
    "--fail-swap-on=false",
];

/// Looks again and again until there is something to see.
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

/// A store, a controller and agents in containers on a network of their own.
struct Fleet {
    engine: Arc<Engine>,
    authority: Authority,
    /// In front of the names of its containers.
    name: &'static str,
    agents: Vec<&'static str>,
}

impl Fleet {
    /// Starts the parts and waits until each says itself that it is well.
    fn start(name: &'static str, agents: &[&'static str]) -> Fleet {
        let engine = Engine::shared();
        // Without a way out: nothing in there calls anybody but the others.
        engine.run(["network", "create", "--internal", name]);
        let fleet = Fleet { engine, authority: Authority::new(), name, agents: agents.to_vec() };
        // Pods leave a second after their node's taint.
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

    /// The name of a part's container, which is also its host name, and so an agent's node.
    fn container(&self, part: &str) -> String {
        format!("{}-{part}", self.name)
    }

    /// Starts a container that may do as little as can be.
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
            assert_eq!(state["Running"], true, "{container} ended:\n{}", self.log(part));
            (state["Health"]["Status"] == "healthy").then_some(())
        });
    }

    fn log(&self, part: &str) -> String {
        let mut logs = self.engine.docker(["logs", &self.container(part)]);
        logs.output().map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default()
    }

    /// grpcurl with an administrator's certificate, to a part over the fleet's network.
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

    /// What the store answers.
    fn call(&self, call: &str, data: &Value) -> Value {
        let answer = output_of(&mut self.grpcurl("store", 7400, call, data));
        serde_json::from_str(&answer).unwrap()
    }

    /// The answer, or nothing where there is no such record.
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

    /// Whether the node drives off the pods that do not put up with its silence.
    fn is_given_up(&self, name: &str) -> bool {
        let taints = self.node(name)["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.iter().any(|taint| taint["key"] == UNREACHABLE && taint["effect"] == "NoExecute")
    }

    /// When the node's lease was last renewed, as the store tells it.
    fn renewed(&self, part: &str) -> Option<String> {
        let lease = json!({"namespace": "kube-node-lease", "name": self.container(part)});
        let answer = self.try_call("LeaseService/GetLease", &lease)?;
        answer["lease"]["spec"]["renewTime"].as_str().map(str::to_owned)
    }

    fn pod(&self, name: &str) -> Option<Value> {
        let pod = self.try_call("PodService/GetPod", &json!({"namespace": "default", "name": name}))?;
        Some(pod["pod"].clone())
    }

    /// Puts a pod on a node and waits until its process runs.
    fn put_to_work(&self, pod: &str, node: &str) -> Value {
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
        // The shim has the program's name in its arguments; the program has nothing else.
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
                eprintln!("the {part} said:\n{}", self.log(part));
            }
        }
    }
}

#[test]
fn the_images_are_small_and_need_neither_root_nor_a_shell() {
    let engine = Engine::shared();
    for part in ["store", "controller", "agent"] {
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
        assert!(megabytes < 25.0, "the image of the {part} has {megabytes} MB");
        // A binary, and for those that keep something an empty place to keep it.
        let layers = image["RootFS"]["Layers"].as_array().unwrap().len();
        assert!(layers <= 2, "the image of the {part} has {layers} layers");
    }
}

#[test]
fn an_image_refuses_to_serve_in_clear_unless_it_is_told_to() {
    let engine = Engine::shared();
    let output = engine.docker(["run", "--rm", "--network=none", "--read-only", &image("store")]).output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(said.contains("0.0.0.0:7400 can be reached by other machines and there is no TLS"), "{said}");
}

#[test]
fn the_compiled_images_are_the_same_but_for_where_their_files_come_from() {
    let read = |name: &str| std::fs::read_to_string(repository().join("deploy/images").join(name)).unwrap();
    let stages = |text: String| text.split_once("FROM scratch AS store").unwrap().1.to_owned();
    let compiled = stages(read("Dockerfile.multistage"));
    let compiled = compiled.replace("--from=build ", "").replace("/made/", "");
    assert_eq!(compiled, stages(read("Dockerfile")));
}

#[test]
fn a_machine_that_is_cut_off_is_emptied_and_comes_back() {
    let fleet = Fleet::start("cut", &["a", "b", "c"]);
    let doomed = fleet.put_to_work("doomed", "a");
    let spared = fleet.put_to_work("spared", "b");
    assert!(doomed["metadata"]["deletionTimestamp"].is_null(), "{doomed}");

    fleet.engine.run(["network", "disconnect", fleet.name, &fleet.container("a")]);
    eventually("a is Unknown", || (fleet.ready("a") == "Unknown").then_some(()));
    eventually("a is given up", || fleet.is_given_up("a").then_some(()));
    eventually("the pod of a is evicted", || {
        let pod = fleet.pod("doomed").expect("a pod whose end nobody has seen stays on record");
        (!pod["metadata"]["deletionTimestamp"].is_null()).then_some(())
    });
    // It cannot have heard: its process runs on.
    assert_eq!(fleet.processes("a"), 1);
    let other = fleet.pod("spared").expect("the other pod is there");
    assert_eq!(other["metadata"]["uid"], spared["metadata"]["uid"]);
    assert!(other["metadata"]["deletionTimestamp"].is_null(), "a machine that is heard was emptied: {other}");

    fleet.engine.run(["network", "connect", fleet.name, &fleet.container("a")]);
    eventually("a is Ready again", || (fleet.ready("a") == "True").then_some(()));
    eventually("a is no longer given up", || (!fleet.is_given_up("a")).then_some(()));
    eventually("the evicted pod is off the record", || fleet.pod("doomed").is_none().then_some(()));
    assert_eq!(fleet.processes("a"), 0, "a record goes after its process");
    fleet.put_to_work("successor", "a");
    assert_eq!(fleet.processes("b"), 1, "nobody touched the other machine");
}

#[test]
fn a_store_that_is_restarted_has_lost_nothing() {
    let fleet = Fleet::start("restart", &["d"]);
    fleet.put_to_work("steady", "d");
    let budget = json!({"disruptionBudget": {
        "metadata": {"namespace": "default", "name": "all"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": "1"},
    }});
    fleet.call("DisruptionBudgetService/CreateDisruptionBudget", &budget);
    for number in 0..20 {
        // For a machine that does not exist, so that nobody takes them up.
        let spec = json!({"nodeSelector": {"no": "such"}, "containers": [{"name": "main", "image": "none"}]});
        let metadata = json!({"namespace": "default", "name": format!("waiting-{number}")});
        fleet.call("PodService/CreatePod", &json!({"pod": {"metadata": metadata, "spec": spec}}));
    }
    let kept = || {
        [
            fleet.uids("PodService/ListPods", "pods"),
            fleet.uids("NodeService/ListNodes", "nodes"),
            fleet.uids("DisruptionBudgetService/ListDisruptionBudgets", "disruptionBudgets"),
            // Those of the machines, and of whoever leads the controllers.
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
    assert_eq!(kept(), before, "after a stop in order");
    assert!(version() >= reached);

    fleet.engine.run(["kill", "--signal=KILL", &store]);
    fleet.engine.run(["start", &store]);
    fleet.wait_healthy("store");
    assert_eq!(kept(), before, "after a kill");
    // The agent has found its store again, and nobody was given up for the store's silence. The lease is d's own: a
    // version rises with whatever anybody else writes, too.
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
