//! The agent on a machine that does not exist, before a real store: what becomes known when the machine changes.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_agent::config::{Config, Flags};
use muster_agent::machine::{Filesystem, Hardware, Machine, Network, Pids, System};
use muster_agent::run::{self, Ground, RunError};
use muster_agent::topology::cpus::Layout;
use muster_proto::condition::ConditionStatus;
use muster_proto::event::Event;
use muster_proto::node::{Node, NodeCondition};
use muster_proto::pb;
use muster_proto::pod::{Pod, PodPhase};
use muster_rpc::config::parse_with_config;
use muster_rpc::shutdown::Shutdown;
use muster_store_client::{Key, StoreClient, StoreEndpoints};

/// No condition here takes this long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(90);
const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;

/// What the machine is like now.
#[derive(Clone, Debug)]
struct Facts {
    hardware: Hardware,
    memory_available: u64,
    disk: Filesystem,
    network: Network,
    /// Whether the disk cannot be read, but for the once that an agent cannot start without.
    is_disk_away: bool,
    disk_reads: u64,
}

/// A machine whose facts can be changed under its agent.
struct Imagined {
    facts: Mutex<Facts>,
}

impl Imagined {
    fn new() -> Arc<Imagined> {
        let hardware = Hardware { cores: 4, memory_bytes: 16 * GI, numa_nodes: 1, ..Hardware::default() };
        let address = IpAddr::from([10, 0, 0, 5]);
        let facts = Facts {
            hardware,
            memory_available: 8 * GI,
            disk: Filesystem {
                capacity_bytes: 100 * GI,
                available_bytes: 90 * GI,
                inodes: 1_000_000,
                inodes_free: 900_000,
            },
            network: Network { local: vec![address], default_route: vec![address] },
            is_disk_away: false,
            disk_reads: 0,
        };
        Arc::new(Imagined { facts: Mutex::new(facts) })
    }

    fn change(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.facts.lock().unwrap());
    }

    fn facts(&self) -> Facts {
        self.facts.lock().unwrap().clone()
    }
}

impl Machine for Imagined {
    fn system(&self) -> System {
        let text = str::to_owned;
        System {
            boot_id: text("b1"),
            operating_system: text("linux"),
            architecture: text("amd64"),
            ..System::default()
        }
    }
    fn hardware(&self) -> io::Result<Hardware> {
        Ok(self.facts().hardware)
    }
    fn processors(&self) -> io::Result<Layout> {
        Ok(Layout::from([(0, vec![0, 1, 2, 3])]))
    }
    fn memory_available(&self) -> io::Result<u64> {
        Ok(self.facts().memory_available)
    }
    fn filesystem(&self, _: &Path) -> io::Result<Filesystem> {
        let mut facts = self.facts.lock().unwrap();
        facts.disk_reads += 1;
        let is_away = facts.is_disk_away && facts.disk_reads > 1;
        if is_away { Err(io::ErrorKind::NotFound.into()) } else { Ok(facts.disk) }
    }
    fn pids(&self) -> io::Result<Pids> {
        Ok(Pids { max: 100_000, used: 100 })
    }
    fn network(&self) -> io::Result<Network> {
        Ok(self.facts().network)
    }
    fn lookup(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Ok(Vec::new())
    }
    fn hostname(&self) -> io::Result<String> {
        Ok("n1".to_owned())
    }
}

/// A store, and an agent in this process; both end with their test.
struct World {
    machine: Arc<Imagined>,
    client: StoreClient,
    url: String,
    shutdown: Shutdown,
    files: tempfile::TempDir,
    _store: muster_store::run::Running,
}

