//! A link to the store that breaks again and again: silent nodes are found all the same, and no others.

use std::time::Duration;

use muster_proto::condition::ConditionStatus::{True, Unknown};
use proptest::prelude::*;

use crate::fixtures::simulator::{Simulator, scenario_policy};
use crate::fixtures::{for_unreachable, pod};
use crate::policy::Policy;

/// A fleet of three that renews every two seconds and may be silent for six.
fn fleet(hold: Duration) -> Simulator {
    let monitor_period = Duration::from_millis(500);
    let policy = Policy { grace: Duration::from_secs(6), monitor_period, hold, ..scenario_policy() };
    let mut sim = Simulator::with(policy);
    sim.heartbeat_interval = 2_000;
    sim.start();
    for name in ["a", "b", "c"] {
        sim.add_ready_node(name, "");
    }
    sim
}

/// Lets the link break for `down` seconds every `period` seconds until a time.
fn break_link(sim: &mut Simulator, period: f64, down: f64, until: f64) {
    while sim.seconds() < until {
        let broken = sim.seconds() + period - down;
        sim.run_until(broken).disconnect();
        sim.run_until(broken + down).reconnect();
    }
}

#[test]
fn s192_a_silent_node_is_unknown_within_two_graces_although_the_link_breaks_every_five_seconds() {
    for down in [0.0, 0.1, 0.5, 1.0, 2.0] {
        let mut sim = fleet(Duration::ZERO);
        break_link(&mut sim, 5.0, down, 19.0);
        sim.stop_agent("a");
        let last_renewal = 2.0 * (sim.seconds() / 2.0).floor();
        break_link(&mut sim, 5.0, down, 60.0);
        let unknown = sim.when("Unknown");
        assert_eq!(unknown.len(), 1, "broken for {down} s: {unknown:?}");
        let (at, name) = &unknown[0];
        assert_eq!(name, "a");
        assert!(
            *at <= last_renewal + 12.0,
            "broken for {down} s: silent from {last_renewal}, Unknown at {at}"
        );
    }
}

#[test]
fn a_node_that_is_alone_is_found_silent_too() {
    let mut sim = fleet(Duration::ZERO);
    for name in ["b", "c"] {
        sim.delete_node(name);
    }
    sim.run_until(19.0).stop_agent("a");
    break_link(&mut sim, 5.0, 0.5, 60.0);
    assert!(sim.times("Unknown a")[0] <= 18.0 + 12.0);
}

#[test]
fn an_interruption_counts_against_no_node_however_long_it_is() {
    for (down, expected) in [(1.0, 25.001), (10.0, 34.001), (1000.0, 1024.001)] {
        let mut sim = fleet(Duration::ZERO);
        sim.run_until(18.5).stop_agent("a");
        // Silent for two seconds, cut off, and then silent for four more.
        sim.run_until(20.0).disconnect();
        sim.run_until(20.0 + down).reconnect();
        sim.run_until(2000.0);
        assert_eq!(sim.when("Unknown"), [(expected, "a".to_owned())], "cut off for {down} s");
    }
}

#[test]
fn a_link_that_breaks_every_five_seconds_does_not_stop_evictions() {
    let mut sim = fleet(Duration::from_secs(6));
    sim.check_evictions = true;
    sim.put_pod(pod("p").on("a").running(True).tolerates(for_unreachable(10)));
    break_link(&mut sim, 5.0, 0.2, 19.0);
    sim.stop_agent("a");
    break_link(&mut sim, 5.0, 0.2, 60.0);
    assert_eq!((sim.ready("a"), sim.is_deleting("p")), (Unknown, true));
}

#[test]
fn a_controller_that_is_cut_off_most_of_the_time_evicts_nobody() {
    let mut sim = fleet(Duration::from_secs(6));
    sim.put_pod(pod("p").on("a").running(True).tolerates(for_unreachable(1)));
    break_link(&mut sim, 5.0, 3.0, 19.0);
    sim.stop_agent("a");
    break_link(&mut sim, 5.0, 3.0, 90.0);
    assert_eq!((sim.ready("a"), sim.is_deleting("p")), (Unknown, false), "it knows too little of the fleet");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn only_silent_nodes_are_marked_and_each_after_its_grace_of_time_that_counts(
        breaks in prop::collection::vec((1_500..9_000u64, 0..12_000u64), 4..20),
        stops_after in 0..4usize,
    ) {
        let mut sim = fleet(Duration::ZERO);
        let (mut stopped, mut counted) = (None, 0.0);
        for (i, (up, down)) in breaks.iter().enumerate() {
            if i == stops_after {
                sim.stop_agent("a");
                stopped = Some(sim.seconds());
            }
            let (up, down) = (*up as f64 / 1000.0, *down as f64 / 1000.0);
            let next = sim.seconds() + up;
            sim.run_until(next);
            if stopped.is_some() {
                counted += up;
                // Its last renewal was delivered before the agent stopped, or at the latest when the link was back. Nothing is
                // decided in the first second of a link.
                if counted > 6.01 && up > 1.01 {
                    prop_assert_eq!(sim.ready("a"), Unknown, "{} s count", counted);
                }
            }
            sim.disconnect();
            sim.run_until(next + down).reconnect();
        }
        let (b, c) = (sim.ready("b"), sim.ready("c"));
        prop_assert_eq!((b, c), (True, True));
        let marked = sim.when("Unknown");
        prop_assert!(marked.iter().all(|(_, name)| name == "a"), "{:?}", marked);
    }
}
