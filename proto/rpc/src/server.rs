//! The one way every Muster service starts, serves and stops.
//!
//! A [`Server`] puts health, reflection and the layer stack around a service's routes, and bounds its stopping: health
//! says NOT_SERVING, the listener closes, calls in flight may finish, and after the grace what is left is cut. Handlers
//! of long streams hold the [`Shutdown`] themselves and end their streams; the cut is the backstop.

mod abortable;
mod health;
mod listener;

use std::any::Any;
use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use http::Response;
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

use self::abortable::Cuttable;
use crate::config::parse_duration;
use crate::layers::call_metrics::{CallMetrics, MeterLayer};
use crate::layers::deadline::DeadlineLayer;
use crate::layers::max_in_flight::LoadLayer;
use crate::layers::message_size::answer_too_large;
use crate::layers::trace::TraceLayer;
use crate::readiness::Readiness;
use crate::shutdown::Shutdown;
use crate::tls::Security;
use muster_proto::ERROR_DOMAIN;

/// A message of one stream is small; this is what HTTP/2 gives by default, written down.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Thousands of streams share a connection: they must not wait for each other's window.
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;

/// How a server is set up; also the flags for it.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerConfig {
    /// Calls worked on at once; more are refused with RESOURCE_EXHAUSTED
    #[arg(long, env = "MUSTER_MAX_IN_FLIGHT", default_value_t = ServerConfig::default().max_in_flight)]
    pub max_in_flight: usize,

    // hyper's own default of 200 makes the 201st stream wait without a word.
    /// Streams that may be open on one connection
    #[arg(long, env = "MUSTER_MAX_STREAMS", default_value_t = ServerConfig::default().max_streams)]
    pub max_streams: u32,

    /// Deadline of calls that set none, until their response starts; streams are not affected; 0 for none
    #[arg(long, env = "MUSTER_DEFAULT_DEADLINE", default_value = "30s", value_parser = parse_duration)]
    pub default_deadline: Duration,

    // Below the 60 s after which proxies cut idle connections.
    /// How often an idle connection is probed; 0 for never
    #[arg(long, env = "MUSTER_KEEPALIVE_INTERVAL", default_value = "30s", value_parser = parse_duration)]
    pub keepalive_interval: Duration,

    /// How long a probe may go unanswered before the connection is closed
    #[arg(long, env = "MUSTER_KEEPALIVE_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    pub keepalive_timeout: Duration,

    /// How long calls in flight may take to finish when the process is stopped
    #[arg(long, env = "MUSTER_SHUTDOWN_GRACE", default_value = "10s", value_parser = parse_duration)]
    pub shutdown_grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            max_in_flight: 20_000,
            max_streams: 100_000,
            default_deadline: Duration::from_secs(30),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

/// Why a server could not start or had to end.
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
    /// Every call had ended within the grace.
    Drained,
    /// The grace ran out and connections were cut.
    Cut,
}

/// A gRPC server of a Muster process.
#[derive(Clone, Debug)]
pub struct Server {
    config: ServerConfig,
    security: Security,
    shutdown: Shutdown,
    metrics: Option<CallMetrics>,
}

impl Server {
    pub fn new(config: ServerConfig, security: Security, shutdown: Shutdown) -> Server {
        Server { config, security, shutdown, metrics: None }
    }

    /// With calls counted in this registry.
    #[must_use]
    pub fn metered(self, registry: &mut Registry) -> Server {
        Server { metrics: Some(CallMetrics::register(registry)), ..self }
    }

    /// Serves `routes` with health and reflection until the shutdown is asked for and calls have ended or been cut.
    ///
    /// `descriptors` is the encoded `FileDescriptorSet` of the services in `routes`; health and error details are added to it.
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
        let cut = CancellationToken::new();
        let routes = routes.add_service(health::service(&readiness, &drain));
        let routes = with_reflection(routes, descriptors)?;
        let connections = {
            let cut = cut.clone();
            listener.connections().map(move |accepted| accepted.map(|socket| Cuttable::new(socket, &cut)))
        };
        let meter = MeterLayer::new(self.metrics.clone(), descriptors)?;
        let mut builder = self.transport(meter)?;
        let serving = builder.add_routes(routes).serve_with_incoming_shutdown(connections, drain.requested());
        tokio::pin!(serving);

        tokio::select! {
            ended = &mut serving => return Ok(ended.map(|()| Stopped::Drained)?),
            () = self.shutdown.requested() => {}
        }
        // Before anything closes: balancers and waiting clients should go elsewhere, not run into errors.
        readiness.stop();
        drain.trigger();
        tokio::select! {
            ended = &mut serving => return Ok(ended.map(|()| Stopped::Drained)?),
            () = tokio::time::sleep(self.config.shutdown_grace) => {}
        }
        tracing::warn!(grace = ?self.config.shutdown_grace, "the grace is over, cutting calls still in flight");
        cut.cancel();
        serving.await?;
        Ok(Stopped::Cut)
    }

    /// HTTP/2, TLS and the layers, outermost first: span and counters see even the calls that the cap refuses, and a
    /// place under the cap is given back when the deadline passes.
    fn transport(
        &self,
        meter: MeterLayer,
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
            .layer(LoadLayer::new(config.max_in_flight))
            .layer(DeadlineLayer::new(unless_zero(config.default_deadline)))
            .layer(CatchPanicLayer::custom(answer_panic as PanicAnswer))
            .layer(MapResponseLayer::new(answer_too_large as OtherAnswer)))
    }
}

fn unless_zero(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

type PanicAnswer = fn(Box<dyn Any + Send>) -> Response<Body>;
type OtherAnswer = fn(Response<Body>) -> Response<Body>;

/// The layer stack, innermost first, as tower writes it.
type Layers = Stack<
    MapResponseLayer<OtherAnswer>,
    Stack<
        CatchPanicLayer<PanicAnswer>,
        Stack<DeadlineLayer, Stack<LoadLayer, Stack<MeterLayer, Stack<TraceLayer, Identity>>>>,
    >,
>;

/// A handler that panicked has broken one of our invariants: its caller is told INTERNAL, everybody else is served on.
/// The panic itself was printed by the panic hook.
fn answer_panic(_: Box<dyn Any + Send>) -> Response<Body> {
    let details = ErrorDetails::with_error_info("INTERNAL", ERROR_DOMAIN, HashMap::new());
    let message = "the call ended in a bug of the server; its log says more";
    Status::with_error_details(Code::Internal, message, details).into_http()
}

/// Reflection in both versions: old tools ask for v1alpha only.
fn with_reflection(routes: Routes, descriptors: &[u8]) -> Result<Routes, tonic_reflection::server::Error> {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(descriptors)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // So that tools can show the details of an error, which travel as `Any`.
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
