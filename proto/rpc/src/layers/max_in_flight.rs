//! The in-flight cap: a full server says so at once instead of letting callers queue.
//!
//! A call counts until its response head is ready. So unary calls count while they are worked on, and a stream that has
//! been opened costs nothing here, however long it lives.

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

/// What a refused caller is told to wait; long enough for a burst to pass, short enough not to be felt.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Refuses calls beyond `limit` in flight. All services made by one layer, and its clones, share the count.
#[derive(Clone, Debug)]
pub struct LoadLayer {
    limit: usize,
    in_flight: Arc<AtomicUsize>,
}

impl LoadLayer {
    pub fn new(limit: usize) -> LoadLayer {
        LoadLayer { limit, in_flight: Arc::default() }
    }

    /// How many calls are in flight now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// A place among the calls in flight, held until it is dropped; `None` when all are taken.
    fn admit(&self) -> Option<Place> {
        // Count first, then look: two calls racing for the last place cannot both get it.
        let place = Place { in_flight: Arc::clone(&self.in_flight) };
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        (before < self.limit).then_some(place)
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
struct Place {
    in_flight: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S> Layer<S> for LoadLayer {
    type Service = Load<S>;

    fn layer(&self, inner: S) -> Load<S> {
        Load { inner, cap: self.clone() }
    }
}

/// The service that [`LoadLayer`] makes.
#[derive(Clone, Debug)]
pub struct Load<S> {
    inner: S,
    cap: LoadLayer,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Load<S>
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
            return LoadFuture { call: Some(self.inner.call(request)), place: None, refusal: None };
        }
        match self.cap.admit() {
            Some(place) => {
                LoadFuture { call: Some(self.inner.call(request)), place: Some(place), refusal: None }
            }
            None => LoadFuture { call: None, place: None, refusal: Some(self.cap.refusal()) },
        }
    }
}

pin_project! {
    /// The future of a [`Load`] service: a call with its place, or a refusal.
    pub struct LoadFuture<F> {
        #[pin]
        call: Option<F>,
        place: Option<Place>,
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
            // The head is ready: the place is free, even if whoever polls us keeps the finished future around.
            this.place.take();
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
    async fn a_call_beyond_the_limit_is_refused_at_once_and_told_why() {
        let gate = Arc::new(Semaphore::new(0));
        let layer = LoadLayer::new(1);
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
        assert!(Status::from_header_map(after.headers()).is_none(), "the place of a finished call is free");
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_gives_its_place_back() {
        let layer = LoadLayer::new(1);
        let service = layer
            .layer(service_fn(|_: Request<()>| std::future::pending::<Result<Response<Body>, Status>>()));
        let mut abandoned = Box::pin(service.oneshot(call("/muster.v1.NodeService/GetNode")));
        assert!(futures_util::poll!(&mut abandoned).is_pending());
        assert_eq!(layer.in_flight(), 1);
        drop(abandoned);
        assert_eq!(layer.in_flight(), 0);
    }
}
