use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use muster_agent_core::testing::{pod, uid};
use muster_proto::pod::PodStatus;
use opentelemetry::trace::{SpanId, Status, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

use super::*;

/// All spans that the tests of this process record; each test has a trace of its own.
fn recorded(of: Traceparent) -> Vec<SpanData> {
    static EXPORTER: OnceLock<InMemorySpanExporter> = OnceLock::new();
    let exporter = EXPORTER.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        assert!(trace::install(provider.tracer("test")), "no other test installs a tracer");
        exporter
    });
    let mut spans = exporter.get_finished_spans().unwrap();
    spans.retain(|span| span.span_context.trace_id() == of.trace_id());
    spans
}

fn deletion(number: u64, sampled: bool) -> Traceparent {
    let text = format!("00-{number:032x}-{number:016x}-{:02x}", u8::from(sampled));
    let place = Traceparent::parse(&text).unwrap();
    recorded(place);
    place
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn applied(mut record: Pod, cause: Traceparent) -> WatchEvent<Pod> {
    record.meta.traceparent = Some(cause.to_string());
    WatchEvent::Applied { record }
}

fn term() -> Action {
    Action::Term { uid: uid("p"), container: "main".to_owned() }
}

fn kill() -> Action {
    Action::Kill { uid: uid("p"), container: "main".to_owned() }
}

fn release() -> Action {
    Action::Release { keeps_files: false, uid: uid("p") }
}

fn hook() -> Action {
    let pod = Arc::new(pod("p").build());
    Action::RunPreStop { pod, container: "main".to_owned(), within: Duration::from_secs(1) }
}

fn perform(stop_traces: &mut PodStopTraces, action: &Action, outcome: &Outcome) {
    let span = stop_traces.begin(action);
    stop_traces.end(&span, action, outcome);
}

#[test]
fn a_stop_is_traced_below_the_write_that_caused_it() {
    let cause = deletion(1, true);
    let mut stop_traces = PodStopTraces::default();
    stop_traces.observe(&applied(pod("p").build(), deletion(2, true)), at(1));
    stop_traces.observe(&applied(pod("p").deleting(30).build(), cause), at(2));
    stop_traces.observe(&applied(pod("p").deleting(5).build(), deletion(3, true)), at(3));
    perform(&mut stop_traces, &hook(), &Outcome::Done);
    assert!(recorded(cause).is_empty(), "the span of a hook stays open");
    stop_traces.hook_ended(uid("p"), "main");
    perform(&mut stop_traces, &term(), &Outcome::Done);
    perform(&mut stop_traces, &kill(), &Outcome::Failed { message: "refused".to_owned() });
    perform(&mut stop_traces, &release(), &Outcome::Done);

    let spans = recorded(cause);
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
    assert_eq!(names, ["hook.run", "process.term", "process.kill", "process.stopped", "pod.released"]);
    let stopped = &spans[3];
    assert_eq!(stopped.start_time, SystemTime::from(at(2)), "from the moment the deletion was seen");
    let parents: Vec<SpanId> = spans.iter().map(|span| span.parent_span_id).collect();
    let (stopped, cause_id) = (stopped.span_context.span_id(), cause.span_id());
    assert_eq!(parents, [stopped, stopped, stopped, cause_id, cause_id]);
    assert_eq!(spans[2].status, Status::error("refused"));
    for other in [deletion(2, true), deletion(3, true)] {
        assert!(recorded(other).is_empty(), "neither an earlier nor a later write is the cause");
    }
}

#[test]
fn the_last_calls_of_the_store_belong_to_that_trace() {
    let cause = deletion(4, true);
    let mut stop_traces = PodStopTraces::default();
    stop_traces.observe(&applied(pod("p").deleting(30).build(), cause), at(2));
    let key = Key::of(&pod("p").build());
    let report = Action::Report {
        key: key.clone(),
        uid: uid("p"),
        if_version: 1,
        status: Box::<PodStatus>::default(),
    };
    for action in [report, Action::Delete { key, uid: uid("p") }] {
        assert_eq!(stop_traces.begin(&action).place(), Some(cause));
    }
    assert_eq!(stop_traces.scope(Some(uid("p"))).place(), Some(cause));
    stop_traces.retain(|_| false);
    assert_eq!(stop_traces.scope(Some(uid("p"))).place(), None, "nothing is kept of a pod that is gone");
    assert!(recorded(cause).is_empty(), "a pod without processes stop_traces none");
}

#[test]
fn a_pod_whose_record_vanishes_is_stopped_in_the_trace_of_its_removal() {
    let cause = deletion(5, true);
    let mut stop_traces = PodStopTraces::default();
    let (key, traceparent) = (Key::of(&pod("p").build()), Some(cause.to_string()));
    stop_traces
        .observe(&WatchEvent::Gone { key, uid: Some(uid("p")), revision: 7, last: None, traceparent }, at(2));
    perform(&mut stop_traces, &term(), &Outcome::Done);
    assert_eq!(recorded(cause).len(), 1);
}

#[test]
fn a_write_that_is_not_sampled_is_not_traced() {
    let mut stop_traces = PodStopTraces::default();
    stop_traces.observe(&applied(pod("p").deleting(30).build(), deletion(6, false)), at(2));
    stop_traces.observe(&WatchEvent::Applied { record: pod("q").deleting(30).build() }, at(2));
    assert!(stop_traces.pods.is_empty());
    assert_eq!(stop_traces.begin(&term()).place(), None);
}
