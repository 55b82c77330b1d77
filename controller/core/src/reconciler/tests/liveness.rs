use std::time::Duration;

use muster_proto::condition::ConditionStatus::{False, True, Unknown};

use crate::fixtures::simulator::Simulator;
use crate::fixtures::{node, pod};

#[test]
fn s084_a_node_that_never_reports_is_unknown_after_the_startup_grace() {
    let mut sim = Simulator::new();
    sim.put_node(node("a"));
    // It was created 59 seconds before there is a controller: its grace runs from its creation, not from our first look.
    sim.run_until(59.0).start();
    sim.run_until(60.0);
    assert!(sim.node("a").status.conditions.is_empty(), "its whole grace must have passed");
    sim.run_until(60.1);
    let conditions = &sim.node("a").status.conditions;
    assert_eq!(conditions.len(), 4);
    assert!(conditions.iter().all(|held| held.status == Unknown && held.reason == "NodeStatusNeverUpdated"));
    assert_eq!(conditions[0].last_heartbeat_time, sim.node("a").meta.creation_timestamp);
    // Our own word is no sign of life: it is not written again, and nothing else happens.
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
    assert_eq!(sim.ready("a"), True, "it was last heard at 20");
    sim.run_until(70.1);
    assert_eq!(sim.ready("a"), Unknown);
    let ready = sim.node("a").condition("Ready").unwrap();
    assert_eq!(
        (ready.reason.as_str(), ready.message.as_str()),
        ("NodeStatusUnknown", "Kubelet stopped posting node status.")
    );
    assert!(ready.last_heartbeat_time < ready.last_transition_time, "the agent's own time stays");
    assert_eq!(sim.ready("b"), True);
}

#[test]
fn s086_a_lease_alone_keeps_a_node() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.run_until(600.0);
    assert_eq!(sim.ready("a"), True);
}

#[test]
fn s087_a_status_alone_keeps_a_node() {
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
fn s088_a_node_that_falls_silent_takes_the_readiness_of_its_pods_with_it() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.add_ready_node("b", "");
    sim.put_pod(pod("p").on("a").running(True));
    sim.put_pod(pod("q").on("a").running(False));
    sim.put_pod(pod("r").on("b").running(True));
    sim.put_pod(pod("s").on("a"));
    sim.stop_agent("a");
    sim.run_until(100.0);
    assert_eq!(sim.times("event NodeNotReady a").len(), 1, "told once");
    assert_eq!(sim.when("not-ready").into_iter().map(|(_, pod)| pod).collect::<Vec<_>>(), ["p"]);
    assert!(!sim.pod("p").is_ready());
    assert!(sim.pod("r").is_ready(), "its node is well");
}

#[test]
fn s089_a_node_that_only_renews_is_never_marked_and_counts_as_unhealthy() {
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
fn s090_a_node_with_a_wrong_clock_is_judged_like_any_other() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.run_until(15.0).edit_agent("a", |agent| agent.clock_behind = Duration::from_secs(3600));
    sim.run_until(300.0);
    assert_eq!(sim.ready("a"), True, "it stepped back by an hour and goes on from there");
    sim.edit_agent("a", |agent| agent.clock_behind = Duration::from_secs(60));
    sim.run_until(600.0);
    assert_eq!(sim.ready("a"), True);
}

#[test]
fn s091_only_the_agent_can_say_that_it_is_ready_again() {
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
    assert_eq!(sim.taints("a"), "", "all taints go at once");
}

#[test]
fn s103_nodes_that_come_and_go_are_told_of() {
    let mut sim = Simulator::new();
    sim.put_node(node("old").ready(True));
    sim.start().put_node(node("a").ready(True));
    sim.delete_node("a");
    assert_eq!(sim.when("event RegisteredNode"), [(0.0, "a".to_owned())], "not of those there before us");
    assert_eq!(sim.when("event RemovingNode"), [(0.0, "a".to_owned())]);
}

#[test]
fn s104_pods_of_a_node_that_says_it_is_not_ready_are_left_as_they_are() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.put_pod(pod("p").on("a").running(True));
    sim.edit_agent("a", |agent| agent.ready = False);
    sim.run_until(60.0);
    assert_eq!(sim.ready("a"), False);
    assert!(sim.pod("p").is_ready());
    sim.restart();
    assert!(sim.pod("p").is_ready(), "nor does who comes to lead touch them");
    // Nor does it matter that such a node falls silent.
    sim.stop_agent("a");
    sim.run_until(200.0);
    assert_eq!(sim.ready("a"), Unknown);
    assert_eq!((sim.times("not-ready").len(), sim.times("event NodeNotReady").len()), (0, 0));
}

#[test]
fn s105_marking_is_repeated_until_it_is_done() {
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
fn s105_the_pods_of_a_lost_node_are_marked_also_when_nobody_answered_the_write() {
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
fn s105_who_comes_to_lead_marks_the_pods_that_were_not_marked_yet() {
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
fn s106_a_pod_that_comes_to_a_lost_node_is_marked_at_once() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.stop_agent("a");
    sim.run_until(60.0).put_pod(pod("p").running(True));
    sim.edit_pod("p", |pod| pod.spec.node_name = Some("a".parse().unwrap()));
    assert!(!sim.pod("p").is_ready());
}

#[test]
fn a_write_that_fails_is_tried_again() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.fail_actions("its grace has passed", 4);
    sim.stop_agent("a");
    sim.run_until(60.0);
    assert_eq!(sim.ready("a"), Unknown);
}

#[test]
fn a_namesake_does_not_inherit_a_silence() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("a", "");
    sim.stop_agent("a");
    sim.run_until(49.0).delete_node("a");
    sim.put_node(node("a").identity("another").ready(True));
    sim.run_until(98.0);
    assert_eq!(sim.ready("a"), True, "it has its own grace");
    sim.run_until(100.0);
    assert_eq!(sim.ready("a"), Unknown);
}
