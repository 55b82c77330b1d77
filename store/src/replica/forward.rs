//! Forwards writes to the store that leads, in the name of their callers.
//!
//! A call is passed on as it is: its deadline, its fence, its trace and every message of its streams. If it could not be
//! sent, or the store at the other end does not lead, nothing of it was done, and it goes to the next leader (`switch`);
//! after any other failure it may have been done, as after a failure on the way to any store, and the caller gets that.
//!
//! **A late write.** A call may reach a store that has lost the leader's key and does not know it yet. It takes the call,
//! and writes nothing: its transaction compares the key. A store that gets a forwarded call and knows that it does not
//! lead refuses it; a call is never forwarded twice.
//!
//! **A lost answer.** When another store takes the lead, the calls under way to the old one end here a moment later: it
//! may hang. What became of them is not known, and the caller learns just that.
//!
//! **Reading one's own writes.** The answer is passed on when this store has applied the revision that the leader had when
//! it answered. Should that fail because the records here are being loaded again, the answer is passed on all the same:
//! it is true, and every later read is confirmed by etcd's head, which is not older.

use std::error::Error as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use muster_proto::identity::ServerRole;
use muster_rpc::audit;
use muster_rpc::layers::forwarded::{ForwardedBy, name_caller};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::{ClientTls, Target};
use muster_store_core::history::Revision;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic::{ConnectError, Status};
use tower::{Service, ServiceExt};

use crate::error::StoreError;
use crate::ledger::etcd::Leader;

/// The header in which a leader says, in the answer to a forwarded call, which revision it had then.
pub(super) const REVISION: HeaderName = HeaderName::from_static("muster-revision");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// How long a connection to another store may take to be made.
const CONNECT: Duration = Duration::from_secs(1);
/// How long answers of a store that does not lead any more are waited for: one that stopped in order has sent them.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// An idle connection is probed, so that a machine that is gone is noticed.
const PROBE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));
/// Many streams share the connection and must not wait for each other.
const WINDOWS: (u32, u32) = (1 << 20, 16 << 20);

/// Makes the connections to other stores.
#[derive(Debug, Clone)]
pub(super) struct Dialer {
    tls: Option<ClientTls>,
}

/// The way to the store that leads. Clones share the connection.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) leader: Leader,
    channel: Channel,
    /// Requested when another store leads.
    lost: Shutdown,
}

impl Dialer {
    /// With this store's own certificate, or without TLS.
    pub(super) fn new(tls: Option<ClientTls>) -> Self {
        Self { tls }
    }

    /// The store that leads.
    ///
    /// # Errors
    /// When its address is none.
    pub(super) fn link(&self, leader: Leader) -> Result<Link, String> {
        let channel = self.channel(&leader.address)?;
        Ok(Link { leader, channel, lost: Shutdown::new() })
    }

    /// A connection to the store at this address, made when it is first used.
    pub(super) fn channel(&self, address: &str) -> Result<Channel, String> {
        let target = match &self.tls {
            Some(tls) => {
                let target = tls.target(&format!("https://{address}"), ServerRole::Store);
                target.map_err(|error| error.to_string())?
            }
            None => {
                let endpoint = Endpoint::from_shared(format!("http://{address}"));
                Target::from(endpoint.map_err(|error| error.to_string())?)
            }
        };
        let target = target.configure(|endpoint| {
            endpoint
                .connect_timeout(CONNECT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PROBE.0)
                .keep_alive_timeout(PROBE.1)
                .initial_stream_window_size(WINDOWS.0)
                .initial_connection_window_size(WINDOWS.1)
        });
        Ok(target.connect_lazy())
    }
}

impl Link {
    /// Ends the calls that are under way.
    pub(super) fn lose(&self) {
        self.lost.trigger();
    }

    /// Passes a call on, and its answer back once this store has applied what the leader had then.
    pub(super) async fn forward(
        self,
        request: Request,
        applied: Option<watch::Receiver<Revision>>,
    ) -> Response {
        audit::note_forwarded(true);
        let (mut parts, body) = request.into_parts();
        name_caller(&parts.extensions, &mut parts.headers);
        if let Some(own) =
            muster_rpc::trace::current().and_then(|own| HeaderValue::try_from(own.to_string()).ok())
        {
            parts.headers.insert(TRACEPARENT, own);
        }
        // Those of the call here mean nothing there.
        parts.extensions = axum::http::Extensions::new();
        let request = axum::http::Request::from_parts(parts, tonic::body::Body::new(body));
        let mut channel = self.channel.clone();
        let sending = async { channel.ready().await?.call(request).await };
        let answered = tokio::select! {
            answered = sending => answered,
            () = self.lost.grace_over(LAST_ANSWERS) => return refusal(lost()),
        };
        let answer = match answered {
            Ok(answer) => answer,
            Err(error) => return refusal(self.failure(&error)),
        };
        if let (Some(revision), Some(mut applied)) = (revision_in(answer.headers()), applied) {
            // The call's own deadline limits the wait. It fails only when the records are loaded again.
            let _ = applied.wait_for(|head| *head >= revision).await;
        }
        let lost = Box::pin(self.lost.grace_over(LAST_ANSWERS));
        answer.map(|inner| Body::new(LinkedBody { inner, lost: Some(lost) })).into_response()
    }

    fn failure(&self, error: &tonic::transport::Error) -> Status {
        let causes = || std::iter::successors(error.source(), |&cause| cause.source());
        let address = &self.leader.address;
        if causes().any(<dyn std::error::Error>::is::<ConnectError>) {
            return StoreError::NotLeader { leader: Some(address.clone()) }.into();
        }
        let cause = causes().last().map_or_else(|| error.to_string(), ToString::to_string);
        forwarding_failed(format!("the store that leads, at {address}, gave no answer: {cause}"))
    }
}

/// Whether another store has forwarded this call.
pub(super) fn is_forwarded(request: &Request) -> bool {
    request.extensions().get::<ForwardedBy>().is_some()
}

/// The revision that the leader had when it answered.
fn revision_in(headers: &HeaderMap) -> Option<Revision> {
    headers.get(REVISION)?.to_str().ok()?.parse().ok()
}

fn lost() -> Status {
    forwarding_failed("another store leads now, and the one before has not answered".to_owned())
}

fn forwarding_failed(reason: String) -> Status {
    StoreError::ForwardingFailed { reason }.into()
}

pub(super) fn refusal(status: Status) -> Response {
    let refusal: axum::http::Response<tonic::body::Body> = status.into_http();
    refusal.into_response()
}

/// The messages of an answer. They end when another store leads: a stream to the old one may hang for long.
struct LinkedBody {
    inner: tonic::body::Body,
    /// `None` after the end.
    lost: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl HttpBody for LinkedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let Some(ended) = &mut self.lost else { return Poll::Ready(None) };
        let is_lost = ended.as_mut().poll(cx).is_ready();
        let reason = match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Err(broken))) => {
                forwarding_failed(format!("the store that leads is gone: {broken}"))
            }
            Poll::Ready(frame) => return Poll::Ready(frame),
            Poll::Pending if is_lost => lost(),
            Poll::Pending => return Poll::Pending,
        };
        self.lost = None;
        let mut trailers = HeaderMap::new();
        let added = reason.add_header(&mut trailers);
        Poll::Ready(Some(added.map(|()| http_body::Frame::trailers(trailers))))
    }
}
