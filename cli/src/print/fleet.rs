//! The page of `muster fleet`.

use std::time::Duration;

use jiff::Timestamp;
use muster_proto::pb;

use super::rows::or_none;
use super::rows::pod_status::moment;
use super::table::Table;
use super::{Cell, Paint, Word, age};

/// The whole fleet. Ages are relative to the controller's clock.
pub(crate) fn fleet(fleet: &pb::Fleet, paint: Paint) -> String {
    let now = moment(fleet.as_of.as_ref());
    let mut parts = vec![summary(fleet, now, paint)];
    parts.push(zones(&fleet.zones, now, paint));
    parts.push(pools(fleet, paint));
    parts.push(drains(&fleet.drains, now, paint));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

fn summary(fleet: &pb::Fleet, now: Option<Timestamp>, paint: Paint) -> String {
    let mut table = Table::without_headers();
    let leader = match fleet.leader.as_str() {
        "" => "none".to_owned(),
        leader if leader == fleet.controller => leader.to_owned(),
        leader => format!("{leader} (answer from {})", fleet.controller),
    };
    let reason = if fleet.reason.is_empty() { String::new() } else { format!(": {}", fleet.reason) };
    let state = Cell::new(format!("{}{reason}", or_none(&fleet.state().word())));
    table.push([Cell::new("State"), fleet_state(state, fleet.state())]);
    table.push(["Leader".to_owned(), leader]);
    table.push([
        "Nodes".to_owned(),
        format!(
            "{}: {} ready, {} not ready, {} unknown",
            fleet.nodes, fleet.ready_nodes, fleet.not_ready_nodes, fleet.unknown_nodes
        ),
    ]);
    table.push([
        "Pods".to_owned(),
        format!(
            "{}: {} without a node, {} to be evicted",
            fleet.pods, fleet.pending_pods, fleet.armed_evictions
        ),
    ]);
    if let Some(hold) = &fleet.hold {
        table.push([Cell::new("Hold"), Cell::new(held(hold)).doubtful()]);
    }
    if let Some(cloud) = &fleet.cloud {
        table.push(["Cloud".to_owned(), brake(cloud)]);
    }
    if let Some(now) = now {
        table.push(["As of".to_owned(), now.to_string()]);
    }
    table.take(paint)
}

fn fleet_state(cell: Cell, state: pb::FleetState) -> Cell {
    match state {
        pb::FleetState::Normal => cell.good(),
        pb::FleetState::Syncing | pb::FleetState::FullDisruption => cell.bad(),
        _ => cell.doubtful(),
    }
}

fn held(hold: &pb::EvictionHold) -> String {
    let left = hold.remaining.as_ref().map(|left| format!("{} left, ", age::short(duration(left))));
    let reason = if hold.reason.is_empty() { String::new() } else { format!(": {}", hold.reason) };
    format!(
        "no evictions yet; {}{} of {} nodes seen{reason}",
        left.unwrap_or_default(),
        hold.seen_nodes,
        hold.nodes
    )
}

fn brake(cloud: &pb::CloudDeletionLimit) -> String {
    let period = cloud.period.as_ref().map(|period| age::short(duration(period))).unwrap_or_default();
    format!(
        "{} of {} deletions in {period} used, {} delayed, {} confirmations needed",
        cloud.used, cloud.limit, cloud.held_back, cloud.confirmations
    )
}

/// The table of zones.
pub(crate) fn zones(zones: &[pb::FleetZone], now: Option<Timestamp>, paint: Paint) -> String {
    if zones.is_empty() {
        return String::new();
    }
    let headers =
        ["ZONE", "STATE", "NODES", "UNHEALTHY", "HEALTH", "RATE", "QUEUE", "EVICTED", "NEXT", "REASON"];
    let mut table = Table::new(headers);
    for zone in zones {
        let next = match (moment(zone.next_taint_at.as_ref()), now) {
            (Some(next), Some(now)) => format!("in {}", age::until(next, now)),
            _ => "-".to_owned(),
        };
        table.push([
            Cell::new(or_none(&zone.name)),
            zone_state(zone.state()),
            Cell::new(zone.nodes.to_string()),
            Cell::new(zone.unhealthy.to_string()),
            Cell::new(format!("{:.0}%", zone.health_percent)),
            Cell::new(rate(zone.rate)),
            Cell::new(zone.queue_length.to_string()),
            Cell::new(zone.evictions.to_string()),
            Cell::new(next),
            Cell::new(&zone.reason),
        ]);
    }
    table.take(paint)
}

pub(crate) fn zone_state(state: pb::ZoneState) -> Cell {
    let cell = Cell::new(or_none(&state.word()));
    match state {
        pb::ZoneState::Normal => cell.good(),
        pb::ZoneState::FullDisruption => cell.bad(),
        _ => cell.doubtful(),
    }
}

/// A rate in nodes per second.
pub(crate) fn rate(rate: f64) -> String {
    if rate > 0.0 { format!("{rate}/s") } else { "stopped".to_owned() }
}

fn pools(fleet: &pb::Fleet, paint: Paint) -> String {
    let mut text = String::new();
    if !fleet.cidr_pools.is_empty() {
        let headers = ["POOL", "BLOCK", "BLOCKS", "USED", "RESERVED", "FREE", "WAITING", "CONFLICTS"];
        let mut table = Table::new(headers);
        for pool in &fleet.cidr_pools {
            let free = (pool.blocks - pool.used - pool.reserved).max(0);
            let waiting = Cell::new(pool.waiting.to_string());
            let conflicts = Cell::new(pool.conflicts.to_string());
            table.push([
                Cell::new(&pool.cidr),
                Cell::new(format!("/{}", pool.node_mask)),
                Cell::new(pool.blocks.to_string()),
                Cell::new(pool.used.to_string()),
                Cell::new(pool.reserved.to_string()),
                Cell::new(free.to_string()),
                if pool.waiting > 0 { waiting.bad() } else { waiting },
                if pool.conflicts > 0 { conflicts.bad() } else { conflicts },
            ]);
        }
        text.push_str(&table.take(paint));
    }
    if !fleet.cidr_failure.is_empty() {
        let failure = Cell::new(format!("CIDR allocation is stopped: {}", fleet.cidr_failure));
        text.push_str(&failure.on_one_line().bad().painted(paint));
        text.push('\n');
    }
    text
}

fn drains(drains: &[pb::FleetDrain], now: Option<Timestamp>, paint: Paint) -> String {
    if drains.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["DRAIN", "REMAINING", "REQUESTED", "BY", "REASON"]);
    for drain in drains {
        let intent = drain.drain.clone().unwrap_or_default();
        let requested = moment(intent.requested_at.as_ref());
        let requested = now.map_or_else(String::new, |now| format!("{} ago", age::since(requested, now)));
        let remaining = drain.remaining.to_string();
        table.push([drain.node_name.clone(), remaining, requested, intent.requested_by, intent.reason]);
    }
    table.take(paint)
}

/// Converts a protobuf duration; a negative one becomes zero.
pub(crate) fn duration(duration: &prost_types::Duration) -> Duration {
    Duration::try_from(*duration).unwrap_or_default()
}

#[cfg(test)]
mod tests;
