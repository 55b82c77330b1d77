//! The nodes in the order of their scores, kept per class of pods with equal requirements.
//!
//! For the first pod of a class every node is examined. The result is kept, and for the next pod of the class only the
//! nodes that have changed since are examined: mostly the one that the last pod got. The choice is the same as if every
//! node were examined.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use muster_proto::name::Name;

use super::filter::passes;
use super::fit_error::{FitError, ReasonSet};
use super::node_cache::{NodeCache, NodeInfo, Slot};
use super::pod_requirements::PodRequirements;
use super::score::{Candidate, ScoreClass, best};

/// How many rankings are kept, and how many ratings in all of them: at most some 160 MB, enough for twenty classes of
/// pods that alternate on 100,000 nodes. The least recently used rankings are dropped first.
const MAX_RANKINGS: usize = 256;
const MAX_RATINGS: usize = 2_000_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Rankings {
    rankings: HashMap<Arc<PodRequirements>, Ranking>,
    uses: u64,
}

/// The ratings of all nodes for pods with equal requirements.
#[derive(Clone, Debug, Default)]
struct Ranking {
    /// The number of its last use.
    last_used: u64,
    /// The last change of the cache that is included.
    seen: u64,
    /// By slot.
    ratings: Vec<NodeRating>,
    /// The nodes that the pods fit, the best of each class first. No class is empty.
    classes: BTreeMap<ScoreClass, BTreeSet<(Reverse<i64>, Name)>>,
    /// Why the pods do not fit the other nodes.
    fit_error: FitError,
}

/// What one node is worth to the pods of a class.
#[derive(Clone, Debug, Default)]
enum NodeRating {
    /// The slot holds no node.
    #[default]
    Absent,
    Fit {
        class: ScoreClass,
        absolute: i64,
        name: Name,
    },
    Unfit(ReasonSet),
}

impl Rankings {
    /// The best node for the pod, or why there is none. Every examined node is counted in `examined`.
    pub(super) fn choose(
        &mut self,
        cache: &NodeCache,
        requirements: &Arc<PodRequirements>,
        examined: &mut usize,
    ) -> Result<Name, FitError> {
        if requirements.node_names.is_some()
            || requirements.request.amounts.names().count() > ReasonSet::MAX_RESOURCES
        {
            let named = cache.choose_among_named(requirements, examined);
            return named.map_or_else(|| cache.choose_among_all(requirements, examined), Ok);
        }
        self.uses += 1;
        let last_used = self.uses;
        if let Some(ranking) = self.rankings.get_mut(requirements) {
            ranking.last_used = last_used;
            ranking.catch_up(cache, requirements, examined);
            return ranking.choice(cache);
        }
        let ranking = Ranking { last_used, ..Ranking::of(cache, requirements, examined) };
        let choice = ranking.choice(cache);
        self.rankings.insert(Arc::clone(requirements), ranking);
        self.make_room();
        choice
    }

    fn make_room(&mut self) {
        let ratings =
            |rankings: &HashMap<_, Ranking>| rankings.values().map(|each| each.ratings.len()).sum::<usize>();
        while self.rankings.len() > MAX_RANKINGS
            || (self.rankings.len() > 1 && ratings(&self.rankings) > MAX_RATINGS)
        {
            let oldest = self.rankings.iter().min_by_key(|(_, ranking)| ranking.last_used);
            let Some(oldest) = oldest.map(|(requirements, _)| Arc::clone(requirements)) else { return };
            self.rankings.remove(&oldest);
        }
    }
}

impl Ranking {
    /// Examines every node.
    fn of(cache: &NodeCache, requirements: &PodRequirements, examined: &mut usize) -> Ranking {
        let mut ranking = Ranking { seen: cache.last_change(), ..Ranking::default() };
        let mut classes: BTreeMap<ScoreClass, Vec<(Reverse<i64>, Name)>> = BTreeMap::new();
        *examined += cache.infos().len();
        for info in cache.infos() {
            let rating = rate(info, requirements);
            match &rating {
                NodeRating::Fit { class, absolute, name } => {
                    classes.entry(*class).or_default().push((Reverse(*absolute), name.clone()));
                }
                NodeRating::Unfit(reasons) => ranking.count(*reasons, requirements),
                NodeRating::Absent => {}
            }
            ranking.ratings.push(rating);
        }
        ranking.classes =
            classes.into_iter().map(|(class, nodes)| (class, nodes.into_iter().collect())).collect();
        ranking
    }

    /// Examines the nodes that have changed.
    fn catch_up(&mut self, cache: &NodeCache, requirements: &PodRequirements, examined: &mut usize) {
        self.ratings.resize(cache.infos().len(), NodeRating::Absent);
        // All are removed before the first is added: a node may have come back in the slot of another.
        for (slot, _) in cache.changed_since(self.seen) {
            self.remove(slot, requirements);
        }
        for (slot, info) in cache.changed_since(self.seen) {
            *examined += 1;
            let rating = rate(info, requirements);
            match &rating {
                NodeRating::Fit { class, absolute, name } => {
                    self.classes.entry(*class).or_default().insert((Reverse(*absolute), name.clone()));
                }
                NodeRating::Unfit(reasons) => self.count(*reasons, requirements),
                NodeRating::Absent => {}
            }
            self.ratings[slot] = rating;
        }
        self.seen = cache.last_change();
    }

    fn remove(&mut self, slot: Slot, requirements: &PodRequirements) {
        match std::mem::take(&mut self.ratings[slot]) {
            NodeRating::Absent => {}
            NodeRating::Unfit(reasons) => {
                for reason in reasons.each(&requirements.request.amounts) {
                    self.fit_error.uncount(reason);
                }
            }
            NodeRating::Fit { class, absolute, name } => {
                if let Some(nodes) = self.classes.get_mut(&class) {
                    nodes.remove(&(Reverse(absolute), name));
                    if nodes.is_empty() {
                        self.classes.remove(&class);
                    }
                }
            }
        }
    }

    fn count(&mut self, reasons: ReasonSet, requirements: &PodRequirements) {
        for reason in reasons.each(&requirements.request.amounts) {
            self.fit_error.count(reason);
        }
    }

    fn choice(&self, cache: &NodeCache) -> Result<Name, FitError> {
        let firsts = self.classes.iter().filter_map(|(&class, nodes)| {
            nodes.first().map(|(Reverse(absolute), name)| Candidate { name, class, absolute: *absolute })
        });
        let best = best(firsts, ScoreClass::max_of(self.classes.keys().copied()));
        best.cloned().ok_or_else(|| self.fit_error.with_nodes(cache.node_count()))
    }
}

/// Rates one node.
fn rate(info: &NodeInfo, requirements: &PodRequirements) -> NodeRating {
    let Some(view) = &info.view else { return NodeRating::Absent };
    let mut reasons = ReasonSet::default();
    let taken = info.taken_for(requirements.priority(), None);
    if !passes(requirements, view, &taken, |reason| {
        reasons.add(reason, &requirements.request.amounts);
    }) {
        return NodeRating::Unfit(reasons);
    }
    let Candidate { name, class, absolute } = Candidate::new(requirements, view, &info.allocated);
    NodeRating::Fit { class, absolute, name: name.clone() }
}

#[cfg(test)]
mod tests;
