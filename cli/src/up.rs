//! `muster up`: all of Muster in one process, with simulated nodes.
//!
//! Store, controller and agent are started by the same functions as in their own binaries ([`components`]). This file
//! chooses the data directory, prints the banner, and waits for the fleet and for a signal.

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
use std::time::Duration;

use muster_proto::key::Key;
use muster_rpc::audit::AuditFlags;
use muster_rpc::private_dir;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::{self, TelemetryFlags};
use muster_rpc::tls::TlsFlags;
use muster_rpc::trace::Part;
use tokio::task::JoinHandle;

use self::banner::Banner;
use self::command_line::CommandLine;
use self::components::Components;
use self::data_dir::DataDir;
pub(crate) use self::error::UpError;
use self::readiness::{FleetReadiness, Progress};
use self::speed_factor::SpeedFactor;
use crate::connection::{self, ConnectionFlags};
use crate::ui::{Page, PageAddress, PageFlags};

const UI_LISTEN: &str = "--ui-listen";
/// The port of the page, if it is free.
const UI_PORT: u16 = 7403;
/// How long store and controller may take to answer the page.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs Muster in this process: store, controller, this machine's agent and simulated agents
///
/// More settings are read from the MUSTER_ environment variables of muster-store, muster-controller and muster-agent;
/// their --help lists them. With TLS, --tls-cert must be an administrator's certificate (organisation muster:admins),
/// because all components use it.
#[derive(Debug, Clone, clap::Args)]
// Log only what needs attention, because the output is for a person. What this machine's agent cannot do is also in
// its node's Ready condition.
#[command(mut_arg("log_level", |arg| arg.default_value("warn,muster_agent::run=error")))]
pub(crate) struct Flags {
    /// Data directory [default: MUSTER_UP_DATA_DIR, or muster in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Use a temporary data directory and remove it on exit
    #[arg(long, conflicts_with = "data_dir")]
    pub(crate) ephemeral: bool,

    /// Number of simulated nodes
    #[arg(long, value_name = "COUNT", default_value_t = 9, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub(crate) nodes: u32,

    /// Number of zones that the simulated nodes are spread over
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) zones: u32,

    /// Run faster by this factor: durations are divided by it, rates are multiplied
    #[arg(long, value_name = "FACTOR", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub(crate) speed: u32,

    /// Do not run an agent for this machine
    #[arg(long)]
    pub(crate) no_agent: bool,

    /// gRPC address of the store; port 0 picks a free port, also in the flags below
    #[arg(long, env = "MUSTER_LISTEN", default_value = connection::STORE, value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,

    /// HTTP address of the store for metrics and health
    #[arg(long, env = "MUSTER_HTTP_LISTEN", default_value = "127.0.0.1:7401", value_name = "ADDRESS")]
    pub(crate) http_listen: SocketAddr,

    /// Address of the Kubernetes API, for kubectl
    #[arg(long, env = "MUSTER_KUBERNETES_LISTEN", default_value = connection::KUBERNETES, value_name = "ADDRESS")]
    pub(crate) kubernetes_listen: SocketAddr,

    /// gRPC address of the controller
    #[arg(long, default_value = connection::CONTROLLER, value_name = "ADDRESS")]
    pub(crate) controller_listen: SocketAddr,

    /// HTTP address of the controller for metrics and health
    #[arg(long, default_value = "127.0.0.1:7501", value_name = "ADDRESS")]
    pub(crate) controller_http_listen: SocketAddr,

    /// gRPC address of this machine's agent
    #[arg(long, default_value = "127.0.0.1:7600", value_name = "ADDRESS")]
    pub(crate) agent_listen: SocketAddr,

    /// HTTP address of this machine's agent for metrics and health
    #[arg(long, default_value = "127.0.0.1:7601", value_name = "ADDRESS")]
    pub(crate) agent_http_listen: SocketAddr,

    /// HTTP address for killing and reviving simulated nodes; must be a loopback address
    #[arg(long, default_value = "127.0.0.1:7402", value_name = "ADDRESS")]
    pub(crate) simulation_listen: SocketAddr,

    /// HTTP address of the page; must be a loopback address [default: 127.0.0.1:7403, or a free port if that is taken]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ui_listen: Option<SocketAddr>,

    #[command(flatten)]
    pub(crate) page: PageFlags,

    #[command(flatten)]
    pub(crate) audit: AuditFlags,

    #[command(flatten)]
    pub(crate) tls: TlsFlags,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryFlags,
}

impl Flags {
    fn speed(&self) -> SpeedFactor {
        SpeedFactor(self.speed)
    }
}

/// The parts whose spans are those of services of their own. What is left are the simulated agents.
const PARTS: [Part; 3] = [Part::STORE, Part::CONTROLLER, Part::AGENT];

/// Runs `muster up` from start to exit.
pub(crate) fn main(flags: &Flags) -> Result<(), UpError> {
    private_dir::restrict_umask();
    let data_dir = DataDir::choose(flags.ephemeral, flags.data_dir.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let telemetry = telemetry::init_with_parts("muster", &PARTS, &flags.telemetry)
            .map_err(muster_store::RunError::from)?;
        let ran = run(flags, &data_dir).await;
        telemetry.shutdown().await;
        ran
    })?;
    print(&format!("stopped; {}\n", data_dir.after_exit()));
    Ok(())
}

