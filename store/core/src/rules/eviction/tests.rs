use muster_proto::budget::DisruptionLimit;
use muster_proto::percent::IntOrPercent;

use super::super::fixtures::*;
use super::super::{Preconditions, budget_status, counts_as_healthy};
use super::*;

/// A budget over the pods, with the status that the writer would give it.
fn budget_over(name: &str, min_available: u32, pods: &[Pod]) -> DisruptionBudget {
    let mut budget = budget(name, DisruptionLimit::MinAvailable(IntOrPercent::Int(min_available)));
    let healthy = pods.iter().filter(|pod| counts_as_healthy(pod)).count();
    budget.status = budget_status(&budget.spec, pods.len() as u32, healthy as u32, 1);
    budget
}

fn evict_now(pod: &Pod, budgets: &[DisruptionBudget]) -> Result<Outcome<Pod>, Refusal> {
    evict(&RecordId::of(pod), Some(pod), budgets, &PodDeletion::default(), &at(10))
}

fn not_ready(name: &str) -> Pod {
    let mut pod = ready_pod(name);
    set_ready(&mut pod, ConditionStatus::False);
    pod
}

/// Checks that the pod has the DisruptionTarget condition, and returns it.
fn marked(outcome: Result<Outcome<Pod>, Refusal>) -> Pod {
    let Ok(Outcome::Store(pod) | Outcome::Remove(pod)) = outcome else { panic!("{outcome:?}") };
    let target = pod.condition(types::DISRUPTION_TARGET).expect("the condition is set");
    assert_eq!((target.status, target.reason.as_str()), (ConditionStatus::True, "EvictionByEvictionAPI"));
    pod
}

#[test]
fn s030_an_eviction_that_the_budget_does_not_allow_is_refused() {
    let pods = [ready_pod("web-0"), ready_pod("web-1")];
    let refusal = evict_now(&pods[0], &[budget_over("web", 2, &pods)]).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "Pod default/web-0 cannot be evicted: DisruptionBudget default/web needs 2 healthy, has 2"
    );
    assert!(matches!(refusal, Refusal::BudgetExhausted { retry_after_seconds: 0, .. }), "{refusal:?}");
}

#[test]
fn s030_an_allowed_eviction_uses_the_budget() {
    let mut pods = [ready_pod("web-0"), ready_pod("web-1")];
    let Ok(Outcome::Store(evicted)) = evict_now(&pods[0], &[budget_over("web", 1, &pods)]) else {
        panic!("the budget allows one disruption")
    };
    assert_eq!(evicted.meta.deletion_timestamp, Some(after(40)));
    assert_eq!(evicted.meta.deletion_grace_period_seconds, Some(30));
    assert_eq!(evicted.meta.generation, 2);
    pods[0] = marked(Ok(Outcome::Store(evicted)));
    let refusal = evict_now(&pods[1], &[budget_over("web", 1, &pods)]).unwrap_err();
    assert!(matches!(refusal, Refusal::BudgetExhausted { needed: 1, healthy: 1, .. }), "{refusal}");
}

#[test]
fn s031_budgets_do_not_protect_pods_that_do_not_run() {
    let others = [ready_pod("web-0"), ready_pod("web-1")];
    let full = [budget_over("web", 2, &others)];
    for (phase, removed) in
        [(PodPhase::Pending, false), (PodPhase::Succeeded, true), (PodPhase::Failed, true)]
    {
        let mut pod = ready_pod("web-2");
        pod.status.phase = phase;
        let outcome = evict_now(&pod, &full);
        assert_eq!(matches!(outcome, Ok(Outcome::Remove(_))), removed, "{phase}");
        marked(outcome);
    }
    for phase in [PodPhase::Running, PodPhase::Unknown] {
        let mut pod = ready_pod("web-2");
        pod.status.phase = phase;
        assert!(evict_now(&pod, &full).is_err(), "{phase}");
    }
}

