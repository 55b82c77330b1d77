use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;

use http_body::{Body, Frame};
use opentelemetry::trace::Status as SpanStatus;
use opentelemetry_sdk::trace::SpanData;
use tonic::codegen::Bytes;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::admission::connection::Peer;
use crate::trace::tests::{elsewhere, recorder};

const GRPC_STATUS: &str = "grpc-status";

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    span.attributes.iter().find(|kv| kv.key.as_str() == key).map(|kv| kv.value.to_string())
}

/// The spans of a trace that have ended.
fn spans(of: Traceparent) -> Vec<SpanData> {
    recorder().spans(of.trace_id())
}

/// A response body of prepared frames.
struct Frames(VecDeque<Frame<Bytes>>);

impl Frames {
    fn message_then_status(status: &'static str) -> Frames {
        let mut trailers = HeaderMap::new();
        trailers.insert(GRPC_STATUS, HeaderValue::from_static(status));
        Frames([Frame::data(Bytes::new()), Frame::trailers(trailers)].into())
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

async fn next_frame(body: &mut TraceBody<Frames>) -> Option<Frame<Bytes>> {
    std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await.map(|frame| frame.unwrap())
}

/// Calls `path` on a handler that answers with a body ending in `status`.
async fn call(path: &str, parent: Traceparent, status: &'static str) -> TraceBody<Frames> {
    let service = TraceLayer::default().layer(service_fn(move |_: Request<()>| async move {
        Ok::<_, Infallible>(Response::new(Frames::message_then_status(status)))
    }));
    let mut request = Request::builder().uri(format!("http://store:7400{path}")).body(()).unwrap();
    request.headers_mut().insert(TRACEPARENT, parent.to_string().parse().unwrap());
    let peer = Some("10.0.0.7:4321".parse().unwrap());
    request.extensions_mut().insert(Peer::at(peer));
    service.oneshot(request).await.unwrap().into_body()
}

#[tokio::test]
async fn a_span_lasts_until_the_trailers_and_records_their_status() {
    let parent = elsewhere(true);
    let mut body = call("/muster.v1.NodeService/WatchNodes", parent, "0").await;
    assert!(next_frame(&mut body).await.unwrap().is_data());
    assert!(spans(parent).is_empty(), "a stream's span is its whole life");
    assert!(next_frame(&mut body).await.unwrap().is_trailers());

    let spans = spans(parent);
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(span.name, "muster.v1.NodeService/WatchNodes");
    assert_eq!(span.span_kind, SpanKind::Server);
    assert_eq!(span.status, SpanStatus::Unset);
    assert_eq!(span.parent_span_id, parent.span_id());
    for (key, expected) in [
        ("rpc.system", "grpc"),
        ("rpc.service", "muster.v1.NodeService"),
        ("rpc.method", "WatchNodes"),
        ("rpc.grpc.status_code", "0"),
        ("server.address", "store"),
        ("server.port", "7400"),
        ("network.peer.address", "10.0.0.7"),
        ("network.peer.port", "4321"),
    ] {
        assert_eq!(attribute(span, key).as_deref(), Some(expected), "{key}");
    }
}

#[tokio::test]
async fn a_span_fails_where_the_server_does() {
    for (status, failed) in [("0", false), ("5", false), ("9", false), ("13", true), ("14", true)] {
        let parent = elsewhere(true);
        let mut body = call("/muster.v1.NodeService/GetNode", parent, status).await;
        while next_frame(&mut body).await.is_some() {}
        let spans = spans(parent);
        assert_eq!(attribute(&spans[0], "rpc.grpc.status_code").as_deref(), Some(status));
        assert_eq!(matches!(spans[0].status, SpanStatus::Error { .. }), failed, "status {status}");
    }
}

#[tokio::test]
async fn a_caller_that_cancels_leaves_a_cancelled_span() {
    let parent = elsewhere(true);
    drop(call("/muster.v1.NodeService/WatchNodes", parent, "0").await);
    assert_eq!(attribute(&spans(parent)[0], "rpc.grpc.status_code").as_deref(), Some("1"));
}

#[tokio::test]
async fn a_response_without_a_body_ends_the_span_with_the_status_in_its_head() {
    let parent = elsewhere(true);
    let service = TraceLayer::default().layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(tonic::Status::not_found("no such node").into_http::<tonic::body::Body>())
    }));
    let mut request = Request::builder().uri("/muster.v1.NodeService/GetNode").body(()).unwrap();
    request.headers_mut().insert(TRACEPARENT, parent.to_string().parse().unwrap());
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(attribute(&spans(parent)[0], "rpc.grpc.status_code").as_deref(), Some("5"));
    drop(response);
}

