//! Simulated agents: machines that are not there, speaking the real protocol over real sockets.
//!
//! Who they are is in [`fleet_spec`], who of them is up in [`machines`]. Each has a heartbeat stream of its own (`agent`);
//! their pods are looked after together (`pod_loop`), by rules that are pure (`pod_lifecycle`). `http_api` switches them off and on.

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

use self::agent::Machine;
use self::fleet_spec::{Blueprint, SIMULATED};
use self::machines::Roll;
use self::pod_loop::Pods;

/// Machines that share a connection. The store takes far more streams, but one connection is worked on by one
/// processor at a time.
const STREAMS_PER_CONNECTION: usize = 4096;
/// Registrations under way at once.
const REGISTRATIONS: usize = 256;
/// Between attempts to register a machine.
const REGISTER: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));

/// What to simulate, and where.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) blueprint: Blueprint,
    /// The store to register with.
    pub(crate) endpoints: StoreEndpoints,
    /// Where machines are switched off and on.
    pub(crate) listen: SocketAddr,
    /// How long a renewal is meant to last.
    pub(crate) lease_duration: Duration,
    /// How long a program takes to start or to stop.
    pub(crate) moment: Duration,
}

/// Why there can be no simulation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimulationError {
    #[error(
        "--simulation-listen: {0} can be reached by other machines; it must be an address of this machine's own"
    )]
    Exposed(SocketAddr),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Store(#[from] EndpointError),
}

/// A simulation under way.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    /// How many machines the store has heard.
    pub(crate) heard: watch::Receiver<usize>,
    tasks: JoinSet<()>,
    shutdown: Shutdown,
}

/// Starts the machines; they register and beat in the background.
pub(crate) async fn start(settings: Settings, shutdown: Shutdown) -> Result<Running, SimulationError> {
    if !settings.listen.ip().is_loopback() {
        return Err(SimulationError::Exposed(settings.listen));
    }
    let listener = bind("--simulation-listen", settings.listen).await?;
    let address = listener.address();
    let connections = 1 + settings.blueprint.nodes / STREAMS_PER_CONNECTION;
    let connect = |_| StoreClient::connect(settings.endpoints.clone());
    let clients: Vec<StoreClient> = (0..connections).map(connect).collect::<Result<_, _>>()?;
    let roll = Roll::new(settings.blueprint);
    let clock = SystemClock::shared();
    let (heard_by, heard) = watch::channel(0);
    let mut tasks = JoinSet::new();
    let routes = http_api::routes(roll.clone());
    let over = shutdown.clone();
    tasks.spawn(async move {
        if let Err(error) = serve_routes(listener, routes, over).await {
            tracing::error!(%error, "simulated machines cannot be switched any more");
        }
    });
    let pods = Pods::new(clients[0].clone(), roll.clone(), SharedClock::clone(&clock), settings.moment);
    tasks.spawn(pods.run());
    tasks.spawn(attend(clients[0].clone(), roll.clone()));
    let crew = Crew { clients, roll, clock, lease_duration: settings.lease_duration, heard: heard_by };
    tasks.spawn(crew.run());
    Ok(Running { address, heard, tasks, shutdown })
}

impl Running {
    /// Returns when the simulation was asked to stop and has.
    pub(crate) async fn stopped(mut self) {
        self.shutdown.requested().await;
        self.tasks.shutdown().await;
    }
}

/// Tells machines of which the store has another opinion than they have.
async fn attend(client: StoreClient, roll: Roll) {
    let options = WatchOptions { label_selector: SIMULATED.to_owned(), ..WatchOptions::default() };
    let mut watch: Watch<Node> = client.watch(options);
    while let Some(event) = watch.next().await {
        if let WatchEvent::Applied { record } = event
            && !record.is_ready()
        {
            roll.tell_to_report(record.meta.name.as_str());
        }
    }
}

/// Everybody who has to register and beat.
struct Crew {
    clients: Vec<StoreClient>,
    roll: Roll,
    clock: SharedClock,
    lease_duration: Duration,
    heard: watch::Sender<usize>,
}

impl Crew {
    async fn run(self) {
        self.dismiss().await;
        let crew = &self;
        let mut registered = stream::iter(0..self.roll.blueprint.nodes)
            .map(|index| async move { (index, crew.register(index).await) })
            .buffer_unordered(REGISTRATIONS);
        // All of them on this one task: each mostly sleeps.
        let mut beating = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some((index, uid)) = registered.next() => beating.push(self.machine(index, uid).run()),
                Some(()) = beating.next() => {}
                else => return,
            }
        }
    }

    fn client(&self, index: usize) -> &StoreClient {
        &self.clients[index % self.clients.len()]
    }

    /// Takes machines off the roll that an earlier, larger simulation on the same records left there.
    async fn dismiss(&self) {
        let mut options = ListOptions { label_selector: SIMULATED.to_owned(), ..ListOptions::default() };
        loop {
            let page = match self.client(0).list_page::<Node>(options.clone()).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "simulated nodes of an earlier run may be left");
                    return;
                }
            };
            let is_surplus = |node: &&Node| self.roll.blueprint.index(node.meta.name.as_str()).is_none();
            for node in page.records.iter().filter(is_surplus) {
                let preconditions = Preconditions::uid_of(node);
                let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
                if let Err(error) = self.client(0).delete::<Node>(&Key::of(node), options).await {
                    tracing::warn!(node = %node.meta.name, %error, "a simulated node of an earlier run is left");
                }
            }
            if page.next_page_token.is_empty() {
                return;
            }
            options.page_token = page.next_page_token;
        }
    }

    /// Puts a machine on the roll, however long it takes.
    async fn register(&self, index: usize) -> Uid {
        let mut failures = 0;
        loop {
            match self.try_register(index).await {
                Ok(Some(uid)) => return uid,
                Ok(None) => {}
                Err(error) => tracing::debug!(index, %error, "a simulated node is not registered yet"),
            }
            failures += 1;
            tokio::time::sleep(REGISTER.delay(failures, 0.0)).await;
        }
    }

    async fn try_register(&self, index: usize) -> Result<Option<Uid>, ClientError> {
        let (client, wanted) = (self.client(index), self.roll.blueprint.node(index, self.clock.wall()));
        let node = match client.create(wanted.clone()).await {
            Err(ClientError::AlreadyExists(_)) => {
                // Ours from an earlier run, perhaps in another zone.
                let mut node: Node = client.get(&Key::node(wanted.meta.name.clone())).await?;
                node.meta.labels.extend(wanted.meta.labels);
                node.status = wanted.status;
                client.update_status(node).await?
            }
            created => created?,
        };
        Ok(node.meta.uid)
    }

    fn machine(&self, index: usize, uid: Uid) -> Machine {
        Machine {
            client: self.client(index).clone(),
            blueprint: self.roll.blueprint,
            index,
            uid,
            lease_duration: self.lease_duration,
            orders: self.roll.orders(index),
            heard: self.heard.clone(),
            clock: SharedClock::clone(&self.clock),
        }
    }
}
