//! Whether a node will do: the filters, in order; the first that fails stops.

use std::fmt;

use muster_proto::affinity;

use super::node_info::{Facts, Taken};
use super::pod_requirements::Demand;

/// What keeps a pod from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle<'a> {
    Cordoned,
    OtherName,
    Tainted,
    Unmatched,
    PortsTaken,
    Full,
    /// There is too little of that resource.
    Short(&'a str),
}

impl fmt::Display for Obstacle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Cordoned => "node(s) were unschedulable",
            Obstacle::OtherName => "node(s) didn't match the requested node name",
            Obstacle::Tainted => "node(s) had untolerated taint(s)",
            Obstacle::Unmatched => "node(s) didn't match Pod's node affinity/selector",
            Obstacle::PortsTaken => "node(s) didn't have free ports",
            Obstacle::Full => "Too many pods",
            Obstacle::Short(resource) => return write!(f, "Insufficient {resource}"),
        })
    }
}

/// Whether the node will do for the pod. If not, what is in the way is told: one thing, or all that it is short of.
pub(super) fn passes<'a>(
    demand: &'a Demand,
    facts: &'a Facts,
    taken: &'a Taken,
    mut obstacle: impl FnMut(Obstacle<'a>),
) -> bool {
    if let Some(found) = stopped(demand, facts, taken) {
        obstacle(found);
        return false;
    }
    let mut fits = true;
    if taken.pods >= facts.max_pods {
        fits = false;
        obstacle(Obstacle::Full);
    }
    for resource in demand.claim.amounts.beyond(&facts.allocatable, &taken.amounts) {
        fits = false;
        obstacle(Obstacle::Short(resource));
    }
    fits
}

/// The first thing that keeps the pod from the node, in the order of the filters.
pub(super) fn first_obstacle<'a>(
    demand: &'a Demand,
    facts: &'a Facts,
    taken: &'a Taken,
) -> Option<Obstacle<'a>> {
    let mut first = None;
    passes(demand, facts, taken, |obstacle| {
        first.get_or_insert(obstacle);
    });
    first
}

/// The first filter before the resources that fails.
fn stopped(demand: &Demand, facts: &Facts, taken: &Taken) -> Option<Obstacle<'static>> {
    let node = &facts.node;
    if node.spec.unschedulable && !demand.bears_cordon {
        return Some(Obstacle::Cordoned);
    }
    if demand.spec.node_name.as_ref().is_some_and(|name| *name != node.meta.name) {
        return Some(Obstacle::OtherName);
    }
    if facts.barring.iter().any(|taint| !demand.tolerates(taint)) {
        return Some(Obstacle::Tainted);
    }
    if !affinity::accepts(&demand.spec, &node.meta.name, &node.meta.labels) {
        return Some(Obstacle::Unmatched);
    }
    let is_taken = |port| taken.ports.iter().any(|held| held.collides(port));
    demand.claim.ports.iter().any(is_taken).then_some(Obstacle::PortsTaken)
}

#[cfg(test)]
mod tests;
