//! Authorization by client certificate, over mutual TLS (scenarios 179-190).

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_proto::wellknown::annotation::MIRROR;
use muster_tests::fixtures::*;
use muster_tests::{Api, Deletion, ListQuery, Resource, TestStore, WatchQuery};
use tonic::Code;

const UID: &str = "8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11";

/// A secure store, its administrator, and the agent of node a.
async fn world() -> (TestStore, Api, Api) {
    let store = TestStore::secure().await;
    let (admin, a) = (store.api(), store.api_as_node("a"));
    (store, admin, a)
}

fn own(fields: &'static str) -> ListQuery {
    ListQuery { fields, ..Default::default() }
}

fn followed(fields: &'static str) -> WatchQuery {
    WatchQuery { fields, ..Default::default() }
}

#[tokio::test]
async fn s179_a_node_reads_and_writes_its_own_node_only() {
    let (_store, admin, a) = world().await;
    a.expect_error(a.get::<pb::Node>("a")).await.is(Code::NotFound, "NOT_FOUND");
    let created = a.create(node("a").ready("True")).await.unwrap();
    assert_eq!(a.get::<pb::Node>("a").await.unwrap(), created);
    let reported = a.update_status(created.ready("False")).await.unwrap();
    let cordoned = a.update(reported.cordoned()).await.unwrap();
    assert!(cordoned.spec.unwrap().unschedulable, "a node may cordon itself");
    assert_eq!(a.list::<pb::Node>(own("metadata.name=a")).await.unwrap().records.len(), 1);
    a.watch::<pb::Node>(followed("metadata.name=a")).await.unwrap().summaries(1).await;

    let denied = a.expect_error(a.create(node("b"))).await;
    denied.is_denied().mentions("node:a may not create Node b").mentions("only its own Node");
    let b = admin.create(node("b")).await.unwrap();
    a.expect_error(a.update_status(b.clone().ready("True"))).await.is_denied();
    a.expect_error(a.update(b.clone().cordoned())).await.is_denied();
    a.expect_error(a.get::<pb::Node>("b")).await.is_denied();
    a.expect_error(a.get::<pb::Node>("missing")).await.is_denied();
    for fields in ["", "metadata.name=b", "metadata.name!=a", "spec.unschedulable=true"] {
        a.expect_error(a.list::<pb::Node>(own(fields))).await.is_denied();
        a.expect_error(a.watch::<pb::Node>(followed(fields))).await.is_denied();
    }
    assert_eq!(admin.get::<pb::Node>("b").await.unwrap(), b);
}

#[tokio::test]
async fn s180_a_node_can_register_with_taints_and_cannot_change_them_later() {
    let (_store, admin, a) = world().await;
    let created = a.create(node("a").taint("gpu=yes:NoSchedule")).await.unwrap();
    assert_eq!(created.spec.as_ref().unwrap().taints.len(), 2, "its own taint, and not-ready");
    let tampered = [
        created.clone().spec(|spec| drop(spec.taints.remove(0))),
        created.clone().spec(|spec| "no".clone_into(&mut spec.taints[0].value)),
        created.clone().spec(|spec| spec.taints.reverse()),
        created.clone().taint("more:NoExecute"),
        created.clone().spec(|spec| spec.taints.clear()),
    ];
    for wanted in tampered {
        a.expect_error(a.update(wanted.clone())).await.is_denied().mentions("taints");
        a.expect_error(a.update_status(wanted)).await.is_denied().mentions("taints");
    }
    assert_eq!(admin.get::<pb::Node>("a").await.unwrap(), created);
    a.update(created.cordoned()).await.unwrap();
}