#[test]
fn s031_a_pod_being_deleted_gets_the_condition_and_keeps_its_deadline() {
    let others = [ready_pod("web-0"), ready_pod("web-1")];
    let full = [budget_over("web", 2, &others)];
    let mut pod = ready_pod("web-2");
    pod.meta.deletion_timestamp = Some(after(30));
    pod.meta.deletion_grace_period_seconds = Some(30);
    let first = marked(evict_now(&pod, &full));
    assert_eq!(first.meta, pod.meta);
    assert_eq!(evict_now(&first, &full), Ok(Outcome::Unchanged(first.clone())));
}

#[test]
fn s032_a_pod_in_several_budgets_is_not_evicted() {
    let pods = [ready_pod("web-0"), ready_pod("web-1")];
    let budgets = [budget_over("a", 0, &pods), budget_over("b", 0, &pods)];
    let refusal = evict_now(&pods[0], &budgets).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "Pod default/web-0 cannot be evicted: it may be in one disruption budget only, and is in a, b"
    );
    assert!(matches!(refusal, Refusal::SeveralBudgets { .. }));
    let mut elsewhere = budgets.clone();
    elsewhere[1].spec.selector = "app=db".parse().unwrap();
    marked(evict_now(&pods[0], &elsewhere));
    marked(evict_now(&pods[0], &[]));
}

#[test]
fn s033_an_unready_pod_is_evicted_while_enough_others_are_healthy() {
    use UnhealthyPodEvictionPolicy::{AlwaysAllow, IfHealthyBudget};
    for (healthy, desired, policy, allowed) in [
        (2, 2, IfHealthyBudget, true),
        (1, 2, IfHealthyBudget, false),
        (1, 2, AlwaysAllow, true),
        // With nothing desired, the healthy count proves nothing.
        (0, 0, IfHealthyBudget, false),
        (0, 0, AlwaysAllow, true),
    ] {
        let mut pods = vec![not_ready("web-0")];
        pods.extend((0..healthy).map(|i| ready_pod(&format!("web-{}", i + 1))));
        let mut budget = budget_over("web", desired, &pods);
        budget.spec.unhealthy_pod_eviction_policy = policy;
        assert_eq!(budget.status.disruptions_allowed, 0);
        let result = evict_now(&pods[0], &[budget]);
        assert_eq!(result.is_ok(), allowed, "{healthy} of {desired}, {policy}: {result:?}");
    }
}

#[test]
fn a_damaged_budget_allows_no_eviction() {
    let pods = [ready_pod("web-0")];
    let mut budget = budget_over("web", 0, &pods);
    budget.status.disruptions_allowed = -1;
    let refusal = evict_now(&pods[0], &[budget]).unwrap_err();
    assert!(matches!(refusal, Refusal::Denied { .. }), "{refusal}");
}

#[test]
fn preconditions_are_checked_before_budgets() {
    let pods = [ready_pod("web-0")];
    let full = [budget_over("web", 1, &pods)];
    let preconditions = Preconditions { uid: Some(uid(2)), resource_version: None };
    let deletion = PodDeletion { preconditions, grace_period_seconds: None };
    let key = RecordId::of(&pods[0]);
    let refusal = evict(&key, Some(&pods[0]), &full, &deletion, &at(10)).unwrap_err();
    assert!(matches!(refusal, Refusal::UidMismatch { .. }), "{refusal}");
    let missing = evict(&key, None, &full, &deletion, &at(10)).unwrap_err();
    assert_eq!(missing, Refusal::NotFound { key });
}

#[test]
fn s034_an_eviction_uses_the_requested_grace() {
    let pods = [ready_pod("web-0"), ready_pod("web-1")];
    let budgets = [budget_over("web", 1, &pods)];
    let key = RecordId::of(&pods[0]);
    for (seconds, grace) in [(0, None), (5, Some(5)), (-5, Some(1))] {
        let deletion = PodDeletion { grace_period_seconds: Some(seconds), ..PodDeletion::default() };
        let outcome = evict(&key, Some(&pods[0]), &budgets, &deletion, &at(10));
        assert_eq!(matches!(outcome, Ok(Outcome::Remove(_))), grace.is_none(), "{seconds}");
        assert_eq!(marked(outcome).meta.deletion_grace_period_seconds, grace, "{seconds}");
    }
}
