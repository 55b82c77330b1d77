//! Who may use the API, and how kubectl gets there.

use muster_tests::fixtures::*;
use muster_tests::kubectl::Kubectl;
use muster_tests::store_process::command;

use crate::secure_world;

#[tokio::test(flavor = "multi_thread")]
async fn s277_kubectl_asks_what_it_may_do_and_who_it_is() {
    let (store, admin) = secure_world().await;
    assert_eq!(admin.run(&["auth", "can-i", "delete", "nodes"]).await, "yes\n");
    assert_eq!(admin.run(&["auth", "can-i", "*", "*"]).await, "yes\n");
    assert!(admin.run(&["auth", "whoami"]).await.contains("eva"));
    let viewer = Kubectl::of_caller(&store, "vic", "muster:viewers");
    assert_eq!(viewer.run(&["auth", "can-i", "list", "pods"]).await, "yes\n");
    let refused = viewer.try_run(&["auth", "can-i", "delete", "nodes"]).await;
    assert!(!refused.success && refused.stdout.starts_with("no"), "{refused:?}");
    let rules = viewer.run(&["auth", "can-i", "--list"]).await;
    assert!(rules.contains("nodes") && !rules.contains("delete"), "{rules}");
    let impersonated = admin.fail(&["get", "nodes", "--as=node:a"]).await;
    assert!(impersonated.contains("impersonation is not supported"), "{impersonated}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s278_a_kubeconfig_of_muster_connects_kubectl_with_a_certificate() {
    let (store, _) = secure_world().await;
    store.api().create(node("n")).await.unwrap();
    let authority = store.authority().unwrap();
    let [cert, key] = authority.issue("eva", "muster:admins");
    let ca = authority.own();
    let written = command()
        .args(["config", "kubeconfig", "--server", &store.kubernetes_url(), "--store", &store.url()])
        .args(["--tls-ca".as_ref(), ca.as_os_str(), "--tls-cert".as_ref(), cert.as_os_str()])
        .args(["--tls-key".as_ref(), key.as_os_str(), "--namespace".as_ref(), "other".as_ref()])
        .output()
        .unwrap();
    assert!(written.status.success(), "{written:?}");
    let kubectl = Kubectl::of_caller(&store, "nobody", "nothing");
    let file = kubectl.file("config.json", &String::from_utf8(written.stdout).unwrap());
    let found = Kubectl::with_config(&file).run(&["get", "nodes", "-o", "name"]).await;
    assert_eq!(found, "node/n\n");

    // A certificate without a role, and none at all.
    let refused = kubectl.fail(&["get", "--raw", "/api/v1/nodes"]).await;
    assert!(refused.contains("Forbidden"), "{refused}");
    assert_eq!(kubectl.run(&["get", "--raw", "/healthz"]).await, "ok", "probes need no role");
}