#[tokio::test]
async fn a_node_cannot_remove_a_cordon_or_drain_that_an_operator_requested() {
    let (_store, admin, a) = world().await;
    let created = a.create(node("a")).await.unwrap();
    let asked_at = || Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 });
    let cordon = pb::NodeCordon {
        requested_by: "eva".into(),
        reason: "a new disk".into(),
        requested_at: asked_at(),
        ..Default::default()
    };
    let drain = pb::NodeDrain {
        requested_by: "eva".into(),
        reason: "a new disk".into(),
        requested_at: asked_at(),
        state: "Draining".into(),
        ..Default::default()
    };
    let asked = created.spec(|spec| (spec.cordon, spec.drain) = (Some(cordon), Some(drain)));
    a.expect_error(a.update(asked.clone())).await.is_denied().mentions("cordon or drain");
    let asked = admin.update(asked).await.unwrap();
    for wanted in [
        asked.clone().spec(|spec| (spec.cordon, spec.cordons) = (None, Vec::new())),
        asked.clone().spec(|spec| spec.drain = None),
        asked.clone().spec(|spec| spec.drain.as_mut().unwrap().state = "Complete".into()),
    ] {
        a.expect_error(a.update(wanted)).await.is_denied().mentions("cordon or drain");
    }
    let cordoned = a.update(asked.cordoned()).await.unwrap();
    a.update_status(cordoned.ready("True")).await.unwrap();
}

#[tokio::test]
async fn s181_a_node_cannot_set_labels_that_are_reserved_for_administrators() {
    const ALLOWED: [&str; 8] = [
        "foo",
        "example.com/x",
        "kubelet.kubernetes.io/x",
        "foo.node.kubernetes.io/x",
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
        "node.kubernetes.io/exclude-disruption",
        "notkubernetes.io/x",
    ];
    const FORBIDDEN: [&str; 6] = [
        "other.kubernetes.io/x",
        "other.k8s.io/x",
        "kubernetes.io/x",
        "node-role.kubernetes.io/x",
        "node-restriction.kubernetes.io/x",
        "sub.node-restriction.kubernetes.io/x",
    ];
    let (_store, admin, a) = world().await;
    for key in FORBIDDEN {
        a.expect_error(a.create(node("a").label(key, "1"))).await.is_denied().mentions(key);
    }
    let wanted = ALLOWED.iter().fold(node("a"), |node, key| node.label(key, "1"));
    let mut held = a.create(wanted).await.unwrap();
    for key in ALLOWED {
        held = a.update(held.label(key, "2")).await.unwrap();
        held = a.update_status(held.without_label(key)).await.unwrap();
    }
    for key in FORBIDDEN {
        a.expect_error(a.update(held.clone().label(key, "1"))).await.is_denied().mentions(key);
        a.expect_error(a.update_status(held.clone().label(key, "1"))).await.is_denied().mentions(key);
    }
    let marked = FORBIDDEN.iter().fold(held, |node, key| node.label(key, "1"));
    let marked = admin.update(marked).await.unwrap();
    for key in FORBIDDEN {
        a.expect_error(a.update(marked.clone().label(key, "2"))).await.is_denied().mentions(key);
        a.expect_error(a.update(marked.clone().without_label(key))).await.is_denied().mentions(key);
        a.expect_error(a.update_status(marked.clone().without_label(key))).await.is_denied().mentions(key);
    }
    a.update(marked.label("foo", "3")).await.unwrap();
}

#[tokio::test]
async fn s182_a_node_cannot_change_its_owners_or_delete_itself() {
    let (_store, admin, a) = world().await;
    let created = a.create(node("a")).await.unwrap();
    let owned = created.clone().owned_by("Machine", "m", UID);
    a.expect_error(a.update(owned.clone())).await.is_denied().mentions("owners");
    a.expect_error(a.delete::<pb::Node>("a")).await.is_denied();
    a.expect_error(a.delete::<pb::Node>("missing")).await.is_denied();
    let owned = admin.update(owned).await.unwrap();
    let freed = owned.clone().with(|metadata| metadata.owner_references.clear());
    a.expect_error(a.update(freed)).await.is_denied().mentions("owners");
    assert_eq!(admin.get::<pb::Node>("a").await.unwrap(), owned);
}

