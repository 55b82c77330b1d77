//! `muster up`: Muster in this process, with a fleet to look at.
//!
//! Store, controller and agent are the code that their own binaries run, wired by the same functions ([`components`]); this
//! file only chooses the directory, says what is where, and waits. The rest of the fleet is simulated.

mod banner;
mod command_line;
pub(crate) mod components;
pub(crate) mod data_dir;
mod error;
mod readiness;
mod settings;
mod speed_factor;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use muster_proto::key::Key;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::{self, TelemetryFlags};
use muster_rpc::tls::TlsFlags;

use self::banner::Greeting;
use self::command_line::Muster;
use self::components::Parts;
use self::data_dir::Place;
pub(crate) use self::error::Failure;
use self::readiness::{Progress, Waiting};
use self::speed_factor::Speed;
use crate::connection;

/// Runs Muster in this process: store, controller, this machine's agent and simulated ones
///
/// Further settings of the parts are taken from the same MUSTER_ variables as by muster-store, muster-controller and
/// muster-agent, whose --help lists them. With certificates, --tls-cert must be an administrator's (of the organisation
/// muster:admins): all parts show it.
#[derive(Debug, Clone, clap::Args)]
// A person is watching: only what needs attention is worth a line. What this machine's agent cannot do is in its node's
// Ready condition too.
#[command(mut_arg("log_level", |arg| arg.default_value("warn,muster_agent::run=error")))]
pub(crate) struct Flags {
    /// Where Muster keeps its records [default: MUSTER_UP_DATA_DIR, or muster in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Keep everything in a temporary directory and remove it at the end
    #[arg(long, conflicts_with = "data_dir")]
    pub(crate) ephemeral: bool,

    /// Simulated nodes
    #[arg(long, value_name = "COUNT", default_value_t = 9, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub(crate) nodes: u32,

    /// Zones that the simulated nodes are spread over
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) zones: u32,

    /// How many times faster than usual: durations are divided by it, rates multiplied
    #[arg(long, value_name = "FACTOR", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub(crate) speed: u32,

    /// Do without an agent for this machine
    #[arg(long)]
    pub(crate) no_agent: bool,

    /// Where the store serves gRPC; port 0 picks a free one, here and below
    #[arg(long, env = "MUSTER_LISTEN", default_value = connection::STORE, value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,

    /// Where the store serves metrics and health
    #[arg(long, env = "MUSTER_HTTP_LISTEN", default_value = "127.0.0.1:7401", value_name = "ADDRESS")]
    pub(crate) http_listen: SocketAddr,

    /// Where the controller serves gRPC
    #[arg(long, default_value = connection::CONTROLLER, value_name = "ADDRESS")]
    pub(crate) controller_listen: SocketAddr,

    /// Where the controller serves metrics and health
    #[arg(long, default_value = "127.0.0.1:7501", value_name = "ADDRESS")]
    pub(crate) controller_http_listen: SocketAddr,

    /// Where this machine's agent serves gRPC
    #[arg(long, default_value = "127.0.0.1:7600", value_name = "ADDRESS")]
    pub(crate) agent_listen: SocketAddr,

    /// Where this machine's agent serves metrics and health
    #[arg(long, default_value = "127.0.0.1:7601", value_name = "ADDRESS")]
    pub(crate) agent_http_listen: SocketAddr,

    /// Where simulated nodes are killed and revived; an address of this machine's own
    #[arg(long, default_value = "127.0.0.1:7402", value_name = "ADDRESS")]
    pub(crate) simulation_listen: SocketAddr,

    #[command(flatten)]
    pub(crate) tls: TlsFlags,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryFlags,
}

impl Flags {
    fn speed(&self) -> Speed {
        Speed(self.speed)
    }
}

/// The whole life of `muster up`.
pub(crate) fn main(flags: &Flags) -> Result<(), Failure> {
    let place = Place::choose(flags.ephemeral, flags.data_dir.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let telemetry = telemetry::init("muster", &flags.telemetry).map_err(muster_store::RunError::from)?;
        let ran = run(flags, &place).await;
        telemetry.shutdown().await;
        ran
    })?;
    say(&format!("stopped; {}\n", place.farewell()));
    Ok(())
}

async fn run(flags: &Flags, place: &Place) -> Result<(), Failure> {
    let asked = Shutdown::on_signals()?;
    let parts = Parts::start(flags, place).await?;
    say(&greeting(&parts, flags, place)?.to_string());
    let mut screen = Screen::new();
    let waited = tokio::select! {
        () = asked.requested() => None,
        () = parts.ended() => None,
        waited = wait(&parts, flags, |progress| screen.show(progress)) => Some(waited),
    };
    screen.finish();
    let outcome = match waited.transpose() {
        Ok(Some(told)) => {
            say(&format!("{told}ready\n"));
            tokio::select! {
                () = asked.requested() => {}
                () = parts.ended() => {}
            }
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    let stopped = parts.stop(|part| {
        say(&format!("the {part} {} stopped\n", if part.ends_with('s') { "have" } else { "has" }));
    });
    // Whatever else goes wrong after a failure follows from it.
    let stopped = stopped.await;
    outcome.and(stopped)
}

/// Waits until the fleet is there; says what is to be said about it.
async fn wait(parts: &Parts, flags: &Flags, tell: impl FnMut(Progress)) -> Result<String, Failure> {
    let tls = flags.tls.client().map_err(|error| Failure::Process(std::io::Error::other(error)))?;
    let urls = [parts.store.grpc, parts.controller.grpc].map(|address| settings::url(flags, address));
    let simulated = parts.simulation.as_ref().map(|(_, heard)| (flags.nodes as usize, heard.clone()));
    let own = parts.agent.as_ref().and_then(|agent| agent.node.parse().ok()).map(Key::node);
    let mut waiting = Waiting::new((&urls[0], &urls[1]), tls.as_ref(), simulated, own)?;
    let progress = waiting.run(tell).await;
    let own = waiting.own_node().await;
    Ok(format!("{}\n{}", progress.line(), own.as_ref().map(readiness::troubles).unwrap_or_default()))
}

fn greeting<'a>(parts: &'a Parts, flags: &'a Flags, place: &'a Place) -> Result<Greeting<'a>, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = std::env::current_dir().ok();
    let program =
        command_line::called(&std::env::current_exe()?, here.as_deref(), std::env::split_paths(&path));
    let (store, controller) = (parts.store, parts.controller);
    Ok(Greeting {
        store,
        controller,
        agent: parts.agent.as_ref(),
        simulation: parts.simulation.as_ref().map(|(address, _)| *address),
        place,
        muster: Muster { program, store: store.grpc, controller: controller.grpc, tls: &flags.tls },
    })
}

/// Where progress is shown, in one line that is written over where there is a screen.
struct Screen {
    is_live: bool,
    shown: Option<Progress>,
}

impl Screen {
    fn new() -> Screen {
        Screen { is_live: std::io::stdout().is_terminal(), shown: None }
    }

    fn show(&mut self, progress: Progress) {
        if self.is_live && self.shown != Some(progress) {
            say(&format!("\r\x1b[K{}", progress.line()));
            self.shown = Some(progress);
        }
    }

    fn finish(&self) {
        if self.shown.is_some() {
            say("\r\x1b[K");
        }
    }
}

/// Speaks to the person who started us. If nobody listens any more, Muster runs on all the same.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
