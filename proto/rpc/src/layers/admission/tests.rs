use super::*;

use std::convert::Infallible;

use prost_types::{FileDescriptorProto, MethodDescriptorProto, ServiceDescriptorProto};
use tokio::sync::Semaphore;
use tower::{ServiceExt, service_fn};

use crate::admission::Totals;

const GET: &str = "/muster.v1.NodeService/GetNode";
const WATCH: &str = "/muster.v1.NodeService/WatchNodes";
const HEARTBEAT: &str = "/muster.v1.HeartbeatService/Heartbeat";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// A layer with these totals, and a connection to its server.
fn layer(calls: usize, streams: usize) -> (AdmissionLayer, Peer) {
    let watch = MethodDescriptorProto {
        name: Some("WatchNodes".into()),
        server_streaming: Some(true),
        ..Default::default()
    };
    let service = ServiceDescriptorProto {
        name: Some("NodeService".into()),
        method: vec![watch],
        ..Default::default()
    };
    let file = FileDescriptorProto {
        package: Some("muster.v1".into()),
        service: vec![service],
        ..Default::default()
    };
    let server = Server::new(Totals { calls, streams, bytes: 1 << 20 });
    let connection = server.connection(Identity::without_tls());
    let peer = Peer { address: None, connection, certificates: None };
    (
        AdmissionLayer::new(server, &FileDescriptorSet { file: vec![file] }.encode_to_vec(), &HashSet::new())
            .unwrap(),
        peer,
    )
}

fn call(path: &str, peer: &Peer) -> Request<Body> {
    Request::builder().uri(path).extension(peer.clone()).body(Body::default()).unwrap()
}

fn status<B>(response: &Response<B>) -> Option<Status> {
    Status::from_header_map(response.headers())
}

#[tokio::test]
async fn a_call_beyond_the_limit_is_refused_at_once_with_a_reason() {
    let gate = Arc::new(Semaphore::new(0));
    let (layer, peer) = layer(1, 100);
    let server = Arc::clone(&layer.server);
    let handler = {
        let gate = Arc::clone(&gate);
        service_fn(move |request: Request<Body>| {
            let gate = Arc::clone(&gate);
            async move {
                if request.uri().path() == GET {
                    gate.acquire().await.unwrap().forget();
                }
                Ok::<_, Status>(Response::new(Body::default()))
            }
        })
    };
    let service = layer.layer(handler);

    let first = tokio::spawn(service.clone().oneshot(call(GET, &peer)));
    while server.in_flight() == 0 {
        tokio::task::yield_now().await;
    }

    let refused = status(&service.clone().oneshot(call(GET, &peer)).await.unwrap()).unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let expected = "too many calls in flight on this connection: limit 1 (from --max-in-flight)";
    assert_eq!(refused.message(), expected);
    let details = refused.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.domain.as_str()), ("TOO_MANY_IN_FLIGHT", "muster.dev"));
    assert_eq!(info.metadata["name"], "in-flight-per-connection");
    assert_eq!(info.metadata["limit"], "1");
    assert_eq!(details.retry_info().unwrap().retry_delay, Some(RETRY_AFTER));

    let probe = service.clone().oneshot(call(HEALTH, &peer)).await.unwrap();
    assert!(status(&probe).is_none(), "a full server still answers its probes");

    gate.add_permits(2);
    first.await.unwrap().unwrap();
    assert_eq!(server.in_flight(), 0);
    let after = service.oneshot(call(GET, &peer)).await.unwrap();
    assert!(status(&after).is_none(), "the permit of a finished call is free");
}

#[tokio::test]
async fn a_call_that_is_dropped_releases_its_permit() {
    let (layer, peer) = layer(1, 1);
    let service =
        layer.layer(service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Status>>()));
    let mut abandoned = Box::pin(service.oneshot(call(GET, &peer)));
    assert!(futures_util::poll!(&mut abandoned).is_pending());
    assert_eq!(layer.server.in_flight(), 1);
    drop(abandoned);
    assert_eq!(layer.server.in_flight(), 0);
}

#[tokio::test]
async fn a_stream_counts_until_its_body_is_dropped_and_heartbeats_are_not_affected() {
    let (layer, peer) = layer(100, 128);
    let service = layer
        .layer(service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::default())) }));
    let open = async |path| service.clone().oneshot(call(path, &peer)).await.unwrap();
    let first = open(WATCH).await;
    assert!(status(&first).is_none());

    let refused = status(&open(WATCH).await).unwrap();
    let expected = "too many open streams on this connection: limit 1 (from --max-open-streams)";
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, expected));
    assert_eq!(refused.get_error_details().error_info().unwrap().reason, "TOO_MANY_STREAMS");
    assert!(status(&open(GET).await).is_none(), "it is answered and over");
    assert!(status(&open(HEARTBEAT).await).is_none(), "heartbeats are counted apart");

    drop(first);
    assert!(status(&open(WATCH).await).is_none());
}
