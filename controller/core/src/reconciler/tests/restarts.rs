//! Restarts, failovers and interruptions of the controller.

use std::time::Duration;

use muster_proto::condition::ConditionStatus::{True, Unknown};

use muster_proto::watch_event::WatchEvent;

use crate::fixtures::simulator::{Simulator, scenario_policy};
use crate::fixtures::{for_unreachable, node, pod};
use crate::policy::Policy;
use crate::reconciler::{Observation, Phase};
use crate::world::Revisions;

fn three_ready_nodes(policy: Policy) -> Simulator {
    let mut sim = Simulator::with(policy);
    sim.start();
    for name in ["a", "b", "c"] {
        sim.add_ready_node(name, "");
    }
    sim.put_pod(pod("p").on("a").tolerates(for_unreachable(300)));
    sim
}

#[test]
fn s122_a_new_controller_removes_the_taint_and_needs_a_token_to_add_it_again() {
    let mut sim = three_ready_nodes(scenario_policy());
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
    assert!(!sim.is_deleting("p"), "its toleration time began again");
    sim.run_until(again + 300.0);
    assert!(sim.is_deleting("p"));
}

#[test]
fn s123_nodes_that_renewed_while_there_was_no_controller_are_not_silent() {
    let mut sim = three_ready_nodes(scenario_policy());
    sim.run_until(10.0);
    sim.reconciler = crate::reconciler::Reconciler::new(scenario_policy());
    sim.run_until(310.0).start();
    sim.run_until(600.0);
    assert_eq!(sim.times("Unknown").len(), 0);
}

#[test]
fn s124_a_new_controller_gives_every_node_a_whole_grace() {
    let mut sim = three_ready_nodes(scenario_policy());
    sim.run_until(20.0).stop_agent("a");
    sim.run_until(60.0).restart();
    sim.run_until(110.0);
    assert_eq!(sim.ready("a"), True);
    sim.run_until(111.0);
    assert_eq!(sim.ready("a"), Unknown);
}

#[test]
fn no_node_is_silent_because_the_watches_are_disconnected() {
    let mut sim = three_ready_nodes(scenario_policy());
    sim.run_until(20.0).disconnect();
    sim.run_until(500.0);
    assert_eq!(sim.times("Unknown").len(), 0, "while they are disconnected");
    sim.stop_agent("a");
    sim.reconnect();
    sim.run_until(549.0);
    assert_eq!(sim.times("Unknown").len(), 0, "its last renewal was at 500");
    sim.run_until(551.0);
    assert_eq!(sim.when("Unknown"), [(550.001, "a".to_owned())]);
}

#[test]
fn no_node_is_silent_because_the_controller_was_paused() {
    let mut sim = three_ready_nodes(scenario_policy());
    sim.run_until(20.0).stop_agent("a");
    sim.pause_controller_until(100.0);
    sim.run_until(149.0);
    assert_eq!(sim.times("Unknown").len(), 0, "the pause counts against no node");
    sim.run_until(300.0);
    assert_eq!(sim.when("Unknown"), [(150.001, "a".to_owned())]);
}

#[test]
fn a_short_pause_of_the_controller_changes_nothing() {
    let mut sim = three_ready_nodes(scenario_policy());
    sim.run_until(20.0).stop_agent("a");
    sim.pause_controller_until(35.0);
    sim.run_until(100.0);
    assert_eq!(sim.when("Unknown"), [(70.001, "a".to_owned())]);
}

#[test]
fn a_new_leader_waits_until_the_writes_of_the_leader_before_are_applied() {
    let mut sim = three_ready_nodes(scenario_policy());
    sim.run_until(10.0);
    let (now, applied) = (sim.now(), sim.reconciler.world().applied());
    let required = Revisions { nodes: applied.nodes + 5, ..applied };
    for observation in [
        Observation::Leading(false),
        Observation::Leading(true),
        Observation::RequiredRevisions(Revisions::MAX),
    ] {
        sim.reconciler.observe(observation, now);
    }
    sim.decide_and_perform();
    assert_eq!(sim.reconciler.phase(), Phase::Syncing, "the required revisions are not known yet");
    sim.reconciler.observe(Observation::RequiredRevisions(required), now);
    for (revision, expected) in [(applied.nodes + 4, Phase::Syncing), (applied.nodes + 5, Phase::Active)] {
        sim.reconciler.observe(Observation::Node(WatchEvent::Synced { revision }), now);
        sim.decide_and_perform();
        assert_eq!(
            (sim.reconciler.phase(), sim.reconciler.controllers().is_some()),
            (expected, expected == Phase::Active)
        );
    }
}

