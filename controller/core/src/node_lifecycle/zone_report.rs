//! What is reported of zones, and of the NoExecute taint of one node.

use std::time::Duration;

use muster_proto::name::Name;
use muster_proto::time::Mono;

use crate::node_lifecycle::NodeLifecycle;
use crate::node_lifecycle::taint_queue::TaintQueue;
use crate::node_lifecycle::zone_state::{ZoneKey, ZoneState};
use crate::node_lifecycle::zones::Zone;

/// A zone and its queue of nodes to taint.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneReport {
    pub key: ZoneKey,
    pub state: ZoneState,
    /// Nodes that count for the state.
    pub nodes: usize,
    pub unhealthy: usize,
    /// Nodes that do not count.
    pub excluded: usize,
    /// Nodes that may be tainted per second.
    pub rate: f64,
    pub queue_length: usize,
    /// Nodes that were tainted.
    pub evictions: u64,
    /// When the bucket has its next token; `None` if never.
    pub next_token: Option<Mono>,
    /// The time between two tokens.
    pub interval: Duration,
}

/// Whether and when a node is tainted NoExecute.
#[derive(Clone, Debug, PartialEq)]
pub struct TaintStatus {
    pub zone: ZoneReport,
    /// Whether the node counts for its zone's state.
    pub counted: bool,
    /// Its position in the zone's queue, from 1; `None` when it does not wait.
    pub position: Option<usize>,
    /// How many nodes are tainted before it, if it waits or will.
    pub ahead: usize,
    /// It took a token and its record does not have the taint yet.
    pub granted: bool,
    /// Its health taints are being removed.
    pub strip: bool,
}

impl NodeLifecycle {
    /// All zones, by region and zone.
    pub fn zone_reports(&self) -> impl Iterator<Item = ZoneReport> {
        self.zones.iter().filter_map(|(key, zone)| Some(report(key, zone, self.taints.queue(key)?)))
    }

    /// One zone; `None` if it has no nodes.
    pub fn zone_report(&self, key: &ZoneKey) -> Option<ZoneReport> {
        Some(report(key, self.zones.get(key)?, self.taints.queue(key)?))
    }

    /// The zone of a node.
    pub fn zone_report_of(&self, name: &Name) -> Option<ZoneReport> {
        self.zone_report(self.zones.zone_of(name)?.0)
    }

    /// The nodes of a zone that wait for a NoExecute taint, the next one first.
    pub fn queued_nodes(&self, zone: &ZoneKey) -> impl Iterator<Item = &Name> {
        self.taints.queue(zone).into_iter().flat_map(TaintQueue::iter)
    }

    /// The nodes of a zone that do not count for its state, by name.
    pub fn excluded_nodes(&self, zone: &ZoneKey) -> impl Iterator<Item = &Name> {
        self.zones.get(zone).into_iter().flat_map(|zone| &zone.excluded)
    }

    /// Whether and when a node is tainted NoExecute; `None` if there is no such node.
    pub fn taint_status(&self, name: &Name) -> Option<TaintStatus> {
        let (key, counted) = self.zones.zone_of(name)?;
        let (zone, queue) = (self.zones.get(key)?, self.taints.queue(key)?);
        let position = self.taints.position(name);
        let ahead = match position {
            Some(position) => position - 1,
            None => queue.length() + self.taints.candidates_before(key, name),
        };
        Some(TaintStatus {
            zone: report(key, zone, queue),
            counted,
            position,
            ahead,
            granted: self.taints.is_granted(name),
            strip: self.taints.is_stripping(name),
        })
    }
}

fn report(key: &ZoneKey, zone: &Zone, queue: &TaintQueue) -> ZoneReport {
    ZoneReport {
        key: key.clone(),
        state: zone.state,
        nodes: zone.nodes,
        unhealthy: zone.unhealthy,
        excluded: zone.excluded.len(),
        rate: queue.bucket.rate(),
        queue_length: queue.length(),
        evictions: queue.tainted,
        next_token: queue.bucket.ready_at(),
        interval: queue.bucket.interval(),
    }
}
