//! All nodes as the scheduler sees them, with what is allocated on each and kept for nominated pods; brought up to date
//! as records change.
//!
//! Changes are numbered, so that a caller that has examined all nodes once can ask what has changed since.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::node::Node;

use super::filter::{UnfitReason, first_unfit_reason, passes};
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
    /// How many pods of each priority could be displaced.
    displaceable: BTreeMap<i32, usize>,
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
    /// The part of it that could be displaced, by priority, the lowest first.
    displaceable: Vec<(i32, Allocated)>,
    /// In the order in which they were nominated.
    nominated: Vec<NominatedPod>,
    /// The number of the last change.
    changed: u64,
}

/// A pod for which others are being displaced on a node. Its request is not allocated yet.
#[derive(Clone, Debug)]
pub(super) struct NominatedPod {
    pub(super) key: Key,
    pub(super) requirements: Arc<PodRequirements>,
}

impl NodeInfo {
    /// What a pod of that priority finds taken: what is allocated, and what is kept for nominated pods that are as
    /// important or more so. `own` is the pod itself, if it is nominated; its space was found beside those of its priority
    /// that were nominated before it.
    pub(super) fn taken_for(&self, priority: i32, own: Option<&Key>) -> Cow<'_, Allocated> {
        let own_place = own.and_then(|own| self.nominated.iter().position(|pod| pod.key == *own));
        let is_kept = |place: usize, pod: &NominatedPod| match pod.requirements.priority().cmp(&priority) {
            Ordering::Greater => true,
            Ordering::Equal => own_place.is_none_or(|own| place < own),
            Ordering::Less => false,
        };
        let mut taken = Cow::Borrowed(&self.allocated);
        for (place, pod) in self.nominated.iter().enumerate() {
            if is_kept(place, pod) {
                taken.to_mut().add(&pod.requirements.request);
            }
        }
        taken
    }

    /// The same, as if no pod of lower priority were on the node; `None` if there are none that could be displaced.
    pub(super) fn taken_without_lower(&self, priority: i32) -> Option<Allocated> {
        let mut lower = self.displaceable.iter().take_while(|(held, _)| *held < priority).peekable();
        lower.peek()?;
        let mut taken = self.taken_for(priority, None).into_owned();
        lower.for_each(|(_, part)| taken.subtract(part));
        Some(taken)
    }

    /// Adds to, or removes from, what could be displaced.
    fn change_displaceable(&mut self, priority: i32, change: impl FnOnce(&mut Allocated)) {
        let at = match self.displaceable.binary_search_by_key(&priority, |(held, _)| *held) {
            Ok(at) => at,
            Err(at) => {
                // Most nodes have pods of one priority.
                self.displaceable.reserve_exact(1);
                self.displaceable.insert(at, (priority, Allocated::default()));
                at
            }
        };
        let (_, part) = &mut self.displaceable[at];
        change(part);
        if part.pods == 0 {
            self.displaceable.remove(at);
        }
    }
}

impl NodeCache {
    pub(super) fn info(&self, name: &Name) -> Option<&NodeInfo> {
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

    /// Allocates for a pod that is bound and could be displaced.
    pub(super) fn allocate_displaceable(&mut self, name: &Name, priority: i32, request: &PodRequest) {
        self.allocate(name, request);
        let slot = self.slot_for(name);
        self.infos[slot].change_displaceable(priority, |part| part.add(request));
        *self.displaceable.entry(priority).or_default() += 1;
    }

    /// Releases what was allocated for such a pod.
    pub(super) fn release_displaceable(&mut self, name: &Name, priority: i32, request: &PodRequest) {
        if let Some(&slot) = self.slots.get(name) {
            self.infos[slot].change_displaceable(priority, |part| part.remove(request));
            if let Some(count) = self.displaceable.get_mut(&priority) {
                *count -= 1;
                if *count == 0 {
                    self.displaceable.remove(&priority);
                }
            }
        }
        self.release(name, request);
    }

    /// Whether there is any pod of a lower priority that could be displaced.
    pub(super) fn has_displaceable_below(&self, priority: i32) -> bool {
        self.displaceable.first_key_value().is_some_and(|(lowest, _)| *lowest < priority)
    }

    /// Keeps space on the node for a pod, from pods of the same or lower priority.
    pub(super) fn nominate(&mut self, name: &Name, pod: NominatedPod) {
        let slot = self.slot_for(name);
        self.infos[slot].nominated.push(pod);
        self.mark_changed(slot);
    }

    pub(super) fn end_nomination(&mut self, name: &Name, key: &Key) {
        if let Some(&slot) = self.slots.get(name) {
            self.infos[slot].nominated.retain(|pod| pod.key != *key);
            self.mark_changed(slot);
            self.drop_if_empty(name, slot);
        }
    }

    pub(super) fn nominated_on(&self, name: &Name) -> &[NominatedPod] {
        self.info(name).map_or(&[], |info| &info.nominated)
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
        if info.view.is_none() && info.allocated.pods == 0 && info.nominated.is_empty() {
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
        self.fits_beside(requirements, name, None)
    }

    /// The same for a pod that is nominated itself.
    pub(super) fn fits_beside(&self, requirements: &PodRequirements, name: &Name, own: Option<&Key>) -> bool {
        self.info(name).is_some_and(|info| {
            let taken = info.taken_for(requirements.priority(), own);
            info.view.as_ref().is_some_and(|view| passes(requirements, view, &taken, |_| {}))
        })
    }

    /// Whether the pod fits that node, or would fit if it displaced pods of lower priority.
    pub(super) fn may_fit(&self, requirements: &PodRequirements, name: &Name) -> bool {
        self.fits(requirements, name)
            || requirements.spec.may_preempt()
                && self.info(name).is_some_and(|info| {
                    let taken = info.taken_without_lower(requirements.priority());
                    let view = info.view.as_ref();
                    view.zip(taken).is_some_and(|(view, taken)| passes(requirements, view, &taken, |_| {}))
                })
    }

    /// Whether only what other pods take can keep the pod from that node.
    pub(super) fn is_open_to(&self, requirements: &PodRequirements, name: &Name) -> bool {
        let Some(NodeInfo { view: Some(view), allocated, .. }) = self.info(name) else { return false };
        first_unfit_reason(requirements, view, allocated).is_none_or(UnfitReason::is_of_other_pods)
    }

    /// Whether the pod fits a node that has changed, or fails at a later filter than before.
    pub(super) fn has_improved_for(&self, requirements: &PodRequirements, old: &NodeView) -> bool {
        let name = &old.node.meta.name;
        let Some(info @ NodeInfo { view: Some(view), .. }) = self.info(name) else {
            return false;
        };
        let taken = info.taken_for(requirements.priority(), None);
        let has_improved = match (
            first_unfit_reason(requirements, old, &taken),
            first_unfit_reason(requirements, view, &taken),
        ) {
            (_, None) => true,
            (before, Some(now)) => before.is_some_and(|before| now > before),
        };
        has_improved || self.may_fit(requirements, name)
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
    for info in infos {
        let taken = info.taken_for(requirements.priority(), None);
        if let Some(view) = &info.view
            && passes(requirements, view, &taken, |reason| fit_error.count(reason))
        {
            candidates.push(Candidate::new(requirements, view, &info.allocated));
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
