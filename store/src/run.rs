//! Starts the store, serves, and stops it in order.

use std::net::SocketAddr;
use std::sync::Arc;

use muster_rpc::audit::{AuditError, AuditLog};
use muster_rpc::clock::SystemClock;
use muster_rpc::http::serve_http;
use muster_rpc::process_metrics;
use muster_rpc::readiness::Readiness;
use muster_rpc::server::{BindError, Face, ServeError, Server, Stopped, UnixSocket, UnixSocketError, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::{self, TelemetryError};
use muster_rpc::tls::{self, Revocations, Security};
use muster_rpc::trace::Part;
use prometheus_client::registry::Registry;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::commit_health;
use crate::config::{Command, Config, ConfigError, Engine, EngineName, Flags, KubernetesConfig};
use crate::decision_log::{self, DecisionLog};
use crate::error::StoreError;
use crate::ledger::embedded::{Background, EmbeddedLedger, OpenError};
use crate::metrics::Metrics;
use crate::replica;
use crate::revocations;
use crate::service::{HEARTBEAT, NAMES, OPEN_TO_ANONYMOUS, Services};
use crate::store::Store;

/// Why the store could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Socket(#[from] UnixSocketError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Etcd(#[from] muster_etcd::ClientError),
    #[error(transparent)]
    Identity(#[from] crate::ledger::etcd::IdentityError),
    #[error("muster-store {command} works on a data directory, and --engine etcd has none: {instead}")]
    NoDirectory { command: &'static str, instead: &'static str },
    #[error(transparent)]
    Load(#[from] StoreError),
    #[error("{path}: the log of decisions cannot be opened: {source}", path = .path.display())]
    Decisions { path: std::path::PathBuf, source: std::io::Error },
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Backup(#[from] crate::backup::BackupError),
    #[error(transparent)]
    Migrate(#[from] crate::migrate::MigrateError),
    #[error(
        "the data directory {0} is damaged: see above; `muster-store repair --into NEW` writes what can be proven into a new one"
    )]
    Damaged(std::path::PathBuf),
    #[error("{0}")]
    Process(#[from] std::io::Error),
}

/// A running store.
pub struct Running {
    pub address: SocketAddr,
    pub http_address: SocketAddr,
    /// Where the Kubernetes API is served, if it is.
    pub kubernetes_address: Option<SocketAddr>,
    pub store: Arc<Store>,
    /// The audit log, if there is one.
    pub audit: Option<AuditLog>,
    serving: JoinHandle<Result<Stopped, ServeError>>,
    /// Receives how the writer thread ended.
    writer: oneshot::Receiver<std::thread::Result<()>>,
    _background: Background,
}

/// Opens the data directory and starts to serve. Whatever the engine in the settings, this is the embedded one.
pub async fn start(config: Config, shutdown: Shutdown) -> Result<Running, RunError> {
    let listener = bind("--listen", config.listen).await?;
    let http = bind("--http-listen", config.http_listen).await?;
    let kubernetes = kubernetes(config.kubernetes.as_ref()).await?;
    let kubernetes_address = kubernetes.as_ref().map(|face| face.listener.address());
    let (address, http_address) = (listener.address(), http.address());
    tracing::info!(
        grpc = %address,
        http = %http_address,
        data_dir = %config.data_dir.display(),
        "muster-store is starting"
    );
    if let Some(warning) = config.security.warning() {
        tracing::warn!("{warning}");
    }
    let mut registry = Registry::default();
    process_metrics::register(&mut registry, "muster-store");
    let metrics = Metrics::register(&mut registry);
    let audit = AuditLog::open(&config.audit, &SystemClock::shared(), &mut registry)?;
    let opening = {
        let config = config.clone();
        tokio::task::spawn_blocking(move || -> Result<_, RunError> {
            let ledger = Arc::new(EmbeddedLedger::open(&config.data_dir, config.cache_bytes)?);
            let background = metrics.background.clone();
            let opened = Store::open(ledger.clone(), config.policy, SystemClock::shared(), metrics);
            let (store, writer) = opened?;
            let background = ledger.start_background(Arc::clone(store.memory()), background)?;
            // After the ledger: it has proven that the directory is a store's, and has locked it.
            let decisions = DecisionLog::open(&config.data_dir, config.decisions).map_err(|source| {
                RunError::Decisions { path: config.data_dir.join(decision_log::DIRECTORY), source }
            })?;
            Ok((ledger.store_id().to_string(), store, writer, background, Arc::new(decisions)))
        })
    };
    let (store_id, store, writer, background, decisions) = opening.await.map_err(std::io::Error::other)??;
    tokio::spawn(decision_log::keep_limits(
        Arc::clone(&decisions),
        Arc::clone(store.clock()),
        shutdown.clone(),
    ));
    let services = Services::new(Arc::clone(&store), shutdown.clone()).with_authorities(config.authorities);
    let services = services.with_decisions(decisions);
    // Only the heartbeat service needs the disk for all of its calls. The others still serve reads and watches without
    // it, and clients that left them because of their health would have no other store to go to.
    let readiness = Readiness::new(NAMES);
    let disk = readiness.condition("disk", "not checked yet", &[HEARTBEAT]);
    let (commits, clock) = (Arc::clone(store.commit_health()), Arc::clone(store.clock()));
    tokio::spawn(commit_health::follow(commits, clock, disk, shutdown.clone()));
    tls::follow(&config.security, None, &mut registry, SystemClock::shared(), &shutdown);
    let server = Server::new(config.server, config.security, shutdown.clone()).of(Part::STORE);
    let revocations = Revocations::default();
    revocations::follow(&store, revocations.clone(), shutdown.clone());
    let server = server.metered(&mut registry).identified(&store_id).audited(audit.clone());
    let server = server.revocations(revocations).open_to_anonymous(&OPEN_TO_ANONYMOUS).with_face(kubernetes);
    let server = server.also_on(match &config.unix_socket {
        Some(path) => Some(UnixSocket::bind("--data-dir", path).await?),
        None => None,
    });
    let serving =
        tokio::spawn(server.serve(listener, services.routes(), muster_proto::DESCRIPTORS, readiness.clone()));
    tokio::spawn(serve_http(http, Arc::new(registry), readiness, shutdown.clone()));
    let writer = supervise_writer(writer, shutdown)?;
    tracing::info!(revision = store.log().head(), store_id, "muster-store is ready");
    Ok(Running {
        address,
        http_address,
        kubernetes_address,
        store,
        audit,
        serving,
        writer,
        _background: background,
    })
}

/// The Kubernetes API at its address, if it is to be served.
pub(crate) async fn kubernetes(config: Option<&KubernetesConfig>) -> Result<Option<Face>, RunError> {
    let Some(KubernetesConfig { listen, security }) = config else { return Ok(None) };
    let listener = bind("--kubernetes-listen", *listen).await?;
    tracing::info!(kubernetes = %listener.address(), "muster-store serves the Kubernetes API");
    if let Some(warning) = security.warning() {
        tracing::warn!("{warning}");
    }
    let is_local = matches!(security, Security::Plain { .. }) && listen.ip().to_canonical().is_loopback();
    let pages = Arc::new(muster_kubernetes::Kubernetes::new(SystemClock::shared(), is_local));
    Ok(Some(Face { listener, security: security.clone(), pages }))
}

impl Running {
    /// Returns when the store has stopped: all calls have ended, and all accepted writes are durable.
    pub async fn stopped(self) -> Result<(), RunError> {
        let stopped = self.serving.await.map_err(std::io::Error::other)??;
        if stopped == Stopped::Aborted {
            tracing::warn!("connections were still open after the grace period and were closed");
        }
        self.store.stop();
        if !matches!(self.writer.await, Ok(Ok(()))) {
            return Err(std::io::Error::other("the writer ended with a panic").into());
        }
        if let Some(audit) = self.audit {
            audit.close().await;
        }
        tracing::info!("muster-store has stopped");
        Ok(())
    }
}

/// Shuts the store down when its writer panics: without a writer it can only be restarted.
///
/// On a thread of its own: the runtime waits for blocking tasks at its end, so a task here would keep it from stopping.
pub(crate) fn supervise_writer(
    writer: std::thread::JoinHandle<()>,
    shutdown: Shutdown,
) -> std::io::Result<oneshot::Receiver<std::thread::Result<()>>> {
    let (ended, receiver) = oneshot::channel();
    std::thread::Builder::new().name("writer-watch".into()).spawn(move || {
        let joined = writer.join();
        if joined.is_err() {
            tracing::error!("the writer thread panicked; the store stops");
            shutdown.trigger();
        }
        // A test that drops its store has dropped the receiver.
        let _ = ended.send(joined);
    })?;
    Ok(receiver)
}

/// Runs a store until shutdown is requested.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), RunError> {
    match config.engine.clone() {
        Engine::Embedded => start(config, shutdown).await?.stopped().await,
        Engine::Etcd(etcd) => replica::run(config, etcd, shutdown).await,
    }
}

/// Refuses a subcommand that works on a data directory where there is none.
pub fn check_command(command: &Command, flags: &Flags) -> Result<(), RunError> {
    if flags.engine == EngineName::Embedded {
        return Ok(());
    }
    let (command, instead) = match command {
        Command::Backup { .. } | Command::Migrate { .. } => return Ok(()),
        Command::Check => ("check", "every start reads and proves all of it"),
        Command::Repair { .. } => ("repair", "restore a snapshot of etcd"),
        Command::Restore { .. } => ("restore", "restore a snapshot of etcd"),
    };
    Err(RunError::NoDirectory { command, instead })
}

/// The whole life of the `muster-store` process.
pub fn main(flags: &Flags) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let telemetry = telemetry::init("muster-store", &flags.telemetry)?;
        let ran = run(Config::try_from(flags)?, Shutdown::on_signals()?).await;
        telemetry.shutdown().await;
        ran
    })
}
