//! One span per call at both ends, linked by the W3C `traceparent` header.
//!
//! A span lasts until the response body ends, so a stream's span lasts as long as the stream; nothing is done per
//! message. Names and attributes are those of OpenTelemetry's conventions for RPC. A call that is not recorded costs
//! only the sampling decision, and in a process without a collector only the lookup of the header.

use std::task::{Context, Poll};

use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use tower::{Layer, Service};

use super::is_infrastructure;
use crate::identity;
use crate::trace::{self, Part, Span, SpanKind, Traceparent};

mod call;

pub use self::call::{TraceBody, TraceFuture};
pub use crate::trace::current_traceparent;

use self::call::{Call, Side};

const TRACEPARENT: &str = "traceparent";

/// Gives each incoming call a span; health and reflection calls get none.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceLayer {
    /// Whose spans these are, in a process of several parts.
    pub part: Option<Part>,
}

impl<S> Layer<S> for TraceLayer {
    type Service = Trace<S>;

    fn layer(&self, inner: S) -> Trace<S> {
        Trace { inner, part: self.part }
    }
}

/// The service of [`TraceLayer`].
#[derive(Clone, Debug)]
pub struct Trace<S> {
    inner: S,
    part: Option<Part>,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Trace<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Response = Response<TraceBody<ResBody>>;
    type Error = S::Error;
    type Future = TraceFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let call = Call::new(incoming(&request, self.part), Side::Server);
        let inner = {
            let _in_span = call.span().enter();
            self.inner.call(request)
        };
        TraceFuture::new(inner, call)
    }
}

/// The span of an incoming call.
fn incoming<B>(request: &Request<B>, part: Option<Part>) -> Span {
    let uri = request.uri();
    if is_infrastructure(uri.path()) {
        return Span::NONE;
    }
    let parent = traceparent(request.headers());
    if parent.is_none() && !trace::is_on() {
        return Span::NONE;
    }
    let mut draft = trace::span("call").kind(SpanKind::Server).of(part);
    if let Some(parent) = parent {
        draft = draft.below(parent);
    }
    let span = draft.begin();
    if span.is_recorded() {
        describe(&span, uri.path());
        if let Some(host) = uri.host() {
            address(&span, host, uri.port_u16());
        }
        if let Some(peer) = identity::peer_address(request.extensions()) {
            span.set("network.peer.address", peer.ip().to_string());
            span.set("network.peer.port", i64::from(peer.port()));
        }
    }
    span
}

fn traceparent(headers: &HeaderMap) -> Option<Traceparent> {
    Traceparent::parse(headers.get(TRACEPARENT)?.to_str().ok()?)
}

/// The attributes of a call at both ends.
fn describe(span: &Span, path: &str) {
    let name = path.strip_prefix('/').unwrap_or(path);
    let (service, method) = name.split_once('/').unwrap_or((name, ""));
    span.rename(name.to_owned());
    span.set("rpc.system", "grpc");
    span.set("rpc.service", service.to_owned());
    span.set("rpc.method", method.to_owned());
}

fn address(span: &Span, host: &str, port: Option<u16>) {
    span.set("server.address", host.trim_matches(['[', ']']).to_owned());
    if let Some(port) = port {
        span.set("server.port", i64::from(port));
    }
}

/// Gives each outgoing call a span and sends its `traceparent`, for clients: `InjectLayer.layer(channel)`.
///
/// It is a layer and not an interceptor, so that it covers streams, too. The decision not to record is sent as well, or
/// the next service would make its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct InjectLayer;

impl<S> Layer<S> for InjectLayer {
    type Service = Inject<S>;

    fn layer(&self, inner: S) -> Inject<S> {
        Inject { inner, server: None, part: None }
    }
}

/// The service of [`InjectLayer`].
#[derive(Clone, Debug)]
pub struct Inject<S> {
    inner: S,
    /// The server of the calls.
    server: Option<Uri>,
    part: Option<Part>,
}

impl<S> Inject<S> {
    /// Sets the server's address for the spans; a request does not contain it.
    #[must_use]
    pub fn to(self, server: &Uri) -> Inject<S> {
        Inject { server: Some(server.clone()), ..self }
    }

    /// Sets the part whose calls these are, in a process of several.
    #[must_use]
    pub fn of(self, part: Option<Part>) -> Inject<S> {
        Inject { part, ..self }
    }

    fn outgoing(&self, path: &str) -> Span {
        if is_infrastructure(path) {
            return Span::NONE;
        }
        let span = trace::span("call").kind(SpanKind::Client).of(self.part).begin();
        if span.is_recorded() {
            describe(&span, path);
            if let Some((server, host)) = self.server.as_ref().and_then(|uri| Some((uri, uri.host()?))) {
                address(&span, host, server.port_u16());
            }
        }
        span
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Inject<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Response = Response<TraceBody<ResBody>>;
    type Error = S::Error;
    type Future = TraceFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let span = self.outgoing(request.uri().path());
        if let Some(place) = span.place()
            && let Ok(value) = HeaderValue::try_from(place.to_string())
        {
            request.headers_mut().insert(TRACEPARENT, value);
        }
        TraceFuture::new(self.inner.call(request), Call::new(span, Side::Client))
    }
}

#[cfg(test)]
mod tests;
