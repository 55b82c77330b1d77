use muster_grpc::cloud_provider_service_server::{CloudProviderService, CloudProviderServiceServer};
use muster_rpc::readiness::Readiness;
use muster_rpc::server::{Server, ServerConfig, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::Security;
use tonic::service::Routes;

use super::*;

/// A plug-in that answers by the name of the machine: with that status code, or with an invalid machine.
struct Script;

fn code(name: &str) -> Code {
    match name {
        "not-found" => Code::NotFound,
        "unimplemented" => Code::Unimplemented,
        "denied" => Code::PermissionDenied,
        "internal" => Code::Internal,
        "unavailable" => Code::Unavailable,
        other => panic!("{other}"),
    }
}

#[tonic::async_trait]
impl CloudProviderService for Script {
    async fn exists(
        &self,
        request: Request<pb::ExistsRequest>,
    ) -> Result<Response<pb::ExistsResponse>, Status> {
        if request.get_ref().node_name == "silent" {
            std::future::pending::<()>().await;
        }
        Err(Status::new(code(&request.get_ref().node_name), "as you wish"))
    }

    async fn shutdown(
        &self,
        _: Request<pb::ShutdownRequest>,
    ) -> Result<Response<pb::ShutdownResponse>, Status> {
        Err(Status::unimplemented("no such thing"))
    }

    async fn metadata(
        &self,
        request: Request<pb::MetadataRequest>,
    ) -> Result<Response<pb::MetadataResponse>, Status> {
        let mut answer = pb::MetadataResponse::default();
        match request.get_ref().node_name.as_str() {
            "bad-zone" => answer.zone = "over there".to_owned(),
            _ => {
                answer.addresses = vec![pb::NodeAddress { r#type: "IP".to_owned(), address: "1".to_owned() }];
            }
        }
        Ok(Response::new(answer))
    }
}

async fn client(deadline: Duration) -> CloudClient {
    let listener = bind("--listen", "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}", listener.address());
    let server = Server::new(ServerConfig::default(), Security::plain(), Shutdown::new());
    let routes = Routes::new(CloudProviderServiceServer::new(Script)).prepare();
    let readiness = Readiness::new(["muster.v1.CloudProviderService"]);
    tokio::spawn(server.serve(listener, routes, muster_proto::DESCRIPTORS, readiness));
    CloudClient::connect(&CloudEndpoint { url, tls: None, deadline }).unwrap()
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn only_not_found_says_that_the_machine_is_gone() {
    let client = client(MINUTE).await;
    let refused = |text: &str| Err(Failure::Refused(text.to_owned()));
    let later = |text: &str| Err(Failure::Later(text.to_owned()));
    for (name, expected) in [
        ("not-found", Err(Failure::Gone)),
        ("unimplemented", refused("Unimplemented: as you wish")),
        ("denied", refused("PermissionDenied: as you wish")),
        ("internal", later("Internal: as you wish")),
        ("unavailable", later("Unavailable: as you wish")),
    ] {
        let answer = client.ask(CloudQuestion::Exists, &name.parse().unwrap(), "").await;
        assert_eq!(answer, expected, "{name}");
    }
    let answer = client.ask(CloudQuestion::Shutdown, &"a".parse().unwrap(), "").await;
    assert_eq!(answer, refused("Unimplemented: no such thing"));
}

#[tokio::test]
async fn a_description_that_the_store_would_refuse_is_refused() {
    let client = client(MINUTE).await;
    for (name, expected) in [
        ("bad-zone", "the cloud plug-in gave the zone \"over there\", which must be empty, or of letters"),
        (
            "bad-address",
            "the cloud plug-in gave invalid addresses: status.addresses[0].type: must be Hostname",
        ),
    ] {
        let answer = client.ask(CloudQuestion::Metadata, &name.parse().unwrap(), "").await;
        let Err(Failure::Refused(reason)) = answer else { panic!("{answer:?}") };
        assert!(reason.starts_with(expected), "{reason}");
    }
}

#[tokio::test]
async fn a_plugin_that_does_not_answer_says_nothing_about_the_machine() {
    let silent = client(Duration::from_millis(50)).await;
    let answer = silent.ask(CloudQuestion::Exists, &"silent".parse().unwrap(), "").await;
    assert!(matches!(answer, Err(Failure::Later(_))), "{answer:?}");

    // A port that refuses connections.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let away = CloudClient::connect(&CloudEndpoint { url, tls: None, deadline: MINUTE }).unwrap();
    let answer = away.ask(CloudQuestion::Exists, &"a".parse().unwrap(), "").await;
    assert!(matches!(answer, Err(Failure::Later(_))), "{answer:?}");
}

#[tokio::test]
async fn an_unusable_address_is_refused_at_once() {
    let refused = |url: &str| {
        CloudClient::connect(&CloudEndpoint { url: url.to_owned(), tls: None, deadline: MINUTE }).unwrap_err()
    };
    assert_eq!(refused("https://a:1"), EndpointError::NoCertificate { url: "https://a:1".to_owned() });
    for url in ["ftp://a:1", "http://", "a b", ""] {
        assert!(matches!(refused(url), EndpointError::Unusable { .. }), "{url:?}");
    }
}
