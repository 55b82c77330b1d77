use std::time::{Duration, Instant};

use muster_proto::pb;
use muster_tests::agent_process::pod_where;
use muster_tests::fixtures::*;
use muster_tests::fleet::{Fleet, sleeper};
use muster_tests::store_process::TIMEOUT;
use muster_tests::{ReceivedEvent, WatchQuery, eventually, holds_until};

fn scheduled(pod: &pb::Pod) -> Option<&pb::PodCondition> {
    pod.status.as_ref()?.conditions.iter().find(|held| held.r#type == "PodScheduled")
}

#[tokio::test(flavor = "multi_thread")]
async fn s172_a_pod_waits_says_why_and_runs_when_a_machine_comes() {
    let mut fleet = Fleet::start(&[]);
    fleet.api.create(sleeper("p", "", 600)).await.unwrap();
    fleet.node_without_agent("full", "", "True").await;
    let waits = pod_where(&fleet.api, "default/p", "it says why it waits", |pod| {
        scheduled(pod).is_some_and(|held| held.message.starts_with("0/1 nodes are available"))
    });
    let waits = waits.await;
    let condition = scheduled(&waits).unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "Unschedulable"));
    assert_eq!(fleet.fleet().await.pending_pods, 1);

    let agent = fleet.agent("a", "").await;
    agent.container_pid("p").await;
    let placed: pb::Pod = fleet.api.get("default/p").await.unwrap();
    assert_eq!(placed.spec.unwrap().node_name, "a");
    fleet.fleet_where("nobody waits", |fleet| fleet.pending_pods == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s159_pods_of_a_machine_that_was_taken_off_the_roll_are_collected() {
    let fleet = Fleet::start(&[]);
    fleet.node_without_agent("a", "", "True").await;
    for name in ["p", "q"] {
        fleet.api.create(sleeper(name, "a", 600)).await.unwrap();
    }
    let mut told = fleet.api.watch::<pb::Pod>(WatchQuery::default()).await.unwrap();
    let asked = Instant::now();
    fleet.api.delete::<pb::Node>("a").await.unwrap();
    let pods = || async { fleet.api.list::<pb::Pod>(Default::default()).await.unwrap().records.len() };
    // The quarantine is 4 s from when the controller hears of it.
    let end = asked + Duration::from_secs(4);
    holds_until(end, "its pods are kept", || async { pods().await == 2 }).await;
    eventually(TIMEOUT, "its pods are gone", || async { (pods().await == 0).then_some(()) }).await;

    let (mut failed, mut gone) = (0, 0);
    while gone < 2 {
        let ReceivedEvent { kind, record } = told.next().await;
        let status = record.status.unwrap();
        let target = status.conditions.iter().find(|held| held.r#type == "DisruptionTarget");
        if let ("MODIFIED", Some(target)) = (kind.as_str(), target) {
            assert_eq!((status.phase.as_str(), target.reason.as_str()), ("Failed", "DeletionByPodGC"));
            failed += 1;
        }
        gone += usize::from(kind == "DELETED");
    }
    assert_eq!(failed, 2, "each said why before it went");
}

#[tokio::test(flavor = "multi_thread")]
async fn s161_pods_of_a_machine_that_somebody_vouches_is_off_are_collected() {
    let fleet = Fleet::start(&[]);
    let lost = fleet.node_without_agent("a", "", "Unknown").await;
    fleet.api.create(sleeper("ends", "a", 600)).await.unwrap();
    fleet.api.create(sleeper("stays", "a", 600)).await.unwrap();
    fleet.api.delete::<pb::Pod>("default/ends").await.unwrap();
    fleet.api.update(lost.taint("node.kubernetes.io/out-of-service:NoSchedule").at(0)).await.unwrap();
    eventually(TIMEOUT, "the pod that ends is gone", || async {
        fleet.api.get::<pb::Pod>("default/ends").await.is_err().then_some(())
    })
    .await;
    assert!(fleet.api.get::<pb::Pod>("default/stays").await.is_ok(), "nobody asked for its end");
}
