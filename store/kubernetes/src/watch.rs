//! Watches: one line of JSON for each change.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use jiff::Timestamp;
use muster_proto::record::Kind;
use muster_proto::watch::WatchFrame;
use muster_rpc::clock::SharedClock;
use muster_rpc::server::Answer;
use serde_json::{Value, json};
use tonic::Streaming;

use crate::answer;
use crate::calls::Event;
use crate::media::{Form, JSON};
use crate::object;
use crate::path::At;
use crate::read::selection;
use crate::resources::{Resource, Source};
use crate::server::Ask;
use crate::status::{Failure, Subject};
use crate::table::{self, IncludeObject};

/// The annotation of the bookmark that ends the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Watches a collection, or one object of it.
pub(crate) async fn watch(at: &At, ask: &Ask, name: Option<&str>) -> Result<Answer, Failure> {
    let form = ask.form(&[Form::Table, Form::Metadata])?;
    let Source::Record(kind) = at.resource.source else { return Err(Failure::method_not_allowed()) };
    let include = IncludeObject::parse(ask.query.get("includeObject"))?;
    let subject = Subject { resource: at.resource, name: "", verb: "watch" };
    let selection = selection(at, ask, name)?;
    let initial = ask.query.flag("sendInitialEvents");
    let bookmarks = ask.query.flag("allowWatchBookmarks");
    let timeout = u32::try_from(timeout_seconds(ask)?).unwrap_or(u32::MAX);
    let sheet = Sheet {
        resource: at.resource,
        kind,
        form,
        include,
        clock: Arc::clone(&ask.clock),
        bookmarks,
        has_columns: false,
    };
    let opened = ask.store.watch(kind, selection, initial, bookmarks, timeout).await;
    let frames = opened.map_err(|status| Failure::of(&status, subject))?;
    let chunks = stream::unfold(Some((frames, sheet)), next_chunk);
    Ok(answer::streamed(200, JSON, Body::from_stream(chunks)))
}

/// When the stream ends. A client's patience for the whole request is a limit, too.
fn timeout_seconds(ask: &Ask) -> Result<u64, Failure> {
    let own = ask.query.number("timeoutSeconds")?;
    let patience = ask.query.get("timeout");
    let patience = if patience.is_empty() { 0 } else { seconds(patience).unwrap_or_default() };
    Ok(match (own, patience) {
        (0, patience) => patience,
        (own, 0) => own,
        (own, patience) => own.min(patience),
    })
}

/// A duration as Go writes it, such as `1m30s`, in seconds, rounded up.
fn seconds(text: &str) -> Option<u64> {
    muster_rpc::config::parse_duration(text).ok().map(|duration| (duration.as_millis() as u64).div_ceil(1000))
}

type State = Option<(Streaming<WatchFrame<Event>>, Sheet)>;
type Chunk = Result<Bytes, std::convert::Infallible>;

