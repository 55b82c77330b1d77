//! What the picture shows, put in order.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::node::Node;
use muster_proto::pb;

use crate::print::age;
use crate::print::fleet::rate;
use crate::print::rows::{node_zone, or_none};

/// What is known from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Heard,
    /// What is shown is what was last heard.
    Silent,
}

/// What is known from the controller.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Controller {
    Heard(Box<pb::Fleet>),
    Silent,
}

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Health {
    Unknown,
    NotReady,
    Cordoned,
    Ready,
}

/// The picture's content.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Model {
    /// The fleet in a line.
    pub(super) headline: String,
    pub(super) zones: Vec<ZoneRow>,
    /// By zone, the sick first.
    pub(super) nodes: Vec<NodeRow>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ZoneRow {
    pub(super) name: String,
    /// Of each node of the zone, in the order they are listed.
    pub(super) health: Vec<Health>,
    /// As the controller sees it.
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
    /// How long it has been so.
    pub(super) since: String,
    pub(super) reason: String,
}

impl Model {
    pub(super) fn of<'a>(
        nodes: impl Iterator<Item = &'a Node>,
        store: Store,
        controller: &Controller,
        now: Timestamp,
    ) -> Model {
        let mut nodes: Vec<NodeRow> = nodes.map(|node| NodeRow::of(node, now)).collect();
        nodes.sort_by(|a, b| (&a.zone, a.health, &a.name).cmp(&(&b.zone, b.health, &b.name)));
        let mut by_zone: BTreeMap<String, Vec<Health>> = BTreeMap::new();
        for node in &nodes {
            by_zone.entry(node.zone.clone()).or_default().push(node.health);
        }
        let zones = by_zone.into_iter().map(|(name, health)| ZoneRow::of(name, health, controller)).collect();
        Model { headline: headline(&nodes, store, controller), zones, nodes }
    }

    /// A place to scroll to that exists.
    pub(super) fn scrolled(&self, scroll: usize) -> usize {
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
    fn of(name: String, health: Vec<Health>, controller: &Controller) -> ZoneRow {
        let told = match controller {
            Controller::Heard(fleet) => fleet.zones.iter().find(|zone| is_same(zone, &name)),
            Controller::Silent => None,
        };
        let unknown = || "-".to_owned();
        ZoneRow {
            state: told.map_or_else(unknown, |zone| or_none(&zone.state)),
            rate: told.map_or_else(unknown, |zone| rate(zone.rate)),
            queue: told.map_or_else(unknown, |zone| zone.queue_length.to_string()),
            name,
            health,
        }
    }

    pub(super) fn count(&self, health: Health) -> usize {
        self.health.iter().filter(|held| **held == health).count()
    }
}

/// Whether the controller speaks of the zone of that name.
fn is_same(zone: &pb::FleetZone, name: &str) -> bool {
    let own = match (zone.region.as_str(), zone.zone.as_str()) {
        ("", zone) => zone.to_owned(),
        (region, zone) => format!("{region}/{zone}"),
    };
    or_none(&own) == name
}

fn headline(nodes: &[NodeRow], store: Store, controller: &Controller) -> String {
    let count = |wanted: &[Health]| nodes.iter().filter(|node| wanted.contains(&node.health)).count();
    let counts = format!(
        "{} {}: {} ready, {} not ready, {} unknown",
        nodes.len(),
        if nodes.len() == 1 { "node" } else { "nodes" },
        count(&[Health::Ready, Health::Cordoned]),
        count(&[Health::NotReady]),
        count(&[Health::Unknown])
    );
    let counts = if store == Store::Silent { format!("{counts}; the store is not heard") } else { counts };
    match controller {
        Controller::Silent => format!("{counts}; the controller is not heard"),
        Controller::Heard(fleet) => {
            let reason = if fleet.reason.is_empty() { String::new() } else { format!(": {}", fleet.reason) };
            format!("{counts}; {}{reason}", or_none(&fleet.state))
        }
    }
}
