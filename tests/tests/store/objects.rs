//! Nodes and leases: names, labels, taints, and which fields can change (scenarios 1-17, 23).

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_proto::pb;
use muster_proto::wellknown::taint::NOT_READY;
use muster_tests::fixtures::*;
use muster_tests::{Deletion, ListQuery, Resource, TestStore, WatchQuery, now_seconds};
use tonic::Code;

fn taints(node: &pb::Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints);
    taints.map(|taint| format!("{}={}:{}", taint.key, taint.value, taint.effect)).collect()
}

fn pod_cidrs(node: &pb::Node) -> Vec<&str> {
    node.spec.iter().flat_map(|spec| &spec.pod_cidrs).map(String::as_str).collect()
}

#[tokio::test]
async fn s001_a_node_is_created_with_uid_and_version_and_no_generation() {
    let store = TestStore::start().await;
    let api = store.api();
    let before = now_seconds();
    let created = api.create(node("10.240.79.157").label("name", "my-first-k8s-node")).await.unwrap();
    let metadata = created.metadata.clone().unwrap();
    assert_eq!(metadata.uid.len(), 36, "a UUID: {:?}", metadata.uid);
    assert_eq!(metadata.resource_version, api.revision().await);
    assert_eq!(metadata.generation, 0, "nodes have no generation");
    let at = metadata.creation_timestamp.unwrap();
    assert!(
        (before..=now_seconds()).contains(&at.seconds) && at.nanos == 0,
        "the time has whole seconds: {at:?}"
    );
    assert_eq!(metadata.labels["name"], "my-first-k8s-node");
    assert_eq!(api.get::<pb::Node>("10.240.79.157").await.unwrap(), created);
}

#[tokio::test]
async fn s002_names_are_dns_subdomains_of_at_most_253_bytes() {
    let store = TestStore::start().await;
    let api = store.api();
    let (longest, too_long) = ("a".repeat(253), "a".repeat(254));
    for name in ["Node1", "node_1", "-a", "a-", "a..b", "", ".a", "a.", "a b", "ä", &too_long] {
        api.expect_error(api.create(node(name))).await.is_invalid(&["metadata.name"]);
    }
    for name in [longest.as_str(), "a.b-c.1"] {
        assert_eq!(api.create(node(name)).await.unwrap().name(), name);
    }
}

#[tokio::test]
async fn s003_an_existing_name_cannot_be_created_again() {
    let store = TestStore::start().await;
    let api = store.api();
    let first = api.create(node("n1").label("first", "yes")).await.unwrap();
    let error = api.expect_error(api.create(node("n1"))).await;
    error.is(Code::AlreadyExists, "ALREADY_EXISTS");
    assert_eq!(error.resource, "Node n1");
    assert_eq!(api.get::<pb::Node>("n1").await.unwrap(), first);
}

#[tokio::test]
async fn s004_a_new_node_is_tainted_not_ready_even_if_its_status_is_ready() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = api.create(node("a").ready("True")).await.unwrap();
    let spec = created.spec.unwrap();
    assert_eq!(spec.taints, [taint(&format!("{NOT_READY}:NoSchedule"))], "without value and time");
    assert_eq!(created.status.unwrap().conditions[0].status, "True", "the status is kept");
}

#[tokio::test]
async fn s005_an_existing_not_ready_taint_is_kept_unchanged() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = api.create(node("a").taint(&format!("{NOT_READY}=x:NoSchedule"))).await.unwrap();
    assert_eq!(taints(&created), [format!("{NOT_READY}=x:NoSchedule")]);
    let other = api.create(node("b").taint(&format!("{NOT_READY}=x:NoExecute"))).await.unwrap();
    let expected = [format!("{NOT_READY}=x:NoExecute"), format!("{NOT_READY}=:NoSchedule")];
    assert_eq!(taints(&other), expected, "another effect is another taint");
}

#[tokio::test]
async fn s006_taints_are_unique_by_key_and_effect() {
    let store = TestStore::start().await;
    let api = store.api();
    let twice = node("a").taint("a=1:NoSchedule").taint("a=2:NoSchedule");
    api.expect_error(api.create(twice.clone())).await.is_invalid(&["spec.taints[1]"]);
    let created = api.create(node("a").taint("a=1:NoSchedule").taint("a=1:NoExecute")).await.unwrap();
    assert_eq!(taints(&created)[..2], ["a=1:NoSchedule", "a=1:NoExecute"]);
    api.expect_error(api.update(twice)).await.is_invalid(&["spec.taints[1]"]);
    assert_eq!(api.get::<pb::Node>("a").await.unwrap(), created);
}

