//! Evictions and disruption budgets (scenarios 30-34).

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_proto::pb;
use muster_tests::fixtures::*;
use muster_tests::{Api, Deletion, Resource, TestStore, WatchQuery};
use std::time::Duration;
use tonic::Code;

const WEB: (&str, &str) = ("app", "web");

/// A running pod with the label `WEB`, with that status of its Ready condition.
async fn web(api: &Api, name: &str, ready: &str) -> pb::Pod {
    let created = api.create(pod(name).label(WEB.0, WEB.1).on("n1")).await.unwrap();
    api.update_status(created.running(ready)).await.unwrap()
}

async fn status(api: &Api, name: &str) -> pb::DisruptionBudgetStatus {
    api.get::<pb::DisruptionBudget>(&format!("default/{name}")).await.unwrap().status.unwrap()
}

/// Disruptions allowed, healthy pods, desired healthy pods and expected pods.
async fn counts(api: &Api, name: &str) -> [i32; 4] {
    let status = status(api, name).await;
    [status.disruptions_allowed, status.current_healthy, status.desired_healthy, status.expected_pods]
}

/// Checks that the pod is being deleted and has the condition DisruptionTarget.
fn assert_evicted(pod: &pb::Pod) {
    assert!(pod.metadata.as_ref().unwrap().deletion_timestamp.is_some(), "{pod:?}");
    assert_disruption_target(pod);
}

fn assert_disruption_target(pod: &pb::Pod) {
    let conditions = &pod.status.as_ref().unwrap().conditions;
    let target = conditions.iter().find(|condition| condition.r#type == "DisruptionTarget");
    let target = target.unwrap_or_else(|| panic!("no DisruptionTarget: {conditions:?}"));
    assert_eq!((target.status.as_str(), target.reason.as_str()), ("True", "EvictionByEvictionAPI"));
}

#[tokio::test]
async fn s030_an_eviction_is_refused_when_the_budget_is_used_up() {
    let store = TestStore::start().await;
    let api = store.api();
    let (a, b) = (web(&api, "a", "True").await, web(&api, "b", "True").await);
    api.create(budget("both", WEB, "2")).await.unwrap();
    assert_eq!(counts(&api, "both").await, [0, 2, 2, 2]);
    let error = api.expect_error(api.evict("default/a")).await;
    error.is(Code::ResourceExhausted, "BUDGET_EXHAUSTED");
    error.mentions("DisruptionBudget default/both").mentions("needs 2 healthy, has 2");
    assert_eq!(error.retry_after, Some(Duration::ZERO));
    assert_eq!(api.get::<pb::Pod>("default/a").await.unwrap(), a);

    let relaxed = api.get::<pb::DisruptionBudget>("default/both").await.unwrap();
    let relaxed = api.update(with_min(relaxed, "1")).await.unwrap();
    assert_eq!(relaxed.metadata.unwrap().generation, 2);
    assert_eq!(relaxed.status.unwrap().observed_generation, 2, "the answer shows the new count");
    assert_eq!(counts(&api, "both").await, [1, 2, 1, 2]);

    let evicted = api.evict("default/a").await.unwrap();
    assert_evicted(&evicted);
    assert_eq!(
        evicted.metadata.as_ref().unwrap().deletion_grace_period_seconds,
        Some(30),
        "the pod's own grace"
    );
    assert_eq!(counts(&api, "both").await, [0, 1, 1, 2], "an evicted pod does not count as healthy");
    let error = api.expect_error(api.evict("default/b")).await;
    error.is(Code::ResourceExhausted, "BUDGET_EXHAUSTED");
    assert_eq!(api.get::<pb::Pod>("default/b").await.unwrap(), b);

    // Another pod replaces it: the budget is recomputed in the same commit.
    web(&api, "c", "True").await;
    assert_eq!(counts(&api, "both").await, [1, 2, 1, 3]);
    assert_evicted(&api.evict("default/b").await.unwrap());
}

fn with_min(budget: pb::DisruptionBudget, min_available: &str) -> pb::DisruptionBudget {
    let spec = pb::DisruptionBudgetSpec {
        min_available: min_available.to_owned(),
        max_unavailable: String::new(),
        ..budget.spec.unwrap_or_default()
    };
    pb::DisruptionBudget { spec: Some(spec), ..budget }
}

#[tokio::test]
async fn s031_pods_that_do_not_run_are_evicted_without_a_budget() {
    let store = TestStore::start().await;
    let api = store.api();
    for name in ["x", "y"] {
        web(&api, name, "True").await;
    }
    api.create(budget("both", WEB, "2")).await.unwrap();
    api.create(pod("pending").label(WEB.0, WEB.1).on("n1")).await.unwrap();
    for (name, phase) in [("failed", "Failed"), ("succeeded", "Succeeded")] {
        let created = api.create(pod(name).label(WEB.0, WEB.1).on("n1")).await.unwrap();
        api.update_status(created.phase(phase)).await.unwrap();
    }
    web(&api, "terminating", "True").await;
    let terminating = api.delete::<pb::Pod>("default/terminating").await.unwrap();
    let before = counts(&api, "both").await;
    assert_eq!(before, [0, 2, 2, 6]);

    let pending = api.evict("default/pending").await.unwrap();
    assert_evicted(&pending);
    for name in ["failed", "succeeded"] {
        assert_disruption_target(&api.evict(&format!("default/{name}")).await.unwrap());
        let gone = api.expect_error(api.get::<pb::Pod>(&format!("default/{name}"))).await;
        gone.is(Code::NotFound, "NOT_FOUND");
    }
    let evicted = api.evict("default/terminating").await.unwrap();
    assert_evicted(&evicted);
    assert_eq!(
        evicted.metadata.unwrap().deletion_timestamp,
        terminating.metadata.unwrap().deletion_timestamp,
        "its deadline is unchanged"
    );
    assert_eq!(counts(&api, "both").await[..3], before[..3], "no budget was used");
}

#[tokio::test]
async fn s032_a_pod_in_two_budgets_is_not_evicted() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = web(&api, "a", "True").await;
    api.create(budget("one", WEB, "0")).await.unwrap();
    api.create(budget("two", ("app", "web"), "0")).await.unwrap();
    let error = api.expect_error(api.evict("default/a")).await;
    error.is(Code::Internal, "SEVERAL_BUDGETS").mentions("one, two");
    assert_eq!(api.get::<pb::Pod>("default/a").await.unwrap(), created);
    assert_eq!(counts(&api, "one").await, [1, 1, 0, 1]);

    api.delete::<pb::DisruptionBudget>("default/two").await.unwrap();
    assert_evicted(&api.evict("default/a").await.unwrap());
}

