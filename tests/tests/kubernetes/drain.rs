//! `kubectl drain` with a budget in its way.

use muster_proto::pb;
use muster_tests::fixtures::*;
use muster_tests::{TIMEOUT, eventually};

use crate::world;

/// Whether a pod is gone or on its way.
fn is_going(pod: Option<pb::Pod>) -> bool {
    pod.is_none_or(|pod| pod.metadata.unwrap().deletion_timestamp.is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn s271_kubectl_drain_waits_for_the_budget_and_gets_its_reason() {
    let (store, kubectl) = world().await;
    let api = store.api();
    api.create(node("n").ready("True")).await.unwrap();
    let running = |name: &str| {
        pod(name).on("n").running("True").label("app", "x").owned_by("ReplicaSet", "r", "u").grace(0)
    };
    let first = api.create(running("p1")).await.unwrap();
    api.update_status(first.running("True")).await.unwrap();
    api.create(budget("b", ("app", "x"), "1")).await.unwrap();

    let blocked = kubectl.try_run(&["drain", "n", "--timeout=1s"]).await;
    assert!(!blocked.success, "{blocked:?}");
    let words = blocked.stderr.clone() + &blocked.stdout;
    assert!(words.contains("Cannot evict pod as it would violate the pod's disruption budget."), "{words}");
    assert!(api.get::<pb::Node>("n").await.unwrap().spec.unwrap().unschedulable, "it was cordoned first");
    assert!(api.get::<pb::Pod>("default/p1").await.unwrap().metadata.unwrap().deletion_timestamp.is_none());
    let eviction =
        r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p1","namespace":"default"}}"#;
    let path = "/api/v1/namespaces/default/pods/p1/eviction";
    let refused = kubectl.try_run_with(&["create", "--raw", path, "-f", "-"], eviction).await;
    assert!(refused.stderr.contains("TooManyRequests"), "{refused:?}");

    let second = api.create(running("p2")).await.unwrap();
    let second = second.spec(|spec| spec.node_name = "n".to_owned());
    api.update_status(second.running("True")).await.unwrap();
    let mut draining = kubectl.follow(&["drain", "n"]);
    let gone = eventually(TIMEOUT, "the eviction of a pod", async || {
        for name in ["p1", "p2"] {
            let found = api.get::<pb::Pod>(&format!("default/{name}")).await;
            if is_going(found.ok()) {
                return Some(name);
            }
        }
        None
    });
    let gone = gone.await;
    // The agent would remove it; then there is one too few for the other.
    let _ = api
        .delete_with::<pb::Pod>(
            &format!("default/{gone}"),
            muster_tests::Deletion { grace: Some(0), ..Default::default() },
        )
        .await;
    api.delete::<pb::DisruptionBudget>("default/b").await.unwrap();
    let other = if gone == "p1" { "p2" } else { "p1" };
    eventually(TIMEOUT, "the eviction of the other pod", async || {
        let found = api.get::<pb::Pod>(&format!("default/{other}")).await;
        is_going(found.ok()).then_some(())
    })
    .await;
    let _ = api
        .delete_with::<pb::Pod>(
            &format!("default/{other}"),
            muster_tests::Deletion { grace: Some(0), ..Default::default() },
        )
        .await;
    draining.line_with("node/n drained");
}

#[tokio::test(flavor = "multi_thread")]
async fn s272_a_drain_without_evictions_deletes_and_a_binding_binds() {
    let (store, kubectl) = world().await;
    let api = store.api();
    api.create(node("n")).await.unwrap();
    api.create(pod("p").on("n").grace(0)).await.unwrap();
    api.create(budget("b", ("no", "pod"), "1")).await.unwrap();
    // Typed deletions are sent in Protobuf.
    let mut draining = kubectl.follow(&["drain", "n", "--disable-eviction", "--force", "--grace-period=0"]);
    draining.line_with("node/n drained");
    assert!(api.get::<pb::Pod>("default/p").await.is_err());

    api.create(pod("q")).await.unwrap();
    let binding =
        r#"{"apiVersion":"v1","kind":"Binding","metadata":{"name":"q"},"target":{"kind":"Node","name":"m"}}"#;
    let path = "/api/v1/namespaces/default/pods/q/binding";
    kubectl.run_with(&["create", "--raw", path, "-f", "-"], binding).await;
    assert_eq!(api.get::<pb::Pod>("default/q").await.unwrap().spec.unwrap().node_name, "m");
    let again =
        kubectl.try_run_with(&["create", "--raw", path, "-f", "-"], &binding.replace("\"m\"", "\"o\"")).await;
    assert!(again.stderr.contains("(Conflict)"), "{again:?}");
}
