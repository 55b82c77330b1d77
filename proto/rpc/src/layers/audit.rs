//! Audits calls: denials of every method, and writes.
//!
//! The layer is outside of those that refuse calls, so that it sees their refusals, too. It works on the response head:
//! a unary call has ended then. A stream that writes audits its messages itself (`audit::message`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::task::futures::TaskLocalFuture;
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::audit::{AuditLog, Call, Methods, Pending};
use crate::trace;

/// Audits the calls of a schema's methods; without a log it does nothing.
#[derive(Clone, Debug)]
pub struct AuditLayer {
    audit: Option<(AuditLog, Arc<Methods>)>,
}

impl AuditLayer {
    /// `descriptors` is the encoded `FileDescriptorSet` of the services.
    ///
    /// # Errors
    /// When the descriptors cannot be decoded.
    pub fn new(log: Option<AuditLog>, descriptors: &[u8]) -> Result<AuditLayer, prost::DecodeError> {
        let Some(log) = log else { return Ok(AuditLayer { audit: None }) };
        Ok(AuditLayer { audit: Some((log, Arc::new(Methods::of(descriptors)?))) })
    }
}

impl<S> Layer<S> for AuditLayer {
    type Service = Audited<S>;

    fn layer(&self, inner: S) -> Audited<S> {
        Audited { inner, audit: self.audit.clone() }
    }
}

/// The service of [`AuditLayer`].
#[derive(Clone, Debug)]
pub struct Audited<S> {
    inner: S,
    audit: Option<(AuditLog, Arc<Methods>)>,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Audited<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = AuditFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let audited = self.audit.as_ref().and_then(|(log, methods)| {
            let method = Arc::clone(methods.get(request.uri().path())?);
            let trace = trace::current().map(trace::Traceparent::trace_id);
            Some(Call::new(log.clone(), method, request.extensions(), trace))
        });
        let inner = self.inner.call(request);
        match audited {
            None => AuditFuture { call: Work::Plain { inner }, pending: None },
            Some(call) => {
                let pending = Some(Pending::new(Arc::clone(&call)));
                AuditFuture { call: Work::Scoped { inner: call.scope(inner) }, pending }
            }
        }
    }
}

pin_project! {
    /// The future of an [`Audited`] service.
    pub struct AuditFuture<F> {
        #[pin]
        call: Work<F>,
        pending: Option<Pending>,
    }
}

pin_project! {
    /// The work of a call, in whose task it is the current call if it is audited.
    #[project = WorkProjection]
    enum Work<F> {
        Plain { #[pin] inner: F },
        Scoped { #[pin] inner: TaskLocalFuture<Arc<Call>, F> },
    }
}

impl<F, ResBody, E> Future for AuditFuture<F>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let result = match this.call.project() {
            WorkProjection::Plain { inner } => ready!(inner.poll(cx)),
            WorkProjection::Scoped { inner } => ready!(inner.poll(cx)),
        };
        if let Some(pending) = this.pending.take() {
            match &result {
                Ok(response) => {
                    let headers = response.headers();
                    // A response with its status in the head has no body: the call failed.
                    let code = headers.get("grpc-status").map(|status| Code::from_bytes(status.as_bytes()));
                    pending.end(code.unwrap_or(Code::Ok), || Status::from_header_map(headers));
                }
                Err(_) => pending.end(Code::Unknown, || None),
            }
        }
        Poll::Ready(result)
    }
}
