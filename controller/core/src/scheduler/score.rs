//! Which node is best of those that will do. Whole numbers only, so that the same nodes give the same choice.

use std::cmp::Reverse;

use muster_proto::affinity;
use muster_proto::name::Name;

use super::node_info::{Facts, Taken};
use super::pod_requirements::Demand;
use super::resources::Load;

/// The best that a node can do under one aspect.
const BEST: i64 = 100;

/// How much each aspect counts.
const FEW_TAINTS: i64 = 3;
const PREFERRED: i64 = 2;
const LEAST_ALLOCATED: i64 = 1;
const BALANCED: i64 = 1;

/// A node that will do, with what it is ranked by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) name: &'a Name,
    pub(super) class: Class,
    /// The aspects that need no comparison with the others.
    pub(super) alone: i64,
}

/// The aspects under which a node is as good as others are bad. Of nodes of one class the best alone is the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class {
    /// Soft taints that the pod does not tolerate.
    taints: i64,
    /// The weights of the pod's wishes that it grants.
    granted: i64,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(demand: &Demand, facts: &'a Facts, taken: &Taken) -> Candidate<'a> {
        let name = &facts.node.meta.name;
        let taints = facts.discouraging.iter().filter(|taint| !demand.tolerates(taint)).count();
        let granted = demand.preferences().iter().filter(|wish| {
            let term = wish.preference.as_ref();
            term.is_some_and(|term| affinity::matches(term, name, &facts.node.meta.labels))
        });
        let with_it = taken.filled.plus(demand.claim.filled);
        let mut alone = LEAST_ALLOCATED * least_allocated(facts.capacity, with_it);
        // A pod that asks for nothing balances nothing: the most lopsided node would not get worse by it.
        if !demand.claim.load.is_zero() {
            alone += BALANCED * balanced(facts.capacity, taken.load.plus(demand.claim.load));
        }
        let class = Class {
            taints: i64::try_from(taints).unwrap_or(i64::MAX),
            granted: granted.map(|wish| i64::from(wish.weight)).sum(),
        };
        Candidate { name, class, alone }
    }
}

impl Class {
    /// The most that any of them has of either.
    pub(super) fn most(classes: impl Iterator<Item = Class>) -> Class {
        classes.fold(Class::default(), |most, each| Class {
            taints: most.taints.max(each.taints),
            granted: most.granted.max(each.granted),
        })
    }

    /// How good nodes of this class are beside others, the worst of whom have so many taints and the best grant so much.
    fn value(self, most: Class) -> i64 {
        let share = |part: i64, of: i64| if of > 0 { part * BEST / of } else { 0 };
        FEW_TAINTS * (BEST - share(self.taints, most.taints)) + PREFERRED * share(self.granted, most.granted)
    }
}

/// The best of the candidates, the most of whose classes is given; of equals the one with the lowest name.
pub(super) fn best<'a>(candidates: impl Iterator<Item = Candidate<'a>>, most: Class) -> Option<&'a Name> {
    let best = candidates.max_by_key(|each| (each.class.value(most) + each.alone, Reverse(each.name)));
    best.map(|best| best.name)
}

/// How much would be left: the mean over cpu and memory of the share that is not asked for.
fn least_allocated(all: Load, asked: Load) -> i64 {
    let left = |all: i128, asked: i128| match all {
        ..=0 => None,
        _ if asked > all => Some(0),
        _ => Some((all - asked) * i128::from(BEST) / all),
    };
    let (sum, count) = [left(all.cpu, asked.cpu), left(all.memory, asked.memory)]
        .into_iter()
        .flatten()
        .fold((0, 0), |(sum, count), each| (sum + each, count + 1));
    if count == 0 { 0 } else { i64::try_from(sum / count).unwrap_or(BEST) }
}

/// How close cpu and memory would be to running out together.
fn balanced(all: Load, asked: Load) -> i64 {
    const WHOLE: i128 = 1_000_000;
    let share = |all: i128, asked: i128| (all > 0).then(|| (asked * WHOLE / all).min(WHOLE));
    let apart = match (share(all.cpu, asked.cpu), share(all.memory, asked.memory)) {
        (Some(cpu), Some(memory)) => (cpu - memory).abs(),
        _ => 0,
    };
    // Half of the difference is the standard deviation of two numbers.
    i64::try_from((WHOLE - apart / 2) * i128::from(BEST) / WHOLE).unwrap_or(BEST)
}

#[cfg(test)]
mod tests;