/// The lines of the next frame. An error is a line, too, and the last one.
async fn next_chunk(state: State) -> Option<(Chunk, State)> {
    let (mut frames, mut sheet) = state?;
    match frames.message().await {
        Ok(Some(frame)) => {
            let lines: String = frame.events.iter().filter_map(|event| sheet.line(event)).collect();
            Some((Ok(lines.into()), Some((frames, sheet))))
        }
        Ok(None) => None,
        Err(status) => {
            let subject = Subject { resource: sheet.resource, name: "", verb: "watch" };
            let failure = Failure::of(&status, subject);
            Some((Ok(line("ERROR", &failure.to_json()).into()), None))
        }
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

/// How changes are written.
struct Sheet {
    resource: &'static Resource,
    kind: Kind,
    form: Form,
    include: IncludeObject,
    clock: SharedClock,
    /// Whether the client knows what a bookmark is.
    bookmarks: bool,
    /// Whether a table with its columns was sent: they are sent once.
    has_columns: bool,
}

impl Sheet {
    /// The line of a change; `None` for what the client did not ask for.
    fn line(&mut self, event: &Event) -> Option<String> {
        let record = event.record.as_deref().unwrap_or_default();
        if event.kind == "BOOKMARK" {
            return self.bookmarks.then(|| line("BOOKMARK", &self.bookmark(record)));
        }
        let now = self.clock.wall();
        Some(line(&event.kind, &self.object(record, now)))
    }

    fn object(&mut self, record: &[u8], now: Timestamp) -> Value {
        match self.form {
            Form::Table => {
                let row = table::row(self.resource, self.kind, record, self.include, now);
                self.table(row, record)
            }
            Form::Metadata => object::metadata_object(record),
            _ => object::object(self.resource, self.kind, record),
        }
    }

    fn table(&mut self, row: Value, record: &[u8]) -> Value {
        let first = !std::mem::replace(&mut self.has_columns, true);
        let columns = if first { table::columns(self.resource) } else { Value::Null };
        let version = object::metadata(record).resource_version.to_string();
        table::table(&columns, &[row], &json!({"resourceVersion": version}))
    }

    /// A bookmark has a version, and says whether the initial events are over.
    fn bookmark(&mut self, record: &[u8]) -> Value {
        let sent = object::metadata(record);
        let mut metadata =
            json!({"resourceVersion": sent.resource_version.to_string(), "creationTimestamp": null});
        if sent.annotations.contains_key(INITIAL_EVENTS_END) {
            metadata["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        match self.form {
            Form::Table => {
                let object = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
                let cells = Value::Array(Vec::new());
                self.table(json!({"cells": cells, "object": object}), record)
            }
            Form::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            _ => {
                let (kind, version) = (self.resource.kind, self.resource.group_version());
                json!({"kind": kind, "apiVersion": version, "metadata": metadata})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::pb;
    use muster_rpc::clock::SystemClock;
    use prost::Message;

    use super::*;
    use crate::resources;

    fn sheet(form: Form, bookmarks: bool) -> Sheet {
        let resource = resources::find("", "nodes").expect("nodes");
        let (include, clock) = (IncludeObject::Metadata, SystemClock::shared());
        Sheet { resource, kind: Kind::Node, form, include, clock, bookmarks, has_columns: false }
    }

    fn event(kind: &str, annotations: &[&str]) -> Event {
        let annotations = annotations.iter().map(|key| ((*key).to_owned(), "true".to_owned())).collect();
        let metadata =
            pb::Metadata { name: "n".into(), resource_version: 7, annotations, ..Default::default() };
        let node = pb::Node { metadata: Some(metadata), ..Default::default() };
        Event { kind: kind.to_owned(), record: Some(node.encode_to_vec().into()) }
    }

    #[test]
    fn a_change_is_one_line() {
        let line = sheet(Form::Object, false).line(&event("ADDED", &[])).expect("a line");
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1, "{line}");
        let read: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&read["type"], &read["object"]["kind"]), (&json!("ADDED"), &json!("Node")));
        assert_eq!(read["object"]["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn bookmarks_are_for_those_who_asked_and_mark_the_end_of_the_initial_events() {
        let end = event("BOOKMARK", &[INITIAL_EVENTS_END]);
        assert_eq!(sheet(Form::Object, false).line(&end), None);
        let line = sheet(Form::Object, true).line(&end).expect("a line");
        let read: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(read["object"]["metadata"]["annotations"], json!({INITIAL_EVENTS_END: "true"}));
        let later = sheet(Form::Object, true).line(&event("BOOKMARK", &[])).expect("a line");
        assert!(!later.contains(INITIAL_EVENTS_END), "{later}");
    }

    #[test]
    fn only_the_first_table_has_columns() {
        let mut sheet = sheet(Form::Table, false);
        let mut columns = || {
            let line = sheet.line(&event("ADDED", &[])).expect("a line");
            let read: Value = serde_json::from_str(&line).expect("JSON");
            read["object"]["columnDefinitions"].clone()
        };
        assert_eq!(columns().as_array().map(Vec::len), Some(10));
        assert_eq!(columns(), Value::Null);
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, expected) in [("32s", Some(32)), ("1m30s", Some(90)), ("500ms", Some(1)), ("x", None)] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
