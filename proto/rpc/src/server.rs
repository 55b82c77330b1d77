//! The gRPC server of every Muster process.
//!
//! A [`Server`] adds health, reflection and the layers to a service's routes, and bounds its graceful stop: health
//! becomes NOT_SERVING, the listener closes, calls in flight may finish, and after the grace period the remaining
//! connections are aborted. Handlers of long streams have the [`Shutdown`] and end their streams themselves.
//!
//! Connections are accepted here and not by tonic's server: its TLS settings cannot change while it runs, and it cannot
//! end a connection before the client does.

mod connection;
mod face;
mod health;
mod listener;
mod unix_socket;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Response};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use prometheus_client::registry::Registry;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower::ServiceBuilder;
use tower::util::{MapRequestLayer, MapResponseLayer};
use tower_http::catch_panic::CatchPanicLayer;

pub use self::face::{Answer, Calls, Face, Pages};
pub use self::listener::{BindError, Listener, bind};
pub use self::unix_socket::{UnixSocket, UnixSocketError};

use self::connection::{Connections, Incoming, Timing};
use self::listener::Accepted;
use crate::admission::{Totals, connection as admission};
use crate::audit::AuditLog;
use crate::clock::SystemClock;
use crate::config::parse_duration;
use crate::layers::admission::AdmissionLayer;
use crate::layers::audit::AuditLayer;
use crate::layers::bad_message::answer_bad_message;
use crate::layers::call_metrics::{CallMetrics, CallMetricsLayer};
use crate::layers::deadline::DeadlineLayer;
use crate::layers::forwarded::Forwarded;
use crate::layers::store_id::StoreIdLayer;
use crate::layers::trace::TraceLayer;
use crate::readiness::Readiness;
use crate::shutdown::Shutdown;
use crate::tls::{self, Revocations, Security, ServerTls};
use crate::trace::Part;
use muster_proto::ERROR_DOMAIN;

/// The most connections without a certificate.
const MAX_ANONYMOUS: usize = 256;
/// How long a client of pages may take for the head of its next request. Longer than clients keep an idle connection
/// (Go: 90 s), so that none is closed while a request is on its way.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
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

    /// How long a connection lives at most before its client must make a new one; 0 for no limit
    #[arg(long, env = "MUSTER_MAX_CONNECTION_AGE", default_value = "1h", value_parser = parse_duration)]
    pub max_connection_age: Duration,

    /// How long calls in flight may take to finish when the process is stopped or the connection's time is over
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
            max_connection_age: Duration::from_secs(60 * 60),
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
    part: Option<Part>,
    audit: Option<AuditLog>,
    revocations: Revocations,
    open_methods: HashSet<String>,
    unix_socket: Option<Arc<UnixSocket>>,
    face: Option<Arc<Face>>,
}

impl Server {
    pub fn new(config: ServerConfig, security: Security, shutdown: Shutdown) -> Server {
        Server {
            config,
            security,
            shutdown,
            metrics: None,
            store_id: StoreIdLayer::default(),
            part: None,
            audit: None,
            revocations: Revocations::default(),
            open_methods: HashSet::new(),
            unix_socket: None,
            face: None,
        }
    }

    /// Serves these pages, too, which make calls of this server on behalf of their callers.
    #[must_use]
    pub fn with_face(self, face: Option<Face>) -> Server {
        Server { face: face.map(Arc::new), ..self }
    }

    /// Accepts TLS clients without a certificate, for these methods, such as `/muster.v1.JoinService/Join`, and for health
    /// and reflection. They have few places of their own.
    #[must_use]
    pub fn open_to_anonymous(self, methods: &[&str]) -> Server {
        Server { open_methods: methods.iter().map(ToString::to_string).collect(), ..self }
    }

    /// Serves this socket, too, without TLS.
    #[must_use]
    pub fn also_on(self, socket: Option<UnixSocket>) -> Server {
        Server { unix_socket: socket.map(Arc::new), ..self }
    }

