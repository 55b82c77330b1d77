//! Following records.

use crate::harness::{Stage, sample};

const OTHER: &str = "{kind: Node, apiVersion: v1, metadata: {name: worker-2}}";

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_what_there_is_and_every_change() {
    let stage = Stage::with_store().await;
    stage.piped("apply -f -", &sample("node.yaml")).await.ok();
    let mut watch = stage.start("get nodes -w --output-watch-events");
    assert!(watch.until(&["EVENT"]).await.starts_with("EVENT   NAME"));
    watch.until(&["ADDED", "worker-1", "Ready,SchedulingDisabled"]).await;
    stage.piped("apply -f -", OTHER).await.ok();
    watch.until(&["ADDED", "worker-2", "Unknown"]).await;
    stage.muster("label node worker-2 topology.kubernetes.io/zone=z1").await.ok();
    watch.until(&["MODIFIED", "worker-2", "z1"]).await;
    stage.muster("delete node worker-2").await.ok();
    watch.until(&["DELETED", "worker-2"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_nothing_waits_for_something() {
    let stage = Stage::with_store().await;
    let mut watch = stage.start("get nodes -w -l rack=7");
    let mut names = stage.start("get nodes -w -o name");
    let mut documents = stage.start("get node worker-2 -w -o yaml");
    stage.piped("apply -f -", OTHER).await.ok();
    names.until(&["node/worker-2"]).await;
    documents.until(&["name: worker-2"]).await;
    stage.muster("label node worker-2 rack=7").await.ok();
    assert!(watch.until(&["NAME"]).await.starts_with("NAME "), "headings come with the first record");
    watch.until(&["worker-2"]).await;
    documents.until(&["---"]).await;
    documents.until(&["rack: \"7\""]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_cannot_begin_says_so_and_ends() {
    let mut stage = Stage::empty();
    stage.say("MUSTER_STORE", "http://127.0.0.1:1");
    let complaint = stage.muster("get nodes -w").await.refused(6);
    assert!(complaint.contains("the store at http://127.0.0.1:1 cannot be followed"), "{complaint}");
}
