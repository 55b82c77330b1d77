//! What is worth knowing about settings: unsafe combinations, surprises, and what to do about them.

use std::time::Duration;

use super::forecast::{Forecast, Settings};

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

/// A zone that takes longer to clear is down for good by then.
const A_DAY: Duration = Duration::from_secs(86_400);
/// A machine that is back by then should find its work still there.
const A_REBOOT: Duration = Duration::from_secs(120);
/// Half of what one store on two cores was seen to make durable over heartbeat streams (README.md): the other half is
/// for whatever else there is to write.
const STORE_LIMIT: f64 = 50_000.0;

/// All there is to know, the gravest first.
pub(super) fn findings(settings: &Settings, forecast: &Forecast) -> Vec<Finding> {
    let mut found = Found(Vec::new());
    silence(settings, forecast.renew_interval, &mut found);
    rates(settings, &mut found);
    zones(settings, forecast, &mut found);
    moving(settings, forecast, &mut found);
    cost(settings, forecast, &mut found);
    found.0.sort_by_key(|finding| finding.level);
    found.0
}

struct Found(Vec<Finding>);

impl Found {
    fn when(&mut self, holds: bool, level: Level, what: impl Into<String>, remedy: impl Into<String>) {
        if holds {
            self.0.push(Finding { level, what: what.into(), remedy: remedy.into() });
        }
    }
}

/// How long a node may be silent, against how often it speaks.
fn silence(settings: &Settings, interval: Duration, found: &mut Found) {
    let grace = settings.grace;
    let apart = format!("the grace is {} and renewals are {} apart", seconds(grace), seconds(interval));
    let longer = format!("--node-monitor-grace-period of {} or more", seconds(interval * 4));
    found.when(
        grace < interval * 2,
        Level::Unsafe,
        format!("one renewal that is lost or late makes a healthy node Unknown: {apart}"),
        format!("{longer}, or a shorter --node-lease-duration-seconds"),
    );
    found.when(
        grace >= interval * 2 && grace < interval * 3,
        Level::Doubtful,
        format!("two renewals in a row that are lost make a healthy node Unknown: {apart}"),
        longer,
    );
    let lease = settings.lease_duration;
    found.when(
        lease > grace,
        Level::Unsafe,
        format!(
            "a node is Unknown after {} though its own lease counts for {}: its work may be started elsewhere \
             while it still runs there",
            seconds(grace),
            seconds(lease)
        ),
        format!("--node-lease-duration-seconds of {} or less", grace.as_secs()),
    );
    found.when(
        settings.monitor_period > grace,
        Level::Doubtful,
        format!(
            "zones are judged every {}, less often than nodes fall silent",
            seconds(settings.monitor_period)
        ),
        "--node-monitor-period of a few seconds",
    );
}

fn rates(settings: &Settings, found: &mut Found) {
    let rate = settings.eviction_rate;
    found.when(
        rate == 0.0,
        Level::Unsafe,
        "nobody is ever evicted from a dead node",
        "--node-eviction-rate above 0",
    );
    found.when(
        settings.secondary_rate > rate,
        Level::Doubtful,
        "a zone of which much is down is emptied faster than one of which little is",
        format!("--secondary-node-eviction-rate of {rate} or less"),
    );
}

/// What happens to a zone that is down, as a whole or in part.
fn zones(settings: &Settings, forecast: &Forecast, found: &mut Found) {
    let nodes = forecast.zone_nodes;
    found.when(
        settings.zones == 1,
        Level::Doubtful,
        "with a single zone, one that is down as a whole moves nothing: it is taken for the controller's own \
         trouble",
        "label nodes with topology.kubernetes.io/zone",
    );
    let dead = forecast.dead_zone;
    if let Some(over) = dead.over {
        let within_an_hour = nodes.saturating_sub(1) as f64 / 3600.0;
        found.when(
            over > A_DAY,
            Level::Doubtful,
            format!("a dead zone of {nodes} nodes takes {} to clear", days(over)),
            format!("--node-eviction-rate {} clears it within an hour", rounded_up(within_an_hour)),
        );
        found.when(
            nodes > 10 && nodes as f64 / dead.rate < 60.0,
            Level::Doubtful,
            format!("a zone of {nodes} nodes is tainted within a minute: nobody can stop a false alarm"),
            format!("--node-eviction-rate of {:.2} or less", nodes as f64 / 600.0),
        );
    }
    let Some(partial) = forecast.partial_zone else { return };
    let down = partial.down;
    match partial.over {
        None => found.when(
            settings.zones > 1,
            Level::Note,
            format!(
                "evictions stop in a zone of {nodes} nodes once {down} are down, until some are back or all \
                 are gone"
            ),
            "--large-cluster-size-threshold below the size of a zone lets the secondary rate apply",
        ),
        Some(over) => found.when(
            over > A_DAY,
            Level::Note,
            format!("{down} of {nodes} nodes down take {} to clear at the secondary rate", days(over)),
            "a higher --secondary-node-eviction-rate",
        ),
    }
}

/// When pods leave that could have stayed.
fn moving(settings: &Settings, forecast: &Forecast, found: &mut Found) {
    let soonest = forecast.evicted.least;
    found.when(
        soonest < A_REBOOT,
        Level::Doubtful,
        format!(
            "a machine that reboots loses its pods: they may be told to leave {} after it went",
            seconds(soonest)
        ),
        "a longer --default-unreachable-toleration-seconds",
    );
    found.when(
        settings.not_ready_toleration.is_zero(),
        Level::Doubtful,
        "a node that is not ready for a moment loses its pods at once",
        "a longer --default-not-ready-toleration-seconds",
    );
}

fn cost(settings: &Settings, forecast: &Forecast, found: &mut Found) {
    let writes = forecast.renewals_per_second + forecast.statuses_per_second;
    found.when(
        writes > STORE_LIMIT,
        Level::Doubtful,
        format!(
            "{writes:.0} writes a second are more than half of what a small store was seen to make durable"
        ),
        "a longer --node-lease-duration-seconds with a longer grace, or a larger machine, measured",
    );
    found.when(
        settings.report_frequency <= forecast.renew_interval,
        Level::Doubtful,
        "a status that has not changed is written as often as the lease, and is many times its size",
        "--node-status-report-frequency of minutes",
    );
}

/// A rate with two digits that count, and not below what it was.
fn rounded_up(rate: f64) -> String {
    if rate <= 0.0 {
        return "0".to_owned();
    }
    let decimals = (1 - rate.log10().floor() as i32).max(0);
    let unit = 10f64.powi(decimals);
    // What is a whole number of units already, but for the way numbers are held, stays so.
    let rounded = (rate * unit - 1e-9).ceil() / unit;
    format!("{rounded:.*}", decimals as usize)
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

fn days(duration: Duration) -> String {
    format!("{:.1} days", duration.as_secs_f64() / A_DAY.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_rounded_up_to_two_digits_that_count() {
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
