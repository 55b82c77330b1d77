//! All nodes as placement sees them, with what is taken of each; kept as records change.
//!
//! Changes are numbered, so that whoever has looked at all nodes once can ask what has changed since.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use muster_proto::name::Name;
use muster_proto::node::Node;

use super::filter::{first_obstacle, passes};
use super::fit_error::Verdict;
use super::node_info::{Facts, Taken};
use super::pod_requirements::{Claim, Demand};
use super::score::{Candidate, Class, best};

/// Where a node's site is kept. Another's may come to be kept there when it is gone.
pub(super) type Slot = usize;

#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    /// Of every node there is, and every one that a pod has taken something of.
    slots: HashMap<Name, Slot>,
    sites: Vec<Site>,
    free: Vec<Slot>,
    nodes: usize,
    /// The number of the last change.
    changes: u64,
    /// Where something has changed, by the number of the last change there.
    changed: BTreeMap<u64, Slot>,
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
pub(super) struct Site {
    /// `None` if only pods know of the node, or nobody does.
    pub(super) facts: Option<Facts>,
    pub(super) taken: Taken,
    /// The number of the last change.
    changed: u64,
}

impl Fleet {
    fn site(&self, name: &Name) -> Option<&Site> {
        self.slots.get(name).map(|&slot| &self.sites[slot])
    }

    pub(super) fn has(&self, name: &Name) -> bool {
        self.site(name).is_some_and(|site| site.facts.is_some())
    }

    pub(super) fn is_cordoned(&self, name: &Name) -> bool {
        let facts = self.site(name).and_then(|site| site.facts.as_ref());
        facts.is_some_and(|facts| facts.node.spec.unschedulable)
    }

    pub(super) fn node_count(&self) -> usize {
        self.nodes
    }

    /// A node came or changed.
    pub(super) fn set_node(&mut self, node: &Arc<Node>) -> Noted {
        let slot = self.slot_for(&node.meta.name);
        let noted = match &mut self.sites[slot].facts {
            Some(facts) => match facts.update(node) {
                None => return Noted::Unchanged,
                Some(old) => Noted::Changed(old),
            },
            none => {
                *none = Some(Facts::of(node));
                self.nodes += 1;
                Noted::New
            }
        };
        self.touch(slot);
        noted
    }

    /// A node went. What its pods took is remembered: a namesake may come before they go.
    pub(super) fn remove_node(&mut self, name: &Name) {
        if let Some(&slot) = self.slots.get(name)
            && self.sites[slot].facts.take().is_some()
        {
            self.nodes -= 1;
            self.touch(slot);
            self.drop_if_empty(name, slot);
        }
    }

    pub(super) fn take(&mut self, name: &Name, claim: &Claim) {
        let slot = self.slot_for(name);
        self.sites[slot].taken.add(claim);
        self.touch(slot);
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, name: &Name, claim: &Claim) {
        if let Some(&slot) = self.slots.get(name) {
            self.sites[slot].taken.give_back(claim);
            self.touch(slot);
            self.drop_if_empty(name, slot);
        }
    }

    fn slot_for(&mut self, name: &Name) -> Slot {
        if let Some(&slot) = self.slots.get(name) {
            return slot;
        }
        let slot = self.free.pop().unwrap_or(self.sites.len());
        if slot == self.sites.len() {
            self.sites.push(Site::default());
        }
        self.slots.insert(name.clone(), slot);
        slot
    }

    fn drop_if_empty(&mut self, name: &Name, slot: Slot) {
        let site = &self.sites[slot];
        if site.facts.is_none() && site.taken.pods == 0 {
            self.slots.remove(name);
            self.free.push(slot);
        }
    }

    /// Gives the change of a site the next number.
    fn touch(&mut self, slot: Slot) {
        self.changes += 1;
        let before = std::mem::replace(&mut self.sites[slot].changed, self.changes);
        self.changed.remove(&before);
        self.changed.insert(self.changes, slot);
    }

    /// The number of the last change.
    pub(super) fn last_change(&self) -> u64 {
        self.changes
    }

    /// The sites that have changed since, each as it is now.
    pub(super) fn changed_since(&self, seen: u64) -> impl Iterator<Item = (Slot, &Site)> {
        self.changed.range(seen + 1..).map(|(_, &slot)| (slot, &self.sites[slot]))
    }

    /// All sites, by slot.
    pub(super) fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Whether that node will do.
    pub(super) fn fits(&self, demand: &Demand, name: &Name) -> bool {
        self.site(name).is_some_and(|Site { facts, taken, .. }| {
            facts.as_ref().is_some_and(|facts| passes(demand, facts, taken, |_| {}))
        })
    }

    /// Whether a node that has changed will do now, or fails later on than it did.
    pub(super) fn has_come_closer(&self, demand: &Demand, old: &Facts) -> bool {
        let Some(Site { facts: Some(facts), taken, .. }) = self.site(&old.node.meta.name) else {
            return false;
        };
        match (first_obstacle(demand, old, taken), first_obstacle(demand, facts, taken)) {
            (_, None) => true,
            (before, Some(now)) => before.is_some_and(|before| now > before),
        }
    }

    /// The best of the nodes that the pod names, if it names any and one of them will do.
    pub(super) fn choose_named(&self, demand: &Demand, looks: &mut usize) -> Option<Name> {
        let names = demand.named.as_ref()?;
        *looks += names.len();
        let sites = names.iter().filter_map(|name| self.site(name));
        choose_among(demand, sites, &mut Verdict::default())
    }

    /// The best node for the pod, or why there is none, by looking at every node. Each is counted in `looks`.
    pub(super) fn choose_of_all(&self, demand: &Demand, looks: &mut usize) -> Result<Name, Verdict> {
        *looks += self.sites.len();
        let mut verdict = Verdict::of(self.nodes);
        choose_among(demand, self.sites.iter(), &mut verdict).ok_or(verdict)
    }
}

fn choose_among<'a>(
    demand: &Demand,
    sites: impl Iterator<Item = &'a Site>,
    verdict: &mut Verdict,
) -> Option<Name> {
    let mut candidates = Vec::new();
    for Site { facts, taken, .. } in sites {
        if let Some(facts) = facts
            && passes(demand, facts, taken, |obstacle| verdict.count(obstacle))
        {
            candidates.push(Candidate::new(demand, facts, taken));
        }
    }
    let most = Class::most(candidates.iter().map(|each| each.class));
    best(candidates.into_iter(), most).cloned()
}

#[cfg(test)]
impl Fleet {
    /// What is taken of a node; nothing of one that is not known.
    pub(super) fn taken(&self, name: &str) -> Taken {
        self.slots.get(name).map(|&slot| self.sites[slot].taken.clone()).unwrap_or_default()
    }
}
