//! `muster demo`: a node, a zone and all zones die and come back, told as it happens.
//!
//! Everything that is said comes from the store's events and the controller's answers; what is claimed is waited for, and
//! the demonstration fails if it does not come true. The scenarios are in [`scenarios`], the waiting in [`session`], the words in
//! [`messages`].

mod messages;
mod scenarios;
mod session;
mod simulation_client;
mod workload;

use std::time::Duration;

use clap::Parser;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::TlsFlags;

use self::session::Scene;
use self::simulation_client::Switch;
use self::workload::Workload;
use crate::connection::{ConnectionFlags, NamespaceFlags};
use crate::failure::{Exit, Failure};
use crate::up;
use crate::up::components::Parts;
use crate::up::data_dir::Place;

/// How much faster than usual the demonstration's own fleet lives.
const SPEED: &str = "10";
const REPLICAS: usize = 6;

/// Shows what happens when a node dies, then a zone, then all zones, and says why
///
/// It runs a Muster of its own, ten times as fast as usual, with nine simulated nodes in three zones, unless it is told
/// of a running one by --simulation. Takes about a minute; a fleet that is not sped up takes ten times as long.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// The simulated nodes of a running `muster up`, such as http://127.0.0.1:7402; --store and --controller are its too
    #[arg(long, env = "MUSTER_SIMULATION", value_name = "URL")]
    simulation: Option<String>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The flags of the demonstration's own fleet.
#[derive(Debug, Parser)]
struct Own {
    #[command(flatten)]
    up: up::Flags,
}

pub(crate) fn main(flags: &Flags) -> Result<(), Failure> {
    let unable = |error: std::io::Error| {
        Failure::new(Exit::Failed, error).hint("`ulimit -a` shows what this user may have")
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(unable)?;
    runtime.block_on(async {
        let asked = Shutdown::on_signals().map_err(unable)?;
        match &flags.simulation {
            Some(url) => play(&flags.connection, Switch::at(url), &asked).await,
            None => play_on_own_fleet(&asked).await,
        }
    })
}

async fn play_on_own_fleet(asked: &Shutdown) -> Result<(), Failure> {
    let flags = own_flags()?;
    let place = Place::choose(true, None)?;
    let parts = Parts::start(&flags, &place).await?;
    let Some((simulation, _)) = &parts.simulation else {
        unreachable!("the demonstration's own fleet has simulated nodes");
    };
    let connection = ConnectionFlags {
        store: vec![format!("http://{}", parts.store.grpc)],
        controller: Some(format!("http://{}", parts.controller.grpc)),
        request_timeout: Duration::from_secs(10),
        ..ConnectionFlags::default()
    };
    let played = play(&connection, Switch::at(&simulation.to_string()), asked).await;
    let stopped = parts.stop(|_| {}).await.map_err(Failure::from);
    played.and(stopped)
}

fn own_flags() -> Result<up::Flags, Failure> {
    let free = "127.0.0.1:0";
    let arguments = ["muster", "--ephemeral", "--no-agent", "--speed", SPEED].into_iter();
    let ports = [
        "--listen",
        "--http-listen",
        "--controller-listen",
        "--controller-http-listen",
        "--simulation-listen",
    ];
    let ports = ports.into_iter().flat_map(|flag| [flag, free]);
    let own = Own::try_parse_from(arguments.chain(ports)).map_err(up::Failure::from)?;
    // It is on this machine's own addresses, whatever the fleets that are spoken to otherwise.
    Ok(up::Flags { tls: TlsFlags::default(), ..own.up })
}

async fn play(flags: &ConnectionFlags, switch: Switch, asked: &Shutdown) -> Result<(), Failure> {
    let connection = flags.settle()?;
    let workload = Workload {
        namespace: connection.namespaces(&NamespaceFlags::default()).of(muster_proto::record::Kind::Pod),
        replicas: REPLICAS,
        toleration_seconds: 1,
        made: 0,
    };
    let mut scene = Scene::new(connection.store()?, connection.controller()?, switch, workload);
    let outcome = tokio::select! {
        outcome = scenarios::play(&mut scene) => outcome,
        () = asked.requested() => Err(Failure::new(Exit::Failed, "the demonstration was interrupted")
            .hint("all nodes were revived, and its pods are being taken away")),
    };
    if outcome.is_err() {
        // Nobody should be left dead behind a story that was not told to its end. What already went wrong is told instead
        // of what may go wrong here.
        let _ = scene.switch.revive("all").await;
        let _ = scene.clear().await;
    }
    outcome
}
