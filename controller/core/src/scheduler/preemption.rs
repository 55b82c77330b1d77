//! Which pods of a node would be displaced for a pod, and on which node the choice is best: in the order of Kubernetes'
//! scheduler.
//!
//! A pod displaces only pods of lower priority, as few and as unimportant ones as possible, and those that a disruption
//! budget protects only where there is no other choice.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use muster_proto::budget::DisruptionBudget;
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::pod::Pod;

use super::filter::passes;
use super::node_cache::NodeInfo;
use super::node_info::{Allocated, NodeView};
use super::pod_requirements::{PodRequest, PodRequirements};
use crate::world::budgets::Budgets;

/// How many nodes are compared, if so many can make space: this many, or this percentage of all, whichever is more.
const MIN_CANDIDATES: usize = 100;
const CANDIDATES_PERCENT: usize = 10;

/// How many nodes are compared for one pod in a fleet of that size.
pub(super) fn wanted_candidates(nodes: usize) -> usize {
    MIN_CANDIDATES.max(nodes * CANDIDATES_PERCENT / 100).min(nodes)
}

/// Whether the scheduler may displace the pod, for one of higher priority. The deletion of a mirror pod would not end the
/// static pod that it shows.
pub(super) fn is_displaceable(pod: &Pod) -> bool {
    pod.spec.node_name.is_some() && !pod.is_finished() && !pod.is_mirror()
}

/// The pods of one node that would be displaced, the most important first.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) node: Name,
    pub(super) victims: Vec<Arc<Pod>>,
    /// How many of them a budget protects.
    pub(super) violations: usize,
}

/// What is known of budgets and of pods that are being displaced already.
pub(super) struct Disruptions<'a> {
    pub(super) budgets: &'a Budgets,
    /// Pods whose deletion was requested and that no record shows as being deleted yet.
    pub(super) requested: Vec<&'a Pod>,
}

/// A pod of lower priority, with what it takes.
struct Lower<'a> {
    pod: &'a Arc<Pod>,
    request: PodRequest,
}

/// The fewest and least important pods of the node that make space for the pod; `None` if it would not fit even without
/// all pods of lower priority.
pub(super) fn select_victims<'a>(
    requirements: &PodRequirements,
    info: &NodeInfo,
    pods: impl Iterator<Item = &'a Arc<Pod>>,
    disruptions: &Disruptions<'_>,
) -> Option<Candidate> {
    let view = info.view.as_ref()?;
    let priority = requirements.priority();
    let mut taken = info.taken_without_lower(priority)?;
    if !fits(requirements, view, &taken) {
        return None;
    }
    let lower = pods.filter(|pod| is_displaceable(pod) && pod.spec.priority() < priority);
    let mut lower: Vec<Lower<'a>> =
        lower.map(|pod| Lower { pod, request: PodRequest::of(&pod.spec) }).collect();
    lower.sort_by_cached_key(|lower| importance(lower.pod));
    let (protected, others) = disruptions.split(lower);
    let is_protected = std::iter::repeat_n(true, protected.len()).chain(std::iter::repeat(false));
    let (mut victims, mut violations) = (Vec::new(), 0);
    // Each is spared if the pod fits beside it: first those that a budget protects, the most important ones first.
    for (Lower { pod, request }, is_protected) in protected.into_iter().chain(others).zip(is_protected) {
        taken.add(&request);
        if !fits(requirements, view, &taken) {
            taken.remove(&request);
            violations += usize::from(is_protected);
            victims.push(Arc::clone(pod));
        }
    }
    victims.sort_by_cached_key(|pod| importance(pod));
    let node = view.node.meta.name.clone();
    (!victims.is_empty()).then_some(Candidate { node, victims, violations })
}

fn fits(requirements: &PodRequirements, view: &NodeView, taken: &Allocated) -> bool {
    passes(requirements, view, taken, |_| {})
}

/// Sorts the most important pods first: by priority, then by how long they have run, then by name.
fn importance(pod: &Pod) -> (Reverse<i32>, Timestamp, Key) {
    (Reverse(pod.spec.priority()), started(pod), Key::of(pod))
}

/// When the pod was started. One that has not started counts as if it started now, later than all others.
fn started(pod: &Pod) -> Timestamp {
    pod.status.start_time.unwrap_or(Timestamp::MAX)
}

impl Disruptions<'_> {
    /// The pods that a budget protects, and the others; each in its order. Pods use a budget up in that order.
    fn split<'a>(&self, pods: Vec<Lower<'a>>) -> (Vec<Lower<'a>>, Vec<Lower<'a>>) {
        let mut left: BTreeMap<Key, i32> = BTreeMap::new();
        pods.into_iter().partition(|lower| {
            // The budget has counted those that are leaving anyway.
            if lower.pod.meta.is_deleting() || self.is_requested(lower.pod) {
                return false;
            }
            let mut is_protected = false;
            for budget in self.budgets.of(lower.pod) {
                if budget.status.disrupted_pods.contains_key(&lower.pod.meta.name) {
                    continue;
                }
                let left = left.entry(Key::of(&**budget)).or_insert_with(|| self.allowed(budget));
                *left -= 1;
                is_protected |= *left < 0;
            }
            is_protected
        })
    }

    fn is_requested(&self, pod: &Pod) -> bool {
        self.requested.iter().any(|requested| requested.meta.uid == pod.meta.uid)
    }

    /// How many pods may be disrupted, after those whose deletion was requested.
    fn allowed(&self, budget: &DisruptionBudget) -> i32 {
        let is_counted = |pod: &&&Pod| {
            pod.meta.namespace == budget.meta.namespace && budget.spec.selector.matches(&pod.meta.labels)
        };
        let requested = self.requested.iter().filter(is_counted).count();
        budget.status.disruptions_allowed.saturating_sub(i32::try_from(requested).unwrap_or(i32::MAX))
    }
}

/// The best candidate: the one with the fewest violated budgets, then with the lowest highest priority of a victim, the
/// lowest sum of priorities, the fewest victims, whose most important victims started last; of equals the lowest name.
pub(super) fn best(candidates: impl IntoIterator<Item = Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(|candidate| {
        let Candidate { node, victims, violations } = candidate;
        let highest = victims.first().map_or(i32::MIN, |pod| pod.spec.priority());
        // Shifted to be positive, so that more pods of a negative priority are not better than fewer.
        let sum: i64 = victims.iter().map(|pod| i64::from(pod.spec.priority()) - i64::from(i32::MIN)).sum();
        let most_important = victims.iter().take_while(|pod| pod.spec.priority() == highest);
        let earliest = most_important.map(|pod| started(pod)).min();
        (*violations, highest, sum, victims.len(), Reverse(earliest), node.clone())
    })
}

#[cfg(test)]
mod tests;
