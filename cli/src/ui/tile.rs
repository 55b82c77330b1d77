//! What the page draws of one node. Pure.

use std::cmp::Ordering;
use std::sync::Arc;

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::drain::Drain;
use muster_proto::label::Labels;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::wellknown::{label, taint};

use crate::print::natural;

/// The state of a node, the worst last: if several hold, the worst is drawn. The numbers are those of the page's feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum TileState {
    Ready = 0,
    /// The node has not reported whether it is Ready.
    New = 1,
    Cordoned = 2,
    Draining = 3,
    /// Ready, but renewals are missing.
    Late = 4,
    NotReady = 5,
    Unknown = 6,
    /// The controller has tainted the node NoExecute because of its health.
    Evicting = 7,
}

impl TileState {
    /// The number that the page's feed uses.
    pub(super) fn code(self) -> u8 {
        self as u8
    }
}

/// What a node's record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordState {
    /// `region/zone`, as the controller names zones.
    pub(super) zone: String,
    /// The state without regard to renewals.
    pub(super) state: TileState,
    /// The trace of the write that made this record.
    pub(super) trace: Option<TraceId>,
}

impl RecordState {
    pub(super) fn of(node: &Node) -> RecordState {
        let ready = node.condition(types::READY).map(|ready| ready.status);
        let holds = [
            (ready.is_none(), TileState::New),
            (node.spec.unschedulable, TileState::Cordoned),
            (node.spec.drain.as_ref().is_some_and(Drain::is_under_way), TileState::Draining),
            (ready == Some(ConditionStatus::False), TileState::NotReady),
            (ready == Some(ConditionStatus::Unknown), TileState::Unknown),
            (node.spec.taints.iter().any(evicts_for_health), TileState::Evicting),
        ];
        let worst = holds.into_iter().filter_map(|(holds, state)| holds.then_some(state)).max();
        RecordState {
            zone: zone_name(&node.meta.labels),
            state: worst.unwrap_or(TileState::Ready),
            trace: node.meta.traceparent.as_deref().and_then(TraceId::of),
        }
    }
}

/// Whether a taint is one that the controller evicts the pods of a failed node with.
fn evicts_for_health(found: &Taint) -> bool {
    found.effect == TaintEffect::NoExecute
        && [taint::NOT_READY, taint::UNREACHABLE].contains(&found.key.as_str())
}

/// The zone as the controller names it. A beta label takes precedence if it is there at all, even empty.
fn zone_name(labels: &Labels) -> String {
    let value = |beta: &str, stable: &str| {
        labels.get(beta).or_else(|| labels.get(stable)).map(String::as_str).unwrap_or_default()
    };
    format!("{}/{}", value(label::REGION_BETA, label::REGION), value(label::ZONE_BETA, label::ZONE))
}

/// The last renewal of a node's lease that was seen, and how long it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Renewal {
    /// By the clock of the store.
    pub(super) at: Timestamp,
    pub(super) valid_seconds: u32,
}

impl Renewal {
    pub(super) fn of(lease: &Lease) -> Option<Renewal> {
        let valid = lease.spec.lease_duration_seconds.and_then(|seconds| u32::try_from(seconds).ok());
        Some(Renewal { at: lease.spec.renew_time?, valid_seconds: valid.unwrap_or_default() })
    }
}

/// The id of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceId(u128);

impl TraceId {
    /// The trace of a traceparent, `00-TRACE-SPAN-FLAGS`.
    fn of(traceparent: &str) -> Option<TraceId> {
        let id = traceparent.split('-').nth(1).filter(|id| id.len() == 32)?;
        u128::from_str_radix(id, 16).ok().filter(|id| *id != 0).map(TraceId)
    }
}

impl std::fmt::Display for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Where the page draws a node: by zone, and by name within the zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) zone: Arc<str>,
    pub(super) name: Arc<str>,
}

impl Ord for Place {
    fn cmp(&self, other: &Place) -> Ordering {
        let by_zone = natural::compare(&self.zone, &other.zone);
        by_zone.then_with(|| natural::compare(&self.name, &other.name))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Place) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::fleet_spec::FleetSpec;

