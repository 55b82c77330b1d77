//! The parts of a running Muster: started one upon the other, stopped in the opposite order.

use std::net::SocketAddr;

use muster_agent::run::Platform;
use muster_rpc::shutdown::Shutdown;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::data_dir::Place;
use super::{Failure, Flags, settings};
use crate::simulation;

/// Where a part listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
}

/// A part that runs until it is told to stop.
struct Part {
    name: &'static str,
    shutdown: Shutdown,
    running: JoinHandle<Result<(), Failure>>,
}

/// This machine's own agent.
#[derive(Clone, Debug)]
pub(crate) struct OwnAgent {
    pub(crate) addresses: Addresses,
    /// What the machine is called on the roll.
    pub(crate) node: String,
}

/// A Muster in this process.
pub(crate) struct Parts {
    pub(crate) store: Addresses,
    pub(crate) controller: Addresses,
    pub(crate) agent: Option<OwnAgent>,
    /// Where simulated machines are switched, and how many of them the store has heard.
    pub(crate) simulation: Option<(SocketAddr, watch::Receiver<usize>)>,
    running: Crew,
}

/// What runs, in the order it was started.
#[derive(Default)]
struct Crew {
    parts: Vec<Part>,
    /// Triggered when any of them has ended.
    ended: Shutdown,
}

impl Crew {
    fn add(
        &mut self,
        name: &'static str,
        shutdown: Shutdown,
        lives: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) {
        let ended = self.ended.clone();
        let running = tokio::spawn(async move {
            let outcome = lives.await;
            ended.trigger();
            outcome
        });
        self.parts.push(Part { name, shutdown, running });
    }

    /// Stops the parts, the last first, and tells of each that has.
    async fn stop(mut self, mut told: impl FnMut(&str)) -> Result<(), Failure> {
        let mut outcome = Ok(());
        while let Some(part) = self.parts.pop() {
            part.shutdown.trigger();
            let ended = part.running.await.unwrap_or_else(|error| Err(std::io::Error::other(error).into()));
            told(part.name);
            // The first failure is nearest to the cause.
            outcome = outcome.and(ended);
        }
        outcome
    }
}

impl Parts {
    /// Starts everything; what was started already is stopped if a later part cannot be.
    pub(crate) async fn start(flags: &Flags, place: &Place) -> Result<Parts, Failure> {
        let mut running = Crew::default();
        match start(flags, place, &mut running).await {
            Ok((store, controller, agent, simulation)) => {
                Ok(Parts { store, controller, agent, simulation, running })
            }
            Err(failure) => {
                // Whatever else goes wrong now follows from it.
                let _ = running.stop(|_| {}).await;
                Err(failure)
            }
        }
    }

    /// Completes when a part has ended that nobody asked to.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.running.ended.requested()
    }

    /// Stops the parts, the last first, and tells of each that has.
    pub(crate) async fn stop(self, told: impl FnMut(&str)) -> Result<(), Failure> {
        self.running.stop(told).await
    }
}

type Started = (Addresses, Addresses, Option<OwnAgent>, Option<(SocketAddr, watch::Receiver<usize>)>);

async fn start(flags: &Flags, place: &Place, running: &mut Crew) -> Result<Started, Failure> {
    let shutdown = Shutdown::new();
    let store = muster_store::run::start(settings::store(flags, place)?, shutdown.clone()).await?;
    let store_at = Addresses { grpc: store.address, http: store.http_address };
    let ends = async { store.stopped().await.map_err(Failure::from) };
    running.add("store", shutdown, ends);
    let url = settings::url(flags, store_at.grpc);

    let shutdown = Shutdown::new();
    let config = settings::controller(flags, &url)?;
    let controller = muster_controller::run::start(config, shutdown.clone()).await?;
    let controller_at = Addresses { grpc: controller.address, http: controller.http_address };
    let ends = async { controller.stopped().await.map_err(Failure::from) };
    running.add("controller", shutdown, ends);

    let mut simulation_at = None;
    if flags.nodes > 0 {
        let shutdown = Shutdown::new();
        let simulation = simulation::start(settings::simulation(flags, &url)?, shutdown.clone()).await?;
        simulation_at = Some((simulation.address, simulation.heard.clone()));
        let ends = async {
            simulation.stopped().await;
            Ok(())
        };
        running.add("simulated agents", shutdown, ends);
    }

    let mut own_agent = None;
    if !flags.no_agent {
        let shutdown = Shutdown::new();
        let config = settings::agent(flags, place, &url)?;
        let agent = muster_agent::run::start(config, Platform::real(), shutdown.clone()).await?;
        let node = agent.node.to_string();
        let addresses = Addresses { grpc: agent.address, http: agent.http_address };
        own_agent = Some(OwnAgent { addresses, node });
        let ends = async { agent.stopped().await.map_err(Failure::from) };
        running.add("agent", shutdown, ends);
    }
    Ok((store_at, controller_at, own_agent, simulation_at))
}
