//! What a store says about itself.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_grpc::store_service_client::StoreServiceClient;
use muster_proto::pb;
use muster_tests::fixtures::node;
use muster_tests::{Api, TestStore};

async fn status(api: &Api) -> Result<pb::GetStoreStatusResponse, tonic::Status> {
    let mut client = StoreServiceClient::new(api.channel());
    Ok(client.get_store_status(pb::GetStoreStatusRequest {}).await?.into_inner())
}

#[tokio::test]
async fn s223_a_store_says_since_when_it_leads_and_what_its_disk_has_left() {
    let store = TestStore::with_flags(&["--default-unreachable-toleration-seconds=7"]).await;
    let before = status(&store.api()).await.unwrap();
    store.api().create(node("a")).await.unwrap();
    let after = status(&store.api()).await.unwrap();
    assert!(after.revision > before.revision);
    assert_eq!(after.leading_since, before.leading_since);
    assert!(after.leading_since.is_some());
    assert_eq!((after.engine.as_str(), after.write_problem.as_str()), ("embedded", ""));
    assert_eq!(
        (after.default_not_ready_toleration_seconds, after.default_unreachable_toleration_seconds),
        (300, 7)
    );
    let disk = after.disk.unwrap();
    assert!(disk.available_bytes <= disk.total_bytes && disk.reserve_bytes >= 16 << 20, "{disk:?}");
}

#[tokio::test]
async fn s224_the_status_of_a_store_is_for_operators_and_controllers() {
    let store = TestStore::secure().await;
    for organization in ["muster:admins", "muster:viewers", "muster:controllers"] {
        status(&store.api_as("eva", organization)).await.unwrap();
    }
    for api in [store.api_as_node("a"), store.api_as("eva", "muster:schedulers")] {
        api.expect_error(status(&api)).await.is_denied().mentions("may not read the store's status");
    }
}
