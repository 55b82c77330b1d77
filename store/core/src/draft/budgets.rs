//! Disruption budgets in a draft: counts of their pods, and the statuses that follow from them.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use muster_proto::budget::DisruptionBudget;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;

use super::{Draft, Pending, decode};
use crate::error::DraftError;
use crate::indexes::Counted;
use crate::namespaced_name::NamespacedName;
use crate::rules;

impl Draft<'_> {
    pub(super) fn count_pod(
        &mut self,
        key: &NamespacedName,
        was: Option<&Pending>,
        is: Option<&Bytes>,
    ) -> Result<(), DraftError> {
        if !self.indexes.has_budgets(key.namespace()) {
            return Ok(());
        }
        let counted = |bytes: &Bytes| decode::<Pod>(key, bytes).map(|pod| Counted::of(&pod));
        let was = was.map(|was| counted(&was.record)).transpose()?;
        let is = is.map(counted).transpose()?;
        self.unsettled.extend(self.indexes.count(key.namespace(), was.as_ref(), is.as_ref()));
        Ok(())
    }

    pub(super) fn index_budget(&mut self, key: &NamespacedName, bytes: &Bytes) -> Result<(), DraftError> {
        let budget: DisruptionBudget = decode(key, bytes)?;
        if !self.indexes.counts_by(key, &budget.spec.selector) {
            let pods: Vec<Counted> = self.pods_in(key.namespace())?.iter().map(Counted::of).collect();
            self.indexes.put_budget(key.clone(), budget.spec.selector, pods.into_iter());
        }
        self.unsettled.insert(key.clone());
        Ok(())
    }

    /// The pods of a namespace as the batch has left them: once for each new
    /// budget, never for a pod.
    fn pods_in(&self, namespace: &str) -> Result<Vec<Pod>, DraftError> {
        let start = NamespacedName::start_of(namespace);
        let stored = self.memory.scan(Kind::Pod, Bound::Included(&start)).map(|(key, _)| key);
        let mut keys: BTreeSet<&NamespacedName> =
            stored.take_while(|key| key.namespace() == namespace).collect();
        let touched =
            self.touched.keys().filter(|(kind, key)| *kind == Kind::Pod && key.namespace() == namespace);
        keys.extend(touched.map(|(_, key)| key));
        keys.into_iter().filter_map(|key| self.at::<Pod>(key).transpose()).collect()
    }

    /// The budgets of a namespace, with statuses that count what the batch did.
    pub fn budgets(&mut self, namespace: &str) -> Result<Vec<DisruptionBudget>, DraftError> {
        self.settle_budgets()?;
        let keys: Vec<NamespacedName> = self.indexes.budgets(namespace).map(|(key, _)| key.clone()).collect();
        keys.iter().filter_map(|key| self.at(key).transpose()).collect()
    }

    /// Brings the statuses of budgets up to date with the pods they count.
    pub fn settle_budgets(&mut self) -> Result<(), DraftError> {
        let settled = std::mem::take(&mut self.unsettled).into_iter().map(|key| self.settle_budget(&key));
        // One that cannot be settled must not keep the others from it.
        settled.collect::<Vec<_>>().into_iter().collect()
    }

    fn settle_budget(&mut self, key: &NamespacedName) -> Result<(), DraftError> {
        let Some(tally) = self.indexes.tally(key).cloned() else { return Ok(()) };
        let Some(mut budget) = self.at::<DisruptionBudget>(key)? else { return Ok(()) };
        let generation = budget.meta.generation;
        let status = rules::budget_status(&budget.spec, tally.expected, tally.healthy, generation);
        if budget.status != status {
            budget.status = status;
            self.put(budget)?;
            self.unsettled.remove(key);
        }
        Ok(())
    }
}
