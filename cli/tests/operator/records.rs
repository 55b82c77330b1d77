//! `muster get`, `describe`, `label`, `taint` and `delete`.

use futures_util::StreamExt;
use muster_proto::event::{Event, EventType, ObjectReference};
use muster_proto::key::Key;
use muster_proto::meta::Metadata;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::record::Kind;

use crate::harness::{Harness, sample};

/// A store with a node, its lease, a pod on it, a budget for the pod, and an event of the node.
async fn with_records() -> Harness {
    let harness = Harness::with_store().await;
    let all = ["node.yaml", "lease.yaml", "budget.yaml", "pod.yaml"].map(sample).join("\n---\n");
    harness.muster_with_stdin("apply -f -", &all).await.ok();
    let node: Node = harness.client().get(&key("worker-1")).await.unwrap();
    let meta = Metadata::new(Some("default".parse().unwrap()), "worker-1".parse().unwrap());
    let involved = ObjectReference {
        kind: Kind::Node,
        namespace: None,
        name: node.meta.name.clone(),
        uid: node.meta.uid,
    };
    let event = Event {
        meta,
        involved,
        kind: EventType::Warning,
        reason: "NodeNotReady".to_owned(),
        message: "no heartbeat for 40s".to_owned(),
        source_component: "test".to_owned(),
        source_host: String::new(),
        count: 0,
        first_timestamp: None,
        last_timestamp: None,
    };
    harness.client().record_event(event).await.unwrap();
    harness
}

fn key(node: &str) -> Key {
    Key::node(node.parse().unwrap())
}

/// The words of a line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_has_a_table() {
    let harness = with_records().await;
    for (kind, headers, row) in [
        (
            "nodes",
            "NAME STATUS ROLES AGE VERSION ZONE",
            vec!["worker-1", "Ready,SchedulingDisabled,Draining", "edge,gpu"],
        ),
        ("leases", "NAME HOLDER RENEWED DURATION AGE", vec!["worker-1", "worker-1"]),
        ("pods -n shop", "NAME READY STATUS RESTARTS AGE NODE", vec!["web-1", "0/2", "Pending", "0"]),
        ("events", "LAST SEEN TYPE REASON OBJECT MESSAGE", vec![]),
        (
            "budgets -A",
            "NAMESPACE NAME MIN AVAILABLE MAX UNAVAILABLE ALLOWED DISRUPTIONS AGE",
            vec!["shop", "web", "50%", "N/A", "0"],
        ),
    ] {
        let text = harness.muster(&format!("get {kind}")).await.ok();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(words(lines[0]), words(headers), "{text}");
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(words(lines[1])[..row.len()], row, "{text}");
        assert!(!text.contains('\u{1b}'), "colours are for terminals: {text}");
    }
    let events = harness.muster("get events").await.ok();
    assert!(events.contains("Warning   NodeNotReady   node/worker-1   no heartbeat for 40s"), "{events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_selected_by_name_label_and_field() {
    let harness = with_records().await;
    for (command, expected) in [
        ("get nodes -o name", "node/worker-1\n"),
        ("get node worker-1 -o name", "node/worker-1\n"),
        ("get node/worker-1 -o name", "node/worker-1\n"),
        ("get no -l node-role.kubernetes.io/gpu -o name", "node/worker-1\n"),
        ("get nodes --field-selector spec.unschedulable=true -o name", "node/worker-1\n"),
        ("get po -A --field-selector spec.nodeName=worker-1 -o name", "pod/web-1\n"),
        ("get pdb web -n shop -o name", "budget/web\n"),
        ("get nodes --no-headers --show-labels -l a=b -o json", EMPTY_LIST),
    ] {
        assert_eq!(harness.muster(command).await.ok(), expected, "{command}");
    }
    for (command, text) in [
        ("get nodes -l a=b", "No nodes found.\n"),
        ("get pods", "No pods found in namespace default; -A searches all namespaces.\n"),
    ] {
        let answer = harness.muster(command).await;
        assert_eq!((answer.code, answer.out.as_str(), answer.err.as_str()), (0, "", text), "{command}");
    }
    for command in
        ["node worker-1 -l a=b", "node/worker-1 -l a=b", "node/worker-1 --field-selector a=b", "pod/web-1 -A"]
    {
        let stderr = harness.muster(&format!("get {command}")).await.failed(2);
        assert!(stderr.contains("names cannot be combined with selectors"), "{command}: {stderr}");
    }
    let event = harness.muster("get events -o name").await.ok();
    let event = event.trim().strip_prefix("event/").unwrap();
    assert!(
        harness.muster(&format!("get event {event} -o yaml")).await.ok().contains("reason: NodeNotReady")
    );
}

