//! Node traces as they are exported.

mod simulated_fleet;

use std::cell::Cell;
use std::sync::OnceLock;

use muster_proto::name::Name;
use opentelemetry::trace::{Link, SpanKind, TraceId, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{
    InMemorySpanExporter, Sampler, SamplingResult, SdkTracerProvider, ShouldSample, SpanData,
};

use super::*;
use muster_controller_core::fixtures::{at, key, node, pod, uid};
use muster_controller_core::plan::{Answer, ControllerName, EndMark};

thread_local! {
    /// Whether traces that begin on this thread are recorded.
    static RECORDS: Cell<bool> = const { Cell::new(true) };
}

/// Samples as the parent span does, and a root span as the test wants.
#[derive(Clone, Debug)]
struct ByTest;

impl ShouldSample for ByTest {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let root = if RECORDS.get() { Sampler::AlwaysOn } else { Sampler::AlwaysOff };
        Sampler::ParentBased(Box::new(root)).should_sample(parent, trace, name, kind, attributes, links)
    }
}

/// Every span that the tests of this process record.
fn recorded() -> Vec<SpanData> {
    static EXPORTER: OnceLock<InMemorySpanExporter> = OnceLock::new();
    let exporter = EXPORTER.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let provider =
            SdkTracerProvider::builder().with_sampler(ByTest).with_simple_exporter(exporter.clone()).build();
        assert!(trace::install(provider.tracer("test")), "no other code installs a tracer here");
        exporter
    });
    exporter.get_finished_spans().unwrap()
}

pub(crate) fn attribute(span: &SpanData, key: &str) -> Option<String> {
    span.attributes.iter().find(|kv| kv.key.as_str() == key).map(|kv| kv.value.to_string())
}

/// The spans of the latest trace of a node, by start time. Each test has its own nodes.
pub(crate) fn trace_of(node: &str) -> Vec<SpanData> {
    let mut spans = recorded();
    let is_root = |span: &&SpanData| {
        span.name == "renewal.last" && attribute(span, "muster.node").as_deref() == Some(node)
    };
    let root = spans.iter().filter(is_root).max_by_key(|span| span.start_time).expect("the node has a trace");
    let trace = root.span_context.trace_id();
    spans.retain(|span| span.span_context.trace_id() == trace);
    spans.sort_by_key(|span| span.start_time);
    spans
}

