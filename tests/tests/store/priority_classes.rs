//! Priority classes, and the priority that a pod gets from its class (scenarios 210, 215).

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_proto::pb;
use muster_tests::fixtures::*;
use muster_tests::{Api, ListQuery, Resource, TestStore, WatchQuery};
use tonic::Code;

fn class(name: &str, value: i32) -> pb::PriorityClass {
    let metadata = Some(pb::Metadata { name: name.to_owned(), ..Default::default() });
    pb::PriorityClass { metadata, value, ..Default::default() }
}

fn as_default(class: pb::PriorityClass) -> pb::PriorityClass {
    pb::PriorityClass { global_default: true, ..class }
}

fn of_class(name: &str, class: &str) -> pb::Pod {
    let mut pod = pod(name);
    pod.spec.as_mut().unwrap().priority_class_name = class.to_owned();
    pod
}

/// Class, priority and policy of a pod as the store created it.
async fn created(api: &Api, pod: pb::Pod) -> (String, Option<i32>, String) {
    let spec = api.create(pod).await.unwrap().spec.unwrap();
    (spec.priority_class_name, spec.priority, spec.preemption_policy)
}

fn priority(class: &str, value: Option<i32>, policy: &str) -> (String, Option<i32>, String) {
    (class.to_owned(), value, policy.to_owned())
}

#[tokio::test]
async fn s210_a_pod_gets_the_priority_of_its_class_when_it_is_created() {
    let store = TestStore::start().await;
    let api = store.api();
    api.create(class("high", 1000)).await.unwrap();
    const PREEMPTS: &str = "PreemptLowerPriority";
    assert_eq!(created(&api, of_class("a", "high")).await, priority("high", Some(1000), PREEMPTS));
    let critical = created(&api, of_class("b", "system-node-critical")).await;
    assert_eq!(critical, priority("system-node-critical", Some(2_000_001_000), PREEMPTS));
    assert_eq!(created(&api, pod("c")).await, priority("", None, ""), "there is no global default");

    let usual = as_default(pb::PriorityClass { preemption_policy: "Never".into(), ..class("usual", 10) });
    api.create(usual).await.unwrap();
    assert_eq!(created(&api, pod("d")).await, priority("usual", Some(10), "Never"));
    let mut stated = pod("e");
    stated.spec.as_mut().unwrap().priority = Some(7);
    assert_eq!(created(&api, stated).await, priority("", Some(7), ""), "it says its priority itself");

    let error = api.expect_error(api.create(of_class("f", "hihg"))).await;
    error.is_invalid(&["spec.priorityClassName"]).mentions("there is no PriorityClass named hihg");
    let mut contradicts = of_class("f", "high");
    contradicts.spec.as_mut().unwrap().priority = Some(1);
    api.expect_error(api.create(contradicts)).await.is_invalid(&["spec.priority"]).mentions("1000");

    // A class that goes takes nothing away from its pods, and the original manifest is accepted as an update.
    api.delete::<pb::PriorityClass>("high").await.unwrap();
    api.delete::<pb::PriorityClass>("usual").await.unwrap();
    let held: pb::Pod = api.get("default/d").await.unwrap();
    let mut again = pod("d");
    again.spec.as_mut().unwrap().tolerations = held.spec.clone().unwrap().tolerations;
    assert_eq!(api.update(again).await.unwrap(), held);
    assert_eq!(created(&api, pod("g")).await, priority("", None, ""));
}

#[tokio::test]
async fn s215_the_rules_of_priority_classes_hold() {
    let store = TestStore::start().await;
    let api = store.api();
    let held = api.create(as_default(class("a", 1_000_000_000))).await.unwrap();
    assert_eq!((held.preemption_policy.as_str(), held.namespace()), ("PreemptLowerPriority", ""));
    api.expect_error(api.create(class("b", 1_000_000_001))).await.is_invalid(&["value"]);
    api.expect_error(api.create(class("system-x", 1))).await.is_invalid(&["metadata.name"]);
    api.expect_error(api.create(class("a", 1))).await.is(Code::AlreadyExists, "ALREADY_EXISTS");
    let error = api.expect_error(api.create(as_default(class("b", 1)))).await;
    error.is_invalid(&["globalDefault"]).mentions("a is the global default");

    let b = api.create(class("b", 1)).await.unwrap();
    api.expect_error(api.update(as_default(b.clone()))).await.is_invalid(&["globalDefault"]);
    api.expect_error(api.update(pb::PriorityClass { value: 2, ..b.clone() })).await.is_invalid(&["value"]);
    let never = pb::PriorityClass { preemption_policy: "Never".into(), ..b.clone() };
    api.expect_error(api.update(never)).await.is_invalid(&["preemptionPolicy"]);
    let unset = api.update(pb::PriorityClass { global_default: false, ..held }).await.unwrap();
    assert!(!unset.global_default);
    let b = api.update(as_default(b)).await.unwrap();
    assert!(b.global_default, "now no other class is the default");

    let listed = api.list::<pb::PriorityClass>(ListQuery::default()).await.unwrap();
    assert_eq!(listed.records.iter().map(Resource::name).collect::<Vec<_>>(), ["a", "b"]);
    let mut watch = api
        .watch::<pb::PriorityClass>(WatchQuery { version: listed.version, ..WatchQuery::default() })
        .await
        .unwrap();
    api.delete::<pb::PriorityClass>("a").await.unwrap();
    let seen = watch.summaries(1).await;
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[tokio::test]
async fn s215_everybody_with_a_role_but_nodes_reads_classes_and_only_administrators_write_them() {
    let store = TestStore::secure().await;
    let admin = store.api();
    admin.create(class("high", 1)).await.unwrap();
    for (name, group) in [("joe", "muster:viewers"), ("c1", "muster:controllers")] {
        let api = store.api_as(name, group);
        assert_eq!(api.list::<pb::PriorityClass>(ListQuery::default()).await.unwrap().records.len(), 1);
        api.expect_error(api.create(class("other", 1))).await.is_denied();
        api.expect_error(api.delete::<pb::PriorityClass>("high")).await.is_denied();
    }
    let node = store.api_as_node("a");
    node.expect_error(node.get::<pb::PriorityClass>("high")).await.is_denied();
}

#[tokio::test]
async fn s210_a_bound_pod_has_no_nominated_node() {
    let store = TestStore::start().await;
    let api = store.api();
    let mut waiting = api.create(pod("a")).await.unwrap();
    waiting.status.get_or_insert_default().nominated_node_name = "n1".into();
    let nominated = api.update_status(waiting).await.unwrap();
    assert_eq!(nominated.status.unwrap().nominated_node_name, "n1");
    let bound = api.bind("default/a", "n2", muster_tests::Deletion::default()).await.unwrap();
    assert_eq!(bound.status.unwrap().nominated_node_name, "");
}