#[tokio::test]
async fn s007_a_taint_needs_a_label_key_a_label_value_and_an_effect() {
    let store = TestStore::start().await;
    let api = store.api();
    let long = format!("a={}:NoSchedule", "v".repeat(64));
    for (text, field) in [
        ("a=1:", "effect"),
        ("a=1:NoRun", "effect"),
        ("a=1:noschedule", "effect"),
        ("/x:NoSchedule", "key"),
        ("a/b/c:NoSchedule", "key"),
        (":NoSchedule", "key"),
        (&long, "value"),
    ] {
        let error = api.expect_error(api.create(node("a").taint(text))).await;
        error.is_invalid(&[&format!("spec.taints[0].{field}")]);
    }
}

#[tokio::test]
async fn s008_label_keys_and_values_have_limited_lengths() {
    let store = TestStore::start().await;
    let api = store.api();
    let key = |prefix: usize, name: usize| format!("{}/{}", "p".repeat(prefix), "n".repeat(name));
    for (i, (key, value)) in
        [(key(253, 63), "v".repeat(63)), (key(1, 1), String::new()), ("A_b.c-9".into(), "A_b.c-9".into())]
            .iter()
            .enumerate()
    {
        let created = api.create(node(&format!("good-{i}")).label(key, value)).await.unwrap();
        assert_eq!(created.metadata.unwrap().labels[key], *value);
    }
    let long = "v".repeat(64);
    for (key, value) in [
        (key(253, 64), ""),
        (key(254, 63), ""),
        ("/n".to_owned(), ""),
        ("p/".to_owned(), ""),
        (String::new(), ""),
        ("a/b/c".to_owned(), ""),
        ("ok".to_owned(), long.as_str()),
        ("ok".to_owned(), "-v"),
        ("ok".to_owned(), "ä"),
    ] {
        let error = api.expect_error(api.create(node("bad").label(&key, value))).await;
        error.is(Code::InvalidArgument, "INVALID");
        assert_eq!(error.fields.len(), 1, "{error:?}");
        assert!(error.fields[0].starts_with("metadata.labels["), "{error:?}");
    }
}

#[tokio::test]
async fn s009_all_annotations_together_are_limited_to_256_kib() {
    let store = TestStore::start().await;
    let api = store.api();
    let annotated =
        |bytes: usize| node("a").annotation("key", &"x".repeat(bytes - 3 - 4)).annotation("more", "");
    let error = api.expect_error(api.create(annotated(262_145))).await;
    error.is_invalid(&["metadata.annotations"]).mentions("262144");
    let created = api.create(annotated(262_144)).await.unwrap();
    assert_eq!(created.metadata.unwrap().annotations["key"].len(), 262_137);
}

#[tokio::test]
async fn s010_pod_cidrs_are_set_once() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = api.create(node("a")).await.unwrap();
    assert!(pod_cidrs(&created).is_empty());
    let given = api.update(created.pod_cidrs(&["10.1.0.0/24"])).await.unwrap();
    assert_eq!(pod_cidrs(&given), ["10.1.0.0/24"]);
    assert_eq!(given.spec.as_ref().unwrap().pod_cidr, "10.1.0.0/24", "the single field mirrors the list");
    for other in [vec!["10.2.0.0/24"], vec![], vec!["10.1.0.0/24", "fd00::/64"]] {
        let error = api.expect_error(api.update(given.clone().pod_cidrs(&other))).await;
        error.is_invalid(&["spec.podCidrs"]);
    }
    assert_eq!(api.get::<pb::Node>("a").await.unwrap(), given);
}

#[tokio::test]
async fn s011_a_node_has_at_most_one_pod_cidr_per_family() {
    let store = TestStore::start().await;
    let api = store.api();
    for bad in [
        vec!["10.0.0.0/24", "10.1.0.0/24"],
        vec!["fd00::/64", "fd01::/64"],
        vec!["10.0.0.0/24", "fd00::/64", "10.1.0.0/24"],
    ] {
        let error = api.expect_error(api.create(node("bad").pod_cidrs(&bad))).await;
        error.is(Code::InvalidArgument, "INVALID");
        assert!(error.fields.iter().all(|field| field.starts_with("spec.podCidrs")), "{error:?}");
    }
    for (name, good) in [("v4-v6", ["10.0.0.0/24", "fd00::/64"]), ("v6-v4", ["fd00::/64", "10.0.0.0/24"])] {
        let created = api.create(node(name).pod_cidrs(&good)).await.unwrap();
        assert_eq!(pod_cidrs(&created), good);
    }
}

