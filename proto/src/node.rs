//! Nodes: the desired and the observed state of a machine.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

use crate::cidr::Cidr;
use crate::condition::{ConditionStatus, types};
use crate::drain::{Cordon, Drain};
use crate::meta::Metadata;
use crate::pb;
use crate::quantity::Resources;
use crate::taint::Taint;
use crate::wellknown::label;

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub meta: Metadata,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

/// The desired state of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeSpec {
    /// At most one for each IP family.
    pub pod_cidrs: Vec<Cidr>,
    pub provider_id: String,
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    /// One for each owner, in the order of their requests.
    pub cordons: Vec<Cordon>,
    pub drain: Option<Drain>,
}

/// The observed state of a node, written by its agent and the controller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeStatus {
    pub addresses: Vec<NodeAddress>,
    pub conditions: Vec<NodeCondition>,
    pub capacity: Resources,
    pub allocatable: Resources,
    pub node_info: pb::NodeSystemInfo,
    pub images: Vec<pb::ContainerImage>,
    /// The port of AgentService; 0 means none.
    pub agent_port: u16,
    /// The only address at which AgentService listens; empty means all addresses of the node.
    pub agent_address: String,
    pub volumes_in_use: Vec<String>,
    /// For old clients; nothing reads it.
    pub phase: String,
}

/// One address of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAddress {
    pub kind: AddressType,
    pub address: String,
}

/// The type of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressType {
    Hostname,
    InternalIp,
    ExternalIp,
    InternalDns,
    ExternalDns,
}

/// The text is not an address type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be Hostname, InternalIP, ExternalIP, InternalDNS or ExternalDNS")]
pub struct AddressTypeError;

/// One aspect of a node's health.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeCondition {
    /// One of [`types`], or a custom type.
    pub kind: String,
    pub status: ConditionStatus,
    pub reason: String,
    pub message: String,
    /// When the agent last computed this condition, by its own clock.
    pub last_heartbeat_time: Option<Timestamp>,
    pub last_transition_time: Option<Timestamp>,
}

impl Node {
    /// The first condition of that type; writers replace the first one, too.
    pub fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.status.condition(kind)
    }

    /// Whether Ready is True.
    pub fn is_ready(&self) -> bool {
        self.condition(types::READY).is_some_and(|ready| ready.status == ConditionStatus::True)
    }

    /// The node's roles, sorted, each once.
    pub fn roles(&self) -> Vec<&str> {
        let mut roles: Vec<&str> = Vec::new();
        for (key, value) in &self.meta.labels {
            if let Some(role) = key.strip_prefix(label::ROLE_PREFIX) {
                roles.push(role);
            } else if key == label::ROLE && !value.is_empty() {
                roles.push(value);
            }
        }
        roles.sort_unstable();
        roles.dedup();
        roles
    }
}

impl NodeStatus {
    /// The first condition of that type.
    pub fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

impl FromStr for AddressType {
    type Err = AddressTypeError;

    fn from_str(text: &str) -> Result<Self, AddressTypeError> {
        match text {
            "Hostname" => Ok(Self::Hostname),
            "InternalIP" => Ok(Self::InternalIp),
            "ExternalIP" => Ok(Self::ExternalIp),
            "InternalDNS" => Ok(Self::InternalDns),
            "ExternalDNS" => Ok(Self::ExternalDns),
            _ => Err(AddressTypeError),
        }
    }
}

impl fmt::Display for AddressType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hostname => "Hostname",
            Self::InternalIp => "InternalIP",
            Self::ExternalIp => "ExternalIP",
            Self::InternalDns => "InternalDNS",
            Self::ExternalDns => "ExternalDNS",
        })
    }
}
