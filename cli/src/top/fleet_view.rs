//! The content of the screen: nodes with the sick first, and the zones with their states. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;

use crate::print::fleet::{queue_eta, rate, short_zone_state};
use crate::print::natural;
use crate::print::rows::{node_zone, or_none};
use crate::print::{Paint, UNKNOWN, Word, age};

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
    /// Ready, but more than half of its lease has passed without a renewal.
    Late,
    Cordoned,
    Ready,
}

impl Health {
    pub(super) const ALL: [Health; 5] =
        [Health::Unknown, Health::NotReady, Health::Late, Health::Cordoned, Health::Ready];
}

/// When a node's lease was last renewed, and how long it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    at: Timestamp,
    valid: Duration,
}

impl Heard {
    pub(super) fn of(lease: &Lease) -> Option<Heard> {
        let valid = lease.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Some(Heard { at: lease.spec.renew_time?, valid: Duration::from_secs(valid.unwrap_or_default()) })
    }

    /// An agent renews a lease four times while it is valid, so half of the time means missed renewals.
    fn is_late(self, now: Timestamp) -> bool {
        Duration::try_from(now.duration_since(self.at)).is_ok_and(|silence| silence > self.valid / 2)
    }
}

/// When each node was last heard, by its name.
pub(super) type HeardByNode<'a> = BTreeMap<&'a str, Heard>;

/// The content of the screen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FleetView {
    /// The state of the fleet in one line.
    pub(super) headline: String,
    pub(super) zones: Vec<ZoneRow>,
    /// The nodes that match the filter, unhealthy ones first.
    pub(super) nodes: Vec<NodeRow>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ZoneRow {
    pub(super) name: String,
    /// The number of nodes of each health, in the order of [`Health::ALL`].
    pub(super) counts: [usize; Health::ALL.len()],
    /// The zone's state, rate and queue from the controller.
    pub(super) state: String,
    pub(super) rate: String,
    pub(super) queue: String,
    /// When the queue is empty if nothing changes.
    pub(super) eta: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeRow {
    pub(super) zone: String,
    pub(super) name: String,
    pub(super) health: Health,
    pub(super) status: String,
    /// How long ago the node renewed its lease.
    pub(super) heard: String,
    /// How long the node has had this status.
    pub(super) since: String,
    pub(super) reason: String,
}

impl FleetView {
    pub(super) fn new<'a>(
        nodes: impl Iterator<Item = &'a Node>,
        heard: &HeardByNode<'_>,
        store: StoreState,
        controller: &ControllerState,
        filter: &str,
        now: Timestamp,
    ) -> FleetView {
        let mut nodes: Vec<NodeRow> =
            nodes.map(|node| NodeRow::of(node, heard.get(node.meta.name.as_str()).copied(), now)).collect();
        nodes.sort_by(|a, b| {
            let by_name =
                || natural::compare(&a.zone, &b.zone).then_with(|| natural::compare(&a.name, &b.name));
            a.health.cmp(&b.health).then_with(by_name)
        });
        let headline = headline(&nodes, store, controller);
        let zones = zone_rows(&nodes, controller);
        nodes.retain(|node| node.matches(filter));
        FleetView { headline, zones, nodes }
    }
}

impl NodeRow {
    fn of(node: &Node, heard: Option<Heard>, now: Timestamp) -> NodeRow {
        let ready = node.condition(types::READY);
        let health = match ready.map_or(ConditionStatus::Unknown, |ready| ready.status) {
            ConditionStatus::Unknown => Health::Unknown,
            ConditionStatus::False => Health::NotReady,
            ConditionStatus::True if heard.is_some_and(|heard| heard.is_late(now)) => Health::Late,
            ConditionStatus::True if node.spec.unschedulable => Health::Cordoned,
            ConditionStatus::True => Health::Ready,
        };
        let since = ready.and_then(|ready| ready.last_transition_time).or(node.meta.creation_timestamp);
        NodeRow {
            zone: or_none(&node_zone(node)),
            name: node.meta.name.as_str().to_owned(),
            health,
            status: crate::print::rows::node_status(node).painted(Paint::Plain),
            heard: heard.map_or_else(|| UNKNOWN.to_owned(), |heard| age::since(Some(heard.at), now)),
            since: age::since(since, now),
            reason: ready.map(|ready| ready.reason.clone()).unwrap_or_default(),
        }
    }

    /// Whether name, zone or status has the text of the filter.
    fn matches(&self, filter: &str) -> bool {
        let filter = filter.to_lowercase();
        [&self.name, &self.zone, &self.status].iter().any(|text| text.to_lowercase().contains(&filter))
    }
}

fn zone_rows(nodes: &[NodeRow], controller: &ControllerState) -> Vec<ZoneRow> {
    let mut by_zone: BTreeMap<&str, [usize; Health::ALL.len()]> = BTreeMap::new();
    for node in nodes {
        by_zone.entry(&node.zone).or_default()[node.health as usize] += 1;
    }
    let mut zones: Vec<ZoneRow> =
        by_zone.into_iter().map(|(name, counts)| ZoneRow::of(name, counts, controller)).collect();
    // As the nodes: zones with trouble first, because there may be more zones than lines.
    let is_well = |zone: &ZoneRow| zone.count(Health::Ready) + zone.count(Health::Cordoned) == zone.nodes();
    zones.sort_by(|a, b| is_well(a).cmp(&is_well(b)).then_with(|| natural::compare(&a.name, &b.name)));
    zones
}

impl ZoneRow {
    fn of(name: &str, counts: [usize; Health::ALL.len()], controller: &ControllerState) -> ZoneRow {
        let reported = match controller {
            ControllerState::Reachable(fleet) => fleet.zones.iter().find(|zone| is_same(zone, name)),
            ControllerState::Unreachable => None,
        };
        let unknown = || "-".to_owned();
        ZoneRow {
            state: reported.map_or_else(unknown, |zone| short_zone_state(zone.state()).painted(Paint::Plain)),
            rate: reported.map_or_else(unknown, |zone| rate(zone.rate)),
            queue: reported.map_or_else(unknown, |zone| zone.queue_length.to_string()),
            eta: reported.map_or_else(unknown, queue_eta),
            name: name.to_owned(),
            counts,
        }
    }

    pub(super) fn count(&self, health: Health) -> usize {
        self.counts[health as usize]
    }

    pub(super) fn nodes(&self) -> usize {
        self.counts.iter().sum()
    }

    /// The nodes whose Ready is True.
    pub(super) fn ready(&self) -> usize {
        self.nodes() - self.count(Health::Unknown) - self.count(Health::NotReady)
    }

    /// How many of `width` symbols each health gets, in the order of [`Health::ALL`]: in proportion, and at least one
    /// for any node.
    pub(super) fn bar(&self, width: usize) -> [usize; Health::ALL.len()] {
        let total = self.nodes();
        if total <= width {
            return self.counts;
        }
        let mut parts = self.counts.map(|count| if count == 0 { 0 } else { (count * width / total).max(1) });
        // What rounding left over or took too much is the largest part's.
        let largest = (0..parts.len()).max_by_key(|i| self.counts[*i]).unwrap_or_default();
        let sum: usize = parts.iter().sum();
        parts[largest] = (parts[largest] + width).saturating_sub(sum);
        parts
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
    let late = match count(&[Health::Late]) {
        0 => String::new(),
        late => format!(" ({late} late)"),
    };
    let counts = format!(
        "{} {}: {} ready{late}, {} not ready, {} unknown",
        nodes.len(),
        if nodes.len() == 1 { "node" } else { "nodes" },
        count(&[Health::Ready, Health::Cordoned, Health::Late]),
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
