use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::trace::{SpanId, TraceId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider, SpanData};

use super::*;

/// Every span that the tests of this process record. Each test looks at a trace of its own.
pub(crate) struct Recorder {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
    /// What spans of [`PART`] are sent to.
    part: InMemorySpanExporter,
}

/// A part that runs in this process.
const PART: Part = Part("muster-test-part");

pub(crate) fn recorder() -> &'static Recorder {
    static RECORDER: OnceLock<Recorder> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let part = InMemorySpanExporter::default();
        let provider = |exporter: &InMemorySpanExporter| {
            SdkTracerProvider::builder()
                .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
                .with_simple_exporter(exporter.clone())
                .build()
        };
        let (own, of_part) = (provider(&exporter), provider(&part));
        let parts = vec![(PART, of_part.tracer("test"))];
        assert!(install_with_parts(own.tracer("test"), parts), "no other test installs a tracer here");
        Recorder { exporter, provider: own, part }
    })
}

impl Recorder {
    /// The spans of a trace that have ended, in the order they did.
    pub(crate) fn spans(&self, trace: TraceId) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        let mut spans = self.exporter.get_finished_spans().unwrap();
        spans.retain(|span| span.span_context.trace_id() == trace);
        spans
    }
}

/// The traceparent of another process's span, in a trace that no other test uses.
pub(crate) fn elsewhere(is_sampled: bool) -> Traceparent {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    recorder();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let text = format!("00-{:032x}-{number:016x}-{:02x}", 0xabc_0000 + number, u8::from(is_sampled));
    Traceparent::parse(&text).unwrap()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

#[test]
fn a_span_may_have_started_and_ended_in_the_past() {
    let parent = elsewhere(true);
    let span = span("renewal.last").below(parent).since(at(5)).begin();
    assert!(span.is_recorded());
    span.set("muster.node", "n1");
    span.end_at(at(9));
    let spans = recorder().spans(parent.trace_id());
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((span.start_time, span.end_time), (at(5).into(), at(9).into()));
    assert_eq!((span.name.as_ref(), span.parent_span_id), ("renewal.last", parent.span_id()));
    assert_eq!(span.attributes, [KeyValue::new("muster.node", "n1")]);
}

#[test]
fn a_span_links_to_the_spans_that_caused_it() {
    let (parent, other) = (elsewhere(true), elsewhere(true));
    span("pod.deleted").below(parent).linked_to([other]).begin().end();
    let spans = recorder().spans(parent.trace_id());
    let links: Vec<SpanId> = spans[0].links.iter().map(|link| link.span_context.span_id()).collect();
    assert_eq!(links, [other.span_id()]);
    assert!(recorder().spans(other.trace_id()).is_empty(), "a link puts nothing into the other trace");
}

#[test]
fn a_span_that_is_not_recorded_has_only_a_traceparent() {
    let parent = elsewhere(false);
    let span = span("pod.deleted").below(parent).begin();
    assert!(!span.is_recorded());
    let place = span.place().unwrap();
    assert_eq!((place.trace_id(), place.is_sampled()), (parent.trace_id(), false));
    assert_ne!(place.span_id(), parent.span_id());
    span.set("muster.node", "n1");
    span.fail("no");
    span.end();
    assert!(recorder().spans(parent.trace_id()).is_empty());
}

#[tokio::test]
async fn a_future_has_its_span_whenever_it_is_polled_and_no_other_code_has() {
    let span = span("outer").below(elsewhere(true)).begin();
    assert_eq!(current(), None);
    let inside = span.around(async {
        let before = current();
        tokio::time::sleep(Duration::from_millis(1)).await;
        (before, current())
    });
    let (before, after) = inside.await;
    assert_eq!((before, after), (span.place(), span.place()));
    assert_eq!(current(), None);
}

#[test]
fn a_failed_span_has_its_reason() {
    let parent = elsewhere(true);
    let span = span("pod.deleted").below(parent).begin();
    span.fail("the store was away");
    drop(span);
    let spans = recorder().spans(parent.trace_id());
    assert_eq!(spans[0].status, Status::error("the store was away"), "and it ends with its last clone");
}

#[test]
fn a_span_belongs_to_its_part_and_so_does_what_begins_within_it() {
    let parent = elsewhere(true);
    let outer = span("decided").of(PART).below(parent).begin();
    {
        let _entered = outer.enter();
        span("call").begin().end();
        span("answer").of(Part::STORE).begin().end();
    }
    span("other").below(parent).begin().end();
    outer.end();
    let names = |spans: Vec<SpanData>| {
        let own = spans.into_iter().filter(|span| span.span_context.trace_id() == parent.trace_id());
        own.map(|span| span.name.into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(recorder().part.get_finished_spans().unwrap()), ["call", "decided"]);
    // A part without a tracer of its own has that of the process, as in a process of one part.
    assert_eq!(names(recorder().spans(parent.trace_id())), ["answer", "other"]);
}