#[tokio::test]
async fn s012_pod_cidr_replaces_a_list_that_differs() {
    let store = TestStore::start().await;
    let api = store.api();
    let contradicting = node("a")
        .pod_cidrs(&["10.1.0.0/24", "fd00::/64"])
        .spec(|spec| "10.9.0.0/24".clone_into(&mut spec.pod_cidr));
    let created = api.create(contradicting).await.unwrap();
    assert_eq!(pod_cidrs(&created), ["10.9.0.0/24"]);
    assert_eq!(created.spec.unwrap().pod_cidr, "10.9.0.0/24");
    let single = node("b").spec(|spec| "10.8.0.0/24".clone_into(&mut spec.pod_cidr));
    assert_eq!(pod_cidrs(&api.create(single).await.unwrap()), ["10.8.0.0/24"]);
}

#[tokio::test]
async fn s013_the_provider_id_is_set_once() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = api.create(node("a")).await.unwrap();
    let given = api.update(created.provider_id("x://1")).await.unwrap();
    for other in ["x://2", ""] {
        let error = api.expect_error(api.update(given.clone().provider_id(other))).await;
        error.is_invalid(&["spec.providerId"]);
    }
    assert_eq!(api.get::<pb::Node>("a").await.unwrap(), given);
}

#[tokio::test]
async fn s014_the_second_of_two_updates_with_the_same_version_is_refused() {
    let store = TestStore::start().await;
    let api = store.api();
    let read = api.create(node("a")).await.unwrap();
    let first = api.update(read.clone().label("by", "first")).await.unwrap();
    assert!(first.version() > read.version());
    let error = api.expect_error(api.update(read.clone().label("by", "second"))).await;
    error.is(Code::Aborted, "CONFLICT");
    assert_eq!(
        (error.resource.as_str(), error.violations.as_slice()),
        ("Node a", &["RESOURCE_VERSION".to_owned()][..])
    );
    assert_eq!(api.get::<pb::Node>("a").await.unwrap(), first);
    let third = api.update(read.at(0).label("by", "third")).await.unwrap();
    assert_eq!(third.metadata.unwrap().labels["by"], "third", "an update without a version overwrites");
}

#[tokio::test]
async fn an_update_with_the_uid_of_a_deleted_record_is_refused() {
    let store = TestStore::start().await;
    let api = store.api();
    let first = api.create(node("a")).await.unwrap();
    api.delete::<pb::Node>("a").await.unwrap();
    let second = api.create(node("a")).await.unwrap();
    assert_ne!(first.uid(), second.uid(), "a name can be reused, a uid cannot");
    let error = api.expect_error(api.update(first.clone().at(0))).await;
    error.is(Code::Aborted, "UID_MISMATCH");
    let meant = Deletion { uid: first.uid().to_owned(), ..Default::default() };
    let error = api.expect_error(api.delete_with::<pb::Node>("a", meant)).await;
    error.is(Code::Aborted, "UID_MISMATCH");
    api.expect_error(api.update(node("gone"))).await.is(Code::NotFound, "NOT_FOUND");
    api.expect_error(api.update_status(node("gone"))).await.is(Code::NotFound, "NOT_FOUND");
    api.expect_error(api.delete::<pb::Node>("gone")).await.is(Code::NotFound, "NOT_FOUND");
}

#[tokio::test]
async fn s015_spec_and_status_are_updated_separately() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = api.create(node("a").ready("False")).await.unwrap();

    let updated = api.update(created.clone().cordoned().ready("True")).await.unwrap();
    assert!(updated.spec.as_ref().unwrap().unschedulable);
    assert_eq!(updated.status, created.status, "the main update keeps the status");

    let report = updated.clone().ready("True").label("new", "yes").spec(|spec| {
        spec.unschedulable = false;
        spec.taints.clear();
    });
    let reported = api.update_status(report).await.unwrap();
    assert_eq!(reported.spec, updated.spec, "the status update keeps the spec");
    assert_eq!(reported.metadata.as_ref().unwrap().labels["new"], "yes", "but it can set labels");
    assert_eq!(reported.status.as_ref().unwrap().conditions[0].status, "True");
    assert_eq!(api.get::<pb::Node>("a").await.unwrap(), reported);
}

#[tokio::test]
async fn s016_an_update_without_a_change_produces_no_version_and_no_event() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = api.create(node("a")).await.unwrap();
    let mut watch =
        api.watch::<pb::Node>(WatchQuery { version: created.version(), ..Default::default() }).await.unwrap();
    let labelled = api.update(created.label("zone", "a")).await.unwrap();
    let again = api.without_a_write(api.update(labelled.clone())).await;
    assert_eq!(again, labelled);
    let again = api.without_a_write(api.update(labelled.clone().at(0))).await;
    assert_eq!(again, labelled, "also without a resource version");
    let again = api.without_a_write(api.update_status(labelled.clone())).await;
    assert_eq!(again, labelled, "also as a status update");
    let last = api.update(labelled.clone().label("zone", "b")).await.unwrap();
    let expected = [&labelled, &last].map(|node| format!("MODIFIED a {}", node.version()));
    assert_eq!(watch.summaries(2).await, expected, "the two changes and no other event");
}