#[tokio::test]
async fn s033_a_pod_that_is_not_ready_can_be_evicted_while_enough_others_are_healthy() {
    let store = TestStore::start().await;
    let api = store.api();
    for (name, ready) in [("a", "True"), ("b", "True"), ("sick", "False")] {
        web(&api, name, ready).await;
    }
    api.create(budget("both", WEB, "2")).await.unwrap();
    assert_eq!(counts(&api, "both").await, [0, 2, 2, 3]);
    assert_evicted(&api.evict("default/sick").await.unwrap());
    assert_eq!(counts(&api, "both").await, [0, 2, 2, 3], "no budget was used");
    api.delete_with::<pb::Pod>("default/sick", Deletion { grace: Some(0), ..Default::default() })
        .await
        .unwrap();

    let b = api.get::<pb::Pod>("default/b").await.unwrap();
    api.update_status(b.running("False")).await.unwrap();
    assert_eq!(counts(&api, "both").await, [0, 1, 2, 2]);
    let error = api.expect_error(api.evict("default/b")).await;
    error.is(Code::ResourceExhausted, "BUDGET_EXHAUSTED").mentions("needs 2 healthy, has 1");

    let mut lenient = api.get::<pb::DisruptionBudget>("default/both").await.unwrap();
    lenient.spec.as_mut().unwrap().unhealthy_pod_eviction_policy = "AlwaysAllow".to_owned();
    api.update(lenient).await.unwrap();
    assert_evicted(&api.evict("default/b").await.unwrap());
}

