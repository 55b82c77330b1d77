//! Eviction: a deletion that the pod's disruption budget must allow.
//!
//! Budget statuses are current within the commit: an evicted pod stops counting as healthy at once, and the next
//! eviction sees the smaller number. So evictions under way need not be tracked.

use muster_proto::budget::{DisruptionBudget, UnhealthyPodEvictionPolicy};
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::pod::{Pod, PodCondition, PodPhase};

use super::budget::budget_selects;
use super::common::{check_preconditions, existing};
use super::pod::delete_with_grace;
use super::{Context, Outcome, PodDeletion, RecordId, Refusal};

#[cfg(test)]
mod tests;

/// The reason of an evicted pod's DisruptionTarget condition.
const REASON: &str = "EvictionByEvictionAPI";

/// The outcome of an eviction, given the budgets of the pod's namespace with current statuses.
pub fn evict<'a>(
    key: &RecordId,
    current: Option<&Pod>,
    budgets: impl IntoIterator<Item = &'a DisruptionBudget>,
    deletion: &PodDeletion,
    cx: &Context,
) -> Result<Outcome<Pod>, Refusal> {
    let pod = existing(key, current)?;
    check_preconditions(pod, &deletion.preconditions)?;
    if is_protected(pod) {
        let selecting: Vec<_> = budgets.into_iter().filter(|budget| budget_selects(budget, pod)).collect();
        match selecting[..] {
            [] => {}
            [budget] => check_budget(pod, budget)?,
            _ => {
                let budgets = selecting.into_iter().map(|budget| budget.meta.name.clone()).collect();
                return Err(Refusal::SeveralBudgets { key: key.clone(), budgets });
            }
        }
    }
    let mut marked = pod.clone();
    let target = PodCondition {
        kind: types::DISRUPTION_TARGET.to_owned(),
        status: ConditionStatus::True,
        reason: REASON.to_owned(),
        message: "the pod was evicted through the API".to_owned(),
        last_probe_time: None,
        last_transition_time: Some(cx.now),
    };
    marked.status.set_condition(target);
    match delete_with_grace(marked, deletion.grace_period_seconds, cx) {
        // A pod that is being deleted already still gets the condition.
        Outcome::Unchanged(marked) if marked != *pod => Ok(Outcome::Store(marked)),
        outcome => Ok(outcome),
    }
}

/// Whether a budget must allow the eviction: not for a pod that is pending, finished, or being deleted.
fn is_protected(pod: &Pod) -> bool {
    match pod.status.phase {
        PodPhase::Pending | PodPhase::Succeeded | PodPhase::Failed => false,
        PodPhase::Running | PodPhase::Unknown => !pod.meta.is_deleting(),
    }
}

/// Refuses when the budget does not allow another disruption.
fn check_budget(pod: &Pod, budget: &DisruptionBudget) -> Result<(), Refusal> {
    let status = &budget.status;
    if !pod.is_ready() {
        // The pod is not counted as healthy, so evicting it does not lower the healthy count.
        let enough = status.desired_healthy > 0 && status.current_healthy >= status.desired_healthy;
        let always = budget.spec.unhealthy_pod_eviction_policy == UnhealthyPodEvictionPolicy::AlwaysAllow;
        if always || enough {
            return Ok(());
        }
    }
    match status.disruptions_allowed {
        1.. => Ok(()),
        0 => Err(Refusal::BudgetExhausted {
            key: RecordId::of(pod),
            budget: RecordId::of(budget),
            needed: status.desired_healthy,
            healthy: status.current_healthy,
            retry_after_seconds: 0,
        }),
        _ => Err(Refusal::Denied {
            key: RecordId::of(pod),
            why: format!("cannot be evicted: the status of {} is damaged", RecordId::of(budget)),
        }),
    }
}
