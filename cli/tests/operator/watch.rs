//! `muster get --watch`.

use crate::harness::{Harness, sample};

const OTHER: &str = "{kind: Node, apiVersion: v1, metadata: {name: worker-2}}";

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_the_current_records_and_every_change() {
    let harness = Harness::with_store().await;
    harness.muster_with_stdin("apply -f -", &sample("node.yaml")).await.ok();
    let mut watch = harness.start("get nodes -w --output-watch-events");
    assert!(watch.wait_for_line(&["EVENT"]).await.starts_with("EVENT   NAME"));
    watch.wait_for_line(&["ADDED", "worker-1", "Ready,SchedulingDisabled"]).await;
    harness.muster_with_stdin("apply -f -", OTHER).await.ok();
    watch.wait_for_line(&["ADDED", "worker-2", "Unknown"]).await;
    harness.muster("label node worker-2 topology.kubernetes.io/zone=z1").await.ok();
    watch.wait_for_line(&["MODIFIED", "worker-2", "z1"]).await;
    harness.muster("delete node worker-2").await.ok();
    watch.wait_for_line(&["DELETED", "worker-2"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_without_records_waits_for_the_first() {
    let harness = Harness::with_store().await;
    let mut watch = harness.start("get nodes -w -l rack=7");
    let mut names = harness.start("get nodes -w -o name");
    let mut documents = harness.start("get node worker-2 -w -o yaml");
    harness.muster_with_stdin("apply -f -", OTHER).await.ok();
    names.wait_for_line(&["node/worker-2"]).await;
    documents.wait_for_line(&["name: worker-2"]).await;
    harness.muster("label node worker-2 rack=7").await.ok();
    assert!(watch.wait_for_line(&["NAME"]).await.starts_with("NAME "), "headers come with the first record");
    watch.wait_for_line(&["worker-2"]).await;
    documents.wait_for_line(&["---"]).await;
    documents.wait_for_line(&["rack: \"7\""]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_cannot_be_opened_fails() {
    let mut harness = Harness::empty();
    harness.set_env("MUSTER_STORE", "http://127.0.0.1:1");
    let stderr = harness.muster("get nodes -w").await.failed(6);
    assert!(stderr.contains("cannot watch the store at http://127.0.0.1:1"), "{stderr}");
}