#[tokio::test]
async fn probes_and_unsampled_calls_leave_no_span() {
    let (sampled, unsampled) = (elsewhere(true), elsewhere(false));
    for (path, parent) in [
        ("/grpc.health.v1.Health/Check", sampled),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", sampled),
        ("/muster.v1.NodeService/GetNode", unsampled),
    ] {
        let mut body = call(path, parent, "0").await;
        while next_frame(&mut body).await.is_some() {}
    }
    assert!(spans(sampled).is_empty());
    assert!(spans(unsampled).is_empty());
}

/// The traceparent that a handler called with `traceparent` would store in a change, and send with its own calls.
async fn passed_on(parent: Traceparent) -> (Option<String>, Option<String>) {
    let handler = service_fn(|_: Request<()>| async {
        let sent = InjectLayer.layer(service_fn(|request: Request<()>| async move {
            let header = request.headers().get(TRACEPARENT).map(|value| value.to_str().unwrap().to_owned());
            let mut response = Response::new(Frames::message_then_status("0"));
            response.extensions_mut().insert(header);
            Ok::<_, Infallible>(response)
        }));
        let called = Request::builder().uri("/muster.v1.PodService/GetPod").body(()).unwrap();
        let answer = sent.oneshot(called).await?;
        let sent = answer.extensions().get::<Option<String>>().cloned().unwrap();
        let mut response = Response::new(Frames(VecDeque::new()));
        response.extensions_mut().insert((current_traceparent(), sent));
        Ok::<_, Infallible>(response)
    });
    let mut request = Request::builder().uri("/muster.v1.NodeService/CreateNode").body(()).unwrap();
    request.headers_mut().insert(TRACEPARENT, HeaderValue::try_from(parent.to_string()).unwrap());
    let response = TraceLayer::default().layer(handler).oneshot(request).await.unwrap();
    response.extensions().get::<(Option<String>, Option<String>)>().cloned().unwrap()
}

#[tokio::test]
async fn the_trace_is_propagated_and_so_is_the_decision_not_to_record_it() {
    let parent = elsewhere(true);
    let (written, sent) = passed_on(parent).await;
    let place = |text: &Option<String>| Traceparent::parse(text.as_deref().unwrap()).unwrap();
    let (written, sent) = (place(&written), place(&sent));
    assert_eq!((written.trace_id(), written.is_sampled()), (parent.trace_id(), true));
    assert_eq!((sent.trace_id(), sent.is_sampled()), (parent.trace_id(), true));
    let all = [parent, written, sent].map(Traceparent::span_id);
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2], "each end has a span of its own");

    let parent = elsewhere(false);
    let (written, sent) = passed_on(parent).await;
    assert_eq!(written, None, "a span that is not recorded cannot be looked up");
    let sent = place(&sent);
    assert_eq!((sent.trace_id(), sent.is_sampled()), (parent.trace_id(), false));
}

/// Calls out below `parent`; the server answers with `status`, or not at all.
async fn call_out(parent: Traceparent, status: Option<&'static str>) {
    let server = service_fn(move |_: Request<()>| async move {
        status.map(|status| Response::new(Frames::message_then_status(status))).ok_or("no server listens")
    });
    let client = InjectLayer.layer(server).to(&"http://[::1]:7400".parse().unwrap());
    let request = Request::builder().uri("/muster.v1.PodService/DeletePod").body(()).unwrap();
    let span = trace::span("outer").below(parent).begin();
    if let Ok(response) = span.around(client.oneshot(request)).await {
        let mut body = response.into_body();
        while next_frame(&mut body).await.is_some() {}
    }
}

#[tokio::test]
async fn a_callers_span_fails_for_every_code_but_ok() {
    for (status, code, failed) in
        [(Some("0"), "0", false), (Some("5"), "5", true), (Some("14"), "14", true), (None, "14", true)]
    {
        let parent = elsewhere(true);
        call_out(parent, status).await;
        let spans = spans(parent);
        let [span, outer] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!(span.name, "muster.v1.PodService/DeletePod");
        assert_eq!(span.span_kind, SpanKind::Client);
        assert_eq!(span.parent_span_id, outer.span_context.span_id());
        assert_eq!(matches!(span.status, SpanStatus::Error { .. }), failed, "status {status:?}");
        for (key, expected) in [
            ("rpc.service", "muster.v1.PodService"),
            ("rpc.method", "DeletePod"),
            ("rpc.grpc.status_code", code),
            ("server.address", "::1"),
            ("server.port", "7400"),
        ] {
            assert_eq!(attribute(span, key).as_deref(), Some(expected), "{key}");
        }
    }
}
