use muster_proto::pod::PodPhase;

use super::super::super::fixtures::*;
use super::super::super::{Preconditions, create, update};
use super::*;

/// A deletion `seconds` after the start with this grace.
fn delete_at(seconds: i64, pod: &Pod, grace: Option<i64>) -> Outcome<Pod> {
    let deletion = PodDeletion { grace_period_seconds: grace, ..PodDeletion::default() };
    delete_pod(&RecordId::of(pod), Some(pod), &deletion, &at(seconds)).unwrap()
}

fn deleting(outcome: Outcome<Pod>) -> Pod {
    match outcome {
        Outcome::Store(pod) => pod,
        other => panic!("expected the pod to stay for now: {other:?}"),
    }
}

/// Deadline, in seconds after the start, and grace.
fn deadline(pod: &Pod) -> (i64, i64) {
    let deadline = pod.meta.deletion_timestamp.expect("the pod is being deleted");
    (
        deadline.duration_since(t0()).as_secs(),
        pod.meta.deletion_grace_period_seconds.expect("the pod has a grace period"),
    )
}

#[test]
fn s024_a_grace_period_can_be_shortened_but_not_extended() {
    let pod = ready_pod("web-0");
    let first = deleting(delete_at(0, &pod, None));
    assert_eq!(deadline(&first), (30, 30));
    assert_eq!(first.meta.generation, 2);

    let shorter = deleting(delete_at(4, &first, Some(10)));
    assert_eq!(deadline(&shorter), (10, 10), "counted from the first request");
    assert_eq!(shorter.meta.generation, 2);

    for grace in [Some(60), Some(10), None] {
        assert_eq!(delete_at(6, &shorter, grace), Outcome::Unchanged(shorter.clone()), "{grace:?}");
    }
    // The pod stays until its agent confirms that the containers have stopped, however late.
    assert_eq!(delete_at(90, &first, None), Outcome::Unchanged(first.clone()));
    assert_eq!(delete_at(90, &first, Some(0)), Outcome::Remove(first));
}

#[test]
fn s024_a_grace_period_that_is_over_already_becomes_one_second() {
    let first = deleting(delete_at(0, &ready_pod("web-0"), None));
    let late = deleting(delete_at(20, &first, Some(10)));
    assert_eq!(deadline(&late), (20, 1));
    assert_eq!(delete_at(21, &late, Some(5)), Outcome::Unchanged(late.clone()));
    assert_eq!(delete_at(21, &late, Some(0)), Outcome::Remove(late));
}

#[test]
fn s024_the_requested_grace_comes_before_the_pods_own() {
    for (own, requested, expected) in [
        (Some(30), None, Some(30)),
        (Some(30), Some(5), Some(5)),
        (Some(30), Some(90), Some(90)),
        (Some(30), Some(0), None),
        (Some(0), None, None),
        (Some(0), Some(5), Some(5)),
        (None, None, None),
    ] {
        let mut pod = ready_pod("web-0");
        pod.spec.termination_grace_period_seconds = own;
        let outcome = delete_at(0, &pod, requested);
        match expected {
            Some(grace) => assert_eq!(deadline(&deleting(outcome)), (grace, grace), "{own:?} {requested:?}"),
            None => assert_eq!(outcome, Outcome::Remove(pod), "{own:?} {requested:?}"),
        }
    }
}

#[test]
fn s025_a_pod_that_does_not_run_is_removed_at_once() {
    let unscheduled = stored(create(None, pod("web-0"), &at(0)));
    let mut failed = ready_pod("web-0");
    failed.status.phase = PodPhase::Failed;
    let mut succeeded = ready_pod("web-0");
    succeeded.status.phase = PodPhase::Succeeded;
    for pod in [unscheduled, failed, succeeded] {
        for grace in [None, Some(30), Some(-5)] {
            assert_eq!(delete_at(0, &pod, grace), Outcome::Remove(pod.clone()), "{grace:?}");
        }
    }
    let mut pending = ready_pod("web-0");
    pending.status.phase = PodPhase::Pending;
    assert_eq!(deadline(&deleting(delete_at(0, &pending, None))), (30, 30), "it may be starting");
}

#[test]
fn s026_a_negative_grace_is_one_second() {
    let pod = ready_pod("web-0");
    assert_eq!(deadline(&deleting(delete_at(0, &pod, Some(-5)))), (1, 1));
    let first = deleting(delete_at(0, &pod, None));
    assert_eq!(deadline(&deleting(delete_at(0, &first, Some(-5)))), (1, 1));
}

#[test]
fn s026_a_deletion_is_refused_unless_its_preconditions_hold() {
    let pod = ready_pod("web-0");
    let key = RecordId::of(&pod);
    let with = |preconditions| {
        let deletion = PodDeletion { preconditions, grace_period_seconds: Some(0) };
        delete_pod(&key, Some(&pod), &deletion, &at(0))
    };
    let mismatch = Refusal::UidMismatch { key: key.clone(), expected: uid(2), found: Some(uid(1)) };
    assert_eq!(with(Preconditions { uid: Some(uid(2)), resource_version: None }), Err(mismatch));
    let stale = Refusal::Stale { key: key.clone(), expected: 6, found: 7 };
    assert_eq!(with(Preconditions { uid: None, resource_version: Some(6) }), Err(stale));
    assert_eq!(
        with(Preconditions { uid: Some(uid(1)), resource_version: Some(7) }),
        Ok(Outcome::Remove(pod.clone()))
    );
    let missing = delete_pod(&key, None, &PodDeletion::default(), &at(0));
    assert_eq!(missing, Err(Refusal::NotFound { key: key.clone() }));
}

#[test]
fn s023_a_pod_is_removed_when_grace_and_finalizers_are_both_over() {
    let mut pod = ready_pod("web-0");
    pod.meta.finalizers = vec!["f".into()];
    let without = |pod: &Pod| {
        let mut pod = pod.clone();
        pod.meta.finalizers.clear();
        pod
    };

    // The grace first, then the finalizer.
    let stopped = deleting(delete_at(0, &pod, Some(0)));
    assert_eq!(deadline(&stopped), (0, 0));
    assert_eq!(stopped.meta.generation, 2);
    assert_eq!(delete_at(1, &stopped, Some(0)), Outcome::Unchanged(stopped.clone()));
    let last = without(&stopped);
    assert_eq!(update(Some(&stopped), last.clone(), &at(2)), Ok(Outcome::Remove(last)));

    // The finalizer first, then the grace.
    let running = deleting(delete_at(0, &pod, None));
    let last = without(&running);
    assert_eq!(update(Some(&running), last.clone(), &at(1)), Ok(Outcome::Store(last.clone())));
    assert_eq!(delete_at(2, &last, Some(0)), Outcome::Remove(last));

    // The grace is shortened while the finalizer remains.
    let stopped = deleting(delete_at(3, &running, Some(0)));
    assert_eq!(deadline(&stopped), (3, 0));
}

#[test]
fn a_grace_beyond_the_last_timestamp_can_still_be_shortened() {
    let first = deleting(delete_at(0, &ready_pod("web-0"), Some(i64::MAX)));
    assert!(first.meta.deletion_timestamp.unwrap() <= Timestamp::MAX);
    assert_eq!(deadline(&deleting(delete_at(5, &first, Some(10)))), (10, 10));
}
