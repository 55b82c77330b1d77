//! The trace events of a node that fails and recovers.

use std::time::Duration;

use muster_proto::condition::ConditionStatus::{False, True};
use muster_proto::taint::TaintEffect::NoExecute;
use muster_proto::taint::Toleration;

use crate::fixtures::simulator::{Simulator, scenario_policy};
use crate::fixtures::{PodSample, at_ms, key, pod};
use crate::node_lifecycle::liveness::SignOfLife;
use crate::node_lifecycle::zone_state::ZoneKey;
use crate::policy::Policy;
use crate::trace_event::{TokenWait, TraceEvent};

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

fn tolerating(name: &str, node: &str, seconds: i64) -> PodSample {
    let toleration = Toleration::exists(UNREACHABLE, NoExecute).for_seconds(seconds);
    pod(name).on(node).running(True).tolerates(toleration)
}

/// Two ready nodes and an active controller.
fn two_ready_nodes(name: &str) -> Simulator {
    let mut sim = Simulator::new();
    sim.start().add_ready_node(name, "z");
    sim.add_ready_node("other", "z");
    sim
}

/// The trace events of a node, with the seconds at which they were planned.
fn trace_events(sim: &Simulator, name: &str) -> Vec<(f64, TraceEvent)> {
    let is_of_node = |event: &TraceEvent| match event {
        TraceEvent::DeadlinePassed { node, .. }
        | TraceEvent::TaintQueued { node, .. }
        | TraceEvent::TokenTaken { node, .. }
        | TraceEvent::NoExecuteTainted { node, .. }
        | TraceEvent::TolerationOver { node, .. }
        | TraceEvent::Recovered { node }
        | TraceEvent::Gone { node } => node.as_str() == name,
    };
    let found = sim.trace_events.iter().filter(|(_, event)| is_of_node(event));
    found.map(|(at, event)| (*at as f64 / 1000.0, event.clone())).collect()
}

#[test]
fn each_step_of_a_failure_has_a_trace_event() {
    let mut sim = two_ready_nodes("a");
    sim.put_pod(tolerating("p", "a", 7));
    sim.run_until(20.0).stop_agent("a");
    sim.run_until(100.0).trace_events.retain(|(at, _)| *at > 0);
    let node: muster_proto::name::Name = "a".parse().unwrap();
    let zone = ZoneKey { zone: "z".to_owned(), ..ZoneKey::default() };
    let taint = format!("{UNREACHABLE}:NoExecute");
    let (seen_at, silent_at) = (at_ms(20_000).mono, 70.001);
    let tainted_at = sim.tainted_noexecute()[0].0;
    let since = at_ms((tainted_at * 1000.0) as u64).mono;
    assert_eq!(
        trace_events(&sim, "a"),
        [
            (
                silent_at,
                TraceEvent::DeadlinePassed { node: node.clone(), seen_at, seen_by: Some(SignOfLife::Lease) }
            ),
            (tainted_at, TraceEvent::TaintQueued { node: node.clone(), zone: zone.clone() }),
            (tainted_at, TraceEvent::TokenTaken { node: node.clone(), zone, waited_for: None }),
            (tainted_at, TraceEvent::NoExecuteTainted { node: node.clone(), taint: taint.clone() }),
            (
                tainted_at + 7.0,
                TraceEvent::TolerationOver {
                    pod: key("p"),
                    node: node.clone(),
                    taint,
                    since,
                    over: since + Duration::from_secs(7)
                }
            ),
        ]
    );

    sim.trace_events.clear();
    sim.start_agent("a");
    assert_eq!(trace_events(&sim, "a"), [(100.0, TraceEvent::Recovered { node: node.clone() })]);
    sim.trace_events.clear();
    sim.delete_node("a");
    assert_eq!(trace_events(&sim, "a"), [(100.0, TraceEvent::Gone { node })]);
}

#[test]
fn a_node_that_renews_before_it_was_marked_unknown_has_recovered() {
    let mut sim = two_ready_nodes("a");
    sim.fail_actions("its grace has passed", 1000);
    sim.run_until(20.0).stop_agent("a");
    sim.run_until(75.0).trace_events.clear();
    assert_eq!(sim.ready("a"), True);
    sim.start_agent("a");
    assert_eq!(trace_events(&sim, "a"), [(75.0, TraceEvent::Recovered { node: "a".parse().unwrap() })]);
}

#[test]
fn the_retry_of_an_eviction_has_no_second_trace_event() {
    let mut sim = two_ready_nodes("a");
    sim.put_pod(tolerating("p", "a", 1));
    sim.fail_actions("a NoExecute taint", 2);
    sim.run_until(20.0).stop_agent("a");
    sim.run_until(100.0);
    assert!(sim.is_deleting("p"));
    let over = trace_events(&sim, "a")
        .into_iter()
        .filter(|(_, event)| matches!(event, TraceEvent::TolerationOver { .. }));
    assert_eq!(over.count(), 1);
}

#[test]
fn a_node_that_reports_not_ready_has_no_passed_deadline() {
    let mut sim = two_ready_nodes("failing");
    sim.edit_agent("failing", |agent| agent.ready = False);
    sim.run_until(100.0);
    assert!(
        trace_events(&sim, "failing")
            .iter()
            .all(|(_, event)| !matches!(event, TraceEvent::DeadlinePassed { .. }))
    );
}

#[test]
fn a_token_says_what_the_node_waited_for() {
    let waits = |hold: u64| {
        let policy = Policy { hold: Duration::from_secs(hold), ..scenario_policy() };
        let mut sim = Simulator::with(policy);
        for name in ["a", "b"] {
            sim.add_unknown_node(name, "");
        }
        for name in ["c", "d", "e"] {
            sim.add_ready_node(name, "");
        }
        sim.start().run_until(100.0);
        let tokens = sim.trace_events.iter().filter_map(|(_, event)| match event {
            TraceEvent::TokenTaken { node, waited_for, .. } => Some((node.to_string(), *waited_for)),
            _ => None,
        });
        tokens.collect::<Vec<_>>()
    };
    let (a, b) = (|| "a".to_owned(), || "b".to_owned());
    assert_eq!(waits(0), [(a(), None), (b(), Some(TokenWait::Rate))]);
    assert_eq!(waits(50), [(a(), Some(TokenWait::EvictionHold)), (b(), Some(TokenWait::Rate))]);
}
