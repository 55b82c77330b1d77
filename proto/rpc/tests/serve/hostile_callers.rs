//! Callers that take more than their share, send nothing or send half: others do not notice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use muster_rpc::server::ServerConfig;
use prost::bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{Method, Request};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use crate::mutual_tls::{Authority, connect_as, start_secure};
use crate::probe::{Client, PROBE, patiently, start_plain};

/// The largest deadline that gRPC can express.
const FOREVER: &str = "99999999H";

/// Opens so many calls of `Wait` whose requests are never sent, and returns when all but `admitted` were refused.
async fn hold(client: &Client, calls: usize, admitted: usize) -> (JoinHandle<()>, Vec<Status>) {
    let mut open: FuturesUnordered<_> = (0..calls).map(|_| client.clone()).map(half_open).collect();
    let mut refused = Vec::new();
    while open.len() > admitted {
        refused.push(patiently(open.next()).await.unwrap().unwrap_err());
    }
    let held = tokio::spawn(async move { while open.next().await.is_some() {} });
    (held, refused)
}

async fn half_open(client: Client) -> Result<String, Status> {
    client.half_open("Wait", FOREVER).await
}

#[tokio::test]
async fn a_caller_without_a_role_is_refused_before_its_request_is_read() {
    let authority = Authority::new();
    let server = start_secure(ServerConfig { max_in_flight: 1, ..ServerConfig::default() }, &authority).await;
    let stranger = connect_as(&server, &authority.client("node:c", "guests")).await;
    let (_held, refused) = hold(&stranger, 20, 0).await;
    for status in refused {
        assert_eq!(status.code(), Code::PermissionDenied);
        let expected = "unknown caller (CN=node:c O=guests) may not call test.v1.Probe/Wait: the caller's certificate \
                        gives it no role";
        assert_eq!(status.message(), expected);
        assert_eq!(status.get_error_details().error_info().unwrap().reason, "PERMISSION_DENIED");
    }
    assert_eq!(server.probe.entered.available_permits(), 0);
    patiently(HealthClient::new(stranger.channel.clone()).check(HealthCheckRequest::default()))
        .await
        .unwrap();
}

#[tokio::test]
async fn half_open_calls_on_one_connection_leave_places_to_the_others() {
    let server = start_plain(ServerConfig { max_in_flight: 16, ..ServerConfig::default() }).await;
    let (hostile, other) = (server.connect().await, server.connect().await);
    let (held, refused) = hold(&hostile, 20, 2).await;
    for status in refused {
        assert_eq!(status.code(), Code::ResourceExhausted);
        let expected = "too many calls in flight on this connection: limit 2 (from --max-in-flight)";
        assert_eq!(status.message(), expected);
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!(info.reason, "TOO_MANY_IN_FLIGHT");
        assert_eq!(
            (info.metadata["name"].as_str(), info.metadata["limit"].as_str()),
            ("in-flight-per-connection", "2")
        );
        assert!(details.retry_info().is_some());
    }
    assert_eq!(other.call("WhoAmI").await.unwrap(), "admin");

    held.abort();
    let answered = async {
        while hostile.call("WhoAmI").await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    patiently(answered).await;
}

#[tokio::test]
async fn each_certificate_has_its_own_places_and_shares_them_between_its_connections() {
    let authority = Authority::new();
    let server =
        start_secure(ServerConfig { max_in_flight: 16, ..ServerConfig::default() }, &authority).await;
    let (eva, joe) = (authority.client("eva", "muster:viewers"), authority.client("joe", "muster:viewers"));
    let mut held = Vec::new();
    for _ in 0..2 {
        let (calls, refused) = hold(&connect_as(&server, &eva).await, 3, 1).await;
        held.push(calls);
        for status in refused {
            let expected = "too many calls in flight on this connection: limit 1 (from --max-in-flight)";
            assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, expected));
        }
    }
    let refused = connect_as(&server, &eva).await.call("WhoAmI").await.unwrap_err();
    let expected = "too many calls in flight of this caller: limit 2 (from --max-in-flight)";
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, expected));
    assert_eq!(connect_as(&server, &joe).await.call("WhoAmI").await.unwrap(), "viewer");
}

#[tokio::test]
async fn heartbeats_have_places_in_reserve() {
    let server = start_plain(ServerConfig { max_in_flight: 8, ..ServerConfig::default() }).await;
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(hold(&server.connect().await, 1, 1).await);
    }
    // The half-open calls have arrived when one more is refused.
    let client = server.connect().await;
    let full = async {
        loop {
            match client.call("WhoAmI").await {
                Ok(_) => tokio::task::yield_now().await,
                Err(status) => break status,
            }
        }
    };
    let refused = patiently(full).await;
    let expected = "too many calls in flight: limit 6 (from --max-in-flight)";
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, expected));
    let heartbeat = PathAndQuery::from_static("/muster.v1.HeartbeatService/Heartbeat");
    let admitted = client.call_path(heartbeat).await.unwrap_err();
    assert_eq!(admitted.code(), Code::Unimplemented, "it reached the router, which has no such method here");
}

