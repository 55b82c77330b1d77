//! Starts the agent, serves, and stops it. What it runs goes on running.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::TryFutureExt;
use futures_util::future::{try_join, try_join_all};
use muster_agent_core::pressure::eviction_ranking::Evictor;
use muster_agent_core::pressure::{Amount, FlagError, Signal, Threshold};
use muster_agent_core::resources::swap::SwapPolicy;
use muster_agent_core::resources::topology::cpu_assignments::CpuAssignments;
use muster_agent_core::resources::topology::cpus::Layout;
use muster_agent_core::resources::topology::{Policy, TooManyNodes};
use muster_agent_core::status::capacity::{self, EvictionReserve, Overreserved, Share};
use muster_agent_core::status::{Observed, Settings};
use muster_agent_core::{pressure, renewal_schedule};
use muster_proto::name::Name;
use muster_proto::quantity::{Quantity, Resources};
use muster_rpc::clock::SystemClock;
use muster_rpc::http::{Readiness, serve_http};
use muster_rpc::server::{BindError, Health, ServeError, Server, Stopped, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::{self, TelemetryError};
use muster_store_client::{EndpointError, StoreClient, StoreEndpoints};
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::service::Routes;

use crate::config;
use crate::config::{Config, ConfigError, Flags};
use crate::identity::{Identity, IdentityError, StateDir};
use crate::machine::{LinuxMachine, Machine};
use crate::machine_probe::MachineProbe;
use crate::node_loop::{HelloState, NodeLoop, fresh_uid};
use crate::pod_loop::PodLoop;
use crate::pod_loop::executor::{Executor, share};
use crate::pressure_monitor::PressureMonitor;
use crate::runtime::process::{ProcessConfig, ProcessRuntime};
use crate::runtime::{Runtime, RuntimeError};
use crate::runtime_probe::RuntimeProbe;
use crate::service::{NAMES, Service};
use crate::shared_state::SharedState;
use crate::shutdown::MachineShutdown;

/// How long threads that wait for something are waited for at the end.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Why the agent could not start or had to end.
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
    /// What the machine is called on the roll.
    pub node: Name,
    pub address: SocketAddr,
    pub http_address: SocketAddr,
    serving: JoinHandle<Result<Stopped, ServeError>>,
    loops: Vec<JoinHandle<()>>,
}

/// What an agent stands on.
pub struct Platform {
    pub machine: Arc<dyn Machine>,
    /// The program that becomes the shim of each container.
    pub shim: PathBuf,
}

impl Platform {
    /// This machine, and this program as its own shim.
    pub fn real() -> Platform {
        // Not the program's path: that may lead to another version by now, or to nothing.
        Platform { machine: Arc::new(LinuxMachine::new()), shim: PathBuf::from("/proc/self/exe") }
    }
}

