//! The id of the store in the head of every response, and calls that are meant for another store.
//!
//! A client with several addresses sends the id of the store that it knows. A store with another id refuses such a call
//! before its handler runs: the client has the addresses of two unrelated stores, and a write must not reach the wrong
//! one.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderValue, Request, Response};
use muster_proto::ERROR_DOMAIN;
use pin_project_lite::pin_project;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower::{Layer, Service};

/// The metadata key of a store's id: of its own in a response, of the wanted one in a request.
pub const STORE_ID_KEY: &str = "muster-store-id";

/// The reason in the `ErrorInfo` of a call that was meant for another store.
pub const OTHER_STORE: &str = "OTHER_STORE";

/// Adds the store's id to every response, and refuses calls for another id. Does nothing without an id.
#[derive(Clone, Debug, Default)]
pub struct StoreIdLayer {
    id: Option<HeaderValue>,
}

impl StoreIdLayer {
    pub fn new(id: Option<HeaderValue>) -> StoreIdLayer {
        StoreIdLayer { id }
    }
}

impl<S> Layer<S> for StoreIdLayer {
    type Service = StoreId<S>;

    fn layer(&self, inner: S) -> StoreId<S> {
        StoreId { inner, id: self.id.clone() }
    }
}

/// The service of [`StoreIdLayer`].
#[derive(Clone, Debug)]
pub struct StoreId<S> {
    inner: S,
    id: Option<HeaderValue>,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for StoreId<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Default,
{
    type Response = Response<ResBody>;
    type Error = S::Error;
    type Future = StoreIdFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let wanted = request.headers().get(STORE_ID_KEY);
        let is_other = self.id.is_some() && wanted.is_some_and(|wanted| Some(wanted) != self.id.as_ref());
        let call = (!is_other).then(|| self.inner.call(request));
        StoreIdFuture { call, id: self.id.clone() }
    }
}

pin_project! {
    /// The future of a [`StoreId`] service: a call, or nothing when it is refused.
    pub struct StoreIdFuture<F> {
        #[pin]
        call: Option<F>,
        id: Option<HeaderValue>,
    }
}

impl<F, ResBody, E> Future for StoreIdFuture<F>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
    ResBody: Default,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let mut response = match this.call.as_pin_mut() {
            Some(call) => ready!(call.poll(cx))?,
            None => refusal().into_http(),
        };
        if let Some(id) = this.id {
            response.headers_mut().insert(STORE_ID_KEY, id.clone());
        }
        Poll::Ready(Ok(response))
    }
}

fn refusal() -> Status {
    let details = ErrorDetails::with_error_info(OTHER_STORE, ERROR_DOMAIN, HashMap::new());
    let message = "the call is meant for another store: this one has another id";
    Status::with_error_details(Code::FailedPrecondition, message, details)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tonic::body::Body;
    use tower::{ServiceExt, service_fn};

    #[tokio::test]
    async fn every_response_has_the_id_and_a_call_for_another_id_does_not_reach_its_handler() {
        for (own, wanted, is_called) in [
            (Some("s1"), None, true),
            (Some("s1"), Some("s1"), true),
            (Some("s1"), Some("s2"), false),
            (None, None, true),
            (None, Some("s2"), true),
        ] {
            let calls = AtomicUsize::new(0);
            let handler = service_fn(|_: Request<Body>| {
                calls.fetch_add(1, Ordering::Relaxed);
                async { Ok::<_, Infallible>(Response::new(Body::default())) }
            });
            let layer = StoreIdLayer::new(own.map(HeaderValue::from_static));
            let mut request = Request::new(Body::default());
            if let Some(wanted) = wanted {
                request.headers_mut().insert(STORE_ID_KEY, HeaderValue::from_static(wanted));
            }
            let response = layer.layer(handler).oneshot(request).await.unwrap();
            let id = response.headers().get(STORE_ID_KEY).map(|id| id.to_str().unwrap());
            assert_eq!(id, own, "{own:?}, {wanted:?}");
            assert_eq!(calls.load(Ordering::Relaxed), usize::from(is_called), "{own:?}, {wanted:?}");
            let status = Status::from_header_map(response.headers());
            let code = status.map(|status| status.code());
            assert_eq!(code, (!is_called).then_some(Code::FailedPrecondition), "{own:?}, {wanted:?}");
        }
    }
}
