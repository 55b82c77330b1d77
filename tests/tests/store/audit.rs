//! The store's audit log: which calls it has, and what a line says. That every denial is in it is checked wherever a
//! test expects one.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_tests::fixtures::*;
use muster_tests::{Resource, TestStore};
use serde_json::{Value, json};
use tonic::{Code, Request};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Verb, path and code of each line.
fn summaries(lines: &[Value]) -> Vec<String> {
    let text = |line: &Value, field: &str| line[field].as_str().unwrap_or_default().to_owned();
    let summary = |line: &Value| {
        let [verb, kind, namespace, name, code] =
            ["verb", "kind", "namespace", "name", "code"].map(|field| text(line, field));
        let namespace = if namespace.is_empty() { namespace } else { namespace + "/" };
        format!("{verb} {kind} {namespace}{name}: {code}")
    };
    lines.iter().map(summary).collect()
}

/// All lines until the creation of a node that marks the end.
async fn lines_so_far(store: &TestStore) -> Vec<Value> {
    store.api().create(node("end")).await.unwrap();
    store.audit_log().expect("the end", |line| line["name"] == "end").await;
    let mut lines = store.audit_log().lines();
    lines.pop();
    lines
}

#[tokio::test]
async fn a_write_is_logged_with_its_caller_record_revision_and_trace() {
    let store = TestStore::secure().await;
    let mut nodes = NodeServiceClient::new(store.api_as_node("a").channel());
    let mut request = Request::new(pb::CreateNodeRequest { node: Some(node("a")) });
    let traceparent = format!("00-{TRACE}-b7ad6b7169203331-01");
    request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
    let created = nodes.create_node(request).await.unwrap().into_inner().node.unwrap();

    let mut line = store.audit_log().expect("the creation", |line| line["verb"] == "create").await;
    let mut take = |field: &str| line[field].take().as_str().unwrap_or_default().to_owned();
    let (time, from, serial) = (take("time"), take("from"), take("serial"));
    assert!(time.len() == "2026-01-01T00:00:00.000000Z".len() && time.ends_with('Z'), "{time}");
    assert!(from.starts_with("127.0.0.1:"), "{from}");
    assert!(serial.split(':').all(|byte| u8::from_str_radix(byte, 16).is_ok()), "{serial}");
    let expected = json!({
        "time": null, "from": null, "serial": null,
        "caller": "node:a", "subject": "CN=node:a, O=muster:nodes",
        "service": "muster.v1.NodeService", "method": "CreateNode", "verb": "create",
        "kind": "Node", "name": "a", "code": "OK",
        "revision": created.metadata.unwrap().resource_version, "trace": TRACE,
    });
    assert_eq!(line, expected);
}

#[tokio::test]
async fn every_write_is_logged_and_so_is_every_refusal_of_one() {
    let store = TestStore::start().await;
    let api = store.api();
    let made = api.create(pod("web").on("a")).await.unwrap();
    api.get::<pb::Pod>("default/web").await.unwrap();
    api.update_status(made.running("True")).await.unwrap();
    api.expect_error(api.create(pod("web"))).await.is(Code::AlreadyExists, "ALREADY_EXISTS");
    api.expect_error(api.get::<pb::Pod>("default/none")).await.is(Code::NotFound, "NOT_FOUND");
    api.expect_error(api.delete::<pb::Pod>("default/none")).await.is(Code::NotFound, "NOT_FOUND");
    api.evict("default/web").await.unwrap();
    api.create(node("a")).await.unwrap();
    let unchanged = api.update(api.get::<pb::Node>("a").await.unwrap()).await.unwrap();
    let deleted = api.delete::<pb::Node>("a").await.unwrap();
    assert!(deleted.version() > unchanged.version());
    let recorded = api.record(event("a", "Tested", "by a test")).await.unwrap();

    let lines = lines_so_far(&store).await;
    let event = format!("record Event default/{}: OK", recorded.name());
    assert_eq!(
        summaries(&lines),
        [
            "create Pod default/web: OK",
            "update_status Pod default/web: OK",
            "create Pod default/web: AlreadyExists",
            "delete Pod default/none: NotFound",
            "evict Pod default/web: OK",
            "create Node a: OK",
            "update Node a: OK",
            "delete Node a: OK",
            &event,
        ]
    );
    assert_eq!(lines[2]["reason"], "ALREADY_EXISTS");
    assert!(lines[6]["revision"].is_null(), "an update that changes nothing writes nothing: {}", lines[6]);
    assert_eq!(lines[7]["revision"], deleted.version(), "of the node, not of what was deleted with it");
}

#[tokio::test]
async fn of_a_heartbeat_stream_hello_and_statuses_are_logged_and_renewals_are_not() {
    let store = TestStore::start().await;
    let api = store.api();
    let mut stream = api.agent("a").await;
    for _ in 0..3 {
        stream.renew_patiently().await.unwrap();
    }
    let current: pb::Node = api.get("a").await.unwrap();
    let status = pb::HeartbeatStatus {
        status: current.clone().ready("True").status,
        resource_version: current.version(),
    };
    let reported = stream.send(Message::Status(status)).await.unwrap();
    api.renew("kube-node-lease/a", "a").await.unwrap();
    // A lease without a holder is acquired by its first renewal.
    api.create(lease("free")).await.unwrap();
    api.renew("kube-node-lease/free", "somebody").await.unwrap();
    api.renew("kube-node-lease/free", "somebody").await.unwrap();

    let lines = lines_so_far(&store).await;
    assert_eq!(
        summaries(&lines),
        [
            "create Node a: OK",
            "hello Lease kube-node-lease/a: OK",
            "update_status Node a: OK",
            "create Lease kube-node-lease/free: OK",
            "renew Lease kube-node-lease/free: OK",
        ]
    );
    assert_eq!(lines[2]["method"], "Heartbeat");
    assert_eq!(lines[2]["revision"], reported.resource_version);
}

#[tokio::test]
async fn the_last_lines_are_written_before_the_store_has_stopped() {
    let store = TestStore::start().await;
    store.api().create(node("last")).await.unwrap();
    let log = store.audit_log().clone();
    let _stopped = store.stop().await;
    assert_eq!(log.lines().last().unwrap()["name"], "last");
}
