//! The addresses of the stores, their connections, and which of them is in use.
//!
//! Calls go to one store as long as it can be reached, then to the next in the list. Using one store keeps reads in
//! order; to spread load, give each part the list in another order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use muster_proto::identity::ServerRole;
use muster_rpc::clock::{SharedClock, SystemClock};
use muster_rpc::layers::trace::{Inject, InjectLayer};
use muster_rpc::tls::{ClientTls, Target};
use muster_rpc::trace::Part;
use tonic::transport::{Channel, Endpoint};
use tower::Layer;

use crate::store_identity::{Identified, StoreIdentity};

/// The connection of a call: it is made when first used, made again when it breaks, propagates the current trace, and
/// refuses the responses of another store than the one in use.
pub type Transport = Identified<Inject<Channel>>;

/// The bytes that one stream may hold unread. Records are small and watches are read often.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Enough for 64 streams that are not read at the moment: unread watches of a busy process must not block the responses
/// of its calls on the same connection.
const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;

/// The addresses of the stores and the settings of the connections.
#[derive(Clone)]
pub struct StoreEndpoints {
    /// In order of preference, such as `http://10.0.0.1:7400`. Without a scheme, `tls` decides on it.
    pub urls: Vec<String>,
    pub tls: Option<ClientTls>,
    /// The default deadline of a call, including the time to connect.
    pub deadline: Duration,
    /// How long one store may take to accept a connection.
    pub connect_timeout: Duration,
    /// How often a connection is probed, idle or not.
    pub keepalive_interval: Duration,
    /// How long a probe may go unanswered before the connection counts as dead.
    pub keepalive_timeout: Duration,
    /// The clock for the retries of watches.
    pub clock: SharedClock,
    /// Whose calls these are, for the spans of a process in which several parts run.
    pub part: Option<Part>,
}

impl StoreEndpoints {
    /// These stores, with default settings.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>) -> StoreEndpoints {
        StoreEndpoints { urls: urls.into_iter().map(Into::into).collect(), ..StoreEndpoints::default() }
    }

    #[must_use]
    pub fn with_tls(self, tls: Option<ClientTls>) -> StoreEndpoints {
        StoreEndpoints { tls, ..self }
    }

    /// Names the part that calls.
    #[must_use]
    pub fn of(self, part: Part) -> StoreEndpoints {
        StoreEndpoints { part: Some(part), ..self }
    }

    /// Sets the keepalive interval and timeout.
    #[must_use]
    pub fn with_keepalive(
        self,
        (keepalive_interval, keepalive_timeout): (Duration, Duration),
    ) -> StoreEndpoints {
        StoreEndpoints { keepalive_interval, keepalive_timeout, ..self }
    }

    fn target(&self, url: &str) -> Result<Target, EndpointError> {
        let unusable = |error: tonic::transport::Error| {
            let reason =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            EndpointError::Unusable { url: url.to_owned(), reason }
        };
        let full = match url.split_once("://") {
            Some(_) => url.to_owned(),
            None if self.tls.is_some() => format!("https://{url}"),
            None => format!("http://{url}"),
        };
        let endpoint = Endpoint::from_shared(full.clone()).map_err(unusable)?;
        let target = match (endpoint.uri().scheme_str(), &self.tls) {
            (Some("http"), None) => Target::from(endpoint),
            (Some("https"), Some(tls)) => tls.target(&full, ServerRole::Store).map_err(|error| {
                EndpointError::Unusable { url: url.to_owned(), reason: error.to_string() }
            })?,
            (Some("http"), Some(_)) => return Err(EndpointError::InClear { url: url.to_owned() }),
            (Some("https"), None) => return Err(EndpointError::NoCertificate { url: url.to_owned() }),
            _ => {
                let reason = "must start with http:// or https://".to_owned();
                return Err(EndpointError::Unusable { url: url.to_owned(), reason });
            }
        };
        Ok(target.configure(|endpoint| {
            endpoint
                .connect_timeout(self.connect_timeout)
                .http2_keep_alive_interval(self.keepalive_interval)
                .keep_alive_timeout(self.keepalive_timeout)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .tcp_nodelay(true)
        }))
    }
}

impl Default for StoreEndpoints {
    fn default() -> StoreEndpoints {
        StoreEndpoints {
            urls: Vec::new(),
            tls: None,
            deadline: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(3),
            // A dead peer is detected within 15 s: well within the 40 s after which a node's Ready becomes Unknown.
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            clock: SystemClock::shared(),
            part: None,
        }
    }
}