#[tokio::test]
async fn s183_a_node_can_use_only_its_own_lease_in_kube_node_lease() {
    let (store, admin, a) = world().await;
    let own = "kube-node-lease/a";
    a.expect_error(a.get::<pb::Lease>(own)).await.is(Code::NotFound, "NOT_FOUND");
    let created = a.create(held(lease("a"), "a", 40)).await.unwrap();
    a.update(held(created, "a", 50)).await.unwrap();
    a.renew(own, "a").await.unwrap();
    a.get::<pb::Lease>(own).await.unwrap();
    a.delete::<pb::Lease>(own).await.unwrap();
    a.update(held(lease("a"), "a", 40)).await.unwrap();

    admin.create(lease("b")).await.unwrap();
    admin.create(lease("a").in_namespace("default")).await.unwrap();
    for foreign in [lease("b"), lease("a").in_namespace("default"), lease("a").in_namespace("kube-system")] {
        let path = format!("{}/{}", foreign.namespace(), foreign.name());
        a.expect_error(a.create(foreign.clone()))
            .await
            .is_denied()
            .mentions("only the Lease with its own name");
        a.expect_error(a.update(foreign.clone())).await.is_denied();
        a.expect_error(a.get::<pb::Lease>(&path)).await.is_denied();
        a.expect_error(a.renew(&path, "a")).await.is_denied();
        a.expect_error(a.delete::<pb::Lease>(&path)).await.is_denied();
    }
    a.expect_error(a.list::<pb::Lease>(ListQuery::default())).await.is_denied();
    a.expect_error(a.list::<pb::Lease>(ListQuery { fields: "metadata.name=a", ..Default::default() }))
        .await
        .is_denied();
    a.expect_error(a.watch::<pb::Lease>(WatchQuery::default())).await.is_denied();

    let controller = store.api_as("c1", "muster:controllers");
    controller.list::<pb::Lease>(ListQuery::default()).await.unwrap();
    let leader = held(lease("muster-controller").in_namespace("kube-system"), "c1", 15);
    controller.create(leader).await.unwrap();
    controller.renew("kube-system/muster-controller", "c1").await.unwrap();
    let deleted = controller.create(lease("muster-cloud-brake").in_namespace("kube-system")).await.unwrap();
    controller.update(deleted).await.unwrap();
    controller.expect_error(controller.renew(own, "a")).await.is_denied();
}

#[tokio::test]
async fn s183_a_node_sends_heartbeats_for_itself_only() {
    let (_store, admin, a) = world().await;
    let (own, other) = (admin.create(node("a")).await.unwrap(), admin.create(node("b")).await.unwrap());
    let hello = |node: &pb::Node| {
        Message::Hello(pb::HeartbeatHello {
            node_name: node.name().to_owned(),
            node_uid: node.uid().to_owned(),
            incarnation: "i".to_owned(),
            lease_duration: None,
        })
    };
    a.heartbeat().await.send(hello(&own)).await.unwrap();
    let error = a.expect_error(async { a.heartbeat().await.send(hello(&other)).await }).await;
    error.is_denied();
    a.expect_error(admin.get::<pb::Lease>("kube-node-lease/b")).await.is(Code::NotFound, "NOT_FOUND");
}

#[tokio::test]
async fn s184_a_node_writes_the_status_of_its_own_pods_only() {
    let (_store, admin, a) = world().await;
    let mine = admin.create(pod("mine").on("a").label("app", "web")).await.unwrap();
    let reported = a.update_status(mine.running("True")).await.unwrap();
    assert_eq!(reported.status.as_ref().unwrap().phase, "Running");
    for relabelled in [
        reported.clone().label("app", "db"),
        reported.clone().label("new", "yes"),
        reported.clone().without_label("app"),
    ] {
        a.expect_error(a.update_status(relabelled)).await.is_denied().mentions("labels of a pod");
    }
    for other in [pod("theirs").on("b"), pod("free")] {
        let other = admin.create(other).await.unwrap();
        a.expect_error(a.update_status(other.clone().running("True")))
            .await
            .is_denied()
            .mentions("bound to it");
        a.expect_error(a.get::<pb::Pod>(&format!("default/{}", other.name()))).await.is_denied();
    }
    a.expect_error(a.update_status(pod("missing"))).await.is(Code::NotFound, "NOT_FOUND");
    a.expect_error(a.update(reported.clone())).await.is_denied();
    a.expect_error(a.bind("default/free", "a", Deletion::default())).await.is_denied();
    assert_eq!(a.get::<pb::Pod>("default/mine").await.unwrap(), reported);
}

