//! Zones: at which rate nodes are tainted NoExecute, and when none are.

use std::time::Duration;

use muster_proto::condition::ConditionStatus::{True, Unknown};
use muster_proto::wellknown::label;

use crate::explain;
use crate::fixtures::simulator::{Simulator, scenario_policy};
use crate::fixtures::{node, pod};
use crate::node_lifecycle::zone_state::ZoneState::{FullDisruption, Normal, PartialDisruption};
use crate::policy::Policy;

/// A fleet and a controller that starts: `("z", 5, 3)` is a zone of five nodes, three of them Unknown.
fn fleet(zones: &[(&str, usize, usize)]) -> Simulator {
    fleet_under(scenario_policy(), zones)
}

fn fleet_under(policy: Policy, zones: &[(&str, usize, usize)]) -> Simulator {
    let mut sim = Simulator::with(policy);
    for &(zone, nodes, unknown) in zones {
        for i in 0..nodes {
            let name = format!("{zone}{i:03}");
            if i < unknown { sim.add_unknown_node(&name, zone) } else { sim.add_ready_node(&name, zone) }
        }
    }
    sim.start();
    sim
}

fn times(sim: &Simulator) -> Vec<f64> {
    sim.tainted_noexecute().into_iter().map(|(at, _)| at).collect()
}

fn names(sim: &Simulator) -> Vec<String> {
    sim.tainted_noexecute().into_iter().map(|(_, name)| name).collect()
}

#[test]
fn s125_a_few_unhealthy_nodes_are_tainted_one_by_one() {
    let mut sim = fleet(&[("z", 3, 1)]);
    sim.run_until(100.0);
    assert_eq!((times(&sim), sim.zone("z").state), (vec![0.0], Normal));
    let mut sim = fleet(&[("z", 3, 2)]);
    sim.run_until(100.0);
    assert_eq!((times(&sim), sim.zone("z").state), (vec![0.0, 10.0], Normal));
}

#[test]
fn s126_in_a_small_zone_in_partial_disruption_no_node_is_tainted_noexecute() {
    let mut sim = fleet(&[("z", 5, 3)]);
    sim.run_until(600.0);
    assert_eq!((sim.tainted_noexecute().len(), sim.zone("z").state), (0, PartialDisruption));
    assert_eq!(sim.taints("z000"), "unreachable:NS", "but it has the NoSchedule taint");
}

#[test]
fn s127_when_the_zone_recovers_its_bucket_starts_without_a_token() {
    let mut sim = fleet(&[("z", 5, 3)]);
    sim.run_until(99.0).start_agent("z000");
    sim.run_until(200.0);
    assert_eq!(times(&sim), [110.0, 120.0]);
}

#[test]
fn s128_a_large_zone_in_partial_disruption_is_tainted_at_the_secondary_rate() {
    let mut sim = fleet(&[("z", 51, 30)]);
    sim.run_until(350.0);
    assert_eq!((times(&sim), sim.zone("z").state), (vec![0.0, 100.0, 200.0, 300.0], PartialDisruption));
    let mut sim = fleet(&[("z", 50, 28)]);
    sim.run_until(350.0);
    assert_eq!((times(&sim).len(), sim.zone("z").state), (0, PartialDisruption));
}

#[test]
fn s130_a_zone_in_full_disruption_is_tainted_while_another_zone_is_healthy() {
    let mut sim = fleet(&[("a", 3, 3), ("b", 3, 0)]);
    sim.run_until(100.0);
    assert_eq!((times(&sim), sim.zone("a").state), (vec![0.0, 10.0, 20.0], FullDisruption));
}

#[test]
fn s131_when_every_zone_is_in_full_disruption_taints_and_evictions_are_cancelled() {
    let mut sim = fleet(&[("a", 3, 1), ("b", 3, 0)]);
    sim.put_pod(pod("p").on("a000").tolerates(crate::fixtures::for_unreachable(300)));
    sim.run_until(20.0);
    assert_eq!(sim.taints("a000"), "unreachable:NS unreachable:NE");
    for name in ["a001", "a002", "b000", "b001", "b002"] {
        sim.stop_agent(name);
    }
    sim.run_until(700.0);
    for name in ["a000", "a001", "b002"] {
        assert_eq!(sim.taints(name), "unreachable:NS", "{name}");
    }
    assert_eq!(sim.tainted_noexecute().len(), 1, "the one before the outage");
    assert!(!sim.is_deleting("p"));
    assert_eq!(sim.times("event Cancelling deletion of p").len(), 1);
    assert!(sim.is_full_disruption());
}