/// Why the stores' addresses cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("no store is given: give at least one URL such as http://127.0.0.1:7400")]
    None,
    #[error("{url} is not the address of a store: {reason}")]
    Unusable { url: String, reason: String },
    #[error("{url} would be used without TLS although certificates are given: write https://")]
    InClear { url: String },
    #[error("{url} needs a certificate, key and authority")]
    NoCertificate { url: String },
}

/// The stores and which of them is in use.
#[derive(Debug)]
pub(crate) struct Ring {
    targets: Vec<Target>,
    transports: RwLock<Vec<Transport>>,
    current: AtomicUsize,
    identity: Arc<StoreIdentity>,
    part: Option<Part>,
}

impl Ring {
    pub(crate) fn new(endpoints: &StoreEndpoints) -> Result<Ring, EndpointError> {
        let target = |url: &String| endpoints.target(url.trim());
        let targets: Vec<Target> = endpoints.urls.iter().map(target).collect::<Result<_, _>>()?;
        if targets.is_empty() {
            return Err(EndpointError::None);
        }
        let identity = Arc::new(StoreIdentity::new(targets.len()));
        let transports =
            RwLock::new(targets.iter().map(|target| dial(target, &identity, endpoints.part)).collect());
        Ok(Ring { targets, transports, current: AtomicUsize::new(0), identity, part: endpoints.part })
    }

    pub(crate) fn identity(&self) -> &StoreIdentity {
        &self.identity
    }

    /// The stores in the order to try them, the one in use first.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (usize, Transport)> + use<> {
        let transports = self.transports.read().unwrap_or_else(PoisonError::into_inner).clone();
        let count = transports.len();
        let start = self.current.load(Ordering::Relaxed);
        (0..count).map(move |i| (start + i) % count).map(move |index| (index, transports[index].clone()))
    }

    /// Drops the connection in use, even if it looks healthy, and uses the next store first.
    ///
    /// Calls in progress stay on the old connection until they end or the connection is found to be dead.
    pub(crate) fn redial(&self) {
        let mut transports = self.transports.write().unwrap_or_else(PoisonError::into_inner);
        let index = self.current.load(Ordering::Relaxed) % transports.len();
        transports[index] = dial(&self.targets[index], &self.identity, self.part);
        drop(transports);
        self.move_on_from(index);
    }

    /// Uses this store from now on, since it answered.
    pub(crate) fn settle_on(&self, index: usize) {
        self.current.store(index, Ordering::Relaxed);
    }

    /// Uses the next store from now on, unless another call has already moved on from this one.
    pub(crate) fn move_on_from(&self, index: usize) {
        let next = (index + 1) % self.targets.len();
        let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn dial(target: &Target, identity: &Arc<StoreIdentity>, part: Option<Part>) -> Transport {
    let traced = InjectLayer.layer(target.connect_lazy()).to(target.uri()).of(part);
    let url = target.uri().to_string();
    Identified::new(traced, url.trim_end_matches('/'), Arc::clone(identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(ring: &Ring) -> Vec<usize> {
        ring.in_order().map(|(index, _)| index).collect()
    }

    #[tokio::test]
    async fn every_store_is_tried_once_from_the_one_in_use() {
        let ring = Ring::new(&StoreEndpoints::new(["http://a:1", "b:2", " http://c:3"])).unwrap();
        assert_eq!(order(&ring), [0, 1, 2]);
        ring.move_on_from(0);
        ring.move_on_from(0);
        assert_eq!(order(&ring), [1, 2, 0], "two calls that fail at once move on once");
        ring.settle_on(2);
        assert_eq!(order(&ring), [2, 0, 1]);
        ring.move_on_from(2);
        assert_eq!(order(&ring), [0, 1, 2]);
        ring.redial();
        assert_eq!(order(&ring), [1, 2, 0], "a store that does not answer is not asked first");
    }

    #[tokio::test]
    async fn addresses_that_cannot_work_are_refused_at_once() {
        let refused = |urls: &[&str]| Ring::new(&StoreEndpoints::new(urls.iter().copied())).unwrap_err();
        assert_eq!(refused(&[]), EndpointError::None);
        assert_eq!(refused(&["https://a:1"]), EndpointError::NoCertificate { url: "https://a:1".into() });
        for url in ["ftp://a:1", "http://", "a b", ""] {
            assert!(matches!(refused(&[url]), EndpointError::Unusable { .. }), "{url:?}");
        }
    }
}
