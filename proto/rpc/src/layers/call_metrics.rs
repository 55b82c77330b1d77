//! Metrics of calls: count and latency, by method and code.
//!
//! A call ends here when its response head is ready: a unary call is answered then, a stream is open. The span of a
//! stream records how it ends. Only methods of the schema are counted, so that a caller cannot create labels by calling
//! methods that do not exist.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::Code;
use tower::{Layer, Service};

use super::trace::current_traceparent;
use muster_proto::time::Mono;

use crate::clock::{SharedClock, SystemClock};
use crate::exemplar::{self, Latency, trace_of};

type MethodLabels = [(&'static str, String); 2];
type CodeLabels = [(&'static str, String); 3];

/// The metrics of calls. Clones share them.
#[derive(Clone, Debug)]
pub struct CallMetrics {
    calls: Family<CodeLabels, Counter>,
    durations: Family<MethodLabels, Latency, fn() -> Latency>,
}

impl CallMetrics {
    /// Registers `muster_calls` and `muster_call_seconds`, the same in every process.
    pub fn register(registry: &mut Registry) -> CallMetrics {
        let metrics = CallMetrics {
            calls: Family::default(),
            durations: Family::new_with_constructor(exemplar::latency),
        };
        let ours = registry.sub_registry_with_prefix("muster");
        ours.register("calls", "Calls that were answered, streams that were opened", metrics.calls.clone());
        let help = "Time until a call was answered or a stream opened";
        ours.register_with_unit("call", help, Unit::Seconds, metrics.durations.clone());
        metrics
    }

    fn record(&self, method: &MethodLabels, code: Code, seconds: f64) {
        let [service, name] = method.clone();
        self.calls.get_or_create(&[service, name, ("code", code_name(code))]).inc();
        let trace = current_traceparent().and_then(|traceparent| trace_of(&traceparent));
        self.durations.get_or_create(method).observe(seconds, trace, None);
    }
}

/// The code's name, as other gRPC libraries write it.
fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Counts the calls of a schema's methods; without metrics it does nothing.
#[derive(Clone)]
pub struct CallMetricsLayer {
    meter: Option<Arc<Meter>>,
}

struct Meter {
    metrics: CallMetrics,
    /// The methods by path, such as `/muster.v1.NodeService/GetNode`.
    methods: HashMap<String, MethodLabels>,
    clock: SharedClock,
}

impl CallMetricsLayer {
    /// `descriptors` is the encoded `FileDescriptorSet` of the services.
    ///
    /// # Errors
    /// When the descriptors cannot be decoded.
    pub fn new(
        metrics: Option<CallMetrics>,
        descriptors: &[u8],
    ) -> Result<CallMetricsLayer, prost::DecodeError> {
        let Some(metrics) = metrics else { return Ok(CallMetricsLayer { meter: None }) };
        let schema = FileDescriptorSet::decode(descriptors)?;
        let services =
            schema.file.iter().flat_map(|file| file.service.iter().map(move |service| (file, service)));
        let methods = services.flat_map(|(file, service)| {
            let full = format!("{}.{}", file.package(), service.name());
            service.method.iter().map(move |method| {
                let labels = [("service", full.clone()), ("method", method.name().to_owned())];
                (format!("/{full}/{}", method.name()), labels)
            })
        });
        let methods = methods.collect();
        Ok(CallMetricsLayer {
            meter: Some(Arc::new(Meter { metrics, methods, clock: SystemClock::shared() })),
        })
    }
}

impl<S> Layer<S> for CallMetricsLayer {
    type Service = Metered<S>;

    fn layer(&self, inner: S) -> Metered<S> {
        Metered { inner, meter: self.meter.clone() }
    }
}

/// The service of [`CallMetricsLayer`].
#[derive(Clone)]
pub struct Metered<S> {
    inner: S,
    meter: Option<Arc<Meter>>,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Metered<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = MeterFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let call = self.meter.as_ref().and_then(|meter| Call::begin(meter, request.uri().path()));
        MeterFuture { inner: self.inner.call(request), call }
    }
}

/// One call in progress. However it ends, it is counted once.
struct Call {
    meter: Arc<Meter>,
    method: MethodLabels,
    began: Mono,
    /// The code that the caller received; `None` if it cancelled the call before.
    code: Code,
}

impl Call {
    fn begin(meter: &Arc<Meter>, path: &str) -> Option<Call> {
        let method = meter.methods.get(path)?.clone();
        Some(Call { meter: Arc::clone(meter), method, began: meter.clock.mono(), code: Code::Cancelled })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let took = self.meter.clock.mono() - self.began;
        self.meter.metrics.record(&self.method, self.code, took.as_secs_f64());
    }
}

pin_project! {
    /// The future of a [`Metered`] service.
    pub struct MeterFuture<F> {
        #[pin]
        inner: F,
        call: Option<Call>,
    }
}

impl<F, ResBody, E> Future for MeterFuture<F>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        if let Some(mut call) = this.call.take() {
            call.code = match &result {
                // A response with its status in the head has no body: the call failed.
                Ok(response) => {
                    let status = response.headers().get("grpc-status");
                    status.map_or(Code::Ok, |status| Code::from_bytes(status.as_bytes()))
                }
                Err(_) => Code::Unknown,
            };
        }
        Poll::Ready(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Span;
    use crate::trace::tests::elsewhere;
    use prometheus_client::encoding::text::encode;
    use prost_types::{FileDescriptorProto, MethodDescriptorProto, ServiceDescriptorProto};
    use std::convert::Infallible;
    use tonic::Status;
    use tower::{ServiceExt, service_fn};

    fn schema() -> Vec<u8> {
        let method = MethodDescriptorProto { name: Some("Ask".to_owned()), ..Default::default() };
        let service = ServiceDescriptorProto {
            name: Some("Probe".to_owned()),
            method: vec![method],
            ..Default::default()
        };
        let package = Some("test.v1".to_owned());
        let file = FileDescriptorProto { package, service: vec![service], ..Default::default() };
        FileDescriptorSet { file: vec![file] }.encode_to_vec()
    }

    struct Bench {
        registry: Registry,
        layer: CallMetricsLayer,
    }

    impl Bench {
        fn new() -> Bench {
            let mut registry = Registry::default();
            let metrics = CallMetrics::register(&mut registry);
            Bench { registry, layer: CallMetricsLayer::new(Some(metrics), &schema()).unwrap() }
        }

        fn call(
            &self,
            path: &str,
            refusal: Option<Code>,
        ) -> impl Future<Output = Result<Response<()>, Infallible>> {
            let service = self.layer.layer(service_fn(move |_: Request<()>| async move {
                let mut response = Response::new(());
                if let Some(code) = refusal {
                    Status::new(code, "no").add_header(response.headers_mut()).unwrap();
                }
                Ok(response)
            }));
            service.oneshot(Request::builder().uri(path).body(()).unwrap())
        }

        fn shown(&self) -> String {
            let mut text = String::new();
            encode(&mut text, &self.registry).unwrap();
            text
        }
    }

    const ASK: &str = "/test.v1.Probe/Ask";

    #[tokio::test]
    async fn a_call_is_counted_by_the_code_that_its_caller_received() {
        let bench = Bench::new();
        bench.call(ASK, None).await.unwrap();
        bench.call(ASK, None).await.unwrap();
        bench.call(ASK, Some(Code::NotFound)).await.unwrap();
        // A caller that cancels before the response.
        let never = service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, Infallible>>());
        let request = Request::builder().uri(ASK).body(()).unwrap();
        let unanswered = bench.layer.layer(never).oneshot(request);
        assert!(futures_util::FutureExt::now_or_never(unanswered).is_none());
        for path in ["/test.v1.Probe/MadeUp", "/grpc.health.v1.Health/Check", "/"] {
            bench.call(path, None).await.unwrap();
        }
        let shown = bench.shown();
        for (code, count) in [("OK", 2), ("NotFound", 1), ("Cancelled", 1)] {
            let line = format!(
                "muster_calls_total{{service=\"test.v1.Probe\",method=\"Ask\",code=\"{code}\"}} {count}"
            );
            assert!(shown.lines().any(|each| each == line), "{line} is not in\n{shown}");
        }
        let count = "muster_call_seconds_count{service=\"test.v1.Probe\",method=\"Ask\"} 4";
        assert!(shown.lines().any(|line| line == count), "{shown}");
        assert!(!shown.contains("MadeUp") && !shown.contains("Health"), "{shown}");
    }

    #[tokio::test]
    async fn the_trace_of_a_call_is_found_in_its_bucket() {
        let (bench, caller) = (Bench::new(), elsewhere(true));
        Span::of(caller).around(bench.call(ASK, None)).await.unwrap();
        let trace = caller.trace_id();
        assert!(bench.shown().contains(&format!("# {{trace_id=\"{trace}\"}}")), "{}", bench.shown());
    }

    #[tokio::test]
    async fn without_metrics_calls_pass() {
        let layer = CallMetricsLayer::new(None, b"not a schema").unwrap();
        let service =
            layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) }));
        service.oneshot(Request::builder().uri(ASK).body(()).unwrap()).await.unwrap();
    }
}