#[test]
fn s132_one_node_that_recovers_ends_full_disruption() {
    let mut sim = fleet(&[("a", 3, 3), ("b", 3, 3)]);
    sim.run_until(99.0);
    assert_eq!(sim.tainted_noexecute().len(), 0);
    sim.start_agent("b000");
    sim.run_until(140.0);
    let found = sim.tainted_noexecute();
    let of = |zone: &str| -> Vec<f64> {
        found.iter().filter(|(_, name)| name.starts_with(zone)).map(|(at, _)| *at).collect()
    };
    assert_eq!((of("a"), of("b")), (vec![110.0, 120.0, 130.0], vec![110.0, 120.0]));
    assert_eq!((sim.zone("a").state, sim.zone("b").state), (FullDisruption, Normal));
}

#[test]
fn s132_nodes_that_are_not_unknown_get_a_new_grace_when_full_disruption_ends() {
    let mut sim = fleet(&[("a", 2, 2), ("b", 1, 1)]);
    // It reports Ready at 40 and then stops. The pass at 45 ends full disruption.
    sim.run_until(40.0).post_status("a000", True);
    sim.run_until(100.0);
    assert_eq!(sim.times("Unknown a000"), [95.001], "its grace of 50 runs from the end of full disruption");
}

#[test]
fn s133_the_only_node_of_a_fleet_is_never_tainted_noexecute() {
    let mut sim = fleet(&[("z", 1, 1)]);
    sim.run_until(600.0);
    assert_eq!(sim.tainted_noexecute().len(), 0);
}

#[test]
fn s134_unless_it_is_excluded_from_disruption() {
    let mut sim = Simulator::new();
    sim.put_node(node("a").ready(Unknown).label(label::EXCLUDE_DISRUPTION, ""));
    sim.start().run_until(6.0);
    assert_eq!(sim.taints("a"), "unreachable:NS unreachable:NE");
    assert_eq!(sim.zone("").nodes, 0);
}

#[test]
fn s134_a_zone_whose_nodes_are_all_excluded_has_the_usual_rate_again() {
    let mut sim = fleet(&[("z", 5, 3)]);
    sim.run_until(60.0);
    assert_eq!((sim.tainted_noexecute().len(), sim.zone("z").rate), (0, 0.0));
    for i in 0..5 {
        sim.edit_node(&format!("z{i:03}"), |node| {
            node.meta.labels.insert(label::EXCLUDE_DISRUPTION.to_owned(), String::new());
        });
    }
    sim.run_until(100.0);
    assert_eq!(times(&sim), [75.0, 85.0, 95.0], "the pass at 65 set the rate; the bucket was empty");
}

#[test]
fn deleting_the_last_healthy_zone_enters_full_disruption() {
    // Kubernetes would go on to taint a001 and a002, because the zones that are left were in full disruption before.
    let mut sim = fleet(&[("a", 3, 3), ("b", 1, 0)]);
    sim.run_until(1.0).delete_node("b000");
    assert_eq!(sim.taints("a000"), "unreachable:NS unreachable:NE");
    sim.run_until(600.0);
    assert!(sim.is_full_disruption());
    assert_eq!((times(&sim), sim.taints("a000").as_str()), (vec![0.0], "unreachable:NS"));
}

#[test]
fn s135_nodes_that_have_not_reported_yet_count_as_unhealthy() {
    let mut sim = Simulator::new();
    for name in ["a", "b", "c", "d"] {
        sim.put_node(node(name));
    }
    sim.start().run_until(1.0);
    assert_eq!(sim.zone("").state, FullDisruption);
    sim.start_agent("a");
    sim.post_status("a", True);
    sim.run_until(61.0);
    assert_eq!(sim.zone("").state, PartialDisruption);
}

