//! The HTTP port of a process: liveness, readiness and metrics.
//!
//! `/healthz` answers 200 while the process runs; `/readyz` answers 503 and lists the conditions that do not hold while
//! the process is not ready; `/metrics` is OpenMetrics text. A service may add pages of its own to [`routes`].

use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::readiness::Readiness;
use crate::server::Listener;
use crate::shutdown::Shutdown;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long requests in progress may take at shutdown. They are small reads.
const GRACE: Duration = Duration::from_secs(2);

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
    let serving = axum::serve(listener.into_tcp(), routes).with_graceful_shutdown(shutdown.requested());
    tokio::select! {
        ended = serving.into_future() => ended,
        () = shutdown.grace_over(GRACE) => Ok(()),
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

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
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
    use tokio::net::TcpStream;

    async fn get_page(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: muster\r\nConnection: close\r\n\r\n");
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
        assert!(metrics.contains("content-type: application/openmetrics-text"), "{metrics}");
        assert!(metrics.contains("renewals_total 3\n") && metrics.ends_with("# EOF\n"), "{metrics}");
        assert!(get_page(address, "/nowhere").await.starts_with("HTTP/1.1 404"));

        shutdown.trigger();
        serving.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "a stopped port is closed");
    }
}
