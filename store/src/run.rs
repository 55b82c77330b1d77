//! Starts the store, serves, and stops it in order.

use std::net::SocketAddr;
use std::sync::Arc;

use muster_rpc::clock::SystemClock;
use muster_rpc::http::serve_http;
use muster_rpc::readiness::Readiness;
use muster_rpc::server::{BindError, ServeError, Server, Stopped, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::{self, TelemetryError};
use prometheus_client::registry::Registry;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::commit_health;
use crate::config::{Config, ConfigError, Flags};
use crate::engine::sled::{OpenError, SledEngine};
use crate::error::StoreError;
use crate::metrics::Metrics;
use crate::service::{HEARTBEAT, NAMES, Services};
use crate::store::Store;

/// Why the store could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Load(#[from] StoreError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Backup(#[from] crate::backup::BackupError),
    #[error("{0}")]
    Process(#[from] std::io::Error),
}

/// A store that serves.
pub struct Running {
    pub address: SocketAddr,
    pub http_address: SocketAddr,
    pub store: Arc<Store>,
    serving: JoinHandle<Result<Stopped, ServeError>>,
    /// Says how the writer ended.
    writer: oneshot::Receiver<std::thread::Result<()>>,
}

/// Opens the data directory and starts to serve.
pub async fn start(config: Config, shutdown: Shutdown) -> Result<Running, RunError> {
    let listener = bind("--listen", config.listen).await?;
    let http = bind("--http-listen", config.http_listen).await?;
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
    let metrics = Metrics::register(&mut registry);
    let opening = {
        let config = config.clone();
        tokio::task::spawn_blocking(move || -> Result<_, RunError> {
            let engine = SledEngine::open(&config.data_dir, config.cache_bytes)?;
            Ok(Store::open(Arc::new(engine), config.policy, SystemClock::shared(), metrics)?)
        })
    };
    let (store, writer) = opening.await.map_err(std::io::Error::other)??;
    let services = Services::new(Arc::clone(&store), shutdown.clone());
    // Only the heartbeat service consists of writes. The others go on reading and watching, and a client that leaves
    // them because of their health would have no other store to go to.
    let readiness = Readiness::new(NAMES);
    let disk = readiness.condition("disk", "not checked yet", &[HEARTBEAT]);
    let (commits, clock) = (Arc::clone(store.commit_health()), Arc::clone(store.clock()));
    tokio::spawn(commit_health::follow(commits, clock, disk, shutdown.clone()));
    let server = Server::new(config.server, config.security, shutdown.clone()).metered(&mut registry);
    let serving =
        tokio::spawn(server.serve(listener, services.routes(), muster_proto::DESCRIPTORS, readiness.clone()));
    tokio::spawn(serve_http(http, Arc::new(registry), readiness, shutdown.clone()));
    let writer = watch_over(writer, shutdown)?;
    tracing::info!(revision = store.log().head(), "muster-store is ready");
    Ok(Running { address, http_address, store, serving, writer })
}

impl Running {
    /// Returns when the store has stopped: calls have ended, and what was
    /// accepted is written.
    pub async fn stopped(self) -> Result<(), RunError> {
        let stopped = self.serving.await.map_err(std::io::Error::other)??;
        if stopped == Stopped::Aborted {
            tracing::warn!("connections were still open after the grace period and were aborted");
        }
        self.store.stop();
        if !matches!(self.writer.await, Ok(Ok(()))) {
            return Err(std::io::Error::other("the writer ended with a panic").into());
        }
        tracing::info!("muster-store has stopped");
        Ok(())
    }
}

/// A store whose writer has ended can only be restarted: it stops as a whole.
///
/// On a thread of its own, because a runtime waits for its blocking tasks.
fn watch_over(
    writer: std::thread::JoinHandle<()>,
    shutdown: Shutdown,
) -> std::io::Result<oneshot::Receiver<std::thread::Result<()>>> {
    let (ended, how) = oneshot::channel();
    std::thread::Builder::new().name("writer-watch".into()).spawn(move || {
        let joined = writer.join();
        if joined.is_err() {
            tracing::error!("the writer has failed; the store stops");
            shutdown.trigger();
        }
        // Nobody waits for it in a test that drops its store.
        let _ = ended.send(joined);
    })?;
    Ok(how)
}

/// Runs a store until the shutdown is asked for.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), RunError> {
    start(config, shutdown).await?.stopped().await
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
