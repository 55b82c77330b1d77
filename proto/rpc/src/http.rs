//! The HTTP port of a process: liveness, readiness and metrics.
//!
//! `/healthz` answers 200 while the process runs; `/readyz` answers 503 and lists the conditions that do not hold while
//! the process is not ready; `/metrics` is plain text as Prometheus reads it, or OpenMetrics for those who ask for it. A
//! service may add pages of its own to [`routes`].
//!
//! Anyone who reaches the port may use it. So its connections are few, and must send their requests in time: when there
//! are too many, the oldest is closed, and a probe that comes with its request is answered whatever the others do.

use std::collections::VecDeque;
use std::fmt::Write;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};

use crate::metrics_text::{OPEN_METRICS, PLAIN, plain, prefers_open_metrics};
use crate::readiness::Readiness;
use crate::server::Listener;
use crate::shutdown::Shutdown;

/// How long requests in progress may take at shutdown. They are small reads.
const GRACE: Duration = Duration::from_secs(2);

/// Connections at once. Probes and scrapers need few, and each takes a file descriptor of the process.
const MAX_CONNECTIONS: usize = 128;
/// How long a client may take to send the head of a request, and how long its connection may be idle before one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// The pages every process has.
pub fn routes(registry: Arc<Registry>, readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(metrics).with_state(registry))
}

/// Serves the pages every process has until the shutdown is requested.
///
/// # Errors
/// When the listener fails.
pub async fn serve_http(
    listener: Listener,
    registry: Arc<Registry>,
    readiness: Readiness,
    shutdown: Shutdown,
) -> io::Result<()> {
    serve_routes(listener, routes(registry, readiness), shutdown).await
}

/// Serves these pages until the shutdown is requested; requests in progress have a moment to finish.
///
/// # Errors
/// When the listener fails.
pub async fn serve_routes(listener: Listener, routes: Router, shutdown: Shutdown) -> io::Result<()> {
    serve_within(HEAD_TIMEOUT, listener, routes, shutdown).await
}

async fn serve_within(
    head_timeout: Duration,
    listener: Listener,
    routes: Router,
    shutdown: Shutdown,
) -> io::Result<()> {
    let mut connections = Connections::default();
    let mut stopping = pin!(shutdown.requested());
    loop {
        tokio::select! {
            () = &mut stopping => break,
            accepted = listener.accept() => {
                connections.add(answer(accepted.socket, head_timeout, routes.clone(), shutdown.clone()));
            }
            Some(_) = connections.tasks.join_next() => {}
        }
    }
    // Before requests in progress are awaited.
    drop(listener);
    tokio::select! {
        () = connections.ended() => {}
        () = tokio::time::sleep(GRACE) => {}
    }
    Ok(())
}

/// The open connections, a task each.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    /// Oldest first.
    open: VecDeque<AbortHandle>,
}

impl Connections {
    /// Adds a connection. If there are too many, the oldest one is closed: it is idle or has sent half of a request,
    /// since an answer takes far less time than as many connections take to arrive.
    fn add(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.open.retain(|connection| !connection.is_finished());
        if self.open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = self.open.pop_front()
        {
            oldest.abort();
        }
        self.open.push_back(self.tasks.spawn(connection));
    }

    /// Returns when all connections have ended.
    async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Answers the requests of one connection.
async fn answer(socket: TcpStream, head_timeout: Duration, routes: Router, shutdown: Shutdown) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(MAX_HEAD);
    let connection = server.serve_connection(TokioIo::new(socket), TowerToHyperService::new(routes));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = shutdown.requested() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the HTTP port failed");
    }
}

async fn ready(State(readiness): State<Readiness>) -> (StatusCode, String) {
    let problems = readiness.problems();
    if problems.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let mut text = String::new();
    for problem in problems {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{problem}");
    }
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

async fn metrics(State(registry): State<Arc<Registry>>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) if prefers_open_metrics(accept) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Ok(()) => ([(CONTENT_TYPE, PLAIN)], plain(&text)).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::bind;
    use prometheus_client::metrics::counter::Counter;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get_page(address: SocketAddr, path: &str) -> String {
        get_page_as(address, path, "*/*").await
    }

    async fn get_page_as(address: SocketAddr, path: &str, accept: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: muster\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_port_serves_liveness_readiness_and_metrics() {
        let mut registry = Registry::default();
        let renewals = Counter::<u64>::default();
        registry.register("renewals", "Renewals accepted", renewals.clone());
        renewals.inc_by(3);
        let readiness = Readiness::new([]);
        let watches = readiness.condition("watches", "not synced with the store yet", &[]);
        let shutdown = Shutdown::new();
        let listener = bind("--http-listen", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address();
        let serving =
            tokio::spawn(serve_http(listener, Arc::new(registry), readiness.clone(), shutdown.clone()));

        assert!(get_page(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let waiting = get_page(address, "/readyz").await;
        assert!(waiting.starts_with("HTTP/1.1 503"), "{waiting}");
        assert!(waiting.ends_with("watches: not synced with the store yet\n"), "{waiting}");
        watches.set(Ok(()));
        assert!(get_page(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let metrics = get_page(address, "/metrics").await;
        assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
        assert!(metrics.contains("# TYPE renewals_total counter\n"), "{metrics}");
        assert!(metrics.ends_with("renewals_total 3\n"), "{metrics}");
        let metrics = get_page_as(address, "/metrics", "application/openmetrics-text").await;
        assert!(metrics.contains("content-type: application/openmetrics-text"), "{metrics}");
        assert!(metrics.contains("renewals_total 3\n") && metrics.ends_with("# EOF\n"), "{metrics}");
        assert!(get_page(address, "/nowhere").await.starts_with("HTTP/1.1 404"));

        shutdown.trigger();
        serving.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "a stopped port is closed");
    }

    #[tokio::test]
    async fn half_sent_requests_do_not_keep_a_probe_from_its_answer() {
        let shutdown = Shutdown::new();
        let listener = bind("--http-listen", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address();
        let registry = Arc::new(Registry::default());
        let serving = tokio::spawn(serve_http(listener, registry, Readiness::new([]), shutdown.clone()));

        let mut half_sent = Vec::new();
        for _ in 0..3 * MAX_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: mus").await.unwrap();
            half_sent.push(stream);
        }
        assert!(get_page(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        for stream in &mut half_sent[..2 * MAX_CONNECTIONS] {
            let ended = stream.read(&mut [0]).await;
            assert!(matches!(ended, Ok(0) | Err(_)), "the oldest were closed: {ended:?}");
        }

        shutdown.trigger();
        serving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_connection_without_a_whole_request_is_closed_in_time() {
        let listener = bind("--http-listen", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address();
        let pages = routes(Arc::new(Registry::default()), Readiness::new([]));
        tokio::spawn(serve_within(Duration::from_millis(100), listener, pages, Shutdown::new()));
        for (what, sent) in [
            ("silent", ""),
            ("half of a head", "GET /healthz HTTP/1.1\r\nHost: mus"),
            ("idle after an answer", "GET /healthz HTTP/1.1\r\nHost: muster\r\n\r\n"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut answer = String::new();
            let ended = tokio::time::timeout(HEAD_TIMEOUT, stream.read_to_string(&mut answer)).await;
            assert!(ended.is_ok(), "{what}: still open");
        }
    }
}
