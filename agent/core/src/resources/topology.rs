//! Topology: whether a container's resources come from the same NUMA nodes.
//!
//! Each provider of a resource (processors, devices) gives hints from which NUMA nodes it could take it; the hints are
//! merged into the best common one, and the policy decides whether that is good enough. [`cpus`] gives the hints of the
//! processors and picks them; [`cpu_assignments`] keeps which container has which.

use std::str::FromStr;

use crate::admission::Rejection;

pub mod cpu_assignments;
pub mod cpus;
#[cfg(test)]
mod tests;

/// With more nodes than this, there are too many combinations to merge.
pub const MAX_NODES: usize = 8;

/// A set of NUMA nodes, by their index in the order of their ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mask(pub u64);

/// Nodes from which a resource can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// `None` is any node.
    pub mask: Option<Mask>,
    /// Whether no other hint is better.
    pub is_preferred: bool,
}

/// The hints of one provider for one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hints {
    /// The provider has no preference.
    Any,
    /// Any of these; an empty list means that no nodes are good.
    From(Vec<Hint>),
}

/// How strictly resources must be aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Not at all; providers are not asked for hints.
    #[default]
    None,
    /// The best common hint is used, however good.
    BestEffort,
    /// Only a preferred hint is accepted.
    Restricted,
    /// Only a single NUMA node is accepted.
    SingleNumaNode,
}

/// What must be aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The resources of each container.
    #[default]
    Container,
    /// The resources of all containers of a pod.
    Pod,
}

/// The machine has too many NUMA nodes for a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--topology-manager-policy: the machine has {0} NUMA nodes, and only none works with more than {MAX_NODES}"
)]
pub struct TooManyNodes(pub usize);

impl Mask {
    /// The first `count` nodes.
    pub const fn first(count: usize) -> Self {
        Self(if count >= 64 { u64::MAX } else { (1 << count) - 1 })
    }

    pub const fn and(self, other: Mask) -> Self {
        Self(self.0 & other.0)
    }

    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    pub const fn contains(self, node: usize) -> bool {
        node < 64 && self.0 & (1 << node) != 0
    }

    /// Fewer nodes, or as many with lower indexes.
    fn is_narrower_than(self, other: Mask) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }
}

impl Policy {
    /// Checks at start that the machine does not have too many nodes for the policy.
    pub fn check_start(self, nodes: usize) -> Result<(), TooManyNodes> {
        if self != Self::None && nodes > MAX_NODES {
            return Err(TooManyNodes(nodes));
        }
        Ok(())
    }

    /// The best common hint, and whether the policy accepts it.
    pub fn merge(self, nodes: usize, hints: &[Hints]) -> (Hint, bool) {
        let all = Mask::first(nodes);
        match self {
            Self::None => (Hint { mask: None, is_preferred: true }, true),
            Self::BestEffort => (best(all, &spelled_out(hints)), true),
            Self::Restricted => {
                let hint = best(all, &spelled_out(hints));
                (hint, hint.is_preferred)
            }
            Self::SingleNumaNode => {
                let mut lists = spelled_out(hints);
                for list in &mut lists {
                    list.retain(|hint| hint.is_preferred && hint.mask.is_none_or(|mask| mask.count() == 1));
                }
                let mut hint = best(all, &lists);
                if hint.mask == Some(all) {
                    hint.mask = None;
                }
                (hint, hint.is_preferred)
            }
        }
    }

    /// The hint for each group of hints: one group per container, or one for the pod, by scope.
    pub fn admit(self, nodes: usize, groups: &[Vec<Hints>]) -> Result<Vec<Hint>, Rejection> {
        let merged = groups.iter().map(|hints| self.merge(nodes, hints));
        merged.map(|(hint, is_enough)| is_enough.then_some(hint).ok_or_else(rejection)).collect()
    }
}

fn rejection() -> Rejection {
    let message = "its resources cannot be given from NUMA nodes that lie as close as the policy asks";
    Rejection::new("TopologyAffinityError", message)
}

/// One list of hints for every provider and resource.
fn spelled_out(hints: &[Hints]) -> Vec<Vec<Hint>> {
    let one = |is_preferred| vec![Hint { mask: None, is_preferred }];
    let spell = |hints: &Hints| match hints {
        Hints::Any => one(true),
        Hints::From(list) if list.is_empty() => one(false),
        Hints::From(list) => list.clone(),
    };
    hints.iter().map(spell).collect()
}

/// The best of all combinations; if there is none, all nodes and not preferred.
fn best(all: Mask, lists: &[Vec<Hint>]) -> Hint {
    let aim = aim(lists);
    let mut best: Option<MergedHint> = None;
    combine(lists, MergedHint { mask: all, is_preferred: true, first: None }, &mut |candidate| {
        if candidate.mask.count() > 0 && best.is_none_or(|held| candidate.beats(&held, aim)) {
            best = Some(candidate);
        }
    });
    best.map_or(Hint { mask: Some(all), is_preferred: false }, |found| Hint {
        mask: Some(found.mask),
        is_preferred: found.is_preferred,
    })
}

/// The size that a hint which is not preferred should have: the largest of the providers' narrowest hints.
fn aim(lists: &[Vec<Hint>]) -> u32 {
    let narrowest = |list: &Vec<Hint>| list.iter().filter_map(|hint| Some(hint.mask?.count())).min();
    lists.iter().filter_map(narrowest).max().unwrap_or(0)
}

#[derive(Clone, Copy)]
struct MergedHint {
    mask: Mask,
    is_preferred: bool,
    /// The first mask given: all others must equal it for the merged hint to be preferred.
    first: Option<Mask>,
}

impl MergedHint {
    fn with(self, hint: Hint) -> Self {
        let is_same = hint.mask.is_none() || self.first.is_none() || hint.mask == self.first;
        Self {
            mask: hint.mask.map_or(self.mask, |mask| self.mask.and(mask)),
            is_preferred: self.is_preferred && hint.is_preferred && is_same,
            first: self.first.or(hint.mask),
        }
    }

    fn beats(&self, held: &MergedHint, aim: u32) -> bool {
        if self.is_preferred != held.is_preferred {
            return self.is_preferred;
        }
        if self.is_preferred {
            return self.mask.is_narrower_than(held.mask);
        }
        // Of hints that are not preferred, the largest up to the aim wins; one above the aim only if there is no other,
        // and then the narrower.
        let (new, old) = (self.mask.count(), held.mask.count());
        match (new <= aim, old <= aim) {
            (true, true) if new != old => new > old,
            (true, false) => true,
            (false, true) => false,
            _ => self.mask.is_narrower_than(held.mask),
        }
    }
}

/// Calls `show` with every choice of one hint from each list.
fn combine(lists: &[Vec<Hint>], so_far: MergedHint, show: &mut impl FnMut(MergedHint)) {
    match lists.split_first() {
        None => show(so_far),
        Some((list, rest)) => list.iter().for_each(|hint| combine(rest, so_far.with(*hint), show)),
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "best-effort" => Ok(Self::BestEffort),
            "restricted" => Ok(Self::Restricted),
            "single-numa-node" => Ok(Self::SingleNumaNode),
            _ => Err(format!("{text:?} must be none, best-effort, restricted or single-numa-node")),
        }
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "container" => Ok(Self::Container),
            "pod" => Ok(Self::Pod),
            _ => Err(format!("{text:?} must be container or pod")),
        }
    }
}
