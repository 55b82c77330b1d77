//! Starts the controller, serves, and stops it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_rpc::audit::{AuditError, AuditLog};
use muster_rpc::clock::SystemClock;
use muster_rpc::http::serve_http;
use muster_rpc::process_metrics;
use muster_rpc::readiness::Readiness;
use muster_rpc::server::{BindError, ServeError, Server, Stopped, UnixSocket, UnixSocketError, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::{self, TelemetryError};
use muster_rpc::tls::{self, Revocations, Security};
use muster_rpc::trace::Part;
use muster_store_client::{EndpointError, StoreClient, StoreEndpoints, follow_revocations};
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tonic::service::Routes;

use crate::cloud::client::{CloudClient, CloudEndpoint};
use crate::config::{Config, ConfigError, Flags};
use crate::event_loop::{EventLoop, Shared};
use crate::leader_election::{LeaderElection, SettingsError};
use crate::node_trace::NodeTraces;
use crate::readiness::Conditions;
use crate::service::{NAMES, Operations, Service};
use crate::signer::{Signer, SignerMetrics};
use crate::{cloud, metrics};
use muster_controller_core::reconciler::Reconciler;

/// Why the controller could not start or failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Leader(#[from] SettingsError),
    #[error("--cloud-provider: {0}")]
    Cloud(#[from] cloud::client::EndpointError),
    #[error("--store: {0}")]
    Store(#[from] EndpointError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Socket(#[from] UnixSocketError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("{0}")]
    Process(#[from] std::io::Error),
}

/// How often the connection to the store is probed, and how long a probe may stay unanswered. A dead connection must be
/// detected before the grace period of the nodes ends, since no heartbeat arrives over it.
fn keepalive(grace: Duration) -> (Duration, Duration) {
    ((grace / 4).min(Duration::from_secs(10)), (grace / 8).min(Duration::from_secs(5)))
}

/// The shortest deadline of a call to the cloud plug-in, which calls other services itself.
const CLOUD_DEADLINE: Duration = Duration::from_secs(5);

/// A running controller.
pub struct Running {
    pub address: SocketAddr,
    pub http_address: SocketAddr,
    /// The audit log, if there is one.
    pub audit: Option<AuditLog>,
    serving: JoinHandle<Result<Stopped, ServeError>>,
    event_loop: JoinHandle<()>,
    election: LeaderElection,
}

/// Starts all parts of the controller.
pub async fn start(config: Config, shutdown: Shutdown) -> Result<Running, RunError> {
    let listener = bind("--listen", config.listen).await?;
    let http = bind("--http-listen", config.http_listen).await?;
    let (address, http_address) = (listener.address(), http.address());
    tracing::info!(grpc = %address, http = %http_address, "muster-controller is starting");
    if let Some(warning) = config.security.warning() {
        tracing::warn!("{warning}");
    }
    let clock = SystemClock::shared();
    let endpoints = StoreEndpoints::new(config.stores.iter().cloned())
        .with_tls(config.client_tls.clone())
        .with_keepalive(keepalive(config.policy.grace))
        .of(Part::CONTROLLER);
    let client = StoreClient::connect(endpoints)?;
    for warning in config.policy.ipam.iter().flat_map(|settings| &settings.warnings) {
        tracing::warn!("{warning}");
    }
    let cloud = config.cloud_provider.as_ref().map(|url| {
        CloudClient::connect(&CloudEndpoint {
            url: url.clone(),
            tls: config.client_tls.clone(),
            deadline: config.policy.monitor_period.max(CLOUD_DEADLINE),
        })
    });
    let cloud = cloud.transpose()?;
    let settings = config.effective();
    let shared = Shared::new(Reconciler::new(config.policy), clock.clone());
    let election = LeaderElection::start(config.election, &client, &clock)?;

    let mut registry = Registry::default();
    process_metrics::register(&mut registry, "muster-controller");
    metrics::register(&mut registry, shared.clone());
    let signer = Signer {
        authority: config.signer,
        client: client.clone(),
        leadership: election.leadership.clone(),
        clock: clock.clone(),
        metrics: SignerMetrics::register(&mut registry),
        shutdown: shutdown.clone(),
    };
    tokio::spawn(signer.run());
    let audit = AuditLog::open(&config.audit, &clock, &mut registry)?;
    let operations = Operations { client: client.clone(), shared: shared.clone() };
    let service = Service {
        shared: shared.clone(),
        operations,
        identity: election.identity.clone(),
        leadership: election.leadership.clone(),
        settings,
        shutdown: shutdown.clone(),
    };
    let routes = Routes::new(muster_grpc::fleet_service_server::FleetServiceServer::new(service)).prepare();
    let readiness = Readiness::new(NAMES);
    let conditions = Conditions::declare(&readiness);
    tokio::spawn(conditions.follow(shared.clone(), election.has_leader.clone(), shutdown.clone()));
    tls::follow(&config.security, config.client_tls.as_ref(), &mut registry, clock, &shutdown);
    let serves_tls = matches!(config.security, Security::MutualTls(_));
    let server = Server::new(config.server, config.security, shutdown.clone()).of(Part::CONTROLLER);
    let revocations = Revocations::default();
    if serves_tls {
        tokio::spawn(follow_revocations(client.clone(), revocations.clone(), shutdown.clone()));
    }
    let server = server.metered(&mut registry).audited(audit.clone()).revocations(revocations);
    let server = server.also_on(match &config.unix_socket {
        Some(path) => Some(UnixSocket::bind("--data-dir", path).await?),
        None => None,
    });
    let serving = tokio::spawn(server.serve(listener, routes, muster_proto::DESCRIPTORS, readiness.clone()));
    tokio::spawn(serve_http(http, Arc::new(registry), readiness, shutdown.clone()));
    let event_loop = EventLoop {
        shared,
        client,
        cloud,
        leadership: election.leadership.clone(),
        refusals: election.refusals.clone(),
        traces: NodeTraces::new(),
        shutdown: shutdown.clone(),
    };
    // A process without an event loop must not go on leading: when the loop ends, also by a panic, the process stops.
    let stop = StopAll(shutdown.clone());
    let event_loop = tokio::spawn(async move {
        let _stop = stop;
        event_loop.run().await;
    });
    tracing::info!("muster-controller is ready");
    Ok(Running { address, http_address, audit, serving, event_loop, election })
}

/// Requests the shutdown of the process when it is dropped.
struct StopAll(Shutdown);

impl Drop for StopAll {
    fn drop(&mut self) {
        self.0.trigger();
    }
}

impl Running {
    /// Returns when the controller has stopped.
    pub async fn stopped(self) -> Result<(), RunError> {
        self.serving.await.map_err(std::io::Error::other)??;
        self.event_loop.await.map_err(std::io::Error::other)?;
        self.election.stop().await.map_err(std::io::Error::other)?;
        if let Some(audit) = self.audit {
            audit.close().await;
        }
        tracing::info!("muster-controller has stopped");
        Ok(())
    }
}

/// Runs a controller until shutdown is requested.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), RunError> {
    start(config, shutdown).await?.stopped().await
}

/// Runs the `muster-controller` process from its flags.
pub fn main(flags: &Flags) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let telemetry = telemetry::init("muster-controller", &flags.telemetry)?;
        let ran = run(Config::try_from(flags)?, Shutdown::on_signals()?).await;
        telemetry.shutdown().await;
        ran
    })
}
