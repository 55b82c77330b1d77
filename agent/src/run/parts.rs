//! The parts of an agent, built from one set of settings: its loops, its service and its server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use muster_agent_core::pod_security::PodSecurityPolicy;
use muster_agent_core::pressure::Threshold;
use muster_agent_core::pressure::eviction_ranking::Evictor;
use muster_agent_core::renewal_schedule;
use muster_agent_core::resources::swap::SwapPolicy;
use muster_agent_core::resources::topology::Policy;
use muster_agent_core::resources::topology::cpu_assignments::CpuAssignments;
use muster_agent_core::resources::topology::cpus::Layout;
use muster_agent_core::status::capacity::{self, EvictionReserve};
use muster_agent_core::status::{Observed, Settings};
use muster_grpc::agent_service_server::AgentServiceServer;
use muster_proto::name::Name;
use muster_proto::quantity::Resources;
use muster_rpc::clock::SharedClock;
use muster_rpc::http::serve_http;
use muster_rpc::process_metrics;
use muster_rpc::readiness::Readiness;
use muster_rpc::server::{Listener, ServeError, Server, Stopped};
use muster_rpc::tls::{self, Revocations, Security};
use muster_rpc::trace::Part;
use muster_store_client::{EndpointError, StoreClient, StoreEndpoints, follow_revocations};
use prometheus_client::registry::Registry;
use rustix::process::{getegid, geteuid};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::service::Routes;

use super::{RunError, checks};
use crate::config::{Config, PodSecurityConfig, TopologyConfig};
use crate::events::{self, EventRecorder};
use crate::identity::{Identity, StateDir};
use crate::joining::credential_set::CredentialDir;
use crate::joining::renewal::{CertificateRenewal, RenewalMetrics};
use crate::machine::{Hardware, Machine};
use crate::machine_probe::MachineProbe;
use crate::node_loop::{HelloState, NodeLoop};
use crate::pod_loop::PodLoop;
use crate::pod_loop::executor::{Executor, share};
use crate::pressure_monitor::PressureMonitor;
use crate::readiness;
use crate::runtime::process::{ProcessConfig, ProcessRuntime};
use crate::runtime::{Runtime, RuntimeError};
use crate::runtime_probe::RuntimeProbe;
use crate::service::{Containers, NAMES, Service};
use crate::shared_state::SharedState;
use crate::shutdown::MachineShutdown;
use crate::static_pods::{self, StaticPodReader};

/// What every part of the agent is built from.
pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) settings: Settings,
    pub(super) identity: Identity,
    pub(super) state: Arc<StateDir>,
    pub(super) machine: Arc<dyn Machine>,
    pub(super) hardware: Hardware,
    pub(super) runtime: Arc<ProcessRuntime>,
    pub(super) cpu_assignments: Arc<Mutex<CpuAssignments>>,
    pub(super) limitations: Vec<String>,
    pub(super) client: StoreClient,
    pub(super) shared: Arc<SharedState>,
    pub(super) machine_shutdown: MachineShutdown,
    pub(super) clock: SharedClock,
}

/// Opens the runtime and adopts the containers of an earlier agent.
pub(super) fn open_runtime(
    config: &Config,
    shim: PathBuf,
    clock: SharedClock,
) -> Result<Arc<ProcessRuntime>, RuntimeError> {
    let runtime = ProcessConfig::new(config.state_dir.join("runtime"), shim);
    let own_ids = security_policy(config).own_ids;
    let log_limits = config.log_limits;
    Ok(Arc::new(ProcessRuntime::open(ProcessConfig { own_ids, log_limits, ..runtime }, clock)?))
}

/// What pods may ask for. Only root can run them as users of their own.
fn security_policy(config: &Config) -> PodSecurityPolicy {
    let PodSecurityConfig { own_ids, allowed_ids, allow_privileged } = config.pod_security.clone();
    PodSecurityPolicy {
        own_ids: geteuid().is_root().then_some(own_ids),
        agent: (geteuid().as_raw(), getegid().as_raw()),
        allowed_ids,
        allow_privileged,
    }
}

pub(super) fn connect(config: &Config) -> Result<StoreClient, EndpointError> {
    let endpoints = StoreEndpoints::new(config.stores.iter().cloned())
        .with_tls(config.client_tls.clone())
        .with_keepalive(renewal_schedule::keepalive(config.lease_duration))
        .of(Part::AGENT);
    StoreClient::connect(endpoints)
}