/// Checks the machine against the settings and starts everything.
pub async fn start(config: Config, platform: Platform, shutdown: Shutdown) -> Result<Running, RunError> {
    let clock = SystemClock::shared();
    let machine = platform.machine;
    let thresholds = thresholds(&config)?;
    let reserve = reserve(&thresholds);
    let hardware = machine.hardware()?;
    config.swap.check(hardware.swap_bytes)?;
    config.topology.policy.check_start(usize::try_from(hardware.numa_nodes).unwrap_or(usize::MAX))?;
    let state = Arc::new(StateDir::open(&config.state_dir)?);
    let identity = identify(&config, &state, &machine.hostname()?)?;
    let name = identity.name.clone();
    let listener = bind("--listen", config.listen).await?;
    let http = bind("--http-listen", config.http_listen).await?;
    let (node, address, http_address) = (name.clone(), listener.address(), http.address());
    tracing::info!(node = %name, grpc = %address, http = %http_address, "muster-agent is starting");
    for warning in config.security.warning().into_iter().chain(config.warnings.iter().map(String::as_str)) {
        tracing::warn!("{warning}");
    }
    let settings = settings(&config, name.clone(), reserve, address.port());
    let observed = Observed { hardware: Some(hardware.clone()), ..Default::default() };
    let storage = machine.filesystem(&config.state_dir)?;
    let observed = Observed { storage_bytes: Some(storage.capacity_bytes), ..observed };
    let has = capacity::capacity(&Default::default(), &config.capacity, &observed);
    let max_pids = machine.pids().ok().map(|pids| pids.max);
    capacity::check_reservations(&has, max_pids, &config.capacity, &reserve)?;

    let runtime_config = ProcessConfig::new(config.state_dir.join("runtime"), platform.shim);
    let runtime = Arc::new(ProcessRuntime::open(runtime_config, Arc::clone(&clock))?);
    let cpu_assignments = cpu_assignments(&config, &*machine, &*runtime)?;
    share(&*runtime, &cpu_assignments);
    let limitations = runtime.limitations();
    for limitation in &limitations {
        tracing::warn!("{limitation}");
    }
    let endpoints = StoreEndpoints::new(config.stores.iter().cloned())
        .with_tls(config.client_tls.clone())
        .with_keepalive(renewal_schedule::keepalive(config.lease_duration));
    let client = StoreClient::connect(endpoints)?;
    let shared = Arc::new(SharedState::default());
    let mut registry = Registry::default();
    shared.metrics.register(&mut registry);
    let (hook_ended, hooks) = mpsc::unbounded_channel();
    let swap = SwapPolicy {
        behavior: config.swap.behavior,
        is_controlled: runtime.controls_swap(),
        memory_total: hardware.memory_bytes,
        swap_total: hardware.swap_bytes,
    };
    let cpu_assignments = Arc::new(Mutex::new(cpu_assignments));
    let pod_max_pids = config.pod_max_pids;
    let executor =
        Executor { runtime: Arc::clone(&runtime), swap, pod_max_pids, cpu_assignments, hooks: hook_ended };
    let machine_shutdown = MachineShutdown::new(shutdown, &config.shutdown);
    let over = machine_shutdown.stop_signal();
    let pressure_monitor = PressureMonitor {
        machine: Arc::clone(&machine),
        runtime: Arc::clone(&runtime) as Arc<dyn Runtime>,
        reserved_memory: reserved_memory(&config.capacity),
        storage: config.state_dir.clone(),
        thresholds,
        transition: config.eviction.pressure_transition_period,
        shared: Arc::clone(&shared),
        clock: Arc::clone(&clock),
        shutdown: over.clone(),
    };
    let pod_loop = PodLoop {
        client: client.clone(),
        name,
        executor: Arc::new(executor),
        hooks,
        evictor: Evictor::new(config.eviction.max_pod_grace_period),
        shared: Arc::clone(&shared),
        clock: Arc::clone(&clock),
        machine_shutdown: machine_shutdown.clone(),
    };
    let service = Service {
        shared: Arc::clone(&shared),
        identity: identity.clone(),
        limitations: limitations.clone(),
        machine_shutdown: machine_shutdown.clone(),
        clock: Arc::clone(&clock),
    };
    let security = config.security.clone();
    let server = Server::new(config.server.clone(), security, over.clone()).metered(&mut registry);
    let system = machine.system();
    let machine_probe =
        MachineProbe::new(machine, settings.clone(), system.clone(), config.state_dir.clone());
    let node_loop = NodeLoop {
        client,
        config,
        settings,
        system,
        machine_probe,
        runtime_probe: RuntimeProbe::new(runtime, Arc::clone(&clock)),
        runtime_version: concat!("process://", env!("CARGO_PKG_VERSION")).to_owned(),
        limitations,
        state,
        identity,
        shared,
        clock: Arc::clone(&clock),
        machine_shutdown: machine_shutdown.clone(),
        hello_state: HelloState::default(),
    };
    let routes = Routes::new(muster_grpc::agent_service_server::AgentServiceServer::new(service)).prepare();
    let health = Health::serving(NAMES).await;
    let serving = tokio::spawn(server.serve(listener, routes, muster_proto::DESCRIPTORS, health));
    tokio::spawn(serve_http(http, Arc::new(registry), Readiness::new(), over));
    let loops = vec![
        tokio::spawn(pressure_monitor.run()),
        tokio::spawn(pod_loop.run()),
        tokio::spawn(node_loop.run()),
        tokio::spawn(machine_shutdown.run(clock)),
    ];
    tracing::info!("muster-agent is ready");
    Ok(Running { node, address, http_address, serving, loops })
}

impl Running {
    /// Returns when the agent has stopped.
    pub async fn stopped(self) -> Result<(), RunError> {
        // A loop that dies takes the rest along: a node that beats and runs nothing, or the other way round, is worse than
        // one whose agent is started again.
        let serving = async { Ok::<_, RunError>(self.serving.await.map_err(std::io::Error::other)??) };
        let loops = try_join_all(self.loops).map_err(|error| RunError::Process(std::io::Error::other(error)));
        try_join(serving, loops).await?;
        tracing::info!("muster-agent has stopped; what still runs here runs on");
        Ok(())
    }
}

