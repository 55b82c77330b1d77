//! Deadlines: a call that exceeds its deadline fails with DEADLINE_EXCEEDED and its handler is dropped.
//!
//! The layer covers the time until the response head. For a unary call that is the whole call; a stream has its head at
//! once, so this layer never ends a watch or a heartbeat, neither by the caller's deadline nor by the default. A caller
//! cannot ask for more than the maximum: a call that never sends its request would be in flight for that long.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower::{Layer, Service};

use muster_proto::ERROR_DOMAIN;

/// The reason in the `ErrorInfo` of a call that exceeded its deadline.
pub const DEADLINE_EXCEEDED: &str = "DEADLINE_EXCEEDED";

/// The header with the caller's timeout.
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// Ends calls at the caller's deadline, or at the default if the caller set none, and in any case at the maximum.
#[derive(Clone, Copy, Debug)]
pub struct DeadlineLayer {
    default: Option<Duration>,
    max: Option<Duration>,
}

impl DeadlineLayer {
    pub const fn new(default: Option<Duration>, max: Option<Duration>) -> DeadlineLayer {
        DeadlineLayer { default, max }
    }

    /// The time that a call may take until its response head is ready.
    fn allowed(&self, wanted: Option<Duration>) -> Option<Duration> {
        match (wanted.or(self.default), self.max) {
            (Some(wanted), Some(max)) => Some(wanted.min(max)),
            (wanted, max) => wanted.or(max),
        }
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline { inner, layer: *self }
    }
}

/// The service of [`DeadlineLayer`].
#[derive(Clone, Debug)]
pub struct Deadline<S> {
    inner: S,
    layer: DeadlineLayer,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Deadline<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Default,
{
    type Response = Response<ResBody>;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let allowed = self.layer.allowed(caller_timeout(request.headers()));
        // Set the timer before the call starts: tonic has a timer of its own outside of this layer, which answers
        // CANCELLED. This one has to fire first.
        let alarm = allowed.map(tokio::time::sleep);
        DeadlineFuture { call: self.inner.call(request), alarm }
    }
}

pin_project! {
    /// The future of a [`Deadline`] service.
    pub struct DeadlineFuture<F> {
        #[pin]
        call: F,
        #[pin]
        alarm: Option<Sleep>,
    }
}

impl<F, ResBody, E> Future for DeadlineFuture<F>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
    ResBody: Default,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if let Poll::Ready(response) = this.call.poll(cx) {
            return Poll::Ready(response);
        }
        let Some(alarm) = this.alarm.as_pin_mut() else { return Poll::Pending };
        ready!(alarm.poll(cx));
        let details = ErrorDetails::with_error_info(DEADLINE_EXCEEDED, ERROR_DOMAIN, HashMap::new());
        let message = "the call's deadline passed before an answer was ready";
        let status = Status::with_error_details(Code::DeadlineExceeded, message, details);
        Poll::Ready(Ok(status.into_http()))
    }
}

/// The caller's timeout, if it set a valid one.
fn caller_timeout(headers: &HeaderMap) -> Option<Duration> {
    parse_grpc_timeout(headers.get(GRPC_TIMEOUT)?.as_bytes())
}

/// Reads a `grpc-timeout`: one to eight digits and a unit (`H M S m u n`). Anything else counts as no timeout, as the
/// gRPC specification requires.
pub fn parse_grpc_timeout(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let mut amount = 0u64;
    for digit in digits {
        amount = amount * 10 + u64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
    }
    match unit {
        b'H' => Some(Duration::from_secs(amount * 3_600)),
        b'M' => Some(Duration::from_secs(amount * 60)),
        b'S' => Some(Duration::from_secs(amount)),
        b'm' => Some(Duration::from_millis(amount)),
        b'u' => Some(Duration::from_micros(amount)),
        b'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;
    use tonic::body::Body;
    use tower::{ServiceExt, service_fn};

    #[test]
    fn timeouts_are_parsed_as_the_grpc_specification_says() {
        for (text, expected) in [
            ("2H", Some(Duration::from_secs(7_200))),
            ("3M", Some(Duration::from_secs(180))),
            ("15S", Some(Duration::from_secs(15))),
            ("250m", Some(Duration::from_millis(250))),
            ("7u", Some(Duration::from_micros(7))),
            ("9n", Some(Duration::from_nanos(9))),
            ("0S", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3_600))),
            ("100000000n", None),
            ("", None),
            ("S", None),
            ("10", None),
            ("10s", None),
            ("-1S", None),
            ("+1S", None),
            ("1.5S", None),
            (" 1S", None),
            ("1 S", None),
        ] {
            assert_eq!(parse_grpc_timeout(text.as_bytes()), expected, "{text:?}");
        }
    }

    /// How a call ends whose handler takes five seconds.
    async fn slow_call(layer: DeadlineLayer, timeout: Option<&str>) -> Option<Code> {
        let service = layer.layer(service_fn(|_: Request<()>| async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok::<_, Status>(Response::new(Body::default()))
        }));
        let mut request = Request::new(());
        if let Some(timeout) = timeout {
            request.headers_mut().insert(GRPC_TIMEOUT, timeout.parse().unwrap());
        }
        let response = service.oneshot(request).await.unwrap();
        Status::from_header_map(response.headers()).map(|status| status.code())
    }

    #[tokio::test(start_paused = true)]
    async fn the_callers_deadline_replaces_the_default_up_to_the_maximum_and_an_invalid_one_is_ignored() {
        let (second, minute) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(60)));
        let late = Some(Code::DeadlineExceeded);
        for (default, max, timeout, expected) in [
            (None, None, None, None),
            (second, None, None, late),
            (None, None, Some("100m"), late),
            (None, None, Some("0n"), late),
            (second, None, Some("6S"), None),
            (second, None, Some("soon"), late),
            (None, None, Some("soon"), None),
            (None, second, None, late),
            (None, second, Some("99999999H"), late),
            (minute, second, None, late),
            (None, minute, Some("99999999H"), None),
            (None, minute, Some("1S"), late),
            (second, minute, Some("6S"), None),
        ] {
            let layer = DeadlineLayer::new(default, max);
            assert_eq!(slow_call(layer, timeout).await, expected, "{layer:?}, asked {timeout:?}");
        }
    }
}
