//! The gRPC server of every Muster process.
//!
//! A [`Server`] adds health, reflection and the layers to a service's routes, and bounds its graceful stop: health
//! becomes NOT_SERVING, the listener closes, calls in flight may finish, and after the grace period the remaining
//! connections are aborted. Handlers of long streams have the [`Shutdown`] and end their streams themselves.

mod abortable;
mod health;
mod listener;

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use http::{HeaderValue, Response};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower::layer::util::{Identity, Stack};
use tower::util::MapResponseLayer;
use tower_http::catch_panic::CatchPanicLayer;

pub use self::listener::{BindError, Listener, bind};

use self::abortable::Abortable;
use crate::admission::{Totals, connection as admission};
use crate::audit::AuditLog;
use crate::config::parse_duration;
use crate::layers::admission::AdmissionLayer;
use crate::layers::audit::AuditLayer;
use crate::layers::bad_message::answer_bad_message;
use crate::layers::call_metrics::{CallMetrics, CallMetricsLayer};
use crate::layers::deadline::DeadlineLayer;
use crate::layers::store_id::StoreIdLayer;
use crate::layers::trace::TraceLayer;
use crate::readiness::Readiness;
use crate::shutdown::Shutdown;
use crate::tls::Security;
use muster_proto::ERROR_DOMAIN;

/// HTTP/2's default; messages of one stream are small.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Large, since thousands of streams share a connection and must not wait for each other.
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;

/// The settings of a server, which are also its flags.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerConfig {
    // Callers and connections have parts of it, and a quarter is kept for Muster's own parts: see `admission`.
    /// Calls processed at once, of all callers; more are refused with RESOURCE_EXHAUSTED
    #[arg(long, env = "MUSTER_MAX_IN_FLIGHT", default_value_t = ServerConfig::default().max_in_flight)]
    pub max_in_flight: usize,

    // hyper's default of 200 makes the 201st stream wait silently.
    /// Streams that may be open on one connection
    #[arg(long, env = "MUSTER_MAX_STREAMS", default_value_t = ServerConfig::default().max_streams)]
    pub max_streams: u32,

    // For 100,000 nodes with a heartbeat stream and two watches each.
    /// Streams that may be open, of all callers; more are refused with RESOURCE_EXHAUSTED
    #[arg(long, env = "MUSTER_MAX_OPEN_STREAMS", default_value_t = ServerConfig::default().max_open_streams)]
    pub max_open_streams: usize,

    /// Bytes of requests that are only partly received, of all callers; more are refused with RESOURCE_EXHAUSTED
    #[arg(long, env = "MUSTER_MAX_REQUEST_BYTES", default_value_t = ServerConfig::default().max_request_bytes)]
    pub max_request_bytes: usize,

    /// Deadline of calls without one, until the response starts; open streams are not affected; 0 for none
    #[arg(long, env = "MUSTER_DEFAULT_DEADLINE", default_value = "30s", value_parser = parse_duration)]
    pub default_deadline: Duration,

    /// The longest deadline that a caller can set, until the response starts; open streams are not affected; 0 for none
    #[arg(long, env = "MUSTER_MAX_DEADLINE", default_value = "5m", value_parser = parse_duration)]
    pub max_deadline: Duration,

    // Below the 60 s after which proxies close idle connections.
    /// How often an idle connection is probed; 0 for never
    #[arg(long, env = "MUSTER_KEEPALIVE_INTERVAL", default_value = "30s", value_parser = parse_duration)]
    pub keepalive_interval: Duration,

    /// How long a probe may go unanswered before the connection is closed
    #[arg(long, env = "MUSTER_KEEPALIVE_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    pub keepalive_timeout: Duration,

    /// How long calls in flight may take to finish when the process is stopped
    #[arg(long, env = "MUSTER_SHUTDOWN_GRACE", default_value = "10s", value_parser = parse_duration)]
    pub shutdown_grace: Duration,

    /// How long a client may take to begin HTTP/2 on a connection, and before that for the TLS handshake. Not a flag:
    /// a client that needs longer could not renew a lease in time.
    #[arg(skip = ServerConfig::default().handshake_timeout)]
    pub handshake_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            max_in_flight: 20_000,
            max_streams: 100_000,
            max_open_streams: 400_000,
            max_request_bytes: 512 << 20,
            default_deadline: Duration::from_secs(30),
            max_deadline: Duration::from_secs(5 * 60),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

impl ServerConfig {
    fn totals(&self) -> Totals {
        Totals { calls: self.max_in_flight, streams: self.max_open_streams, bytes: self.max_request_bytes }
    }
}

/// Why a server could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the schema for reflection cannot be read: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("the schema cannot be read: {0}")]
    Schema(#[from] prost::DecodeError),
    #[error("the server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// How a server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Every call ended within the grace period.
    Drained,
    /// The grace period expired and connections were aborted.
    Aborted,
}

/// A gRPC server of a Muster process.
#[derive(Clone, Debug)]
pub struct Server {
    config: ServerConfig,
    security: Security,
    shutdown: Shutdown,
    metrics: Option<CallMetrics>,
    store_id: StoreIdLayer,
    audit: Option<AuditLog>,
}

impl Server {
    pub fn new(config: ServerConfig, security: Security, shutdown: Shutdown) -> Server {
        Server { config, security, shutdown, metrics: None, store_id: StoreIdLayer::default(), audit: None }
    }

    /// Registers the metrics of calls in this registry.
    #[must_use]
    pub fn metered(self, registry: &mut Registry) -> Server {
        Server { metrics: Some(CallMetrics::register(registry)), ..self }
    }