    /// Refuses these certificates, and ends the connections of those that are added later.
    #[must_use]
    pub fn revocations(self, revocations: Revocations) -> Server {
        Server { revocations, ..self }
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

    /// Names the part that serves, for the spans of a process in which several do.
    #[must_use]
    pub fn of(self, part: Part) -> Server {
        Server { part: Some(part), ..self }
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
    /// When the descriptors are unusable.
    pub async fn serve(
        mut self,
        listener: Listener,
        routes: Routes,
        descriptors: &[u8],
        readiness: Readiness,
    ) -> Result<Stopped, ServeError> {
        let unix_socket = self.unix_socket.take();
        let config = &self.config;
        let drain = Shutdown::new();
        let routes = routes.add_service(health::service(&readiness, &drain));
        let routes = with_reflection(routes, descriptors)?.prepare();
        let load = admission::Server::new(config.totals());
        // Outermost first: span, metrics and audit log include calls that are not admitted, and an expired deadline
        // releases the call's permit.
        let service = ServiceBuilder::new()
            .layer(TraceLayer { part: self.part })
            .layer(CallMetricsLayer::new(self.metrics.clone(), descriptors)?)
            // Outside of the audit log and of admission, which judge the true caller.
            .layer(MapRequestLayer::new({
                let forwarded = Forwarded::new(Arc::clone(&load));
                move |request| forwarded.accept(request)
            }))
            .layer(AuditLayer::new(self.audit.clone(), descriptors)?)
            .layer(self.store_id.clone())
            .layer(AdmissionLayer::new(Arc::clone(&load), descriptors, &self.open_methods)?)
            .layer(DeadlineLayer::new(unless_zero(config.default_deadline), unless_zero(config.max_deadline)))
            .layer(CatchPanicLayer::custom(answer_panic as PanicAnswer))
            .layer(MapResponseLayer::new(finish as OtherAnswer))
            .service(routes);
        let stopping = CancellationToken::new();
        let face = self.face.take();
        let pages = face.as_ref().map(|face| {
            let connections = self.connections(Some(&face.security), Arc::clone(&load), stopping.clone());
            (Arc::new(connections), face.pages(service.clone()))
        });
        let connections = Arc::new(self.connections(None, load, stopping.clone()));

        let mut open = JoinSet::new();
        let requested = self.shutdown.requested();
        tokio::pin!(requested);
        loop {
            tokio::select! {
                () = &mut requested => break,
                accepted = listener.accept() => {
                    let incoming = Incoming::Tcp(accepted);
                    open.spawn(Arc::clone(&connections).serve(incoming, service.clone()));
                }
                stream = accept_local(unix_socket.as_deref()) => {
                    open.spawn(Arc::clone(&connections).serve(Incoming::Unix(stream), service.clone()));
                }
                accepted = accept_face(face.as_deref()) => {
                    if let Some((connections, pages)) = &pages {
                        open.spawn(Arc::clone(connections).serve(Incoming::Tcp(accepted), pages.clone()));
                    }
                }
                Some(_) = open.join_next() => {}
            }
        }
        // Before anything closes: load balancers and clients should go elsewhere and not run into errors.
        readiness.stop();
        drain.trigger();
        drop((listener, unix_socket, face));
        stopping.cancel();
        let all_ended = async { while open.join_next().await.is_some() {} };
        if tokio::time::timeout(config.shutdown_grace, all_ended).await.is_ok() {
            return Ok(Stopped::Drained);
        }
        tracing::warn!(grace = ?config.shutdown_grace, "the grace period is over, aborting calls in flight");
        open.shutdown().await;
        Ok(Stopped::Aborted)
    }

    /// How connections are served: those of gRPC, or with the security of a face those of its pages.
    fn connections(
        &self,
        face: Option<&Security>,
        load: Arc<admission::Server>,
        stopping: CancellationToken,
    ) -> Connections {
        let config = &self.config;
        let http = auto::Builder::new(TokioExecutor::new());
        let mut http = if face.is_some() { http } else { http.http2_only() };
        http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(config.max_streams)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(unless_zero(config.keepalive_interval))
            .keep_alive_timeout(config.keepalive_timeout);
        let tls = match face.unwrap_or(&self.security) {
            Security::Plain { .. } => None,
            Security::MutualTls(credentials) => Some(ServerTls {
                credentials: credentials.clone(),
                revocations: self.revocations.clone(),
                protocols: if face.is_some() { tls::ANY_HTTP } else { tls::GRPC },
                // Every page but a few needs a role, and says so to those who come without a certificate.
                allow_anonymous: face.is_some() || !self.open_methods.is_empty(),
            }),
        };
        Connections {
            http,
            tls,
            load,
            timing: Timing {
                handshake: config.handshake_timeout,
                max_age: config.max_connection_age,
                grace: config.shutdown_grace,
            },
            anonymous: Arc::new(Semaphore::new(MAX_ANONYMOUS)),
            clock: SystemClock::shared(),
            drain: stopping,
        }
    }
}

/// The next connection on the socket, if there is one.
async fn accept_local(socket: Option<&UnixSocket>) -> UnixStream {
    match socket {
        Some(socket) => socket.accept().await,
        None => std::future::pending().await,
    }
}

/// The next connection to the face, if there is one.
async fn accept_face(face: Option<&Face>) -> Accepted {
    match face {
        Some(face) => face.listener.accept().await,
        None => std::future::pending().await,
    }
}

/// The metadata key of the server's version, which is in the head of every response of a handler.
pub const VERSION_KEY: &str = "muster-version";

/// Maps the errors of decoding a message, and adds the version.
fn finish(response: Response<Body>) -> Response<Body> {
    let mut response = answer_bad_message(response);
    response.headers_mut().insert(VERSION_KEY, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    response
}

fn unless_zero(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

type PanicAnswer = fn(Box<dyn Any + Send>) -> Response<Body>;
type OtherAnswer = fn(Response<Body>) -> Response<Body>;

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
