//! A call in progress, at either end: its span lasts until its status is known.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tonic::Code;

use crate::trace::Span;

const GRPC_STATUS: &str = "grpc-status";

/// Which end of the call this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// The span of one call. However the call ends, its status code is recorded once.
#[derive(Debug)]
pub(super) struct Call {
    span: Span,
    side: Side,
    has_ended: bool,
}

impl Call {
    pub(super) fn new(span: Span, side: Side) -> Call {
        Call { has_ended: !span.is_recorded(), span, side }
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// Ends the call if these headers (of a response without a body, or its trailers) have a status.
    fn end_by(&mut self, headers: &HeaderMap) {
        if let Some(status) = headers.get(GRPC_STATUS) {
            self.end(Code::from_bytes(status.as_bytes()));
        }
    }

    /// Ends the call without any response.
    fn without_answer(&self) -> Code {
        match self.side {
            Side::Client => Code::Unavailable,
            Side::Server => Code::Unknown,
        }
    }

    fn end(&mut self, code: Code) {
        if self.has_ended {
            return;
        }
        self.has_ended = true;
        self.span.set("rpc.grpc.status_code", i64::from(code as i32));
        if is_failure(code, self.side) {
            self.span.fail(code.description());
        }
        self.span.end();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // Dropped without a status: the caller cancelled, or we closed the connection.
        self.end(Code::Cancelled);
    }
}

/// Which codes mark a span as failed, by OpenTelemetry's conventions: for a client all but OK, for a server only its
/// own errors, not those of the caller.
fn is_failure(code: Code, side: Side) -> bool {
    match side {
        Side::Client => code != Code::Ok,
        Side::Server => matches!(
            code,
            Code::Unknown
                | Code::DeadlineExceeded
                | Code::Unimplemented
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
        ),
    }
}

pin_project! {
    /// The future of a traced call.
    pub struct TraceFuture<F> {
        #[pin]
        inner: F,
        call: Option<Call>,
    }
}

impl<F> TraceFuture<F> {
    pub(super) fn new(inner: F, call: Call) -> TraceFuture<F> {
        TraceFuture { inner, call: Some(call) }
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
            let _in_span = this.call.as_ref().and_then(|call| call.span.enter());
            ready!(this.inner.poll(cx))
        };
        let mut call = this.call.take();
        match result {
            Ok(response) => {
                if let Some(call) = &mut call {
                    call.end_by(response.headers());
                }
                // A call that has ended, or has no span, needs no wrapper around its body.
                let call = call.filter(|call| !call.has_ended);
                Poll::Ready(Ok(response.map(|inner| TraceBody { inner, call })))
            }
            Err(error) => {
                if let Some(call) = &mut call {
                    call.end(call.without_answer());
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
        call: Option<Call>,
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
        // The span is not entered here: that would be work per message.
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