/// Runs an agent until the shutdown is asked for.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), RunError> {
    start(config, Platform::real(), shutdown).await?.stopped().await
}

/// The whole life of the `muster-agent` process.
pub fn main(flags: &Flags) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ran = runtime.block_on(async {
        let telemetry = telemetry::init("muster-agent", &flags.telemetry)?;
        let ran = run(Config::try_from(flags)?, Shutdown::on_signals()?).await;
        telemetry.shutdown().await;
        ran
    });
    // A stop hook or a resolver may keep a thread for long, and nobody is there any more to hear of it.
    runtime.shutdown_timeout(LAST_WAIT);
    ran
}

/// Who the agent is, on a machine of that hostname.
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

/// The settings of a node of that name whose agent listens at that port.
fn settings(config: &Config, name: Name, eviction_reserve: EvictionReserve, agent_port: u16) -> Settings {
    Settings {
        name,
        node: config.node.clone(),
        capacity: config.capacity.clone(),
        eviction_reserve,
        agent_port,
        max_images: config.status.max_images,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        storage_isolation: true,
    }
}

fn thresholds(config: &Config) -> Result<Vec<Threshold>, FlagError> {
    let eviction = &config.eviction;
    let joined = |parts: &[String]| parts.join(",");
    let (hard, soft) = (joined(&eviction.hard), joined(&eviction.soft));
    let (soft_grace, min_reclaim) = (joined(&eviction.soft_grace_period), joined(&eviction.minimum_reclaim));
    pressure::thresholds(&pressure::Flags {
        // The flag has the default; nothing at all is meant.
        hard: Some(hard.as_str()),
        soft: &soft,
        soft_grace: &soft_grace,
        min_reclaim: &min_reclaim,
    })
}

/// Who has which processors: those that the runtime's records give to containers that are still there.
fn cpu_assignments(
    config: &Config,
    machine: &dyn Machine,
    runtime: &dyn Runtime,
) -> Result<CpuAssignments, RunError> {
    let config::TopologyConfig { policy, scope } = config.topology;
    // Nobody needs the layout without a policy, and its absence must not keep the agent from starting.
    let layout = if policy == Policy::None { Layout::default() } else { machine.processors()? };
    let mut cpu_assignments = CpuAssignments::new(layout, policy, scope);
    for workload in runtime.list().into_iter().filter(|workload| !workload.cpus.is_empty()) {
        cpu_assignments.restore(workload.id.pod, &workload.id.container, workload.cpus);
    }
    Ok(cpu_assignments)
}

/// Memory that is kept for what is no pod, in bytes.
fn reserved_memory(capacity: &config::CapacityConfig) -> u64 {
    let of = |held: &Resources| held.get(capacity::MEMORY).map_or(0, Quantity::value);
    let held = of(&capacity.system_reserved).saturating_add(of(&capacity.kube_reserved));
    u64::try_from(held).unwrap_or(0)
}

/// What the hard thresholds keep back from pods.
fn reserve(thresholds: &[Threshold]) -> EvictionReserve {
    let share = |signal: Signal| {
        let hard =
            thresholds.iter().find(|threshold| threshold.signal == signal && threshold.grace.is_none())?;
        Some(match hard.value {
            Amount::Quantity(amount) => Share::Amount(amount),
            Amount::Percent(percent) => Share::Fraction(percent / 100.0),
        })
    };
    EvictionReserve { memory: share(Signal::MemoryAvailable), storage: share(Signal::NodefsAvailable) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Who an agent with these flags is in the directory, on a machine of that hostname.
    fn identified(directory: &std::path::Path, flags: &[&str], hostname: &str) -> Result<Identity, RunError> {
        let flags = Flags::try_parse_from([&["muster-agent", "--store=http://s:1"], flags].concat()).unwrap();
        identify(&Config::try_from(&flags).unwrap(), &StateDir::open(directory)?, hostname)
    }

    #[test]
    fn an_agent_in_a_new_container_with_its_old_directory_is_the_node_it_was() {
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
    async fn a_loop_that_dies_ends_the_agent() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let loops = vec![
            tokio::spawn(std::future::pending()),
            tokio::spawn(async { panic!("what is known would be wrong for ever") }),
        ];
        let serving = tokio::spawn(std::future::pending());
        let node = "n1".parse().unwrap();
        let running = Running { node, address, http_address: address, serving, loops };
        let ended = tokio::time::timeout(Duration::from_secs(60), running.stopped()).await;
        let error = ended.expect("it ends").expect_err("with an error");
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
