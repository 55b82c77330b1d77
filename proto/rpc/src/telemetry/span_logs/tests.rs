use std::io;
use std::sync::{Arc, Mutex};

use opentelemetry_sdk::trace::SpanData;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

use super::super::log_lines;
use super::*;
use crate::trace::tests::{elsewhere, recorder};
use crate::trace::{Traceparent, span};

/// A log in memory.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl io::Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Page {
    type Writer = Page;

    fn make_writer(&'a self) -> Page {
        self.clone()
    }
}

/// What is logged below `parent`, and where.
fn logged(format: LogFormat, parent: Traceparent) -> (String, Traceparent) {
    let page = Page::default();
    let lines = log_lines(format, page.clone(), false).and_then(KeepLines);
    let subscriber = tracing_subscriber::registry().with(lines);
    let span = span("action").below(parent).begin();
    tracing::subscriber::with_default(subscriber, || {
        let _in_span = span.enter();
        tracing::info!(pod = "web", code = 7, "it is {}", "done");
    });
    let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    (text, span.place().unwrap())
}

#[test]
fn a_line_in_a_recorded_span_has_its_ids() {
    let (line, place) = logged(LogFormat::Text, elsewhere(true));
    let ids = format!(" trace_id={} span_id={}\n", place.trace_id(), place.span_id());
    assert!(line.contains("it is done pod=\"web\" code=7") && line.ends_with(&ids), "{line}");

    let (line, place) = logged(LogFormat::Json, elsewhere(true));
    assert_eq!(line.lines().count(), 1, "{line}");
    let read: serde_json::Value = serde_json::from_str(&line).unwrap();
    let expected = serde_json::json!({
        "level": "INFO", "message": "it is done", "pod": "web", "code": 7,
        "trace_id": place.trace_id().to_string(), "span_id": place.span_id().to_string(),
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&read[key], value, "{key} in {line}");
    }
}

#[test]
fn a_line_outside_of_a_recorded_span_has_no_ids() {
    for format in [LogFormat::Text, LogFormat::Json] {
        let (line, _) = logged(format, elsewhere(false));
        assert!(line.contains("it is done") && !line.contains("trace_id"), "{line}");
    }
}

#[test]
fn a_recorded_span_keeps_its_lines() {
    let parent = elsewhere(true);
    logged(LogFormat::Text, parent);
    let spans: Vec<SpanData> = recorder().spans(parent.trace_id());
    let events: Vec<_> = spans[0].events.iter().collect();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].name, "it is done");
    let said: Vec<String> =
        events[0].attributes.iter().map(|kv| format!("{}={}", kv.key, kv.value)).collect();
    assert_eq!(said, ["level=INFO", "pod=web", "code=7"]);
}
