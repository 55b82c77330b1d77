use muster_grpc::fleet_service_client::FleetServiceClient;
use muster_proto::pb;
use muster_tests::controller_process::ControllerProcess;
use muster_tests::eventually;
use muster_tests::fleet::{FAST_LEASE, FAST_TIMINGS, Fleet, taints};
use muster_tests::store_process::{TIMEOUT, channel};

async fn fleet_of(controller: &ControllerProcess) -> pb::Fleet {
    let mut service = FleetServiceClient::new(channel(&controller.url()));
    service.get_fleet(pb::GetFleetRequest {}).await.unwrap().into_inner().fleet.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_from_a_leader_that_is_killed() {
    let mut fleet = Fleet::start(&[]);
    let _agent = fleet.agent("a", "").await;
    let leader = fleet.fleet().await.controller;
    let flags: Vec<&str> = FAST_TIMINGS.into_iter().chain(FAST_LEASE).collect();
    let standby = ControllerProcess::start(&fleet.store.url(), &flags);
    let waits = eventually(TIMEOUT, "the standby knows the leader", || async {
        Some(fleet_of(&standby).await).filter(|state| state.leader == leader)
    })
    .await;
    assert_eq!(waits.state(), pb::FleetState::Standby);
    assert!(waits.reason.starts_with(&format!("{leader} holds the lease")), "{}", waits.reason);
    let refused = FleetServiceClient::new(channel(&standby.url()))
        .drain_node(pb::DrainNodeRequest {
            name: "a".to_owned(),
            reason: "why".to_owned(),
            ..Default::default()
        })
        .await
        .unwrap_err();
    assert!(refused.message().contains(&leader), "{}", refused.message());

    let Fleet { controller, api, .. } = &mut fleet;
    let replaced = std::mem::replace(controller, standby);
    drop(replaced);
    eventually(TIMEOUT, "it leads", || async {
        let state = fleet_of(controller).await;
        (state.leader == state.controller && state.state() == pb::FleetState::Normal).then_some(())
    })
    .await;
    // The new leader acts.
    let record: pb::Node = api.get("a").await.unwrap();
    let cordoned = pb::NodeSpec { unschedulable: true, ..record.spec.clone().unwrap() };
    api.update(pb::Node { spec: Some(cordoned), ..record }).await.unwrap();
    muster_tests::agent_process::node_where(api, "a", "its cordon has its taint", |node| {
        taints(node) == ["unschedulable:NoSchedule"]
    })
    .await;
}
