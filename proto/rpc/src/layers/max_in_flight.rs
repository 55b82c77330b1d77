//! The in-flight limit: a server with too many calls refuses further ones at once instead of queueing them.
//!
//! A call counts until its response head is ready. So a unary call counts while it is processed, and a stream counts
//! only until it is open, however long it lives.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use pin_project_lite::pin_project;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower::{Layer, Service};

use super::is_infrastructure;
use muster_proto::ERROR_DOMAIN;

/// The reason in the `ErrorInfo` of a refused call.
pub const TOO_MANY_IN_FLIGHT: &str = "TOO_MANY_IN_FLIGHT";

/// The retry delay for refused callers: long enough for a burst to pass, short enough not to be noticed.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Refuses calls beyond `limit` in flight. All services of one layer and its clones share the count.
#[derive(Clone, Debug)]
pub struct MaxInFlightLayer {
    limit: usize,
    in_flight: Arc<AtomicUsize>,
}

impl MaxInFlightLayer {
    pub fn new(limit: usize) -> MaxInFlightLayer {
        MaxInFlightLayer { limit, in_flight: Arc::default() }
    }

    /// How many calls are in flight now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts one more call in flight until the permit is dropped; `None` at the limit.
    fn admit(&self) -> Option<Permit> {
        // Count first, then compare: of two calls racing for the last permit only one can get it.
        let permit = Permit { in_flight: Arc::clone(&self.in_flight) };
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        (before < self.limit).then_some(permit)
    }

    fn refusal(&self) -> Status {
        let mut details = ErrorDetails::with_error_info(
            TOO_MANY_IN_FLIGHT,
            ERROR_DOMAIN,
            [("limit".to_owned(), self.limit.to_string())],
        );
        details.set_retry_info(Some(RETRY_AFTER));
        let message = format!("too many calls in flight: limit {}", self.limit);
        Status::with_error_details(Code::ResourceExhausted, message, details)
    }
}

#[derive(Debug)]
struct Permit {
    in_flight: Arc<AtomicUsize>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S> Layer<S> for MaxInFlightLayer {
    type Service = MaxInFlight<S>;

    fn layer(&self, inner: S) -> MaxInFlight<S> {
        MaxInFlight { inner, cap: self.clone() }
    }
}

/// The service of [`MaxInFlightLayer`].
#[derive(Clone, Debug)]
pub struct MaxInFlight<S> {
    inner: S,
    cap: MaxInFlightLayer,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for MaxInFlight<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Default,
{
    type Response = Response<ResBody>;
    type Error = S::Error;
    type Future = LoadFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        if is_infrastructure(request.uri().path()) {
            return LoadFuture { call: Some(self.inner.call(request)), permit: None, refusal: None };
        }
        match self.cap.admit() {
            Some(permit) => {
                LoadFuture { call: Some(self.inner.call(request)), permit: Some(permit), refusal: None }
            }
            None => LoadFuture { call: None, permit: None, refusal: Some(self.cap.refusal()) },
        }
    }
}

pin_project! {
    /// The future of a [`MaxInFlight`] service: a call with its permit, or a refusal.
    pub struct LoadFuture<F> {
        #[pin]
        call: Option<F>,
        permit: Option<Permit>,
        refusal: Option<Status>,
    }
}

impl<F, ResBody, E> Future for LoadFuture<F>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
    ResBody: Default,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if let Some(call) = this.call.as_pin_mut() {
            let response = ready!(call.poll(cx));
            // The head is ready: release the permit now, even if the finished future is dropped later.
            this.permit.take();
            return Poll::Ready(response);
        }
        let refusal = this.refusal.take().expect("a finished future is not polled again");
        Poll::Ready(Ok(refusal.into_http()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;
    use tonic::body::Body;
    use tower::{ServiceExt, service_fn};

    fn call(path: &str) -> Request<()> {
        Request::builder().uri(path).body(()).unwrap()
    }

    #[tokio::test]
    async fn a_call_beyond_the_limit_is_refused_at_once_with_a_reason() {
        let gate = Arc::new(Semaphore::new(0));
        let layer = MaxInFlightLayer::new(1);
        let handler = {
            let gate = Arc::clone(&gate);
            service_fn(move |request: Request<()>| {
                let gate = Arc::clone(&gate);
                async move {
                    if !is_infrastructure(request.uri().path()) {
                        gate.acquire().await.unwrap().forget();
                    }
                    Ok::<_, Status>(Response::new(Body::default()))
                }
            })
        };
        let service = layer.layer(handler);

        let first = tokio::spawn(service.clone().oneshot(call("/muster.v1.NodeService/GetNode")));
        while layer.in_flight() == 0 {
            tokio::task::yield_now().await;
        }

        let refused = service.clone().oneshot(call("/muster.v1.NodeService/GetNode")).await.unwrap();
        let status = Status::from_header_map(refused.headers()).unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "too many calls in flight: limit 1");
        let details = status.get_error_details();
        assert_eq!(details.error_info().unwrap().reason, TOO_MANY_IN_FLIGHT);
        assert_eq!(details.error_info().unwrap().domain, "muster.dev");
        assert_eq!(details.retry_info().unwrap().retry_delay, Some(RETRY_AFTER));

        let probe = service.clone().oneshot(call("/grpc.health.v1.Health/Check")).await.unwrap();
        assert!(Status::from_header_map(probe.headers()).is_none(), "a full server still answers its probes");

        gate.add_permits(2);
        first.await.unwrap().unwrap();
        assert_eq!(layer.in_flight(), 0);
        let after = service.oneshot(call("/muster.v1.NodeService/GetNode")).await.unwrap();
        assert!(Status::from_header_map(after.headers()).is_none(), "the permit of a finished call is free");
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_releases_its_permit() {
        let layer = MaxInFlightLayer::new(1);
        let service = layer
            .layer(service_fn(|_: Request<()>| std::future::pending::<Result<Response<Body>, Status>>()));
        let mut abandoned = Box::pin(service.oneshot(call("/muster.v1.NodeService/GetNode")));
        assert!(futures_util::poll!(&mut abandoned).is_pending());
        assert_eq!(layer.in_flight(), 1);
        drop(abandoned);
        assert_eq!(layer.in_flight(), 0);
    }
}
