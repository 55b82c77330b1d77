use muster_proto::condition::ConditionStatus;
use muster_proto::percent::IntOrPercent;

use super::super::fixtures::*;
use super::super::{Outcome, create, update};
use super::*;

fn min_available(text: &str) -> DisruptionLimit {
    DisruptionLimit::MinAvailable(text.parse::<IntOrPercent>().unwrap())
}

fn max_unavailable(text: &str) -> DisruptionLimit {
    DisruptionLimit::MaxUnavailable(text.parse::<IntOrPercent>().unwrap())
}

#[test]
fn the_status_follows_from_the_limit_and_the_pods() {
    for (limit, expected, healthy, desired, allowed) in [
        (min_available("2"), 2, 2, 2, 0),
        (min_available("1"), 2, 2, 1, 1),
        (min_available("2"), 2, 1, 2, 0),
        (min_available("0"), 3, 3, 0, 3),
        // A minimum counts even when there are fewer pods.
        (min_available("5"), 3, 3, 5, 0),
        // Percentages are rounded up for both limits.
        (min_available("50%"), 3, 3, 2, 1),
        (max_unavailable("50%"), 3, 3, 1, 2),
        (max_unavailable("1"), 3, 3, 2, 1),
        (max_unavailable("1"), 3, 2, 2, 0),
        (max_unavailable("9"), 3, 1, 0, 1),
        (max_unavailable("100%"), 3, 0, 0, 0),
        // Without pods no disruption is allowed.
        (min_available("0"), 0, 0, 0, 0),
        (max_unavailable("3"), 0, 0, 0, 0),
    ] {
        let status = budget_status(&budget("web", limit).spec, expected, healthy, 4);
        assert_eq!(
            status,
            DisruptionBudgetStatus {
                disruptions_allowed: allowed,
                current_healthy: healthy as i32,
                desired_healthy: desired,
                expected_pods: expected as i32,
                disrupted_pods: Default::default(),
                observed_generation: 4,
            },
            "{limit:?} of {expected} pods, {healthy} healthy"
        );
    }
}

#[test]
fn counts_too_large_for_the_schema_are_capped() {
    let status = budget_status(&budget("web", min_available("0")).spec, u32::MAX, u32::MAX, 1);
    assert_eq!((status.expected_pods, status.disruptions_allowed), (i32::MAX, i32::MAX));
}

#[test]
fn a_pod_is_healthy_while_ready_and_not_being_deleted() {
    let mut pod = ready_pod("web-0");
    assert!(counts_as_healthy(&pod));
    pod.meta.deletion_timestamp = Some(t0());
    assert!(!counts_as_healthy(&pod), "it is being deleted");
    pod.meta.deletion_timestamp = None;
    for status in [ConditionStatus::False, ConditionStatus::Unknown] {
        set_ready(&mut pod, status);
        assert!(!counts_as_healthy(&pod), "Ready is {status}");
    }
    pod.status.conditions.clear();
    assert!(!counts_as_healthy(&pod), "it has no Ready condition");
}

#[test]
fn a_budget_selects_pods_of_its_own_namespace() {
    let mut budget = budget("web", min_available("1"));
    let mut pod = ready_pod("web-0");
    assert!(budget_selects(&budget, &pod));
    pod.meta.labels.insert("app".into(), "db".into());
    assert!(!budget_selects(&budget, &pod));
    budget.spec.selector = Default::default();
    assert!(budget_selects(&budget, &pod), "an empty selector means all pods");
    pod.meta.namespace = Some("other".parse().unwrap());
    assert!(!budget_selects(&budget, &pod));
}

#[test]
fn the_generation_counts_spec_changes_and_only_the_store_writes_status() {
    let mut wanted = budget("web", min_available("1"));
    wanted.meta.generation = 8;
    wanted.status.disruptions_allowed = 99;
    let mut current = stored(create(None, wanted, &at(0)));
    assert_eq!(current.meta.generation, 1);
    assert_eq!(current.status, DisruptionBudgetStatus::default());

    current.status = budget_status(&current.spec, 2, 2, 1);
    let mut wanted = current.clone();
    wanted.status.disruptions_allowed = 99;
    assert_eq!(update(Some(&current), wanted.clone(), &at(1)), Ok(Outcome::Unchanged(current.clone())));

    wanted.meta.labels.insert("a".into(), "b".into());
    let labelled = update(Some(&current), wanted.clone(), &at(1)).unwrap().into_record();
    assert_eq!(labelled.meta.generation, 1);

    wanted.spec.limit = min_available("2");
    let changed = update(Some(&current), wanted, &at(1)).unwrap().into_record();
    assert_eq!(changed.meta.generation, 2);
    assert_eq!(changed.status, current.status);
}
