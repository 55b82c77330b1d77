//! A fake machine, a real store, and an agent between the two.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use muster_agent::config::{Config, Flags};
use muster_agent::machine::{Filesystem, Hardware, Machine, Network, Pids, System};
use muster_agent::run::{self, Platform, RunError};
use muster_agent_core::resources::topology::cpus::Layout;
use muster_proto::condition::ConditionStatus;
use muster_proto::event::Event;
use muster_proto::key::Key;
use muster_proto::node::{Node, NodeCondition};
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_rpc::config::parse_with_config;
use muster_rpc::shutdown::Shutdown;
use muster_store_client::{StoreClient, StoreEndpoints};

/// No condition here takes this long on a machine that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
pub(crate) const MI: u64 = 1 << 20;
pub(crate) const GI: u64 = 1 << 30;

/// The current facts of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) hardware: Hardware,
    pub(crate) memory_available: u64,
    pub(crate) disk: Filesystem,
    pub(crate) network: Network,
    /// Whether the disk cannot be read, except for the one read without which the agent does not start.
    pub(crate) is_disk_away: bool,
    /// Whether the resolver does not answer.
    pub(crate) is_resolver_away: bool,
    pub(crate) disk_reads: u64,
}

/// A machine whose facts a test can change.
pub(crate) struct FakeMachine {
    pub(crate) facts: Mutex<Facts>,
    changed: Condvar,
}

impl FakeMachine {
    pub(crate) fn new() -> Arc<FakeMachine> {
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
            is_resolver_away: false,
            disk_reads: 0,
        };
        Arc::new(FakeMachine { facts: Mutex::new(facts), changed: Condvar::new() })
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.facts.lock().unwrap());
        self.changed.notify_all();
    }

    pub(crate) fn facts(&self) -> Facts {
        self.facts.lock().unwrap().clone()
    }
}

impl Machine for FakeMachine {
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
        let facts = self.facts.lock().unwrap();
        drop(self.changed.wait_while(facts, |facts| facts.is_resolver_away).unwrap());
        Ok(Vec::new())
    }
    fn hostname(&self) -> io::Result<String> {
        Ok("n1".to_owned())
    }
}

/// A store, and an agent in this process; both stop with their test.
pub(crate) struct Cluster {
    pub(crate) machine: Arc<FakeMachine>,
    pub(crate) client: StoreClient,
    pub(crate) url: String,
    pub(crate) shutdown: Shutdown,
    pub(crate) files: tempfile::TempDir,
    _store: muster_store::run::Running,
}

impl Cluster {
    pub(crate) async fn new() -> Cluster {
        let files = tempfile::tempdir().unwrap();
        let data = format!("--data-dir={}", files.path().join("store").display());
        let args = ["muster-store", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", &data];
        let flags: muster_store::config::Flags = parse_with_config(args).unwrap();
        let shutdown = Shutdown::new();
        let store = muster_store::run::start((&flags).try_into().unwrap(), shutdown.clone()).await.unwrap();
        let url = format!("http://{}", store.address);
        let client = StoreClient::connect(StoreEndpoints::new([url.clone()])).unwrap();
        Cluster { machine: FakeMachine::new(), client, url, shutdown, files, _store: store }
    }

    pub(crate) async fn start(&self, flags: &[&str]) -> Result<run::Running, RunError> {
        let state = format!("--state-dir={}", self.files.path().join("agent").display());
        let fixed =
            ["muster-agent", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--store", &self.url];
        let args = fixed.iter().chain(flags).copied().chain([state.as_str()]);
        let parsed: Flags = parse_with_config(args).unwrap();
        let shim = PathBuf::from(env!("CARGO_BIN_EXE_muster-agent"));
        let platform = Platform { machine: self.machine.clone(), shim };
        run::start(Config::try_from(&parsed).unwrap(), platform, self.shutdown.clone()).await
    }

    /// An agent whose node is ready.
    pub(crate) async fn ready(flags: &[&str]) -> Cluster {
        let cluster = Cluster::new().await;
        cluster.start(flags).await.unwrap();
        cluster.node_that("it is ready", |node| holds(node, "Ready")).await;
        cluster
    }

    pub(crate) async fn node(&self) -> Option<Node> {
        self.client.get(&Key::node("n1".parse().unwrap())).await.ok()
    }

    pub(crate) async fn node_that(&self, what: &str, is_so: impl Fn(&Node) -> bool) -> Node {
        eventually(PATIENCE, what, async || self.node().await.filter(|node| is_so(node))).await
    }

    /// A pod bound to the node. It outlasts the test, but ends soon if it is left behind.
    pub(crate) async fn bind(&self, name: &str, resources: pb::ResourceRequirements, script: &str) {
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

    pub(crate) async fn pod(&self, name: &str) -> Pod {
        let key = Key::namespaced("default".parse().unwrap(), name.parse().unwrap());
        self.client.get(&key).await.unwrap()
    }

    pub(crate) async fn pod_that(&self, name: &str, is_so: impl Fn(&Pod) -> bool) -> Pod {
        eventually(PATIENCE, name, async || Some(self.pod(name).await).filter(|pod| is_so(pod))).await
    }

    /// The reasons of all events so far, and their counts.
    pub(crate) async fn event_counts(&self) -> BTreeMap<String, i32> {
        let events = self.client.list::<Event>(Default::default()).await.unwrap().records;
        events.into_iter().map(|event| (event.reason, event.count)).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shutdown.trigger();
        // Or a thread would wait for the resolver without end.
        self.machine.change(|facts| facts.is_resolver_away = false);
    }
}

pub(crate) async fn eventually<T>(
    within: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> T {
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

pub(crate) fn condition<'a>(node: &'a Node, kind: &str) -> &'a NodeCondition {
    node.status.conditions.iter().find(|condition| condition.kind == kind).unwrap()
}

pub(crate) fn holds(node: &Node, kind: &str) -> bool {
    let found = node.status.conditions.iter().find(|condition| condition.kind == kind);
    found.is_some_and(|condition| condition.status == ConditionStatus::True)
}

pub(crate) fn asks(amounts: &[(&str, &str)]) -> pb::ResourceRequirements {
    let limits = amounts.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect();
    pb::ResourceRequirements { limits, ..Default::default() }
}
