//! Which of the nodes that a pod fits is the best. Whole numbers only, so that the same nodes give the same choice.

use std::cmp::Reverse;

use muster_proto::affinity;
use muster_proto::name::Name;

use super::node_info::{Allocated, NodeView};
use super::pod_requirements::PodRequirements;
use super::resources::CpuMemory;

/// The highest value of one score.
const MAX_SCORE: i64 = 100;

/// How much each score counts.
const TAINT_WEIGHT: i64 = 3;
const AFFINITY_WEIGHT: i64 = 2;
const LEAST_ALLOCATED_WEIGHT: i64 = 1;
const BALANCED_WEIGHT: i64 = 1;

/// A node that the pod fits, with its scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) name: &'a Name,
    pub(super) class: ScoreClass,
    /// The weighted scores that do not depend on the other candidates.
    pub(super) absolute: i64,
}

/// The inputs of the scores that are normalized over all candidates. Among nodes of one class, the highest absolute
/// score wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ScoreClass {
    /// How many soft taints the pod does not tolerate.
    taints: i64,
    /// The sum of the weights of the pod's preferred terms that the node matches.
    preferred: i64,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(
        requirements: &PodRequirements,
        view: &'a NodeView,
        allocated: &Allocated,
    ) -> Candidate<'a> {
        let name = &view.node.meta.name;
        let taints = view.soft_taints.iter().filter(|taint| !requirements.tolerates(taint)).count();
        let preferred = requirements.preferences().iter().filter(|preference| {
            let term = preference.preference.as_ref();
            term.is_some_and(|term| affinity::matches(term, name, &view.node.meta.labels))
        });
        let with_pod = allocated.non_zero_requested.plus(requirements.request.non_zero_requested);
        let mut absolute = LEAST_ALLOCATED_WEIGHT * least_allocated(view.capacity, with_pod);
        // A pod that requests nothing does not change the balance, so the balance says nothing about it.
        if !requirements.request.requested.is_zero() {
            absolute += BALANCED_WEIGHT
                * balanced(view.capacity, allocated.requested.plus(requirements.request.requested));
        }
        let class = ScoreClass {
            taints: i64::try_from(taints).unwrap_or(i64::MAX),
            preferred: preferred.map(|preference| i64::from(preference.weight)).sum(),
        };
        Candidate { name, class, absolute }
    }
}

impl ScoreClass {
    /// The maximum of each input.
    pub(super) fn max_of(classes: impl Iterator<Item = ScoreClass>) -> ScoreClass {
        classes.fold(ScoreClass::default(), |max, each| ScoreClass {
            taints: max.taints.max(each.taints),
            preferred: max.preferred.max(each.preferred),
        })
    }

    /// The weighted scores of this class, normalized by the maximum over all classes.
    fn value(self, max: ScoreClass) -> i64 {
        let share = |part: i64, of: i64| if of > 0 { part * MAX_SCORE / of } else { 0 };
        TAINT_WEIGHT * (MAX_SCORE - share(self.taints, max.taints))
            + AFFINITY_WEIGHT * share(self.preferred, max.preferred)
    }
}

/// The candidate with the highest score, given the maximum of their classes; of equals the one with the lowest name.
pub(super) fn best<'a>(candidates: impl Iterator<Item = Candidate<'a>>, max: ScoreClass) -> Option<&'a Name> {
    let best = candidates.max_by_key(|each| (each.class.value(max) + each.absolute, Reverse(each.name)));
    best.map(|best| best.name)
}

/// The mean over CPU and memory of the share that is not requested.
fn least_allocated(all: CpuMemory, asked: CpuMemory) -> i64 {
    let left = |all: i128, asked: i128| match all {
        ..=0 => None,
        _ if asked > all => Some(0),
        _ => Some((all - asked) * i128::from(MAX_SCORE) / all),
    };
    let (sum, count) = [left(all.cpu, asked.cpu), left(all.memory, asked.memory)]
        .into_iter()
        .flatten()
        .fold((0, 0), |(sum, count), each| (sum + each, count + 1));
    if count == 0 { 0 } else { i64::try_from(sum / count).unwrap_or(MAX_SCORE) }
}

/// How equal the requested shares of CPU and memory are.
fn balanced(all: CpuMemory, asked: CpuMemory) -> i64 {
    const WHOLE: i128 = 1_000_000;
    let share = |all: i128, asked: i128| (all > 0).then(|| (asked * WHOLE / all).min(WHOLE));
    let apart = match (share(all.cpu, asked.cpu), share(all.memory, asked.memory)) {
        (Some(cpu), Some(memory)) => (cpu - memory).abs(),
        _ => 0,
    };
    // Half of the difference is the standard deviation of two numbers.
    i64::try_from((WHOLE - apart / 2) * i128::from(MAX_SCORE) / WHOLE).unwrap_or(MAX_SCORE)
}

#[cfg(test)]
mod tests;
