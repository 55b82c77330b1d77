//! kubectl's writes; each is checked in the store's own record.

use muster_proto::pb;
use muster_tests::fixtures::*;
use serde_json::json;

use crate::world;

const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: {app: web}
spec:
  containers:
  - name: main
    image: image
    env: [{name: A, value: '1'}, {name: B, value: '2'}]
    ports: [{containerPort: 80}]
    resources: {requests: {cpu: 500m, memory: 1Gi}}
  volumes: [{name: v, hostPath: {path: /srv}}]
";

#[tokio::test(flavor = "multi_thread")]
async fn s265_kubectl_creates_applies_edits_and_replaces() {
    let (store, kubectl) = world().await;
    let api = store.api();
    assert_eq!(kubectl.run_with(&["create", "-f", "-"], POD).await, "pod/p created\n");
    let again = kubectl.try_run_with(&["create", "-f", "-"], POD).await;
    assert!(
        again.stderr.contains("(AlreadyExists)") && again.stderr.contains("pods \"p\" already exists"),
        "{again:?}"
    );
    let stored = api.get::<pb::Pod>("default/p").await.unwrap();
    let spec = stored.spec.unwrap();
    assert_eq!(spec.containers[0].resources.as_ref().unwrap().requests["cpu"], "500m");
    assert!(
        matches!(&spec.volumes[0].source, Some(pb::volume::Source::HostPath(host)) if host.path == "/srv")
    );
    assert_eq!(
        kubectl.run(&["delete", "pod", "p", "--grace-period=0", "--force"]).await,
        "pod \"p\" force deleted from default namespace\n"
    );

    let node = |label: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: w\n  labels: {{x: '{label}'}}\nspec:\n  providerID: x://1\n"
        )
    };
    let first = node("1");
    assert_eq!(kubectl.run_with(&["apply", "-f", "-"], &first).await, "node/w created\n");
    assert_eq!(kubectl.run_with(&["apply", "-f", "-"], &first).await, "node/w unchanged\n");
    let before = api.get::<pb::Node>("w").await.unwrap().metadata.unwrap().resource_version;
    assert_eq!(kubectl.run_with(&["apply", "-f", "-"], &node("2")).await, "node/w configured\n");
    let applied = api.get::<pb::Node>("w").await.unwrap();
    let metadata = applied.metadata.clone().unwrap();
    assert!(metadata.resource_version > before);
    assert_eq!(metadata.labels["x"], "2");

    let diff = kubectl.try_run_with(&["diff", "-f", "-"], &node("3")).await;
    assert!(diff.stdout.contains("-    x: \"2\"") && diff.stdout.contains("+    x: \"3\""), "{diff:?}");
    let dry = kubectl.run(&["label", "node", "w", "x=4", "--overwrite", "--dry-run=server"]).await;
    assert_eq!(dry, "node/w labeled (server dry run)\n");
    assert_eq!(api.get::<pb::Node>("w").await.unwrap(), applied, "a dry run writes nothing");

    let editor = kubectl.file("editor", "#!/bin/sh\nsed -i 's/x: \"2\"/x: \"5\"/' \"$1\"\n");
    let editor = format!("sh {}", editor.display());
    assert_eq!(kubectl.run_in(("KUBE_EDITOR", &editor), &["edit", "node", "w"]).await, "node/w edited\n");
    assert_eq!(api.get::<pb::Node>("w").await.unwrap().metadata.unwrap().labels["x"], "5");

    let object = kubectl.run(&["get", "node", "w", "-o", "json"]).await;
    let replaced = object.replace("\"x\": \"5\"", "\"x\": \"6\"");
    assert_eq!(kubectl.run_with(&["replace", "-f", "-"], &replaced).await, "node/w replaced\n");
    let stale = kubectl.try_run_with(&["replace", "-f", "-"], &replaced).await;
    assert!(
        stale.stderr.contains("(Conflict)")
            && stale.stderr.contains("please apply your changes to the latest version"),
        "{stale:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn s266_kubectl_patches_in_three_ways_and_says_what_is_wrong() {
    let (store, kubectl) = world().await;
    let api = store.api();
    api.create(node("n").taint("a:NoSchedule").label("x", "1")).await.unwrap();
    let label = async || api.get::<pb::Node>("n").await.unwrap().metadata.unwrap().labels["x"].clone();
    let patch = async |kind: &str, patch: &str| {
        kubectl.try_run(&["patch", "node", "n", "--type", kind, "-p", patch]).await
    };
    for (kind, text, expected) in [
        ("json", r#"[{"op":"replace","path":"/metadata/labels/x","value":"2"}]"#, "2"),
        ("merge", r#"{"metadata":{"labels":{"x":"3"}}}"#, "3"),
        ("strategic", r#"{"metadata":{"labels":{"x":"4"}}}"#, "4"),
    ] {
        let patched = patch(kind, text).await;
        assert_eq!(patched.stdout, "node/n patched\n", "{patched:?}");
        assert_eq!(label().await, expected);
    }
    let unchanged = patch("merge", r#"{"metadata":{"labels":{"x":"4"}}}"#).await;
    assert_eq!(unchanged.stdout, "node/n patched (no change)\n");
    let failed = patch("json", r#"[{"op":"test","path":"/metadata/labels/x","value":"9"}]"#).await;
    assert!(!failed.success && failed.stderr.contains("the server rejected our request"), "{failed:?}");
    let invalid = patch("merge", r#"{"spec":{"taints":[{"key":"a b","effect":"NoSchedule"}]}}"#).await;
    assert!(invalid.stderr.contains("spec.taints[0].key"), "{invalid:?}");
    let stale = patch("merge", r#"{"metadata":{"resourceVersion":"1","labels":{"x":"7"}}}"#).await;
    assert!(stale.stderr.contains("the object has been modified"), "{stale:?}");

    // A patch by key: the other variables stay.
    kubectl.run_with(&["create", "-f", "-"], POD).await;
    let text = json!({"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}, "metadata": {"finalizers": ["x.io/a"]}});
    kubectl.run(&["patch", "pod", "p", "-p", &text.to_string()]).await;
    let removal = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.io/a"]}});
    let finalizers = api.get::<pb::Pod>("default/p").await.unwrap().metadata.unwrap().finalizers;
    assert_eq!(finalizers, ["x.io/a"]);
    kubectl.run(&["patch", "pod", "p", "-p", &removal.to_string()]).await;
    assert!(api.get::<pb::Pod>("default/p").await.unwrap().metadata.unwrap().finalizers.is_empty());

    let status = json!({"status": {"conditions": [{"type": "Mine", "status": "True"}]}, "spec": {"unschedulable": true}});
    kubectl.run(&["patch", "node", "n", "--subresource=status", "-p", &status.to_string()]).await;
    let node = api.get::<pb::Node>("n").await.unwrap();
    assert_eq!(node.status.unwrap().conditions[0].r#type, "Mine");
    assert!(!node.spec.unwrap().unschedulable, "a status has no spec");
}

#[tokio::test(flavor = "multi_thread")]
async fn s267_kubectl_labels_annotates_taints_and_cordons() {
    let (store, kubectl) = world().await;
    let api = store.api();
    api.create(node("n")).await.unwrap();
    let stored = async || api.get::<pb::Node>("n").await.unwrap();
    assert_eq!(kubectl.run(&["label", "node", "n", "tier=gold"]).await, "node/n labeled\n");
    assert_eq!(stored().await.metadata.unwrap().labels["tier"], "gold");
    assert!(kubectl.fail(&["label", "node", "n", "tier=iron"]).await.contains("--overwrite is false"));
    assert_eq!(kubectl.run(&["label", "node", "n", "tier-"]).await, "node/n unlabeled\n");
    assert_eq!(kubectl.run(&["annotate", "node", "n", "a/b=c d"]).await, "node/n annotated\n");
    let metadata = stored().await.metadata.unwrap();
    assert!(!metadata.labels.contains_key("tier"));
    assert_eq!(metadata.annotations["a/b"], "c d");

    assert_eq!(kubectl.run(&["taint", "nodes", "n", "gpu=yes:NoSchedule"]).await, "node/n tainted\n");
    let taints = stored().await.spec.unwrap().taints;
    assert!(taints.iter().any(|taint| taint.key == "gpu" && taint.value == "yes"), "{taints:?}");
    assert_eq!(taints.len(), 2, "that of a new node stays");
    assert_eq!(kubectl.run(&["taint", "nodes", "n", "gpu-"]).await, "node/n untainted\n");
    assert_eq!(stored().await.spec.unwrap().taints.len(), 1);

    assert_eq!(kubectl.run(&["cordon", "n"]).await, "node/n cordoned\n");
    let spec = stored().await.spec.unwrap();
    assert!(spec.unschedulable && spec.cordons[0].owner == "spec.unschedulable", "{spec:?}");
    assert_eq!(kubectl.run(&["cordon", "n"]).await, "node/n already cordoned\n");
    assert_eq!(kubectl.run(&["uncordon", "n"]).await, "node/n uncordoned\n");
    assert!(!stored().await.spec.unwrap().unschedulable);
}

#[tokio::test(flavor = "multi_thread")]
async fn s268_what_only_muster_has_survives_the_writes_of_kubectl() {
    let (store, kubectl) = world().await;
    let api = store.api();
    let at = prost_types::Timestamp { seconds: 1_700_000_000, nanos: 123_456_789 };
    let cordon = pb::NodeCordon {
        owner: "eva".into(),
        requested_by: "eva".into(),
        reason: "disk".into(),
        requested_at: Some(at),
        expires_at: None,
    };
    let created = node("n").taint("a:NoExecute").spec(|spec| {
        spec.cordons = vec![cordon];
        spec.unschedulable = true;
        spec.taints[0].time_added = Some(at);
    });
    let created = api.create(created).await.unwrap();
    kubectl.run(&["label", "node", "n", "x=1"]).await;
    let object = kubectl.run(&["get", "node", "n", "-o", "json"]).await;
    assert!(!object.contains("cordons"), "{object}");
    kubectl.run_with(&["replace", "-f", "-"], &object.replace("\"x\": \"1\"", "\"x\": \"2\"")).await;
    let stored = api.get::<pb::Node>("n").await.unwrap();
    assert_eq!(stored.metadata.unwrap().labels["x"], "2");
    assert_eq!(
        stored.spec, created.spec,
        "the cordon's owner, and the fraction of a time that kubectl was not shown"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn s269_kubectl_deletes_with_grace_and_waits() {
    let (store, kubectl) = world().await;
    let api = store.api();
    api.create(node("n").finalizers(&["x.io/a"])).await.unwrap();
    assert_eq!(kubectl.run(&["delete", "node", "n", "--wait=false"]).await, "node \"n\" deleted\n");
    assert!(api.get::<pb::Node>("n").await.unwrap().metadata.unwrap().deletion_timestamp.is_some());
    kubectl.run(&["patch", "node", "n", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]).await;
    assert!(api.get::<pb::Node>("n").await.is_err(), "its last finalizer is removed");

    api.create(pod("p").on("m").running("True")).await.unwrap();
    assert_eq!(
        kubectl.run(&["delete", "pod", "p", "--grace-period=7", "--wait=false"]).await,
        "pod \"p\" deleted from default namespace\n"
    );
    assert_eq!(
        api.get::<pb::Pod>("default/p").await.unwrap().metadata.unwrap().deletion_grace_period_seconds,
        Some(7)
    );
    kubectl.run(&["delete", "pod", "p", "--grace-period=0", "--force"]).await;
    assert!(api.get::<pb::Pod>("default/p").await.is_err());
    // kubectl waits until the node is gone.
    api.create(node("m").finalizers(&["x.io/a"])).await.unwrap();
    let mut deleting = kubectl.follow(&["delete", "node", "m"]);
    assert_eq!(deleting.line(), "node \"m\" deleted");
    let freed = api.get::<pb::Node>("m").await.unwrap().finalizers(&[]);
    api.update(freed).await.unwrap();
    deleting.end();

    for name in ["a", "b"] {
        api.create(budget(name, ("k", "v"), "1")).await.unwrap();
    }
    kubectl.run(&["delete", "pdb", "--all"]).await;
    assert!(kubectl.run(&["get", "pdb", "-o", "name"]).await.is_empty());
    api.create(held(lease("x"), "h", 1)).await.unwrap();
    kubectl.run(&["delete", "--raw", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"]).await;
    assert!(api.get::<pb::Lease>("kube-node-lease/x").await.is_err());
    let refused = kubectl.fail(&["delete", "node", "n", "--cascade=orphan"]).await;
    assert!(refused.contains("NotFound") || refused.contains("Orphan"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s270_fields_that_are_not_kept_are_reported_and_unknown_ones_refused() {
    let (store, kubectl) = world().await;
    let probed = POD.replace("    ports:", "    livenessProbe: {exec: {command: [x]}}\n    ports:");
    let created = kubectl.try_run_with(&["create", "-f", "-"], &probed).await;
    assert!(created.success, "{created:?}");
    assert!(
        created.stderr.contains(
            "Warning: field \"spec.containers[0].livenessProbe\" is not kept by Muster and has no effect"
        ),
        "{created:?}"
    );
    let mistyped = POD.replace("name: p\n", "name: q\n").replace("    image:", "    imge:");
    let refused = kubectl.try_run_with(&["create", "-f", "-"], &mistyped).await;
    assert!(
        refused.stderr.contains("strict decoding error: unknown field \"spec.containers[0].imge\""),
        "{refused:?}"
    );
    assert!(store.api().get::<pb::Pod>("default/q").await.is_err());
    let warned = kubectl.try_run_with(&["create", "--validate=warn", "-f", "-"], &mistyped).await;
    assert!(warned.stderr.contains("unknown field \"spec.containers[0].imge\""), "{warned:?}");
    let generated = POD.replace("name: p\n", "generateName: web-\n");
    let name = kubectl.run_with(&["create", "-f", "-", "-o", "name"], &generated).await;
    assert!(name.starts_with("pod/web-") && name.trim().len() == "pod/web-".len() + 5, "{name}");
    let applied = kubectl.try_run_with(&["apply", "--server-side", "-f", "-"], POD).await;
    assert!(!applied.success && applied.stderr.to_lowercase().contains("server-side apply"), "{applied:?}");
}
