//! Computes the effects of settings from the rules of the controller and the agents. Pure.

use std::time::Duration;

use super::checks::{Finding, check};

/// The settings of a fleet; the flags of `muster doctor` explain them.
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

/// The effects of the settings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Forecast {
    /// The interval between an agent's renewals, without jitter.
    pub(super) renew_interval: Duration,
    /// From the failure of a node until it is Unknown.
    pub(super) unknown: Span,
    /// From the failure of a node until its NoExecute taint, if the zone's rate allows the taint at once.
    pub(super) tainted: Span,
    /// From the failure of a node until its pods are evicted.
    pub(super) evicted: Span,
    pub(super) renewals_per_second: f64,
    pub(super) statuses_per_second: f64,
    pub(super) zone_nodes: u64,
    pub(super) zone_pods: u64,
    /// All nodes of one zone fail, the other zones are healthy.
    pub(super) failed_zone: Clearing,
    /// A zone has just reached the threshold; `None` if the zones are too small to be partially disrupted.
    pub(super) partial_zone: Option<Clearing>,
    pub(super) findings: Vec<Finding>,
}

/// The shortest and the longest time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) least: Duration,
    pub(super) most: Duration,
}

/// How the failed nodes of a zone are cleared of their pods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clearing {
    /// The number of failed nodes.
    pub(super) failed: u64,
    /// Nodes per second.
    pub(super) rate: f64,
    /// From the failure until the last pod is evicted; `None` means never.
    pub(super) cleared_after: Option<Duration>,
}

/// An agent renews four times per lease duration, with a jitter of up to 4 %.
const RENEWALS_PER_LEASE: u32 = 4;
const JITTER: f64 = 0.04;
/// A partially disrupted zone has at least this many unhealthy nodes and one healthy node.
const MIN_PARTIAL: u64 = 3;

pub(super) fn forecast(settings: &Settings) -> Forecast {
    let renew_interval = settings.lease_duration / RENEWALS_PER_LEASE;
    let latest_renewal = renew_interval.mul_f64(1.0 + JITTER);
    // A node that fails just before its next renewal has already used one renewal interval of its grace period.
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
        // The average jitter is half of the maximum.
        renewals_per_second: per_second(renew_interval.mul_f64(1.0 + JITTER / 2.0)),
        statuses_per_second: per_second(settings.report_frequency),
        zone_nodes,
        zone_pods: settings.pods.div_ceil(settings.zones),
        failed_zone: failed_zone(settings, zone_nodes, evicted.most),
        partial_zone: partial_zone(settings, zone_nodes, evicted.most),
        findings: Vec::new(),
    };
    forecast.findings = check(settings, &forecast);
    forecast
}

/// If the only zone fails, all nodes are unhealthy. The controller then assumes that its own connection is broken and
/// evicts no pods.
fn failed_zone(settings: &Settings, nodes: u64, first: Duration) -> Clearing {
    let rate = if settings.zones > 1 { settings.eviction_rate } else { 0.0 };
    Clearing { failed: nodes, rate, cleared_after: cleared_after(nodes, rate, first) }
}

fn partial_zone(settings: &Settings, nodes: u64, first: Duration) -> Option<Clearing> {
    // The controller compares shares in single precision.
    let is_enough = |failed: u64| failed as f32 / nodes as f32 >= settings.unhealthy_threshold as f32;
    let near = (nodes as f64 * settings.unhealthy_threshold) as u64;
    let failed = if is_enough(near) { near } else { near + 1 };
    let failed = failed.max(MIN_PARTIAL);
    if failed >= nodes {
        return None;
    }
    let rate = if nodes > settings.large_zone { settings.secondary_rate } else { 0.0 };
    Some(Clearing { failed, rate, cleared_after: cleared_after(failed, rate, first) })
}

/// The first node is tainted at once, each further node when the rate allows it.
fn cleared_after(nodes: u64, rate: f64, first: Duration) -> Option<Duration> {
    let waits = nodes.saturating_sub(1) as f64 / rate;
    Duration::try_from_secs_f64(waits).ok().and_then(|waits| first.checked_add(waits)).filter(|_| rate > 0.0)
}

#[cfg(test)]
pub(super) mod tests;
