//! The checked settings that decisions about the node depend on.

use muster_proto::label::Labels;
use muster_proto::name::Name;
use muster_proto::quantity::Resources;
use muster_proto::taint::Taint;

mod cloud;
mod node_ip;

pub use cloud::Cloud;
pub use node_ip::{NodeIpError, NodeIps, family};

/// Who the node is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeConfig {
    /// As the operator gave it; `None` leaves it to the hostname.
    pub name: Option<Name>,
    /// Whether the state directory has a say before the hostname.
    pub keep_name: bool,
    pub register: bool,
    /// Of a new node.
    pub labels: Labels,
    /// Of a new node.
    pub taints: Vec<Taint>,
    pub ips: NodeIps,
    pub cloud: Cloud,
    pub provider_id: String,
}

/// What of the machine pods may use.
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityConfig {
    pub max_pods: u32,
    /// 0 means that cores do not limit pods.
    pub pods_per_core: u32,
    pub system_reserved: Resources,
    pub kube_reserved: Resources,
}
