//! Checks settings for unsafe and surprising combinations, and says what to change. Pure.

use std::time::Duration;

use super::forecast::{Forecast, Settings};

/// A problem of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) problem: String,
    pub(super) remedy: String,
}

impl Finding {
    pub(super) fn new(level: Level, problem: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level, problem: problem.into(), remedy: remedy.into() }
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Something does not work at the moment.
    Broken,
    /// Healthy nodes will lose their pods, or failed nodes will keep theirs.
    Unsafe,
    /// It may be intended, but may surprise.
    Warning,
    /// Information.
    Note,
}

impl Level {
    pub(super) fn word(self) -> &'static str {
        match self {
            Level::Broken => "broken",
            Level::Unsafe => "unsafe",
            Level::Warning => "warning",
            Level::Note => "note",
        }
    }
}

/// A zone that takes longer than this to clear is reported.
const DAY: Duration = Duration::from_secs(86_400);
/// A node that is back within this time should still have its pods.
const REBOOT: Duration = Duration::from_secs(120);
/// Half of the durable writes per second that were measured for one store on two cores (README.md). The other half is
/// for other writes.
const MAX_WRITES_PER_SECOND: f64 = 50_000.0;

/// All findings, the most severe first.
pub(super) fn check(settings: &Settings, forecast: &Forecast) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    check_grace_period(settings, forecast.renew_interval, &mut findings);
    check_eviction_rates(settings, &mut findings);
    check_zones(settings, forecast, &mut findings);
    check_tolerations(settings, forecast, &mut findings);
    check_store_load(settings, forecast, &mut findings);
    findings.0.sort_by_key(|finding| finding.level);
    findings.0
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add_if(
        &mut self,
        condition: bool,
        level: Level,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        if condition {
            self.0.push(Finding { level, problem: problem.into(), remedy: remedy.into() });
        }
    }
}

/// Compares the grace period with the renewal interval, the lease and the monitor period.
fn check_grace_period(settings: &Settings, interval: Duration, findings: &mut Findings) {
    let grace = settings.grace;
    let times =
        format!("the grace period is {} and the renewal interval is {}", seconds(grace), seconds(interval));
    let longer = format!("set --node-monitor-grace-period to {} or more", seconds(interval * 4));
    findings.add_if(
        grace < interval * 2,
        Level::Unsafe,
        format!("one lost or late renewal makes a healthy node Unknown: {times}"),
        format!("{longer}, or shorten --node-lease-duration-seconds"),
    );
    findings.add_if(
        grace >= interval * 2 && grace < interval * 3,
        Level::Warning,
        format!("two lost renewals in a row make a healthy node Unknown: {times}"),
        longer,
    );
    let lease = settings.lease_duration;
    findings.add_if(
        lease > grace,
        Level::Unsafe,
        format!(
            "a node is Unknown after {} although its lease is valid for {}: its pods may be started elsewhere \
             while they still run on the node",
            seconds(grace),
            seconds(lease)
        ),
        format!("set --node-lease-duration-seconds to {} or less", grace.as_secs()),
    );
    findings.add_if(
        settings.monitor_period > grace,
        Level::Warning,
        format!(
            "zone states are computed every {}, which is longer than the grace period",
            seconds(settings.monitor_period)
        ),
        "set --node-monitor-period to a few seconds",
    );
}

fn check_eviction_rates(settings: &Settings, findings: &mut Findings) {
    let rate = settings.eviction_rate;
    findings.add_if(
        rate == 0.0,
        Level::Unsafe,
        "pods are never evicted from a failed node",
        "set --node-eviction-rate above 0",
    );
    findings.add_if(
        settings.secondary_rate > rate,
        Level::Warning,
        "a partially disrupted zone has a higher eviction rate than a healthy one",
        format!("set --secondary-node-eviction-rate to {rate} or less"),
    );
}

