use std::time::Duration;

use muster_proto::pb;
use muster_tests::agent_process::{events, is_ready, is_running, pod_where};
use muster_tests::controller_process::ControllerProcess;
use muster_tests::fixtures::*;
use muster_tests::fleet::{
    Fleet, OBSERVATION_TIME, controller_flags, is_terminating, pause, ready, resume, sleeper, taints,
};
use muster_tests::store_process::TIMEOUT;
use muster_tests::tcp_proxy::TcpProxy;
use muster_tests::{WatchQuery, eventually, holds_for};
use rustix::process::Signal;

fn pod_ready(pod: &pb::Pod) -> &str {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().find(|held| held.r#type == "Ready").map_or("", |held| &held.status)
}

#[tokio::test(flavor = "multi_thread")]
async fn s085_s088_s091_s093_a_node_without_heartbeats_becomes_unknown_and_recovers() {
    let mut fleet = Fleet::start(&[]);
    let _other = fleet.agent("b", "").await;
    let agent = fleet.agent("a", "").await;
    fleet.api.create(sleeper("p", "a", 600)).await.unwrap();
    pod_where(&fleet.api, "default/p", "it is ready", |pod| pod_ready(pod) == "True").await;

    pause(&agent);
    let lost = fleet.node_where("a", "it is Unknown", |node| ready(node) == "Unknown").await;
    let conditions = lost.status.as_ref().unwrap().conditions.iter();
    let unknown: Vec<&str> =
        conditions.filter(|held| held.status == "Unknown").map(|held| held.r#type.as_str()).collect();
    assert_eq!(unknown, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    fleet
        .node_where("a", "it is tainted NoExecute", |node| {
            ["unreachable:NoSchedule", "unreachable:NoExecute"]
                .iter()
                .all(|taint| taints(node).contains(&(*taint).to_owned()))
        })
        .await;
    pod_where(&fleet.api, "default/p", "it is marked not ready", |pod| pod_ready(pod) == "False").await;
    assert_eq!(events(&fleet.api, "a", "NodeNotReady").await.len(), 1);
    eventually(TIMEOUT, "the controller has seen its own taint", || async {
        (fleet.explanation_state("a", pb::ExplanationAction::Taint).await == pb::ExplanationState::Done)
            .then_some(())
    })
    .await;

    resume(&agent);
    fleet.node_where("a", "it is Ready", is_ready).await;
    fleet.node_where("a", "it has no taint", |node| taints(node).is_empty()).await;
    pod_where(&fleet.api, "default/p", "its agent reports it as ready", |pod| pod_ready(pod) == "True").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s109_a_pod_on_an_unreachable_node_is_evicted_and_stops_when_the_node_returns() {
    let mut fleet = Fleet::start(&[]);
    let _other = fleet.agent("b", "").await;
    let agent = fleet.agent("a", "").await;
    fleet.api.create(sleeper("p", "a", 1)).await.unwrap();
    let pid = agent.container_pid("p").await;

    pause(&agent);
    let leaving = pod_where(&fleet.api, "default/p", "it is evicted", is_terminating).await;
    let conditions = &leaving.status.as_ref().unwrap().conditions;
    let target = conditions.iter().find(|held| held.r#type == "DisruptionTarget").unwrap();
    assert_eq!((target.status.as_str(), target.reason.as_str()), ("True", "DeletionByTaintManager"));
    holds_for(OBSERVATION_TIME, "only the agent removes the record", || async {
        fleet.api.get::<pb::Pod>("default/p").await.is_ok() && is_running(pid)
    })
    .await;

    resume(&agent);
    eventually(TIMEOUT, "the pod is removed", || async {
        fleet.api.get::<pb::Pod>("default/p").await.is_err().then_some(())
    })
    .await;
    assert!(!is_running(pid), "the record was removed before the process exited");
}

#[tokio::test(flavor = "multi_thread")]
async fn s115_a_node_that_recovers_in_time_keeps_its_pods() {
    let mut fleet = Fleet::start(&[]);
    let _other = fleet.agent("b", "").await;
    let agent = fleet.agent("a", "").await;
    fleet.api.create(sleeper("p", "a", 600)).await.unwrap();
    let pid = agent.container_pid("p").await;
    pause(&agent);
    fleet
        .node_where("a", "it is tainted NoExecute", |node| {
            taints(node).contains(&"unreachable:NoExecute".to_owned())
        })
        .await;
    let explanation = fleet.explain("a").await;
    assert_eq!(explanation.pods[0].decision(), pb::EvictionDecision::Evict);
    assert_eq!(explanation.pods[0].toleration.as_ref().unwrap().toleration_seconds, Some(600));
    resume(&agent);
    fleet.node_where("a", "it has no taint", |node| taints(node).is_empty()).await;
    assert!(is_running(pid));
    assert!(!is_terminating(&fleet.api.get("default/p").await.unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn s111_a_noexecute_taint_of_an_administrator_evicts_at_once() {
    let mut fleet = Fleet::start(&[]);
    let agent = fleet.agent("a", "").await;
    fleet.api.create(sleeper("p", "a", 600)).await.unwrap();
    let pid = agent.container_pid("p").await;
    let record: pb::Node = fleet.api.get("a").await.unwrap();
    fleet.api.update(record.taint("broken:NoExecute").at(0)).await.unwrap();
    eventually(TIMEOUT, "the pod is removed", || async {
        fleet.api.get::<pb::Pod>("default/p").await.is_err().then_some(())
    })
    .await;
    assert!(!is_running(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_was_paused_marks_no_node_unknown() {
    // Without leader election the controller can notice the pause only by its own clock.
    let mut fleet = Fleet::start(&["--leader-elect=false"]);
    let mut agents = Vec::new();
    for name in ["a", "b", "c"] {
        agents.push(fleet.agent(name, "").await);
    }
    let mut watch = fleet.api.watch::<pb::Node>(WatchQuery::default()).await.unwrap();
    fleet.controller.signal(Signal::STOP);
    holds_for(Duration::from_secs(8), "the agents run for longer than a grace", || async {
        fleet.api.get::<pb::Node>("a").await.is_ok_and(|node| is_ready(&node))
    })
    .await;
    fleet.controller.signal(Signal::CONT);
    holds_for(OBSERVATION_TIME, "all nodes stay Ready", || async {
        fleet.api.get::<pb::Node>("a").await.is_ok_and(|node| is_ready(&node))
    })
    .await;

    // Also between two checks: no event of the watch shows another status.
    fleet.node_without_agent("last", "", "True").await;
    loop {
        let seen = watch.next().await;
        let name = seen.record.metadata.as_ref().unwrap().name.clone();
        if name == "last" {
            break;
        }
        assert_eq!(ready(&seen.record), "True", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s192_a_silent_node_becomes_unknown_although_the_link_to_the_store_breaks_again_and_again() {
    let mut fleet = Fleet::start(&[]);
    let store = fleet.store.url().trim_start_matches("http://").parse().unwrap();
    let proxy = std::sync::Arc::new(TcpProxy::to(store).await);
    // In place of the fleet's own controller.
    fleet.controller = ControllerProcess::start(&proxy.url(), &controller_flags(&[]));
    let _other = fleet.agent("b", "").await;
    let agent = fleet.agent("a", "").await;
    // Shorter than the grace of six seconds: if each cut gave a new grace, no node would ever become Unknown.
    let cuts = tokio::spawn({
        let proxy = std::sync::Arc::clone(&proxy);
        async move {
            let mut every = tokio::time::interval(Duration::from_secs(5));
            loop {
                every.tick().await;
                proxy.cut();
            }
        }
    });
    let mut watch = fleet.api.watch::<pb::Node>(WatchQuery::default()).await.unwrap();
    let before = proxy.connections_made();
    pause(&agent);
    fleet.node_where("a", "it is Unknown", |node| ready(node) == "Unknown").await;
    assert!(proxy.connections_made() > before, "the link broke meanwhile");
    holds_for(OBSERVATION_TIME, "the other node stays Ready", || async {
        fleet.api.get::<pb::Node>("b").await.is_ok_and(|node| is_ready(&node))
    })
    .await;
    cuts.abort();

    // Also between two checks: no event of the watch shows another status.
    fleet.node_without_agent("last", "", "True").await;
    loop {
        let seen = watch.next().await;
        match seen.record.metadata.as_ref().unwrap().name.as_str() {
            "last" => break,
            "b" => assert_eq!(ready(&seen.record), "True"),
            _ => {}
        }
    }
}