#[test]
fn s136_zones_are_identified_by_region_and_zone() {
    let mut sim = Simulator::new();
    sim.put_node(node("a").ready(True));
    sim.put_node(node("b").ready(True).label(label::REGION, "r"));
    for region in ["r", "s"] {
        sim.put_node(node(&format!("{region}-z")).ready(True).label(label::REGION, region).zone("z"));
    }
    sim.start();
    let zones: Vec<String> =
        sim.controllers().node_lifecycle.zone_reports().map(|zone| zone.key.to_string()).collect();
    assert_eq!(zones, ["/", "r/", "r/z", "s/z"]);
}

#[test]
fn s137_nodes_are_tainted_at_the_rate_and_counted() {
    let mut sim = fleet(&[("z", 30, 10)]);
    sim.run_until(45.0);
    assert_eq!(times(&sim), [0.0, 10.0, 20.0, 30.0, 40.0]);
    let zone = sim.zone("z");
    assert_eq!((zone.evictions, zone.queue_length), (5, 5));
}

#[test]
fn a_rate_that_is_no_multiple_of_the_monitor_period_is_exact() {
    for (rate, expected) in [
        (0.25, vec![0.0, 4.0, 8.0]),
        (0.4, vec![0.0, 2.5, 5.0, 7.5, 10.0]),
        (2.0, vec![0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]),
    ] {
        let policy = Policy { eviction_rate: rate, ..scenario_policy() };
        let mut sim = fleet_under(policy, &[("z", 30, 10)]);
        sim.run_until(11.0);
        assert_eq!(times(&sim), expected, "{rate} nodes a second");
    }
}

#[test]
fn each_zone_has_a_rate_of_its_own() {
    let policy = Policy { eviction_rate: 0.4, secondary_eviction_rate: 0.16, ..scenario_policy() };
    let mut sim = fleet_under(policy, &[("fast", 30, 9), ("slow", 60, 40)]);
    sim.run_until(13.0);
    let of = |zone: &str| -> Vec<f64> {
        let tainted = sim.tainted_noexecute().into_iter();
        tainted.filter(|(_, name)| name.starts_with(zone)).map(|(at, _)| at).collect()
    };
    assert_eq!(of("fast"), [0.0, 2.5, 5.0, 7.5, 10.0, 12.5]);
    assert_eq!(of("slow"), [0.0, 6.25, 12.5]);
}

#[test]
fn nodes_that_wait_are_tainted_when_the_hold_ends() {
    let policy = Policy { hold: Duration::from_secs(7), ..scenario_policy() };
    let mut sim = fleet_under(policy, &[("z", 30, 2)]);
    sim.run_until(20.0);
    assert_eq!(times(&sim), [7.0, 17.0]);
}

#[test]
fn a_token_that_comes_after_the_zone_is_disrupted_is_not_used() {
    let policy = Policy { eviction_rate: 0.25, ..scenario_policy() };
    let mut sim = fleet_under(policy, &[("a", 10, 4), ("b", 3, 0)]);
    // Between the passes of 5 and 10 s, and before the token of 8 s.
    sim.run_until(6.0);
    for name in ["a004", "a005"] {
        sim.post_status(name, Unknown);
        sim.stop_agent(name);
    }
    sim.run_until(20.0);
    assert_eq!(sim.zone("a").state, PartialDisruption);
    assert_eq!(times(&sim), [0.0, 4.0]);
}

#[test]
fn s138_a_change_of_state_without_a_change_of_rate_keeps_the_bucket() {
    let mut sim = fleet(&[("a", 5, 1), ("b", 1, 0)]);
    sim.run_until(1.0);
    for name in ["a001", "a002", "a003", "a004"] {
        sim.post_status(name, Unknown);
        sim.stop_agent(name);
    }
    sim.run_until(6.0);
    assert_eq!(sim.zone("a").state, FullDisruption);
    sim.run_until(11.0);
    for name in ["a000", "a002", "a003"] {
        sim.start_agent(name);
    }
    sim.run_until(16.0);
    assert_eq!(sim.zone("a").state, Normal);
    sim.run_until(30.0);
    assert_eq!(
        (times(&sim), names(&sim)),
        (vec![0.0, 10.0, 20.0], vec!["a000".to_owned(), "a001".to_owned(), "a004".to_owned()])
    );
}

