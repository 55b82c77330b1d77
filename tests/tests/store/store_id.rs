//! The id of a store: sent with every response, kept over restarts, and used by clients to tell stores apart.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use futures_util::StreamExt;
use muster_grpc::heartbeat_service_client::HeartbeatServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::watch_event::WatchEvent;
use muster_store_client::{StoreClient, StoreEndpoints, WatchOptions};
use muster_tests::fixtures::*;
use muster_tests::{Api, TIMEOUT, TestStore, eventually, in_time};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request};

const KEY: &str = "muster-store-id";

fn id_in(metadata: &MetadataMap) -> String {
    metadata.get(KEY).expect("a response has the store's id").to_str().unwrap().to_owned()
}

fn get_node(name: &str) -> pb::GetNodeRequest {
    pb::GetNodeRequest { name: name.to_owned() }
}

async fn id_of(api: &Api) -> String {
    let listed = NodeServiceClient::new(api.channel()).list_nodes(pb::ListNodesRequest::default()).await;
    id_in(listed.unwrap().metadata())
}

#[tokio::test]
async fn every_response_carries_the_id_and_a_restart_keeps_it() {
    let (store, other) = (TestStore::start().await, TestStore::start().await);
    let api = store.api();
    let id = id_of(&api).await;
    assert_eq!(id.parse::<Uid>().unwrap().to_string(), id);
    assert_ne!(id_of(&other.api()).await, id);

    let mut nodes = NodeServiceClient::new(api.channel());
    let refused = nodes.get_node(get_node("missing")).await.unwrap_err();
    assert_eq!((refused.code(), id_in(refused.metadata())), (Code::NotFound, id.clone()));
    let watch = nodes.watch_nodes(pb::WatchNodesRequest::default()).await.unwrap();
    assert_eq!(id_in(watch.metadata()), id, "a stream has it in its first metadata");
    let requests = futures_util::stream::pending();
    let heartbeat = HeartbeatServiceClient::new(api.channel()).heartbeat(requests).await.unwrap();
    assert_eq!(id_in(heartbeat.metadata()), id);

    drop((watch, heartbeat, nodes, api));
    let store = store.restart().await;
    assert_eq!(id_of(&store.api()).await, id);
}

#[tokio::test]
async fn a_call_for_another_store_is_refused() {
    let store = TestStore::start().await;
    let api = store.api();
    let id = id_of(&api).await;
    let create = |wanted: &str| {
        let mut request = Request::new(pb::CreateNodeRequest { node: Some(node("a")) });
        request.metadata_mut().insert(KEY, wanted.parse().unwrap());
        let mut nodes = NodeServiceClient::new(api.channel());
        async move { nodes.create_node(request).await }
    };
    let other = "98df94d9-d9d8-4e3e-a5ee-59b87da79b7a";
    api.expect_error(create(other)).await.is(Code::FailedPrecondition, "OTHER_STORE");
    create(&id).await.unwrap();
}

#[tokio::test]
async fn a_client_with_the_addresses_of_two_stores_uses_the_one_that_answered_first() {
    let (store, unrelated) = (TestStore::start().await, TestStore::start().await);
    let a = store.api().create(node("a")).await.unwrap();
    let endpoints = StoreEndpoints::new([store.url(), unrelated.url()]);
    let client = StoreClient::connect(endpoints).unwrap();
    let mut watch = client.watch::<Node>(WatchOptions::default());
    let first = in_time("the first event", watch.next()).await;
    assert!(matches!(first, Some(WatchEvent::Applied { .. })), "{first:?}");

    // Its calls begin with the unrelated store now, and all of them come back from it.
    client.redial();
    let found = client.get::<Node>(&Key::node("a".parse().unwrap())).await.unwrap();
    assert_eq!(pb::Node::from(found), a);
    client.redial();
    client.create(Node::try_from(node("b")).unwrap()).await.unwrap();
    unrelated.api().get::<pb::Node>("b").await.unwrap_err();
    store.api().get::<pb::Node>("b").await.unwrap();

    // Without the first one, the error names both.
    let (known, other) = (store.url(), unrelated.url());
    drop(watch);
    store.stop().await;
    eventually(TIMEOUT, "an error that names both addresses", || async {
        // The connection to the first one may have to break first.
        let error = client.get::<Node>(&Key::node("a".parse().unwrap())).await.unwrap_err().to_string();
        (error.contains(&other) && error.contains(&known)).then_some(())
    })
    .await;
}
