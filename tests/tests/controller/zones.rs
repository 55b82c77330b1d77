use std::time::Instant;

use muster_proto::pb;
use muster_tests::controller_process::ControllerProcess;
use muster_tests::fleet::{FAST_TIMINGS, Fleet, OBSERVATION_TIME, taints};
use muster_tests::store_process::TIMEOUT;
use muster_tests::{eventually, holds_for, holds_until};

fn tainted_no_execute(nodes: &[pb::Node]) -> usize {
    nodes.iter().filter(|node| taints(node).iter().any(|taint| taint.ends_with(":NoExecute"))).count()
}

async fn nodes(fleet: &Fleet) -> Vec<pb::Node> {
    fleet.api.list::<pb::Node>(Default::default()).await.unwrap().records
}

#[tokio::test(flavor = "multi_thread")]
async fn s126_a_zone_in_partial_disruption_taints_no_node_and_says_why() {
    let mut fleet = Fleet::start(&["--eviction-hold=2s"]);
    for name in ["z1", "z2", "z3"] {
        fleet.node_without_agent(name, "z", "Unknown").await;
    }
    let _agents = [fleet.agent("z4", "z").await, fleet.agent("z5", "z").await];
    fleet
        .fleet_where("the zone is assessed", |fleet| {
            fleet.zones.iter().any(|zone| zone.nodes == 5 && zone.state() == pb::ZoneState::PartialDisruption)
        })
        .await;
    holds_for(OBSERVATION_TIME, "no node is tainted NoExecute", || async {
        tainted_no_execute(&nodes(&fleet).await) == 0
    })
    .await;
    // A controller that was paused for a moment reports that first.
    let taint = eventually(TIMEOUT, "it says why", || async {
        let mut explanations = fleet.explain("z1").await.explanations.into_iter();
        explanations.find(|it| {
            it.action() == pb::ExplanationAction::Taint && it.reason.starts_with("3 of 5 nodes are not Ready")
        })
    });
    let taint = taint.await;
    assert_eq!((taint.state(), taint.earliest), (pb::ExplanationState::Paused, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn s130_nodes_of_a_lost_zone_are_tainted_one_by_one_while_another_zone_is_healthy() {
    let mut fleet = Fleet::start(&[]);
    let _healthy = fleet.agent("b1", "b").await;
    for name in ["a1", "a2", "a3"] {
        fleet.node_without_agent(name, "a", "False").await;
    }
    for name in ["a1", "a2", "a3"] {
        fleet
            .node_where(name, "it is tainted NoExecute", |node| {
                taints(node).iter().any(|taint| taint.ends_with(":NoExecute"))
            })
            .await;
    }
    let counted = fleet.fleet_where("all are counted", |fleet| {
        fleet.zones.iter().any(|zone| zone.zone == "a" && zone.evictions == 3)
    });
    assert_eq!(
        counted.await.zones.iter().find(|zone| zone.zone == "a").unwrap().state(),
        pb::ZoneState::FullDisruption
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn s131_s132_no_node_is_tainted_in_full_disruption_until_one_node_returns() {
    let mut fleet = Fleet::start(&[]);
    for name in ["a1", "a2", "b1"] {
        fleet.node_without_agent(name, &name[..1], "Unknown").await;
    }
    fleet.fleet_where("all zones are lost", |fleet| fleet.state() == pb::FleetState::FullDisruption).await;
    holds_for(OBSERVATION_TIME, "no node is tainted NoExecute", || async {
        tainted_no_execute(&nodes(&fleet).await) == 0
    })
    .await;
    assert_eq!(
        fleet.explanation_state("a1", pb::ExplanationAction::Taint).await,
        pb::ExplanationState::Paused
    );

    let _returns = fleet.agent("b2", "b").await;
    for name in ["a1", "a2", "b1"] {
        fleet
            .node_where(name, "it is tainted NoExecute", |node| {
                taints(node).contains(&"unreachable:NoExecute".to_owned())
            })
            .await;
    }
    assert_eq!(fleet.fleet().await.state(), pb::FleetState::Normal);
}

#[tokio::test(flavor = "multi_thread")]
async fn s122_a_controller_that_restarts_during_an_outage_evicts_no_pod_and_says_why() {
    use muster_tests::fixtures::*;

    let mut fleet = Fleet::start(&[]);
    let _healthy = [fleet.agent("b1", "b").await, fleet.agent("b2", "b").await];
    for name in ["a1", "a2"] {
        fleet.node_without_agent(name, "a", "Unknown").await;
        let mut toleration = tolerates("node.kubernetes.io/unreachable", "NoExecute");
        toleration.toleration_seconds = Some(10);
        fleet.api.create(pod(&format!("on-{name}")).on(name).toleration(toleration)).await.unwrap();
    }
    fleet
        .node_where("a1", "it is tainted NoExecute", |node| {
            taints(node).contains(&"unreachable:NoExecute".to_owned())
        })
        .await;

    // The hold is longer than the test: no pod may be evicted from now on.
    fleet.replace_controller(&["--eviction-hold=10m"]);
    let held = fleet.fleet_where("it holds back", |fleet| fleet.hold.is_some()).await;
    assert_eq!(held.state(), pb::FleetState::Holding);
    fleet
        .node_where("a1", "its NoExecute taint is removed", |node| {
            taints(node).iter().all(|taint| !taint.ends_with(":NoExecute"))
        })
        .await;
    // Longer than the toleration time that the pods had left before the restart.
    holds_for(std::time::Duration::from_secs(11), "no pod is evicted", || async {
        let pods = fleet.api.list::<pb::Pod>(Default::default()).await.unwrap().records;
        pods.iter().all(|pod| pod.metadata.as_ref().unwrap().deletion_timestamp.is_none())
    })
    .await;
    let explanation = fleet.explain("a1").await;
    let taint =
        explanation.explanations.iter().find(|it| it.action() == pb::ExplanationAction::Taint).unwrap();
    assert_eq!(taint.state(), pb::ExplanationState::Paused);
    assert!(
        taint
            .reason
            .contains("no pod is evicted because of node health before the fleet was followed for 10 min"),
        "{}",
        taint.reason
    );
    assert!(taint.earliest.is_some(), "it has an earliest time");
    let both =
        |fleet: &pb::Fleet| fleet.hold.as_ref().map(|hold| (hold.seen_nodes, hold.nodes)) == Some((2, 4));
    fleet.fleet_where("it counts the live nodes", both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_no_node_is_tainted_for_a_whole_grace_after_a_start() {
    let mut fleet = Fleet::start(&[]);
    let _healthy = fleet.agent("b1", "b").await;
    let flags: Vec<&str> =
        FAST_TIMINGS.into_iter().filter(|flag| !flag.starts_with("--eviction-hold")).collect();
    fleet.controller = ControllerProcess::start(&fleet.store.url(), &flags);
    let (asked, hold) = eventually(TIMEOUT, "it holds back", || async {
        let asked = Instant::now();
        Some((asked, fleet.fleet().await.hold?))
    })
    .await;
    fleet.node_without_agent("a1", "a", "False").await;
    assert!(hold.reason.contains("before the fleet was followed for 6.0 s"), "{}", hold.reason);
    let remaining = std::time::Duration::try_from(hold.remaining.unwrap()).unwrap();
    let none_tainted = || async { tainted_no_execute(&nodes(&fleet).await) == 0 };
    holds_until(asked + remaining, "no node is tainted NoExecute", none_tainted).await;
    fleet.node_where("a1", "it is tainted NoExecute", |node| taints(node).len() == 2).await;
}
