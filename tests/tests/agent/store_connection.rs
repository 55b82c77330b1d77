//! Connections to the store: slow answers, dead connections and several stores.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_proto::pb;
use muster_tests::agent_process::fault_proxy::FaultProxy;
use muster_tests::agent_process::{AgentHost, is_ready, lease_where, node_where, renewed_at};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreLaunch, free_port};
use muster_tests::tcp_proxy::TcpProxy;
use muster_tests::{TIMEOUT, eventually};

fn has_label(node: &pb::Node, key: &str) -> bool {
    node.metadata.as_ref().unwrap().labels.contains_key(key)
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_other_writers_during_a_status_update_are_kept() {
    let (directory, host) = (tempfile::tempdir().unwrap(), AgentHost::new());
    let store = StoreLaunch::on(directory.path()).start();
    let (api, faults) = (store.api(), FaultProxy::to(&store.url()).await);
    // The status frequency is also the timeout of calls.
    let launch = host.agent("n1", faults.url()).flag("node-lease-duration-seconds", "40");
    let _agent = launch.flag("node-status-update-frequency", "5s").start();
    let node = node_where(&api, "n1", "it is ready", is_ready).await;

    let held = faults.hold_status_updates().await;
    let before = faults.status_updates();
    // The agent restores the label with `UpdateNodeStatus`.
    api.update(node.at(0).without_label("kubernetes.io/os")).await.unwrap();
    eventually(TIMEOUT, "the update is in flight", || async {
        (faults.status_updates() > before).then_some(())
    })
    .await;
    let meanwhile = api.get::<pb::Node>("n1").await.unwrap();
    assert!(!has_label(&meanwhile, "kubernetes.io/os"));
    api.update(meanwhile.at(0).label("team", "blue")).await.unwrap();
    drop(held);
    let node = node_where(&api, "n1", "its label is back", |node| has_label(node, "kubernetes.io/os")).await;
    assert!(has_label(&node, "team"), "the label of another writer is lost: {node:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_connection_is_detected_within_the_lease_with_default_flags() {
    let (directory, host, port) = (tempfile::tempdir().unwrap(), AgentHost::new(), free_port());
    let store = StoreLaunch::on(directory.path()).at(port).start();
    let api = store.api();
    let proxy = TcpProxy::to(([127, 0, 0, 1], port).into()).await;
    let mut launch = host.agent("n1", &proxy.url());
    for flag in
        ["node-lease-duration-seconds", "node-status-update-frequency", "node-status-report-frequency"]
    {
        launch = launch.without(flag);
    }
    let _agent = launch.start();
    node_where(&api, "n1", "it is ready", is_ready).await;
    let renewed = |lease: &pb::Lease| lease.spec.as_ref().unwrap().status_digest != 0;
    let before = lease_where(&api, "n1", "it was renewed", renewed).await;
    let made = proxy.connections_made();
    proxy.blackhole();
    let next = |lease: &pb::Lease| renewed_at(lease) > renewed_at(&before);
    let after = lease_where(&api, "n1", "it is renewed again", next).await;
    assert!(proxy.connections_made() > made, "over a new connection");
    let (from, to) = (renewed_at(&before).unwrap(), renewed_at(&after).unwrap());
    assert!(to.0 - from.0 < 40, "from {from:?} to {to:?} the lease had expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_fails_over_to_the_second_store() {
    let (directory, host, port) = (tempfile::tempdir().unwrap(), AgentHost::new(), free_port());
    let store = StoreLaunch::on(directory.path()).at(port).start();
    let api = store.api();
    // Two proxies to one store stand for two stores of one fleet.
    let first = TcpProxy::to(([127, 0, 0, 1], port).into()).await;
    let second = TcpProxy::to(([127, 0, 0, 1], port).into()).await;
    let stores = format!("{},{}", first.url(), second.url());
    let agent = host.agent("n1", &stores).flag("node-lease-duration-seconds", "20").start();
    let node = node_where(&api, "n1", "it is ready", is_ready).await;
    assert!(first.connections_made() > 0 && second.connections_made() == 0, "the first is preferred");
    let before = lease_where(&api, "n1", "it exists", |_| true).await;

    first.close();
    let next = |lease: &pb::Lease| {
        second.connections_made() > 0
            && renewed_at(lease) > renewed_at(&before).map(|(seconds, nanos)| (seconds + 1, nanos))
    };
    let after = lease_where(&api, "n1", "it is renewed through the second", next).await;
    let (from, to) = (renewed_at(&before).unwrap(), renewed_at(&after).unwrap());
    assert!(to.0 - from.0 < 20, "from {from:?} to {to:?} the lease had expired");
    // The watches work over the second store too.
    api.update(node.at(0).without_label("kubernetes.io/os")).await.unwrap();
    node_where(&api, "n1", "its label is back", |node| has_label(node, "kubernetes.io/os")).await;
    assert!(agent.state().await.registered);
}
