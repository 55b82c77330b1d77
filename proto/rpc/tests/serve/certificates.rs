//! Certificates that change, are revoked or expire while a server runs, and the ends of connections.

use std::fs;
use std::time::Duration;

use muster_rpc::clock::{Clock, SystemClock};
use muster_rpc::server::ServerConfig;
use muster_rpc::tls::{ClientTls, Revocations, RevokedCertificates, Security};

use tonic::Code;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::mutual_tls::{Authority, connect_as, security, start_secure, who_am_i};
use crate::probe::{Client, Running, patiently, start, start_plain, start_server};

fn reload(security: &Security) {
    assert!(security.client().unwrap().credentials().unwrap().reload().unwrap(), "the files have changed");
}

/// Replaces a file by one of another authority.
fn replace(authority: &Authority, by: &Authority, name: &str) {
    fs::copy(by.path(name), authority.path(name)).unwrap();
}

#[tokio::test]
async fn the_authority_is_rotated_under_open_connections() {
    let (old, new) = (Authority::new(), Authority::new());
    let security = security(&old, "store", "muster:stores");
    let server = start(ServerConfig::default(), security.clone()).await;
    let old_client = old.client("eva", "muster:admins");
    let open = connect_as(&server, &old_client).await;
    let bundle = |first: &Authority, second: &Authority| {
        [fs::read(first.path("ca.pem")).unwrap(), fs::read(second.path("ca.pem")).unwrap()].concat()
    };
    let new_client = new.client("joe", "muster:viewers");
    assert!(who_am_i(&server, &new_client).await.is_err(), "not known yet");

    // First both authorities are known everywhere, ...
    let both = bundle(&old, &new);
    fs::write(old.path("ca.pem"), &both).unwrap();
    fs::write(new.path("ca.pem"), &both).unwrap();
    reload(&security);
    assert!(
        old_client.credentials().unwrap().reload().unwrap()
            && new_client.credentials().unwrap().reload().unwrap()
    );
    assert_eq!(who_am_i(&server, &new_client).await.as_deref(), Ok("viewer"));
    assert_eq!(who_am_i(&server, &old_client).await.as_deref(), Ok("admin"));

    // ... then all certificates come from the new one, ...
    new.issue("store", "muster:stores");
    for file in ["store.pem", "store.key"] {
        replace(&old, &new, file);
    }
    reload(&security);
    assert_eq!(who_am_i(&server, &old_client).await.as_deref(), Ok("admin"));

    // ... and at last the old one is not known any more.
    let start_of_new = both.windows(10).rposition(|bytes| bytes == b"-----BEGIN").unwrap();
    fs::write(old.path("ca.pem"), &both[start_of_new..]).unwrap();
    reload(&security);
    assert!(who_am_i(&server, &old_client).await.is_err(), "a certificate of the old authority");
    assert_eq!(who_am_i(&server, &new_client).await.as_deref(), Ok("viewer"));
    assert_eq!(open.call("WhoAmI").await.unwrap(), "admin", "a connection that was open all the time");
}

/// Opens a stream and waits for its first word.
async fn talking(client: &Client) -> tonic::Streaming<String> {
    let mut stream = client.talk().await.unwrap();
    assert_eq!(patiently(stream.message()).await.unwrap().as_deref(), Some("first"));
    stream
}

/// Waits until the server has ended a stream.
async fn ended(server: &Running, mut stream: tonic::Streaming<String>) {
    assert!(patiently(stream.message()).await.is_err(), "the client notices");
    patiently(server.probe.dropped.acquire()).await.unwrap().forget();
}

fn serial(tls: &ClientTls) -> RevokedCertificates {
    RevokedCertificates::Serial(tls.credentials().unwrap().certificate().serial)
}

#[tokio::test]
async fn a_revoked_certificate_loses_its_connections_and_gets_no_new_ones() {
    let authority = Authority::new();
    let revocations = Revocations::default();
    let server = {
        let revocations = revocations.clone();
        let security = security(&authority, "store", "muster:stores");
        start_server(ServerConfig::default(), security, |server| server.revocations(revocations)).await
    };
    let [a, b, eva] = [("node:a", "muster:nodes"), ("node:b", "muster:nodes"), ("eva", "muster:admins")]
        .map(|(name, organization)| authority.client(name, organization));
    let (of_a, of_b, of_eva) =
        (connect_as(&server, &a).await, connect_as(&server, &b).await, connect_as(&server, &eva).await);
    let (stream_a, mut stream_b) = (talking(&of_a).await, talking(&of_b).await);
    let stream_eva = talking(&of_eva).await;

    let issued_until = SystemClock::new().wall();
    let node_a = RevokedCertificates::Subject { common_name: "node:a".into(), issued_until };
    revocations.set(vec![node_a.clone()]);
    ended(&server, stream_a).await;
    assert!(who_am_i(&server, &a).await.is_err());
    assert_eq!(who_am_i(&server, &eva).await.as_deref(), Ok("admin"));

    revocations.set(vec![node_a, serial(&eva)]);
    ended(&server, stream_eva).await;
    assert!(who_am_i(&server, &eva).await.is_err());
    let another = authority.client("eva", "muster:admins");
    assert_eq!(who_am_i(&server, &another).await.as_deref(), Ok("admin"), "another certificate of hers");

    server.probe.gate.add_permits(1);
    assert_eq!(patiently(stream_b.message()).await.unwrap().as_deref(), Some("second"), "untouched");
}

