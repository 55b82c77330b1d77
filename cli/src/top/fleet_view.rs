//! The content of the screen: nodes by zone, with the states of the zones. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::node::Node;
use muster_proto::pb;

use crate::print::fleet::rate;
use crate::print::rows::{node_zone, or_none};
use crate::print::{Word, age};

/// Whether the watch of the store is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreState {
    Connected,
    /// The nodes are shown as they were last seen.
    Disconnected,
}

/// The controller's last answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ControllerState {
    Reachable(Box<pb::Fleet>),
    Unreachable,
}

/// The health of a node, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Health {
    Unknown,
    NotReady,
    Cordoned,
    Ready,
}

/// The content of the screen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FleetView {
    /// The state of the fleet in one line.
    pub(super) headline: String,
    pub(super) zones: Vec<ZoneRow>,
    /// By zone, unhealthy nodes first.
    pub(super) nodes: Vec<NodeRow>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ZoneRow {
    pub(super) name: String,
    /// The health of each node of the zone, in the order of the node list.
    pub(super) health: Vec<Health>,
    /// The zone's state, rate and queue from the controller.
    pub(super) state: String,
    pub(super) rate: String,
    pub(super) queue: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeRow {
    pub(super) zone: String,
    pub(super) name: String,
    pub(super) health: Health,
    pub(super) status: String,
    /// How long the node has had this status.
    pub(super) since: String,
    pub(super) reason: String,
}

impl FleetView {
    pub(super) fn new<'a>(
        nodes: impl Iterator<Item = &'a Node>,
        store: StoreState,
        controller: &ControllerState,
        now: Timestamp,
    ) -> FleetView {
        let mut nodes: Vec<NodeRow> = nodes.map(|node| NodeRow::of(node, now)).collect();
        nodes.sort_by(|a, b| (&a.zone, a.health, &a.name).cmp(&(&b.zone, b.health, &b.name)));
        let mut by_zone: BTreeMap<String, Vec<Health>> = BTreeMap::new();
        for node in &nodes {
            by_zone.entry(node.zone.clone()).or_default().push(node.health);
        }
        let zones = by_zone.into_iter().map(|(name, health)| ZoneRow::of(name, health, controller)).collect();
        FleetView { headline: headline(&nodes, store, controller), zones, nodes }
    }

    /// Limits the scroll position to the list of nodes.
    pub(super) fn clamp_scroll(&self, scroll: usize) -> usize {
        scroll.min(self.nodes.len().saturating_sub(1))
    }
}

impl NodeRow {
    fn of(node: &Node, now: Timestamp) -> NodeRow {
        let ready = node.condition(types::READY);
        let health = match ready.map_or(ConditionStatus::Unknown, |ready| ready.status) {
            ConditionStatus::Unknown => Health::Unknown,
            ConditionStatus::False => Health::NotReady,
            ConditionStatus::True if node.spec.unschedulable => Health::Cordoned,
            ConditionStatus::True => Health::Ready,
        };
        let since = ready.and_then(|ready| ready.last_transition_time).or(node.meta.creation_timestamp);
        NodeRow {
            zone: or_none(&node_zone(node)),
            name: node.meta.name.as_str().to_owned(),
            health,
            status: crate::print::rows::node_status(node).painted(crate::print::Paint::Plain),
            since: age::since(since, now),
            reason: ready.map(|ready| ready.reason.clone()).unwrap_or_default(),
        }
    }
}

impl ZoneRow {
    fn of(name: String, health: Vec<Health>, controller: &ControllerState) -> ZoneRow {
        let reported = match controller {
            ControllerState::Reachable(fleet) => fleet.zones.iter().find(|zone| is_same(zone, &name)),
            ControllerState::Unreachable => None,
        };
        let unknown = || "-".to_owned();
        ZoneRow {
            state: reported.map_or_else(unknown, |zone| or_none(&zone.state().word())),
            rate: reported.map_or_else(unknown, |zone| rate(zone.rate)),
            queue: reported.map_or_else(unknown, |zone| zone.queue_length.to_string()),
            name,
            health,
        }
    }

    pub(super) fn count(&self, health: Health) -> usize {
        self.health.iter().filter(|held| **held == health).count()
    }
}

/// Whether the controller's zone has that name.
fn is_same(zone: &pb::FleetZone, name: &str) -> bool {
    let own = match (zone.region.as_str(), zone.zone.as_str()) {
        ("", zone) => zone.to_owned(),
        (region, zone) => format!("{region}/{zone}"),
    };
    or_none(&own) == name
}

fn headline(nodes: &[NodeRow], store: StoreState, controller: &ControllerState) -> String {
    let count = |wanted: &[Health]| nodes.iter().filter(|node| wanted.contains(&node.health)).count();
    let counts = format!(
        "{} {}: {} ready, {} not ready, {} unknown",
        nodes.len(),
        if nodes.len() == 1 { "node" } else { "nodes" },
        count(&[Health::Ready, Health::Cordoned]),
        count(&[Health::NotReady]),
        count(&[Health::Unknown])
    );
    let counts = match store {
        StoreState::Connected => counts,
        StoreState::Disconnected => format!("{counts}; store disconnected"),
    };
    match controller {
        ControllerState::Unreachable => format!("{counts}; controller unreachable"),
        ControllerState::Reachable(fleet) => {
            let reason = if fleet.reason.is_empty() { String::new() } else { format!(": {}", fleet.reason) };
            format!("{counts}; {}{reason}", or_none(&fleet.state().word()))
        }
    }
}
