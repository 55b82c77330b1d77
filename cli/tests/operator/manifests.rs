//! `muster apply`, `create` and `delete` with manifest files.

use muster_proto::budget::DisruptionBudget;
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::priority_class::PriorityClass;
use muster_proto::record::Record;
use muster_store_client::{ListOptions, Resource};

use crate::harness::{Harness, sample};

/// The example of the Kubernetes documentation on nodes, as it is there.
const KUBERNETES_EXAMPLE: &str = include_str!("../../../tests/manifests/node.json");

fn all_samples() -> String {
    [
        KUBERNETES_EXAMPLE.to_owned(),
        sample("node.yaml"),
        sample("lease.yaml"),
        sample("budget.yaml"),
        sample("priority-class.yaml"),
        sample("pod.yaml"),
    ]
    .join("\n---\n")
}

async fn all<R: Resource>(harness: &Harness) -> Vec<R> {
    harness.client().list::<R>(ListOptions::default()).await.unwrap().records
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubernetes_example_works_unchanged() {
    let harness = Harness::with_store().await;
    let file = harness.file("node.json", KUBERNETES_EXAMPLE);
    assert_eq!(harness.muster(&format!("create -f {file}")).await.ok(), "node/10.240.79.157 created\n");
    let stderr = harness.muster(&format!("create -f {file}")).await.failed(5);
    assert!(stderr.contains("already exists") && stderr.contains("muster apply"), "{stderr}");
    assert_eq!(harness.muster(&format!("apply -f {file}")).await.ok(), "node/10.240.79.157 unchanged\n");
    assert_eq!(harness.muster(&format!("delete -f {file}")).await.ok(), "node/10.240.79.157 deleted\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_what_was_printed_changes_nothing() {
    let harness = Harness::with_store().await;
    let created = harness.muster_with_stdin("apply -f -", &all_samples()).await.ok();
    assert_eq!(created.matches(" created\n").count(), 6, "{created}");
    let before = (
        all::<Node>(&harness).await,
        all::<Lease>(&harness).await,
        all::<Pod>(&harness).await,
        all::<DisruptionBudget>(&harness).await,
        all::<PriorityClass>(&harness).await,
    );
    for output in ["yaml", "json"] {
        for kind in ["nodes", "leases", "pods", "budgets", "priorityclasses"] {
            let printed = harness.muster(&format!("get {kind} -A -o {output}")).await.ok();
            let applied = harness.muster_with_stdin("apply -f -", &printed).await.ok();
            assert!(applied.lines().all(|line| line.ends_with(" unchanged")), "{applied}");
        }
        for one in ["node worker-1", "lease worker-1", "pod web-1 -n shop", "budget web -n shop", "pc urgent"]
        {
            let printed = harness.muster(&format!("get {one} -o {output}")).await.ok();
            let applied = harness.muster_with_stdin("apply -f -", &printed).await.ok();
            assert!(applied.ends_with(" unchanged\n"), "{applied}");
        }
    }
    let after = (
        all::<Node>(&harness).await,
        all::<Lease>(&harness).await,
        all::<Pod>(&harness).await,
        all::<DisruptionBudget>(&harness).await,
        all::<PriorityClass>(&harness).await,
    );
    assert_eq!(before, after, "also the versions are unchanged");
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_sets_the_named_fields_and_keeps_the_others() {
    let harness = Harness::with_store().await;
    harness.muster_with_stdin("apply -f -", &sample("node.yaml")).await.ok();
    let patch = "{kind: Node, apiVersion: v1, metadata: {name: worker-1, labels: {rack: '7', \
                 topology.kubernetes.io/zone: null}}, spec: {unschedulable: false, cordon: null, cordons: null}}";
    assert_eq!(harness.muster_with_stdin("apply -f -", patch).await.ok(), "node/worker-1 configured\n");
    assert_eq!(harness.muster_with_stdin("apply -f -", patch).await.ok(), "node/worker-1 unchanged\n");
    let node: Node = harness.client().get(&Key::node("worker-1".parse().unwrap())).await.unwrap();
    assert!(!node.spec.unschedulable);
    assert_eq!(node.spec.provider_id, "lab://rack-1/7");
    assert_eq!(node.meta.labels.get("rack").map(String::as_str), Some("7"));
    assert!(!node.meta.labels.contains_key("topology.kubernetes.io/zone"));
    assert!(node.is_ready(), "the status is not changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_conflicts_with_the_current_record_has_a_hint_to_use_null() {
    let harness = Harness::with_store().await;
    let budget = |spec: &str| {
        let selector = "selector: {matchLabels: {app: web}}";
        format!(
            "{{kind: PodDisruptionBudget, apiVersion: policy/v1, metadata: {{name: web}}, spec: {{{selector}, {spec}}}}}"
        )
    };
    harness.muster_with_stdin("apply -f -", &budget("minAvailable: 1")).await.ok();
    let stderr = harness.muster_with_stdin("apply -f -", &budget("maxUnavailable: 1")).await.failed(4);
    assert!(stderr.contains("must not be given together with minAvailable"), "{stderr}");
    assert!(stderr.contains("`minAvailable: null`"), "{stderr}");
    let both = harness
        .muster_with_stdin("apply -f -", &budget("maxUnavailable: 1, minAvailable: 1"))
        .await
        .failed(4);
    assert!(!both.contains("null"), "the manifest alone is wrong: {both}");
    let moved =
        harness.muster_with_stdin("apply -f -", &budget("maxUnavailable: 1, minAvailable: null")).await.ok();
    assert_eq!(moved, "budget/web configured\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_manifest_with_an_old_version_is_refused_and_an_unedited_one_is_not() {
    let harness = Harness::with_store().await;
    harness.muster_with_stdin("apply -f -", &sample("node.yaml")).await.ok();
    let printed = harness.muster("get node worker-1 -o yaml").await.ok();
    harness.muster("label node worker-1 rack=7").await.ok();

    let edited = printed.replace("unschedulable: true", "unschedulable: false");
    let stderr = harness.muster_with_stdin("apply -f -", &edited).await.failed(5);
    assert!(stderr.contains("metadata.resourceVersion"), "{stderr}");
    // The printed manifest without edits changes nothing in the current record.
    assert_eq!(harness.muster_with_stdin("apply -f -", &printed).await.ok(), "node/worker-1 unchanged\n");

    harness.muster("delete node worker-1").await.ok();
    assert_eq!(harness.muster_with_stdin("apply -f -", &printed).await.ok(), "node/worker-1 created\n");
    let stderr = harness.muster_with_stdin("apply -f -", &edited).await.failed(5);
    assert!(stderr.contains("metadata.uid"), "another record with the same name: {stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_manifest_is_reported_before_any_record_is_written() {
    let harness = Harness::with_store().await;
    let good = format!("{KUBERNETES_EXAMPLE}\n---\n");
    for (text, code, expected) in [
        (
            "kind: Node\napiVersion: v1\nmetadata: {name: a}\nspec: {podCdir: x}",
            2,
            "standard input, document 2 (Node): unknown field spec.podCdir",
        ),
        (
            "kind: Node\napiVersion: v1\nmetadata: {name: a}\nspec: {unschedulable: maybe}",
            2,
            "spec.unschedulable: invalid type",
        ),
        ("kind: Machine\napiVersion: v1", 2, "has the unknown kind Machine"),
        ("a: [", 2, "neither YAML nor JSON"),
    ] {
        let stderr = harness.muster_with_stdin("apply -f -", &format!("{good}{text}")).await.failed(code);
        assert!(stderr.contains(expected), "{stderr}");
    }
    assert_eq!(all::<Node>(&harness).await, [], "all manifests are read before any record is written");

    // Records that only the store can refuse are written one by one.
    let both = format!(
        "{good}kind: Node\napiVersion: v1\nmetadata: {{name: a}}\nspec: {{podCIDRs: [10.0.0.0/24, 10.1.0.0/24]}}"
    );
    let answer = harness.muster_with_stdin("apply -f -", &both).await;
    assert_eq!(answer.out, "node/10.240.79.157 created\n");
    let stderr = answer.failed(4);
    assert!(stderr.contains("standard input, document 2") && stderr.contains("spec.podCidrs[1]"), "{stderr}");

    let stderr = harness.muster("apply -f nix.yaml").await.failed(2);
    assert!(stderr.contains("nix.yaml: cannot be read"), "{stderr}");
    let stderr = harness.muster_with_stdin("apply -f -", &sample("event.yaml")).await.failed(4);
    assert!(stderr.contains("events are read-only"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_gets_the_namespace_of_the_flag_or_the_default() {
    let harness = Harness::with_store().await;
    let pod = "{kind: Pod, apiVersion: v1, metadata: {name: a}, spec: {containers: [{name: x, image: y}]}}";
    harness.muster_with_stdin("create -f -", pod).await.ok();
    harness.muster_with_stdin("create -n other -f -", pod).await.ok();
    let namespaces: Vec<String> = all::<Pod>(&harness)
        .await
        .iter()
        .map(|pod| pod.meta().namespace.clone().unwrap().to_string())
        .collect();
    assert_eq!(namespaces, ["default", "other"]);
    let stderr = harness.muster_with_stdin("apply -n other -f -", &sample("pod.yaml")).await.failed(2);
    assert!(stderr.contains("has the namespace shop, but --namespace is other"), "{stderr}");
}
