use super::*;
use opentelemetry::trace::{SpanKind, Status as SpanStatus, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider, SpanData};
use std::collections::VecDeque;
use std::convert::Infallible;
use tower::{ServiceExt, service_fn};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

#[test]
fn a_traceparent_is_read_as_the_w3c_writes_it() {
    for (text, expected) in [
        (PARENT, Some(PARENT)),
        (UNSAMPLED, Some(UNSAMPLED)),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", Some(PARENT)),
        ("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", Some(PARENT)),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", None),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
        ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
        ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
        ("00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01", None),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", None),
        ("00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
        ("", None),
    ] {
        let found = parse_traceparent(text).map(|context| format_traceparent(&context));
        assert_eq!(found.as_deref(), expected, "{text:?}");
    }
}

/// Spans recorded on this thread while it lives.
struct Recorder {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
    _installed: DefaultGuard,
}

impl Recorder {
    fn install() -> Recorder {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            .with_simple_exporter(exporter.clone())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let installed = tracing_subscriber::registry().with(layer).set_default();
        Recorder { exporter, provider, _installed: installed }
    }

    fn spans(&self) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        self.exporter.get_finished_spans().unwrap()
    }
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    span.attributes.iter().find(|kv| kv.key.as_str() == key).map(|kv| kv.value.to_string())
}

/// A response body of prepared frames.
struct Frames(VecDeque<Frame<tonic::codegen::Bytes>>);

impl Frames {
    fn message_then_status(status: &'static str) -> Frames {
        let mut trailers = HeaderMap::new();
        trailers.insert(GRPC_STATUS, HeaderValue::from_static(status));
        Frames([Frame::data(tonic::codegen::Bytes::new()), Frame::trailers(trailers)].into())
    }
}

impl Body for Frames {
    type Data = tonic::codegen::Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

async fn next_frame(body: &mut TraceBody<Frames>) -> Option<Frame<tonic::codegen::Bytes>> {
    std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await.map(|frame| frame.unwrap())
}

/// Calls `path` on a handler that answers with a body ending in `status`.
async fn call(path: &str, traceparent: Option<&str>, status: &'static str) -> TraceBody<Frames> {
    let service = TraceLayer.layer(service_fn(move |_: Request<()>| async move {
        Ok::<_, Infallible>(Response::new(Frames::message_then_status(status)))
    }));
    let mut request = Request::builder().uri(path).body(()).unwrap();
    if let Some(traceparent) = traceparent {
        request.headers_mut().insert(TRACEPARENT, traceparent.parse().unwrap());
    }
    service.oneshot(request).await.unwrap().into_body()
}

#[tokio::test]
async fn a_span_lasts_until_the_trailers_and_records_their_status() {
    let recorder = Recorder::install();
    let mut body = call("/muster.v1.NodeService/WatchNodes", Some(PARENT), "0").await;
    assert!(next_frame(&mut body).await.unwrap().is_data());
    assert!(recorder.spans().is_empty(), "a stream's span is its whole life");
    assert!(next_frame(&mut body).await.unwrap().is_trailers());

    let spans = recorder.spans();
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(span.name, "muster.v1.NodeService/WatchNodes");
    assert_eq!(span.span_kind, SpanKind::Server);
    assert_eq!(span.status, SpanStatus::Unset);
    let parent = parse_traceparent(PARENT).unwrap();
    assert_eq!((span.span_context.trace_id(), span.parent_span_id), (parent.trace_id(), parent.span_id()));
    for (key, expected) in [
        ("rpc.system", "grpc"),
        ("rpc.service", "muster.v1.NodeService"),
        ("rpc.method", "WatchNodes"),
        ("rpc.grpc.status_code", "0"),
    ] {
        assert_eq!(attribute(span, key).as_deref(), Some(expected), "{key}");
    }
}

#[tokio::test]
async fn a_span_fails_where_the_server_does() {
    for (status, failed) in [("0", false), ("5", false), ("9", false), ("13", true), ("14", true)] {
        let recorder = Recorder::install();
        let mut body = call("/muster.v1.NodeService/GetNode", None, status).await;
        while next_frame(&mut body).await.is_some() {}
        let spans = recorder.spans();
        assert_eq!(attribute(&spans[0], "rpc.grpc.status_code").as_deref(), Some(status));
        assert_eq!(matches!(spans[0].status, SpanStatus::Error { .. }), failed, "status {status}");
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_a_cancelled_span() {
    let recorder = Recorder::install();
    drop(call("/muster.v1.NodeService/WatchNodes", None, "0").await);
    assert_eq!(attribute(&recorder.spans()[0], "rpc.grpc.status_code").as_deref(), Some("1"));
}

#[tokio::test]
async fn a_refusal_without_a_body_ends_the_span_by_its_head() {
    let recorder = Recorder::install();
    let service = TraceLayer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(tonic::Status::not_found("no such node").into_http::<tonic::body::Body>())
    }));
    let request = Request::builder().uri("/muster.v1.NodeService/GetNode").body(()).unwrap();
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(attribute(&recorder.spans()[0], "rpc.grpc.status_code").as_deref(), Some("5"));
    drop(response);
}

#[tokio::test]
async fn probes_and_unsampled_calls_leave_no_span() {
    let recorder = Recorder::install();
    for (path, traceparent) in [
        ("/grpc.health.v1.Health/Check", None),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Some(PARENT)),
        ("/muster.v1.NodeService/GetNode", Some(UNSAMPLED)),
    ] {
        let mut body = call(path, traceparent, "0").await;
        while next_frame(&mut body).await.is_some() {}
    }
    assert!(recorder.spans().is_empty());
}

/// What a handler called with `traceparent` would write into a change, and send along when it calls on.
async fn passed_on(traceparent: &'static str) -> (Option<String>, Option<String>) {
    let handler = service_fn(|_: Request<()>| async {
        let sent = InjectLayer.layer(service_fn(|request: Request<()>| async move {
            let header = request.headers().get(TRACEPARENT).map(|value| value.to_str().unwrap().to_owned());
            Ok::<_, Infallible>(header)
        }));
        let sent = sent.oneshot(Request::new(())).await?;
        let mut response = Response::new(Frames(VecDeque::new()));
        response.extensions_mut().insert((current_traceparent(), sent));
        Ok::<_, Infallible>(response)
    });
    let mut request = Request::builder().uri("/muster.v1.NodeService/CreateNode").body(()).unwrap();
    request.headers_mut().insert(TRACEPARENT, HeaderValue::from_static(traceparent));
    let response = TraceLayer.layer(handler).oneshot(request).await.unwrap();
    response.extensions().get::<(Option<String>, Option<String>)>().cloned().unwrap()
}

#[tokio::test]
async fn the_trace_travels_on_and_so_does_the_decision_not_to_record_it() {
    let _recorder = Recorder::install();
    let (written, sent) = passed_on(PARENT).await;
    assert_eq!(written, sent);
    let written = written.unwrap();
    assert!(
        written.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && written.ends_with("-01"),
        "{written}"
    );
    assert_ne!(written, PARENT, "the parent of what follows is our span, not our caller's");

    let (written, sent) = passed_on(UNSAMPLED).await;
    assert_eq!(written, None, "nobody will ever look for it");
    let sent = sent.unwrap();
    assert!(sent.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && sent.ends_with("-00"), "{sent}");
}

#[tokio::test]
async fn without_a_collector_there_is_nothing_to_pass_on() {
    let _nobody = tracing_subscriber::registry().set_default();
    assert_eq!(passed_on(PARENT).await, (None, None));
    assert_eq!(current_traceparent(), None);
}
