//! The node's status, computed from what was observed.
//!
//! [`compute`] runs one setter for each part, in a fixed order. A setter overwrites its own part only, so that what
//! others wrote (a cloud's addresses, a plug-in's condition) stays. A setter that fails leaves its part unchanged, and
//! the others still run.

use std::net::IpAddr;

use jiff::Timestamp;
use muster_proto::event::EventType;
use muster_proto::label::Annotations;
use muster_proto::name::Name;
use muster_proto::node::{Node, NodeSpec, NodeStatus};
use muster_proto::pb;
use muster_proto::quantity::Resources;
use muster_proto::wellknown::annotation::PROVIDED_NODE_IP;

use crate::config::{CapacityConfig, NodeConfig};
use crate::machine::{Hardware, Network, System};
use crate::pressure::PressureConditions;

pub mod addresses;
pub mod capacity;
pub mod conditions;
pub mod info;
pub mod ready;
#[cfg(test)]
mod tests;

use addresses::Lookup;
use capacity::EvictionReserve;
use ready::Health;

/// The settings of a node, which do not change from one status to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub name: Name,
    pub node: NodeConfig,
    pub capacity: CapacityConfig,
    /// What the hard eviction thresholds keep back from pods.
    pub eviction_reserve: EvictionReserve,
    /// The port of AgentService; 0 means that it does not listen.
    pub agent_port: u16,
    /// Its only address; `None` means all addresses of the node.
    pub agent_address: Option<IpAddr>,
    /// Whether it reports the condition OutOfDisk too.
    pub legacy_conditions: bool,
    /// `None` lists all images.
    pub max_images: Option<usize>,
    /// The agent's version.
    pub version: String,
    /// Whether pods are limited in local storage, so that the node must report how much it has.
    pub storage_isolation: bool,
}

/// What was observed for one status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    pub system: System,
    /// `None` if it could not be read.
    pub hardware: Option<Hardware>,
    /// Bytes of the filesystem that pods write to; `None` if it could not be read.
    pub storage_bytes: Option<u64>,
    /// `None` if its addresses could not be read.
    pub network: Option<Network>,
    /// The addresses that the node's name resolves to, if the resolver was asked.
    pub lookup: Lookup,
    pub devices: Devices,
    /// `type://version` of the container runtime.
    pub runtime_version: String,
    pub images: Vec<pb::ContainerImage>,
    pub volumes_in_use: Vec<String>,
    pub pressures: PressureConditions,
    pub health: Health,
}

/// Resources that plug-ins add to the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Devices {
    pub capacity: Resources,
    /// Allocatable amounts that differ from the capacity.
    pub allocatable: Resources,
    /// Devices whose plug-in is gone: they stay listed, with an amount of 0.
    pub removed: Vec<String>,
}

/// Events that this process has already emitted, so that each is emitted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmittedEvents {
    rebooted: bool,
    unschedulable: bool,
}

/// Something that happened to the node, to be recorded as an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    pub kind: EventType,
    pub reason: &'static str,
    pub message: String,
}

/// A computed status, with its events and problems.
#[derive(Clone, Debug, PartialEq)]
pub struct Computed {
    pub status: NodeStatus,
    /// The node's annotations with ours set or removed; only [`PROVIDED_NODE_IP`] changes.
    pub annotations: Annotations,
    pub events: Vec<NodeEvent>,
    /// Setters that failed, for the log.
    pub problems: Vec<String>,
}

/// What the store, or an earlier status, has of the node. Empty for a node that was never registered.
#[derive(Clone, Copy, Debug)]
pub struct Previous<'a> {
    pub status: &'a NodeStatus,
    pub spec: &'a NodeSpec,
    pub annotations: &'a Annotations,
}

impl<'a> From<&'a Node> for Previous<'a> {
    fn from(node: &'a Node) -> Self {
        Self { status: &node.status, spec: &node.spec, annotations: &node.meta.annotations }
    }
}

/// The node's status at `now`.
pub fn compute(
    previous: Previous<'_>,
    settings: &Settings,
    observed: &Observed,
    emitted: &mut EmittedEvents,
    now: Timestamp,
) -> Computed {
    let mut status = previous.status.clone();
    let mut annotations = previous.annotations.clone();
    let (mut events, mut problems) = (Vec::new(), Vec::new());

    match addresses::addresses(
        &previous.status.addresses,
        settings,
        observed.network.as_ref(),
        &observed.lookup,
    ) {
        Ok(found) => status.addresses = found,
        Err(error) => problems.push(format!("the node's addresses stay as they were: {error}")),
    }
    match addresses::provided_node_ip(&settings.node) {
        Some(given) => annotations.insert(PROVIDED_NODE_IP.to_owned(), given),
        None => annotations.remove(PROVIDED_NODE_IP),
    };

    if observed.hardware.is_none() {
        problems.push("the machine's cores and memory cannot be read".to_owned());
    }
    status.capacity = capacity::capacity(&previous.status.capacity, &settings.capacity, observed);
    status.allocatable = capacity::allocatable(
        &status.capacity,
        &settings.capacity,
        &settings.eviction_reserve,
        &observed.devices,
    );
    events.extend(info::rebooted(&settings.name, &previous.status.node_info, &observed.system, emitted));
    status.node_info = info::node_info(&previous.status.node_info, settings, observed);
    status.agent_port = settings.agent_port;
    status.agent_address = settings.agent_address.map(|address| address.to_string()).unwrap_or_default();
    status.images = info::images(&observed.images, settings.max_images);

    let who = &settings.name;
    events.extend(conditions::set_pressures(&mut status.conditions, who, observed.pressures, now));
    if settings.legacy_conditions {
        events.extend(conditions::set_out_of_disk(&mut status.conditions, who, observed.pressures, now));
    } else {
        status.conditions.retain(|condition| condition.kind != conditions::OUT_OF_DISK);
    }
    let ready = ready::ready_state(&observed.health, &status.capacity, settings.storage_isolation);
    events.extend(ready::set_ready(&mut status.conditions, who, ready, now));

    status.volumes_in_use = observed.volumes_in_use.clone();
    status.volumes_in_use.sort_unstable();
    events.extend(info::schedulable(who, previous.spec.unschedulable, emitted));
    Computed { status, annotations, events, problems }
}

impl NodeEvent {
    /// An event about the node's status, in the kubelet's words.
    pub(crate) fn node_status(name: &Name, reason: &'static str) -> Self {
        let message = format!("Node {name} status is now: {reason}");
        Self { kind: EventType::Normal, reason, message }
    }
}
