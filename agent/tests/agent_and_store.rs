//! The real agent with a real store: what happens to pods when the machine shuts down or is under pressure.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::collections::BTreeSet;
use std::process::{Child, Command};
use std::time::Duration;

use muster_proto::condition::ConditionStatus;
use muster_proto::event::Event;
use muster_proto::key::Key;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::{Pod, PodPhase};
use muster_rpc::config::parse_with_config;
use muster_rpc::shutdown::Shutdown;
use muster_store::run::Running;
use muster_store_client::{StoreClient, StoreEndpoints};
use rustix::process::{Pid, Signal, kill_process};

/// No condition here takes this long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store in this process, and an agent process that is killed with its test.
struct Cluster {
    agent: Child,
    client: StoreClient,
    _store: Running,
    files: tempfile::TempDir,
}

/// A request for some memory.
fn little() -> pb::ResourceRequirements {
    let requests = [("memory".to_owned(), "1Mi".to_owned())].into();
    pb::ResourceRequirements { requests, ..Default::default() }
}

impl Cluster {
    async fn start(flags: &[&str]) -> Cluster {
        let files = tempfile::tempdir().unwrap();
        let data = format!("--data-dir={}", files.path().join("store").display());
        let args = ["muster-store", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", &data];
        let parsed: muster_store::config::Flags = parse_with_config(args).unwrap();
        let store = muster_store::run::start((&parsed).try_into().unwrap(), Shutdown::new()).await.unwrap();
        let url = format!("http://{}", store.address);
        let agent = Command::new(env!("CARGO_BIN_EXE_muster-agent"))
            .args(["--node-name=n1", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"])
            // The tests must not depend on how full this machine is.
            .args(["--eviction-hard=memory.available<1Mi", "--fail-swap-on=false", "--store", &url])
            .arg(format!("--state-dir={}", files.path().join("agent").display()))
            .args(flags)
            .spawn()
            .unwrap();
        let client = StoreClient::connect(StoreEndpoints::new([url])).unwrap();
        Cluster { agent, client, _store: store, files }
    }

    /// A pod with one container. It outlasts the test, but ends soon if it is left behind.
    async fn run(&self, name: &str) {
        self.run_with(name, little(), &["sleep", "60"]).await;
    }

    async fn run_with(&self, name: &str, resources: pb::ResourceRequirements, command: &[&str]) -> Pod {
        self.bind(name, resources, command).await;
        self.pod_that(name, |pod| pod.status.phase == PodPhase::Running).await
    }

    async fn bind(&self, name: &str, resources: pb::ResourceRequirements, command: &[&str]) {
        let container = pb::Container {
            name: "main".to_owned(),
            image: "none".to_owned(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            resources: Some(resources),
            ..Default::default()
        };
        let spec =
            pb::PodSpec { node_name: "n1".to_owned(), containers: vec![container], ..Default::default() };
        let metadata =
            pb::Metadata { name: name.to_owned(), namespace: "default".to_owned(), ..Default::default() };
        let pod = pb::Pod { metadata: Some(metadata), spec: Some(spec), status: None };
        self.client.create(Pod::try_from(pod).unwrap()).await.unwrap();
    }

    async fn pod_that(&self, name: &str, is_so: impl Fn(&Pod) -> bool) -> Pod {
        let key = Key::namespaced("default".parse().unwrap(), name.parse().unwrap());
        let look = async {
            loop {
                let pod: Pod = self.client.get(&key).await.unwrap();
                if is_so(&pod) {
                    return pod;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look).await.unwrap()
    }

    /// Deletes a pod and waits until it is gone.
    async fn delete(&self, name: &str) {
        let key = Key::namespaced("default".parse().unwrap(), name.parse().unwrap());
        self.client.delete::<Pod>(&key, muster_store_client::DeleteOptions::default()).await.unwrap();
        let gone = async {
            while self.client.get::<Pod>(&key).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.unwrap();
    }

    /// The Ready condition in the store.
    async fn ready(&self) -> (ConditionStatus, String) {
        let node: Node = self.client.get(&Key::node("n1".parse().unwrap())).await.unwrap();
        let ready = node.status.conditions.into_iter().find(|condition| condition.kind == "Ready").unwrap();
        (ready.status, ready.message)
    }

    /// Sends TERM to the agent and waits for its exit.
    async fn terminate(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.agent.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let end = async {
            while self.agent.try_wait().unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, end).await.unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s069_a_machine_that_shuts_down_is_posted_not_ready_and_stops_its_pods() {
    let flags = ["--shutdown-on-sigterm", "--shutdown-grace-period=20s"];
    let mut cluster = Cluster::start(&flags).await;
    cluster.run("a").await;
    assert_eq!(cluster.ready().await.0, ConditionStatus::True);
    cluster.terminate().await;
    let status = cluster.pod_that("a", |_| true).await.status;
    assert_eq!((status.phase, status.reason.as_str()), (PodPhase::Failed, "Terminated"));
    let (ready, message) = cluster.ready().await;
    assert_eq!(ready, ConditionStatus::False);
    assert!(message.contains("node is shutting down"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s069_a_machine_without_pods_is_posted_not_ready_too() {
    let mut cluster = Cluster::start(&["--shutdown-on-sigterm", "--shutdown-grace-period=20s"]).await;
    cluster.run("a").await;
    cluster.delete("a").await;
    cluster.terminate().await;
    assert_eq!(cluster.ready().await.0, ConditionStatus::False);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_replaced_leaves_its_pods_running() {
    let mut cluster = Cluster::start(&["--shutdown-grace-period=20s"]).await;
    cluster.run("a").await;
    cluster.terminate().await;
    assert_eq!(cluster.pod_that("a", |_| true).await.status.phase, PodPhase::Running);
    assert_eq!(cluster.ready().await.0, ConditionStatus::True);
}

#[tokio::test(flavor = "multi_thread")]
async fn s067_a_machine_under_pressure_evicts_a_pod_and_records_why() {
    // More than any machine has; soft, since a hard threshold would be reserved.
    let soft = ["--eviction-soft=memory.available<900Ti", "--eviction-soft-grace-period=memory.available=1s"];
    let cluster = Cluster::start(&soft).await;
    // It may be evicted before it was seen running.
    cluster.bind("a", little(), &["sleep", "60"]).await;
    let status = cluster.pod_that("a", Pod::is_finished).await.status;
    assert_eq!((status.phase, status.reason.as_str()), (PodPhase::Failed, "Evicted"));
    let recorded = async {
        loop {
            let events = cluster.client.list::<Event>(Default::default()).await.unwrap().records;
            let has = |reason: &str| events.iter().any(|event| event.reason == reason);
            if has("Evicted") && has("EvictionThresholdMet") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, recorded).await.unwrap();
}

/// The CPUs that a pod's container may run on, as the kernel writes them.
async fn allowed(cluster: &Cluster, pod: &Pod) -> BTreeSet<u32> {
    let status = &pod.status.container_statuses[0];
    let pid = status.container_id.strip_prefix("process://").unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse().unwrap()..=last.parse().unwrap()
    };
    assert!(cluster.pod_that(pod.meta.name.as_str(), |_| true).await.status.phase == PodPhase::Running);
    list.trim().split(',').flat_map(range).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn s077_a_guaranteed_pod_gets_a_processor_of_its_own() {
    let cluster = Cluster::start(&["--topology-manager-policy=single-numa-node"]).await;
    let none = pb::ResourceRequirements::default;
    let before = cluster.run_with("before", none(), &["sleep", "60"]).await;
    let all = allowed(&cluster, &before).await;

    let whole = [("cpu".to_owned(), "1".to_owned()), ("memory".to_owned(), "64Mi".to_owned())];
    let limits = pb::ResourceRequirements { limits: whole.into(), ..Default::default() };
    let alone = cluster.run_with("alone", limits, &["sleep", "60"]).await;
    let own = allowed(&cluster, &alone).await;
    assert_eq!(own.len(), 1, "one processor, not {own:?}");
    // A machine with one processor has no other for the rest.
    let rest: BTreeSet<u32> = &all - &own;
    let rest = if rest.is_empty() { all.clone() } else { rest };
    assert_eq!(allowed(&cluster, &before).await, rest, "a running pod is moved off it");
    let after = cluster.run_with("after", none(), &["sleep", "60"]).await;
    assert_eq!(allowed(&cluster, &after).await, rest, "a later pod is kept off it");

    cluster.delete("alone").await;
    for pod in [&before, &after] {
        assert_eq!(allowed(&cluster, pod).await, all, "a released processor is shared again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s060_a_runtime_without_its_directory_makes_the_node_not_ready() {
    let cluster = Cluster::start(&["--node-status-update-frequency=1s"]).await;
    cluster.run("a").await;
    let [folder, away] = ["pods", "away"].map(|name| cluster.files.path().join("agent/runtime").join(name));
    for (from, to, expected) in
        [(&folder, &away, ConditionStatus::False), (&away, &folder, ConditionStatus::True)]
    {
        std::fs::rename(from, to).unwrap();
        let changed = async {
            while cluster.ready().await.0 != expected {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, changed).await.unwrap();
    }
}
