//! A call's span: a child of the caller's `traceparent`, exported to a collector and flushed at shutdown.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::time::Duration;

use muster_rpc::readiness::Readiness;
use muster_rpc::server::{Server, ServerConfig, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::{self, TelemetryFlags};
use muster_rpc::tls::Security;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::mpsc;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

struct Collector(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A running server and where it listens.
async fn serve(routes: Routes, shutdown: &Shutdown) -> String {
    let listener = bind("--listen", "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}", listener.address());
    let server = Server::new(ServerConfig::default(), Security::plain(), shutdown.clone());
    let readiness = Readiness::new(["test.v1.Probe"]);
    tokio::spawn(async move { server.serve(listener, routes, &[], readiness).await });
    url
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let AnyValue { value } = attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?;
    match value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_span_joins_its_callers_trace_and_is_flushed_at_shutdown() {
    let shutdown = Shutdown::new();
    let (sender, mut collected) = mpsc::unbounded_channel();
    let collector = serve(Routes::new(TraceServiceServer::new(Collector(sender))), &shutdown).await;
    // Only calls that the caller sampled are recorded, so the collector's own calls create no spans.
    let flags = TelemetryFlags {
        otlp_endpoint: Some(collector),
        trace_sample_ratio: Some(0.0),
        ..TelemetryFlags::default()
    };
    let guard = telemetry::init("muster-test", &flags).unwrap();
    assert!(guard.exports());
    let again = telemetry::init("muster-test", &flags).unwrap();
    assert!(!again.exports(), "the second call changes nothing");

    let url = serve(Routes::default(), &shutdown).await;
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    for sampled in [Some("01"), Some("00"), None] {
        let mut request = Request::new(String::new());
        if let Some(sampled) = sampled {
            let traceparent = format!("00-{TRACE}-{PARENT}-{sampled}");
            request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
        }
        client.ready().await.unwrap();
        let path = "/test.v1.Probe/Absent".parse().unwrap();
        let refusal = client.unary(request, path, ProstCodec::<String, String>::default()).await.unwrap_err();
        assert_eq!(refusal.code(), Code::Unimplemented);
    }
    tokio::time::timeout(Duration::from_secs(10), guard.shutdown()).await.unwrap();

    let export = collected.try_recv().expect("the flush came before the end of shutdown");
    let resource = export.resource_spans[0].resource.clone().unwrap();
    assert_eq!(attribute(&resource.attributes, "service.name").as_deref(), Some("muster-test"));
    for key in ["service.version", "service.instance.id", "host.name", "telemetry.sdk.language"] {
        assert!(attribute(&resource.attributes, key).is_some(), "{key}");
    }
    let spans: Vec<&Span> =
        export.resource_spans[0].scope_spans.iter().flat_map(|scope| &scope.spans).collect();
    let [span] = spans[..] else { panic!("one sampled call, one span: {spans:?}") };
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!(span.name, "test.v1.Probe/Absent");
    for (key, expected) in [
        ("rpc.system", "grpc"),
        ("rpc.service", "test.v1.Probe"),
        ("rpc.method", "Absent"),
        ("rpc.grpc.status_code", "12"),
        ("server.address", "127.0.0.1"),
        ("network.peer.address", "127.0.0.1"),
    ] {
        assert_eq!(attribute(&span.attributes, key).as_deref(), Some(expected), "{key}");
    }
    assert!(collected.try_recv().is_err(), "the calls that were not sampled left nothing");
}