#[tokio::test]
async fn s185_a_node_deletes_and_evicts_its_own_pods_only() {
    let (_store, admin, a) = world().await;
    for (name, place) in [("deleted", "a"), ("evicted", "a"), ("theirs", "b")] {
        admin.create(pod(name).on(place)).await.unwrap();
    }
    admin.create(pod("free")).await.unwrap();
    let at_once = || Deletion { grace: Some(0), ..Default::default() };
    a.delete_with::<pb::Pod>("default/deleted", at_once()).await.unwrap();
    a.expect_error(admin.get::<pb::Pod>("default/deleted")).await.is(Code::NotFound, "NOT_FOUND");
    a.evict("default/evicted").await.unwrap();
    for path in ["default/theirs", "default/free"] {
        a.expect_error(a.delete_with::<pb::Pod>(path, at_once())).await.is_denied();
        a.expect_error(a.evict(path)).await.is_denied();
    }
    a.expect_error(a.delete::<pb::Pod>("default/missing")).await.is(Code::NotFound, "NOT_FOUND");
    a.expect_error(a.evict("default/missing")).await.is(Code::NotFound, "NOT_FOUND");
}

#[tokio::test]
async fn s186_a_node_creates_only_mirror_pods_that_it_owns() {
    let (_store, admin, a) = world().await;
    let bare = || pod("m").on("a").annotation(MIRROR, "hash");
    let early = a.expect_error(a.create(bare().owned_by("Node", "a", UID))).await;
    early.is(Code::NotFound, "NOT_FOUND").mentions("Node a");
    let node_a = a.create(node("a")).await.unwrap();
    let mirror = || bare().owned_by("Node", "a", node_a.uid());

    a.expect_error(a.create(pod("plain").on("a"))).await.is_denied().mentions(MIRROR);
    let owner = |change: fn(&mut pb::OwnerReference)| {
        mirror().with(|metadata| change(&mut metadata.owner_references[0]))
    };
    let secret = pb::Volume {
        name: "s".to_owned(),
        source: Some(pb::volume::Source::Secret(pb::ObjectVolume { name: "s".to_owned() })),
    };
    let from_secret = pb::EnvVar {
        name: "S".to_owned(),
        value_from: Some(pb::EnvVarSource {
            secret_key_ref: Some(pb::KeySelector { name: "s".to_owned(), key: "k".to_owned() }),
            config_map_key_ref: None,
        }),
        ..Default::default()
    };
    for (why, wanted) in [
        ("another node", mirror().on("b")),
        ("no owner", bare()),
        ("wrong uid", bare().owned_by("Node", "a", UID)),
        ("wrong name", bare().owned_by("Node", "b", node_a.uid())),
        ("wrong kind", bare().owned_by("Machine", "a", node_a.uid())),
        ("wrong version", owner(|owner| "v2".clone_into(&mut owner.api_version))),
        ("two owners", mirror().with(|m| m.owner_references.extend(second_owner()))),
        ("not its controller", owner(|owner| owner.controller = false)),
        ("blocks the node's deletion", owner(|owner| owner.block_owner_deletion = true)),
        ("a secret volume", mirror().spec(|spec| spec.volumes = vec![secret])),
        ("a secret variable", mirror().spec(|spec| spec.containers[0].env = vec![from_secret])),
        ("an account", mirror().spec(|spec| "x".clone_into(&mut spec.service_account_name))),
    ] {
        let error = a.expect_error(a.create(wanted)).await;
        assert_eq!(error.code, Code::PermissionDenied, "{why}: {error:?}");
    }
    let created = a.create(mirror()).await.unwrap();
    assert_eq!(admin.get::<pb::Pod>("default/m").await.unwrap(), created);
}

