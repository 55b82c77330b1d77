//! One span per call, joined to the caller's trace by the W3C `traceparent` header.
//!
//! Spans are made at debug level: the OpenTelemetry layer takes them (see `telemetry`), the text log only when asked,
//! and with neither listening a call costs one atomic load. A span lasts until the response body ends, so a stream's
//! span is the stream's life; nothing here happens per message.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use pin_project_lite::pin_project;
use tonic::Code;
use tower::{Layer, Service};
use tracing::{Span, field};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::is_infrastructure;

const TRACEPARENT: &str = "traceparent";
const GRPC_STATUS: &str = "grpc-status";

/// The `traceparent` of the current span, if it is being recorded.
///
/// The store writes it into each change; a span that nobody will ever see is not worth the bytes, hence `None` for one
/// that is not sampled.
pub fn current_traceparent() -> Option<String> {
    current_span_context().filter(SpanContext::is_sampled).map(|context| format_traceparent(&context))
}

/// Makes `span` a child of the span that `traceparent` names; a text that is none changes nothing.
///
/// Call it right after the span is made: once entered, a span keeps its parent.
pub fn set_parent(span: &Span, traceparent: &str) {
    let Some(parent) = parse_traceparent(traceparent) else { return };
    // It fails only where there is no OpenTelemetry layer or the span is filtered out: then there is nothing to join.
    let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(parent));
}

fn current_span_context() -> Option<SpanContext> {
    let span = Span::current();
    if span.is_disabled() {
        return None;
    }
    let context = span.context();
    let context = context.span().span_context().clone();
    context.is_valid().then_some(context)
}

fn format_traceparent(context: &SpanContext) -> String {
    let sampled = u8::from(context.is_sampled());
    format!("00-{:032x}-{:016x}-{sampled:02x}", context.trace_id(), context.span_id())
}

/// Reads a W3C `traceparent`: version, trace id, parent id and flags in lower-case hexadecimal.
fn parse_traceparent(text: &str) -> Option<SpanContext> {
    let mut parts = text.trim().split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let lengths = [version.len(), trace.len(), parent.len(), flags.len()];
    let lower_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if lengths != [2, 32, 16, 2] || ![version, trace, parent, flags].into_iter().all(lower_hex) {
        return None;
    }
    // Version 00 has four parts exactly; a later one may add more; ff is forbidden.
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, parent) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(parent).ok()?);
    let context = SpanContext::new(trace, parent, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

/// Gives each incoming call a span; health and reflection calls get none.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceLayer;

impl<S> Layer<S> for TraceLayer {
    type Service = Trace<S>;

    fn layer(&self, inner: S) -> Trace<S> {
        Trace { inner }
    }
}

/// The service that [`TraceLayer`] makes.
#[derive(Clone, Debug)]
pub struct Trace<S> {
    inner: S,
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
        let call = CallSpan::open(request.uri().path(), request.headers());
        let inner = {
            let _in_span = call.span.enter();
            self.inner.call(request)
        };
        TraceFuture { inner, call: Some(call) }
    }
}

/// The span of one call. However the call ends, its status code is recorded once.
#[derive(Debug)]
struct CallSpan {
    span: Span,
    ended: bool,
}

impl CallSpan {
    fn open(path: &str, headers: &HeaderMap) -> CallSpan {
        if is_infrastructure(path) {
            return CallSpan { span: Span::none(), ended: true };
        }
        let name = path.strip_prefix('/').unwrap_or(path);
        let (service, method) = name.split_once('/').unwrap_or((name, ""));
        let span = tracing::debug_span!(
            "call",
            otel.name = name,
            otel.kind = "server",
            otel.status_code = field::Empty,
            rpc.system = "grpc",
            rpc.service = service,
            rpc.method = method,
            rpc.grpc.status_code = field::Empty,
        );
        if !span.is_disabled()
            && let Some(traceparent) = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok())
        {
            set_parent(&span, traceparent);
        }
        let ended = span.is_disabled();
        CallSpan { span, ended }
    }

    /// Ends the call if these headers (of a response without a body, or its trailers) say how it went.
    fn end_by(&mut self, headers: &HeaderMap) {
        if let Some(status) = headers.get(GRPC_STATUS) {
            self.end(Code::from_bytes(status.as_bytes()));
        }
    }

    fn end(&mut self, code: Code) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.span.record("rpc.grpc.status_code", code as i32);
        if is_our_fault(code) {
            self.span.record("otel.status_code", "ERROR");
        }
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        // Dropped without a status: the caller went away, or we cut the connection.
        self.end(Code::Cancelled);
    }
}

/// Which codes mark a server's span as failed: those the server answers for, as OpenTelemetry's conventions have it. A
/// caller's mistake is not an error of ours.
fn is_our_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

pin_project! {
    /// The future of a [`Trace`] service.
    pub struct TraceFuture<F> {
        #[pin]
        inner: F,
        call: Option<CallSpan>,
    }
}

impl<F, ResBody, E> Future for TraceFuture<F>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
{
    type Output = Result<Response<TraceBody<ResBody>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = {
            let _in_span = this.call.as_ref().map(|call| call.span.enter());
            ready!(this.inner.poll(cx))
        };
        let mut call = this.call.take();
        match result {
            Ok(response) => {
                if let Some(call) = &mut call {
                    call.end_by(response.headers());
                }
                // A call that is over, or has no span, needs no watching of its body.
                let call = call.filter(|call| !call.ended);
                Poll::Ready(Ok(response.map(|inner| TraceBody { inner, call })))
            }
            Err(error) => {
                if let Some(call) = &mut call {
                    call.end(Code::Unknown);
                }
                Poll::Ready(Err(error))
            }
        }
    }
}

pin_project! {
    /// A response body that keeps its call's span open until the trailers have passed.
    pub struct TraceBody<B> {
        #[pin]
        inner: B,
        call: Option<CallSpan>,
    }
}

impl<B: Body> Body for TraceBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        // The span is not entered here: that would be work per message. A stream that logs keeps `Span::current()` of
        // its handler.
        let frame = ready!(this.inner.poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref()
                    && let Some(mut call) = this.call.take()
                {
                    call.end_by(trailers);
                }
            }
            Some(Err(_)) => {
                if let Some(mut call) = this.call.take() {
                    call.end(Code::Unknown);
                }
            }
            None => drop(this.call.take()),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Sends the current span along with each outgoing call, for clients: `ServiceBuilder::new().layer(InjectLayer)`.
///
/// A layer and not an interceptor, so that streams are covered too. The decision not to sample travels as well, or the
/// next service would draw again.
#[derive(Clone, Copy, Debug, Default)]
pub struct InjectLayer;

impl<S> Layer<S> for InjectLayer {
    type Service = Inject<S>;

    fn layer(&self, inner: S) -> Inject<S> {
        Inject { inner }
    }
}

/// The service that [`InjectLayer`] makes.
#[derive(Clone, Debug)]
pub struct Inject<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for Inject<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        if let Some(context) = current_span_context()
            && let Ok(value) = HeaderValue::try_from(format_traceparent(&context))
        {
            request.headers_mut().insert(TRACEPARENT, value);
        }
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests;
