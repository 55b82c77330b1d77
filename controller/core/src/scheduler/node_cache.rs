//! All nodes as the scheduler sees them, with what is allocated on each; kept up to date as records change.
//!
//! Changes are numbered, so that a caller that has examined all nodes once can ask what has changed since.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use muster_proto::name::Name;
use muster_proto::node::Node;

use super::filter::{first_unfit_reason, passes};
use super::fit_error::FitError;
use super::node_info::{Allocated, NodeView};
use super::pod_requirements::{PodRequest, PodRequirements};
use super::score::{Candidate, ScoreClass, best};

/// The index of a node's info. It is used again for another node when the first one is gone.
pub(super) type Slot = usize;

#[derive(Clone, Debug, Default)]
pub(super) struct NodeCache {
    /// Of every node that exists or on which a pod has something allocated.
    slots: HashMap<Name, Slot>,
    infos: Vec<NodeInfo>,
    free: Vec<Slot>,
    nodes: usize,
    /// The number of the last change.
    changes: u64,
    /// Slots by the number of their last change.
    changed: BTreeMap<u64, Slot>,
}

/// What a new node record means for the scheduler.
#[derive(Debug)]
pub(super) enum NodeChange {
    /// Nothing that the scheduler reads has changed.
    Irrelevant,
    New,
    /// Contains the node as it was before.
    Changed(Box<NodeView>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct NodeInfo {
    /// `None` if there is no such node.
    pub(super) view: Option<NodeView>,
    pub(super) allocated: Allocated,
    /// The number of the last change.
    changed: u64,
}

impl NodeCache {
    fn info(&self, name: &Name) -> Option<&NodeInfo> {
        self.slots.get(name).map(|&slot| &self.infos[slot])
    }

    pub(super) fn has(&self, name: &Name) -> bool {
        self.info(name).is_some_and(|info| info.view.is_some())
    }

    pub(super) fn is_cordoned(&self, name: &Name) -> bool {
        let view = self.info(name).and_then(|info| info.view.as_ref());
        view.is_some_and(|view| view.node.spec.unschedulable)
    }

    pub(super) fn node_count(&self) -> usize {
        self.nodes
    }

    /// Adds or updates a node.
    pub(super) fn set_node(&mut self, node: &Arc<Node>) -> NodeChange {
        let slot = self.slot_for(&node.meta.name);
        let change = match &mut self.infos[slot].view {
            Some(view) => match view.update(node) {
                None => return NodeChange::Irrelevant,
                Some(old) => NodeChange::Changed(old),
            },
            none => {
                *none = Some(NodeView::of(node));
                self.nodes += 1;
                NodeChange::New
            }
        };
        self.mark_changed(slot);
        change
    }

    /// Removes a node. What its pods have allocated is kept: another node of that name may be created before they go.
    pub(super) fn remove_node(&mut self, name: &Name) {
        if let Some(&slot) = self.slots.get(name)
            && self.infos[slot].view.take().is_some()
        {
            self.nodes -= 1;
            self.mark_changed(slot);
            self.drop_if_empty(name, slot);
        }
    }

    pub(super) fn allocate(&mut self, name: &Name, request: &PodRequest) {
        let slot = self.slot_for(name);
        self.infos[slot].allocated.add(request);
        self.mark_changed(slot);
    }

    /// Releases what was allocated.
    pub(super) fn release(&mut self, name: &Name, request: &PodRequest) {
        if let Some(&slot) = self.slots.get(name) {
            self.infos[slot].allocated.remove(request);
            self.mark_changed(slot);
            self.drop_if_empty(name, slot);
        }
    }

    fn slot_for(&mut self, name: &Name) -> Slot {
        if let Some(&slot) = self.slots.get(name) {
            return slot;
        }
        let slot = self.free.pop().unwrap_or(self.infos.len());
        if slot == self.infos.len() {
            self.infos.push(NodeInfo::default());
        }
        self.slots.insert(name.clone(), slot);
        slot
    }

    fn drop_if_empty(&mut self, name: &Name, slot: Slot) {
        let info = &self.infos[slot];
        if info.view.is_none() && info.allocated.pods == 0 {
            self.slots.remove(name);
            self.free.push(slot);
        }
    }

    /// Records a change of the node under the next number.
    fn mark_changed(&mut self, slot: Slot) {
        self.changes += 1;
        let before = std::mem::replace(&mut self.infos[slot].changed, self.changes);
        self.changed.remove(&before);
        self.changed.insert(self.changes, slot);
    }

    /// The number of the last change.
    pub(super) fn last_change(&self) -> u64 {
        self.changes
    }

    /// The nodes that have changed after that number, each as it is now.
    pub(super) fn changed_since(&self, seen: u64) -> impl Iterator<Item = (Slot, &NodeInfo)> {
        self.changed.range(seen + 1..).map(|(_, &slot)| (slot, &self.infos[slot]))
    }

    /// All nodes, by slot.
    pub(super) fn infos(&self) -> &[NodeInfo] {
        &self.infos
    }

    /// Whether the pod fits that node.
    pub(super) fn fits(&self, requirements: &PodRequirements, name: &Name) -> bool {
        self.info(name).is_some_and(|NodeInfo { view, allocated, .. }| {
            view.as_ref().is_some_and(|view| passes(requirements, view, allocated, |_| {}))
        })
    }

    /// Whether the pod fits a node that has changed, or fails at a later filter than before.
    pub(super) fn has_improved_for(&self, requirements: &PodRequirements, old: &NodeView) -> bool {
        let Some(NodeInfo { view: Some(view), allocated, .. }) = self.info(&old.node.meta.name) else {
            return false;
        };
        match (
            first_unfit_reason(requirements, old, allocated),
            first_unfit_reason(requirements, view, allocated),
        ) {
            (_, None) => true,
            (before, Some(now)) => before.is_some_and(|before| now > before),
        }
    }

    /// The best of the nodes that the pod names; `None` if it names none or fits none of them.
    pub(super) fn choose_among_named(
        &self,
        requirements: &PodRequirements,
        examined: &mut usize,
    ) -> Option<Name> {
        let names = requirements.node_names.as_ref()?;
        *examined += names.len();
        let infos = names.iter().filter_map(|name| self.info(name));
        choose_among(requirements, infos, &mut FitError::default())
    }

    /// The best node for the pod, or why there is none, by examining every node. Each is counted in `examined`.
    pub(super) fn choose_among_all(
        &self,
        requirements: &PodRequirements,
        examined: &mut usize,
    ) -> Result<Name, FitError> {
        *examined += self.infos.len();
        let mut fit_error = FitError::of(self.nodes);
        choose_among(requirements, self.infos.iter(), &mut fit_error).ok_or(fit_error)
    }
}

fn choose_among<'a>(
    requirements: &PodRequirements,
    infos: impl Iterator<Item = &'a NodeInfo>,
    fit_error: &mut FitError,
) -> Option<Name> {
    let mut candidates = Vec::new();
    for NodeInfo { view, allocated, .. } in infos {
        if let Some(view) = view
            && passes(requirements, view, allocated, |reason| fit_error.count(reason))
        {
            candidates.push(Candidate::new(requirements, view, allocated));
        }
    }
    let max = ScoreClass::max_of(candidates.iter().map(|each| each.class));
    best(candidates.into_iter(), max).cloned()
}

#[cfg(test)]
impl NodeCache {
    /// What is allocated on a node; nothing on an unknown one.
    pub(super) fn allocated(&self, name: &str) -> Allocated {
        self.slots.get(name).map(|&slot| self.infos[slot].allocated.clone()).unwrap_or_default()
    }
}
