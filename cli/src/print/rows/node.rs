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
    const WIDE: &'static [&'static str] = &[
        "INTERNAL-IP",
        "EXTERNAL-IP",
        "POD-CIDR",
        "OS-IMAGE",
        "KERNEL-VERSION",
        "CONTAINER-RUNTIME",
        "CORDONED-BY",
    ];
    const STATUSES: &'static [&'static str] =
        &["Ready", "NotReady", "Unknown", "SchedulingDisabled", "Draining"];

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
        let owners: Vec<&str> = self.spec.cordons.iter().map(|cordon| cordon.owner.as_str()).collect();
        vec![
            Cell::new(or_none(address(self, AddressType::InternalIp))),
            Cell::new(or_none(address(self, AddressType::ExternalIp))),
            Cell::new(or_none(&cidrs.join(","))),
            Cell::new(or_none(&info.os_image)),
            Cell::new(or_none(&info.kernel_version)),
            Cell::new(or_none(&info.container_runtime_version)),
            Cell::new(or_none(&owners.join(","))),
        ]
    }

    fn status_words(&self) -> Vec<String> {
        status_words(self).into_iter().map(str::to_owned).collect()
    }
}

/// The words of a node's status: its Ready condition, and whether it is cordoned or being drained.
fn status_words(node: &Node) -> Vec<&'static str> {
    let mut words = vec![match ready(node) {
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
    words
}

fn ready(node: &Node) -> ConditionStatus {
    node.condition(types::READY).map_or(ConditionStatus::Unknown, |ready| ready.status)
}

/// The node's Ready condition, and whether it is cordoned or being drained.
pub(crate) fn status(node: &Node) -> Cell {
    let words = status_words(node);
    let cell = Cell::new(words.join(","));
    match (ready(node), words.len()) {
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
