//! `kubectl get`: forms, pages, selectors and watches.

use muster_proto::pb;
use muster_tests::fixtures::*;

use crate::{words, world};

#[tokio::test(flavor = "multi_thread")]
async fn s260_kubectl_get_prints_nodes_in_every_form() {
    let (store, kubectl) = world().await;
    let api = store.api();
    let reported = node("b").label("node-role.kubernetes.io/edge", "").label("zone", "z1").ready("True");
    let reported = reported.status(|status| {
        *status = pb::NodeStatus { conditions: status.conditions.clone(), ..status_of(500, "m") };
        status.conditions =
            vec![pb::NodeCondition { r#type: "Ready".into(), status: "True".into(), ..Default::default() }];
    });
    api.create(reported).await.unwrap();
    api.create(node("a").cordoned()).await.unwrap();

    let plain = kubectl.run(&["get", "nodes"]).await;
    let lines: Vec<_> = plain.lines().map(words).collect();
    assert_eq!(lines[0], ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]);
    assert_eq!(lines[1][..3], ["a", "Unknown,SchedulingDisabled", "<none>"]);
    assert_eq!(lines[2][..3], ["b", "Ready", "edge"]);

    let wide = kubectl.run(&["get", "no", "b", "-o", "wide"]).await;
    assert!(wide.contains("INTERNAL-IP") && wide.contains("10.0.0.1"), "{wide}");
    assert!(
        wide.contains("Debian GNU/Linux 12 (bookworm)") && wide.contains("6.1.0-18-amd64 (amd64)"),
        "{wide}"
    );

    let yaml = kubectl.run(&["get", "node", "b", "-o", "yaml"]).await;
    assert!(yaml.starts_with("apiVersion: v1\nkind: Node\nmetadata:\n"), "{yaml}");
    let object = kubectl.json(&["get", "node", "b"]).await;
    assert_eq!((&object["kind"], &object["metadata"]["labels"]["zone"]), (&"Node".into(), &"z1".into()));
    assert!(object["metadata"]["resourceVersion"].is_string());
    let list = kubectl.json(&["get", "nodes"]).await;
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&"List".into(), 2));

    assert_eq!(kubectl.run(&["get", "nodes", "-o", "name"]).await, "node/a\nnode/b\n");
    let path = "jsonpath={.items[*].metadata.name}";
    assert_eq!(kubectl.run(&["get", "nodes", "-o", path]).await, "a b");
    let columns = "custom-columns=N:.metadata.name,Z:.metadata.labels.zone";
    let custom = kubectl.run(&["get", "nodes", "-o", columns]).await;
    assert_eq!(words(&custom), ["N", "Z", "a", "<none>", "b", "z1"]);
    let labels = kubectl.run(&["get", "nodes", "--show-labels", "-l", "zone"]).await;
    assert!(labels.contains("zone=z1") && labels.lines().count() == 2, "{labels}");
    let column = kubectl.run(&["get", "nodes", "-L", "zone", "--no-headers"]).await;
    assert_eq!(words(column.lines().nth(1).unwrap()).last(), Some(&"z1"));
    let selected =
        kubectl.run(&["get", "nodes", "--field-selector=spec.unschedulable=true", "-o", "name"]).await;
    assert_eq!(selected, "node/a\n");
    assert!(kubectl.fail(&["get", "nodes", "--field-selector=spec.foo=1"]).await.contains("spec.foo"));
    assert!(kubectl.fail(&["get", "node", "c"]).await.contains("(NotFound): nodes \"c\" not found"));
    assert!(kubectl.fail(&["get", "widgets"]).await.contains("doesn't have a resource type \"widgets\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn s261_kubectl_get_prints_what_namespaces_hold() {
    let (store, kubectl) = world().await;
    let api = store.api();
    api.create(pod("p").running("True").on("n")).await.unwrap();
    api.create(pod("q").in_namespace("other")).await.unwrap();
    api.create(budget("b", ("app", "x"), "20%")).await.unwrap();
    api.create(held(lease("n"), "n", 40)).await.unwrap();
    api.record(event("n", "Happened", "it happened")).await.unwrap();

    let all = kubectl.run(&["get", "pods", "-A", "-o", "wide"]).await;
    let lines: Vec<_> = all.lines().map(words).collect();
    assert_eq!(lines[0][..4], ["NAMESPACE", "NAME", "READY", "STATUS"]);
    assert_eq!((&lines[1][..2], &lines[2][..2]), (&["default", "p"][..], &["other", "q"][..]));
    assert_eq!(kubectl.run(&["get", "all", "-n", "other", "-o", "name"]).await, "pod/q\n");
    let sorted = kubectl.run(&["get", "pods", "-A", "--sort-by=.metadata.name", "--no-headers"]).await;
    assert_eq!(sorted.lines().map(|line| words(line)[1]).collect::<Vec<_>>(), ["p", "q"]);

    let budgets = kubectl.run(&["get", "pdb"]).await;
    assert_eq!(words(budgets.lines().nth(1).unwrap())[..4], ["b", "20%", "N/A", "0"]);
    let leases = kubectl.run(&["get", "leases", "-n", "kube-node-lease", "--no-headers"]).await;
    assert_eq!(words(&leases)[..2], ["n", "n"]);
    let events = kubectl.run(&["get", "events", "-A"]).await;
    assert!(
        events.contains("Happened") && events.contains("node/n") && events.contains("it happened"),
        "{events}"
    );
    let newer = kubectl.json(&["get", "events.events.k8s.io", "-A"]).await;
    assert_eq!(newer["items"][0]["note"], "it happened");
    let namespaces = kubectl.run(&["get", "ns", "-o", "name"]).await;
    assert_eq!(
        namespaces,
        "namespace/default\nnamespace/kube-node-lease\nnamespace/kube-system\nnamespace/other\n"
    );
    assert!(kubectl.run(&["get", "svc"]).await.is_empty());
    let several = kubectl.try_run(&["get", "pods,nodes"]).await;
    assert!(
        several.success && several.stdout.contains("pod/p") || several.stdout.contains("p "),
        "{several:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn s262_kubectl_pages_through_a_thousand_nodes_in_small_pages_and_in_one_answer() {
    let (store, kubectl) = world().await;
    let api = store.api();
    for i in 0..1000 {
        let part = if i % 40 == 7 { "few" } else { "many" };
        api.create(node(&format!("n{i:04}")).label("part", part)).await.unwrap();
    }
    let named = |keep: &dyn Fn(usize) -> bool| -> String {
        (0..1000).filter(|i| keep(*i)).map(|i| format!("node/n{i:04}\n")).collect()
    };
    let expected = named(&|_| true);
    assert_eq!(kubectl.run(&["get", "nodes", "-o", "name"]).await, expected);
    // kubectl sends five requests a second, so a page each for all of them would take minutes.
    assert_eq!(kubectl.run(&["get", "nodes", "-o", "name", "--chunk-size=30"]).await, expected);
    let few = kubectl.run(&["get", "nodes", "-o", "name", "--chunk-size=1", "-l", "part=few"]).await;
    assert_eq!(few, named(&|i| i % 40 == 7));
    // Without a limit it is one answer, which is made of several pages of the store.
    assert_eq!(kubectl.run(&["get", "nodes", "-o", "name", "--chunk-size=0"]).await, expected);
    let raw = kubectl.run(&["get", "--raw", "/api/v1/nodes?limit=2"]).await;
    let page: serde_json::Value = serde_json::from_str(&raw).unwrap();
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert!(!page["metadata"]["continue"].as_str().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn s263_kubectl_follows_changes() {
    let (store, kubectl) = world().await;
    let api = store.api();
    let created = api.create(node("a")).await.unwrap();
    let mut all = kubectl.follow(&["get", "nodes", "-w", "--output-watch-events", "--no-headers"]);
    assert_eq!(words(&all.line())[..2], ["ADDED", "a"]);
    api.update(created.label("x", "y").cordoned()).await.unwrap();
    assert_eq!(words(&all.line())[..3], ["MODIFIED", "a", "Unknown,SchedulingDisabled"]);
    // What is there is not printed, what comes is.
    let mut only = kubectl.follow(&["get", "nodes", "--watch-only", "-l", "new", "-o", "name"]);
    api.create(node("b")).await.unwrap();
    assert_eq!(words(&all.line())[..2], ["ADDED", "b"]);
    // Such a watch has no sign of its beginning; each node is new until one of them is seen.
    let mut seen = String::new();
    for i in 0..200 {
        api.create(node(&format!("c{i}")).label("new", "yes")).await.unwrap();
        assert_eq!(words(&all.line())[0], "ADDED");
        if i == 199 {
            seen = only.line();
        }
    }
    assert!(seen.starts_with("node/c"), "{seen}");
    api.delete::<pb::Node>("b").await.unwrap();
    assert_eq!(words(&all.line_with("DELETED"))[..2], ["DELETED", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn s264_watches_have_the_initial_events_bookmarks_and_errors_of_kubernetes() {
    let (store, kubectl) = world().await;
    let api = store.api();
    api.create(node("a")).await.unwrap();
    let raw = async |query: &str| -> Vec<serde_json::Value> {
        let text = kubectl.run(&["get", "--raw", &format!("/api/v1/nodes?{query}")]).await;
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let initial = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    let lines = raw(initial).await;
    assert_eq!((&lines[0]["type"], &lines[0]["object"]["metadata"]["name"]), (&"ADDED".into(), &"a".into()));
    assert_eq!(lines[1]["type"], "BOOKMARK");
    assert_eq!(lines[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let version = lines[1]["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    assert!(lines[2..].iter().all(|line| line["type"] == "BOOKMARK"), "and nothing else: {lines:?}");

    assert!(raw(&format!("watch=true&timeoutSeconds=1&resourceVersion={version}")).await.is_empty());
    let refused = kubectl.fail(&["get", "--raw", "/api/v1/nodes?watch=1&sendInitialEvents=true"]).await;
    assert!(refused.contains("resourceVersionMatch"), "{refused}");
    // From another history: the client is to list again.
    let far = kubectl.try_run(&["get", "--raw", "/api/v1/nodes?watch=1&resourceVersion=1000000000"]).await;
    assert!(far.stderr.contains("Expired") || far.stderr.contains("resource version"), "{far:?}");
    let unreadable = kubectl.fail(&["get", "--raw", "/api/v1/nodes?continue=nonsense"]).await;
    assert!(unreadable.contains("BadRequest"), "{unreadable}");
}
