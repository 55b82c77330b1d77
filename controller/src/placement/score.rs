//! Which node is best of those that will do. Whole numbers only, so that the same nodes give the same choice.

use std::cmp::Reverse;

use muster_proto::affinity;
use muster_proto::name::Name;

use super::amounts::Load;
use super::demand::Demand;
use super::site::{Facts, Taken};

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
    /// Soft taints that the pod does not tolerate.
    taints: i64,
    /// The weights of the pod's wishes that it grants.
    granted: i64,
    /// The aspects that need no comparison with the others.
    alone: i64,
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
        Candidate {
            name,
            taints: i64::try_from(taints).unwrap_or(i64::MAX),
            granted: granted.map(|wish| i64::from(wish.weight)).sum(),
            alone,
        }
    }

    /// How good the node is beside others, the worst of whom have so many taints and the best grant so much.
    fn total(&self, most_taints: i64, most_granted: i64) -> i64 {
        let share = |part: i64, of: i64| if of > 0 { part * BEST / of } else { 0 };
        let few_taints = BEST - share(self.taints, most_taints);
        FEW_TAINTS * few_taints + PREFERRED * share(self.granted, most_granted) + self.alone
    }
}

/// The best of the candidates; of equals the one with the lowest name.
pub(super) fn best<'a>(candidates: &[Candidate<'a>]) -> Option<&'a Name> {
    let most = |part: fn(&Candidate<'_>) -> i64| candidates.iter().map(part).max().unwrap_or(0);
    let (taints, granted) = (most(|each| each.taints), most(|each| each.granted));
    let best = candidates.iter().max_by_key(|each| (each.total(taints, granted), Reverse(each.name)));
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
