//! Admission: a call without a role, or beyond what its caller may take of the server, is refused at once.
//!
//! It is refused before its handler runs and before a byte of its body is read, so a refused call costs what its head
//! costs. An admitted call is in flight until its response head is ready: a unary call while it is processed, a stream
//! until it is open, however long it lives. A stream counts as open until its response body ends.

mod request_body;

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::{Frame, SizeHint};
use muster_proto::ERROR_DOMAIN;
use muster_proto::identity::Caller;
use pin_project_lite::pin_project;
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower::{Layer, Service};

use self::request_body::RequestBody;
use crate::admission::connection::{Connection, Peer, Permit, Server};
use crate::admission::{Class, Exceeded, Resource};
use crate::identity::{Identity, NO_CERTIFICATE};
use crate::layers::forwarded::Refused;

/// The retry delay for refused callers: long enough for a burst to pass, short enough not to be noticed.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// The retry delay for streams, which stay open for long.
const RETRY_STREAM: Duration = Duration::from_secs(1);

/// Refuses calls that the server's budgets do not allow. All services of one layer and its clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionLayer {
    server: Arc<Server>,
    /// The methods that answer with a stream, by path, such as `/muster.v1.NodeService/WatchNodes`.
    streaming: Arc<HashSet<String>>,
    /// The methods that need no role, by path.
    open: Arc<HashSet<String>>,
}

impl AdmissionLayer {
    /// `descriptors` is the encoded `FileDescriptorSet` of the services; the methods in `open` need no role.
    ///
    /// # Errors
    /// When the descriptors cannot be decoded.
    pub(crate) fn new(
        server: Arc<Server>,
        descriptors: &[u8],
        open: &HashSet<String>,
    ) -> Result<AdmissionLayer, prost::DecodeError> {
        let schema = FileDescriptorSet::decode(descriptors)?;
        let mut streaming = HashSet::new();
        for file in &schema.file {
            for service in &file.service {
                let streams = service.method.iter().filter(|method| method.server_streaming());
                streaming.extend(
                    streams.map(|method| format!("/{}.{}/{}", file.package(), service.name(), method.name())),
                );
            }
        }
        Ok(AdmissionLayer { server, streaming: Arc::new(streaming), open: Arc::new(open.clone()) })
    }

    /// Takes what the call needs, or refuses it.
    fn admit(&self, request: &Request<Body>) -> Result<Admission, Status> {
        if let Some(refused) = request.extensions().get::<Refused>() {
            return Err(refused.status());
        }
        let peer = request.extensions().get::<Peer>();
        let connection = match peer {
            Some(peer) => Arc::clone(&peer.connection),
            None => self.server.connection(Identity::without_tls()),
        };
        let path = request.uri().path();
        let caller = &connection.identity().caller;
        let needs_role = !self.open.contains(path);
        let class = Class::of(caller, path, needs_role).ok_or_else(|| without_role(caller, path))?;
        let take = |resource| connection.take(class, resource, 1).map_err(|exceeded| refusal(&exceeded));
        let in_flight = take(Resource::Calls)?;
        // Probes are few: counting those that do not stream as well costs nothing.
        let is_stream = class == Class::Probe || self.streaming.contains(path);
        let stream = if is_stream { Some(take(Resource::Streams)?) } else { None };
        Ok(Admission { connection, class, in_flight, stream })
    }
}

/// What an admitted call holds.
struct Admission {
    connection: Arc<Connection>,
    class: Class,
    in_flight: Permit,
    stream: Option<Permit>,
}

/// The refusal of a caller without a role, in the words of the store's authorization.
fn without_role(caller: &Caller, path: &str) -> Status {
    let details = ErrorDetails::with_error_info("PERMISSION_DENIED", ERROR_DOMAIN, HashMap::new());
    let method = path.trim_start_matches('/');
    let reason = match caller {
        Caller::Unknown(who) if who == NO_CERTIFICATE => "it needs a certificate with a role",
        _ => "the caller's certificate gives it no role",
    };
    let message = format!("{caller} may not call {method}: {reason}");
    Status::with_error_details(Code::PermissionDenied, message, details)
}

fn refusal(exceeded: &Exceeded) -> Status {
    let metadata = [("name", exceeded.name().to_owned()), ("limit", exceeded.limit.to_string())];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value));
    let mut details = ErrorDetails::with_error_info(exceeded.reason(), ERROR_DOMAIN, metadata);
    let retry_after = if exceeded.resource == Resource::Streams { RETRY_STREAM } else { RETRY_AFTER };
    details.set_retry_info(Some(retry_after));
    Status::with_error_details(Code::ResourceExhausted, exceeded.to_string(), details)
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admitted<S>;

    fn layer(&self, inner: S) -> Admitted<S> {
        Admitted { inner, layer: self.clone() }
    }
}

/// The service of [`AdmissionLayer`].
#[derive(Clone, Debug)]
pub(crate) struct Admitted<S> {
    inner: S,
    layer: AdmissionLayer,
}

impl<S, ResBody> Service<Request<Body>> for Admitted<S>
where
    S: Service<Request<Body>, Response = Response<ResBody>>,
    ResBody: Default,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = AdmissionFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Admission { connection, class, in_flight, stream } = match self.layer.admit(&request) {
            Ok(admission) => admission,
            Err(status) => {
                return AdmissionFuture { call: None, in_flight: None, stream: None, refusal: Some(status) };
            }
        };
        let request = request.map(|body| Body::new(RequestBody::new(body, connection, class)));
        let call = Some(self.inner.call(request));
        AdmissionFuture { call, in_flight: Some(in_flight), stream, refusal: None }
    }
}

pin_project! {
    /// The future of an [`Admitted`] service: a call with its permits, or a refusal.
    pub(crate) struct AdmissionFuture<F> {
        #[pin]
        call: Option<F>,
        in_flight: Option<Permit>,
        stream: Option<Permit>,
        refusal: Option<Status>,
    }
}

impl<F, ResBody, E> Future for AdmissionFuture<F>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
    ResBody: Default,
{
    type Output = Result<Response<ResponseBody<ResBody>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Some(call) = this.call.as_pin_mut() {
            let response = ready!(call.poll(cx));
            // The head is ready: release the permit now, even if the finished future is dropped later.
            this.in_flight.take();
            let stream = this.stream.take();
            return Poll::Ready(
                response.map(|response| response.map(|body| ResponseBody { body, _stream: stream })),
            );
        }
        let refusal = this.refusal.take().expect("a finished future is not polled again");
        Poll::Ready(Ok(refusal.into_http()))
    }
}

pin_project! {
    /// A response body that counts as an open stream until it is dropped.
    #[derive(Default)]
    pub(crate) struct ResponseBody<B> {
        #[pin]
        body: B,
        _stream: Option<Permit>,
    }
}

impl<B: http_body::Body> http_body::Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