#[test]
fn s139_the_node_that_is_unready_for_longest_is_tainted_first() {
    let mut sim = fleet(&[("z", 9, 0)]);
    // The opposite of their order by name.
    for (at, name) in [(1.0, "z003"), (2.0, "z002"), (3.0, "z001")] {
        sim.run_until(at).stop_agent(name);
        sim.post_status(name, Unknown);
    }
    sim.run_until(12.0).start_agent("z002");
    sim.run_until(100.0);
    assert_eq!(names(&sim), ["z003", "z001"]);
}

#[test]
fn a_node_that_is_deleted_while_it_waits_takes_no_token() {
    let mut sim = fleet(&[("z", 9, 3)]);
    sim.run_until(5.0).delete_node("z001");
    sim.run_until(30.0);
    let tainted = (times(&sim), names(&sim));
    assert_eq!(tainted, (vec![0.0, 10.0], vec!["z000".to_owned(), "z002".to_owned()]));
}

#[test]
fn s140_a_tainted_node_takes_no_second_token() {
    let mut sim = fleet(&[("z", 3, 1)]);
    sim.run_until(600.0);
    assert_eq!(sim.tainted_noexecute().len(), 1);
    sim.start_agent("z000");
    sim.run_until(610.0).stop_agent("z000");
    sim.run_until(700.0);
    assert_eq!(sim.tainted_noexecute().len(), 2, "one more after it had recovered");
}

#[test]
fn s141_taints_of_other_clients_evict_even_in_full_disruption() {
    let mut sim = fleet(&[("z", 2, 2)]);
    sim.put_pod(pod("p").on("z000"));
    sim.run_until(10.0);
    assert!(sim.is_full_disruption());
    sim.edit_node("z000", |node| node.spec.taints.push("off:NoExecute".parse().unwrap()));
    assert!(sim.is_deleting("p"));
}

#[test]
fn s142_a_new_zone_that_is_unhealthy_from_the_start_is_tainted() {
    let mut sim = fleet(&[("a", 3, 0)]);
    sim.run_until(7.0).add_unknown_node("new", "b");
    sim.run_until(13.0);
    assert_eq!((names(&sim), sim.zone("b").state), (vec!["new".to_owned()], FullDisruption));
}

#[test]
fn s143_a_zone_without_nodes_is_removed() {
    let mut sim = fleet(&[("a", 1, 0), ("b", 1, 0)]);
    // The metrics are made from the same answer.
    let zones = |sim: &Simulator| -> Vec<(String, i64, f64)> {
        let fleet = explain::fleet::fleet(&sim.reconciler, sim.now());
        fleet.zones.into_iter().map(|zone| (zone.zone, zone.nodes, zone.health_percent)).collect()
    };
    sim.run_until(5.0).delete_node("a000");
    assert_eq!(zones(&sim), [("b".to_owned(), 1, 100.0)]);
    sim.delete_node("b000");
    assert_eq!(zones(&sim), []);
    sim.run_until(20.0).add_ready_node("c000", "c");
    sim.run_until(40.0);
    assert_eq!(zones(&sim), [("c".to_owned(), 1, 100.0)]);
}

#[test]
fn no_node_is_tainted_when_most_of_a_zone_fails_at_once() {
    // Most agents of z stop between two passes: no node is tainted before the zone is found to be disrupted.
    let mut sim = fleet(&[("z", 5, 0)]);
    sim.run_until(12.3);
    for i in 0..4 {
        sim.stop_agent(&format!("z{i:03}"));
    }
    sim.run_until(600.0);
    assert_eq!((sim.tainted_noexecute().len(), sim.zone("z").state), (0, PartialDisruption));
}

#[test]
fn a_node_that_moves_waits_in_its_new_zone_only() {
    let mut sim = fleet(&[("a", 5, 2), ("b", 5, 0)]);
    sim.run_until(1.0);
    sim.edit_node("a001", |node| {
        node.meta.labels.insert(label::ZONE.to_owned(), "b".to_owned());
    });
    assert_eq!(sim.zone("a").queue_length, 0);
    sim.run_until(6.0);
    assert_eq!(times(&sim), [0.0, 5.0], "b has a token");
}
