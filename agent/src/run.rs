//! Starts the agent, serves, and stops it. Containers keep running after the agent has stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::TryFutureExt;
use futures_util::future::{try_join, try_join_all};
use muster_agent_core::pressure::FlagError;
use muster_agent_core::resources::topology::TooManyNodes;
use muster_agent_core::status::capacity::Overreserved;
use muster_proto::name::Name;
use muster_rpc::clock::SystemClock;
use muster_rpc::server::{BindError, ServeError, Stopped, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::{self, TelemetryError};
use muster_rpc::tls::TlsFlags;
use muster_store_client::EndpointError;
use tokio::task::JoinHandle;

use crate::config::{Config, ConfigError, Flags};
use crate::identity::{Identity, IdentityError, StateDir};
use crate::joining::{self, JoinError};
use crate::machine::{LinuxMachine, Machine};
use crate::node_loop::fresh_uid;
use crate::runtime::{Runtime, RuntimeError};
use crate::shutdown::MachineShutdown;

mod checks;
mod parts;

use parts::Parts;

/// How long blocking threads are waited for when the process ends.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// What swap means for data that is not to reach a disk.
const SWAP_AND_SECRETS: &str = "This machine has swap: what pods keep in memory only, such as secrets in an emptyDir of medium \
                                Memory (tmpfs), can be written to the disk. Encrypt the swap, or turn it off";

/// Why the agent could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Threshold(#[from] FlagError),
    #[error(transparent)]
    Topology(#[from] TooManyNodes),
    #[error(transparent)]
    Reservation(#[from] Overreserved),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error("--store: {0}")]
    Store(#[from] EndpointError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("{0}")]
    Process(#[from] std::io::Error),
}

/// An agent that serves.
pub struct Running {
    /// The node's name.
    pub node: Name,
    pub address: SocketAddr,
    pub http_address: SocketAddr,
    serving: JoinHandle<Result<Stopped, ServeError>>,
    loops: Vec<JoinHandle<()>>,
}

/// The machine, and the program for its containers' shims.
pub struct Platform {
    pub machine: Arc<dyn Machine>,
    /// The program that becomes the shim of each container.
    pub shim: PathBuf,
}

impl Platform {
    /// This machine, and this program as its own shim.
    pub fn real() -> Platform {
        // Not the program's path: by now it may lead to another version, or to no file.
        Platform { machine: Arc::new(LinuxMachine::new()), shim: PathBuf::from("/proc/self/exe") }
    }
}

/// Checks the machine against the settings and starts the agent.
pub async fn start(config: Config, platform: Platform, shutdown: Shutdown) -> Result<Running, RunError> {
    let Platform { machine, shim } = platform;
    let thresholds = checks::thresholds(&config)?;
    let hardware = checks::hardware(&config, &*machine)?;
    let state = StateDir::open(&config.state_dir)?;
    let identity = identify(&config, &state, &machine.hostname()?)?;
    let grpc = bind("--listen", config.listen).await?;
    let http = bind("--http-listen", config.http_listen).await?;
    let (node, address, http_address) = (identity.name.clone(), grpc.address(), http.address());
    tracing::info!(%node, grpc = %address, http = %http_address, "muster-agent is starting");
    for warning in config.security.warning().into_iter().chain(config.warnings.iter().map(String::as_str)) {
        tracing::warn!("{warning}");
    }
    if hardware.swap_bytes > 0 {
        tracing::warn!("{SWAP_AND_SECRETS}");
    }
    let reserve = checks::eviction_reserve(&thresholds);
    checks::reservations(&config, &*machine, &hardware, &reserve)?;
    let runtime = parts::open_runtime(&config, shim, SystemClock::shared())?;
    let cpu_assignments = parts::cpu_assignments(&config, &*machine, &*runtime)?;
    let limitations = runtime.limitations();
    for limitation in &limitations {
        tracing::warn!("{limitation}");
    }
    let parts = Parts {
        settings: parts::settings(&config, node.clone(), reserve, address),
        client: parts::connect(&config)?,
        shared: Arc::default(),
        machine_shutdown: MachineShutdown::new(shutdown, &config.shutdown),
        clock: SystemClock::shared(),
        state: Arc::new(state),
        config,
        identity,
        machine,
        hardware,
        runtime,
        cpu_assignments: Arc::new(Mutex::new(cpu_assignments)),
        limitations,
    };
    let serving = parts.serve(grpc, http);
    let loops = parts.start_loops(thresholds);
    tracing::info!("muster-agent is ready");
    Ok(Running { node, address, http_address, serving, loops })
}

impl Running {
    /// Returns when the agent has stopped.
    pub async fn stopped(self) -> Result<(), RunError> {
        // A loop that panics ends the others too: a node that renews its lease and runs no pods, or the other way round,
        // is worse than one whose agent is restarted.
        let serving = async { Ok::<_, RunError>(self.serving.await.map_err(std::io::Error::other)??) };
        let loops = try_join_all(self.loops).map_err(|error| RunError::Process(std::io::Error::other(error)));
        try_join(serving, loops).await?;
        tracing::info!("muster-agent has stopped; containers keep running");
        Ok(())
    }
}

/// Runs an agent until a shutdown is requested.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), RunError> {
    start(config, Platform::real(), shutdown).await?.stopped().await
}

/// Joins the fleet if the agent needs a certificate, then runs it.
async fn join_and_run(flags: &Flags, shutdown: Shutdown) -> Result<(), RunError> {
    if !joining::is_joined(flags) {
        return run(Config::try_from(flags)?, shutdown).await;
    }
    // All other flags are checked before a token is spent.
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let others = Flags { listen, tls: TlsFlags::default(), credentials: None, ..flags.clone() };
    let config = Config::try_from(&others)?;
    let node = identify(&config, &StateDir::open(&config.state_dir)?, &LinuxMachine::new().hostname()?)?.name;
    let Some(flags) = joining::prepare(flags, &config, &node, &shutdown).await? else { return Ok(()) };
    run(Config { has_joined: true, ..Config::try_from(&flags)? }, shutdown).await
}

/// The `muster-agent` process, from its flags to its end.
pub fn main(flags: &Flags) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ran = runtime.block_on(async {
        let telemetry = telemetry::init("muster-agent", &flags.telemetry)?;
        let ran = join_and_run(flags, Shutdown::on_signals()?).await;
        telemetry.shutdown().await;
        ran
    });
    // A stop hook or a resolver may block a thread for long, and its result is not needed any more.
    runtime.shutdown_timeout(LAST_WAIT);
    ran
}

/// The agent's identity on a machine with that hostname.
fn identify(config: &Config, state: &StateDir, hostname: &str) -> Result<Identity, RunError> {
    let kept = state.load()?.map(|identity| identity.name);
    let name = config.node_name(kept.as_ref(), hostname)?;
    let hostname = hostname.trim();
    if config.node.name.is_none() && !hostname.eq_ignore_ascii_case(name.as_str()) {
        tracing::info!(
            node = %name, hostname, "the node keeps the name it has in --state-dir"
        );
    }
    Ok(state.identify(&name, fresh_uid())?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// The identity of an agent with these flags and that directory, on a machine with that hostname.
    fn identified(directory: &std::path::Path, flags: &[&str], hostname: &str) -> Result<Identity, RunError> {
        let flags = Flags::try_parse_from([&["muster-agent", "--store=http://s:1"], flags].concat()).unwrap();
        identify(&Config::try_from(&flags).unwrap(), &StateDir::open(directory)?, hostname)
    }

    #[test]
    fn an_agent_in_a_new_container_with_its_old_directory_keeps_its_identity() {
        let root = tempfile::tempdir().unwrap();
        let before = identified(root.path(), &[], "3f2a9c\n").unwrap();
        assert_eq!(before.name, "3f2a9c");
        assert_eq!(identified(root.path(), &["--keep-node-name"], "77d01e\n").unwrap(), before);
        let refused = identified(root.path(), &[], "77d01e\n").unwrap_err();
        assert!(refused.to_string().contains("belongs to node 3f2a9c, not 77d01e"), "{refused}");
        let refused = identified(root.path(), &["--node-name=77d01e"], "77d01e\n").unwrap_err();
        assert!(refused.to_string().contains("belongs to node 3f2a9c, not 77d01e"), "{refused}");
        let refused = identified(root.path(), &["--hostname-override=n2"], "3f2a9c\n").unwrap_err();
        assert!(refused.to_string().contains("belongs to node 3f2a9c, not n2"), "{refused}");
    }

    #[tokio::test]
    async fn a_loop_that_panics_stops_the_agent() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let loops = vec![
            tokio::spawn(std::future::pending()),
            tokio::spawn(async { panic!("its state would be wrong from now on") }),
        ];
        let serving = tokio::spawn(std::future::pending());
        let node = "n1".parse().unwrap();
        let running = Running { node, address, http_address: address, serving, loops };
        let stopped = tokio::time::timeout(Duration::from_secs(60), running.stopped()).await;
        let error = stopped.expect("it stops").expect_err("with an error");
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
