use super::*;
use crate::doctor::checks::Level;

/// The defaults, for a thousand nodes in three zones.
pub(in crate::doctor) fn defaults() -> Settings {
    let seconds = Duration::from_secs;
    Settings {
        nodes: 1000,
        zones: 3,
        pods: 30_000,
        grace: seconds(40),
        monitor_period: seconds(5),
        eviction_rate: 0.1,
        secondary_rate: 0.01,
        unhealthy_threshold: 0.55,
        large_zone: 50,
        lease_duration: seconds(40),
        report_frequency: seconds(300),
        not_ready_toleration: seconds(300),
        unreachable_toleration: seconds(300),
    }
}

fn millis(span: Span) -> (u128, u128) {
    (span.least.as_millis(), span.most.as_millis())
}

#[test]
fn a_failure_is_detected_within_the_grace_period_and_at_most_a_renewal_earlier() {
    let forecast = forecast(&defaults());
    assert_eq!(forecast.renew_interval, Duration::from_secs(10));
    assert_eq!(millis(forecast.unknown), (29_600, 40_000));
    assert_eq!(millis(forecast.tainted), (29_600, 45_000));
    assert_eq!(millis(forecast.evicted), (329_600, 345_000));
}

#[test]
fn the_store_writes_one_renewal_per_node_and_interval() {
    let forecast = forecast(&defaults());
    assert!((forecast.renewals_per_second - 98.04).abs() < 0.01, "{}", forecast.renewals_per_second);
    assert!((forecast.statuses_per_second - 3.33).abs() < 0.01, "{}", forecast.statuses_per_second);
}

#[test]
fn a_zone_clears_at_the_rate_of_its_state() {
    // Nodes, zones: failed nodes, rate and seconds for a failed zone, then for a partially disrupted one.
    for (nodes, zones, failed, partial) in [
        // 334 nodes per zone: the first at 345 s, then 333 waits of 10 s; partial: 184 nodes at 100 s each.
        (1000, 3, (334, 0.1, Some(345 + 3330)), Some((184, 0.01, Some(345 + 18_300)))),
        // Zones of 50 nodes are not large, so evictions stop.
        (150, 3, (50, 0.1, Some(345 + 490)), Some((28, 0.0, None))),
        (3, 3, (1, 0.1, Some(345)), None),
        (9, 3, (3, 0.1, Some(345 + 20)), None),
        (12, 3, (4, 0.1, Some(345 + 30)), Some((3, 0.0, None))),
        // A single zone is the whole fleet.
        (100, 1, (100, 0.0, None), Some((55, 0.01, Some(345 + 5400)))),
    ] {
        let forecast = forecast(&Settings { nodes, zones, ..defaults() });
        let shown = |clearing: Clearing| {
            (clearing.failed, clearing.rate, clearing.cleared_after.map(|time| time.as_secs()))
        };
        assert_eq!(shown(forecast.failed_zone), failed, "{nodes} in {zones}");
        assert_eq!(forecast.partial_zone.map(shown), partial, "{nodes} in {zones}");
    }
}

/// The level of the most severe finding with this text.
fn found(settings: &Settings, text: &str) -> Option<Level> {
    forecast(settings)
        .findings
        .into_iter()
        .find(|finding| finding.problem.contains(text))
        .map(|finding| finding.level)
}

#[test]
fn the_defaults_are_safe() {
    assert_eq!(forecast(&defaults()).findings, []);
}

#[test]
fn unsafe_combinations_are_found() {
    let seconds = Duration::from_secs;
    let cases: [(Settings, &str, Level); 14] = [
        (Settings { grace: seconds(19), ..defaults() }, "one lost or late renewal", Level::Unsafe),
        (Settings { grace: seconds(20), ..defaults() }, "two lost renewals in a row", Level::Warning),
        (Settings { grace: seconds(39), ..defaults() }, "although its lease is valid", Level::Unsafe),
        (
            Settings { monitor_period: seconds(41), ..defaults() },
            "zone states are computed every",
            Level::Warning,
        ),
        (
            Settings { eviction_rate: 0.0, secondary_rate: 0.0, ..defaults() },
            "pods are never evicted",
            Level::Unsafe,
        ),
        (Settings { secondary_rate: 0.2, ..defaults() }, "has a higher eviction rate", Level::Warning),
        (Settings { zones: 1, ..defaults() }, "with a single zone", Level::Warning),
        (
            Settings { eviction_rate: 0.001, secondary_rate: 0.0, ..defaults() },
            "takes 3.9 days to clear",
            Level::Warning,
        ),
        (Settings { eviction_rate: 100.0, ..defaults() }, "within a minute", Level::Warning),
        (
            Settings { unreachable_toleration: seconds(30), ..defaults() },
            "a node that reboots",
            Level::Warning,
        ),
        (
            Settings { not_ready_toleration: seconds(0), ..defaults() },
            "not ready for a moment",
            Level::Warning,
        ),
        (Settings { nodes: 1_000_000, ..defaults() }, "writes per second", Level::Warning),
        (Settings { report_frequency: seconds(10), ..defaults() }, "an unchanged status", Level::Warning),
        (
            Settings { nodes: 90, ..defaults() },
            "evictions stop in a zone of 30 nodes when 17 of them are down",
            Level::Note,
        ),
    ];
    for (settings, text, level) in cases {
        assert_eq!(found(&settings, text), Some(level), "{text}");
        assert_eq!(found(&defaults(), text), None, "{text}");
    }
    for grace in [seconds(30), seconds(40)] {
        let settings = Settings { grace, lease_duration: seconds(30), ..defaults() };
        assert_eq!(found(&settings, "renewal"), None, "{grace:?}");
    }
}

#[test]
fn the_most_severe_finding_comes_first_and_extreme_numbers_do_not_overflow() {
    let settings = Settings {
        grace: Duration::from_secs(1),
        eviction_rate: 1e-300,
        nodes: u64::MAX,
        pods: u64::MAX,
        report_frequency: Duration::ZERO,
        ..defaults()
    };
    let forecast = forecast(&settings);
    assert_eq!(forecast.failed_zone.cleared_after, None);
    assert_eq!(forecast.unknown.least, Duration::ZERO);
    let levels: Vec<Level> = forecast.findings.iter().map(|finding| finding.level).collect();
    assert!(levels.is_sorted(), "{levels:?}");
    assert_eq!(levels.first(), Some(&Level::Unsafe));
}