/// A connection without a certificate.
async fn connect_anonymously(server: &Running, authority: &Authority) -> Client {
    let ca = Certificate::from_pem(fs::read(authority.path("ca.pem")).unwrap());
    let endpoint = Endpoint::from_shared(format!("https://localhost:{}", server.address.port())).unwrap();
    let endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(ca)).unwrap();
    Client { channel: patiently(endpoint.connect()).await.unwrap() }
}

#[tokio::test]
async fn a_caller_without_a_certificate_may_call_what_is_open_and_takes_nothing_from_others() {
    let authority = Authority::new();
    let security = security(&authority, "store", "muster:stores");
    let config = ServerConfig { max_in_flight: 64, ..ServerConfig::default() };
    let server = start_server(config, security, |server| {
        server.open_to_anonymous(&["/test.v1.Probe/WhoAmI", "/test.v1.Probe/Wait"])
    })
    .await;
    let stranger = connect_anonymously(&server, &authority).await;
    assert_eq!(stranger.call("WhoAmI").await.unwrap(), "unknown caller (no certificate)");
    let refused = stranger.talk().await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let expected =
        "unknown caller (no certificate) may not call test.v1.Probe/Talk: it needs a certificate with a role";
    assert_eq!(refused.message(), expected);

    // One of 64 calls is the share of all strangers, on however many connections.
    let waiting = tokio::spawn({
        let stranger = stranger.clone();
        async move { stranger.call("Wait").await }
    });
    patiently(server.probe.entered.acquire()).await.unwrap().forget();
    let other = connect_anonymously(&server, &authority).await;
    for client in [&stranger, &other] {
        assert_eq!(client.call("WhoAmI").await.unwrap_err().code(), Code::ResourceExhausted);
    }
    let node = authority.client("node:a", "muster:nodes");
    assert_eq!(who_am_i(&server, &node).await.as_deref(), Ok("node:a"));
    server.probe.gate.add_permits(1);
    assert_eq!(waiting.await.unwrap().unwrap(), "waited");

    let foreign = Authority::new().client("eva", "muster:admins");
    assert!(who_am_i(&server, &foreign).await.is_err(), "a certificate that is given must be a trusted one");
}

#[tokio::test]
async fn a_connection_ends_at_its_age_and_the_client_goes_on_with_a_new_one() {
    let config = ServerConfig {
        max_connection_age: Duration::from_millis(200),
        shutdown_grace: Duration::from_millis(100),
        ..ServerConfig::default()
    };
    let server = start_plain(config).await;
    let client = server.connect().await;
    for _ in 0..3 {
        ended(&server, talking(&client).await).await;
    }
    assert_eq!(client.call("WhoAmI").await.unwrap(), "admin");
}

#[tokio::test]
async fn a_connection_that_has_reached_its_age_lets_its_calls_finish() {
    let config = ServerConfig {
        max_connection_age: Duration::from_millis(200),
        shutdown_grace: Duration::from_secs(3600),
        ..ServerConfig::default()
    };
    let server = start_plain(config).await;
    let client = server.connect().await;
    let mut stream = talking(&client).await;
    // A call that the client had accepted when it learns that the connection ends is not sent.
    let asked_to_leave = async { while client.call("WhoAmI").await.is_ok() {} };
    patiently(asked_to_leave).await;
    assert_eq!(client.call("WhoAmI").await.unwrap(), "admin", "on a new connection");
    server.probe.gate.add_permits(1);
    assert_eq!(patiently(stream.message()).await.unwrap().as_deref(), Some("second"), "on the old one");
}

#[tokio::test]
async fn a_connection_ends_with_the_certificate_of_its_client() {
    let authority = Authority::new();
    let server = start_secure(ServerConfig::default(), &authority).await;
    let end = u64::try_from(SystemClock::new().wall().as_second()).unwrap() + 3;
    let brief = authority.read(authority.issue_until("eva", "muster:admins", Some(end)));
    let stream = talking(&connect_as(&server, &brief).await).await;
    ended(&server, stream).await;
    // Its last second counts.
    patiently(async { while who_am_i(&server, &brief).await.is_ok() {} }).await;
}