fn second_owner() -> Vec<pb::OwnerReference> {
    let other = pod("x").owned_by("ReplicaSet", "x", UID).with(|m| m.owner_references[0].controller = false);
    other.metadata.unwrap_or_default().owner_references
}

#[tokio::test]
async fn s187_a_node_lists_the_pods_bound_to_it() {
    let (_store, admin, a) = world().await;
    admin.create(pod("mine").on("a")).await.unwrap();
    admin.create(pod("theirs").on("b")).await.unwrap();
    let page = a.list::<pb::Pod>(own("spec.nodeName=a")).await.unwrap();
    assert_eq!(page.records.iter().map(Resource::name).collect::<Vec<_>>(), ["mine"]);
    let mut watch = a.watch::<pb::Pod>(followed("spec.nodeName=a")).await.unwrap();
    assert!(watch.summaries(1).await[0].starts_with("ADDED mine "));
    for fields in ["", "spec.nodeName=b", "spec.nodeName!=b", "status.phase=Pending", "spec.nodeName="] {
        a.expect_error(a.list::<pb::Pod>(own(fields))).await.is_denied().mentions("spec.nodeName");
        a.expect_error(a.watch::<pb::Pod>(followed(fields))).await.is_denied();
    }
    let narrowed = own("spec.nodeName=a,status.phase=Running");
    assert!(a.list::<pb::Pod>(narrowed).await.unwrap().records.is_empty());
    a.expect_error(a.list::<pb::DisruptionBudget>(ListQuery::default())).await.is_denied();
    a.expect_error(a.list::<pb::Event>(ListQuery::default())).await.is_denied();
    a.record(by_agent(event("a", "Starting", "a starts"))).await.unwrap();
}

/// The event as an agent records it.
fn by_agent(event: pb::Event) -> pb::Event {
    pb::Event { source_component: "agent".to_owned(), ..event }
}

fn about_pod(pod: &pb::Pod) -> pb::Event {
    let involved = pb::ObjectReference {
        kind: "Pod".to_owned(),
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
    };
    pb::Event { involved_object: Some(involved), ..by_agent(event("x", "Started", "it runs")) }
}

#[tokio::test]
async fn a_node_records_events_about_itself_and_its_pods_only() {
    let (_store, admin, a) = world().await;
    let mine = admin.create(pod("mine").on("a")).await.unwrap();
    let theirs = admin.create(pod("theirs").on("b")).await.unwrap();
    let free = admin.create(pod("free")).await.unwrap();
    assert_eq!(a.record(about_pod(&mine)).await.unwrap().source_host, "a");
    for other in [&theirs, &free] {
        let error = a.expect_error(a.record(about_pod(other))).await;
        error.is_denied().mentions("only about its own Node and about Pods that are bound to it");
    }
    a.expect_error(a.record(by_agent(event("b", "NodeNotReady", "")))).await.is_denied();
    let forged = pb::Event { source_component: "controller".to_owned(), ..about_pod(&mine) };
    a.expect_error(a.record(forged)).await.is_denied().mentions("only as the component `agent`");
    admin
        .delete_with::<pb::Pod>("default/mine", Deletion { grace: Some(0), ..Default::default() })
        .await
        .unwrap();
    a.expect_error(a.record(about_pod(&mine))).await.is_denied();
    assert_eq!(admin.list::<pb::Event>(ListQuery::default()).await.unwrap().records.len(), 1);
}

#[tokio::test]
async fn a_node_neither_sets_nor_changes_its_pod_cidrs() {
    let (_store, admin, a) = world().await;
    let block = &["10.1.0.0/24"];
    a.expect_error(a.create(node("a").pod_cidrs(block))).await.is_denied().mentions("podCidrs");
    let created = a.create(node("a")).await.unwrap();
    a.expect_error(a.update(created.clone().pod_cidrs(block))).await.is_denied().mentions("podCidrs");
    let assigned = admin.update(created.pod_cidrs(block)).await.unwrap();
    let freed = assigned.clone().pod_cidrs(&[]);
    a.expect_error(a.update(freed)).await.is_denied().mentions("podCidrs");
    a.update_status(assigned.ready("True")).await.unwrap();
}

