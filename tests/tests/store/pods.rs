//! Pods: deletion, tolerations and binding (scenarios 24-28, 107, 108, 120, 174).

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_proto::pb;
use muster_proto::wellknown::taint::{NOT_READY, UNREACHABLE};
use muster_tests::fixtures::*;
use muster_tests::{Api, Deletion, Resource, TestStore, WatchQuery, now_seconds};
use tonic::Code;

fn grace(seconds: i64) -> Deletion {
    Deletion { grace: Some(seconds), ..Default::default() }
}

fn metadata(pod: &pb::Pod) -> &pb::Metadata {
    pod.metadata.as_ref().unwrap()
}

fn deadline(pod: &pb::Pod) -> i64 {
    metadata(pod).deletion_timestamp.unwrap().seconds
}

async fn is_gone(api: &Api, path: &str) {
    api.expect_error(api.get::<pb::Pod>(path)).await.is(Code::NotFound, "NOT_FOUND");
}

#[tokio::test]
async fn s024_a_grace_period_starts_with_the_first_deletion_and_can_only_be_shortened() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = api.create(pod("p").on("n1").grace(30)).await.unwrap();
    assert_eq!(metadata(&created).generation, 1);

    let before = now_seconds();
    let deleting = api.delete::<pb::Pod>("default/p").await.unwrap();
    let expected_deadline = before + 30..=now_seconds() + 30;
    assert!(
        expected_deadline.contains(&deadline(&deleting)),
        "{} is not in {expected_deadline:?}",
        deadline(&deleting)
    );
    assert_eq!(metadata(&deleting).deletion_grace_period_seconds, Some(30));
    assert_eq!(metadata(&deleting).generation, 2);
    // The store has no timer for the grace period; only a deletion with a grace of 0 removes the pod. So the test need
    // not wait for 60 s to see that the pod remains.
    assert_eq!(api.get::<pb::Pod>("default/p").await.unwrap(), deleting);
    assert_eq!(api.without_a_write(api.delete::<pb::Pod>("default/p")).await, deleting);

    let sooner = api.delete_with::<pb::Pod>("default/p", grace(10)).await.unwrap();
    assert_eq!(deadline(&sooner), deadline(&deleting) - 20, "counted from the first request");
    assert_eq!(metadata(&sooner).deletion_grace_period_seconds, Some(10));
    assert_eq!(metadata(&sooner).generation, 2, "increased once");

    for seconds in [60, 10] {
        let later = api.without_a_write(api.delete_with::<pb::Pod>("default/p", grace(seconds))).await;
        assert_eq!(later, sooner, "asked for {seconds} s");
    }
    let gone = api.delete_with::<pb::Pod>("default/p", grace(0)).await.unwrap();
    assert_eq!(gone.version(), api.revision().await);
    is_gone(&api, "default/p").await;
}

#[tokio::test]
async fn s025_a_pod_that_does_not_run_is_removed_at_once() {
    let store = TestStore::start().await;
    let api = store.api();
    api.create(pod("unscheduled")).await.unwrap();
    for phase in ["Failed", "Succeeded"] {
        let created = api.create(pod(&phase.to_lowercase()).on("n1")).await.unwrap();
        api.update_status(created.phase(phase)).await.unwrap();
    }
    for path in ["default/unscheduled", "default/failed", "default/succeeded"] {
        let mut watch = follow_now(&api).await;
        let gone = api.delete::<pb::Pod>(path).await.unwrap();
        assert!(metadata(&gone).deletion_timestamp.is_none(), "{path}: no grace period started");
        is_gone(&api, path).await;
        assert_eq!(watch.summaries(1).await, [format!("DELETED {} {}", gone.name(), gone.version())]);
    }
}

async fn follow_now(api: &Api) -> muster_tests::Watch<pb::Pod> {
    api.watch(WatchQuery { version: api.revision().await, ..Default::default() }).await.unwrap()
}

