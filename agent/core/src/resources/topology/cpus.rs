//! Exclusive processors: how many a container gets, from which NUMA nodes, and which ones.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::pod::{Container, Pod, QosClass};

use super::{Hint, Hints, Mask, Scope};

/// The machine's processors by NUMA node.
pub type Layout = BTreeMap<u32, Vec<u32>>;

/// How many exclusive processors a container gets: only Guaranteed ones that request whole processors do.
pub fn exclusive(pod: &Pod, container: &Container) -> usize {
    if pod.qos() != QosClass::Guaranteed {
        return 0;
    }
    let resources = &container.resources;
    let asked = resources.requests.get("cpu").or_else(|| resources.limits.get("cpu"));
    let milli = asked.map_or(0, muster_proto::quantity::Quantity::milli);
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// How many processors must be aligned: for each container by name, or for the whole pod.
///
/// Init containers exit before the main containers start, so a pod needs the larger of both; sidecars keep running.
pub fn wanted(scope: Scope, pod: &Pod) -> Vec<(Option<String>, usize)> {
    let count = |container: &Container| exclusive(pod, container);
    match scope {
        Scope::Container => {
            pod.spec.all_containers().map(|each| (Some(each.name.clone()), count(each))).collect()
        }
        Scope::Pod => {
            let sidecars: usize =
                pod.spec.init_containers.iter().filter(|each| each.sidecar).map(count).sum();
            let inits = pod.spec.init_containers.iter().filter(|each| !each.sidecar).map(count).max();
            let mains: usize = pod.spec.containers.iter().map(count).sum();
            vec![(None, sidecars + mains.max(inits.unwrap_or(0)))]
        }
    }
}

/// From which nodes `count` processors could come while `taken` are assigned.
///
/// A hint is preferred when no smaller set of nodes has that many processors, even with none taken.
pub fn hints(layout: &Layout, taken: &BTreeSet<u32>, count: usize) -> Hints {
    if count == 0 {
        return Hints::Any;
    }
    let sizes: Vec<(usize, usize)> = layout
        .values()
        .map(|cpus| (cpus.len(), cpus.iter().filter(|cpu| !taken.contains(cpu)).count()))
        .collect();
    let masks = (1..=Mask::first(sizes.len().min(super::MAX_NODES)).0).map(Mask);
    let mut fewest = u32::MAX;
    let mut possible = Vec::new();
    for mask in masks {
        let within = || sizes.iter().enumerate().filter(|(node, _)| mask.contains(*node));
        if within().map(|(_, (all, _))| all).sum::<usize>() >= count {
            fewest = fewest.min(mask.count());
        }
        if within().map(|(_, (_, free))| free).sum::<usize>() >= count {
            possible.push(mask);
        }
    }
    let hint = |mask: Mask| Hint { mask: Some(mask), is_preferred: mask.count() == fewest };
    Hints::From(possible.into_iter().map(hint).collect())
}

/// Picks `count` free processors, from the nodes of the mask as far as they suffice.
///
/// The node with the fewest free processors that still has enough gives them; if no node has enough, those with the
/// most free processors go first, so that as few nodes as possible are used. `None` if the machine does not have that
/// many.
pub fn pick(
    layout: &Layout,
    taken: &BTreeSet<u32>,
    count: usize,
    mask: Option<Mask>,
) -> Option<BTreeSet<u32>> {
    let mut near = Vec::new();
    let mut far = Vec::new();
    for (node, cpus) in layout.values().enumerate() {
        let mut free: Vec<u32> = cpus.iter().copied().filter(|cpu| !taken.contains(cpu)).collect();
        free.sort_unstable();
        let is_near = mask.is_none_or(|mask| mask.contains(node));
        if is_near { near.push(free) } else { far.push(free) }
    }
    let mut picked = BTreeSet::new();
    take(near, count, &mut picked);
    take(far, count, &mut picked);
    (picked.len() == count).then_some(picked)
}

/// Adds processors until there are `count`.
fn take(mut nodes: Vec<Vec<u32>>, count: usize, picked: &mut BTreeSet<u32>) {
    // Most free first; among equals the lower node, since the sort is stable.
    nodes.sort_by_key(|free| std::cmp::Reverse(free.len()));
    while picked.len() < count && !nodes.is_empty() {
        let missing = count - picked.len();
        // The node with the fewest free processors that has all that are missing, else the one with the most.
        let tight = nodes.iter().map(Vec::len).filter(|free| *free >= missing).min();
        let index = tight.and_then(|size| nodes.iter().position(|free| free.len() == size)).unwrap_or(0);
        picked.extend(nodes.remove(index).into_iter().take(missing));
    }
}