    fn node(change: impl FnOnce(&mut Node)) -> Node {
        let mut node = FleetSpec { nodes: 9, zones: 3 }.node(0, Timestamp::UNIX_EPOCH);
        change(&mut node);
        node
    }

    fn ready(node: &mut Node, status: ConditionStatus) {
        let ready = node.status.conditions.iter_mut().find(|found| found.kind == types::READY);
        ready.unwrap().status = status;
    }

    fn tainted(node: &mut Node, key: &str, effect: TaintEffect) {
        let key = key.to_owned();
        node.spec.taints.push(Taint { key, value: String::new(), effect, time_added: None });
    }

    fn draining(node: &mut Node, state: &str) {
        node.spec.drain = Some(Drain {
            requested_by: "eva".to_owned(),
            reason: "new disk".to_owned(),
            requested_at: Timestamp::UNIX_EPOCH,
            deadline: None,
            options: Default::default(),
            state: state.parse().unwrap(),
            message: String::new(),
            finished_at: None,
        });
    }

    #[test]
    fn the_worst_that_holds_of_a_record_is_drawn() {
        use TileState::*;
        let no_execute = TaintEffect::NoExecute;
        for (expected, record) in [
            (Ready, node(|_| {})),
            (New, node(|node| node.status.conditions.clear())),
            (Cordoned, node(|node| node.spec.unschedulable = true)),
            (NotReady, node(|node| ready(node, ConditionStatus::False))),
            (Unknown, node(|node| ready(node, ConditionStatus::Unknown))),
            (
                Unknown,
                node(|node| {
                    node.spec.unschedulable = true;
                    ready(node, ConditionStatus::Unknown);
                }),
            ),
            (
                Draining,
                node(|node| {
                    node.spec.unschedulable = true;
                    draining(node, "Draining");
                }),
            ),
            (
                Cordoned,
                node(|node| {
                    node.spec.unschedulable = true;
                    draining(node, "Complete");
                }),
            ),
            (
                Evicting,
                node(|node| {
                    ready(node, ConditionStatus::Unknown);
                    tainted(node, taint::UNREACHABLE, no_execute);
                }),
            ),
            (Evicting, node(|node| tainted(node, taint::NOT_READY, no_execute))),
            // A new node is tainted NoSchedule until it is Ready, and operators have taints of their own.
            (Ready, node(|node| tainted(node, taint::NOT_READY, TaintEffect::NoSchedule))),
            (Ready, node(|node| tainted(node, "dedicated", no_execute))),
        ] {
            assert_eq!(RecordState::of(&record).state, expected, "{:?}", record.spec);
        }
    }

    #[test]
    fn the_zone_has_the_controllers_name() {
        let zone = |labels: &[(&str, &str)]| {
            zone_name(&labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect())
        };
        for (labels, expected) in [
            (vec![], "/"),
            (vec![(label::REGION, "eu"), (label::ZONE, "a")], "eu/a"),
            (vec![(label::ZONE, "a")], "/a"),
            (vec![(label::ZONE_BETA, ""), (label::ZONE, "a"), (label::REGION, "eu")], "eu/"),
        ] {
            assert_eq!(zone(&labels), expected, "{labels:?}");
        }
    }

    #[test]
    fn the_trace_of_a_write_is_read_from_its_traceparent() {
        let id = "0af7651916cd43dd8448eb211c80319c";
        let read = |text: &str| TraceId::of(text).map(|id| id.to_string());
        assert_eq!(read(&format!("00-{id}-b7ad6b7169203331-01")).as_deref(), Some(id));
        for text in ["", "00", "00-12-34-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn places_are_in_the_natural_order_of_zones_and_names() {
        let place = |zone: &str, name: &str| Place { zone: zone.into(), name: name.into() };
        assert!(place("a/2", "n-9") < place("a/10", "n-1"));
        assert!(place("a/2", "n-9") < place("a/2", "n-10"));
    }
}
