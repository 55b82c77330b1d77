//! The events that a real agent records about its pods, as an operator reads them in the store.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_proto::pb;
use muster_tests::fixtures::*;
use muster_tests::single_node::SingleNodeCluster;
use muster_tests::store_process::TIMEOUT;
use muster_tests::{ListQuery, eventually};

/// A pod on the agent's node that runs a script and is always restarted.
fn script(name: &str, script: &str) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = ["sh", "-c", script].map(str::to_owned).to_vec();
    })
}

/// Waits for an event with that reason about the pod.
async fn event(cluster: &SingleNodeCluster, pod: &str, reason: &str) -> pb::Event {
    let is_it = |event: &pb::Event| {
        event.reason == reason && event.involved_object.as_ref().is_some_and(|involved| involved.name == pod)
    };
    eventually(TIMEOUT, &format!("an event {reason} about {pod}"), || async {
        let events = cluster.api.list::<pb::Event>(ListQuery::default()).await.unwrap().records;
        events.into_iter().find(is_it)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_keeps_failing_has_a_backoff_event() {
    let (cluster, _agent) = SingleNodeCluster::new().await;
    cluster.api.create(script("a", "exit 1")).await.unwrap();
    let back_off = event(&cluster, "a", "BackOff").await;
    let uid = back_off.involved_object.as_ref().unwrap().uid.clone();
    assert_eq!(
        back_off.message,
        format!("Back-off restarting failed container main in pod a_default({uid})")
    );
    assert_eq!((back_off.r#type.as_str(), back_off.source_component.as_str()), ("Warning", "agent"));
    let started = event(&cluster, "a", "Started").await;
    assert_eq!((started.message.as_str(), started.r#type.as_str()), ("Started container main", "Normal"));
    assert!(started.count >= 2, "it was restarted before it backed off: {started:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_show_why_a_pod_did_not_start_and_that_it_was_stopped() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(script("stopped", "exec sleep 1000")).await.unwrap();
    agent.container_pid("stopped").await;
    cluster.api.delete::<pb::Pod>("default/stopped").await.unwrap();
    let killing = event(&cluster, "stopped", "Killing").await;
    assert_eq!((killing.message.as_str(), killing.count), ("Stopping container main", 1));

    let missing = script("missing", "").spec(|spec| {
        spec.containers[0].command = vec!["/no/such/program".to_owned()];
    });
    cluster.api.create(missing).await.unwrap();
    let failed = event(&cluster, "missing", "Failed").await;
    assert!(
        failed.message.starts_with("Error: ") && failed.message.contains("/no/such/program"),
        "{failed:?}"
    );
}
