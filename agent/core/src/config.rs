//! The checked settings that decisions about the node depend on.

use muster_proto::label::Labels;
use muster_proto::name::Name;
use muster_proto::quantity::Resources;
use muster_proto::taint::Taint;

mod cloud;
mod node_ip;

pub use cloud::Cloud;
pub use node_ip::{NodeIpError, NodeIps, family};

/// The node's identity and what it is registered with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeConfig {
    /// The name that the operator set; `None` takes the hostname.
    pub name: Option<Name>,
    /// Whether a name in the state directory takes precedence over the hostname.
    pub keep_name: bool,
    pub register: bool,
    /// Labels of a new node.
    pub labels: Labels,
    /// Taints of a new node.
    pub taints: Vec<Taint>,
    pub ips: NodeIps,
    pub cloud: Cloud,
    pub provider_id: String,
}

/// How much of the machine pods may use.
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityConfig {
    pub max_pods: u32,
    /// 0 means that the number of cores does not limit pods.
    pub pods_per_core: u32,
    pub system_reserved: Resources,
    pub kube_reserved: Resources,
}
