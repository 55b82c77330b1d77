//! Starts the plug-in, serves, and stops it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use muster_grpc::cloud_provider_service_server::CloudProviderServiceServer;
use muster_rpc::clock::SystemClock;
use muster_rpc::readiness::Readiness;
use muster_rpc::server::{BindError, ServeError, Server, ServerConfig, Stopped, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::{self, TelemetryError, TelemetryFlags};
use muster_rpc::tls::{self, TlsError, TlsFlags};
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tonic::service::Routes;

use super::file::{FileError, InventoryFile};
use super::service::{NAMES, Service};

/// Answers the controller's calls about machines from an inventory file.
#[derive(Clone, Debug, Parser)]
#[command(name = "muster-cloud-inventory", version)]
pub struct Flags {
    /// TOML file with a table `machine` for each machine; it is read again when it changes
    #[arg(long, env = "MUSTER_INVENTORY", value_name = "FILE")]
    pub inventory: PathBuf,

    /// Address on which gRPC is served; port 0 picks a free port
    #[arg(long, env = "MUSTER_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:7700")]
    pub listen: SocketAddr,

    #[command(flatten)]
    pub tls: TlsFlags,

    #[command(flatten)]
    pub server: ServerConfig,

    #[command(flatten)]
    pub telemetry: TelemetryFlags,
}

/// Why the plug-in could not start or failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("--inventory: {0}")]
    Inventory(#[from] FileError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("{0}")]
    Process(#[from] std::io::Error),
}

/// A running plug-in.
pub struct Running {
    pub address: SocketAddr,
    serving: JoinHandle<Result<Stopped, ServeError>>,
}

/// Reads the inventory and starts to serve.
///
/// # Errors
/// When the inventory cannot be read, or the address cannot be served with these flags.
pub async fn start(flags: &Flags, shutdown: Shutdown) -> Result<Running, RunError> {
    let file = InventoryFile::open(&flags.inventory).await?;
    let security = flags.tls.security(flags.listen)?;
    let listener = bind("--listen", flags.listen).await?;
    let address = listener.address();
    if let Some(warning) = security.warning() {
        tracing::warn!("{warning}");
    }
    // It serves no metrics.
    tls::follow(&security, None, &mut Registry::default(), SystemClock::shared(), &shutdown);
    let server = Server::new(flags.server.clone(), security, shutdown);
    let routes = Routes::new(CloudProviderServiceServer::new(Service { file })).prepare();
    let readiness = Readiness::new(NAMES);
    let serving = tokio::spawn(server.serve(listener, routes, muster_proto::DESCRIPTORS, readiness));
    tracing::info!(grpc = %address, "muster-cloud-inventory is ready");
    Ok(Running { address, serving })
}

impl Running {
    /// Returns when the plug-in has stopped.
    ///
    /// # Errors
    /// When serving failed.
    pub async fn stopped(self) -> Result<(), RunError> {
        self.serving.await.map_err(std::io::Error::other)??;
        tracing::info!("muster-cloud-inventory has stopped");
        Ok(())
    }
}

/// Runs the `muster-cloud-inventory` process from its flags.
///
/// # Errors
/// When it could not start or serve.
pub fn main(flags: &Flags) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let telemetry = telemetry::init("muster-cloud-inventory", &flags.telemetry)?;
        let ran = match start(flags, Shutdown::on_signals()?).await {
            Ok(running) => running.stopped().await,
            Err(error) => Err(error),
        };
        telemetry.shutdown().await;
        ran
    })
}
