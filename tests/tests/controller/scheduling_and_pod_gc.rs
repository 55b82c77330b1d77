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
async fn s172_an_unschedulable_pod_says_why_and_runs_when_a_node_is_added() {
    let mut fleet = Fleet::start(&[]);
    fleet.api.create(sleeper("p", "", 600)).await.unwrap();
    fleet.node_without_agent("full", "", "True").await;
    let pending = pod_where(&fleet.api, "default/p", "it says why it waits", |pod| {
        scheduled(pod).is_some_and(|held| held.message.starts_with("0/1 nodes are available"))
    });
    let pending = pending.await;
    let condition = scheduled(&pending).unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "Unschedulable"));
    assert_eq!(fleet.fleet().await.pending_pods, 1);

    let agent = fleet.agent("a", "").await;
    agent.container_pid("p").await;
    let placed: pb::Pod = fleet.api.get("default/p").await.unwrap();
    assert_eq!(placed.spec.unwrap().node_name, "a");
    fleet.fleet_where("no pod is pending", |fleet| fleet.pending_pods == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s159_pods_of_a_deleted_node_are_removed() {
    let fleet = Fleet::start(&[]);
    fleet.node_without_agent("a", "", "True").await;
    for name in ["p", "q"] {
        fleet.api.create(sleeper(name, "a", 600)).await.unwrap();
    }
    let mut watch = fleet.api.watch::<pb::Pod>(WatchQuery::default()).await.unwrap();
    let deleted_at = Instant::now();
    fleet.api.delete::<pb::Node>("a").await.unwrap();
    let pods = || async { fleet.api.list::<pb::Pod>(Default::default()).await.unwrap().records.len() };
    // The quarantine of 4 s starts when the controller sees the deletion.
    let end = deleted_at + Duration::from_secs(4);
    holds_until(end, "its pods are kept", || async { pods().await == 2 }).await;
    eventually(TIMEOUT, "its pods are removed", || async { (pods().await == 0).then_some(()) }).await;

    let (mut failed, mut gone) = (0, 0);
    while gone < 2 {
        let ReceivedEvent { kind, record } = watch.next().await;
        let status = record.status.unwrap();
        let target = status.conditions.iter().find(|held| held.r#type == "DisruptionTarget");
        if let ("MODIFIED", Some(target)) = (kind.as_str(), target) {
            assert_eq!((status.phase.as_str(), target.reason.as_str()), ("Failed", "DeletionByPodGC"));
            failed += 1;
        }
        gone += usize::from(kind == "DELETED");
    }
    assert_eq!(failed, 2, "each had its reason before it was removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn s161_terminating_pods_of_an_out_of_service_node_are_removed() {
    let fleet = Fleet::start(&[]);
    let lost = fleet.node_without_agent("a", "", "Unknown").await;
    fleet.api.create(sleeper("ends", "a", 600)).await.unwrap();
    fleet.api.create(sleeper("stays", "a", 600)).await.unwrap();
    fleet.api.delete::<pb::Pod>("default/ends").await.unwrap();
    fleet.api.update(lost.taint("node.kubernetes.io/out-of-service:NoSchedule").at(0)).await.unwrap();
    eventually(TIMEOUT, "the terminating pod is removed", || async {
        fleet.api.get::<pb::Pod>("default/ends").await.is_err().then_some(())
    })
    .await;
    assert!(fleet.api.get::<pb::Pod>("default/stays").await.is_ok(), "this pod was not deleted");
}