#[tokio::test]
async fn a_caller_cannot_set_a_longer_deadline_than_the_maximum() {
    let config = ServerConfig { max_deadline: Duration::from_millis(100), ..ServerConfig::default() };
    let client = start_plain(config).await.connect().await;
    let ended = patiently(client.half_open("Wait", FOREVER)).await.unwrap_err();
    assert_eq!(ended.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn open_streams_are_bounded_and_a_dropped_one_makes_place() {
    let server = start_plain(ServerConfig { max_open_streams: 256, ..ServerConfig::default() }).await;
    let client = server.connect().await;
    let mut streams = vec![client.talk().await.unwrap(), client.talk().await.unwrap()];
    let refused = client.talk().await.unwrap_err();
    let expected = "too many open streams on this connection: limit 2 (from --max-open-streams)";
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, expected));
    assert_eq!(refused.get_error_details().error_info().unwrap().reason, "TOO_MANY_STREAMS");
    server.connect().await.talk().await.unwrap();

    streams.pop();
    let reopened = async {
        while client.talk().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    patiently(reopened).await;
}

/// A connection without a gRPC library.
async fn raw_connection<IO>(io: IO) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (client, connection) = patiently(h2::client::handshake(io)).await.unwrap();
    let connection = tokio::spawn(connection);
    (client.ready().await.unwrap(), connection)
}

/// Begins a call of `Wait` with these bytes.
fn raw_call(
    client: &mut SendRequest<Bytes>,
    address: SocketAddr,
    sent: Bytes,
) -> (ResponseFuture, SendStream<Bytes>) {
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://{address}/{PROBE}/Wait"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut body) = client.send_request(request, false).unwrap();
    body.send_data(sent, false).unwrap();
    (response, body)
}

#[tokio::test]
async fn unfinished_requests_are_bounded_in_bytes() {
    let server = start_plain(ServerConfig { max_request_bytes: 4 << 20, ..ServerConfig::default() }).await;
    let tcp = TcpStream::connect(server.address).await.unwrap();
    let (mut client, _connection) = raw_connection(tcp).await;
    // The first byte of a message of 1 MiB, which is the whole share of the connection. One of two is refused.
    let begun = Bytes::from_static(&[0, 0, 0x10, 0, 0, b'x']);
    let (first, _body) = raw_call(&mut client, server.address, begun.clone());
    let (second, _other_body) = raw_call(&mut client, server.address, begun);
    let (head, mut waiting) = patiently(select(first, second)).await.factor_first();
    let status = Status::from_header_map(head.unwrap().headers()).unwrap();
    let expected =
        "too many bytes of unfinished requests on this connection: limit 1048576 (from --max-request-bytes)";
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, expected));
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "TOO_MANY_REQUEST_BYTES");
    assert_eq!(server.connect().await.call("WhoAmI").await.unwrap(), "admin");
    assert!(futures_util::poll!(&mut waiting).is_pending(), "the other request is still awaited");
}

/// Completes a TLS handshake, and sends nothing more.
async fn raw_tls(address: SocketAddr, authority: &Authority) -> TlsStream<TcpStream> {
    let [cert, key] = authority.issue("eva", "muster:viewers");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.path("ca.pem")).unwrap()).unwrap();
    let own = vec![CertificateDer::from_pem_file(cert).unwrap()];
    let config = ClientConfig::builder().with_root_certificates(roots);
    let mut config = config.with_client_auth_cert(own, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    patiently(TlsConnector::from(Arc::new(config)).connect(name, tcp)).await.unwrap()
}

/// Returns when the server has closed the connection.
async fn is_closed(mut io: impl AsyncRead + Unpin) {
    let mut received = Vec::new();
    // It ends with an error if the server closes it without the end of TLS.
    let _ = patiently(io.read_to_end(&mut received)).await;
}

#[tokio::test]
async fn a_connection_that_does_not_begin_http_2_is_closed_and_an_idle_one_is_not() {
    let authority = Authority::new();
    let config = ServerConfig { handshake_timeout: Duration::from_millis(300), ..ServerConfig::default() };
    let plain = start_plain(config.clone()).await;
    let secure = start_secure(config, &authority).await;
    let (mut idle, idle_connection) = raw_connection(TcpStream::connect(plain.address).await.unwrap()).await;
    let (mut idle_tls, idle_tls_connection) = raw_connection(raw_tls(secure.address, &authority).await).await;

    is_closed(TcpStream::connect(plain.address).await.unwrap()).await;
    let mut half_preface = TcpStream::connect(plain.address).await.unwrap();
    half_preface.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    is_closed(half_preface).await;
    is_closed(TcpStream::connect(secure.address).await.unwrap()).await;
    is_closed(raw_tls(secure.address, &authority).await).await;
    let mut half_record = raw_tls(secure.address, &authority).await;
    half_record.get_mut().0.write_all(&[23, 3, 3, 64, 0, 1, 2, 3]).await.unwrap();
    is_closed(half_record).await;

    // All of these were opened after the idle ones, and have been closed.
    assert!(!idle_connection.is_finished() && !idle_tls_connection.is_finished());
    let empty_request = Bytes::from_static(&[0; 5]);
    for (server, client) in [(&plain, &mut idle), (&secure, &mut idle_tls)] {
        server.probe.gate.add_permits(1);
        let (response, mut body) = raw_call(client, server.address, empty_request.clone());
        body.send_data(Bytes::new(), true).unwrap();
        assert!(patiently(response).await.unwrap().status().is_success());
    }
}
