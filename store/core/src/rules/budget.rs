//! Rules for disruption budgets, and a budget's status from the counts of its pods.
//!
//! Only the store writes the status: the writer updates it in the same commit as the pods, so no request can set it and
//! no reader sees it lag.

use muster_proto::budget::{DisruptionBudget, DisruptionBudgetSpec, DisruptionBudgetStatus, DisruptionLimit};
use muster_proto::pod::Pod;

use super::{Context, DeletedWithoutGrace, Rules};

#[cfg(test)]
mod tests;

impl Rules for DisruptionBudget {
    fn prepare_create(&mut self, _cx: &Context) {
        self.meta.generation = 1;
        self.status = DisruptionBudgetStatus::default();
    }

    fn prepare_update(&mut self, old: &Self, _cx: &Context) {
        self.status.clone_from(&old.status);
        if self.spec != old.spec {
            self.meta.generation += 1;
        }
    }
}

impl DeletedWithoutGrace for DisruptionBudget {}

/// Whether the budget protects the pod: same namespace, and its selector matches.
pub fn budget_selects(budget: &DisruptionBudget, pod: &Pod) -> bool {
    budget.meta.namespace == pod.meta.namespace && budget.spec.selector.matches(&pod.meta.labels)
}

/// Whether the pod is Ready and not being deleted.
pub fn counts_as_healthy(pod: &Pod) -> bool {
    pod.is_ready() && !pod.meta.is_deleting()
}

/// The status of a budget that selects `expected` pods, of which `healthy` are healthy.
///
/// Without pods no disruption is allowed, since no pod is healthy.
pub fn budget_status(
    spec: &DisruptionBudgetSpec,
    expected: u32,
    healthy: u32,
    generation: i64,
) -> DisruptionBudgetStatus {
    let desired = match spec.limit {
        DisruptionLimit::MinAvailable(limit) => limit.scaled(expected),
        DisruptionLimit::MaxUnavailable(limit) => expected.saturating_sub(limit.scaled(expected)),
    };
    let allowed = healthy.saturating_sub(desired);
    let counted = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    DisruptionBudgetStatus {
        disruptions_allowed: counted(allowed),
        current_healthy: counted(healthy),
        desired_healthy: counted(desired),
        expected_pods: counted(expected),
        disrupted_pods: Default::default(),
        observed_generation: generation,
    }
}