    /// Sends the id of a store with every response, and refuses calls for a store with another id. An id that cannot be
    /// a header is not sent.
    #[must_use]
    pub fn identified(self, store_id: &str) -> Server {
        Server { store_id: StoreIdLayer::new(HeaderValue::try_from(store_id).ok()), ..self }
    }

    /// Logs denials and writes, if there is a log.
    #[must_use]
    pub fn audited(self, log: Option<AuditLog>) -> Server {
        Server { audit: log, ..self }
    }

    /// Serves `routes` with health and reflection until the shutdown is requested and calls have ended or been aborted.
    ///
    /// `descriptors` is the encoded `FileDescriptorSet` of the services in `routes`; health and error details are added
    /// to it.
    ///
    /// # Errors
    /// When the descriptors or the TLS setup are unusable.
    pub async fn serve(
        self,
        listener: Listener,
        routes: Routes,
        descriptors: &[u8],
        readiness: Readiness,
    ) -> Result<Stopped, ServeError> {
        let drain = Shutdown::new();
        let abort = CancellationToken::new();
        let routes = routes.add_service(health::service(&readiness, &drain));
        let routes = with_reflection(routes, descriptors)?;
        let load = admission::Server::new(self.config.totals());
        let connections = {
            let (abort, load, timeout) =
                (abort.clone(), Arc::clone(&load), unless_zero(self.config.handshake_timeout));
            let wrap = move |socket| Abortable::new(socket, &abort, timeout, load.connection());
            listener.connections().map(move |accepted| accepted.map(&wrap))
        };
        let meter = CallMetricsLayer::new(self.metrics.clone(), descriptors)?;
        let audit = AuditLayer::new(self.audit.clone(), descriptors)?;
        let mut builder = self.transport(meter, audit, AdmissionLayer::new(load, descriptors)?)?;
        let serving = builder.add_routes(routes).serve_with_incoming_shutdown(connections, drain.requested());
        tokio::pin!(serving);

        tokio::select! {
            ended = &mut serving => return Ok(ended.map(|()| Stopped::Drained)?),
            () = self.shutdown.requested() => {}
        }
        // Before anything closes: load balancers and clients should go elsewhere and not run into errors.
        readiness.stop();
        drain.trigger();
        tokio::select! {
            ended = &mut serving => return Ok(ended.map(|()| Stopped::Drained)?),
            () = tokio::time::sleep(self.config.shutdown_grace) => {}
        }
        tracing::warn!(grace = ?self.config.shutdown_grace, "the grace period is over, aborting calls in flight");
        abort.cancel();
        serving.await?;
        Ok(Stopped::Aborted)
    }

    /// HTTP/2, TLS and the layers, outermost first: span, metrics and audit log include calls that are not admitted, and an
    /// expired deadline releases the call's permit.
    fn transport(
        &self,
        meter: CallMetricsLayer,
        audit: AuditLayer,
        admission: AdmissionLayer,
    ) -> Result<tonic::transport::Server<Layers>, tonic::transport::Error> {
        let config = &self.config;
        let mut server = tonic::transport::Server::builder()
            .max_concurrent_streams(config.max_streams)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keepalive_interval(unless_zero(config.keepalive_interval))
            .http2_keepalive_timeout(Some(config.keepalive_timeout));
        if let Security::MutualTls(tls) = &self.security {
            server = server.tls_config((**tls).clone())?;
        }
        Ok(server
            .layer(TraceLayer)
            .layer(meter)
            .layer(audit)
            .layer(self.store_id.clone())
            .layer(admission)
            .layer(DeadlineLayer::new(unless_zero(config.default_deadline), unless_zero(config.max_deadline)))
            .layer(CatchPanicLayer::custom(answer_panic as PanicAnswer))
            .layer(MapResponseLayer::new(answer_bad_message as OtherAnswer)))
    }
}

fn unless_zero(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

type PanicAnswer = fn(Box<dyn Any + Send>) -> Response<Body>;
type OtherAnswer = fn(Response<Body>) -> Response<Body>;

/// The layers, innermost first, as tower's types nest.
type Layers = Stack<
    MapResponseLayer<OtherAnswer>,
    Stack<
        CatchPanicLayer<PanicAnswer>,
        Stack<
            DeadlineLayer,
            Stack<
                AdmissionLayer,
                Stack<StoreIdLayer, Stack<AuditLayer, Stack<CallMetricsLayer, Stack<TraceLayer, Identity>>>>,
            >,
        >,
    >,
>;

/// A handler that panicked broke an invariant: its caller gets INTERNAL, other calls are not affected. The panic hook
/// has printed the panic.
fn answer_panic(_: Box<dyn Any + Send>) -> Response<Body> {
    let details = ErrorDetails::with_error_info("INTERNAL", ERROR_DOMAIN, HashMap::new());
    let message = "the server has a bug in this call; its log says more";
    Status::with_error_details(Code::Internal, message, details).into_http()
}

/// Reflection in both versions: old tools use v1alpha only.
fn with_reflection(routes: Routes, descriptors: &[u8]) -> Result<Routes, tonic_reflection::server::Error> {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(descriptors)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // So that tools can decode error details, which are sent as `Any`.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(routes.add_service(builder().build_v1()?).add_service(builder().build_v1alpha()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        server: ServerConfig,
    }

    #[test]
    fn the_default_flags_are_the_default_settings() {
        assert_eq!(Flags::parse_from(["muster"]).server, ServerConfig::default());
    }
}
