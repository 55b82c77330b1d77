use muster_proto::condition::ConditionStatus;
use muster_proto::percent::IntOrPercent;

use super::super::fixtures::*;
use super::super::{Outcome, create, update};
use super::*;

fn at_least(text: &str) -> DisruptionLimit {
    DisruptionLimit::MinAvailable(text.parse::<IntOrPercent>().unwrap())
}

fn at_most_away(text: &str) -> DisruptionLimit {
    DisruptionLimit::MaxUnavailable(text.parse::<IntOrPercent>().unwrap())
}

#[test]
fn a_budget_comes_to_what_the_pods_allow() {
    for (limit, expected, healthy, desired, allowed) in [
        (at_least("2"), 2, 2, 2, 0),
        (at_least("1"), 2, 2, 1, 1),
        (at_least("2"), 2, 1, 2, 0),
        (at_least("0"), 3, 3, 0, 3),
        // A minimum stands even when there are fewer pods.
        (at_least("5"), 3, 3, 5, 0),
        // Shares are rounded up, both ways.
        (at_least("50%"), 3, 3, 2, 1),
        (at_most_away("50%"), 3, 3, 1, 2),
        (at_most_away("1"), 3, 3, 2, 1),
        (at_most_away("1"), 3, 2, 2, 0),
        (at_most_away("9"), 3, 1, 0, 1),
        (at_most_away("100%"), 3, 0, 0, 0),
        // Of no pods none can be spared.
        (at_least("0"), 0, 0, 0, 0),
        (at_most_away("3"), 0, 0, 0, 0),
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
fn counts_too_large_for_the_schema_stop_at_its_limit() {
    let status = budget_status(&budget("web", at_least("0")).spec, u32::MAX, u32::MAX, 1);
    assert_eq!((status.expected_pods, status.disruptions_allowed), (i32::MAX, i32::MAX));
}

#[test]
fn a_pod_counts_while_it_serves_and_stays() {
    let mut pod = ready_pod("web-0");
    assert!(counts_as_healthy(&pod));
    pod.meta.deletion_timestamp = Some(t0());
    assert!(!counts_as_healthy(&pod), "it is leaving");
    pod.meta.deletion_timestamp = None;
    for status in [ConditionStatus::False, ConditionStatus::Unknown] {
        set_ready(&mut pod, status);
        assert!(!counts_as_healthy(&pod), "Ready is {status}");
    }
    pod.status.conditions.clear();
    assert!(!counts_as_healthy(&pod), "it never said");
}

#[test]
fn a_budget_guards_the_pods_it_selects_in_its_own_namespace() {
    let mut budget = budget("web", at_least("1"));
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
fn a_generation_counts_changes_of_the_spec_and_status_is_the_stores() {
    let mut wanted = budget("web", at_least("1"));
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

    wanted.spec.limit = at_least("2");
    let changed = update(Some(&current), wanted, &at(1)).unwrap().into_record();
    assert_eq!(changed.meta.generation, 2);
    assert_eq!(changed.status, current.status);
}
