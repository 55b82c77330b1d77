//! Disruption budgets in a draft: keeps their pod counts and statuses current within the commit that changes the pods.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use muster_proto::budget::DisruptionBudget;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;

use super::{Draft, DraftRecord, decode};
use crate::error::DraftError;
use crate::indexes::{BudgetCounts, CountedPod};
use crate::namespaced_name::NamespacedName;
use crate::rules;

impl Draft<'_> {
    pub(super) fn count_pod(
        &mut self,
        key: &NamespacedName,
        was: Option<&DraftRecord>,
        is: Option<&Bytes>,
    ) -> Result<(), DraftError> {
        if !self.indexes.has_budgets(key.namespace()) {
            return Ok(());
        }
        let counted = |bytes: &Bytes| decode::<Pod>(key, bytes).map(|pod| CountedPod::of(&pod));
        let was = was.map(|was| counted(&was.record)).transpose()?.flatten();
        let is = is.map(counted).transpose()?.flatten();
        self.stale_budgets.extend(self.indexes.update_counts(key.namespace(), was.as_ref(), is.as_ref()));
        Ok(())
    }

    /// Sets the status of a budget that is about to be stored. Returns the counts it is made of, for the index.
    pub(super) fn set_budget_status(
        &self,
        key: &NamespacedName,
        budget: &mut DisruptionBudget,
    ) -> Result<BudgetCounts, DraftError> {
        let selector = &budget.spec.selector;
        let counts = match self.indexes.counts(key) {
            Some(counts) if counts.selector() == selector => counts.clone(),
            _ => {
                let pods = self.pods_in(key.namespace())?;
                BudgetCounts::of(selector.clone(), pods.iter().filter_map(CountedPod::of))
            }
        };
        let generation = budget.meta.generation;
        budget.status = rules::budget_status(&budget.spec, counts.expected, counts.healthy, generation);
        Ok(counts)
    }

    /// The pods of a namespace as of the batch so far. Called once for each new budget or selector, never for a pod.
    fn pods_in(&self, namespace: &str) -> Result<Vec<Pod>, DraftError> {
        let start = NamespacedName::start_of(namespace);
        let stored = self.memory.scan(Kind::Pod, Bound::Included(&start)).map(|(key, _)| key);
        let mut keys: BTreeSet<&NamespacedName> =
            stored.take_while(|key| key.namespace() == namespace).collect();
        let written =
            self.written.keys().filter(|(kind, key)| *kind == Kind::Pod && key.namespace() == namespace);
        keys.extend(written.map(|(_, key)| key));
        keys.into_iter().filter_map(|key| self.get_by_key::<Pod>(key).transpose()).collect()
    }

    /// The budgets of a namespace, with statuses that include the changes of the batch.
    pub fn budgets(&mut self, namespace: &str) -> Result<Vec<DisruptionBudget>, DraftError> {
        let keys: Vec<NamespacedName> = self.indexes.budgets(namespace).map(|(key, _)| key.clone()).collect();
        // All of them: a status that an earlier release wrote may count other pods than this one does.
        self.stale_budgets.extend(keys.iter().cloned());
        self.update_budget_statuses()?;
        keys.iter().filter_map(|key| self.get_by_key(key).transpose()).collect()
    }

    /// Updates the statuses of all stale budgets.
    pub fn update_budget_statuses(&mut self) -> Result<(), DraftError> {
        let updated =
            std::mem::take(&mut self.stale_budgets).into_iter().map(|key| self.update_budget_status(&key));
        // All are tried before the first error is returned: one broken budget must not block the others.
        updated.collect::<Vec<_>>().into_iter().collect()
    }

    fn update_budget_status(&mut self, key: &NamespacedName) -> Result<(), DraftError> {
        let Some(budget) = self.get_by_key::<DisruptionBudget>(key)? else { return Ok(()) };
        let mut updated = budget.clone();
        self.set_budget_status(key, &mut updated)?;
        if updated.status != budget.status {
            self.put(updated)?;
        }
        Ok(())
    }
}
