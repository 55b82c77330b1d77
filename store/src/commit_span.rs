//! The trace span of a commit.
//!
//! It is a child of the first sampled write of the batch and links to the other sampled ones, so that the trace of each
//! write leads to the flush it waited for. A commit of renewals only starts a trace of its own, if sampled: a renewal
//! has no span.

use jiff::Timestamp;
use muster_rpc::trace::{self, Part, Span, Traceparent};

use muster_store_core::change::SharedChange;
use muster_store_core::draft::Batch;

use crate::ledger::LedgerError;

/// The most links of a span; more would not be readable.
const LINKS: usize = 32;

/// Begins the span of a commit shared by `requests` requests. `since` is when the batch was begun.
pub(crate) fn begin(batch: &Batch, requests: usize, since: Timestamp) -> Span {
    if !trace::is_on() {
        return Span::NONE;
    }
    let mut writes = sampled_writes(&batch.changes);
    let mut draft = trace::span("store.commit").of(Part::STORE).since(since);
    if let Some(first) = writes.next() {
        draft = draft.below(first);
    }
    let span = draft.linked_to(writes.take(LINKS)).begin();
    if span.is_recorded() {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let renewals: usize = batch.commit.renewals.iter().map(|(_, pack)| pack.len()).sum();
        span.set("muster.requests", number(requests));
        span.set("muster.changes", number(batch.changes.len()));
        span.set("muster.renewals", number(renewals));
        span.set("muster.revision", i64::try_from(batch.commit.head).unwrap_or(i64::MAX));
    }
    span
}

/// Ends the span with the outcome of the commit.
pub(crate) fn end(span: &Span, committed: Result<(), &LedgerError>) {
    if let Err(error) = committed {
        span.fail(error.to_string());
    }
    span.end();
}

/// The sampled writes of a batch, each once. The changes of one write are adjacent.
fn sampled_writes(changes: &[SharedChange]) -> impl Iterator<Item = Traceparent> {
    let writes = changes.chunk_by(|one, next| one.traceparent == next.traceparent);
    writes
        .filter_map(|changes| Traceparent::parse(&changes[0].traceparent))
        .filter(|write| write.is_sampled())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use bytes::Bytes;
    use muster_proto::record::Kind;
    use opentelemetry::KeyValue;
    use opentelemetry::trace::{SpanId, TracerProvider};
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};

    use super::*;
    use muster_store_core::change::Change;
    use muster_store_core::history::Commit;
    use muster_store_core::namespaced_name::NamespacedName;

    fn write(number: u64, sampled: bool) -> String {
        format!("00-{:032x}-{number:016x}-{:02x}", 0xabc, u8::from(sampled))
    }

    fn batch(traceparents: impl IntoIterator<Item = String>) -> Batch {
        let change = |(revision, traceparent)| {
            let key = NamespacedName::new("", &format!("n{revision}"));
            Arc::new(Change::new(Kind::Node, revision, key, false, Bytes::new(), None, traceparent))
        };
        let changes = (1..).zip(traceparents).map(change).collect();
        let commit = Commit { head: 7, ..Default::default() };
        Batch { commit, changes, orphans: Vec::new(), dropped_events: 0 }
    }

    #[test]
    fn a_commit_span_is_a_child_of_the_first_write_and_links_to_others() {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        assert!(trace::install(provider.tracer("test")));
        let ours = [(1, true), (1, true), (2, false), (3, true), (4, true)];
        let traceparents = ours.map(|(number, sampled)| write(number, sampled)).into_iter();
        let many = (5..5 + LINKS as u64).map(|number| write(number, true));
        let some = batch([String::new()].into_iter().chain(traceparents).chain([String::new()]));
        let since = Timestamp::from_second(1_700_000_000).unwrap();

        end(&begin(&some, 9, since), Ok(()));
        end(&begin(&batch(many.chain([write(1, true)])), 40, since), Ok(()));
        end(&begin(&batch([]), 31_337, since), Err(&LedgerError::Full { available: 0, reserve: 1 }));

        // Stores of other tests in this process commit too.
        let mut spans = exporter.get_finished_spans().unwrap();
        let requests = [9, 40, 31_337].map(|requests| KeyValue::new("muster.requests", requests));
        spans.retain(|span| {
            requests.contains(&span.attributes[0]) && span.start_time == SystemTime::from(since)
        });
        let [few, full, alone] = &spans[..] else { panic!("{spans:?}") };
        let links = |span: &opentelemetry_sdk::trace::SpanData| -> Vec<SpanId> {
            span.links.iter().map(|link| link.span_context.span_id()).collect()
        };
        assert_eq!((few.name.as_ref(), few.parent_span_id), ("store.commit", SpanId::from(1_u64)));
        assert_eq!(
            links(few),
            [3_u64, 4].map(SpanId::from),
            "no link to writes that are not sampled, one to each of the others"
        );
        let attributes: Vec<String> =
            few.attributes.iter().map(|kv| format!("{}={}", kv.key, kv.value)).collect();
        assert_eq!(
            attributes,
            ["muster.requests=9", "muster.changes=7", "muster.renewals=0", "muster.revision=7"]
        );
        assert_eq!(links(full).len(), LINKS, "the number of links is limited");
        assert_eq!(alone.parent_span_id, SpanId::INVALID);
        assert!(matches!(alone.status, opentelemetry::trace::Status::Error { .. }));
    }
}