async fn run(flags: &Flags, data_dir: &DataDir) -> Result<(), UpError> {
    let signal = Shutdown::on_signals_of_terminal()?;
    // Before anything else is started: an address that is taken is no reason to start and stop a fleet.
    let page = bind_page(flags).await?;
    let components = Components::start(flags, data_dir).await?;
    print(&banner(&components, &page.address(), flags, data_dir)?.to_string());
    let page = serve_page(page, &components, flags);
    let mut progress_line = ProgressLine::new();
    let waited = tokio::select! {
        () = signal.requested() => None,
        () = components.ended() => None,
        waited = wait(&components, flags, |progress| progress_line.show(progress)) => Some(waited),
    };
    progress_line.finish();
    let outcome = match waited.transpose() {
        Ok(Some(report)) => {
            print(&format!("{report}ready\n"));
            tokio::select! {
                () = signal.requested() => {}
                () = components.ended() => {}
            }
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    page.stop().await;
    let stopped = components.stop(|name| {
        print(&format!("the {name} {} stopped\n", if name.ends_with('s') { "have" } else { "has" }));
    });
    // Failures while stopping are consequences of an earlier failure, so that one is returned.
    let stopped = stopped.await;
    outcome.and(stopped)
}

/// Waits until the fleet is ready; returns the lines to print about it.
async fn wait(
    components: &Components,
    flags: &Flags,
    on_progress: impl FnMut(Progress),
) -> Result<String, UpError> {
    let tls = flags.tls.client().map_err(|error| UpError::Process(std::io::Error::other(error)))?;
    let urls =
        [components.store.grpc, components.controller.grpc].map(|address| settings::url(flags, address));
    let simulated =
        components.simulation.as_ref().map(|(_, connected)| (flags.nodes as usize, connected.clone()));
    let local_node = components.agent.as_ref().and_then(|agent| agent.node.parse().ok()).map(Key::node);
    let mut readiness = FleetReadiness::new((&urls[0], &urls[1]), tls.as_ref(), simulated, local_node)?;
    let progress = readiness.wait(on_progress).await;
    let local_node = readiness.local_node().await;
    let problems = local_node.as_ref().map(readiness::unhealthy_conditions).unwrap_or_default();
    Ok(format!("{}\n{problems}", progress.line()))
}

async fn bind_page(flags: &Flags) -> Result<Page, UpError> {
    let bound = match flags.ui_listen {
        Some(address) => Page::bind(UI_LISTEN, address, &flags.page).await,
        None => Page::bind_near(UI_LISTEN, UI_PORT, &flags.page).await,
    };
    Ok(bound?)
}

/// The page while it is served.
struct ServedPage {
    shutdown: Shutdown,
    serving: JoinHandle<()>,
}

impl ServedPage {
    async fn stop(self) {
        self.shutdown.trigger();
        let _ = self.serving.await;
    }
}

/// Serves the page from the store and the controller of this process, as any other caller reads them.
fn serve_page(page: Page, components: &Components, flags: &Flags) -> ServedPage {
    let url = |address| vec![settings::url(flags, address)];
    let connection = connection::resolve_without_file(&ConnectionFlags {
        store: url(components.store.grpc),
        controller: url(components.controller.grpc),
        tls_ca: flags.tls.tls_client_ca.clone(),
        tls_cert: flags.tls.tls_cert.clone(),
        tls_key: flags.tls.tls_key.clone(),
        request_timeout: REQUEST_TIMEOUT,
        ..ConnectionFlags::default()
    });
    let shutdown = Shutdown::new();
    let serving = page.serve(connection, shutdown.clone());
    let serving = tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the page cannot be served any more");
        }
    });
    ServedPage { shutdown, serving }
}

fn banner<'a>(
    components: &'a Components,
    page: &'a PageAddress,
    flags: &'a Flags,
    data_dir: &'a DataDir,
) -> Result<Banner<'a>, UpError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directory = std::env::current_dir().ok();
    let search_path = std::env::split_paths(&path);
    let program = command_line::invocation(&std::env::current_exe()?, directory.as_deref(), search_path);
    let (store, controller) = (components.store, components.controller);
    Ok(Banner {
        store,
        kubernetes: components.kubernetes,
        controller,
        agent: components.agent.as_ref(),
        simulation: components.simulation.as_ref().map(|(address, _)| *address),
        page,
        data_dir,
        command_line: CommandLine {
            program,
            store: store.grpc,
            controller: controller.grpc,
            tls: &flags.tls,
        },
    })
}

/// Shows the progress in one line that is overwritten; shows nothing if the output is not a terminal.
struct ProgressLine {
    is_tty: bool,
    shown: Option<Progress>,
}

impl ProgressLine {
    fn new() -> ProgressLine {
        ProgressLine { is_tty: std::io::stdout().is_terminal(), shown: None }
    }

    fn show(&mut self, progress: Progress) {
        if self.is_tty && self.shown != Some(progress) {
            print(&format!("\r\x1b[K{}", progress.line()));
            self.shown = Some(progress);
        }
    }

    fn finish(&self) {
        if self.shown.is_some() {
            print("\r\x1b[K");
        }
    }
}

/// Prints to standard output. A closed output is ignored, because it must not stop Muster.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
