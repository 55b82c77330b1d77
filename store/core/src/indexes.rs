//! The writer's indexes: budgets by namespace, dependents by owner, what expires by its time, and how much is kept.
//!
//! With them the cost of a change does not depend on the number of records. Only the writer uses them. A draft updates
//! them before its commit; if the commit fails they are rebuilt from memory.

mod events;
mod joining;
mod usage;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;

use muster_proto::label::Labels;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use muster_proto::selector::LabelSelector;
use prost::Message;

pub use self::events::EventIndex;
pub use self::joining::JoiningIndex;
pub use self::usage::Usage;
use crate::memory::Memory;
use crate::namespaced_name::NamespacedName;
use crate::partial_decode;
use crate::rules;

/// The number of pods that a disruption budget selects, and how many of them are healthy.
#[derive(Debug, Clone)]
pub struct BudgetCounts {
    selector: LabelSelector,
    pub expected: u32,
    pub healthy: u32,
}

impl BudgetCounts {
    /// Counts those of a namespace's pods that the selector matches.
    pub fn of(selector: LabelSelector, pods: impl Iterator<Item = CountedPod>) -> Self {
        let mut counts = BudgetCounts { selector, expected: 0, healthy: 0 };
        for pod in pods.filter(|pod| counts.selector.matches(&pod.labels)) {
            counts.expected += 1;
            counts.healthy += u32::from(pod.healthy);
        }
        counts
    }

    pub fn selector(&self) -> &LabelSelector {
        &self.selector
    }
}

/// What a budget's counts depend on in a pod.
#[derive(Debug, Clone)]
pub struct CountedPod {
    labels: Labels,
    healthy: bool,
}

impl CountedPod {
    /// `None` for a mirror pod, which counts in no budget: a node creates its mirror pods with labels and a status of
    /// its choice, and would otherwise decide how many pods of others may be evicted.
    pub fn of(pod: &Pod) -> Option<Self> {
        let counted = || Self { labels: pod.meta.labels.clone(), healthy: rules::counts_as_healthy(pod) };
        (!pod.is_mirror()).then(counted)
    }
}

/// The writer's indexes.
#[derive(Debug, Default)]
pub struct Indexes {
    /// Counts by budget; keys sort by namespace.
    budget_counts: BTreeMap<NamespacedName, BudgetCounts>,
    /// Records with an owner reference to a node, by the node's uid. Clients may write a uid in upper or lower case;
    /// here it is in lower case.
    dependents: HashMap<String, BTreeSet<(Kind, NamespacedName)>>,
    /// The priority classes that are the global default: one at most.
    default_classes: BTreeSet<NamespacedName>,
    pub events: EventIndex,
    pub joining: JoiningIndex,
    pub usage: Usage,
}

impl Indexes {
    /// Builds all indexes from the current records.
    pub fn rebuild(memory: &Memory, event_ttl_millis: i64) -> Self {
        let mut indexes = Indexes::default();
        for (key, current) in memory.scan(Kind::DisruptionBudget, Bound::Unbounded) {
            let budget = pb::DisruptionBudget::decode(&*current.record).unwrap_or_default();
            if let Ok(budget) = muster_proto::budget::DisruptionBudget::try_from(budget) {
                let selector = budget.spec.selector;
                indexes.budget_counts.insert(key.clone(), BudgetCounts { selector, expected: 0, healthy: 0 });
            }
        }
        for kind in [Kind::Pod, Kind::Lease] {
            for (key, current) in memory.scan(kind, Bound::Unbounded) {
                for owner in partial_decode::metadata(&current.record).owner_references {
                    indexes.add_owner(&owner.kind, &owner.uid, kind, key);
                }
            }
        }
        if !indexes.budget_counts.is_empty() {
            for (key, current) in memory.scan(Kind::Pod, Bound::Unbounded) {
                let pod = pb::Pod::decode(&*current.record).unwrap_or_default();
                if indexes.has_budgets(key.namespace())
                    && let Ok(pod) = Pod::try_from(pod)
                {
                    indexes.update_counts(key.namespace(), None, CountedPod::of(&pod).as_ref());
                }
            }
        }
        for (key, current) in memory.scan(Kind::Event, Bound::Unbounded) {
            let event = pb::Event::decode(&*current.record).unwrap_or_default();
            let last = event.last_timestamp.unwrap_or_default();
            let last_millis = last.seconds * 1000 + i64::from(last.nanos) / 1_000_000;
            let bytes = current.record.len();
            indexes.events.put(key, last_millis + event_ttl_millis, &event.source_host, bytes);
        }
        for kind in [Kind::JoinToken, Kind::CertificateRequest, Kind::Revocation] {
            for (key, current) in memory.scan(kind, Bound::Unbounded) {
                indexes.joining.put(kind, key, &current.record);
            }
        }
        for (key, current) in memory.scan(Kind::PriorityClass, Bound::Unbounded) {
            indexes.put_priority_class(key, &current.record);
        }
        for kind in Kind::ALL {
            for (key, current) in memory.scan(kind, Bound::Unbounded) {
                indexes.usage.replace(kind, key.namespace(), None, Some(&current.record));
            }
        }
        indexes
    }

