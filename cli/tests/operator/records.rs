//! Looking at records and changing single things of them.

use futures_util::StreamExt;
use muster_proto::event::{Event, EventType, ObjectReference};
use muster_proto::key::Key;
use muster_proto::meta::Metadata;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::record::Kind;

use crate::harness::{Stage, sample};

/// A node, its lease, a pod on it, a budget over the pod, and something that happened to the node.
async fn furnished() -> Stage {
    let stage = Stage::with_store().await;
    let all = ["node.yaml", "lease.yaml", "budget.yaml", "pod.yaml"].map(sample).join("\n---\n");
    stage.piped("apply -f -", &all).await.ok();
    let node: Node = stage.client().get(&key("worker-1")).await.unwrap();
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
        message: "it has not been heard".to_owned(),
        source_component: "test".to_owned(),
        count: 0,
        first_timestamp: None,
        last_timestamp: None,
    };
    stage.client().record_event(event).await.unwrap();
    stage
}

fn key(node: &str) -> Key {
    Key::node(node.parse().unwrap())
}

/// The words of a line, whatever is between them.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_is_listed_in_a_table() {
    let stage = furnished().await;
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
        let said = stage.muster(&format!("get {kind}")).await.ok();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(words(lines[0]), words(headers), "{said}");
        assert_eq!(lines.len(), 2, "{said}");
        assert_eq!(words(lines[1])[..row.len()], row, "{said}");
        assert!(!said.contains('\u{1b}'), "colours are for terminals: {said}");
    }
    let events = stage.muster("get events").await.ok();
    assert!(events.contains("Warning   NodeNotReady   node/worker-1   it has not been heard"), "{events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_selected_by_name_label_and_field() {
    let stage = furnished().await;
    for (asked, expected) in [
        ("get nodes -o name", "node/worker-1\n"),
        ("get node worker-1 -o name", "node/worker-1\n"),
        ("get node/worker-1 -o name", "node/worker-1\n"),
        ("get no -l node-role.kubernetes.io/gpu -o name", "node/worker-1\n"),
        ("get nodes --field-selector spec.unschedulable=true -o name", "node/worker-1\n"),
        ("get po -A --field-selector spec.nodeName=worker-1 -o name", "pod/web-1\n"),
        ("get pdb web -n shop -o name", "budget/web\n"),
        ("get nodes --no-headers --show-labels -l a=b -o json", EMPTY_LIST),
    ] {
        assert_eq!(stage.muster(asked).await.ok(), expected, "{asked}");
    }
    for (asked, said) in [
        ("get nodes -l a=b", "No nodes found.\n"),
        ("get pods", "No pods found in namespace default; -A looks in all.\n"),
    ] {
        let answer = stage.muster(asked).await;
        assert_eq!((answer.code, answer.out.as_str(), answer.err.as_str()), (0, "", said), "{asked}");
    }
    for asked in
        ["node worker-1 -l a=b", "node/worker-1 -l a=b", "node/worker-1 --field-selector a=b", "pod/web-1 -A"]
    {
        let complaint = stage.muster(&format!("get {asked}")).await.refused(2);
        assert!(complaint.contains("names cannot be combined with selectors"), "{asked}: {complaint}");
    }
    let event = stage.muster("get events -o name").await.ok();
    let event = event.trim().strip_prefix("event/").unwrap();
    assert!(stage.muster(&format!("get event {event} -o yaml")).await.ok().contains("reason: NodeNotReady"));
}