#[tokio::test]
async fn s026_a_negative_grace_is_one_second_and_a_wrong_uid_is_refused() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = api.create(pod("p").on("n1")).await.unwrap();
    let wrong = Deletion { uid: "8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11".to_owned(), ..Default::default() };
    let error = api.expect_error(api.delete_with::<pb::Pod>("default/p", wrong)).await;
    error.is(Code::Aborted, "UID_MISMATCH");
    assert_eq!(error.violations, ["UID"]);
    let stale = Deletion { version: created.version() + 1, ..Default::default() };
    let error = api.expect_error(api.delete_with::<pb::Pod>("default/p", stale)).await;
    error.is(Code::Aborted, "CONFLICT");
    let garbled = Deletion { uid: "p".to_owned(), ..Default::default() };
    let error = api.expect_error(api.delete_with::<pb::Pod>("default/p", garbled)).await;
    error.is_invalid(&["preconditions.uid"]);
    assert_eq!(api.get::<pb::Pod>("default/p").await.unwrap(), created);

    let before = now_seconds();
    let right = Deletion { uid: created.uid().to_owned(), version: created.version(), grace: Some(-5) };
    let deleting = api.delete_with::<pb::Pod>("default/p", right).await.unwrap();
    assert_eq!(metadata(&deleting).deletion_grace_period_seconds, Some(1));
    assert!((before + 1..=now_seconds() + 1).contains(&deadline(&deleting)));
    assert_eq!(api.get::<pb::Pod>("default/p").await.unwrap(), deleting, "it still needs a final deletion");
}

#[tokio::test]
async fn s027_tolerations_can_be_added_and_their_seconds_changed() {
    let store = TestStore::start().await;
    let api = store.api();
    let t1 = pb::Toleration { toleration_seconds: Some(60), ..tolerates("t1", "NoExecute") };
    let t2 = tolerates("t2", "NoSchedule");
    let created = api.create(pod("p").toleration(t1.clone())).await.unwrap();

    let more = api.update(created.clone().toleration(t2.clone())).await.unwrap();
    let held = &more.spec.as_ref().unwrap().tolerations;
    assert!(held.contains(&t1) && held.contains(&t2), "{held:?}");
    assert_eq!(metadata(&more).generation, 2);

    let fewer = more.clone().spec(|spec| spec.tolerations.retain(|held| *held != t1));
    api.expect_error(api.update(fewer)).await.is_invalid(&["spec.tolerations"]);
    let other = more.clone().spec(|spec| spec.tolerations.retain(|held| *held != t2));
    let other = other.toleration(pb::Toleration { effect: String::new(), ..t2.clone() });
    api.expect_error(api.update(other)).await.is_invalid(&["spec.tolerations"]);

    let longer = more.clone().spec(|spec| {
        for held in spec.tolerations.iter_mut().filter(|held| held.key == "t1") {
            held.toleration_seconds = Some(600);
        }
    });
    let longer = api.update(longer).await.unwrap();
    let t1 = longer.spec.unwrap().tolerations.into_iter().find(|held| held.key == "t1");
    assert_eq!(t1.unwrap().toleration_seconds, Some(600));
}

#[tokio::test]
async fn s028_a_toleration_that_contradicts_itself_is_refused() {
    let store = TestStore::start().await;
    let api = store.api();
    let toleration = |key: &str, operator: &str, value: &str, effect: &str, seconds| pb::Toleration {
        key: key.to_owned(),
        operator: operator.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
        toleration_seconds: seconds,
    };
    for (bad, field) in [
        (toleration("", "Equal", "", "", None), "operator"),
        (toleration("", "", "", "", None), "operator"),
        (toleration("a", "Exists", "x", "", None), "value"),
        (toleration("a", "Exists", "", "NoSchedule", Some(5)), "effect"),
        (toleration("a", "Gt", "5", "", None), "operator"),
        (toleration("a", "Exists", "", "NoRun", None), "effect"),
        (toleration("/a", "Exists", "", "", None), "key"),
    ] {
        let error = api.expect_error(api.create(pod("bad").toleration(bad))).await;
        error.is(Code::InvalidArgument, "INVALID");
        let expected = format!("spec.tolerations[0].{field}");
        assert!(error.fields.contains(&expected), "{expected} is not in {error:?}");
    }
    let all = toleration("", "Exists", "", "", None);
    let created = api.create(pod("good").toleration(all.clone())).await.unwrap();
    assert_eq!(created.spec.unwrap().tolerations, [all]);
}

