//! The way to the store: what an agent does when it is slow.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_proto::pb;
use muster_tests::agent_process::gate::Gate;
use muster_tests::agent_process::{Home, is_ready, node_where};
use muster_tests::process::Launch;
use muster_tests::{PATIENCE, Wire, eventually};

fn has_label(node: &pb::Node, key: &str) -> bool {
    node.metadata.as_ref().unwrap().labels.contains_key(key)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_write_while_a_status_is_on_its_way_is_kept() {
    let (directory, home) = (tempfile::tempdir().unwrap(), Home::new());
    let store = Launch::on(directory.path()).start();
    let (api, gate) = (store.api(), Gate::before(&store.url()).await);
    // An answer may take as long as a turn does.
    let launch = home.agent("n1", gate.url()).flag("node-lease-duration-seconds", "40");
    let _agent = launch.flag("node-status-update-frequency", "5s").start();
    let node = node_where(&api, "n1", "it is ready", is_ready).await;

    let held = gate.hold_records().await;
    let before = gate.records();
    // It is put back with the whole record.
    api.update(node.at(0).without_label("kubernetes.io/os")).await.unwrap();
    eventually(PATIENCE, "the record is on its way", || async { (gate.records() > before).then_some(()) })
        .await;
    let meanwhile = api.get::<pb::Node>("n1").await.unwrap();
    assert!(!has_label(&meanwhile, "kubernetes.io/os"));
    api.update(meanwhile.at(0).label("team", "blue")).await.unwrap();
    drop(held);
    let node = node_where(&api, "n1", "its label is back", |node| has_label(node, "kubernetes.io/os")).await;
    assert!(has_label(&node, "team"), "somebody else's label is gone: {node:?}");
}