/// The processors that containers of an earlier agent still have for themselves. All others are kept off them.
pub(super) fn cpu_assignments(
    config: &Config,
    machine: &dyn Machine,
    runtime: &dyn Runtime,
) -> Result<CpuAssignments, RunError> {
    let TopologyConfig { policy, scope } = config.topology;
    // Without a policy the layout is not needed, and a machine that does not show it must not stop the agent.
    let layout = if policy == Policy::None { Layout::default() } else { machine.processors()? };
    let mut assignments = CpuAssignments::new(layout, policy, scope);
    for workload in runtime.list().into_iter().filter(|workload| !workload.cpus.is_empty()) {
        assignments.restore(workload.id.pod, &workload.id.container, workload.cpus);
    }
    share(runtime, &assignments);
    Ok(assignments)
}

/// The settings of a node with that name whose agent listens at that address.
pub(super) fn settings(
    config: &Config,
    name: Name,
    eviction_reserve: EvictionReserve,
    agent: SocketAddr,
) -> Settings {
    Settings {
        name,
        node: config.node.clone(),
        capacity: config.capacity.clone(),
        eviction_reserve,
        agent_port: agent.port(),
        agent_address: Some(agent.ip()).filter(|address| !address.is_unspecified()),
        legacy_conditions: config.legacy_conditions,
        max_images: config.status.max_images,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        storage_isolation: true,
    }
}

impl Parts {
    /// Serves gRPC and HTTP until the agent stops.
    pub(super) fn serve(&self, grpc: Listener, http: Listener) -> JoinHandle<Result<Stopped, ServeError>> {
        let mut registry = Registry::default();
        process_metrics::register(&mut registry, "muster-agent");
        self.shared.metrics.register(&mut registry);
        let stop = self.machine_shutdown.stop_signal();
        let (server, security) = (self.config.server.clone(), self.config.security.clone());
        let client_tls = self.config.client_tls.as_ref();
        tls::follow(&security, client_tls, &mut registry, Arc::clone(&self.clock), &stop);
        let revocations = Revocations::default();
        if matches!(security, Security::MutualTls(_)) {
            tokio::spawn(follow_revocations(self.client.clone(), revocations.clone(), stop.clone()));
        }
        let server = Server::new(server, security, stop.clone())
            .of(Part::AGENT)
            .metered(&mut registry)
            .revocations(revocations);
        let routes = Routes::new(AgentServiceServer::new(self.service())).prepare();
        let readiness = self.readiness();
        if let Some(renewal) = self.certificate_renewal(&mut registry, &readiness) {
            tokio::spawn(renewal.run());
        }
        tokio::spawn(serve_http(http, Arc::new(registry), readiness.clone(), stop));
        tokio::spawn(server.serve(grpc, routes, muster_proto::DESCRIPTORS, readiness))
    }

    /// What renews the certificate of an agent that has joined.
    fn certificate_renewal(
        &self,
        registry: &mut Registry,
        readiness: &Readiness,
    ) -> Option<CertificateRenewal> {
        let Security::MutualTls(credentials) = &self.config.security else { return None };
        self.config.has_joined.then(|| CertificateRenewal {
            directory: CredentialDir::in_state_dir(&self.config.state_dir),
            credentials: credentials.clone(),
            node: self.identity.name.clone(),
            labels: self.config.node.labels.clone(),
            client: self.client.clone(),
            clock: Arc::clone(&self.clock),
            metrics: RenewalMetrics::register(registry),
            readiness: readiness.condition("certificate", "not checked yet", &[]),
            shutdown: self.machine_shutdown.stop_signal(),
        })
    }

    /// Starts the agent's loops.
    pub(super) fn start_loops(self, thresholds: Vec<Threshold>) -> Vec<JoinHandle<()>> {
        let (recorder, writer) = events::recorder(&self.client);
        let (static_pods, reader) = self.static_pods(recorder.clone());
        let pod_loop = self.pod_loop(recorder.clone(), static_pods);
        let pressure_monitor = self.pressure_monitor(thresholds);
        let (machine_shutdown, clock) = (self.machine_shutdown.clone(), Arc::clone(&self.clock));
        let reading = reader.map(|reader| tokio::spawn(reader.run(machine_shutdown.stop_signal())));
        let mut loops = vec![
            tokio::spawn(pressure_monitor.run()),
            tokio::spawn(pod_loop.run()),
            tokio::spawn(self.node_loop(recorder).run()),
            tokio::spawn(writer.run(machine_shutdown.stop_signal())),
            tokio::spawn(machine_shutdown.run(clock)),
        ];
        loops.extend(reading);
        loops
    }

