//! Registration: the node as it is created, and what is corrected in a node that exists.
//!
//! A node that exists belongs to its operators: labels, taints and cordons that they set stay. Only what describes the
//! machine itself is corrected.

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

/// Labels that describe the machine or its location. Where the agent sets one of them, its value wins.
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

/// The outcome of an attempt to create the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    Done,
    AlreadyExists,
    Forbidden,
    /// Any other error, such as a store that cannot be reached.
    Failed,
}

/// What to do after an attempt to create the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The node is registered. This process never creates it again, even if it is deleted.
    Registered,
    /// Read the node; if it exists, [`reconcile`] it, else start over later.
    Read,
    /// Start over later.
    Retry,
}

/// What follows from the answer to a create. An agent that may not create its node can still adopt one that an
/// administrator created.
pub fn after_create(created: Created) -> Next {
    match created {
        Created::Done => Next::Registered,
        Created::AlreadyExists | Created::Forbidden => Next::Read,
        Created::Failed => Next::Retry,
    }
}

/// The node to create. `computed` is its first status; its events are recorded only once the node exists.
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

/// The corrected node, for one status update that carries labels too; `None` if nothing is wrong.
///
/// `agent` is the node uid that the agent knew before. An agent without one has lost its state, and with it what it
/// knew of devices: the devices that the node lists may be gone, so they count as zero until a plug-in reports them
/// again.
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

/// Restores the labels that schedulers need to find machines that can run a program at all; returns whether one was
/// missing or wrong. Called for each status that is posted.
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

/// Huge pages are reserved at boot: a size that the machine no longer has is removed.
fn follow_huge_pages(held: &mut Resources, found: &Resources) {
    held.retain(|name, _| !name.starts_with(HUGE_PAGES_PREFIX) || found.contains_key(name));
    let pages = found.iter().filter(|(name, _)| name.starts_with(HUGE_PAGES_PREFIX));
    held.extend(pages.map(|(name, amount)| (name.clone(), *amount)));
}

fn is_device(name: &str) -> bool {
    ![CPU, MEMORY, PODS, EPHEMERAL_STORAGE].contains(&name) && !name.starts_with(HUGE_PAGES_PREFIX)
}
