//! The disruption budgets as last seen.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_proto::budget::DisruptionBudget;
use muster_proto::key::Key;
use muster_proto::name::{Name, Namespace};
use muster_proto::pod::Pod;

/// All budgets, by namespace.
#[derive(Clone, Debug, Default)]
pub struct Budgets {
    by_namespace: BTreeMap<Namespace, BTreeMap<Name, Arc<DisruptionBudget>>>,
    /// Whether the watch of budgets is connected and has delivered all of them.
    is_synced: bool,
}

impl Budgets {
    /// Adds or updates a budget.
    pub fn apply(&mut self, budget: DisruptionBudget) {
        if let Some(namespace) = budget.meta.namespace.clone() {
            let name = budget.meta.name.clone();
            self.by_namespace.entry(namespace).or_default().insert(name, Arc::new(budget));
        }
    }

    pub fn remove(&mut self, key: &Key) {
        if let Some(namespace) = &key.namespace
            && let Some(budgets) = self.by_namespace.get_mut(namespace)
        {
            budgets.remove(&key.name);
            if budgets.is_empty() {
                self.by_namespace.remove(namespace);
            }
        }
    }

    pub fn set_synced(&mut self, is_synced: bool) {
        self.is_synced = is_synced;
    }

    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// The budgets that protect the pod, by name. Mirror pods count in no budget.
    pub fn of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a Arc<DisruptionBudget>> {
        let namespace = pod.meta.namespace.as_ref().filter(|_| !pod.is_mirror());
        let budgets = namespace.and_then(|namespace| self.by_namespace.get(namespace));
        let all = budgets.into_iter().flat_map(BTreeMap::values);
        all.filter(|budget| budget.spec.selector.matches(&pod.meta.labels))
    }
}