const EMPTY_LIST: &str = "{\n  \"apiVersion\": \"v1\",\n  \"items\": [],\n  \"kind\": \"List\"\n}\n";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_is_shown_though_something_else_is_not() {
    let stage = furnished().await;
    let said = stage.muster("get nodes nix worker-1 nil -o name").await;
    assert_eq!(said.out, "node/worker-1\n");
    let complaint = said.refused(3);
    assert!(
        complaint.contains("nix does not exist") && complaint.contains("nil does not exist"),
        "{complaint}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_questions_are_refused_with_a_way_out() {
    let stage = furnished().await;
    for (asked, code, said) in [
        ("get nodes -l a=(", 4, "labelSelector"),
        ("get nodes --field-selector spec.x=1", 4, "fieldSelector"),
        ("get nodes A_b", 2, "`A_b` is not the name of a node"),
        ("get nodes a pod/b", 2, "`pod/b` is not one of the nodes"),
        ("get nodes a b -w", 2, "several names cannot be watched"),
        ("describe node", 2, "which node?"),
        ("describe lease worker-1", 2, "leases have no page of their own"),
        ("describe pod nix", 3, "nix does not exist"),
        ("label node worker-1", 2, "no change is named"),
        ("label node a=b", 2, "no nodes are named"),
        ("label node worker-1 topology.kubernetes.io/zone=other", 4, "is eu-1 already"),
        ("label node nix a=b", 3, "nix does not exist"),
        ("label node -l a=nix b=c", 3, "no nodes match"),
        ("label node worker-1 --all b=c", 2, "names cannot be combined"),
        ("label event x a=b", 4, "can be read only"),
        ("taint node worker-1 gpu=no:NoSchedule", 4, "it bears gpu=true:NoSchedule already"),
        ("taint node worker-1 nix-", 3, "it bears no taint nix"),
        ("taint pod web-1 a:NoSchedule", 2, "pods bear no taints"),
        ("delete node worker-1 --force", 2, "nodes are not given time to end"),
        ("delete pod web-1 -n shop --force --grace-period 5", 2, "--force leaves no time"),
        ("delete node nix", 3, "nix does not exist"),
        ("delete node", 2, "no nodes are named"),
        ("explain lease worker-1", 2, "leases are not explained"),
        ("explain pod", 2, "which pod?"),
    ] {
        let complaint = stage.muster(asked).await.refused(code);
        assert!(complaint.contains(said), "{asked}: {complaint}");
    }
    for (asked, said) in [
        ("get machines", "the kinds are nodes, leases, pods, events and budgets"),
        ("get nodes -o table", "possible values: wide, json, yaml, name"),
        ("delete", "required"),
        ("nix", "unrecognized subcommand"),
    ] {
        let answer = stage.muster(asked).await;
        assert_eq!(answer.code, 2, "{asked}");
        assert!(answer.err.contains(said), "{asked}: {}", answer.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_described_with_what_belongs_to_it() {
    let stage = furnished().await;
    let page = stage.muster("describe node worker-1").await.ok();
    for said in [
        "Name:               worker-1\n",
        "Cordoned:           ",
        "  HolderIdentity:  worker-1\n",
        "  Ready            True     2026-05-04T11:58:00Z",
        "  InternalIP:  10.0.0.7\n",
        "Non-terminated Pods:  (1 in total)\n",
        "  cpu                 1 (26%)    1 (26%)\n",
        "NodeNotReady   ",
    ] {
        assert!(page.contains(said), "no {said:?} in {page}");
    }
    stage.muster("delete node worker-1").await.ok();
    stage.piped("create -f -", &sample("node.yaml")).await.ok();
    let page = stage.muster("describe node worker-1").await.ok();
    assert!(page.ends_with("\nEvents:             <none>\n"), "that happened to another of the name: {page}");
    let page = stage.muster("describe pod/web-1 -n shop").await.ok();
    assert!(page.contains("Controlled By:      ReplicaSet/web\n"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_and_taints_are_changed_one_by_one() {
    let stage = furnished().await;
    let node = || async { stage.client().get::<Node>(&key("worker-1")).await.unwrap() };
    let label = "label node worker-1 rack=7 topology.kubernetes.io/zone- topology.kubernetes.io/region=us --overwrite";
    assert_eq!(stage.muster(label).await.ok(), "node/worker-1 labeled\n");
    assert_eq!(stage.muster(label).await.ok(), "node/worker-1 not labeled: it is so already\n");
    let labels = node().await.meta.labels;
    assert_eq!(labels.get("rack").map(String::as_str), Some("7"));
    assert_eq!(labels.get("topology.kubernetes.io/region").map(String::as_str), Some("us"));
    assert!(!labels.contains_key("topology.kubernetes.io/zone"));

    assert_eq!(stage.muster("label pods --all -n shop tier=front").await.ok(), "pod/web-1 labeled\n");
    assert_eq!(stage.muster("get pods -A -l tier=front -o name").await.ok(), "pod/web-1\n");

    let taint = "taint nodes -l rack=7 broken=fan:NoExecute gpu-";
    assert_eq!(stage.muster(taint).await.ok(), "node/worker-1 tainted\n");
    let taints: Vec<String> = node().await.spec.taints.iter().map(ToString::to_string).collect();
    assert!(taints.contains(&"broken=fan:NoExecute".to_owned()), "{taints:?}");
    assert!(!taints.iter().any(|taint| taint.starts_with("gpu")), "{taints:?}");
    let broken = node().await.spec.taints.into_iter().find(|taint| taint.key == "broken").unwrap();
    assert!(broken.time_added.is_some(), "since when is known");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_deleted_pods_with_the_time_they_need() {
    let stage = furnished().await;
    assert_eq!(stage.muster("delete pod web-1 -n shop").await.ok(), "pod/web-1 ends within 45s\n");
    assert_eq!(
        stage.muster("delete pod web-1 -n shop --grace-period 5").await.ok(),
        "pod/web-1 ends within 5s\n"
    );
    assert!(stage.muster("get pods -n shop").await.ok().contains("Terminating"));
    assert_eq!(
        stage.muster("delete pod web-1 -n shop --force --grace-period=0").await.ok(),
        "pod/web-1 deleted\n"
    );
    assert_eq!(stage.muster("get pods -A -o name").await.ok_or_nothing(), "");
    assert_eq!(stage.muster("delete pod web-1 -n shop --ignore-not-found").await.ok(), "");
    assert_eq!(stage.piped("delete -f -", &sample("budget.yaml")).await.ok(), "budget/web deleted\n");
    assert_eq!(stage.muster("delete nodes --all").await.ok(), "node/worker-1 deleted\n");
}

impl crate::harness::Said {
    /// The answer; that there is none may be said beside it.
    fn ok_or_nothing(self) -> String {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_many_pages_is_shown_as_one() {
    const NODES: usize = 1_100;
    let stage = Stage::with_store().await;
    let client = stage.client();
    let create = |i: usize| {
        let client = client.clone();
        async move {
            let metadata = pb::Metadata { name: format!("n-{i:04}"), ..Default::default() };
            let node = pb::Node { metadata: Some(metadata), spec: None, status: None };
            client.create(Node::try_from(node).unwrap()).await.unwrap();
        }
    };
    futures_util::stream::iter((0..NODES).map(create)).buffer_unordered(64).collect::<()>().await;
    let names = stage.muster("get nodes -o name").await.ok();
    let expected: String = (0..NODES).map(|i| format!("node/n-{i:04}\n")).collect();
    assert!(names == expected, "{} lines", names.lines().count());
    assert_eq!(stage.muster("get nodes").await.ok().lines().count(), NODES + 1);
}