#[tokio::test]
async fn a_node_cannot_inflate_a_budget_with_mirror_pods() {
    let (_store, admin, a) = world().await;
    let node_a = a.create(node("a")).await.unwrap();
    let web = admin.create(pod("web").on("b").label("app", "web")).await.unwrap();
    admin.update_status(web.running("True")).await.unwrap();
    admin.create(budget("x", ("app", "web"), "1")).await.unwrap();
    let mirror = pod("m").on("a").label("app", "web").annotation(MIRROR, "hash");
    let mirror = a.create(mirror.owned_by("Node", "a", node_a.uid())).await.unwrap();
    a.update_status(mirror.running("True")).await.unwrap();
    let counted = admin.get::<pb::DisruptionBudget>("default/x").await.unwrap().status.unwrap();
    assert_eq!((counted.expected_pods, counted.current_healthy, counted.disruptions_allowed), (1, 1, 0));
    admin.expect_error(admin.evict("default/web")).await.is(Code::ResourceExhausted, "BUDGET_EXHAUSTED");
}

#[tokio::test]
async fn s188_a_node_name_without_the_group_of_nodes_gives_no_rights() {
    let (store, admin, _) = world().await;
    admin.create(node("a")).await.unwrap();
    for (name, group) in [
        ("node:a", ""),
        ("node:a", "guests"),
        ("a", "muster:nodes"),
        ("node:", "muster:nodes"),
        ("admin", ""),
    ] {
        let stranger = store.api_as(name, group);
        stranger.expect_error(stranger.get::<pb::Node>("a")).await.is_denied().mentions("no role");
        stranger.expect_error(stranger.list::<pb::Node>(own("metadata.name=a"))).await.is_denied();
        stranger.expect_error(stranger.create(node("b"))).await.is_denied();
        stranger.expect_error(stranger.record(event("a", "R", ""))).await.is_denied();
    }
    // The group that the tools of Kubernetes use is accepted too.
    let a = store.api_as("system:node:a", "system:nodes");
    a.get::<pb::Node>("a").await.unwrap();
    a.expect_error(a.get::<pb::Node>("b")).await.is_denied();
}

#[tokio::test]
async fn s189_an_administrator_may_write_everything_that_is_valid() {
    let (_store, admin, a) = world().await;
    let created = a.create(node("a")).await.unwrap().pod_cidrs(&["10.1.0.0/24"]);
    let marked = created.label("node-restriction.kubernetes.io/x", "1").taint("x=y:NoExecute").cordoned();
    let marked = admin.update(marked).await.unwrap();
    let bare = admin.create(node("b")).await.unwrap();
    admin.update(bare.pod_cidrs(&["10.2.0.0/24"])).await.unwrap();
    let moved = || marked.clone().pod_cidrs(&["10.3.0.0/24"]);
    admin.expect_error(admin.update(moved())).await.is_invalid(&["spec.podCidrs"]);
    a.expect_error(a.update(moved())).await.is_denied();
    admin.create(pod("p").on("a")).await.unwrap();
    admin.evict("default/p").await.unwrap();
    admin.delete::<pb::Node>("b").await.unwrap();
}

