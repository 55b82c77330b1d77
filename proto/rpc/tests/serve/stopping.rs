//! How a server stops: health changes first, calls may finish, calls that hang are aborted.

use std::time::Duration;

use muster_rpc::server::{ServerConfig, Stopped};
use tokio::net::TcpStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::probe::{PATIENCE, patiently, start_plain};

#[tokio::test]
async fn calls_in_flight_finish_and_health_watches_are_notified() {
    let server = start_plain(ServerConfig { shutdown_grace: PATIENCE, ..ServerConfig::default() }).await;
    let client = server.connect().await;
    let request = HealthCheckRequest::default();
    let mut watch =
        patiently(HealthClient::new(server.connect().await.channel).watch(request)).await.unwrap();
    let first = patiently(watch.get_mut().message()).await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    let call = tokio::spawn(async move { client.call("Wait").await });
    patiently(server.probe.entered.acquire()).await.unwrap().forget();

    server.shutdown.trigger();

    let mut last = first;
    while let Some(next) = patiently(watch.get_mut().message()).await.unwrap() {
        last = next;
    }
    assert_eq!(last.status(), ServingStatus::NotServing, "the watch ends with the current status");
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!call.is_finished(), "the listener is closed while the call goes on");
    server.probe.gate.add_permits(1);
    assert_eq!(call.await.unwrap().unwrap(), "waited");
    assert_eq!(server.stopped().await, Stopped::Drained);
}

#[tokio::test]
async fn a_stream_that_does_not_end_is_aborted_after_the_grace() {
    let grace = Duration::from_millis(50);
    let server = start_plain(ServerConfig { shutdown_grace: grace, ..ServerConfig::default() }).await;
    let client = server.connect().await;
    let mut stuck = client.talk().await.unwrap();
    assert_eq!(patiently(stuck.message()).await.unwrap().as_deref(), Some("first"));
    let dropped = server.probe.dropped.clone();

    server.shutdown.trigger();

    assert_eq!(server.stopped().await, Stopped::Aborted);
    assert!(patiently(stuck.message()).await.is_err(), "the client notices");
    patiently(dropped.acquire()).await.unwrap().forget();
}

#[tokio::test]
async fn a_call_that_hangs_is_aborted_after_the_grace() {
    let grace = Duration::from_millis(50);
    let server = start_plain(ServerConfig { shutdown_grace: grace, ..ServerConfig::default() }).await;
    let client = server.connect().await;
    let hanging = tokio::spawn(async move { client.call("Wait").await });
    patiently(server.probe.entered.acquire()).await.unwrap().forget();

    server.shutdown.trigger();

    assert_eq!(server.stopped().await, Stopped::Aborted);
    assert!(hanging.await.unwrap().is_err());
}

#[tokio::test]
async fn an_idle_connection_does_not_delay_the_stop() {
    let server = start_plain(ServerConfig { shutdown_grace: PATIENCE, ..ServerConfig::default() }).await;
    let client = server.connect().await;
    assert_eq!(client.call("WhoAmI").await.unwrap(), "admin");
    server.shutdown.trigger();
    assert_eq!(server.stopped().await, Stopped::Drained);
}
