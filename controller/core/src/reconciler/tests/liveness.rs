//! Liveness: when nodes become Unknown, and what that means for their pods.

use std::time::Duration;

use muster_proto::condition::ConditionStatus::{False, True, Unknown};

use crate::fixtures::simulator::Simulator;
use crate::fixtures::{node, pod};

#[test]
fn s084_a_node_that_never_reports_is_unknown_after_the_startup_grace() {
    let mut sim = Simulator::new();
    sim.put_node(node("a"));
    // Created 59 seconds before the controller starts: the grace runs from the creation, not from the start.
    sim.run_until(59.0).start();
    sim.run_until(60.0);
    assert!(sim.node("a").status.conditions.is_empty(), "its whole grace must have passed");
    sim.run_until(60.1);
    let conditions = &sim.node("a").status.conditions;
    assert_eq!(conditions.len(), 4);
    assert!(conditions.iter().all(|held| held.status == Unknown && held.reason == "NodeStatusNeverUpdated"));
    assert_eq!(conditions[0].last_heartbeat_time, sim.node("a").meta.creation_timestamp);
    // The status that the controller wrote is no sign of life, and it is not written again.
    sim.run_until(600.0);
    assert_eq!(sim.times("Unknown a").len(), 1);
}

#[test]
fn s085_a_silent_node_is_unknown_exactly_when_its_grace_has_passed() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.add_ready_node("b", "");
    sim.run_until(20.0).stop_agent("a");
    sim.run_until(70.0);
    assert_eq!(sim.ready("a"), True, "its last renewal was at 20");
    sim.run_until(70.1);
    assert_eq!(sim.ready("a"), Unknown);
    let ready = sim.node("a").condition("Ready").unwrap();
    assert_eq!(
        (ready.reason.as_str(), ready.message.as_str()),
        ("NodeStatusUnknown", "The node's agent stopped posting node status.")
    );
    assert!(
        ready.last_heartbeat_time < ready.last_transition_time,
        "the heartbeat time of the agent is kept"
    );
    assert_eq!(sim.ready("b"), True);
}

#[test]
fn s086_renewing_the_lease_alone_keeps_a_node_ready() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.run_until(600.0);
    assert_eq!(sim.ready("a"), True);
}

#[test]
fn s087_posting_status_alone_keeps_a_node_ready() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.edit_agent("a", |agent| {
        agent.renews = false;
        agent.posts = true;
    });
    sim.run_until(600.0);
    assert_eq!(sim.ready("a"), True);
}

#[test]
fn a_status_does_not_make_an_old_lease_count_again() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.add_ready_node("b", "");
    sim.run_until(20.0).stop_agent("a");
    sim.run_until(30.0).post_status("a", True);
    sim.run_until(80.0);
    assert_eq!(sim.ready("a"), True, "its last status was at 30");
    sim.run_until(80.1);
    assert_eq!(sim.ready("a"), Unknown, "its renewal was older than that");
}

#[test]
fn s088_the_pods_of_a_silent_node_are_marked_not_ready() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.add_ready_node("b", "");
    sim.put_pod(pod("p").on("a").running(True));
    sim.put_pod(pod("q").on("a").running(False));
    sim.put_pod(pod("r").on("b").running(True));
    sim.put_pod(pod("s").on("a"));
    sim.stop_agent("a");
    sim.run_until(100.0);
    assert_eq!(sim.times("event NodeNotReady a").len(), 1, "one event");
    assert_eq!(sim.when("not-ready").into_iter().map(|(_, pod)| pod).collect::<Vec<_>>(), ["p"]);
    assert!(!sim.pod("p").is_ready());
    assert!(sim.pod("r").is_ready(), "its node is ready");
}

#[test]
fn s089_a_node_that_renews_but_never_reports_is_not_marked_and_counts_as_unhealthy() {
    let mut sim = Simulator::new();
    sim.start().put_node(node("a"));
    sim.add_ready_node("b", "");
    sim.start_agent("a");
    sim.run_until(600.0);
    assert!(sim.node("a").status.conditions.is_empty());
    let zone = sim.zone("");
    assert_eq!((zone.nodes, zone.unhealthy), (2, 1));
}