#[tokio::test]
async fn s190_a_viewer_reads_everything_and_writes_nothing() {
    let (store, admin, _) = world().await;
    let held_node = admin.create(node("a")).await.unwrap();
    let held_pod = admin.create(pod("p")).await.unwrap();
    admin.create(held(lease("a"), "a", 40)).await.unwrap();
    admin.create(budget("x", ("app", "web"), "1")).await.unwrap();
    let viewer = store.api_as("joe", "muster:viewers");

    viewer.get::<pb::Node>("a").await.unwrap();
    assert_eq!(viewer.list::<pb::Node>(ListQuery::default()).await.unwrap().records.len(), 1);
    assert_eq!(viewer.list::<pb::Pod>(ListQuery::default()).await.unwrap().records.len(), 1);
    assert_eq!(viewer.list::<pb::Lease>(ListQuery::default()).await.unwrap().records.len(), 1);
    assert_eq!(viewer.list::<pb::DisruptionBudget>(ListQuery::default()).await.unwrap().records.len(), 1);
    viewer.list::<pb::Event>(ListQuery::default()).await.unwrap();
    viewer.watch::<pb::Pod>(WatchQuery::default()).await.unwrap().summaries(1).await;

    let v = &viewer;
    v.expect_error(v.create(node("b"))).await.is_denied().mentions("viewer may not create Node b");
    v.expect_error(v.update(held_node.clone().cordoned())).await.is_denied();
    v.expect_error(v.update_status(held_node.ready("True"))).await.is_denied();
    v.expect_error(v.delete::<pb::Node>("a")).await.is_denied();
    v.expect_error(v.create(pod("q"))).await.is_denied();
    v.expect_error(v.update_status(held_pod.running("True"))).await.is_denied();
    v.expect_error(v.bind("default/p", "a", Deletion::default())).await.is_denied();
    v.expect_error(v.evict("default/p")).await.is_denied();
    v.expect_error(v.evict_with("default/p", Deletion::default(), true)).await.is_denied();
    v.expect_error(v.delete::<pb::Pod>("default/p")).await.is_denied();
    v.expect_error(v.delete::<pb::Pod>("default/missing")).await.is_denied();
    v.expect_error(v.create(lease("b"))).await.is_denied();
    v.expect_error(v.renew("kube-node-lease/a", "a")).await.is_denied();
    v.expect_error(v.delete::<pb::DisruptionBudget>("default/x")).await.is_denied();
    v.expect_error(v.record(event("a", "R", ""))).await.is_denied();
}

#[tokio::test]
async fn s190_controller_and_scheduler_have_only_the_rights_they_need() {
    let (store, admin, _) = world().await;
    let a = admin.create(node("a")).await.unwrap();
    let p = admin.create(pod("p")).await.unwrap();
    admin.create(pod("q").on("a")).await.unwrap();
    admin.create(pod("r")).await.unwrap();
    let controller = &store.api_as("c1", "muster:controllers");
    let scheduler = &store.api_as("s1", "muster:schedulers");

    controller.update(a.clone().taint("x:NoSchedule")).await.unwrap();
    controller.update_status(a.clone().at(0).ready("Unknown")).await.unwrap();
    controller.expect_error(controller.create(node("b"))).await.is_denied();
    controller.expect_error(controller.create(pod("b"))).await.is_denied();
    // The controller also schedules and drains: both need more rights than the node lifecycle does.
    controller.bind("default/r", "a", Deletion::default()).await.unwrap();
    controller.evict("default/r").await.unwrap();
    controller.expect_error(controller.update(p.clone())).await.is_denied();
    controller.expect_error(controller.create(lease("a"))).await.is_denied();
    controller.delete::<pb::Pod>("default/q").await.unwrap();
    controller.record(event("a", "NodeNotReady", "")).await.unwrap();

    scheduler.list::<pb::Node>(ListQuery::default()).await.unwrap();
    let bound = scheduler.bind("default/p", "a", Deletion::default()).await.unwrap();
    scheduler.update_status(bound.clone()).await.unwrap();
    scheduler.expect_error(scheduler.update(bound)).await.is_denied();
    scheduler.expect_error(scheduler.update(a.at(0).cordoned())).await.is_denied();
    scheduler.expect_error(scheduler.delete::<pb::Pod>("default/p")).await.is_denied();
    scheduler.expect_error(scheduler.list::<pb::Lease>(ListQuery::default())).await.is_denied();
    controller.delete::<pb::Node>("a").await.unwrap();
}