const EMPTY_LIST: &str = "{\n  \"apiVersion\": \"v1\",\n  \"items\": [],\n  \"kind\": \"List\"\n}\n";

#[tokio::test(flavor = "multi_thread")]
async fn existing_records_are_shown_although_others_do_not_exist() {
    let harness = with_records().await;
    let output = harness.muster("get nodes nix worker-1 nil -o name").await;
    assert_eq!(output.out, "node/worker-1\n");
    let stderr = output.failed(3);
    assert!(stderr.contains("nix does not exist") && stderr.contains("nil does not exist"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_commands_fail_with_a_hint() {
    let harness = with_records().await;
    for (command, code, text) in [
        ("get nodes -l a=(", 4, "labelSelector"),
        ("get nodes --field-selector spec.x=1", 4, "fieldSelector"),
        ("get nodes A_b", 2, "`A_b` is not a valid name for a node"),
        ("get nodes a pod/b", 2, "`pod/b` does not name one of the nodes"),
        ("get nodes a b -w", 2, "only one name can be watched"),
        ("describe node", 2, "the name of a node is missing"),
        ("describe lease worker-1", 2, "only nodes, pods and priorityclasses are supported, not leases"),
        ("describe pod nix", 3, "nix does not exist"),
        ("label node worker-1", 2, "no change is given"),
        ("label node a=b", 2, "no nodes are given"),
        ("label node worker-1 topology.kubernetes.io/zone=other", 4, "is already eu-1"),
        ("label node nix a=b", 3, "nix does not exist"),
        ("label node -l a=nix b=c", 3, "no nodes match"),
        ("label node worker-1 --all b=c", 2, "names cannot be combined"),
        ("label event x a=b", 4, "events are read-only"),
        ("taint node worker-1 gpu=no:NoSchedule", 4, "the node already has gpu=true:NoSchedule"),
        ("taint node worker-1 nix-", 3, "the node has no taint nix"),
        ("taint pod web-1 a:NoSchedule", 2, "only nodes have taints, not pods"),
        ("delete node worker-1 --force", 2, "only pods have a grace period, not nodes"),
        ("delete pod web-1 -n shop --force --grace-period 5", 2, "--force means a grace period of 0"),
        ("delete node nix", 3, "nix does not exist"),
        ("delete node", 2, "no nodes are given"),
        ("explain lease worker-1", 2, "only nodes and pods are supported, not leases"),
        ("explain pod", 2, "the name of a pod is missing"),
    ] {
        let stderr = harness.muster(command).await.failed(code);
        assert!(stderr.contains(text), "{command}: {stderr}");
    }
    for (command, text) in [
        ("get machines", "the kinds are nodes, leases, pods, events, budgets, tokens"),
        ("get nodes -o table", "the formats are wide, json, yaml, name"),
        ("delete", "required"),
        ("nix", "unrecognized subcommand"),
    ] {
        let answer = harness.muster(command).await;
        assert_eq!(answer.code, 2, "{command}");
        assert!(answer.err.contains(text), "{command}: {}", answer.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_described_with_its_lease_pods_and_events() {
    let harness = with_records().await;
    let page = harness.muster("describe node worker-1").await.ok();
    for text in [
        "Name:               worker-1\n",
        "Cordoned:           ",
        "  HolderIdentity:  worker-1\n",
        "  Ready            True     2026-05-04T11:58:00Z",
        "  InternalIP:  10.0.0.7\n",
        "Non-terminated Pods:  (1 in total)\n",
        "  cpu                 1 (26%)    1 (26%)\n",
        "NodeNotReady   ",
    ] {
        assert!(page.contains(text), "no {text:?} in {page}");
    }
    harness.muster("delete node worker-1").await.ok();
    harness.muster_with_stdin("create -f -", &sample("node.yaml")).await.ok();
    let page = harness.muster("describe node worker-1").await.ok();
    assert!(
        page.ends_with("\nEvents:             <none>\n"),
        "the event is of a deleted node with the same name: {page}"
    );
    let page = harness.muster("describe pod/web-1 -n shop").await.ok();
    assert!(page.contains("Controlled By:      ReplicaSet/web\n"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_and_taints_are_changed() {
    let harness = with_records().await;
    let node = || async { harness.client().get::<Node>(&key("worker-1")).await.unwrap() };
    let label = "label node worker-1 rack=7 topology.kubernetes.io/zone- topology.kubernetes.io/region=us --overwrite";
    assert_eq!(harness.muster(label).await.ok(), "node/worker-1 labeled\n");
    assert_eq!(harness.muster(label).await.ok(), "node/worker-1 not labeled: nothing to change\n");
    let labels = node().await.meta.labels;
    assert_eq!(labels.get("rack").map(String::as_str), Some("7"));
    assert_eq!(labels.get("topology.kubernetes.io/region").map(String::as_str), Some("us"));
    assert!(!labels.contains_key("topology.kubernetes.io/zone"));

    assert_eq!(harness.muster("label pods --all -n shop tier=front").await.ok(), "pod/web-1 labeled\n");
    assert_eq!(harness.muster("get pods -A -l tier=front -o name").await.ok(), "pod/web-1\n");

    let taint = "taint nodes -l rack=7 broken=fan:NoExecute gpu-";
    assert_eq!(harness.muster(taint).await.ok(), "node/worker-1 modified\n");
    let taints: Vec<String> = node().await.spec.taints.iter().map(ToString::to_string).collect();
    assert!(taints.contains(&"broken=fan:NoExecute".to_owned()), "{taints:?}");
    assert!(!taints.iter().any(|taint| taint.starts_with("gpu")), "{taints:?}");
    let broken = node().await.spec.taints.into_iter().find(|taint| taint.key == "broken").unwrap();
    assert!(broken.time_added.is_some(), "the time of the taint is recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_deleted_and_pods_get_a_grace_period() {
    let harness = with_records().await;
    assert_eq!(harness.muster("delete pod web-1 -n shop").await.ok(), "pod/web-1 terminates within 45s\n");
    assert_eq!(
        harness.muster("delete pod web-1 -n shop --grace-period 5").await.ok(),
        "pod/web-1 terminates within 5s\n"
    );
    assert!(harness.muster("get pods -n shop").await.ok().contains("Terminating"));
    assert_eq!(
        harness.muster("delete pod web-1 -n shop --force --grace-period=0").await.ok(),
        "pod/web-1 deleted\n"
    );
    assert_eq!(harness.muster("get pods -A -o name").await.ok_or_nothing(), "");
    assert_eq!(harness.muster("delete pod web-1 -n shop --ignore-not-found").await.ok(), "");
    assert_eq!(
        harness.muster_with_stdin("delete -f -", &sample("budget.yaml")).await.ok(),
        "budget/web deleted\n"
    );
    assert_eq!(harness.muster("delete nodes --all").await.ok(), "node/worker-1 deleted\n");
}

impl crate::harness::Output {
    /// The standard output of a command that succeeded; standard error may say that nothing was found.
    fn ok_or_nothing(self) -> String {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_pages_of_a_long_list_are_shown() {
    const NODES: usize = 1_100;
    let harness = Harness::with_store().await;
    let client = harness.client();
    let create = |i: usize| {
        let client = client.clone();
        async move {
            let metadata = pb::Metadata { name: format!("n-{i:04}"), ..Default::default() };
            let node = pb::Node { metadata: Some(metadata), spec: None, status: None };
            client.create(Node::try_from(node).unwrap()).await.unwrap();
        }
    };
    futures_util::stream::iter((0..NODES).map(create)).buffer_unordered(64).collect::<()>().await;
    let names = harness.muster("get nodes -o name").await.ok();
    let expected: String = (0..NODES).map(|i| format!("node/n-{i:04}\n")).collect();
    assert!(names == expected, "{} lines", names.lines().count());
    assert_eq!(harness.muster("get nodes").await.ok().lines().count(), NODES + 1);
}
