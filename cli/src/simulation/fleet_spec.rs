//! The simulated nodes: their names, zones and records. Pure.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::meta::Metadata;
use muster_proto::name::Name;
use muster_proto::node::{AddressType, Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus};
use muster_proto::pb;
use muster_proto::quantity::{Quantity, Resources};
use muster_proto::wellknown::label;

/// A label of every simulated node, which real nodes do not have.
pub(crate) const SIMULATED: &str = "muster.dev/simulated";
/// The region of all simulated zones.
pub(crate) const REGION: &str = "simulated";

const PREFIX: &str = "sim-";
const GIB: i64 = 1 << 30;
/// In the range for carrier-grade NAT (RFC 6598), so that no address collides with a machine in a user's network.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([100, 64, 0, 1]);

/// The number of nodes and zones. Nodes are assigned to zones round-robin. The name of a node depends only on its
/// index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FleetSpec {
    pub(crate) nodes: usize,
    pub(crate) zones: usize,
}

impl FleetSpec {
    pub(crate) fn zone_name(number: usize) -> String {
        format!("zone-{number}")
    }

    /// The name of the node with that index, which starts at 0.
    pub(crate) fn name(index: usize) -> Name {
        format!("{PREFIX}{}", index + 1).parse().expect("sim- and a number is a name")
    }

    /// The index of the node with that name.
    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        let number: usize = name.strip_prefix(PREFIX)?.parse().ok()?;
        let index = number.checked_sub(1).filter(|index| *index < self.nodes)?;
        // Only the canonical form: sim-01 is not one of our nodes.
        (name == Self::name(index).as_str()).then_some(index)
    }

    pub(crate) fn zone(&self, index: usize) -> String {
        Self::zone_name(index % self.zones.max(1) + 1)
    }

    /// The record that the agent registers.
    pub(crate) fn node(&self, index: usize, now: Timestamp) -> Node {
        let name = Self::name(index);
        let mut meta = Metadata::new(None, name.clone());
        let zone = self.zone(index);
        meta.labels = [
            (label::HOSTNAME, name.as_str()),
            (label::OS, "linux"),
            (label::ARCH, "amd64"),
            (label::REGION, REGION),
            (label::ZONE, &zone),
            (label::INSTANCE_TYPE, "simulated.large"),
            (SIMULATED, "true"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        let spec = NodeSpec { provider_id: format!("simulated://{zone}/{name}"), ..NodeSpec::default() };
        Node { meta, spec, status: self.status(index, now) }
    }

    /// The status that the agent reports: Ready and without pressure.
    pub(crate) fn status(&self, index: usize, now: Timestamp) -> NodeStatus {
        let name = Self::name(index).to_string();
        let address = |kind, address| NodeAddress { kind, address };
        NodeStatus {
            addresses: vec![
                address(AddressType::InternalIp, Self::ip(index).to_string()),
                address(AddressType::Hostname, name.clone()),
            ],
            conditions: conditions(now),
            capacity: resources(8_000, 32, 100),
            allocatable: resources(7_500, 30, 90),
            node_info: pb::NodeSystemInfo {
                machine_id: name.clone(),
                system_uuid: name.clone(),
                boot_id: name,
                kernel_version: "simulated".to_owned(),
                os_image: "Simulated Linux".to_owned(),
                container_runtime_version: concat!("simulated://", env!("CARGO_PKG_VERSION")).to_owned(),
                kubelet_version: env!("CARGO_PKG_VERSION").to_owned(),
                operating_system: "linux".to_owned(),
                architecture: "amd64".to_owned(),
                ..pb::NodeSystemInfo::default()
            },
            ..NodeStatus::default()
        }
    }

    pub(crate) fn ip(index: usize) -> Ipv4Addr {
        Ipv4Addr::from(FIRST_ADDRESS + u32::try_from(index).unwrap_or(0))
    }
}

fn conditions(now: Timestamp) -> Vec<NodeCondition> {
    let condition = |kind: &str, status, reason: &str, message: &str| NodeCondition {
        kind: kind.to_owned(),
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_heartbeat_time: Some(now),
        last_transition_time: Some(now),
    };
    let (no, yes) = (ConditionStatus::False, ConditionStatus::True);
    vec![
        condition(types::MEMORY_PRESSURE, no, "KubeletHasSufficientMemory", "simulated memory never fills"),
        condition(types::DISK_PRESSURE, no, "KubeletHasNoDiskPressure", "simulated disks never fill"),
        condition(types::PID_PRESSURE, no, "KubeletHasSufficientPID", "simulated processes have no PIDs"),
        condition(types::READY, yes, "KubeletReady", "the simulated agent is ready"),
    ]
}

fn resources(millicores: i64, memory_gib: i64, storage_gib: i64) -> Resources {
    [
        ("cpu", Quantity::from_milli(millicores)),
        ("memory", Quantity::bytes(memory_gib * GIB)),
        ("ephemeral-storage", Quantity::bytes(storage_gib * GIB)),
        ("pods", Quantity::whole(110)),
    ]
    .map(|(name, amount)| (name.to_owned(), amount))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NINE: FleetSpec = FleetSpec { nodes: 9, zones: 3 };

    #[test]
    fn nodes_are_assigned_to_zones_round_robin() {
        let zones: Vec<String> = (0..9).map(|index| NINE.zone(index)).collect();
        for zone in ["zone-1", "zone-2", "zone-3"] {
            assert_eq!(zones.iter().filter(|found| *found == zone).count(), 3, "{zones:?}");
        }
    }

    #[test]
    fn a_node_is_found_by_its_exact_name_only() {
        for index in 0..9 {
            assert_eq!(NINE.index(FleetSpec::name(index).as_str()), Some(index));
        }
        for name in ["sim-0", "sim-10", "sim-01", "sim-", "sim-x", "node-1", ""] {
            assert_eq!(NINE.index(name), None, "{name}");
        }
    }

    #[test]
    fn a_record_passes_the_schemas_checks_and_is_ready() {
        let node = NINE.node(4, Timestamp::UNIX_EPOCH);
        assert!(node.is_ready());
        assert_eq!(node.meta.labels[label::ZONE], "zone-2");
        assert_eq!(Node::try_from(pb::Node::from(node.clone())).unwrap(), node);
    }

    #[test]
    fn every_node_has_an_address_of_its_own() {
        assert_eq!(FleetSpec::ip(0).to_string(), "100.64.0.1");
        assert_eq!(FleetSpec::ip(19_999).to_string(), "100.64.78.32");
    }
}
