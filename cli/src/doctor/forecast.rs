//! What settings come to. Pure arithmetic on what the controller and the agents do by them.

use std::time::Duration;

use super::checks::{Finding, findings};

/// The settings of a fleet, under their flags' meanings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) nodes: u64,
    pub(super) zones: u64,
    pub(super) pods: u64,
    pub(super) grace: Duration,
    pub(super) monitor_period: Duration,
    pub(super) eviction_rate: f64,
    pub(super) secondary_rate: f64,
    pub(super) unhealthy_threshold: f64,
    pub(super) large_zone: u64,
    pub(super) lease_duration: Duration,
    pub(super) report_frequency: Duration,
    pub(super) not_ready_toleration: Duration,
    pub(super) unreachable_toleration: Duration,
}

/// What they come to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Forecast {
    /// How often an agent renews, before jitter.
    pub(super) renew_interval: Duration,
    /// From a node's death to its Ready being Unknown.
    pub(super) unknown: Span,
    /// From a node's death to its NoExecute taint, if its zone lets it through at once.
    pub(super) tainted: Span,
    /// From a node's death to its pods being told to leave.
    pub(super) evicted: Span,
    pub(super) renewals_per_second: f64,
    pub(super) statuses_per_second: f64,
    pub(super) zone_nodes: u64,
    pub(super) zone_pods: u64,
    /// A whole zone dies, the others live.
    pub(super) dead_zone: Clearing,
    /// A zone just reaches the threshold; `None` when no zone is large enough to be partly disrupted.
    pub(super) partial_zone: Option<Clearing>,
    pub(super) findings: Vec<Finding>,
}

/// The shortest and the longest it can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) least: Duration,
    pub(super) most: Duration,
}

/// How nodes of a zone that are down get emptied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clearing {
    pub(super) down: u64,
    /// Nodes per second.
    pub(super) rate: f64,
    /// From the death to the last pod being told to leave; `None` means never.
    pub(super) over: Option<Duration>,
}

/// An agent renews four times within its lease's duration, and up to 4 % later than that.
const RENEWALS_PER_LEASE: u32 = 4;
const JITTER: f64 = 0.04;
/// Bad nodes that it takes at least for a zone to be partly disrupted, besides a healthy one.
const PARTIAL_AT_LEAST: u64 = 3;

pub(super) fn judge(settings: &Settings) -> Forecast {
    let renew_interval = settings.lease_duration / RENEWALS_PER_LEASE;
    let latest_renewal = renew_interval.mul_f64(1.0 + JITTER);
    // A node that dies just before it would have renewed has used up most of its grace already.
    let unknown = Span { least: settings.grace.saturating_sub(latest_renewal), most: settings.grace };
    let tainted = Span { least: unknown.least, most: unknown.most + settings.monitor_period };
    let evicted = Span {
        least: tainted.least + settings.unreachable_toleration,
        most: tainted.most + settings.unreachable_toleration,
    };
    let zone_nodes = settings.nodes.div_ceil(settings.zones);
    let per_second = |interval: Duration| match interval.as_secs_f64() {
        0.0 => 0.0,
        seconds => settings.nodes as f64 / seconds,
    };
    let mut forecast = Forecast {
        renew_interval,
        unknown,
        tainted,
        evicted,
        // Half the jitter, on average.
        renewals_per_second: per_second(renew_interval.mul_f64(1.0 + JITTER / 2.0)),
        statuses_per_second: per_second(settings.report_frequency),
        zone_nodes,
        zone_pods: settings.pods.div_ceil(settings.zones),
        dead_zone: dead_zone(settings, zone_nodes, evicted.most),
        partial_zone: partial_zone(settings, zone_nodes, evicted.most),
        findings: Vec::new(),
    };
    forecast.findings = findings(settings, &forecast);
    forecast
}

/// With the only zone, everything is down: then it is taken for the controller's own trouble, and nobody
/// moves.
fn dead_zone(settings: &Settings, nodes: u64, first: Duration) -> Clearing {
    let rate = if settings.zones > 1 { settings.eviction_rate } else { 0.0 };
    Clearing { down: nodes, rate, over: over(nodes, rate, first) }
}

fn partial_zone(settings: &Settings, nodes: u64, first: Duration) -> Option<Clearing> {
    // The controller compares shares, in single precision.
    let is_enough = |down: u64| down as f32 / nodes as f32 >= settings.unhealthy_threshold as f32;
    let near = (nodes as f64 * settings.unhealthy_threshold) as u64;
    let down = if is_enough(near) { near } else { near + 1 };
    let down = down.max(PARTIAL_AT_LEAST);
    if down >= nodes {
        return None;
    }
    let rate = if nodes > settings.large_zone { settings.secondary_rate } else { 0.0 };
    Some(Clearing { down, rate, over: over(down, rate, first) })
}

/// The first node goes at once, each other as the rate allows.
fn over(nodes: u64, rate: f64, first: Duration) -> Option<Duration> {
    let waits = nodes.saturating_sub(1) as f64 / rate;
    Duration::try_from_secs_f64(waits).ok().and_then(|waits| first.checked_add(waits)).filter(|_| rate > 0.0)
}

#[cfg(test)]
pub(super) mod tests;
