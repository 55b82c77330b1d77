//! The components of a running Muster: started in the order of their dependencies, stopped in the reverse order.

use std::net::SocketAddr;

use muster_agent::run::Platform;
use muster_rpc::clock::SystemClock;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::{self, Security};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::data_dir::DataDir;
use super::{Flags, UpError, settings};
use crate::simulation;

/// The addresses of a component.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
}

/// A component that runs until its shutdown is triggered.
struct Component {
    name: &'static str,
    shutdown: Shutdown,
    running: JoinHandle<Result<(), UpError>>,
}

/// The agent of this machine.
#[derive(Clone, Debug)]
pub(crate) struct LocalAgent {
    pub(crate) addresses: Addresses,
    /// The name of this machine's node.
    pub(crate) node: String,
}

/// All components of a Muster in this process.
pub(crate) struct Components {
    pub(crate) store: Addresses,
    /// Where the store serves the Kubernetes API.
    pub(crate) kubernetes: Option<SocketAddr>,
    pub(crate) controller: Addresses,
    pub(crate) agent: Option<LocalAgent>,
    /// The address of the simulation's HTTP API, and how many simulated agents have connected.
    pub(crate) simulation: Option<(SocketAddr, watch::Receiver<usize>)>,
    running: RunningComponents,
}

/// The running components, in the order in which they were started.
#[derive(Default)]
struct RunningComponents {
    components: Vec<Component>,
    /// Triggered when any component has ended.
    ended: Shutdown,
}

impl RunningComponents {
    fn add(
        &mut self,
        name: &'static str,
        shutdown: Shutdown,
        run: impl Future<Output = Result<(), UpError>> + Send + 'static,
    ) {
        let ended = self.ended.clone();
        let running = tokio::spawn(async move {
            let outcome = run.await;
            ended.trigger();
            outcome
        });
        self.components.push(Component { name, shutdown, running });
    }

    /// Stops the components, the last one first, and calls `on_stopped` with the name of each.
    async fn stop(mut self, mut on_stopped: impl FnMut(&str)) -> Result<(), UpError> {
        let mut outcome = Ok(());
        while let Some(component) = self.components.pop() {
            component.shutdown.trigger();
            let ended =
                component.running.await.unwrap_or_else(|error| Err(std::io::Error::other(error).into()));
            on_stopped(component.name);
            // The first failure is closest to the cause.
            outcome = outcome.and(ended);
        }
        outcome
    }
}

impl Components {
    /// Starts all components. If one cannot start, the components before it are stopped.
    pub(crate) async fn start(flags: &Flags, data_dir: &DataDir) -> Result<Components, UpError> {
        let mut running = RunningComponents::default();
        match start(flags, data_dir, &mut running).await {
            Ok(Started { store, kubernetes, controller, agent, simulation }) => {
                Ok(Components { store, kubernetes, controller, agent, simulation, running })
            }
            Err(failure) => {
                // Further failures are consequences of the first one.
                let _ = running.stop(|_| {}).await;
                Err(failure)
            }
        }
    }

    /// Completes when any component has ended.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.running.ended.requested()
    }

    /// Stops the components, the last one first, and calls `on_stopped` with the name of each.
    pub(crate) async fn stop(self, on_stopped: impl FnMut(&str)) -> Result<(), UpError> {
        self.running.stop(on_stopped).await
    }
}

/// Where the components listen.
struct Started {
    store: Addresses,
    kubernetes: Option<SocketAddr>,
    controller: Addresses,
    agent: Option<LocalAgent>,
    simulation: Option<(SocketAddr, watch::Receiver<usize>)>,
}

async fn start(
    flags: &Flags,
    data_dir: &DataDir,
    running: &mut RunningComponents,
) -> Result<Started, UpError> {
    let shutdown = Shutdown::new();
    let sockets = data_dir.sockets();
    let mut config = settings::store(flags, data_dir)?;
    config.unix_socket = Some(sockets.store);
    let store = muster_store::run::start(config, shutdown.clone()).await?;
    let store_addresses = Addresses { grpc: store.address, http: store.http_address };
    let kubernetes = store.kubernetes_address;
    let stopped = async { store.stopped().await.map_err(UpError::from) };
    running.add("store", shutdown, stopped);
    let url = settings::url(flags, store_addresses.grpc);

    let shutdown = Shutdown::new();
    let mut config = settings::controller(flags, &url)?;
    config.unix_socket = Some(sockets.controller);
    let controller = muster_controller::run::start(config, shutdown.clone()).await?;
    let controller_addresses = Addresses { grpc: controller.address, http: controller.http_address };
    let stopped = async { controller.stopped().await.map_err(UpError::from) };
    running.add("controller", shutdown, stopped);

    let mut simulation_addresses = None;
    if flags.nodes > 0 {
        let shutdown = Shutdown::new();
        let settings = settings::simulation(flags, &url)?;
        let (plain, tls) = (Security::plain(), settings.endpoints.tls.as_ref());
        tls::follow(&plain, tls, &mut Registry::default(), SystemClock::shared(), &shutdown);
        let simulation = simulation::start(settings, shutdown.clone()).await?;
        simulation_addresses = Some((simulation.address, simulation.connected.clone()));
        let stopped = async {
            simulation.stopped().await;
            Ok(())
        };
        running.add("simulated agents", shutdown, stopped);
    }

    let mut local_agent = None;
    if !flags.no_agent {
        let shutdown = Shutdown::new();
        let config = settings::agent(flags, data_dir, &url)?;
        let agent = muster_agent::run::start(config, Platform::real(), shutdown.clone()).await?;
        let node = agent.node.to_string();
        let addresses = Addresses { grpc: agent.address, http: agent.http_address };
        local_agent = Some(LocalAgent { addresses, node });
        let stopped = async { agent.stopped().await.map_err(UpError::from) };
        running.add("agent", shutdown, stopped);
    }
    Ok(Started {
        store: store_addresses,
        kubernetes,
        controller: controller_addresses,
        agent: local_agent,
        simulation: simulation_addresses,
    })
}
