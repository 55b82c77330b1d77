//! What settings come to. Pure arithmetic on what the controller and the agents do by them.

use std::time::Duration;

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

/// Something to know about the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) what: String,
    pub(super) remedy: String,
}

/// How grave it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Healthy nodes will lose their work, or dead ones keep it.
    Unsafe,
    /// It may be meant, and may surprise.
    Doubtful,
    /// Good to know.
    Note,
}

/// An agent renews four times within its lease's duration, and up to 4 % later than that.
const RENEWALS_PER_LEASE: u32 = 4;
const JITTER: f64 = 0.04;
/// Bad nodes that it takes at least for a zone to be partly disrupted, besides a healthy one.
const PARTIAL_AT_LEAST: u64 = 3;
/// A zone that takes longer to clear is down for good by then.
const A_DAY: Duration = Duration::from_secs(86_400);
/// A machine that is back by then should find its work still there.
const A_REBOOT: Duration = Duration::from_secs(120);
/// One store on two cores was seen to make this many single renewals durable.
const STORE_LIMIT: f64 = 50_000.0;

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

/// With the only zone, everything is down: then it is taken for the controller's own trouble, and nobody moves.
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

fn findings(settings: &Settings, forecast: &Forecast) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |level, holds: bool, what: String, remedy: String| {
        if holds {
            findings.push(Finding { level, what, remedy });
        }
    };
    let Settings { grace, eviction_rate, secondary_rate, .. } = *settings;
    let interval = forecast.renew_interval;
    let seconds = |duration: Duration| format!("{}s", duration.as_secs_f64());

    find(
        Level::Unsafe,
        grace < interval * 2,
        format!(
            "one renewal that is lost or late makes a healthy node Unknown: the grace is {} and renewals are {} apart",
            seconds(grace),
            seconds(interval)
        ),
        format!(
            "--node-monitor-grace-period of {} or more, or a shorter --node-lease-duration-seconds",
            seconds(interval * 4)
        ),
    );
    find(
        Level::Doubtful,
        grace >= interval * 2 && grace < interval * 3,
        format!(
            "two renewals in a row that are lost make a healthy node Unknown: the grace is {} and renewals are {} apart",
            seconds(grace),
            seconds(interval)
        ),
        format!("--node-monitor-grace-period of {} or more", seconds(interval * 4)),
    );
    find(
        Level::Unsafe,
        settings.lease_duration > grace,
        format!(
            "a node is given up after {} though its own lease counts for {}: its work is started elsewhere while it still runs there",
            seconds(grace),
            seconds(settings.lease_duration)
        ),
        format!("--node-lease-duration-seconds of {} or less", grace.as_secs()),
    );
    find(
        Level::Doubtful,
        settings.monitor_period > grace,
        format!(
            "zones are judged every {}, less often than nodes are given up",
            seconds(settings.monitor_period)
        ),
        "--node-monitor-period of a few seconds".to_owned(),
    );
    find(
        Level::Unsafe,
        eviction_rate == 0.0,
        "nobody is ever evicted from a dead node".to_owned(),
        "--node-eviction-rate above 0".to_owned(),
    );
    find(
        Level::Doubtful,
        secondary_rate > eviction_rate,
        "a zone of which much is down is emptied faster than one of which little is".to_owned(),
        format!("--secondary-node-eviction-rate of {eviction_rate} or less"),
    );
    find(
        Level::Doubtful,
        settings.zones == 1,
        "with a single zone, one that is down as a whole moves nothing: it is taken for the controller's own trouble".to_owned(),
        "label nodes with topology.kubernetes.io/zone".to_owned(),
    );
    clearing(settings, forecast, &mut find);
    find(
        Level::Doubtful,
        forecast.evicted.least < A_REBOOT,
        format!(
            "a machine that reboots loses its pods: they may be told to leave {} after it went",
            seconds(forecast.evicted.least)
        ),
        "a longer --default-unreachable-toleration-seconds".to_owned(),
    );
    find(
        Level::Doubtful,
        settings.not_ready_toleration.is_zero(),
        "a node that is not ready for a moment loses its pods at once".to_owned(),
        "a longer --default-not-ready-toleration-seconds".to_owned(),
    );
    let writes = forecast.renewals_per_second + forecast.statuses_per_second;
    find(
        Level::Doubtful,
        writes > STORE_LIMIT,
        format!("{writes:.0} writes a second are more than one small store was seen to make durable"),
        "a longer --node-lease-duration-seconds with a longer grace, or a larger machine, measured"
            .to_owned(),
    );
    find(
        Level::Doubtful,
        settings.report_frequency <= interval,
        "a status that has not changed is written as often as the lease, and is many times its size"
            .to_owned(),
        "--node-status-report-frequency of minutes".to_owned(),
    );
    findings.sort_by_key(|finding| finding.level);
    findings
}

fn clearing(settings: &Settings, forecast: &Forecast, find: &mut impl FnMut(Level, bool, String, String)) {
    let nodes = forecast.zone_nodes;
    let dead = forecast.dead_zone;
    let within_an_hour = nodes.saturating_sub(1) as f64 / 3600.0;
    let slow = dead.over.is_some_and(|over| over > A_DAY);
    find(
        Level::Doubtful,
        slow,
        format!("a dead zone of {nodes} nodes takes {} to clear", days(dead.over.unwrap_or_default())),
        format!("--node-eviction-rate {within_an_hour:.2} clears it within an hour"),
    );
    let hasty = settings.zones > 1 && nodes > 10 && dead.rate > 0.0 && nodes as f64 / dead.rate < 60.0;
    find(
        Level::Doubtful,
        hasty,
        format!("a zone of {nodes} nodes is tainted within a minute: nobody can stop a false alarm"),
        format!("--node-eviction-rate of {:.2} or less", nodes as f64 / 600.0),
    );
    if let Some(partial) = forecast.partial_zone {
        let stopped = partial.rate == 0.0;
        find(
            Level::Note,
            stopped && settings.zones > 1,
            format!(
                "evictions stop in a zone of {nodes} nodes once {} are down, until some are back or all are gone",
                partial.down
            ),
            "--large-cluster-size-threshold below the size of a zone lets the secondary rate apply"
                .to_owned(),
        );
        find(
            Level::Note,
            partial.over.is_some_and(|over| over > A_DAY),
            format!(
                "{} of {nodes} nodes down take {} to clear at the secondary rate",
                partial.down,
                days(partial.over.unwrap_or_default())
            ),
            "a higher --secondary-node-eviction-rate".to_owned(),
        );
    }
}

fn days(duration: Duration) -> String {
    format!("{:.1} days", duration.as_secs_f64() / A_DAY.as_secs_f64())
}

#[cfg(test)]
pub(super) mod tests;