    /// The static pods, and the task that reads them. Without a directory there are none.
    fn static_pods(
        &self,
        events: EventRecorder,
    ) -> (watch::Receiver<static_pods::Pods>, Option<StaticPodReader>) {
        let Some(path) = self.config.pod_manifest_path.clone() else {
            return (watch::channel(Some(Arc::default())).1, None);
        };
        let (pods, receiver) = watch::channel(None);
        let (node, shared) = (self.identity.name.clone(), Arc::clone(&self.shared));
        (receiver, Some(StaticPodReader { path, node, pods, shared, events }))
    }

    /// The agent's readiness, which follows the store's answers to its heartbeats.
    fn readiness(&self) -> Readiness {
        let readiness = Readiness::new(NAMES);
        let heartbeat = readiness.condition("heartbeat", "the node is not registered yet", &[]);
        let (shared, clock) = (Arc::clone(&self.shared), Arc::clone(&self.clock));
        let stop = self.machine_shutdown.stop_signal();
        tokio::spawn(readiness::follow(shared, self.config.lease_duration, clock, heartbeat, stop));
        readiness
    }

    fn service(&self) -> Service {
        Service {
            shared: Arc::clone(&self.shared),
            identity: self.identity.clone(),
            limitations: self.limitations.clone(),
            machine_shutdown: self.machine_shutdown.clone(),
            clock: Arc::clone(&self.clock),
            containers: Containers::new(
                Arc::clone(&self.runtime),
                matches!(self.config.security, Security::MutualTls(_)) || self.config.client_tls.is_none(),
                self.machine_shutdown.stop_signal(),
            ),
        }
    }

    fn pressure_monitor(&self, thresholds: Vec<Threshold>) -> PressureMonitor {
        PressureMonitor {
            machine: Arc::clone(&self.machine),
            runtime: Arc::clone(&self.runtime) as Arc<dyn Runtime>,
            reserved_memory: checks::reserved_memory(&self.config.capacity),
            storage: self.config.state_dir.clone(),
            thresholds,
            transition: self.config.eviction.pressure_transition_period,
            shared: Arc::clone(&self.shared),
            clock: Arc::clone(&self.clock),
            shutdown: self.machine_shutdown.stop_signal(),
        }
    }

    fn pod_loop(&self, events: EventRecorder, static_pods: watch::Receiver<static_pods::Pods>) -> PodLoop {
        let (hook_ended, hooks) = mpsc::unbounded_channel();
        let executor = Executor {
            runtime: Arc::clone(&self.runtime),
            swap: SwapPolicy {
                behavior: self.config.swap.behavior,
                is_controlled: self.runtime.controls_swap(),
                memory_total: self.hardware.memory_bytes,
                swap_total: self.hardware.swap_bytes,
            },
            pod_max_pids: self.config.pod_max_pids,
            cpu_assignments: Arc::clone(&self.cpu_assignments),
            hooks: hook_ended,
        };
        PodLoop {
            client: self.client.clone(),
            name: self.identity.name.clone(),
            executor: Arc::new(executor),
            hooks,
            evictor: Evictor::new(self.config.eviction.max_pod_grace_period),
            security: security_policy(&self.config),
            shared: Arc::clone(&self.shared),
            events,
            clock: Arc::clone(&self.clock),
            machine_shutdown: self.machine_shutdown.clone(),
            static_pods,
            local_allocatable: self.local_allocatable(),
            local_labels: self.config.node.labels.clone(),
        }
    }

    /// What pods may use of the machine, as it was at the start.
    fn local_allocatable(&self) -> Resources {
        let storage = self.machine.filesystem(&self.config.state_dir).ok();
        let observed = Observed {
            hardware: Some(self.hardware.clone()),
            storage_bytes: storage.map(|storage| storage.capacity_bytes),
            ..Observed::default()
        };
        let (config, reserve) = (&self.config.capacity, &self.settings.eviction_reserve);
        let has = capacity::capacity(&Resources::default(), config, &observed);
        capacity::allocatable(&has, config, reserve, &observed.devices)
    }

    fn node_loop(self, events: EventRecorder) -> NodeLoop {
        let system = self.machine.system();
        let storage = self.config.state_dir.clone();
        NodeLoop {
            client: self.client,
            machine_probe: MachineProbe::new(self.machine, self.settings.clone(), system.clone(), storage),
            runtime_probe: RuntimeProbe::new(self.runtime, Arc::clone(&self.clock)),
            runtime_version: concat!("process://", env!("CARGO_PKG_VERSION")).to_owned(),
            config: self.config,
            settings: self.settings,
            system,
            limitations: self.limitations,
            state: self.state,
            identity: self.identity,
            shared: self.shared,
            events,
            clock: self.clock,
            machine_shutdown: self.machine_shutdown,
            hello_state: HelloState::default(),
        }
    }
}
