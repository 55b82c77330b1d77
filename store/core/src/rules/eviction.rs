//! Eviction: a deletion that asks the pod's disruption budget first.
//!
//! Budgets are current to the transaction, so a granted eviction needs no ledger of its own: the pod it
//! marks stops counting as healthy in the same commit, and the next one sees the smaller number.

use muster_proto::budget::{DisruptionBudget, UnhealthyPodEvictionPolicy};
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::pod::{Pod, PodCondition, PodPhase};

use super::budget::budget_selects;
use super::common::{check_preconditions, existing};
use super::pod::delete_with_grace;
use super::{Context, Outcome, PodDeletion, RecordId, Refusal};

#[cfg(test)]
mod tests;

/// The reason an evicted pod's DisruptionTarget condition carries.
const REASON: &str = "EvictionByEvictionAPI";

/// What an eviction makes of the pod, given the budgets of its namespace as they stand.
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
        // A pod that was ending anyway still gets its mark.
        Outcome::Unchanged(marked) if marked != *pod => Ok(Outcome::Store(marked)),
        outcome => Ok(outcome),
    }
}

/// Whether budgets have a say: not over a pod that does not run yet, has ended, or is ending.
fn is_protected(pod: &Pod) -> bool {
    match pod.status.phase {
        PodPhase::Pending | PodPhase::Succeeded | PodPhase::Failed => false,
        PodPhase::Running | PodPhase::Unknown => !pod.meta.is_deleting(),
    }
}

/// Whether the budget can spare the pod.
fn check_budget(pod: &Pod, budget: &DisruptionBudget) -> Result<(), Refusal> {
    let status = &budget.status;
    if !pod.is_ready() {
        // It is not among the healthy ones, so its going takes nothing away from them.
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
