//! All nodes as placement sees them, with what is taken of each; kept as records change.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_proto::name::Name;
use muster_proto::node::Node;

use super::demand::{Claim, Demand};
use super::filter::{first_obstacle, passes};
use super::score::{Candidate, best};
use super::site::{Facts, Taken};
use super::verdict::Verdict;

#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    /// Of every node there is, and every one that a pod has taken something of.
    sites: BTreeMap<Name, Site>,
    nodes: usize,
}

/// What a node's record was to the fleet.
#[derive(Debug)]
pub(super) enum Noted {
    /// Nothing that placement reads.
    Unchanged,
    New,
    /// It has what it was before.
    Changed(Box<Facts>),
}

#[derive(Clone, Debug, Default)]
struct Site {
    /// `None` if only pods know of the node.
    facts: Option<Facts>,
    taken: Taken,
}

impl Fleet {
    pub(super) fn has(&self, name: &Name) -> bool {
        self.sites.get(name).is_some_and(|site| site.facts.is_some())
    }

    pub(super) fn is_cordoned(&self, name: &Name) -> bool {
        let facts = self.sites.get(name).and_then(|site| site.facts.as_ref());
        facts.is_some_and(|facts| facts.node.spec.unschedulable)
    }

    /// A node came or changed.
    pub(super) fn set_node(&mut self, node: &Arc<Node>) -> Noted {
        let name = &node.meta.name;
        match self.sites.get_mut(name) {
            Some(Site { facts: Some(facts), .. }) => {
                return facts.update(node).map_or(Noted::Unchanged, Noted::Changed);
            }
            Some(site) => site.facts = Some(Facts::of(node)),
            None => {
                let site = Site { facts: Some(Facts::of(node)), ..Site::default() };
                self.sites.insert(name.clone(), site);
            }
        }
        self.nodes += 1;
        Noted::New
    }

    /// A node went. What its pods took is remembered: a namesake may come before they go.
    pub(super) fn remove_node(&mut self, name: &Name) {
        if let Some(site) = self.sites.get_mut(name)
            && site.facts.take().is_some()
        {
            self.nodes -= 1;
            self.drop_if_empty(name);
        }
    }

    pub(super) fn take(&mut self, name: &Name, claim: &Claim) {
        match self.sites.get_mut(name) {
            Some(site) => site.taken.add(claim),
            None => self.sites.entry(name.clone()).or_default().taken.add(claim),
        }
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, name: &Name, claim: &Claim) {
        if let Some(site) = self.sites.get_mut(name) {
            site.taken.give_back(claim);
            self.drop_if_empty(name);
        }
    }

    fn drop_if_empty(&mut self, name: &Name) {
        if self.sites.get(name).is_some_and(|site| site.facts.is_none() && site.taken.pods == 0) {
            self.sites.remove(name);
        }
    }

    /// Whether that node will do.
    pub(super) fn fits(&self, demand: &Demand, name: &Name) -> bool {
        self.sites.get(name).is_some_and(|Site { facts, taken }| {
            facts.as_ref().is_some_and(|facts| passes(demand, facts, taken, |_| {}))
        })
    }

    /// Whether a node that has changed will do now, or fails later on than it did.
    pub(super) fn has_come_closer(&self, demand: &Demand, old: &Facts) -> bool {
        let Some(Site { facts: Some(facts), taken }) = self.sites.get(&old.node.meta.name) else {
            return false;
        };
        match (first_obstacle(demand, old, taken), first_obstacle(demand, facts, taken)) {
            (_, None) => true,
            (before, Some(now)) => before.is_some_and(|before| now > before),
        }
    }

    /// The best node for the pod, or why there is none. Every node looked at is counted in `looks`.
    pub(super) fn choose(&self, demand: &Demand, looks: &mut usize) -> Result<Name, Verdict> {
        if let Some(names) = &demand.named {
            *looks += names.len();
            let sites = names.iter().filter_map(|name| self.sites.get(name));
            if let Ok(name) = choose_among(demand, sites, &mut Verdict::default()) {
                return Ok(name);
            }
        }
        *looks += self.sites.len();
        let mut verdict = Verdict::of(self.nodes);
        choose_among(demand, self.sites.values(), &mut verdict).map_err(|Nowhere| verdict)
    }
}

/// None of the nodes will do.
struct Nowhere;

fn choose_among<'a>(
    demand: &Demand,
    sites: impl Iterator<Item = &'a Site>,
    verdict: &mut Verdict,
) -> Result<Name, Nowhere> {
    let mut candidates = Vec::new();
    for Site { facts, taken } in sites {
        if let Some(facts) = facts
            && passes(demand, facts, taken, |obstacle| verdict.count(obstacle))
        {
            candidates.push(Candidate::new(demand, facts, taken));
        }
    }
    best(&candidates).cloned().ok_or(Nowhere)
}

#[cfg(test)]
impl Fleet {
    /// What is taken of a node; nothing of one that is not known.
    pub(super) fn taken(&self, name: &str) -> Taken {
        self.sites.get(name).map(|site| site.taken.clone()).unwrap_or_default()
    }
}
