//! Too many calls, expired deadlines and handlers that panic.

use std::net::SocketAddr;
use std::time::Duration;

use muster_rpc::server::ServerConfig;
use tonic::codegen::http::{HeaderMap, Method, Request};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use crate::probe::{PROBE, patiently, start_plain};

#[tokio::test]
async fn a_call_beyond_the_limit_is_refused_while_health_checks_are_answered() {
    let server = start_plain(ServerConfig { max_in_flight: 1, ..ServerConfig::default() }).await;
    let client = server.connect().await;
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.call("Wait").await }
    });
    patiently(server.probe.entered.acquire()).await.unwrap().forget();

    let refused = client.call("WhoAmI").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let expected = "too many calls in flight on this connection: limit 1 (from --max-in-flight)";
    assert_eq!(refused.message(), expected);
    let details = refused.get_error_details();
    assert_eq!(details.error_info().unwrap().reason, "TOO_MANY_IN_FLIGHT");
    assert_eq!(details.retry_info().unwrap().retry_delay, Some(Duration::from_millis(100)));
    let mut health = HealthClient::new(client.channel.clone());
    patiently(health.check(HealthCheckRequest::default())).await.unwrap();

    server.probe.gate.add_permits(1);
    assert_eq!(first.await.unwrap().unwrap(), "waited");
    assert_eq!(client.call("WhoAmI").await.unwrap(), "admin");
}

#[tokio::test]
async fn an_open_stream_takes_no_permit_and_has_no_deadline() {
    // The call that opens the stream has to be answered within it.
    let deadline = Duration::from_secs(1);
    let config = ServerConfig {
        max_in_flight: 1,
        default_deadline: deadline,
        max_deadline: deadline,
        ..ServerConfig::default()
    };
    let server = start_plain(config).await;
    let client = server.connect().await;
    let mut stream = client.talk().await.unwrap();
    assert_eq!(patiently(stream.message()).await.unwrap().as_deref(), Some("first"));

    // This call exceeds the deadline, which shows that the deadline has passed for the stream as well.
    assert_eq!(client.call("Wait").await.unwrap_err().code(), Code::DeadlineExceeded);

    server.probe.gate.add_permits(1);
    assert_eq!(patiently(stream.message()).await.unwrap().as_deref(), Some("second"));
    assert_eq!(patiently(stream.message()).await.unwrap(), None);
}

/// Calls `Wait` as another gRPC library would: tonic's own client enforces the deadline itself and would hide what the
/// server does.
async fn raw_wait(address: SocketAddr, timeout: &str) -> HeaderMap {
    raw_call(address, timeout, &[0; 5]).await
}

/// Calls `Wait` with these bytes as the whole request; returns the headers or trailers with the status.
async fn raw_call(address: SocketAddr, timeout: &str, request_bytes: &'static [u8]) -> HeaderMap {
    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://{address}/{PROBE}/Wait"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", timeout)
        .body(())
        .unwrap();
    let (response, mut body) = client.send_request(request, false).unwrap();
    body.send_data(request_bytes.into(), true).unwrap();
    let (head, mut body) = response.await.unwrap().into_parts();
    if head.headers.contains_key("grpc-status") {
        return head.headers;
    }
    while let Some(data) = body.data().await {
        data.unwrap();
    }
    body.trailers().await.unwrap().unwrap()
}

#[tokio::test]
async fn the_callers_deadline_applies_and_an_invalid_one_is_ignored() {
    let server = start_plain(ServerConfig::default()).await;
    for timeout in ["20m", "1u", "0n"] {
        let answer = patiently(raw_wait(server.address, timeout)).await;
        assert_eq!(answer["grpc-status"], "4", "DEADLINE_EXCEEDED for {timeout}");
        assert!(answer.contains_key("grpc-status-details-bin"), "with a reason for programs");
    }
    server.probe.gate.add_permits(1);
    let answer = patiently(raw_wait(server.address, "soon")).await;
    assert_eq!(answer["grpc-status"], "0");
}

#[tokio::test]
async fn a_message_that_cannot_be_decoded_is_the_callers_mistake() {
    let server = start_plain(ServerConfig::default()).await;
    // A string of 127 bytes, of which the message has one.
    let answer = patiently(raw_call(server.address, "1M", b"\0\0\0\0\x03\x0a\x7fx")).await;
    let status = Status::from_header_map(&answer).unwrap();
    assert_eq!(status.code(), Code::InvalidArgument);
    let expected = "the message is not the protobuf message that this method takes: buffer underflow";
    assert_eq!(status.message(), expected);
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "UNDECODABLE");
}

#[tokio::test]
async fn one_connection_carries_more_streams_than_hypers_default() {
    let server = start_plain(ServerConfig::default()).await;
    let client = server.connect().await;
    let mut streams = Vec::new();
    for _ in 0..300 {
        let mut stream = client.talk().await.unwrap();
        assert_eq!(patiently(stream.message()).await.unwrap().as_deref(), Some("first"));
        streams.push(stream);
    }
}

#[tokio::test]
async fn a_handler_that_panics_fails_only_its_own_call() {
    let server = start_plain(ServerConfig::default()).await;
    let client = server.connect().await;
    let status = client.call("Panic").await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "INTERNAL");
    assert_eq!(client.call("WhoAmI").await.unwrap(), "admin");
}
