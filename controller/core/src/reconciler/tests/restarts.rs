use std::time::Duration;

use muster_proto::condition::ConditionStatus::{True, Unknown};

use muster_proto::watch_event::WatchEvent;

use crate::fixtures::simulator::{Simulator, scenario_policy};
use crate::fixtures::{for_unreachable, node, pod};
use crate::policy::Policy;
use crate::reconciler::{Observation, Phase};
use crate::world::Revisions;

fn three(policy: Policy) -> Simulator {
    let mut sim = Simulator::with(policy);
    sim.start();
    for name in ["a", "b", "c"] {
        sim.add_ready_node(name, "");
    }
    sim.put_pod(pod("p").on("a").tolerates(for_unreachable(300)));
    sim
}

#[test]
fn s122_a_new_controller_takes_the_taint_off_and_earns_it_anew() {
    let mut sim = three(scenario_policy());
    sim.stop_agent("a");
    sim.run_until(100.0);
    let (tainted, _) = sim.tainted_noexecute()[0];
    sim.run_until(tainted + 200.0);
    let restarted = sim.seconds();
    sim.restart();
    assert_eq!(sim.when("-unreachable:NE").len(), 1);
    sim.run_until(restarted + 6.0);
    let again = sim.tainted_noexecute()[1].0;
    assert!(again <= restarted + 6.0);
    sim.run_until(again + 299.0);
    assert!(!sim.is_deleting("p"), "its time began anew");
    sim.run_until(again + 300.0);
    assert!(sim.is_deleting("p"));
}

#[test]
fn s123_nodes_that_spoke_while_no_controller_listened_are_not_silent() {
    let mut sim = three(scenario_policy());
    sim.run_until(10.0);
    sim.reconciler = crate::reconciler::Reconciler::new(scenario_policy());
    sim.run_until(310.0).start();
    sim.run_until(600.0);
    assert_eq!(sim.times("Unknown").len(), 0);
}

#[test]
fn s124_a_new_controller_gives_a_whole_grace() {
    let mut sim = three(scenario_policy());
    sim.run_until(20.0).stop_agent("a");
    sim.run_until(60.0).restart();
    sim.run_until(110.0);
    assert_eq!(sim.ready("a"), True);
    sim.run_until(111.0);
    assert_eq!(sim.ready("a"), Unknown);
}

#[test]
fn a_store_that_is_not_heard_makes_nobody_silent() {
    let mut sim = three(scenario_policy());
    sim.run_until(20.0).disconnect();
    sim.run_until(500.0);
    assert_eq!(sim.times("Unknown").len(), 0, "while it is away");
    sim.stop_agent("a");
    sim.reconnect();
    sim.run_until(549.0);
    assert_eq!(sim.times("Unknown").len(), 0, "everybody has a new grace");
    sim.run_until(551.0);
    assert_eq!(sim.when("Unknown"), [(550.001, "a".to_owned())]);
}

#[test]
fn whoever_stood_still_takes_nobody_for_silent() {
    let mut sim = three(scenario_policy());
    sim.run_until(20.0).stop_agent("a");
    sim.pause_controller_until(100.0);
    sim.run_until(149.0);
    assert_eq!(sim.times("Unknown").len(), 0, "everybody has a new grace");
    sim.run_until(300.0);
    assert_eq!(sim.when("Unknown"), [(150.001, "a".to_owned())]);
}

#[test]
fn a_short_pause_of_our_own_changes_nothing() {
    let mut sim = three(scenario_policy());
    sim.run_until(20.0).stop_agent("a");
    sim.pause_controller_until(35.0);
    sim.run_until(100.0);
    assert_eq!(sim.when("Unknown"), [(70.001, "a".to_owned())]);
}

#[test]
fn whoever_comes_to_lead_waits_for_what_was_written_before() {
    let mut sim = three(scenario_policy());
    sim.run_until(10.0);
    let (now, told) = (sim.now(), sim.reconciler.world().applied());
    let last = Revisions { nodes: told.nodes + 5, ..told };
    for news in [
        Observation::Leading(false),
        Observation::Leading(true),
        Observation::RequiredRevisions(Revisions::MAX),
    ] {
        sim.reconciler.observe(news, now);
    }
    sim.decide_and_perform();
    assert_eq!(sim.reconciler.phase(), Phase::Syncing, "nobody knows yet how far that is");
    sim.reconciler.observe(Observation::RequiredRevisions(last), now);
    for (revision, expected) in [(told.nodes + 4, Phase::Syncing), (told.nodes + 5, Phase::Active)] {
        sim.reconciler.observe(Observation::Node(WatchEvent::Synced { revision }), now);
        sim.decide_and_perform();
        assert_eq!(
            (sim.reconciler.phase(), sim.reconciler.controllers().is_some()),
            (expected, expected == Phase::Active)
        );
    }
}

#[test]
fn whoever_seemed_silent_because_the_store_was_has_a_new_grace() {
    let mut sim = three(scenario_policy());
    // The store is gone before we notice: no renewal arrives and no write succeeds.
    sim.fail_actions("its grace has passed", usize::MAX);
    sim.run_until(20.0).stop_agent("a");
    sim.run_until(75.0);
    assert_eq!(sim.ready("a"), True, "its mark was not written");
    sim.disconnect();
    sim.run_until(100.0);
    sim.failures.clear();
    sim.reconnect();
    sim.run_until(149.0);
    assert_eq!(sim.ready("a"), True, "it is not judged by what we could not hear");
    sim.run_until(151.0);
    assert_eq!(sim.ready("a"), Unknown);
}

