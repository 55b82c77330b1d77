//! The nodes in the order in which they suit the pods of one line.
//!
//! The first pod that asks for something has every node looked at. What was found is kept, and for the next that asks
//! the same only those nodes are looked at again that have changed since: mostly the one that the last of them got. The
//! choice is the same that a look at all of them would come to.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use muster_proto::name::Name;

use super::filter::passes;
use super::fit_error::{Findings, Verdict};
use super::node_cache::{Fleet, Site, Slot};
use super::pod_requirements::Demand;
use super::score::{Candidate, Class, best};

/// How many rankings are kept, and how many places in all of them: at most some 160 MB, for twenty kinds of pods that
/// come in turns to a fleet of 100,000 nodes. Those that were not asked for the longest go first.
const MOST: usize = 256;
const MOST_PLACES: usize = 2_000_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Rankings {
    rankings: HashMap<Arc<Demand>, Ranking>,
    asked: u64,
}

/// What was found out of all nodes for pods that ask the same.
#[derive(Clone, Debug, Default)]
struct Ranking {
    /// When it was last asked for.
    asked: u64,
    /// Up to which change of the fleet it is true.
    seen: u64,
    /// By slot.
    places: Vec<Place>,
    /// The nodes that will do, the best of each class first. No class is empty.
    classes: BTreeMap<Class, BTreeSet<(Reverse<i64>, Name)>>,
    /// What is in the way on the others.
    verdict: Verdict,
}

#[derive(Clone, Debug, Default)]
enum Place {
    /// There is no node.
    #[default]
    Empty,
    Suits {
        class: Class,
        alone: i64,
        name: Name,
    },
    Unfit(Findings),
}

impl Rankings {
    /// The best node for the pod, or why there is none. Every node looked at is counted in `looks`.
    pub(super) fn choose(
        &mut self,
        fleet: &Fleet,
        demand: &Arc<Demand>,
        looks: &mut usize,
    ) -> Result<Name, Verdict> {
        if demand.named.is_some() || demand.claim.amounts.names().count() > Findings::MOST_RESOURCES {
            let named = fleet.choose_named(demand, looks);
            return named.map_or_else(|| fleet.choose_of_all(demand, looks), Ok);
        }
        self.asked += 1;
        let asked = self.asked;
        if let Some(ranking) = self.rankings.get_mut(demand) {
            ranking.asked = asked;
            ranking.catch_up(fleet, demand, looks);
            return ranking.choice(fleet);
        }
        let ranking = Ranking { asked, ..Ranking::of(fleet, demand, looks) };
        let choice = ranking.choice(fleet);
        self.rankings.insert(Arc::clone(demand), ranking);
        self.make_room();
        choice
    }

    fn make_room(&mut self) {
        let places =
            |rankings: &HashMap<_, Ranking>| rankings.values().map(|each| each.places.len()).sum::<usize>();
        while self.rankings.len() > MOST || (self.rankings.len() > 1 && places(&self.rankings) > MOST_PLACES)
        {
            let oldest = self.rankings.iter().min_by_key(|(_, ranking)| ranking.asked);
            let Some(oldest) = oldest.map(|(demand, _)| Arc::clone(demand)) else { return };
            self.rankings.remove(&oldest);
        }
    }
}

impl Ranking {
    /// Looks at every node.
    fn of(fleet: &Fleet, demand: &Demand, looks: &mut usize) -> Ranking {
        let mut ranking = Ranking { seen: fleet.last_change(), ..Ranking::default() };
        let mut classes: BTreeMap<Class, Vec<(Reverse<i64>, Name)>> = BTreeMap::new();
        *looks += fleet.sites().len();
        for site in fleet.sites() {
            let place = look(site, demand);
            match &place {
                Place::Suits { class, alone, name } => {
                    classes.entry(*class).or_default().push((Reverse(*alone), name.clone()));
                }
                Place::Unfit(findings) => ranking.count(*findings, demand),
                Place::Empty => {}
            }
            ranking.places.push(place);
        }
        ranking.classes =
            classes.into_iter().map(|(class, nodes)| (class, nodes.into_iter().collect())).collect();
        ranking
    }

    /// Looks again at those that have changed.
    fn catch_up(&mut self, fleet: &Fleet, demand: &Demand, looks: &mut usize) {
        self.places.resize(fleet.sites().len(), Place::Empty);
        // All out before the first comes in: a node may have come back in the place of another.
        for (slot, _) in fleet.changed_since(self.seen) {
            self.take_out(slot, demand);
        }
        for (slot, site) in fleet.changed_since(self.seen) {
            *looks += 1;
            let place = look(site, demand);
            match &place {
                Place::Suits { class, alone, name } => {
                    self.classes.entry(*class).or_default().insert((Reverse(*alone), name.clone()));
                }
                Place::Unfit(findings) => self.count(*findings, demand),
                Place::Empty => {}
            }
            self.places[slot] = place;
        }
        self.seen = fleet.last_change();
    }

    fn take_out(&mut self, slot: Slot, demand: &Demand) {
        match std::mem::take(&mut self.places[slot]) {
            Place::Empty => {}
            Place::Unfit(findings) => {
                for obstacle in findings.each(&demand.claim.amounts) {
                    self.verdict.take_back(obstacle);
                }
            }
            Place::Suits { class, alone, name } => {
                if let Some(nodes) = self.classes.get_mut(&class) {
                    nodes.remove(&(Reverse(alone), name));
                    if nodes.is_empty() {
                        self.classes.remove(&class);
                    }
                }
            }
        }
    }

    fn count(&mut self, findings: Findings, demand: &Demand) {
        for obstacle in findings.each(&demand.claim.amounts) {
            self.verdict.count(obstacle);
        }
    }

    fn choice(&self, fleet: &Fleet) -> Result<Name, Verdict> {
        let firsts = self.classes.iter().filter_map(|(&class, nodes)| {
            nodes.first().map(|(Reverse(alone), name)| Candidate { name, class, alone: *alone })
        });
        let best = best(firsts, Class::most(self.classes.keys().copied()));
        best.cloned().ok_or_else(|| self.verdict.with_nodes(fleet.node_count()))
    }
}

/// What one node is to the pod.
fn look(site: &Site, demand: &Demand) -> Place {
    let Some(facts) = &site.facts else { return Place::Empty };
    let mut findings = Findings::default();
    if !passes(demand, facts, &site.taken, |obstacle| findings.add(obstacle, &demand.claim.amounts)) {
        return Place::Unfit(findings);
    }
    let Candidate { name, class, alone } = Candidate::new(demand, facts, &site.taken);
    Place::Suits { class, alone, name: name.clone() }
}

#[cfg(test)]
mod tests;
