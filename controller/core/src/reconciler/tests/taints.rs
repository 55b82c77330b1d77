//! Taints of nodes that are not ready, cordoned or tainted by other clients.

use muster_proto::condition::ConditionStatus::{False, True, Unknown};

use crate::fixtures::simulator::{Simulator, scenario_policy};
use crate::fixtures::{node, pod};
use crate::policy::Policy;
use crate::trace_event::TraceEvent;

/// Three ready nodes of one zone and an active controller.
fn three_ready_nodes() -> Simulator {
    let mut sim = Simulator::new();
    sim.start();
    for name in ["a", "b", "c"] {
        sim.add_ready_node(name, "");
    }
    sim
}

#[test]
fn s191_a_node_that_never_reported_gets_no_pods_unless_such_nodes_are_trusted() {
    for trusted in [false, true] {
        let mut sim = Simulator::with(Policy { trust_unreported_nodes: trusted, ..scenario_policy() });
        sim.start();
        let created = || {
            node("a").taint("node.kubernetes.io/not-ready:NoSchedule").allocatable("cpu=4 memory=8Gi pods=10")
        };
        sim.put_node(created());
        sim.put_pod(pod("p"));
        let bound = |sim: &Simulator| sim.pod("p").spec.node_name.as_ref().map(ToString::to_string);
        if trusted {
            assert_eq!(
                (sim.taints("a").as_str(), bound(&sim)),
                ("", Some("a".to_owned())),
                "as in Kubernetes"
            );
            continue;
        }
        sim.edit_node("a", |node| node.spec.taints.clear());
        sim.run_until(59.0);
        assert_eq!((sim.taints("a").as_str(), bound(&sim)), ("not-ready:NS", None));
        sim.run_until(61.0);
        assert_eq!(
            (sim.taints("a").as_str(), bound(&sim)),
            ("unreachable:NS", None),
            "its start-up grace has passed"
        );
        sim.post_status("a", True);
        sim.run_until(90.0);
        assert_eq!((sim.taints("a").as_str(), bound(&sim)), ("", Some("a".to_owned())));
    }
}

#[test]
fn s092_a_node_that_reports_not_ready_gets_both_taints() {
    let mut sim = three_ready_nodes();
    sim.run_until(12.0).edit_agent("a", |agent| agent.ready = False);
    sim.post_status("a", False);
    sim.run_until(12.001);
    assert_eq!(sim.taints("a"), "not-ready:NS", "NoSchedule at once");
    sim.run_until(18.0);
    assert_eq!(sim.taints("a"), "not-ready:NS not-ready:NE");
}

#[test]
fn s093_a_silent_node_gets_both_taints() {
    let mut sim = three_ready_nodes();
    sim.stop_agent("a");
    sim.run_until(60.0);
    assert_eq!(sim.taints("a"), "unreachable:NS unreachable:NE");
    assert_eq!(sim.taints("b"), "");
}

#[test]
fn s094_one_health_taint_is_swapped_for_the_other_without_a_token() {
    let mut sim = three_ready_nodes();
    sim.stop_agent("a");
    sim.stop_agent("b");
    sim.run_until(56.0);
    assert_eq!(sim.tainted_noexecute().len(), 1, "the other waits for a token");
    let first = sim.tainted_noexecute()[0].1.clone();
    sim.post_status(&first, False);
    sim.run_until(56.5);
    assert_eq!(sim.taints(&first), "not-ready:NS not-ready:NE");
}

#[test]
fn of_two_health_taints_the_wrong_one_is_removed_without_a_token() {
    let mut sim = three_ready_nodes();
    sim.run_until(1.0).edit_agent("a", |agent| agent.ready = False);
    let not_ready = node("a").ready(False).build().status;
    sim.edit_node("a", |node| {
        node.status = not_ready;
        for key in ["not-ready", "unreachable"] {
            node.spec.taints.push(format!("node.kubernetes.io/{key}:NoExecute").parse().unwrap());
        }
    });
    sim.run_until(6.0);
    assert_eq!(sim.taints("a"), "not-ready:NE not-ready:NS");
    let tokens =
        sim.trace_events.iter().filter(|(_, event)| matches!(event, TraceEvent::TokenTaken { .. })).count();
    assert_eq!((tokens, sim.tainted_noexecute().len(), sim.zone("").evictions), (0, 0, 0));
}

#[test]
fn s095_a_node_that_recovers_in_the_queue_is_not_tainted() {
    let mut sim = three_ready_nodes();
    sim.stop_agent("a");
    sim.stop_agent("b");
    sim.run_until(56.0).start_agent("b");
    sim.run_until(300.0);
    let names: Vec<String> = sim.tainted_noexecute().into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn s096_a_noexecute_taint_removed_from_an_unready_node_is_added_again() {
    let mut sim = three_ready_nodes();
    sim.stop_agent("a");
    sim.run_until(61.0);
    sim.edit_node("a", |node| node.spec.taints.clear());
    sim.run_until(77.0);
    assert_eq!(sim.taints("a"), "unreachable:NS unreachable:NE");
}

#[test]
fn s097_a_health_taint_on_a_ready_node_is_removed() {
    let mut sim = three_ready_nodes();
    sim.edit_node("a", |node| {
        node.spec.taints.push("node.kubernetes.io/not-ready:NoExecute".parse().unwrap());
    });
    sim.run_until(6.0);
    assert_eq!(sim.taints("a"), "");
}

#[test]
fn s100_taints_of_other_clients_are_kept_while_a_node_fails() {
    let mut sim = Simulator::new();
    sim.start().add_ready_node("b", "");
    sim.put_node(
        node("a")
            .ready(True)
            .taint("dedicated=x:NoSchedule")
            .taint("node.kubernetes.io/memory-pressure:NoExecute"),
    );
    sim.run_until(100.0);
    assert_eq!(sim.ready("a"), Unknown);
    assert!(sim.taints("a").starts_with("dedicated=x:NS memory-pressure:NE"), "{}", sim.taints("a"));
}

#[test]
fn a_failed_write_of_taints_is_retried() {
    let mut sim = three_ready_nodes();
    sim.fail_actions("its record", 3);
    sim.edit_node("a", |node| node.spec.unschedulable = true);
    sim.run_until(2.0);
    assert_eq!(sim.taints("a"), "unschedulable:NS");
}

#[test]
fn s173_a_noschedule_taint_removed_by_a_client_is_added_again_at_once() {
    let mut sim = three_ready_nodes();
    sim.run_until(12.0).edit_agent("a", |agent| agent.ready = False);
    sim.post_status("a", False);
    sim.run_until(14.0);
    assert_eq!(sim.taints("a"), "not-ready:NS");
    sim.edit_node("a", |node| node.spec.taints.clear());
    assert_eq!(sim.taints("a"), "not-ready:NS");
    assert_eq!(sim.when("+not-ready:NS"), [(12.0, "a".to_owned()), (14.0, "a".to_owned())]);
}