#[test]
fn a_mark_that_had_to_wait_is_dropped_when_the_node_is_heard() {
    let mut sim = three(scenario_policy());
    sim.delay_actions("its grace has passed");
    sim.run_until(20.0).stop_agent("a");
    sim.run_until(75.0);
    sim.renew_lease("a");
    let proposal = sim.delayed[0].clone();
    assert_eq!(sim.reconciler.obsolete(&proposal, sim.now()), Some("the node sent a heartbeat meanwhile"));
    sim.disconnect();
    assert_eq!(sim.reconciler.obsolete(&proposal, sim.now()), Some("this controller is not active"));
}

#[test]
fn a_removal_that_had_to_wait_is_dropped_when_the_node_is_in_service_again() {
    for is_back in [true, false] {
        let mut sim = Simulator::new();
        sim.start().add_ready_node("b", "");
        let off = "node.kubernetes.io/out-of-service=nodeshutdown:NoSchedule";
        sim.put_node(node("a").ready(Unknown).taint(off));
        sim.put_pod(pod("p").on("a").deleting(30));
        sim.delay_actions("the node is out of service");
        sim.run_until(25.0);
        let proposal = sim.delayed[0].clone();
        assert_eq!(sim.reconciler.obsolete(&proposal, sim.now()), None);
        if is_back {
            sim.post_status("a", True);
        } else {
            sim.edit_node("a", |node| node.spec.taints.retain(|taint| taint.to_string() != off));
        }
        assert_eq!(
            sim.reconciler.obsolete(&proposal, sim.now()),
            Some("the pod's node is back, so its agent can stop the pod")
        );
    }
}

#[test]
fn nobody_is_evicted_until_the_fleet_was_heard_for_a_whole_grace() {
    let policy = Policy { hold: Duration::from_secs(50), ..scenario_policy() };
    let mut sim = three(policy);
    sim.stop_agent("a");
    sim.run_until(100.0);
    assert_eq!(sim.tainted_noexecute().len(), 1);
    sim.restart();
    sim.run_until(149.0);
    assert_eq!(sim.tainted_noexecute().len(), 1, "held back");
    assert_eq!(sim.controllers().node_lifecycle.hold.until - sim.now().mono, Duration::from_secs(1));
    sim.run_until(155.0);
    assert_eq!(sim.tainted_noexecute().len(), 2);
}

#[test]
fn evictions_that_fall_due_after_an_interruption_wait_for_the_fleet_to_be_heard() {
    let policy = Policy { hold: Duration::from_secs(50), ..scenario_policy() };
    let mut sim = three(policy);
    sim.run_until(60.0).stop_agent("a");
    sim.run_until(120.0);
    let (tainted, _) = sim.tainted_noexecute()[0];
    sim.run_until(200.0).disconnect();
    sim.run_until(tainted + 310.0).reconnect();
    let heard = sim.seconds();
    sim.run_until(heard + 49.0);
    assert!(!sim.is_deleting("p"));
    sim.run_until(heard + 51.0);
    assert!(sim.is_deleting("p"));
}

#[test]
fn a_hold_outlasts_those_who_fell_silent_while_nobody_was_heard() {
    let mut sim = Simulator::with(Policy { hold: Duration::from_secs(50), ..scenario_policy() });
    for name in ["a", "b"] {
        sim.add_unknown_node(name, "");
    }
    for name in ["c", "d", "e"] {
        sim.add_ready_node(name, "");
    }
    sim.start().run_until(55.0).disconnect();
    for name in ["c", "d", "e"] {
        sim.stop_agent(name);
    }
    sim.run_until(90.0).reconnect();
    // What was missed is told a little after the store is heard again.
    sim.run_until(90.5);
    for name in ["c", "d", "e"] {
        sim.renew_lease(name);
    }
    sim.run_until(200.0);
    assert_eq!(
        sim.tainted_noexecute(),
        [(50.0, "a".to_owned())],
        "nobody else, since the whole fleet is silent"
    );
}

#[test]
fn who_may_leave_when_a_hold_ends_is_judged_by_the_zones_of_that_moment() {
    let mut sim = Simulator::with(Policy { hold: Duration::from_secs(50), ..scenario_policy() });
    sim.add_unknown_node("a", "");
    sim.add_ready_node("b", "");
    sim.add_ready_node("c", "");
    sim.put_pod(pod("p").on("a").tolerates(for_unreachable(60)));
    sim.start().run_until(80.0).disconnect();
    sim.stop_agent("b");
    sim.stop_agent("c");
    sim.run_until(92.0).reconnect();
    // Their graces end at 142 s, after the pass of 140 s; the hold ends at 143 s.
    sim.run_until(142.5);
    assert_eq!((sim.ready("b"), sim.ready("c")), (Unknown, Unknown));
    sim.run_until(200.0);
    assert!(!sim.is_deleting("p"), "the whole fleet is silent");
}

#[test]
fn a_standby_does_nothing() {
    let mut sim = three(scenario_policy());
    let now = sim.now();
    sim.reconciler.observe(Observation::Leading(false), now);
    sim.stop_agent("a");
    sim.run_until(300.0);
    assert_eq!(sim.times("Unknown").len(), 0);
}

#[test]
fn a_controller_that_starts_amid_a_full_outage_takes_every_taint_back() {
    let mut sim = three(scenario_policy());
    sim.stop_agent("a");
    sim.run_until(60.0);
    sim.stop_agent("b");
    sim.stop_agent("c");
    sim.reconciler = crate::reconciler::Reconciler::new(scenario_policy());
    for name in ["b", "c"] {
        sim.post_status(name, Unknown);
    }
    sim.start();
    sim.run_until(1000.0);
    assert_eq!(sim.taints("a"), "unreachable:NS");
    assert!(!sim.is_deleting("p"));
}
