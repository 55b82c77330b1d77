//! The way to the store: what an agent does when it is slow, dead, or there are two of them.

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
async fn what_others_write_while_a_status_is_on_its_way_is_kept() {
    let (directory, host) = (tempfile::tempdir().unwrap(), AgentHost::new());
    let store = StoreLaunch::on(directory.path()).start();
    let (api, faults) = (store.api(), FaultProxy::to(&store.url()).await);
    // An answer may take as long as a turn does.
    let launch = host.agent("n1", faults.url()).flag("node-lease-duration-seconds", "40");
    let _agent = launch.flag("node-status-update-frequency", "5s").start();
    let node = node_where(&api, "n1", "it is ready", is_ready).await;

    let held = faults.hold_status_updates().await;
    let before = faults.status_updates();
    // It is put back with the whole record.
    api.update(node.at(0).without_label("kubernetes.io/os")).await.unwrap();
    eventually(TIMEOUT, "the record is on its way", || async {
        (faults.status_updates() > before).then_some(())
    })
    .await;
    let meanwhile = api.get::<pb::Node>("n1").await.unwrap();
    assert!(!has_label(&meanwhile, "kubernetes.io/os"));
    api.update(meanwhile.at(0).label("team", "blue")).await.unwrap();
    drop(held);
    let node = node_where(&api, "n1", "its label is back", |node| has_label(node, "kubernetes.io/os")).await;
    assert!(has_label(&node, "team"), "somebody else's label is gone: {node:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_connection_is_found_out_within_the_lease_on_default_flags() {
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
    assert!(proxy.connections_made() > made, "over a connection of its own");
    let (from, to) = (renewed_at(&before).unwrap(), renewed_at(&after).unwrap());
    assert!(to.0 - from.0 < 40, "from {from:?} to {to:?} the lease had run out");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_loses_the_first_of_two_stores_goes_on_with_the_second() {
    let (directory, host, port) = (tempfile::tempdir().unwrap(), AgentHost::new(), free_port());
    let store = StoreLaunch::on(directory.path()).at(port).start();
    let api = store.api();
    // Two ways to one store, as to two stores that serve one fleet.
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
    let after = lease_where(&api, "n1", "it is renewed by the second", next).await;
    let (from, to) = (renewed_at(&before).unwrap(), renewed_at(&after).unwrap());
    assert!(to.0 - from.0 < 20, "from {from:?} to {to:?} the lease had run out");
    // What is written is heard, too.
    api.update(node.at(0).without_label("kubernetes.io/os")).await.unwrap();
    node_where(&api, "n1", "its label is back", |node| has_label(node, "kubernetes.io/os")).await;
    assert!(agent.state().await.registered);
}
