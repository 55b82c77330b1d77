//! The page of `muster fleet`.

use std::time::Duration;

use jiff::Timestamp;
use muster_proto::lease::Lease;
use muster_proto::pb;

use super::rows::or_none;
use super::rows::pod_status::moment;
use super::table::Table;
use super::{Cell, Paint, Word, age};

/// The whole fleet. Ages are relative to the controller's clock. `late` is the number of nodes whose renewal is late,
/// if it is known.
pub(crate) fn fleet(fleet: &pb::Fleet, late: Option<&Late>, paint: Paint, width: usize) -> String {
    let now = moment(fleet.as_of.as_ref());
    let mut parts = vec![summary(fleet, late, now, paint, width)];
    parts.push(zones(&fleet.zones, now, paint, width));
    parts.push(pools(fleet, paint));
    parts.push(drains(&fleet.drains, now, paint, width));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// The nodes that have gone silent and may become Unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) nodes: usize,
    /// The longest silence among them.
    pub(crate) longest: Duration,
}

impl Late {
    /// Counts the leases that are still valid although half of their time is over: an agent renews a lease four times
    /// in that time. An expired lease is not late: its node is Unknown, or about to be.
    pub(crate) fn of<'a>(leases: impl Iterator<Item = &'a Lease>, now: Timestamp) -> Late {
        let mut late = Late::default();
        for lease in leases {
            let silence = lease.spec.renew_time.map(|renewed| now.duration_since(renewed));
            let silence = silence.and_then(|silence| Duration::try_from(silence).ok());
            let valid = lease.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            if let (Some(silence), Some(valid)) = (silence, valid.map(Duration::from_secs))
                && silence > valid / 2
                && silence <= valid
            {
                late.nodes += 1;
                late.longest = late.longest.max(silence);
            }
        }
        late
    }
}

fn summary(
    fleet: &pb::Fleet,
    late: Option<&Late>,
    now: Option<Timestamp>,
    paint: Paint,
    width: usize,
) -> String {
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
    if let Some(late) = late.filter(|late| late.nodes > 0) {
        let (nodes, longest) = (late.nodes, age::short(late.longest));
        let silent = format!("{nodes} of these have missed renewals and are silent for up to {longest}");
        table.push([Cell::new("Late"), Cell::new(silent).doubtful()]);
    }
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
        table.push(["As of".to_owned(), age::moment(now)]);
    }
    table.take_within(paint, width)
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

/// The table of zones. The reasons have lines of their own below it if they do not fit beside it.
pub(crate) fn zones(zones: &[pb::FleetZone], now: Option<Timestamp>, paint: Paint, width: usize) -> String {
    if zones.is_empty() {
        return String::new();
    }
    let table = |is_full: bool| {
        let headers = ["ZONE", "STATE", "READY", "RATE", "QUEUE", "ETA", "NEXT", "EVICTED", "REASON"];
        let mut table = Table::new(headers[..if is_full { headers.len() } else { 7 }].iter().copied());
        for zone in zones {
            let next = match (moment(zone.next_taint_at.as_ref()), now) {
                // Without a queue nobody waits for that moment.
                (Some(next), Some(now)) if zone.queue_length > 0 => format!("in {}", age::until(next, now)),
                _ => "-".to_owned(),
            };
            let excluded = match zone.excluded {
                0 => String::new(),
                excluded => format!(" (+{excluded} excluded)"),
            };
            let ready = Cell::new(format!("{}/{}{excluded}", zone.nodes - zone.unhealthy, zone.nodes));
            let mut row = vec![
                Cell::new(or_none(&zone.name)),
                if is_full { zone_state(zone.state()) } else { short_zone_state(zone.state()) },
                if zone.unhealthy > 0 { ready.doubtful() } else { ready },
                Cell::new(rate(zone.rate)),
                Cell::new(zone.queue_length.to_string()),
                Cell::new(queue_eta(zone)),
                Cell::new(next),
            ];
            if is_full {
                row.extend([Cell::new(zone.evictions.to_string()), Cell::new(&zone.reason)]);
            }
            table.push(row);
        }
        table
    };
    let mut full = table(true);
    if full.width() <= width {
        return full.take(paint);
    }
    let mut text = table(false).take(paint);
    let mut reasons = Table::without_headers();
    for zone in zones.iter().filter(|zone| !zone.reason.is_empty()) {
        reasons.push([or_none(&zone.name), zone.reason.clone()]);
    }
    let reasons = reasons.take_within(paint, width);
    if !reasons.is_empty() {
        text.push_str(&format!("\n{reasons}"));
    }
    text
}

/// When the queue is empty if nothing changes: `17m`, `-` without a queue, `never` if it does not move.
pub(crate) fn queue_eta(zone: &pb::FleetZone) -> String {
    match (zone.queue_length, eta(zone.queue_length, zone.rate)) {
        (..=0, _) => "-".to_owned(),
        (_, Some(eta)) => age::short(eta),
        (_, None) => "never".to_owned(),
    }
}

/// How long a queue of that length takes at a rate per second; `None` if it does not move.
pub(crate) fn eta(length: i64, rate: f64) -> Option<Duration> {
    let length = u64::try_from(length).unwrap_or_default() as f64;
    if rate > 0.0 { Duration::try_from_secs_f64(length / rate).ok() } else { None }
}

pub(crate) fn zone_state(state: pb::ZoneState) -> Cell {
    coloured(Cell::new(or_none(&state.word())), state)
}

/// `Partial` for `PartialDisruption`, for narrow screens.
pub(crate) fn short_zone_state(state: pb::ZoneState) -> Cell {
    coloured(Cell::new(or_none(state.word().trim_end_matches("Disruption"))), state)
}

fn coloured(cell: Cell, state: pb::ZoneState) -> Cell {
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

fn drains(drains: &[pb::FleetDrain], now: Option<Timestamp>, paint: Paint, width: usize) -> String {
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
    table.take_within(paint, width)
}

/// Converts a protobuf duration; a negative one becomes zero.
pub(crate) fn duration(duration: &prost_types::Duration) -> Duration {
    Duration::try_from(*duration).unwrap_or_default()
}

#[cfg(test)]
mod tests;
