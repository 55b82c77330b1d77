//! Nodes as rows.

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::drain::Drain;
use muster_proto::node::{AddressType, Node};
use muster_proto::wellknown::label;

use super::{Tabular, or_none};
use crate::print::{Cell, age};

impl Tabular for Node {
    const COLUMNS: &'static [&'static str] = &["NAME", "STATUS", "ROLES", "AGE", "VERSION", "ZONE"];
    const WIDE: &'static [&'static str] =
        &["INTERNAL-IP", "EXTERNAL-IP", "POD-CIDR", "OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME"];

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            Cell::new(self.meta.name.as_str()),
            status(self),
            Cell::new(or_none(&self.roles().join(","))),
            Cell::new(age::since(self.meta.creation_timestamp, now)),
            Cell::new(or_none(&self.status.node_info.kubelet_version)),
            Cell::new(or_none(&zone(self))),
        ]
    }

    fn wide(&self, _now: Timestamp) -> Vec<Cell> {
        let info = &self.status.node_info;
        let cidrs: Vec<String> = self.spec.pod_cidrs.iter().map(ToString::to_string).collect();
        vec![
            Cell::new(or_none(address(self, AddressType::InternalIp))),
            Cell::new(or_none(address(self, AddressType::ExternalIp))),
            Cell::new(or_none(&cidrs.join(","))),
            Cell::new(or_none(&info.os_image)),
            Cell::new(or_none(&info.kernel_version)),
            Cell::new(or_none(&info.container_runtime_version)),
        ]
    }
}

/// The node's Ready condition, and whether it is cordoned or being drained.
pub(crate) fn status(node: &Node) -> Cell {
    let ready = node.condition(types::READY).map_or(ConditionStatus::Unknown, |ready| ready.status);
    let mut words = vec![match ready {
        ConditionStatus::True => "Ready",
        ConditionStatus::False => "NotReady",
        ConditionStatus::Unknown => "Unknown",
    }];
    if node.spec.unschedulable {
        words.push("SchedulingDisabled");
    }
    if node.spec.drain.as_ref().is_some_and(Drain::is_under_way) {
        words.push("Draining");
    }
    let cell = Cell::new(words.join(","));
    match (ready, words.len()) {
        (ConditionStatus::True, 1) => cell.good(),
        (ConditionStatus::True, _) => cell.doubtful(),
        _ => cell.bad(),
    }
}

/// The node's zone as `region/zone`, or only the zone if it has no region.
pub(crate) fn zone(node: &Node) -> String {
    let labels = &node.meta.labels;
    let either =
        |old, new| labels.get(old).or_else(|| labels.get(new)).map(String::as_str).unwrap_or_default();
    let region = either(label::REGION_BETA, label::REGION);
    let zone = either(label::ZONE_BETA, label::ZONE);
    match (region, zone) {
        ("", zone) => zone.to_owned(),
        (region, "") => format!("{region}/"),
        (region, zone) => format!("{region}/{zone}"),
    }
}

fn address(node: &Node, kind: AddressType) -> &str {
    let found = node.status.addresses.iter().find(|address| address.kind == kind);
    found.map(|address| address.address.as_str()).unwrap_or_default()
}