#[tokio::test]
async fn s017_a_lease_update_needs_its_version_and_creates_a_missing_lease() {
    let store = TestStore::start().await;
    let api = store.api();
    let wanted = held(lease("n1"), "n1", 40);
    let created = api.update(wanted.clone()).await.unwrap();
    assert_eq!(created.version(), api.revision().await, "an update of a missing lease creates it");
    assert_eq!(created.metadata.as_ref().unwrap().generation, 0, "leases have no generation");

    let error = api.expect_error(api.update(wanted)).await;
    error.is_invalid(&["metadata.resourceVersion"]);
    let next = api.update(held(created.clone(), "n2", 40)).await.unwrap();
    assert_eq!(next.spec.as_ref().unwrap().holder_identity, "n2");
    api.expect_error(api.update(created)).await.is(Code::Aborted, "CONFLICT");

    for seconds in [0, -1] {
        let error = api.expect_error(api.create(held(lease("n2"), "n2", seconds))).await;
        error.is_invalid(&["spec.leaseDurationSeconds"]);
        let error = api.expect_error(api.update(held(next.clone(), "n2", seconds))).await;
        error.is_invalid(&["spec.leaseDurationSeconds"]);
    }
    assert_eq!(api.get::<pb::Lease>("kube-node-lease/n1").await.unwrap(), next);
}

#[tokio::test]
async fn s023_a_node_with_a_finalizer_stays_until_the_finalizer_is_removed() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = api.create(node("a").finalizers(&["f"])).await.unwrap();
    let mut watch =
        api.watch::<pb::Node>(WatchQuery { version: created.version(), ..Default::default() }).await.unwrap();

    let deleting = api.delete::<pb::Node>("a").await.unwrap();
    let metadata = deleting.metadata.as_ref().unwrap();
    assert!(metadata.deletion_timestamp.is_some());
    assert_eq!(metadata.deletion_grace_period_seconds, Some(0));
    assert_eq!(api.get::<pb::Node>("a").await.unwrap(), deleting, "the node still exists");
    api.without_a_write(api.delete::<pb::Node>("a")).await;

    let error = api.expect_error(api.update(deleting.clone().finalizers(&["f", "g"]))).await;
    error.is_invalid(&["metadata.finalizers[1]"]);
    let undeleted = deleting.clone().with(|metadata| metadata.deletion_timestamp = None);
    let kept = api.without_a_write(api.update(undeleted)).await;
    assert!(kept.metadata.unwrap().deletion_timestamp.is_some(), "a deletion cannot be cancelled");

    let gone = api.update(deleting.clone().finalizers(&[])).await.unwrap();
    assert_eq!(gone.version(), api.revision().await);
    api.expect_error(api.get::<pb::Node>("a")).await.is(Code::NotFound, "NOT_FOUND");
    let expected = [format!("MODIFIED a {}", deleting.version()), format!("DELETED a {}", gone.version())];
    assert_eq!(watch.summaries(2).await, expected);
}

#[tokio::test]
async fn nodes_are_selected_by_labels_name_and_cordon() {
    let store = TestStore::start().await;
    let api = store.api();
    api.create(node("a").label("zone", "x")).await.unwrap();
    api.create(node("b").label("zone", "y").cordoned()).await.unwrap();
    api.create(node("c")).await.unwrap();
    for (labels, fields, expected) in [
        ("", "", vec!["a", "b", "c"]),
        ("zone=x", "", vec!["a"]),
        ("zone!=x", "", vec!["b", "c"]),
        ("zone in (x,y)", "", vec!["a", "b"]),
        ("!zone", "", vec!["c"]),
        ("zone", "spec.unschedulable=true", vec!["b"]),
        ("", "metadata.name=c", vec!["c"]),
        ("", "metadata.name!=c", vec!["a", "b"]),
        ("zone=x", "metadata.name=c", vec![]),
    ] {
        let page = api.list::<pb::Node>(ListQuery { labels, fields, ..Default::default() }).await.unwrap();
        let names: Vec<_> = page.records.iter().map(Resource::name).collect();
        assert_eq!(names, expected, "labels {labels:?}, fields {fields:?}");
    }
}
