//! What is denied to a node by gRPC is denied here (scenarios 179-190 over this face).

use muster_proto::pb;
use muster_tests::fixtures::*;
use muster_tests::kubectl::Kubectl;
use serde_json::json;

use crate::secure_world;

/// Every command must be forbidden.
async fn all_denied(kubectl: &Kubectl, commands: &[&[&str]]) {
    for words in commands {
        let refused = kubectl.fail(words).await;
        assert!(refused.contains("Forbidden"), "kubectl {}: {refused}", words.join(" "));
    }
}

/// Sending this to that path must be forbidden.
async fn send_denied(kubectl: &Kubectl, verb: &str, path: &str, object: &serde_json::Value) {
    let refused = kubectl.try_run_with(&[verb, "--raw", path, "-f", "-"], &object.to_string()).await;
    assert!(!refused.success && refused.stderr.contains("Forbidden"), "{verb} {path}: {refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s279_a_node_may_do_by_this_api_what_it_may_do_by_grpc() {
    let (store, admin) = secure_world().await;
    let api = store.api();
    let (a, none) = (Kubectl::of_node(&store, "a"), "--validate=false");
    api.create(node("b")).await.unwrap();
    api.create(pod("theirs").on("b")).await.unwrap();
    api.create(lease("b")).await.unwrap();
    api.create(budget("budget", ("x", "y"), "1")).await.unwrap();

    // 179: its own node, and no other.
    let own = "{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"a\"},\"spec\":{\"taints\":[{\"key\":\"gpu\",\"effect\":\"NoSchedule\"}]}}";
    a.run_with(&["create", none, "-f", "-"], own).await;
    assert_eq!(a.run(&["get", "node", "a", "-o", "name"]).await, "node/a\n");
    assert_eq!(a.run(&["get", "nodes", "--field-selector=metadata.name=a", "-o", "name"]).await, "node/a\n");
    a.run(&["cordon", "a"]).await;
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}).to_string();
    a.run(&["patch", "node", "a", "--subresource=status", "-p", &status]).await;
    all_denied(
        &a,
        &[
            &["get", "node", "b"],
            &["get", "node", "missing"],
            &["get", "nodes"],
            &["get", "nodes", "--field-selector=metadata.name=b"],
            &["get", "--raw", "/api/v1/nodes?watch=1"],
            &["delete", "node", "a"],
            &["patch", "node", "b", "-p", "{}"],
        ],
    )
    .await;
    send_denied(&a, "create", "/api/v1/nodes", &json!({"metadata": {"name": "c"}})).await;
    send_denied(&a, "replace", "/api/v1/nodes/b", &json!({"metadata": {"name": "b"}})).await;

    // 180 to 182: neither taints nor restricted labels nor address blocks.
    for patch in [
        json!({"spec": {"taints": null}}),
        json!({"spec": {"taints": [{"key": "more", "effect": "NoExecute"}]}}),
        json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
        json!({"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "u"}]}}),
    ] {
        all_denied(&a, &[&["patch", "node", "a", "--type=merge", "-p", &patch.to_string()]]).await;
    }
    a.run(&["label", "node", "a", "mine=yes"]).await;

    // 183: its own lease.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease_of = |name: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}})
    };
    a.run_with(&["create", "--raw", leases, "-f", "-"], &lease_of("a").to_string()).await;
    send_denied(&a, "create", leases, &lease_of("c")).await;
    send_denied(&a, "replace", &format!("{leases}/b"), &lease_of("b")).await;
    all_denied(
        &a,
        &[
            &["get", "--raw", leases],
            &["get", "--raw", &format!("{leases}/b")],
            &["delete", "--raw", &format!("{leases}/b")],
        ],
    )
    .await;

    // 184 to 187: the pods bound to it, and mirror pods with itself as their owner.
    let mine = api.create(pod("mine").on("a")).await.unwrap();
    assert_eq!(a.run(&["get", "pod", "mine", "-o", "name"]).await, "pod/mine\n");
    assert_eq!(
        a.run(&["get", "pods", "-A", "--field-selector=spec.nodeName=a", "-o", "name"]).await,
        "pod/mine\n"
    );
    let running = json!({"status": {"phase": "Running"}}).to_string();
    a.run(&["patch", "pod", "mine", "--subresource=status", "-p", &running]).await;
    all_denied(
        &a,
        &[
            &["get", "pod", "theirs"],
            &["get", "pods", "-A"],
            &["patch", "pod", "theirs", "--subresource=status", "-p", &running],
            &["patch", "pod", "mine", "-p", "{\"metadata\":{\"labels\":{\"x\":\"y\"}}}"],
            &["delete", "pod", "theirs", "--force", "--grace-period=0"],
        ],
    )
    .await;
    let pods = "/api/v1/namespaces/default/pods";
    let plain = json!({"metadata": {"name": "new"}, "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]}});
    send_denied(&a, "create", pods, &plain).await;
    let binding = json!({"metadata": {"name": "mine"}, "target": {"kind": "Node", "name": "a"}});
    send_denied(&a, "create", &format!("{pods}/mine/binding"), &binding).await;
    let eviction = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}});
    send_denied(&a, "create", &format!("{pods}/theirs/eviction"), &eviction("theirs")).await;

    // 188 to 190: nothing of budgets, and events only about itself and as its agent.
    all_denied(&a, &[&["get", "pdb"], &["delete", "pdb", "budget"]]).await;
    let event = |node: &str, source: &str| {
        json!({"involvedObject": {"kind": "Node", "name": node}, "reason": "R", "message": "m",
        "source": {"component": source}})
    };
    let events = "/api/v1/namespaces/default/events";
    a.run_with(&["create", "--raw", events, "-f", "-"], &event("a", "agent").to_string()).await;
    send_denied(&a, "create", events, &event("b", "agent")).await;
    send_denied(&a, "create", events, &event("a", "controller")).await;
    all_denied(&a, &[&["get", "events"]]).await;

    // The others: viewers read, schedulers bind.
    let viewer = Kubectl::of_caller(&store, "vic", "muster:viewers");
    viewer.run(&["get", "nodes,pods"]).await;
    all_denied(&viewer, &[&["delete", "node", "b"], &["label", "node", "b", "x=y"]]).await;
    let scheduler = Kubectl::of_caller(&store, "s", "muster:schedulers");
    api.create(pod("waiting")).await.unwrap();
    let binding = json!({"metadata": {"name": "waiting"}, "target": {"kind": "Node", "name": "b"}});
    scheduler
        .run_with(&["create", "--raw", &format!("{pods}/waiting/binding"), "-f", "-"], &binding.to_string())
        .await;
    all_denied(&scheduler, &[&["delete", "pod", "waiting"], &["label", "node", "b", "x=y"]]).await;

    // Nothing of what was denied happened, and the denials are in the audit log.
    let stored = api.get::<pb::Node>("b").await.unwrap();
    assert!(!stored.spec.unwrap_or_default().unschedulable && stored.metadata.unwrap().labels.is_empty());
    assert_eq!(
        api.get::<pb::Pod>("default/mine").await.unwrap().metadata.unwrap().uid,
        mine.metadata.unwrap().uid
    );
    admin.run(&["get", "pod", "theirs"]).await;
}
