//! The trace of a node that fails, in a simulated fleet.

use std::time::SystemTime;

use muster_controller_core::fixtures::simulator::{Simulator, Tracer};
use muster_controller_core::fixtures::{at_ms, pod};
use muster_controller_core::plan::{Outcome, PlannedAction};
use muster_controller_core::trace_event::TraceEvent;
use muster_controller_core::world::World;
use muster_proto::condition::ConditionStatus::{True, Unknown};
use muster_proto::taint::TaintEffect::NoExecute;
use muster_proto::taint::Toleration;
use muster_proto::time::Now;

use super::{attribute, node_traces, trace_of};
use crate::node_trace::{self, NodeTraces};

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

impl Tracer for NodeTraces {
    fn record(&mut self, events: Vec<TraceEvent>, now: Now) {
        self.record(events, now);
    }

    fn begin(&mut self, planned: &PlannedAction, world: &World, now: Now) -> Box<dyn FnOnce(&Outcome)> {
        let span = self.begin(planned, world, now);
        Box::new(move |outcome| node_trace::end(&span, outcome))
    }
}

/// Two healthy nodes, whose trace is recorded.
fn two_nodes(name: &str) -> Simulator {
    let mut sim = Simulator::new();
    sim.tracer = Some(Box::new(node_traces()));
    sim.start().add_ready_node(name, "z");
    sim.add_ready_node("other", "z");
    sim
}

/// When spans of a trace begin, in seconds of the simulation, in order.
fn span_starts(node: &str) -> Vec<(String, f64)> {
    let origin = SystemTime::from(at_ms(0).wall);
    let spans = trace_of(node).into_iter().map(|span| {
        let since = span.start_time.duration_since(origin).unwrap().as_secs_f64();
        (span.name.into_owned(), (since * 1000.0).round() / 1000.0)
    });
    spans.collect()
}

#[test]
fn a_failed_node_has_one_trace_from_its_last_renewal_to_the_deletion_of_its_pod() {
    let mut sim = two_nodes("failed");
    let toleration = Toleration::exists(UNREACHABLE, NoExecute).for_seconds(7);
    sim.put_pod(pod("p").on("failed").running(True).tolerates(toleration));
    sim.run_until(20.0).stop_agent("failed");
    sim.run_until(100.0);
    let tainted = sim.tainted_noexecute()[0].0;
    let expected = [
        ("renewal.last", 20.0),
        ("deadline.passed", 20.0),
        ("node.unknown", 70.001),
        ("pod.status", 70.001),
        ("node.written", 70.001),
        ("taint.queued", tainted),
        ("taint.token", tainted),
        ("taint.written", tainted),
        ("toleration.over", tainted),
        ("pod.deleted", tainted + 7.0),
    ];
    assert_eq!(span_starts("failed"), expected.map(|(name, at)| (name.to_owned(), at)));
    let spans = trace_of("failed");
    let root = &spans[0];
    assert_eq!(attribute(root, "muster.seen_by").as_deref(), Some("lease"));
    for span in &spans[1..] {
        assert_eq!(span.parent_span_id, root.span_context.span_id(), "{}", span.name);
    }
    let lasted = |name: &str| {
        let span = spans.iter().find(|span| span.name == name).unwrap();
        span.end_time.duration_since(span.start_time).unwrap().as_secs_f64().round()
    };
    assert_eq!(
        (lasted("deadline.passed"), lasted("toleration.over")),
        (50.0, 7.0),
        "a span of a wait has its duration"
    );
}

#[test]
fn a_node_trace_ends_with_the_recovery_and_the_next_failure_has_its_own() {
    let mut sim = two_nodes("flapping");
    sim.run_until(20.0).stop_agent("flapping");
    sim.run_until(100.0);
    assert_eq!(sim.ready("flapping"), Unknown);
    sim.start_agent("flapping");
    let first = trace_of("flapping");
    assert_eq!(first.last().unwrap().name, "node.ready");
    sim.run_until(130.0).stop_agent("flapping");
    sim.run_until(200.0);
    let second = trace_of("flapping");
    assert_ne!(second[0].span_context.trace_id(), first[0].span_context.trace_id());
    assert_eq!(second[0].name, "renewal.last");
    assert!(second.iter().all(|span| span.name != "node.ready"));
}