impl World {
    async fn new() -> World {
        let files = tempfile::tempdir().unwrap();
        let data = format!("--data-dir={}", files.path().join("store").display());
        let args = ["muster-store", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", &data];
        let flags: muster_store::config::Flags = parse_with_config(args).unwrap();
        let shutdown = Shutdown::new();
        let store = muster_store::run::start((&flags).try_into().unwrap(), shutdown.clone()).await.unwrap();
        let url = format!("http://{}", store.address);
        let client = StoreClient::connect(StoreEndpoints::new([url.clone()])).unwrap();
        World { machine: Imagined::new(), client, url, shutdown, files, _store: store }
    }

    async fn start(&self, flags: &[&str]) -> Result<run::Running, RunError> {
        let state = format!("--state-dir={}", self.files.path().join("agent").display());
        let fixed =
            ["muster-agent", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--store", &self.url];
        let args = fixed.iter().chain(flags).copied().chain([state.as_str()]);
        let parsed: Flags = parse_with_config(args).unwrap();
        let shim = PathBuf::from(env!("CARGO_BIN_EXE_muster-agent"));
        let ground = Ground { machine: self.machine.clone(), shim };
        run::start(Config::try_from(&parsed).unwrap(), ground, self.shutdown.clone()).await
    }

    /// An agent whose node is ready.
    async fn ready(flags: &[&str]) -> World {
        let world = World::new().await;
        world.start(flags).await.unwrap();
        world.node_that("it is ready", |node| holds(node, "Ready")).await;
        world
    }

    async fn node(&self) -> Option<Node> {
        self.client.get(&Key::node("n1".parse().unwrap())).await.ok()
    }

    async fn node_that(&self, what: &str, is_so: impl Fn(&Node) -> bool) -> Node {
        eventually(PATIENCE, what, async || self.node().await.filter(|node| is_so(node))).await
    }

    /// A pod bound to the node. It outlasts the test, and not for long should it be left behind.
    async fn bind(&self, name: &str, resources: pb::ResourceRequirements, script: &str) {
        let container = pb::Container {
            name: "main".to_owned(),
            image: "none".to_owned(),
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
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

    async fn pod(&self, name: &str) -> Pod {
        let key = Key::namespaced("default".parse().unwrap(), name.parse().unwrap());
        self.client.get(&key).await.unwrap()
    }

    async fn pod_that(&self, name: &str, is_so: impl Fn(&Pod) -> bool) -> Pod {
        eventually(PATIENCE, name, async || Some(self.pod(name).await).filter(|pod| is_so(pod))).await
    }

    /// The reasons of all events so far, and how often each was told.
    async fn told(&self) -> BTreeMap<String, i32> {
        let events = self.client.list::<Event>(Default::default()).await.unwrap().records;
        events.into_iter().map(|event| (event.reason, event.count)).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

async fn eventually<T>(within: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            match look().await {
                Some(seen) => return seen,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let seen = tokio::time::timeout(within, looking).await;
    seen.unwrap_or_else(|_| panic!("not within {within:?}: {what}"))
}

fn condition<'a>(node: &'a Node, kind: &str) -> &'a NodeCondition {
    node.status.conditions.iter().find(|condition| condition.kind == kind).unwrap()
}

fn holds(node: &Node, kind: &str) -> bool {
    let found = node.status.conditions.iter().find(|condition| condition.kind == kind);
    found.is_some_and(|condition| condition.status == ConditionStatus::True)
}

fn asks(amounts: &[(&str, &str)]) -> pb::ResourceRequirements {
    let limits = amounts.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect();
    pb::ResourceRequirements { limits, ..Default::default() }
}

/// What is not watched for cannot be short.
const NO_THRESHOLDS: &str = "--eviction-hard=memory.available<1Mi";

#[tokio::test(flavor = "multi_thread")]
async fn s046_another_capacity_is_posted_within_an_interval_and_is_no_transition() {
    let world = World::ready(&[NO_THRESHOLDS]).await;
    let before = world.node().await.unwrap();
    assert_eq!(before.status.capacity["memory"].value(), i64::try_from(16 * GI).unwrap());
    world.machine.change(|facts| facts.hardware.memory_bytes = 24 * GI);
    let grown = |node: &Node| node.status.capacity["memory"].value() == i64::try_from(24 * GI).unwrap();
    // The interval is 10 s by default, and up to 4 % more.
    let look = async || world.node().await.filter(grown);
    let after = eventually(Duration::from_secs(11), "the new capacity is posted", look).await;
    let allocatable = i64::try_from(24 * GI - MI).unwrap();
    assert_eq!(after.status.allocatable["memory"].value(), allocatable, "and what pods may use of it");
    let times = |node: &Node| {
        let of = |kind| condition(node, kind).last_transition_time;
        ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(of)
    };
    assert_eq!(times(&before), times(&after));
    assert!(
        condition(&before, "Ready").last_heartbeat_time < condition(&after, "Ready").last_heartbeat_time,
        "a heartbeat of its own"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_unready_is_ready_as_soon_as_it_can_be() {
    let world = World::new().await;
    world.machine.change(|facts| facts.is_disk_away = true);
    // Its next look by the clock is long after the test.
    world.start(&[NO_THRESHOLDS, "--node-status-update-frequency=10m"]).await.unwrap();
    let node = world.node_that("it is there", |node| !node.status.conditions.is_empty()).await;
    let ready = condition(&node, "Ready");
    assert_eq!(ready.status, ConditionStatus::False);
    assert!(ready.message.contains("ephemeral-storage"), "{ready:?}");
    world.machine.change(|facts| facts.is_disk_away = false);
    world.node_that("it is ready", |node| holds(node, "Ready")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s062_s063_memory_is_short_below_its_threshold_and_for_a_while_after() {
    let world = World::new().await;
    world.machine.change(|facts| facts.memory_available = 100 * MI);
    let flags = ["--eviction-hard=memory.available<100Mi", "--eviction-pressure-transition-period=25s"];
    world.start(&flags).await.unwrap();
    let node = world.node_that("it is ready", |node| holds(node, "Ready")).await;
    assert!(!holds(&node, "MemoryPressure"), "as much as the threshold is enough");

    world.machine.change(|facts| facts.memory_available = 99 * MI);
    let look = async || world.node().await.filter(|node| holds(node, "MemoryPressure"));
    let short = eventually(Duration::from_secs(21), "it is short of memory", look).await;
    assert_eq!(condition(&short, "MemoryPressure").reason, "KubeletHasInsufficientMemory");
    assert!(!holds(&short, "DiskPressure") && holds(&short, "Ready"));
    world.machine.change(|facts| facts.memory_available = 8 * GI);
    let enough = world.node_that("it has enough", |node| !holds(node, "MemoryPressure")).await;
    assert_eq!(condition(&enough, "MemoryPressure").reason, "KubeletHasSufficientMemory");
    let at = |node: &Node| condition(node, "MemoryPressure").last_transition_time.unwrap();
    // It was last seen to be short when it was first said to be, or later.
    let held = at(&enough).duration_since(at(&short));
    assert!(held >= jiff::SignedDuration::from_secs(15), "{held:?}: it holds on for the transition period");
    let told = async || {
        let told = world.told().await;
        told.contains_key("NodeHasInsufficientMemory").then_some(told)
    };
    let told = eventually(PATIENCE, "it is told", told).await;
    assert!(told.contains_key("NodeHasSufficientMemory"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s066_a_machine_short_of_memory_takes_only_who_asked_for_some() {
    let world = World::new().await;
    world.machine.change(|facts| facts.memory_available = 99 * MI);
    world.start(&["--eviction-hard=memory.available<100Mi"]).await.unwrap();
    world.node_that("it is short of memory", |node| holds(node, "MemoryPressure")).await;
    world.bind("besteffort", asks(&[]), "exec sleep 60").await;
    world.bind("guaranteed", asks(&[("cpu", "100m"), ("memory", "64Mi")]), "exec sleep 60").await;
    let rejected = world.pod_that("besteffort", |pod| pod.status.phase == PodPhase::Failed).await;
    assert_eq!(rejected.status.reason, "Evicted", "{:?}", rejected.status);
    world.pod_that("guaranteed", |pod| pod.status.start_time.is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s066_a_machine_short_of_disk_takes_nobody() {
    let world = World::new().await;
    world.machine.change(|facts| facts.disk.available_bytes = GI);
    world.start(&["--eviction-hard=nodefs.available<10%"]).await.unwrap();
    let node = world.node_that("it is short of disk", |node| holds(node, "DiskPressure")).await;
    assert_eq!(condition(&node, "DiskPressure").reason, "KubeletHasDiskPressure");
    world.bind("besteffort", asks(&[]), "exec sleep 60").await;
    world.bind("guaranteed", asks(&[("cpu", "100m"), ("memory", "64Mi")]), "exec sleep 60").await;
    for name in ["besteffort", "guaranteed"] {
        let rejected = world.pod_that(name, |pod| pod.status.phase == PodPhase::Failed).await;
        assert_eq!(
            (rejected.status.reason.as_str(), rejected.status.start_time),
            ("Evicted", None),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s067_who_fills_the_disk_goes_first_and_alone() {
    let world = World::ready(&["--eviction-hard=nodefs.available<10%"]).await;
    // By name and by age the small one would be first.
    world.bind("a-small", asks(&[]), "exec sleep 60").await;
    world.pod_that("a-small", |pod| pod.status.phase == PodPhase::Running).await;
    world.bind("b-large", asks(&[]), "head -c 3000000 /dev/zero; echo; exec sleep 60").await;
    let large = world.pod_that("b-large", |pod| pod.status.phase == PodPhase::Running).await;
    let log = format!("agent/runtime/pods/{}/main/0.log", large.meta.uid.unwrap());
    let log = world.files.path().join(log);
    eventually(PATIENCE, "it has written", async || {
        (std::fs::metadata(&log).is_ok_and(|log| log.len() > 3_000_000)).then_some(())
    })
    .await;
    world.machine.change(|facts| facts.disk.available_bytes = GI);
    let evicted = world.pod_that("b-large", Pod::is_finished).await;
    assert_eq!(world.pod("a-small").await.status.phase, PodPhase::Running, "one goes per round");
    world.machine.change(|facts| facts.disk.available_bytes = 90 * GI);
    assert_eq!((evicted.status.phase, evicted.status.reason.as_str()), (PodPhase::Failed, "Evicted"));
    let target = evicted.status.conditions.iter().find(|condition| condition.kind == "DisruptionTarget");
    assert_eq!(target.unwrap().reason, "TerminationByKubelet");
    let told = async || world.told().await.contains_key("EvictionThresholdMet").then_some(());
    eventually(PATIENCE, "it is told", told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s054_one_address_of_each_family_is_reported_in_the_order_given() {
    let world = World::new().await;
    let [v4, v6] = ["10.0.0.5", "fd00::5"].map(|text| text.parse::<IpAddr>().unwrap());
    world.machine.change(|facts| facts.network.local = vec![v4, v6]);
    world.start(&[NO_THRESHOLDS, "--node-ip=10.0.0.5,fd00::5"]).await.unwrap();
    let node = world.node_that("it is ready", |node| holds(node, "Ready")).await;
    let told: Vec<String> =
        node.status.addresses.iter().map(|it| format!("{} {}", it.kind, it.address)).collect();
    assert_eq!(told, ["InternalIP 10.0.0.5", "InternalIP fd00::5", "Hostname n1"]);
    // One that goes away leaves what was known, and the rest is posted all the same.
    world.machine.change(|facts| (facts.network.local, facts.hardware.cores) = (vec![v6], 8));
    let grown = world.node_that("it has grown", |node| node.status.capacity["cpu"].value() == 8).await;
    assert_eq!(grown.status.addresses, node.status.addresses);
}

#[tokio::test(flavor = "multi_thread")]
async fn s079_s080_swap_is_refused_unless_it_is_accepted_and_then_reported() {
    let world = World::new().await;
    world.machine.change(|facts| facts.hardware.swap_bytes = 8 * GI);
    let refused = world.start(&[NO_THRESHOLDS]).await.err().unwrap().to_string();
    assert!(refused.contains("--fail-swap-on=false"), "{refused}");
    assert!(world.node().await.is_none());
    world.start(&[NO_THRESHOLDS, "--fail-swap-on=false"]).await.unwrap();
    let node = world.node_that("it is there", |_| true).await;
    let swap = node.status.node_info.swap;
    assert_eq!(swap.and_then(|swap| swap.capacity), Some(8_589_934_592));

    let without = World::ready(&[NO_THRESHOLDS]).await;
    assert_eq!(without.node().await.unwrap().status.node_info.swap, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn s055_s059_what_pods_may_use_is_what_the_machine_has_less_what_is_kept() {
    let reserved = ["--system-reserved=cpu=500m,memory=1Gi", "--kube-reserved=cpu=500m,memory=1Gi"];
    let pods = ["--eviction-hard=memory.available<100Mi", "--max-pods=10", "--pods-per-core=2"];
    let world = World::ready(&[reserved, [pods[0], pods[1]], [pods[2], "--provider-id=x"]].concat()).await;
    let status = world.node().await.unwrap().status;
    assert_eq!(status.allocatable["cpu"].milli(), 3000);
    assert_eq!(status.allocatable["memory"].value(), i64::try_from(14_236 * MI).unwrap());
    assert_eq!(status.capacity["pods"].value(), 8, "four cores of two");
}

#[tokio::test(flavor = "multi_thread")]
async fn s058_more_reserved_than_the_machine_has_keeps_the_agent_from_starting() {
    let world = World::new().await;
    let refused = world.start(&["--system-reserved=memory=17Gi"]).await.err().unwrap().to_string();
    assert!(refused.contains("memory"), "{refused}");
    assert!(world.node().await.is_none());
}