/// The tolerations of a pod as `key operator effect for seconds`.
fn tolerated(pod: &pb::Pod) -> Vec<String> {
    let tolerations = pod.spec.iter().flat_map(|spec| &spec.tolerations);
    let mut texts: Vec<_> = tolerations
        .map(|held| {
            let pb::Toleration { key, operator, effect, .. } = held;
            let time = held.toleration_seconds.map_or("ever".to_owned(), |seconds| seconds.to_string());
            format!("{key} {operator} {effect} for {time}")
        })
        .collect();
    texts.sort();
    texts
}

#[tokio::test]
async fn s107_a_pod_without_tolerations_tolerates_unhealthy_nodes_for_five_minutes() {
    let store = TestStore::start().await;
    let api = store.api();
    let default = |key: &str| format!("{key} Exists NoExecute for 300");
    let plain = api.create(pod("plain")).await.unwrap();
    assert_eq!(tolerated(&plain), [default(NOT_READY), default(UNREACHABLE)]);

    let own = pb::Toleration { toleration_seconds: Some(7), ..tolerates(NOT_READY, "NoExecute") };
    let own = api.create(pod("own").toleration(own)).await.unwrap();
    assert_eq!(tolerated(&own), [format!("{NOT_READY} Exists NoExecute for 7"), default(UNREACHABLE)]);

    let all = api.create(pod("all").toleration(tolerates("", ""))).await.unwrap();
    assert_eq!(tolerated(&all), [" Exists  for ever"]);
}

#[tokio::test]
async fn s108_a_toleration_of_all_effects_replaces_the_default_and_one_of_another_effect_does_not() {
    let store = TestStore::start().await;
    let api = store.api();
    let default = |key: &str| format!("{key} Exists NoExecute for 300");
    let every = api.create(pod("every").toleration(tolerates(NOT_READY, ""))).await.unwrap();
    assert_eq!(tolerated(&every), [format!("{NOT_READY} Exists  for ever"), default(UNREACHABLE)]);

    let other = api.create(pod("other").toleration(tolerates(NOT_READY, "NoSchedule"))).await.unwrap();
    let expected =
        [default(NOT_READY), format!("{NOT_READY} Exists NoSchedule for ever"), default(UNREACHABLE)];
    assert_eq!(tolerated(&other), expected);
}

#[tokio::test]
async fn s107_operators_can_set_other_defaults() {
    let flags = ["--default-not-ready-toleration-seconds=5", "--default-unreachable-toleration-seconds=0"];
    let store = TestStore::with_flags(&flags).await;
    let plain = store.api().create(pod("plain")).await.unwrap();
    let expected =
        [format!("{NOT_READY} Exists NoExecute for 5"), format!("{UNREACHABLE} Exists NoExecute for 0")];
    assert_eq!(tolerated(&plain), expected);
}

#[tokio::test]
async fn s120_a_daemonset_pod_tolerates_unhealthy_nodes_for_ever() {
    let store = TestStore::start().await;
    let api = store.api();
    let uid = "8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11";
    let daemon = api.create(pod("daemon").owned_by("DaemonSet", "agent", uid)).await.unwrap();
    let found = tolerated(&daemon);
    for (key, effect) in [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ] {
        let expected = format!("node.kubernetes.io/{key} Exists {effect} for ever");
        assert!(found.contains(&expected), "{expected} is not in {found:?}");
    }
    assert!(!found.iter().any(|held| held.ends_with(" 300")), "no toleration has a time: {found:?}");

    // An owner of another kind, or a DaemonSet that is not the controller, does not count.
    let owned = api.create(pod("owned").owned_by("ReplicaSet", "web", uid)).await.unwrap();
    assert_eq!(tolerated(&owned).len(), 2);
    let loose = pod("loose").owned_by("DaemonSet", "agent", uid);
    let loose = loose.with(|metadata| metadata.owner_references[0].controller = false);
    assert_eq!(tolerated(&api.create(loose).await.unwrap()).len(), 2);
}

