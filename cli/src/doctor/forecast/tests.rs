use super::*;
use crate::doctor::checks::Level;

/// The defaults, for a thousand nodes in three zones.
pub(in crate::doctor) fn usual() -> Settings {
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
fn a_death_is_noticed_between_the_grace_less_a_renewal_and_the_grace() {
    let forecast = judge(&usual());
    assert_eq!(forecast.renew_interval, Duration::from_secs(10));
    assert_eq!(millis(forecast.unknown), (29_600, 40_000));
    assert_eq!(millis(forecast.tainted), (29_600, 45_000));
    assert_eq!(millis(forecast.evicted), (329_600, 345_000));
}

#[test]
fn the_store_writes_a_renewal_per_node_and_interval() {
    let forecast = judge(&usual());
    assert!((forecast.renewals_per_second - 98.04).abs() < 0.01, "{}", forecast.renewals_per_second);
    assert!((forecast.statuses_per_second - 3.33).abs() < 0.01, "{}", forecast.statuses_per_second);
}

#[test]
fn a_zone_clears_at_the_rate_its_state_has() {
    // Nodes, zones: down, rate and seconds of a dead zone, then of a partly disrupted one.
    for (nodes, zones, dead, partial) in [
        // 334 nodes a zone: the first at 345 s, then 333 waits of 10 s; and 184 of them at 100 s each.
        (1000, 3, (334, 0.1, Some(345 + 3330)), Some((184, 0.01, Some(345 + 18_300)))),
        // Zones of 50 are not large: evictions stop there.
        (150, 3, (50, 0.1, Some(345 + 490)), Some((28, 0.0, None))),
        (3, 3, (1, 0.1, Some(345)), None),
        (9, 3, (3, 0.1, Some(345 + 20)), None),
        (12, 3, (4, 0.1, Some(345 + 30)), Some((3, 0.0, None))),
        // A single zone is the whole fleet.
        (100, 1, (100, 0.0, None), Some((55, 0.01, Some(345 + 5400)))),
    ] {
        let forecast = judge(&Settings { nodes, zones, ..usual() });
        let shown =
            |clearing: Clearing| (clearing.down, clearing.rate, clearing.over.map(|over| over.as_secs()));
        assert_eq!(shown(forecast.dead_zone), dead, "{nodes} in {zones}");
        assert_eq!(forecast.partial_zone.map(shown), partial, "{nodes} in {zones}");
    }
}

/// The gravest finding that says this.
fn found(settings: &Settings, said: &str) -> Option<Level> {
    judge(settings)
        .findings
        .into_iter()
        .find(|finding| finding.what.contains(said))
        .map(|finding| finding.level)
}

#[test]
fn the_defaults_are_safe() {
    assert_eq!(judge(&usual()).findings, []);
}

#[test]
fn unsafe_combinations_are_found() {
    let seconds = Duration::from_secs;
    let cases: [(Settings, &str, Level); 14] = [
        (Settings { grace: seconds(19), ..usual() }, "one renewal that is lost", Level::Unsafe),
        (Settings { grace: seconds(20), ..usual() }, "two renewals in a row", Level::Doubtful),
        (Settings { grace: seconds(39), ..usual() }, "though its own lease counts", Level::Unsafe),
        (Settings { monitor_period: seconds(41), ..usual() }, "zones are judged every", Level::Doubtful),
        (
            Settings { eviction_rate: 0.0, secondary_rate: 0.0, ..usual() },
            "nobody is ever evicted",
            Level::Unsafe,
        ),
        (Settings { secondary_rate: 0.2, ..usual() }, "emptied faster", Level::Doubtful),
        (Settings { zones: 1, ..usual() }, "a single zone", Level::Doubtful),
        (
            Settings { eviction_rate: 0.001, secondary_rate: 0.0, ..usual() },
            "takes 3.9 days to clear",
            Level::Doubtful,
        ),
        (Settings { eviction_rate: 100.0, ..usual() }, "within a minute", Level::Doubtful),
        (
            Settings { unreachable_toleration: seconds(30), ..usual() },
            "a machine that reboots",
            Level::Doubtful,
        ),
        (Settings { not_ready_toleration: seconds(0), ..usual() }, "not ready for a moment", Level::Doubtful),
        (Settings { nodes: 1_000_000, ..usual() }, "writes a second", Level::Doubtful),
        (
            Settings { report_frequency: seconds(10), ..usual() },
            "a status that has not changed",
            Level::Doubtful,
        ),
        (
            Settings { nodes: 90, ..usual() },
            "evictions stop in a zone of 30 nodes once 17 are down",
            Level::Note,
        ),
    ];
    for (settings, said, level) in cases {
        assert_eq!(found(&settings, said), Some(level), "{said}");
        assert_eq!(found(&usual(), said), None, "{said}");
    }
    for fine in [seconds(30), seconds(40)] {
        let settings = Settings { grace: fine, lease_duration: seconds(30), ..usual() };
        assert_eq!(found(&settings, "renewal"), None, "{fine:?}");
    }
}

#[test]
fn the_gravest_comes_first_and_numbers_without_end_do_no_harm() {
    let settings = Settings {
        grace: Duration::from_secs(1),
        eviction_rate: 1e-300,
        nodes: u64::MAX,
        pods: u64::MAX,
        report_frequency: Duration::ZERO,
        ..usual()
    };
    let forecast = judge(&settings);
    assert_eq!(forecast.dead_zone.over, None);
    assert_eq!(forecast.unknown.least, Duration::ZERO);
    let levels: Vec<Level> = forecast.findings.iter().map(|finding| finding.level).collect();
    assert!(levels.is_sorted(), "{levels:?}");
    assert_eq!(levels.first(), Some(&Level::Unsafe));
}