    /// When the next record expires, in milliseconds since 1970.
    pub fn next_expiry(&self) -> Option<i64> {
        [self.events.next_expiry(), self.joining.next_expiry()].into_iter().flatten().min()
    }

    /// The budgets of a namespace.
    pub fn budgets(&self, namespace: &str) -> impl Iterator<Item = (&NamespacedName, &BudgetCounts)> {
        let from = NamespacedName::start_of(namespace);
        self.budget_counts.range(from..).take_while(move |(key, _)| key.namespace() == namespace)
    }

    pub fn has_budgets(&self, namespace: &str) -> bool {
        self.budgets(namespace).next().is_some()
    }

    pub fn counts(&self, budget: &NamespacedName) -> Option<&BudgetCounts> {
        self.budget_counts.get(budget)
    }

    /// Updates the counts of a namespace's budgets for a changed pod. Returns the budgets that select the pod before or
    /// after the change.
    pub fn update_counts(
        &mut self,
        namespace: &str,
        was: Option<&CountedPod>,
        is: Option<&CountedPod>,
    ) -> Vec<NamespacedName> {
        let from = NamespacedName::start_of(namespace);
        let mut affected = Vec::new();
        for (key, counts) in self.budget_counts.range_mut(from..) {
            if key.namespace() != namespace {
                break;
            }
            let was = was.filter(|pod| counts.selector.matches(&pod.labels));
            let is = is.filter(|pod| counts.selector.matches(&pod.labels));
            if let Some(pod) = was {
                counts.expected -= 1;
                counts.healthy -= u32::from(pod.healthy);
            }
            if let Some(pod) = is {
                counts.expected += 1;
                counts.healthy += u32::from(pod.healthy);
            }
            if was.is_some() || is.is_some() {
                affected.push(key.clone());
            }
        }
        affected
    }

    /// Sets the counts of a budget.
    pub fn put_budget(&mut self, key: NamespacedName, counts: BudgetCounts) {
        self.budget_counts.insert(key, counts);
    }

    pub fn remove_budget(&mut self, key: &NamespacedName) {
        self.budget_counts.remove(key);
    }

    /// The priority class that pods without a class get.
    pub fn default_class(&self) -> Option<&NamespacedName> {
        self.default_classes.first()
    }

    /// Adds or replaces a priority class.
    pub fn put_priority_class(&mut self, key: &NamespacedName, record: &[u8]) {
        if pb::PriorityClass::decode(record).is_ok_and(|class| class.global_default) {
            self.default_classes.insert(key.clone());
        } else {
            self.default_classes.remove(key);
        }
    }

    pub fn remove_priority_class(&mut self, key: &NamespacedName) {
        self.default_classes.remove(key);
    }

    /// Adds an owner reference of a record. Only nodes have dependents that are deleted with them.
    pub fn add_owner(&mut self, owner_kind: &str, owner_uid: &str, kind: Kind, key: &NamespacedName) {
        if owner_kind == "Node" {
            let owner = owner_uid.to_ascii_lowercase();
            self.dependents.entry(owner).or_default().insert((kind, key.clone()));
        }
    }

    pub fn remove_owner(&mut self, owner_uid: &str, kind: Kind, key: &NamespacedName) {
        let owner = owner_uid.to_ascii_lowercase();
        if let Some(dependents) = self.dependents.get_mut(&owner) {
            dependents.remove(&(kind, key.clone()));
            if dependents.is_empty() {
                self.dependents.remove(&owner);
            }
        }
    }

    /// The records that the node with this uid owns.
    pub fn dependents(&self, owner_uid: &str) -> Vec<(Kind, NamespacedName)> {
        self.dependents.get(&owner_uid.to_ascii_lowercase()).into_iter().flatten().cloned().collect()
    }

    /// Records whose owning node does not exist.
    pub fn orphans(&self, memory: &Memory) -> Vec<(Kind, NamespacedName)> {
        let nodes = memory.scan(Kind::Node, Bound::Unbounded);
        let existing: HashSet<String> =
            nodes.map(|(_, node)| partial_decode::metadata(&node.record).uid).collect();
        let ownerless = self.dependents.iter().filter(|(owner, _)| !existing.contains(*owner));
        ownerless.flat_map(|(_, records)| records.iter().cloned()).collect()
    }
}
