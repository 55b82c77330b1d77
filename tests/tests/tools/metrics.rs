//! Metrics of the store's calls and watches, and their exemplars, which lead to traces.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::pb;
use muster_tests::store_process::{StoreLaunch, StoreProcess, until};
use muster_tests::{WatchQuery, fixtures};
use tonic::Request;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Creates a node as a caller whose trace is recorded.
async fn create_traced(store: &StoreProcess, name: &str) {
    let mut client = NodeServiceClient::new(store.channel());
    let mut request = Request::new(pb::CreateNodeRequest { node: Some(fixtures::node(name)) });
    let traceparent = format!("00-{TRACE}-b7ad6b7169203331-01");
    request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
    client.create_node(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn latencies_of_calls_commits_and_watches_have_exemplars() {
    let directory = tempfile::tempdir().unwrap();
    // No collector listens there; only the traces that callers ask for are recorded.
    let launch = StoreLaunch::on(directory.path()).flag("--otlp-endpoint", "http://127.0.0.1:9");
    let store = launch.flag("--trace-sample-ratio", "0").start();
    let mut watch = store.api().watch::<pb::Node>(WatchQuery::default()).await.unwrap();
    create_traced(&store, "a").await;
    watch.next().await;
    store.api().get::<pb::Node>("missing").await.unwrap_err();

    let exemplar = format!("# {{trace_id=\"{TRACE}\"}}");
    let leads = |line: &str| line.contains(&exemplar);
    let created = "muster_call_seconds_bucket{le=\"13.1072\",service=\"muster.v1.NodeService\",method=\"CreateNode\"} 1";
    until("the watcher's frame is counted", || store.metric("muster_store_watch_lag_seconds_count") >= 1.0)
        .await;
    let metrics = store.metrics();
    for name in ["muster_call_seconds", "muster_store_commit_seconds", "muster_store_watch_lag_seconds"] {
        let found = metrics.lines().any(|line| line.starts_with(name) && leads(line));
        assert!(found, "no exemplar in {name}:\n{metrics}");
    }
    assert!(metrics.contains(created), "{metrics}");
    let refused =
        "muster_calls_total{service=\"muster.v1.NodeService\",method=\"GetNode\",code=\"NotFound\"} 1";
    assert!(metrics.lines().any(|line| line == refused), "{metrics}");
}
