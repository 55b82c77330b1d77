//! Simulated agents: they have no machine, but use the real protocol over real sockets.
//!
//! [`fleet_spec`] has their names, zones and records, [`machines`] which of them are powered on. Each has a heartbeat
//! stream of its own (`agent`). One loop reports the status of all their pods (`pod_loop`), by pure rules
//! (`pod_lifecycle`). `http_api` kills and revives them.

mod agent;
pub(crate) mod fleet_spec;
mod http_api;
pub(crate) mod machines;
mod pod_lifecycle;
mod pod_loop;

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use muster_proto::backoff::Backoff;
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::clock::{SharedClock, SystemClock};
use muster_rpc::http::serve_routes;
use muster_rpc::server::{BindError, bind};
use muster_rpc::shutdown::Shutdown;
use muster_store_client::{
    ClientError, DeleteOptions, EndpointError, ListOptions, Preconditions, StoreClient, StoreEndpoints,
    Watch, WatchOptions,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::agent::SimulatedAgent;
use self::fleet_spec::{FleetSpec, SIMULATED};
use self::machines::Machines;
use self::pod_loop::PodLoop;

/// Heartbeat streams on one connection. The store accepts far more, but one connection is processed by one core at a
/// time.
const STREAMS_PER_CONNECTION: usize = 4096;
/// Concurrent registrations.
const REGISTRATIONS: usize = 256;
/// The delay between attempts to register a node.
const REGISTER: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));

/// The settings of a simulation.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) spec: FleetSpec,
    /// The store to register with.
    pub(crate) endpoints: StoreEndpoints,
    /// The address of the HTTP API that kills and revives nodes.
    pub(crate) listen: SocketAddr,
    /// The duration of the nodes' leases.
    pub(crate) lease_duration: Duration,
    /// How long a simulated container takes to start or to stop.
    pub(crate) container_delay: Duration,
}

/// Why the simulation cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimulationError {
    #[error("--simulation-listen: {0} can be reached by other machines; it must be a loopback address")]
    Exposed(SocketAddr),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Store(#[from] EndpointError),
}

/// A running simulation.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    /// How many agents have connected to the store at least once.
    pub(crate) connected: watch::Receiver<usize>,
    tasks: JoinSet<()>,
    shutdown: Shutdown,
}

/// Starts the agents. They register and send heartbeats in the background.
pub(crate) async fn start(settings: Settings, shutdown: Shutdown) -> Result<Running, SimulationError> {
    if !settings.listen.ip().is_loopback() {
        return Err(SimulationError::Exposed(settings.listen));
    }
    let listener = bind("--simulation-listen", settings.listen).await?;
    let address = listener.address();
    let connections = 1 + settings.spec.nodes / STREAMS_PER_CONNECTION;
    let connect = |_| StoreClient::connect(settings.endpoints.clone());
    let clients: Vec<StoreClient> = (0..connections).map(connect).collect::<Result<_, _>>()?;
    let machines = Machines::new(settings.spec);
    let clock = SystemClock::shared();
    let (connected_sender, connected) = watch::channel(0);
    let mut tasks = JoinSet::new();
    let routes = http_api::routes(machines.clone());
    let server_shutdown = shutdown.clone();
    tasks.spawn(async move {
        if let Err(error) = serve_routes(listener, routes, server_shutdown).await {
            tracing::error!(%error, "the simulation's HTTP API failed: nodes cannot be killed or revived any more");
        }
    });
    let pod_loop = PodLoop::new(
        clients[0].clone(),
        machines.clone(),
        SharedClock::clone(&clock),
        settings.container_delay,
    );
    tasks.spawn(pod_loop.run());
    tasks.spawn(request_status_reports(clients[0].clone(), machines.clone()));
    let lease_duration = settings.lease_duration;
    let agents = Agents { clients, machines, clock, lease_duration, connected: connected_sender };
    tasks.spawn(agents.run());
    Ok(Running { address, connected, tasks, shutdown })
}

