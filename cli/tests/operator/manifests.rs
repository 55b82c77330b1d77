//! Records as files.

use muster_proto::budget::DisruptionBudget;
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::Record;
use muster_store_client::{ListOptions, Resource};

use crate::harness::{Stage, sample};

/// What the seed pages give as the first node.
const SEED: &str = r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"10.240.79.157","labels":{"name":"my-first-k8s-node"}}}"#;

fn everything() -> String {
    [SEED.to_owned(), sample("node.yaml"), sample("lease.yaml"), sample("budget.yaml"), sample("pod.yaml")]
        .join("\n---\n")
}

async fn all<R: Resource>(stage: &Stage) -> Vec<R> {
    stage.client().list::<R>(ListOptions::default()).await.unwrap().records
}

#[tokio::test(flavor = "multi_thread")]
async fn the_seeds_manifest_works_as_it_is() {
    let stage = Stage::with_store().await;
    let file = stage.file("node.json", SEED);
    assert_eq!(stage.muster(&format!("create -f {file}")).await.ok(), "node/10.240.79.157 created\n");
    let complaint = stage.muster(&format!("create -f {file}")).await.refused(5);
    assert!(complaint.contains("already exists") && complaint.contains("muster apply"), "{complaint}");
    assert_eq!(stage.muster(&format!("apply -f {file}")).await.ok(), "node/10.240.79.157 unchanged\n");
    assert_eq!(stage.muster(&format!("delete -f {file}")).await.ok(), "node/10.240.79.157 deleted\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_what_was_printed_changes_nothing() {
    let stage = Stage::with_store().await;
    let created = stage.piped("apply -f -", &everything()).await.ok();
    assert_eq!(created.matches(" created\n").count(), 5, "{created}");
    let before = (
        all::<Node>(&stage).await,
        all::<Lease>(&stage).await,
        all::<Pod>(&stage).await,
        all::<DisruptionBudget>(&stage).await,
    );
    for output in ["yaml", "json"] {
        for kind in ["nodes", "leases", "pods", "budgets"] {
            let printed = stage.muster(&format!("get {kind} -A -o {output}")).await.ok();
            let applied = stage.piped("apply -f -", &printed).await.ok();
            assert!(applied.lines().all(|line| line.ends_with(" unchanged")), "{applied}");
        }
        for one in ["node worker-1", "lease worker-1", "pod web-1 -n shop", "budget web -n shop"] {
            let printed = stage.muster(&format!("get {one} -o {output}")).await.ok();
            let applied = stage.piped("apply -f -", &printed).await.ok();
            assert!(applied.ends_with(" unchanged\n"), "{applied}");
        }
    }
    let after = (
        all::<Node>(&stage).await,
        all::<Lease>(&stage).await,
        all::<Pod>(&stage).await,
        all::<DisruptionBudget>(&stage).await,
    );
    assert_eq!(before, after, "not even a version");
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_sets_what_is_named_and_leaves_the_rest() {
    let stage = Stage::with_store().await;
    stage.piped("apply -f -", &sample("node.yaml")).await.ok();
    let patch = "{kind: Node, apiVersion: v1, metadata: {name: worker-1, labels: {rack: '7', \
                 topology.kubernetes.io/zone: null}}, spec: {unschedulable: false}}";
    assert_eq!(stage.piped("apply -f -", patch).await.ok(), "node/worker-1 configured\n");
    assert_eq!(stage.piped("apply -f -", patch).await.ok(), "node/worker-1 unchanged\n");
    let node: Node = stage.client().get(&Key::node("worker-1".parse().unwrap())).await.unwrap();
    assert!(!node.spec.unschedulable);
    assert_eq!(node.spec.provider_id, "lab://rack-1/7");
    assert_eq!(node.meta.labels.get("rack").map(String::as_str), Some("7"));
    assert!(!node.meta.labels.contains_key("topology.kubernetes.io/zone"));
    assert!(node.is_ready(), "the status is not touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_go_with_the_record_there_is_says_how_to_remove_it() {
    let stage = Stage::with_store().await;
    let budget = |spec: &str| {
        let selector = "selector: {matchLabels: {app: web}}";
        format!(
            "{{kind: PodDisruptionBudget, apiVersion: policy/v1, metadata: {{name: web}}, spec: {{{selector}, {spec}}}}}"
        )
    };
    stage.piped("apply -f -", &budget("minAvailable: 1")).await.ok();
    let complaint = stage.piped("apply -f -", &budget("maxUnavailable: 1")).await.refused(4);
    assert!(complaint.contains("must not be given together with minAvailable"), "{complaint}");
    assert!(complaint.contains("`minAvailable: null`"), "{complaint}");
    let both = stage.piped("apply -f -", &budget("maxUnavailable: 1, minAvailable: 1")).await.refused(4);
    assert!(!both.contains("null"), "that is the manifest's own fault: {both}");
    let moved = stage.piped("apply -f -", &budget("maxUnavailable: 1, minAvailable: null")).await.ok();
    assert_eq!(moved, "budget/web configured\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_what_changed_meanwhile_is_refused_and_an_unedited_one_is_not() {
    let stage = Stage::with_store().await;
    stage.piped("apply -f -", &sample("node.yaml")).await.ok();
    let printed = stage.muster("get node worker-1 -o yaml").await.ok();
    stage.muster("label node worker-1 rack=7").await.ok();

    let edited = printed.replace("unschedulable: true", "unschedulable: false");
    let complaint = stage.piped("apply -f -", &edited).await.refused(5);
    assert!(complaint.contains("metadata.resourceVersion"), "{complaint}");
    // Laid over the record as it is now, what was printed asks for nothing.
    assert_eq!(stage.piped("apply -f -", &printed).await.ok(), "node/worker-1 unchanged\n");

    stage.muster("delete node worker-1").await.ok();
    assert_eq!(stage.piped("apply -f -", &printed).await.ok(), "node/worker-1 created\n");
    let complaint = stage.piped("apply -f -", &edited).await.refused(5);
    assert!(complaint.contains("metadata.uid"), "another record of that name: {complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named_and_nothing_is_half_read() {
    let stage = Stage::with_store().await;
    let good = format!("{SEED}\n---\n");
    for (text, code, said) in [
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
        ("kind: Machine\napiVersion: v1", 2, "unknown kind, Machine"),
        ("a: [", 2, "neither YAML nor JSON"),
    ] {
        let complaint = stage.piped("apply -f -", &format!("{good}{text}")).await.refused(code);
        assert!(complaint.contains(said), "{complaint}");
    }
    assert_eq!(all::<Node>(&stage).await, [], "all is read before anything is done");

    // What the store has to judge is judged one by one.
    let both = format!(
        "{good}kind: Node\napiVersion: v1\nmetadata: {{name: a}}\nspec: {{podCIDRs: [10.0.0.0/24, 10.1.0.0/24]}}"
    );
    let answer = stage.piped("apply -f -", &both).await;
    assert_eq!(answer.out, "node/10.240.79.157 created\n");
    let complaint = answer.refused(4);
    assert!(
        complaint.contains("standard input, document 2") && complaint.contains("spec.podCidrs[1]"),
        "{complaint}"
    );

    let complaint = stage.muster("apply -f nix.yaml").await.refused(2);
    assert!(complaint.contains("nix.yaml: cannot be read"), "{complaint}");
    let complaint = stage.piped("apply -f -", &sample("event.yaml")).await.refused(4);
    assert!(complaint.contains("can be read only"), "{complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_goes_into_the_namespace_that_is_meant() {
    let stage = Stage::with_store().await;
    let pod = "{kind: Pod, apiVersion: v1, metadata: {name: a}, spec: {containers: [{name: x, image: y}]}}";
    stage.piped("create -f -", pod).await.ok();
    stage.piped("create -n other -f -", pod).await.ok();
    let namespaces: Vec<String> = all::<Pod>(&stage)
        .await
        .iter()
        .map(|pod| pod.meta().namespace.clone().unwrap().to_string())
        .collect();
    assert_eq!(namespaces, ["default", "other"]);
    let complaint = stage.piped("apply -n other -f -", &sample("pod.yaml")).await.refused(2);
    assert!(complaint.contains("is in namespace shop, not in other"), "{complaint}");
}