#[tokio::test]
async fn s034_a_dry_run_checks_everything_and_writes_nothing() {
    let store = TestStore::start().await;
    let api = store.api();
    let (a, b) = (web(&api, "a", "True").await, web(&api, "b", "True").await);
    let created = api.create(budget("one", WEB, "1")).await.unwrap();
    assert_eq!(created.status.as_ref().unwrap().disruptions_allowed, 1);

    for path in ["default/a", "default/b", "default/a"] {
        let shown = api.without_a_write(api.evict_with(path, Deletion::default(), true)).await;
        assert_evicted(&shown);
    }
    assert_eq!(api.get::<pb::DisruptionBudget>("default/one").await.unwrap(), created);
    assert_eq!(api.get::<pb::Pod>("default/a").await.unwrap(), a);
    assert_eq!(api.get::<pb::Pod>("default/b").await.unwrap(), b);

    api.evict("default/a").await.unwrap();
    let error = api.expect_error(api.evict_with("default/b", Deletion::default(), true)).await;
    error.is(Code::ResourceExhausted, "BUDGET_EXHAUSTED");
    let error = api.expect_error(api.evict_with("default/missing", Deletion::default(), true)).await;
    error.is(Code::NotFound, "NOT_FOUND");
}

#[tokio::test]
async fn an_eviction_uses_its_options_and_sends_watch_events() {
    let store = TestStore::start().await;
    let api = store.api();
    let a = web(&api, "a", "True").await;
    api.create(budget("none", WEB, "0")).await.unwrap();
    let mut pods =
        api.watch::<pb::Pod>(WatchQuery { version: a.version(), ..Default::default() }).await.unwrap();
    let head = api.revision().await;
    let mut budgets =
        api.watch::<pb::DisruptionBudget>(WatchQuery { version: head, ..Default::default() }).await.unwrap();

    let stale = Deletion { version: a.version() + 1, ..Default::default() };
    api.expect_error(api.evict_with("default/a", stale, false)).await.is(Code::Aborted, "CONFLICT");
    let soon = Deletion { uid: a.uid().to_owned(), version: a.version(), grace: Some(3) };
    let evicted = api.evict_with("default/a", soon, false).await.unwrap();
    assert_eq!(evicted.metadata.as_ref().unwrap().deletion_grace_period_seconds, Some(3));

    assert_eq!(pods.summaries(1).await, [format!("MODIFIED a {}", evicted.version())]);
    let counted = budgets.next().await;
    assert_eq!(counted.kind, "MODIFIED");
    assert_eq!(counted.record.status.unwrap().current_healthy, 0);
}

#[tokio::test]
async fn budgets_round_percentages_up_and_count_only_their_own_pods() {
    let store = TestStore::start().await;
    let api = store.api();
    for name in ["a", "b", "c"] {
        web(&api, name, "True").await;
    }
    web(&api, "sick", "False").await;
    let other = api.create(pod("other").label("app", "db").on("n1")).await.unwrap();
    api.update_status(other.running("True")).await.unwrap();
    let elsewhere = api.create(pod("a").in_namespace("other").label(WEB.0, WEB.1)).await.unwrap();
    api.update_status(elsewhere.running("True")).await.unwrap();

    // 3 of 4 pods are healthy: 50 % of 4 is 2; 60 % is 2.4, rounded up to 3.
    for (min, expected) in [("50%", [1, 3, 2, 4]), ("60%", [0, 3, 3, 4]), ("0", [3, 3, 0, 4])] {
        let held = api.create(budget("some", WEB, min)).await.unwrap();
        assert_eq!(counts(&api, "some").await, expected, "minAvailable {min}");
        api.delete::<pb::DisruptionBudget>(&format!("default/{}", held.name())).await.unwrap();
    }
    let mut away = budget("some", WEB, "");
    away.spec.as_mut().unwrap().max_unavailable = "30%".to_owned();
    api.create(away).await.unwrap();
    assert_eq!(counts(&api, "some").await, [1, 3, 2, 4], "30 % of 4 is 1.2, so 2 may be unavailable");

    let mut all = budget("all", WEB, "1");
    all.spec.as_mut().unwrap().selector = None;
    api.create(all).await.unwrap();
    assert_eq!(counts(&api, "all").await, [3, 4, 1, 5], "an empty selector means the whole namespace");

    let mut both = budget("bad", WEB, "1");
    both.spec.as_mut().unwrap().max_unavailable = "1".to_owned();
    api.expect_error(api.create(both)).await.is_invalid(&["spec.maxUnavailable"]);
    api.expect_error(api.create(budget("bad", WEB, ""))).await.is_invalid(&["spec.minAvailable"]);
    for bad in ["-1", "101x", "x%"] {
        api.expect_error(api.create(budget("bad", WEB, bad))).await.is_invalid(&["spec.minAvailable"]);
    }
}