impl Running {
    /// Returns when the shutdown was requested and the simulation has stopped.
    pub(crate) async fn stopped(mut self) {
        self.shutdown.requested().await;
        self.tasks.shutdown().await;
    }
}

/// Asks an agent for a new status when the store's record says that its node is not Ready.
async fn request_status_reports(client: StoreClient, machines: Machines) {
    let options = WatchOptions { label_selector: SIMULATED.to_owned(), ..WatchOptions::default() };
    let mut watch: Watch<Node> = client.watch(options);
    while let Some(event) = watch.next().await {
        if let WatchEvent::Applied { record } = event
            && !record.is_ready()
        {
            machines.request_status_report(record.meta.name.as_str());
        }
    }
}

/// All simulated agents.
struct Agents {
    clients: Vec<StoreClient>,
    machines: Machines,
    clock: SharedClock,
    lease_duration: Duration,
    connected: watch::Sender<usize>,
}

impl Agents {
    async fn run(self) {
        self.delete_surplus_nodes().await;
        let agents = &self;
        let mut registered = stream::iter(0..self.machines.spec.nodes)
            .map(|index| async move { (index, agents.register(index).await) })
            .buffer_unordered(REGISTRATIONS);
        // All agents run on this one task, because each of them mostly sleeps.
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some((index, uid)) = registered.next() => running.push(self.agent(index, uid).run()),
                Some(()) = running.next() => {}
                else => return,
            }
        }
    }

    fn client(&self, index: usize) -> &StoreClient {
        &self.clients[index % self.clients.len()]
    }

    /// Deletes nodes that an earlier run with more simulated nodes left in the store.
    async fn delete_surplus_nodes(&self) {
        let mut options = ListOptions { label_selector: SIMULATED.to_owned(), ..ListOptions::default() };
        loop {
            let page = match self.client(0).list_page::<Node>(options.clone()).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "cannot list simulated nodes of an earlier run; some may remain");
                    return;
                }
            };
            let is_surplus = |node: &&Node| self.machines.spec.index(node.meta.name.as_str()).is_none();
            for node in page.records.iter().filter(is_surplus) {
                let preconditions = Preconditions::uid_of(node);
                let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
                if let Err(error) = self.client(0).delete::<Node>(&Key::of(node), options).await {
                    tracing::warn!(node = %node.meta.name, %error, "cannot delete a simulated node of an earlier run");
                }
            }
            if page.next_page_token.is_empty() {
                return;
            }
            options.page_token = page.next_page_token;
        }
    }

    /// Registers a node; retries until it succeeds.
    async fn register(&self, index: usize) -> Uid {
        let mut failures = 0;
        loop {
            match self.try_register(index).await {
                Ok(Some(uid)) => return uid,
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(index, %error, "a simulated node could not be registered; retrying");
                }
            }
            failures += 1;
            tokio::time::sleep(REGISTER.delay(failures, 0.0)).await;
        }
    }

    async fn try_register(&self, index: usize) -> Result<Option<Uid>, ClientError> {
        let (client, wanted) = (self.client(index), self.machines.spec.node(index, self.clock.wall()));
        let node = match client.create(wanted.clone()).await {
            Err(ClientError::AlreadyExists(_)) => {
                // The node is from an earlier run, perhaps with another zone.
                let mut node: Node = client.get(&Key::node(wanted.meta.name.clone())).await?;
                node.meta.labels.extend(wanted.meta.labels);
                node.status = wanted.status;
                client.update_status(node).await?
            }
            created => created?,
        };
        Ok(node.meta.uid)
    }

    fn agent(&self, index: usize, uid: Uid) -> SimulatedAgent {
        SimulatedAgent {
            client: self.client(index).clone(),
            spec: self.machines.spec,
            index,
            uid,
            lease_duration: self.lease_duration,
            machine: self.machines.subscribe(index),
            connected: self.connected.clone(),
            clock: SharedClock::clone(&self.clock),
        }
    }
}
