//! The manifests of the source pages, used as they are. `static_pods` has the placeholder pod.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::path::Path;

use muster_proto::pb;
use muster_tests::agent_process::{AgentHost, condition, is_ready, node_where};
use muster_tests::single_node::SingleNodeCluster;
use muster_tests::store_process::muster;

/// The node of every page, which an administrator creates before its machine reports.
const NODE: &str = "10.240.79.157";

#[tokio::test(flavor = "multi_thread")]
async fn s208_the_pages_node_is_created_kept_and_becomes_ready_when_its_agent_reports() {
    let (cluster, _agent) = SingleNodeCluster::new().await;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/node.json");
    let url = cluster.store.url();
    let applied = tokio::task::spawn_blocking(move || {
        muster(&["create", "--store", &url, "-f", file.to_str().unwrap()])
    });
    let applied = applied.await.unwrap();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let created = cluster.api.get::<pb::Node>(NODE).await.unwrap();
    let label = |node: &pb::Node| node.metadata.as_ref().unwrap().labels.get("name").cloned();
    assert_eq!(label(&created).as_deref(), Some("my-first-k8s-node"));
    assert!(condition(&created, "Ready").is_none(), "nobody has reported for it");

    let host = AgentHost::new();
    let _agent = host.agent(NODE, &cluster.store.url()).switch("legacy-conditions").start();
    let ready = node_where(&cluster.api, NODE, "its agent reports", is_ready).await;
    assert_eq!(label(&ready).as_deref(), Some("my-first-k8s-node"), "its own labels stay");
    let out_of_disk = condition(&ready, "OutOfDisk").unwrap();
    assert_eq!(
        (out_of_disk.status.as_str(), out_of_disk.reason.as_str()),
        ("False", "KubeletHasSufficientDisk")
    );
}