/// Checks what happens to a zone that fails as a whole or in part.
fn check_zones(settings: &Settings, forecast: &Forecast, findings: &mut Findings) {
    let nodes = forecast.zone_nodes;
    findings.add_if(
        settings.zones == 1,
        Level::Warning,
        "with a single zone, no pods are evicted when all nodes fail: the controller assumes that its own \
         connection is broken",
        "label nodes with topology.kubernetes.io/zone",
    );
    let failed = forecast.failed_zone;
    if let Some(time) = failed.cleared_after {
        let within_an_hour = nodes.saturating_sub(1) as f64 / 3600.0;
        findings.add_if(
            time > DAY,
            Level::Warning,
            format!("a failed zone of {nodes} nodes takes {} to clear", days(time)),
            format!("--node-eviction-rate {} clears it within an hour", rounded_up(within_an_hour)),
        );
        findings.add_if(
            nodes > 10 && nodes as f64 / failed.rate < 60.0,
            Level::Warning,
            format!(
                "a zone of {nodes} nodes is tainted within a minute: an operator cannot stop a false alarm in time"
            ),
            format!("set --node-eviction-rate to {:.2} or less", nodes as f64 / 600.0),
        );
    }
    let Some(partial) = forecast.partial_zone else { return };
    let down = partial.failed;
    match partial.cleared_after {
        None => findings.add_if(
            settings.zones > 1,
            Level::Note,
            format!(
                "evictions stop in a zone of {nodes} nodes when {down} of them are down, until some recover or all \
                 are down"
            ),
            "set --large-cluster-size-threshold below the size of a zone to enable the secondary rate",
        ),
        Some(time) => findings.add_if(
            time > DAY,
            Level::Note,
            format!("{down} failed nodes of {nodes} take {} to clear at the secondary rate", days(time)),
            "raise --secondary-node-eviction-rate",
        ),
    }
}

/// Checks for tolerations that are too short, so that short failures cause evictions.
fn check_tolerations(settings: &Settings, forecast: &Forecast, findings: &mut Findings) {
    let soonest = forecast.evicted.least;
    findings.add_if(
        soonest < REBOOT,
        Level::Warning,
        format!(
            "a node that reboots loses its pods: they may be evicted {} after the node stopped",
            seconds(soonest)
        ),
        "raise --default-unreachable-toleration-seconds",
    );
    findings.add_if(
        settings.not_ready_toleration.is_zero(),
        Level::Warning,
        "a node that is not ready for a moment loses its pods at once",
        "raise --default-not-ready-toleration-seconds",
    );
}

fn check_store_load(settings: &Settings, forecast: &Forecast, findings: &mut Findings) {
    let writes = forecast.renewals_per_second + forecast.statuses_per_second;
    findings.add_if(
        writes > MAX_WRITES_PER_SECOND,
        Level::Warning,
        format!(
            "{writes:.0} writes per second are more than half of what was measured for a store on two cores"
        ),
        "raise --node-lease-duration-seconds and --node-monitor-grace-period, or use a larger machine",
    );
    findings.add_if(
        settings.report_frequency <= forecast.renew_interval,
        Level::Warning,
        "an unchanged status is written as often as the lease, and is much larger",
        "set --node-status-report-frequency to several minutes",
    );
}

/// The rate with two significant digits, rounded up.
fn rounded_up(rate: f64) -> String {
    if rate <= 0.0 {
        return "0".to_owned();
    }
    let decimals = (1 - rate.log10().floor() as i32).max(0);
    let unit = 10f64.powi(decimals);
    // The small offset keeps a whole number of units from being rounded up because of floating-point errors.
    let rounded = (rate * unit - 1e-9).ceil() / unit;
    format!("{rounded:.*}", decimals as usize)
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

fn days(duration: Duration) -> String {
    format!("{:.1} days", duration.as_secs_f64() / DAY.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_rounded_up_to_two_significant_digits() {
        for (rate, expected) in [
            (0.0, "0"),
            (1.0 / 3600.0, "0.00028"),
            (18.0 / 3600.0, "0.0050"),
            (333.0 / 3600.0, "0.093"),
            (0.1, "0.10"),
            (1.0, "1.0"),
            (2.777, "2.8"),
            (99.2, "100"),
            (277.7, "278"),
        ] {
            let rounded = rounded_up(rate);
            assert_eq!(rounded, expected, "{rate}");
            assert!(rounded.parse::<f64>().unwrap() >= rate - 1e-9, "{rate}");
        }
    }
}