/// Node traces whose spans are recorded.
pub(crate) fn node_traces() -> NodeTraces {
    recorded();
    NodeTraces::new()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn deadline_passed(node: &str) -> TraceEvent {
    TraceEvent::DeadlinePassed { node: name(node), seen_at: at(10).mono, seen_by: Some(SignOfLife::Lease) }
}

fn end_pod(pod_name: &str) -> PlannedAction {
    let mark = EndMark { reason: "Why".to_owned(), message: String::new(), fail: false };
    PlannedAction {
        controller: ControllerName::TaintEviction,
        subject: Subject::Pod(key(pod_name), uid(pod_name)),
        action: Action::EndPod { mark: Some(mark), grace_period_seconds: None },
        why: "a NoExecute taint".into(),
        causes: Vec::new(),
    }
}

const WRITE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn an_action_links_to_the_write_that_produced_its_record() {
    let (mut traces, mut world) = (node_traces(), World::new());
    let mut record = pod("linked").on("linking").build();
    record.meta.traceparent = Some(WRITE.to_owned());
    traces.record(vec![deadline_passed("linking")], at(60));
    world.apply_pod(record);
    let span = traces.begin(&end_pod("linked"), &world, at(61));
    let result = Err(Failure::Later("the store is busy".to_owned()));
    end(
        &span,
        &Outcome { controller: ControllerName::TaintEviction, subject: end_pod("linked").subject, result },
    );
    let spans = trace_of("linking");
    let action = spans.iter().find(|span| span.name == "pod.deleted").unwrap();
    let links: Vec<_> = action.links.iter().map(|link| link.span_context.span_id()).collect();
    assert_eq!(links, [Traceparent::parse(WRITE).unwrap().span_id()]);
    for (key, expected) in [
        ("muster.node", "linking"),
        ("muster.pod", "default/linked"),
        ("muster.controller", "taint-eviction"),
        ("muster.why", "a NoExecute taint"),
    ] {
        assert_eq!(attribute(action, key).as_deref(), Some(expected), "{key}");
    }
    assert_eq!(action.status, opentelemetry::trace::Status::error("the store is busy"));
}

#[test]
fn an_action_outside_of_node_traces_has_its_own_trace() {
    let mut traces = node_traces();
    let subject = Subject::Pod(key("alone"), uid("alone"));
    let action = Action::BindPod { node: name("somewhere") };
    let planned = PlannedAction {
        controller: ControllerName::Scheduler,
        subject,
        action,
        why: "it fits".into(),
        causes: Vec::new(),
    };
    let span = traces.begin(&planned, &World::new(), at(1));
    let answer = Answer::Pod(Box::new(pod("alone").build()));
    end(
        &span,
        &Outcome { controller: ControllerName::Scheduler, subject: planned.subject, result: Ok(answer) },
    );
    let spans = recorded();
    let bound = spans.iter().find(|span| attribute(span, "muster.pod").as_deref() == Some("default/alone"));
    let bound = bound.unwrap();
    assert_eq!(bound.name, "pod.bound");
    assert_eq!(bound.parent_span_id, opentelemetry::trace::SpanId::INVALID);
}

#[test]
fn a_node_trace_that_is_not_sampled_is_dropped() {
    let mut traces = node_traces();
    RECORDS.set(false);
    traces.record(vec![deadline_passed("unsampled")], at(60));
    RECORDS.set(true);
    assert!(traces.open.is_empty());
    traces
        .record(vec![TraceEvent::TaintQueued { node: name("unsampled"), zone: Default::default() }], at(61));
    let of_node = |span: &SpanData| attribute(span, "muster.node").as_deref() == Some("unsampled");
    assert!(!recorded().iter().any(of_node), "later events are not recorded either");
}

#[test]
fn the_number_of_open_traces_is_limited() {
    let mut traces = node_traces();
    let events = (0..MAX_OPEN + 10).map(|number| deadline_passed(&format!("many-{number}")));
    traces.record(events.collect(), at(60));
    assert_eq!(traces.open.len(), MAX_OPEN);
    traces.record(vec![TraceEvent::Gone { node: name("many-0") }], at(61));
    traces.record(vec![deadline_passed("one-more")], at(61));
    assert_eq!(trace_of("many-0").last().unwrap().name, "node.gone");
    assert_eq!(trace_of("one-more").len(), 2, "there is room again");
    traces.observe(&Observation::Leading(false), at(62));
    assert!(traces.open.is_empty(), "the next leader opens its own traces");
}

#[test]
fn the_leader_records_a_deletion_in_the_trace_of_that_deletion() {
    const REMOVAL: &str = "00-00000000000000000000000000000abc-00000000000000de-01";
    let mut traces = node_traces();
    let gone = || {
        let (traceparent, last) = (Some(REMOVAL.to_owned()), None);
        Observation::Pod(WatchEvent::Gone {
            key: key("p"),
            uid: Some(uid("p")),
            revision: 7,
            last,
            traceparent,
        })
    };
    traces.observe(&Observation::Leading(false), at(1));
    traces.observe(&gone(), at(2));
    traces.observe(&Observation::Leading(true), at(3));
    traces.observe(&gone(), at(4));
    let removal = Traceparent::parse(REMOVAL).unwrap();
    let mut spans = recorded();
    spans.retain(|span| span.span_context.trace_id() == removal.trace_id());
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((span.name.as_ref(), span.parent_span_id), ("record.gone", removal.span_id()));
    assert_eq!(span.start_time, std::time::SystemTime::from(at(4).wall));
}

#[test]
fn a_span_is_named_by_its_action() {
    let unknown = node("a").ready(ConditionStatus::Unknown).build();
    let ready = node("a").ready(ConditionStatus::True).build();
    for (action, expected) in [
        (Action::UpdateNodeStatus(Box::new(unknown)), "node.unknown"),
        (Action::UpdateNodeStatus(Box::new(ready.clone())), "node.status"),
        (Action::UpdateNode(Box::new(ready)), "node.written"),
        (Action::EvictPod { grace_period_seconds: None }, "pod.evicted"),
        (Action::ReadNode, "node.read"),
    ] {
        assert_eq!(super::name(&action), expected);
    }
}