#[test]
fn s090_a_node_with_a_wrong_clock_stays_ready() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.run_until(15.0).edit_agent("a", |agent| agent.clock_behind = Duration::from_secs(3600));
    sim.run_until(300.0);
    assert_eq!(sim.ready("a"), True, "its clock went back by an hour and runs on from there");
    sim.edit_agent("a", |agent| agent.clock_behind = Duration::from_secs(60));
    sim.run_until(600.0);
    assert_eq!(sim.ready("a"), True);
}

#[test]
fn s091_only_a_status_of_the_agent_makes_a_node_ready_again() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.add_ready_node("b", "");
    sim.stop_agent("a");
    sim.run_until(60.0);
    assert_eq!((sim.ready("a"), sim.taints("a").as_str()), (Unknown, "unreachable:NS unreachable:NE"));
    sim.renew_lease("a");
    sim.run_until(100.0);
    assert_eq!(sim.ready("a"), Unknown);
    sim.post_status("a", True);
    sim.run_until(100.001);
    assert_eq!(sim.taints("a"), "", "all taints are removed in one write");
}

#[test]
fn s103_nodes_that_are_added_or_removed_have_events() {
    let mut sim = Simulator::new();
    sim.put_node(node("old").ready(True));
    sim.start().put_node(node("a").ready(True));
    sim.delete_node("a");
    assert_eq!(
        sim.when("event RegisteredNode"),
        [(0.0, "a".to_owned())],
        "none for nodes that existed at the start"
    );
    assert_eq!(sim.when("event RemovingNode"), [(0.0, "a".to_owned())]);
}

#[test]
fn s104_pods_of_a_node_whose_agent_reports_not_ready_are_not_marked() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.put_pod(pod("p").on("a").running(True));
    sim.edit_agent("a", |agent| agent.ready = False);
    sim.run_until(60.0);
    assert_eq!(sim.ready("a"), False);
    assert!(sim.pod("p").is_ready());
    sim.restart();
    assert!(sim.pod("p").is_ready(), "a new leader does not mark them either");
    // The same if such a node falls silent.
    sim.stop_agent("a");
    sim.run_until(200.0);
    assert_eq!(sim.ready("a"), Unknown);
    assert_eq!((sim.times("not-ready").len(), sim.times("event NodeNotReady").len()), (0, 0));
}

#[test]
fn s105_marking_pods_is_retried_until_it_succeeds() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    for name in ["p", "q"] {
        sim.put_pod(pod(name).on("a").running(True));
    }
    sim.fail_actions("its node is not ready", 3);
    sim.stop_agent("a");
    sim.run_until(60.0);
    assert!(!sim.pod("p").is_ready() && !sim.pod("q").is_ready());
}

#[test]
fn s105_pods_are_marked_even_if_the_response_to_marking_their_node_is_lost() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.put_pod(pod("p").on("a").running(True));
    sim.lose_responses("its grace has passed", 1);
    sim.stop_agent("a");
    sim.run_until(60.0);
    assert_eq!((sim.ready("a"), sim.times("event NodeNotReady a").len()), (Unknown, 1));
    assert!(!sim.pod("p").is_ready());
}

#[test]
fn s105_a_new_leader_marks_the_pods_that_are_not_marked_yet() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.put_pod(pod("p").on("a").running(True));
    sim.fail_actions("its node is not ready", usize::MAX);
    sim.stop_agent("a");
    sim.run_until(60.0);
    assert_eq!((sim.ready("a"), sim.pod("p").is_ready()), (Unknown, true));
    sim.failures.clear();
    sim.restart();
    assert!(!sim.pod("p").is_ready());
}

#[test]
fn s106_a_pod_bound_to_an_unknown_node_is_marked_at_once() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.stop_agent("a");
    sim.run_until(60.0).put_pod(pod("p").running(True));
    sim.edit_pod("p", |pod| pod.spec.node_name = Some("a".parse().unwrap()));
    assert!(!sim.pod("p").is_ready());
}

#[test]
fn a_failed_write_is_retried() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.fail_actions("its grace has passed", 4);
    sim.stop_agent("a");
    sim.run_until(60.0);
    assert_eq!(sim.ready("a"), Unknown);
}

#[test]
fn a_new_node_of_the_same_name_has_a_grace_of_its_own() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.stop_agent("a");
    sim.run_until(49.0).delete_node("a");
    sim.put_node(node("a").identity("another").ready(True));
    sim.run_until(98.0);
    assert_eq!(sim.ready("a"), True, "its grace began at 49");
    sim.run_until(100.0);
    assert_eq!(sim.ready("a"), Unknown);
}