#[test]
fn a_node_that_seemed_silent_because_the_watches_failed_unnoticed_is_not_marked() {
    let mut sim = three_ready_nodes(scenario_policy());
    // The watches fail before they report it: no renewal arrives and no write succeeds.
    sim.fail_actions("its grace has passed", usize::MAX);
    sim.run_until(20.0).stop_agent("a");
    sim.blackhole();
    sim.run_until(75.0);
    for name in ["a", "b", "c"] {
        assert!(sim.controllers().node_lifecycle.is_silent(&name.parse().unwrap()), "{name} seems silent");
    }
    sim.disconnect();
    sim.run_until(100.0);
    sim.failures.clear();
    sim.reconnect();
    sim.run_until(300.0);
    let unknown: Vec<String> = sim.when("Unknown").into_iter().map(|(_, name)| name).collect();
    assert_eq!(unknown, ["a"], "the renewals of the others are delivered before a decision");
}

#[test]
fn marking_a_node_unknown_is_obsolete_after_a_heartbeat() {
    let mut sim = three_ready_nodes(scenario_policy());
    sim.delay_actions("its grace has passed");
    sim.run_until(20.0).stop_agent("a");
    sim.run_until(75.0);
    sim.renew_lease("a");
    let planned = sim.delayed[0].clone();
    assert_eq!(sim.reconciler.obsolete(&planned, sim.now()), Some("the node sent a heartbeat meanwhile"));
    sim.disconnect();
    assert_eq!(sim.reconciler.obsolete(&planned, sim.now()), Some("this controller is not active"));
}

#[test]
fn removing_a_pod_is_obsolete_if_its_node_is_back_in_service() {
    for is_back in [true, false] {
        let mut sim = Simulator::new();
        sim.start().add_ready_node("b", "");
        let off = "node.kubernetes.io/out-of-service=nodeshutdown:NoSchedule";
        sim.put_node(node("a").ready(Unknown).taint(off));
        sim.put_pod(pod("p").on("a").deleting(30));
        sim.delay_actions("the node is out of service");
        sim.run_until(25.0);
        let planned = sim.delayed[0].clone();
        assert_eq!(sim.reconciler.obsolete(&planned, sim.now()), None);
        if is_back {
            sim.post_status("a", True);
        } else {
            sim.edit_node("a", |node| node.spec.taints.retain(|taint| taint.to_string() != off));
        }
        assert_eq!(
            sim.reconciler.obsolete(&planned, sim.now()),
            Some("the pod's node is back, so its agent can stop the pod")
        );
    }
}

#[test]
fn no_node_is_tainted_before_the_hold_after_a_start_is_over() {
    let policy = Policy { hold: Duration::from_secs(50), ..scenario_policy() };
    let mut sim = three_ready_nodes(policy);
    sim.stop_agent("a");
    sim.run_until(100.0);
    assert_eq!(sim.tainted_noexecute().len(), 1);
    sim.restart();
    sim.run_until(149.0);
    assert_eq!(sim.tainted_noexecute().len(), 1, "the hold is active");
    assert_eq!(sim.controllers().node_lifecycle.hold.until - sim.now().mono, Duration::from_secs(1));
    sim.run_until(155.0);
    assert_eq!(sim.tainted_noexecute().len(), 2);
}

#[test]
fn evictions_that_are_due_after_an_interruption_wait_for_the_hold_to_end() {
    let policy = Policy { hold: Duration::from_secs(50), ..scenario_policy() };
    let mut sim = three_ready_nodes(policy);
    sim.run_until(60.0).stop_agent("a");
    sim.run_until(120.0);
    let (tainted, _) = sim.tainted_noexecute()[0];
    sim.run_until(200.0).disconnect();
    sim.run_until(tainted + 310.0).reconnect();
    let reconnected = sim.seconds();
    sim.run_until(reconnected + 49.0);
    assert!(!sim.is_deleting("p"));
    sim.run_until(reconnected + 51.0);
    assert!(sim.is_deleting("p"));
}

#[test]
fn a_hold_lasts_until_nodes_that_stopped_during_the_interruption_are_silent() {
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
    // Missed renewals are delivered a little after the watches are connected again.
    sim.run_until(90.5);
    for name in ["c", "d", "e"] {
        sim.renew_lease(name);
    }
    sim.run_until(200.0);
    assert_eq!(
        sim.tainted_noexecute(),
        [(50.0, "a".to_owned())],
        "no other node, since the whole fleet is silent"
    );
}

#[test]
fn evictions_at_the_end_of_a_hold_go_by_the_zone_states_at_that_time() {
    let mut sim = Simulator::with(Policy { hold: Duration::from_secs(50), ..scenario_policy() });
    sim.add_unknown_node("a", "");
    sim.add_ready_node("b", "");
    sim.add_ready_node("c", "");
    sim.put_pod(pod("p").on("a").tolerates(for_unreachable(60)));
    sim.start().run_until(70.0).disconnect();
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
fn a_standby_plans_no_actions() {
    let mut sim = three_ready_nodes(scenario_policy());
    let now = sim.now();
    sim.reconciler.observe(Observation::Leading(false), now);
    sim.stop_agent("a");
    sim.run_until(300.0);
    assert_eq!(sim.times("Unknown").len(), 0);
}

#[test]
fn a_controller_that_starts_in_full_disruption_removes_every_noexecute_taint() {
    let mut sim = three_ready_nodes(scenario_policy());
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
