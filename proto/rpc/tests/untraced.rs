//! A process without a collector creates no spans and propagates the trace of its caller.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::convert::Infallible;

use http::{Request, Response};
use muster_rpc::layers::trace::{InjectLayer, TraceLayer};
use muster_rpc::trace::{self, Span, current_traceparent};
use tonic::body::Body;
use tower::{Layer, ServiceExt, service_fn};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The traceparent that a handler called with these headers would store in a change, and send with its own calls.
async fn passed_on(traceparent: Option<&str>) -> [Option<String>; 2] {
    let handler = service_fn(|_: Request<()>| async {
        let server = service_fn(|request: Request<()>| async move {
            let sent = request.headers().get("traceparent").map(|value| value.to_str().unwrap().to_owned());
            let mut response = Response::new(Body::empty());
            response.extensions_mut().insert([current_traceparent(), sent]);
            Ok::<_, Infallible>(response)
        });
        InjectLayer.layer(server).oneshot(Request::new(())).await
    });
    let mut request = Request::builder().uri("/muster.v1.NodeService/CreateNode").body(()).unwrap();
    if let Some(traceparent) = traceparent {
        request.headers_mut().insert("traceparent", traceparent.parse().unwrap());
    }
    let response = TraceLayer::default().layer(handler).oneshot(request).await.unwrap();
    response.extensions().get::<[Option<String>; 2]>().cloned().unwrap()
}

#[tokio::test]
async fn a_trace_passes_through_a_process_without_a_collector() {
    assert!(!trace::is_on());
    assert_eq!(passed_on(Some(PARENT)).await, [Some(PARENT.to_owned()), Some(PARENT.to_owned())]);
    assert_eq!(passed_on(None).await, [None, None]);
    assert_eq!(passed_on(Some("nonsense")).await, [None, None]);
    let span: Span = trace::span("action").begin();
    assert!(!span.is_recorded() && span.place().is_none());
}