#[tokio::test]
async fn s174_a_pod_is_bound_once_and_not_while_it_is_deleted() {
    let store = TestStore::start().await;
    let api = store.api();
    let bind = |path: &'static str, node: &'static str| {
        let api = api.clone();
        async move { api.bind(path, node, Deletion::default()).await }
    };
    let created = api.create(pod("p")).await.unwrap();

    let stale = Deletion { version: created.version() + 1, ..Default::default() };
    api.expect_error(api.bind("default/p", "n1", stale)).await.is(Code::Aborted, "CONFLICT");
    let other = Deletion { uid: "8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11".to_owned(), ..Default::default() };
    api.expect_error(api.bind("default/p", "n1", other)).await.is(Code::Aborted, "UID_MISMATCH");
    api.expect_error(bind("default/p", "")).await.is_invalid(&["nodeName"]);
    api.expect_error(bind("default/missing", "n1")).await.is(Code::NotFound, "NOT_FOUND");

    let bound = bind("default/p", "n1").await.unwrap();
    assert_eq!(bound.spec.as_ref().unwrap().node_name, "n1", "the node does not have to exist");
    let scheduled = &bound.status.as_ref().unwrap().conditions[0];
    assert_eq!((scheduled.r#type.as_str(), scheduled.status.as_str()), ("PodScheduled", "True"));
    for node in ["n1", "n2"] {
        api.expect_error(bind("default/p", node)).await.is(Code::Aborted, "CONFLICT").mentions("n1");
    }
    let moved = bound.clone().on("n2");
    api.expect_error(api.update(moved)).await.is_invalid(&["spec.nodeName"]);

    api.create(pod("leaving").finalizers(&["f"])).await.unwrap();
    api.delete::<pb::Pod>("default/leaving").await.unwrap();
    api.expect_error(bind("default/leaving", "n1"))
        .await
        .is(Code::Aborted, "CONFLICT")
        .mentions("being deleted");

    let gate = pb::PodSchedulingGate { name: "quota".to_owned() };
    let gated = api.create(pod("gated").spec(|spec| spec.scheduling_gates = vec![gate])).await.unwrap();
    api.expect_error(bind("default/gated", "n1")).await.is(Code::Aborted, "CONFLICT").mentions("quota");
    api.update(gated.spec(|spec| spec.scheduling_gates.clear())).await.unwrap();
    bind("default/gated", "n1").await.unwrap();
}

#[tokio::test]
async fn a_new_pod_is_pending_and_gets_its_qos_class() {
    let store = TestStore::start().await;
    let api = store.api();
    let resources = |limits: &[(&str, &str)], requests: &[(&str, &str)]| {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, quantity)| ((*name).to_owned(), (*quantity).to_owned())).collect()
        };
        Some(pb::ResourceRequirements { limits: map(limits), requests: map(requests) })
    };
    let both = [("cpu", "1"), ("memory", "1Gi")];
    for (name, given, expected) in [
        ("best", None, "BestEffort"),
        ("burst", resources(&[], &both), "Burstable"),
        ("sure", resources(&both, &[]), "Guaranteed"),
    ] {
        let wanted = pod(name).running("True").spec(|spec| spec.containers[0].resources = given);
        let created = api.create(wanted).await.unwrap();
        let status = created.status.unwrap();
        assert_eq!((status.phase.as_str(), status.qos_class.as_str()), ("Pending", expected), "{name}");
        assert!(status.conditions.is_empty(), "the status in the request is ignored");
    }
}
