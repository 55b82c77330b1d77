//! `muster demo`: kills and revives simulated nodes, and prints what Muster does.
//!
//! All output comes from the store's events and the controller's answers. The demo waits for every effect that it
//! announces, and fails if the effect does not happen. [`scenarios`] has the steps, [`session`] the waiting,
//! [`messages`] the texts.

mod messages;
mod scenarios;
mod session;
mod simulation_client;
mod workload;

use std::time::Duration;

use clap::Parser;
use muster_rpc::audit::AuditFlags;
use muster_rpc::private_dir;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::TlsFlags;

use self::session::Session;
use self::simulation_client::SimulationClient;
use self::workload::Workload;
use crate::connection::{ConnectionFlags, NamespaceFlags};
use crate::failure::{Exit, Failure};
use crate::up;
use crate::up::components::Components;
use crate::up::data_dir::DataDir;

/// How much faster than normal the demo's own fleet runs.
const SPEED: &str = "10";
const REPLICAS: usize = 6;

/// Shows and explains what Muster does when a node, a zone and then all zones fail
///
/// Starts a Muster of its own with nine simulated nodes in three zones, which runs ten times faster than normal, and
/// takes about a minute. --simulation uses a running `muster up` instead; without --speed 10 that takes ten times as
/// long.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Simulation address of a running `muster up`, such as http://127.0.0.1:7402; --store and --controller must belong
    /// to the same Muster
    #[arg(long, env = "MUSTER_SIMULATION", value_name = "URL")]
    simulation: Option<String>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The flags of the demo's own fleet.
#[derive(Debug, Parser)]
struct OwnFleet {
    #[command(flatten)]
    up: up::Flags,
}

pub(crate) fn main(flags: &Flags) -> Result<(), Failure> {
    private_dir::restrict_umask();
    let unable = |error: std::io::Error| {
        Failure::new(Exit::Failed, error).hint("`ulimit -a` shows the limits of this user")
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(unable)?;
    runtime.block_on(async {
        let signal = Shutdown::on_signals_of_terminal().map_err(unable)?;
        match &flags.simulation {
            Some(url) => run(&flags.connection, SimulationClient::new(url), &signal).await,
            None => run_on_own_fleet(&signal).await,
        }
    })
}

async fn run_on_own_fleet(signal: &Shutdown) -> Result<(), Failure> {
    let flags = own_flags()?;
    let data_dir = DataDir::choose(true, None)?;
    let components = Components::start(&flags, &data_dir).await?;
    let Some((simulation, _)) = &components.simulation else {
        unreachable!("the demo's own fleet has simulated nodes");
    };
    let connection = ConnectionFlags {
        store: vec![format!("http://{}", components.store.grpc)],
        controller: vec![format!("http://{}", components.controller.grpc)],
        request_timeout: Duration::from_secs(10),
        ..ConnectionFlags::default()
    };
    let outcome = run(&connection, SimulationClient::new(&simulation.to_string()), signal).await;
    let stopped = components.stop(|_| {}).await.map_err(Failure::from);
    outcome.and(stopped)
}

fn own_flags() -> Result<up::Flags, Failure> {
    let free = "127.0.0.1:0";
    let arguments = ["muster", "--ephemeral", "--no-agent", "--speed", SPEED].into_iter();
    let ports = [
        "--listen",
        "--http-listen",
        "--kubernetes-listen",
        "--controller-listen",
        "--controller-http-listen",
        "--simulation-listen",
    ];
    let ports = ports.into_iter().flat_map(|flag| [flag, free]);
    let own = OwnFleet::try_parse_from(arguments.chain(ports)).map_err(up::UpError::from)?;
    // The demo's own fleet listens on loopback addresses, so it needs no TLS, whatever the environment sets. What happens
    // to it does not belong into an audit log.
    Ok(up::Flags { tls: TlsFlags::default(), audit: AuditFlags::default(), ..own.up })
}

async fn run(
    flags: &ConnectionFlags,
    simulation: SimulationClient,
    signal: &Shutdown,
) -> Result<(), Failure> {
    let connection = flags.resolve()?;
    let workload = Workload {
        namespace: connection.namespaces(&NamespaceFlags::default()).of(muster_proto::record::Kind::Pod),
        replicas: REPLICAS,
        toleration_seconds: 1,
        created: 0,
    };
    let mut session = Session::new(connection.store()?, connection.controller().await?, simulation, workload);
    let outcome = tokio::select! {
        outcome = scenarios::run_all(&mut session) => outcome,
        () = signal.requested() => Err(Failure::new(Exit::Failed, "the demo was interrupted")
            .hint("all simulated nodes were revived, and the demo's pods are being deleted")),
    };
    if outcome.is_err() {
        // Clean up: no simulated node stays off. The earlier failure is reported, not failures of the cleanup.
        let _ = session.simulation.revive("all").await;
        let _ = session.delete_pods().await;
    }
    outcome
}
