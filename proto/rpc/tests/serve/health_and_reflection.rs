//! Health and reflection, which every Muster server has.

use muster_rpc::server::ServerConfig;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::{v1, v1alpha};

use crate::probe::{OTHER, PROBE, patiently, start_plain};

async fn check(channel: &Channel, service: &str) -> Result<ServingStatus, Code> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let answer = patiently(HealthClient::new(channel.clone()).check(request)).await;
    answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

#[tokio::test]
async fn health_is_reported_per_service_and_overall() {
    let server = start_plain(ServerConfig::default()).await;
    let channel = server.connect().await.channel;
    assert_eq!(check(&channel, "").await, Ok(ServingStatus::Serving));
    assert_eq!(check(&channel, PROBE).await, Ok(ServingStatus::Serving));
    assert_eq!(check(&channel, OTHER).await, Ok(ServingStatus::Serving));
    assert_eq!(check(&channel, "test.v1.Unknown").await, Err(Code::NotFound));

    let disk = server.readiness.condition("disk", "full", &[OTHER]);
    assert_eq!(check(&channel, OTHER).await, Ok(ServingStatus::NotServing));
    assert_eq!(check(&channel, PROBE).await, Ok(ServingStatus::Serving), "it does not need the disk");
    assert_eq!(check(&channel, "").await, Ok(ServingStatus::NotServing), "the process is not ready");

    disk.set(Ok(()));
    assert_eq!(check(&channel, OTHER).await, Ok(ServingStatus::Serving));
    assert_eq!(check(&channel, "").await, Ok(ServingStatus::Serving));
}

#[tokio::test]
async fn a_health_watch_sends_each_change_of_its_service_and_no_other() {
    let server = start_plain(ServerConfig::default()).await;
    let channel = server.connect().await.channel;
    let watched = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let mut client = HealthClient::new(channel);
    assert_eq!(patiently(client.watch(watched("test.v1.Unknown"))).await.unwrap_err().code(), Code::NotFound);
    let mut statuses = patiently(client.watch(watched(OTHER))).await.unwrap().into_inner();
    let mut next = async || patiently(statuses.message()).await.unwrap().unwrap().status();
    assert_eq!(next().await, ServingStatus::Serving);

    let disk = server.readiness.condition("disk", "full", &[OTHER]);
    assert_eq!(next().await, ServingStatus::NotServing);
    server.readiness.condition("watches", "not synced", &[PROBE]);
    disk.set(Err("broken".to_owned()));
    disk.set(Ok(()));
    assert_eq!(next().await, ServingStatus::Serving, "nothing was sent for changes of other services");
}

const EXPECTED: [&str; 2] = ["grpc.health.v1.Health", PROBE];

#[tokio::test]
async fn reflection_lists_the_services_in_version_1() {
    use v1::server_reflection_request::MessageRequest;
    use v1::server_reflection_response::MessageResponse;

    let server = start_plain(ServerConfig::default()).await;
    let request = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client =
        v1::server_reflection_client::ServerReflectionClient::new(server.connect().await.channel);
    let mut answers = patiently(client.server_reflection_info(tokio_stream::once(request))).await.unwrap();
    let answer = patiently(answers.get_mut().message()).await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    assert!(EXPECTED.iter().all(|expected| names.iter().any(|name| name == expected)), "{names:?}");
}

#[tokio::test]
async fn reflection_lists_the_services_in_version_1_alpha() {
    use v1alpha::server_reflection_request::MessageRequest;
    use v1alpha::server_reflection_response::MessageResponse;

    let server = start_plain(ServerConfig::default()).await;
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client =
        v1alpha::server_reflection_client::ServerReflectionClient::new(server.connect().await.channel);
    let mut answers = patiently(client.server_reflection_info(tokio_stream::once(request))).await.unwrap();
    let answer = patiently(answers.get_mut().message()).await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    assert!(EXPECTED.iter().all(|expected| names.iter().any(|name| name == expected)), "{names:?}");
}
