//! Getting on the roll: the node as it is created, and what is put right in one that is there already. Pure.
//!
//! A node that exists belongs to its operators: labels, taints and cordons they set stay. Only what describes
//! the machine itself is corrected.

use muster_proto::label::Labels;
use muster_proto::meta::Metadata;
use muster_proto::name::Uid;
use muster_proto::node::{Node, NodeSpec};
use muster_proto::quantity::{Quantity, Resources};
use muster_proto::taint::{Taint, TaintEffect, add_or_update};
use muster_proto::wellknown::{label, taint};

use crate::config::Cloud;
use crate::machine::System;
use crate::status::capacity::{CPU, EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, MEMORY, PODS};
use crate::status::{Computed, Settings};

#[cfg(test)]
mod tests;

/// Labels that describe the machine or its place. Where the agent says one of them, it has the last word.
const DEFAULT_LABELS: [&str; 12] = [
    label::HOSTNAME,
    label::ZONE,
    label::REGION,
    label::ZONE_BETA,
    label::REGION_BETA,
    label::INSTANCE_TYPE,
    label::INSTANCE_TYPE_BETA,
    label::OS,
    label::ARCH,
    label::OS_BETA,
    label::ARCH_BETA,
    "node.kubernetes.io/windows-build",
];

/// How an attempt to create the node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    Done,
    AlreadyExists,
    Forbidden,
    /// Anything else, a store that is away among it.
    Failed,
}

/// What to do after an attempt to create the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The node is on the roll. This process never creates it again, even if it is deleted.
    Registered,
    /// Read the node; if it is there, [`reconcile`] it, else try the whole again later.
    Read,
    /// Try the whole again later.
    Retry,
}

/// What follows from the answer to a create. An agent that may not create may still adopt what an administrator
/// created for it.
pub fn after_create(created: Created) -> Next {
    match created {
        Created::Done => Next::Registered,
        Created::AlreadyExists | Created::Forbidden => Next::Read,
        Created::Failed => Next::Retry,
    }
}

/// The node to create. `computed` is its status after nothing; its events are worth telling only once the
/// node is there.
pub fn initial_node(settings: &Settings, system: &System, computed: Computed) -> Node {
    let mut labels: Labels = system_labels(system).map(owned).into();
    labels.insert(label::HOSTNAME.to_owned(), settings.name.to_string());
    labels.extend(settings.node.labels.clone());
    let mut taints = settings.node.taints.clone();
    if settings.node.cloud == Cloud::External {
        add_or_update(&mut taints, Taint::new(taint::UNINITIALIZED, "true", TaintEffect::NoSchedule));
    }
    let meta =
        Metadata { labels, annotations: computed.annotations, ..Metadata::new(None, settings.name.clone()) };
    let provider_id = settings.node.provider_id.clone();
    let spec = NodeSpec { provider_id, taints, ..NodeSpec::default() };
    Node { meta, spec, status: computed.status }
}

/// What a node that exists should look like once its agent has found it: the node for one status update, which
/// carries labels too, or `None` if nothing is wrong.
///
/// An agent that never had a node was created anew and has no memory of devices from before: what the node lists of them
/// may be gone, so it counts for nothing until somebody finds it again.
pub fn reconcile(existing: &Node, initial: &Node, agent: Option<Uid>) -> Option<Node> {
    let mut node = existing.clone();
    for key in DEFAULT_LABELS {
        match initial.meta.labels.get(key).map(String::as_str) {
            Some("") => drop(node.meta.labels.remove(key)),
            Some(value) => drop(node.meta.labels.insert(key.to_owned(), value.to_owned())),
            None => {}
        }
    }
    if node.status.capacity.is_empty() {
        node.status.capacity = initial.status.capacity.clone();
    }
    if node.status.allocatable.is_empty() {
        node.status.allocatable = initial.status.allocatable.clone();
    }
    follow_huge_pages(&mut node.status.capacity, &initial.status.capacity);
    follow_huge_pages(&mut node.status.allocatable, &initial.status.allocatable);
    if agent.is_none() {
        let devices = node
            .status
            .capacity
            .iter_mut()
            .chain(&mut node.status.allocatable)
            .filter(|(name, _)| is_device(name));
        devices.for_each(|(_, amount)| *amount = Quantity::ZERO);
    }
    (node != *existing).then_some(node)
}

/// Puts back the labels that schedulers rely on to find machines that can run a program at all; says whether any
/// was missing or wrong. For each status that is posted.
pub fn repair_labels(labels: &mut Labels, system: &System) -> bool {
    let mut repaired = false;
    for (key, value) in [(label::OS, &system.operating_system), (label::ARCH, &system.architecture)] {
        if labels.get(key) != Some(value) {
            labels.insert(key.to_owned(), value.clone());
            repaired = true;
        }
    }
    repaired
}

fn system_labels(system: &System) -> [(&'static str, &str); 4] {
    let (os, arch) = (system.operating_system.as_str(), system.architecture.as_str());
    [(label::OS, os), (label::ARCH, arch), (label::OS_BETA, os), (label::ARCH_BETA, arch)]
}

fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

/// Huge pages are set aside at boot: a size that is gone stays gone, so nothing of it is kept.
fn follow_huge_pages(held: &mut Resources, found: &Resources) {
    held.retain(|name, _| !name.starts_with(HUGE_PAGES_PREFIX) || found.contains_key(name));
    let pages = found.iter().filter(|(name, _)| name.starts_with(HUGE_PAGES_PREFIX));
    held.extend(pages.map(|(name, amount)| (name.clone(), *amount)));
}

fn is_device(name: &str) -> bool {
    ![CPU, MEMORY, PODS, EPHEMERAL_STORAGE].contains(&name) && !name.starts_with(HUGE_PAGES_PREFIX)
}
