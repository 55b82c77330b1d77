//! Whether a pod fits a node: the filters in order; the first that fails ends the check.

use std::fmt;

use muster_proto::affinity;

use super::node_info::{Allocated, NodeView};
use super::pod_requirements::PodRequirements;

/// Why a pod does not fit a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnfitReason<'a> {
    Cordoned,
    NodeName,
    Tainted,
    NodeAffinity,
    HostPorts,
    TooManyPods,
    /// The node has too little of that resource left.
    Insufficient(&'a str),
}

impl UnfitReason<'_> {
    /// Whether it could be otherwise if other pods were not on the node.
    pub(crate) fn is_of_other_pods(self) -> bool {
        match self {
            UnfitReason::HostPorts | UnfitReason::TooManyPods | UnfitReason::Insufficient(_) => true,
            UnfitReason::Cordoned
            | UnfitReason::NodeName
            | UnfitReason::Tainted
            | UnfitReason::NodeAffinity => false,
        }
    }
}

impl fmt::Display for UnfitReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnfitReason::Cordoned => "node(s) were unschedulable",
            UnfitReason::NodeName => "node(s) didn't match the requested node name",
            UnfitReason::Tainted => "node(s) had untolerated taint(s)",
            UnfitReason::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            UnfitReason::HostPorts => "node(s) didn't have free ports",
            UnfitReason::TooManyPods => "Too many pods",
            UnfitReason::Insufficient(resource) => return write!(f, "Insufficient {resource}"),
        })
    }
}

/// Whether the pod fits the node. If not, `reason` is called with the filter that failed, or with everything that is
/// short.
pub(super) fn passes<'a>(
    requirements: &'a PodRequirements,
    view: &'a NodeView,
    allocated: &'a Allocated,
    mut reason: impl FnMut(UnfitReason<'a>),
) -> bool {
    if let Some(found) = failed_filter(requirements, view, allocated) {
        reason(found);
        return false;
    }
    let mut fits = true;
    if allocated.pods >= view.max_pods {
        fits = false;
        reason(UnfitReason::TooManyPods);
    }
    for resource in requirements.request.amounts.exceeding(&view.allocatable, &allocated.amounts) {
        fits = false;
        reason(UnfitReason::Insufficient(resource));
    }
    fits
}

/// The first reason why the pod does not fit the node, in the order of the filters.
pub(super) fn first_unfit_reason<'a>(
    requirements: &'a PodRequirements,
    view: &'a NodeView,
    allocated: &'a Allocated,
) -> Option<UnfitReason<'a>> {
    let mut first = None;
    passes(requirements, view, allocated, |reason| {
        first.get_or_insert(reason);
    });
    first
}

/// The first filter that fails, without those for resources.
fn failed_filter(
    requirements: &PodRequirements,
    view: &NodeView,
    allocated: &Allocated,
) -> Option<UnfitReason<'static>> {
    let node = &view.node;
    if node.spec.unschedulable && !requirements.tolerates_cordon {
        return Some(UnfitReason::Cordoned);
    }
    if requirements.spec.node_name.as_ref().is_some_and(|name| *name != node.meta.name) {
        return Some(UnfitReason::NodeName);
    }
    if view.hard_taints.iter().any(|taint| !requirements.tolerates(taint)) {
        return Some(UnfitReason::Tainted);
    }
    if !affinity::accepts(&requirements.spec, &node.meta.name, &node.meta.labels) {
        return Some(UnfitReason::NodeAffinity);
    }
    let is_in_use = |port| allocated.ports.iter().any(|held| held.collides(port));
    requirements.request.ports.iter().any(is_in_use).then_some(UnfitReason::HostPorts)
}

#[cfg(test)]
mod tests;
