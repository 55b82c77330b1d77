use muster_proto::pb;
use muster_tests::agent_process::events;
use muster_tests::fixtures::*;
use muster_tests::fleet::Fleet;
use muster_tests::store_process::TIMEOUT;
use muster_tests::{eventually, fleet};

fn block(node: &pb::Node) -> &str {
    node.spec.as_ref().map_or("", |spec| &spec.pod_cidr)
}

#[tokio::test(flavor = "multi_thread")]
async fn s145_s146_blocks_are_assigned_until_none_is_left_and_again_after_a_release() {
    let flags = ["--allocate-node-cidrs", "--cluster-cidr=10.10.0.0/23"];
    let mut fleet = Fleet::start(&flags);
    let _agent = fleet.agent("a", "").await;
    let a = fleet.node_where("a", "it has a block", |node| !block(node).is_empty()).await;
    assert_eq!(block(&a), "10.10.0.0/24");
    fleet.node_without_agent("b", "", "True").await;
    let b = fleet.node_where("b", "it has a block", |node| !block(node).is_empty()).await;
    assert_eq!(block(&b), "10.10.1.0/24");

    fleet.node_without_agent("c", "", "True").await;
    eventually(TIMEOUT, "the event says that no block is free", || async {
        (!events(&fleet.api, "c", "CIDRNotAvailable").await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(
        fleet.explanation_state("c", pb::ExplanationAction::AssignCidr).await,
        pb::ExplanationState::Waiting
    );
    let pool = &fleet.fleet().await.cidr_pools[0];
    assert_eq!((pool.blocks, pool.used, pool.waiting), (2, 2, 1));

    fleet.api.delete::<pb::Node>("b").await.unwrap();
    let c = fleet.node_where("c", "it has a block", |node| !block(node).is_empty()).await;
    assert_eq!(block(&c), "10.10.1.0/24");
}

#[tokio::test(flavor = "multi_thread")]
async fn s150_a_node_outside_the_cluster_cidr_stops_ipam_and_nothing_else() {
    let flags = ["--allocate-node-cidrs", "--cluster-cidr=10.10.0.0/16"];
    let mut fleet = Fleet::start(&flags);
    fleet.api.create(node("old").pod_cidrs(&["172.10.0.0/24"]).ready("True")).await.unwrap();
    fleet.replace_controller(&flags);
    let fleet_state =
        fleet.fleet_where("it reports the failure", |fleet| !fleet.cidr_failure.is_empty()).await;
    assert!(fleet_state.cidr_failure.contains("node old"), "{}", fleet_state.cidr_failure);
    // The node lifecycle still works: the node sends no heartbeats and becomes Unknown.
    fleet.node_where("old", "it is Unknown", |node| fleet::ready(node) == "Unknown").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s156_a_node_is_deleted_after_enough_answers_that_its_machine_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let inventory = directory.path().join("machines.toml");
    std::fs::write(
        &inventory,
        "[[machine]]\nname = \"kept\"\nprovider-id = \"x://1\"\nstate = \"running\"\n",
    )
    .unwrap();
    let cloud = muster_tests::cloud_process::CloudProcess::start(&inventory);
    let flags = [
        format!("--cloud-provider={}", cloud.url()),
        "--cloud-delete-confirmations=2".to_owned(),
        // The node `well` has no agent: it must not become Unknown before the cloud is asked.
        "--node-monitor-grace-period=10m".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let fleet = Fleet::start(&flags);
    fleet.node_without_agent("kept", "", "Unknown").await;
    fleet.node_without_agent("lost", "", "Unknown").await;
    fleet.node_without_agent("well", "", "True").await;
    eventually(TIMEOUT, "the node without a machine is deleted", || async {
        fleet.api.get::<pb::Node>("lost").await.is_err().then_some(())
    })
    .await;
    for name in ["kept", "well"] {
        assert!(fleet.api.get::<pb::Node>(name).await.is_ok(), "{name}");
    }
    let brake = fleet.fleet().await.cloud.unwrap();
    assert_eq!((brake.confirmations, brake.used, brake.held_back), (2, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deletion_limit_of_the_cloud_controller_survives_a_failover() {
    let directory = tempfile::tempdir().unwrap();
    let inventory = directory.path().join("machines.toml");
    std::fs::write(&inventory, "[[machine]]\nname = \"another\"\n").unwrap();
    let cloud = muster_tests::cloud_process::CloudProcess::start(&inventory);
    let flags = [
        format!("--cloud-provider={}", cloud.url()),
        "--cloud-delete-confirmations=1".to_owned(),
        "--cloud-delete-limit=2".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut fleet = Fleet::start(&flags);
    for name in ["a", "b", "c", "d"] {
        fleet.node_without_agent(name, "", "Unknown").await;
    }
    let brakes = |fleet: &pb::Fleet| fleet.cloud.map(|brake| (brake.used, brake.held_back));
    fleet.fleet_where("two are deleted, two are held back", |fleet| brakes(fleet) == Some((2, 2))).await;
    assert_eq!(fleet.api.list::<pb::Node>(Default::default()).await.unwrap().records.len(), 2);

    fleet.replace_controller(&flags);
    fleet.fleet_where("the other two are held back", |fleet| brakes(fleet) == Some((2, 2))).await;
    let left = fleet.api.list::<pb::Node>(Default::default()).await.unwrap().records;
    assert_eq!(left.len(), 2, "deletions of the first controller count for the second");
    let name = left[0].metadata.as_ref().unwrap().name.clone();
    assert_eq!(
        fleet.explanation_state(&name, pb::ExplanationAction::DeleteNode).await,
        pb::ExplanationState::Paused
    );
}
