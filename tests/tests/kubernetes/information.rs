//! kubectl's questions: describe, wait, events, explain, discovery.

use muster_proto::pb;
use muster_tests::fixtures::*;

use crate::{words, world};

#[tokio::test(flavor = "multi_thread")]
async fn s273_kubectl_describes_nodes_and_pods_with_their_events() {
    let (store, kubectl) = world().await;
    let api = store.api();
    let drain = pb::NodeDrain {
        requested_by: "eva".into(),
        requested_at: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
        state: "Draining".into(),
        message: "3 pods are left".into(),
        ..Default::default()
    };
    let created = node("n").ready("True").taint("k=v:NoSchedule").spec(|spec| spec.drain = Some(drain));
    let uid = api.create(created.capacity("cpu", "4")).await.unwrap().metadata.unwrap().uid;
    api.create(held(lease("n"), "holder-1", 40)).await.unwrap();
    api.create(pod("p").on("n")).await.unwrap();
    let mut rebooted = event("n", "Rebooted", "the node has rebooted");
    rebooted.involved_object.as_mut().unwrap().uid = uid;
    api.record(rebooted).await.unwrap();

    let node = kubectl.run(&["describe", "node", "n"]).await;
    for part in [
        "k=v:NoSchedule",
        "HolderIdentity:  holder-1",
        "DrainInProgress",
        "3 pods are left",
        "Rebooted",
        "the node has rebooted",
    ] {
        assert!(node.contains(part), "no {part} in:\n{node}");
    }
    assert!(node.lines().any(|line| words(line).starts_with(&["default", "p"])), "its pods:\n{node}");
    let pod = kubectl.run(&["describe", "pod", "p"]).await;
    for part in ["Name:", "Node:", "n", "Image:", "image", "QoS Class:"] {
        assert!(pod.contains(part), "no {part} in:\n{pod}");
    }
    let budgets = api.create(budget("b", ("a", "b"), "1")).await.unwrap();
    assert!(budgets.metadata.is_some());
    assert!(kubectl.run(&["describe", "pdb", "b"]).await.contains("Min available:  1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn s274_kubectl_waits_for_conditions_and_follows_events() {
    let (store, kubectl) = world().await;
    let api = store.api();
    let created = api.create(node("n")).await.unwrap();
    let mut waiting = kubectl.follow(&["wait", "--for=condition=Ready", "node/n", "--timeout=60s"]);
    api.update_status(created.ready("True")).await.unwrap();
    assert_eq!(waiting.line(), "node/n condition met");
    // Already met: the initial events say so.
    let met = kubectl.run(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=60s"]).await;
    assert_eq!(met, "node/n condition met\n");

    api.record(event("n", "First", "one")).await.unwrap();
    let events = kubectl.run(&["events", "-A", "--for=node/n"]).await;
    assert!(events.contains("First") && events.contains("Node/n"), "{events}");
    assert!(!kubectl.run(&["events", "-A", "--for=node/m"]).await.contains("First"));
    let mut followed = kubectl.follow(&["events", "-A", "-w"]);
    followed.line_with("First");
    api.record(event("n", "Second", "two")).await.unwrap();
    followed.line_with("Second");

    // Written by a client, counted by the store.
    let sent = r#"{"apiVersion":"v1","kind":"Event","metadata":{"generateName":"n.","namespace":"default"},
        "involvedObject":{"kind":"Node","name":"n"},"reason":"Third","message":"three","type":"Warning",
        "source":{"component":"tool"}}"#;
    for expected in [1, 2] {
        let answer = kubectl
            .run_with(&["create", "--raw", "/api/v1/namespaces/default/events", "-f", "-"], sent)
            .await;
        let stored: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(stored["count"], expected, "{stored}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s275_kubectl_finds_what_is_served_and_what_is_not() {
    let (_store, kubectl) = world().await;
    let resources = kubectl.run(&["api-resources", "--no-headers"]).await;
    let names: Vec<&str> = resources.lines().map(|line| words(line)[0]).collect();
    for name in ["nodes", "pods", "events", "leases", "namespaces", "poddisruptionbudgets"] {
        assert!(names.contains(&name), "no {name} in:\n{resources}");
    }
    let versions = kubectl.run(&["api-versions"]).await;
    assert!(versions.lines().any(|line| line == "policy/v1"), "{versions}");
    assert!(kubectl.run(&["version"]).await.contains("Server Version: v1.35.0+muster-"));
    assert!(kubectl.run(&["cluster-info"]).await.contains("is running at"));
    let taints = kubectl.run(&["explain", "node.spec.taints"]).await;
    for part in [
        "KIND:       Node",
        "FIELD: taints",
        "effect",
        "NoSchedule, PreferNoSchedule or NoExecute",
        "timeAdded",
    ] {
        assert!(taints.contains(part), "no {part} in:\n{taints}");
    }
    assert!(kubectl.run(&["explain", "pdb.spec", "--recursive"]).await.contains("minAvailable"));
    assert!(kubectl.fail(&["top", "nodes"]).await.contains("Metrics API not available"));
    for page in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(kubectl.run(&["get", "--raw", page]).await, "ok");
    }
    assert!(
        kubectl
            .fail(&["create", "namespace", "x"])
            .await
            .contains("a namespace exists while a record is in it")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn s276_logs_and_commands_in_containers_are_refused_with_the_reason() {
    let (store, kubectl) = world().await;
    let created = store.api().create(pod("p").on("n")).await.unwrap();
    store.api().update_status(created.running("True")).await.unwrap();
    let logs = kubectl.fail(&["logs", "p"]).await;
    assert!(logs.contains("(NotImplemented)") && logs.contains("does not serve pods/log"), "{logs}");
    for words in [&["exec", "p", "--", "ls"][..], &["port-forward", "p", "8080:80"]] {
        let refused = kubectl.fail(words).await;
        assert!(refused.contains("Muster does not serve pods/"), "{refused}");
    }
}
