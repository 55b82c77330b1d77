//! A change on its way to watchers.
//!
//! It is shared by all of them and encoded once per way of seeing it; what it
//! takes to select by is decoded once, and only if somebody selects.

use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use muster_proto::label::Labels;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::selector::{FieldSelector, LabelSelector};
use muster_proto::time::Mono;
use muster_proto::wellknown::annotation::INITIAL_EVENTS_END;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::history::{Revision, StoredChange};
use crate::namespaced_name::NamespacedName;
use crate::partial_decode;

/// One step of a record's history.
#[derive(Debug)]
pub struct Change {
    pub revision: Revision,
    pub kind: Kind,
    pub key: NamespacedName,
    pub deleted: bool,
    /// The record after the change; of a deleted one its last content.
    pub record: Bytes,
    /// The record before the change.
    pub previous: Option<Bytes>,
    pub traceparent: String,
    /// When watchers could first see it; not known of one that was read from the disk.
    published: OnceLock<Mono>,
    views: Views,
}

#[derive(Debug, Default)]
struct Views {
    after: OnceLock<Traits>,
    before: OnceLock<Traits>,
    added: OnceLock<Bytes>,
    modified: OnceLock<Bytes>,
    deleted: OnceLock<Bytes>,
    left: OnceLock<Bytes>,
}

/// What can be selected by.
#[derive(Debug)]
struct Traits {
    labels: Labels,
    fields: Vec<String>,
}

impl Traits {
    fn of(kind: Kind, record: &[u8]) -> Self {
        Self { labels: partial_decode::metadata(record).labels, fields: partial_decode::fields(kind, record) }
    }
}

impl Change {
    pub fn new(
        kind: Kind,
        revision: Revision,
        key: NamespacedName,
        deleted: bool,
        record: Bytes,
        previous: Option<Bytes>,
        traceparent: String,
    ) -> Self {
        let (published, views) = (OnceLock::new(), Views::default());
        Self { revision, kind, key, deleted, record, previous, traceparent, published, views }
    }

    /// A change as it lies in the ledger, with the record it replaced.
    pub fn of_past(revision: Revision, stored: StoredChange, previous: Option<Bytes>) -> Self {
        let key = stored.key();
        let StoredChange { kind, deleted, mut record, traceparent, .. } = stored;
        if kind == Kind::Lease {
            // Renewals folded in since then gave the value a later version.
            record = with_version(kind, &record, revision);
        }
        Self::new(kind, revision, key, deleted, record, previous, traceparent)
    }

    /// Notes that watchers can see it from now on.
    pub fn publish_at(&self, now: Mono) {
        // Only once: what was published stays so.
        let _ = self.published.set(now);
    }

    /// When watchers could first see it, if that is known.
    pub fn published(&self) -> Option<Mono> {
        self.published.get().copied()
    }

    /// About how much memory the change holds on to.
    pub fn weight(&self) -> usize {
        256 + self.record.len() + self.previous.as_ref().map_or(0, Bytes::len)
    }

    fn after(&self) -> &Traits {
        self.views.after.get_or_init(|| Traits::of(self.kind, &self.record))
    }

    fn before(&self) -> Option<&Traits> {
        let previous = self.previous.as_ref()?;
        Some(self.views.before.get_or_init(|| Traits::of(self.kind, previous)))
    }

    fn added(&self) -> Bytes {
        self.views.added.get_or_init(|| encode_event("ADDED", &self.record, &self.traceparent)).clone()
    }

    fn modified(&self) -> Bytes {
        self.views.modified.get_or_init(|| encode_event("MODIFIED", &self.record, &self.traceparent)).clone()
    }

    fn deleted(&self) -> Bytes {
        self.views.deleted.get_or_init(|| encode_event("DELETED", &self.record, &self.traceparent)).clone()
    }

    /// It no longer matches: a deletion to this watcher, of the old content at
    /// the new version.
    fn left(&self) -> Bytes {
        let encode = || {
            let previous = self.previous.as_deref().unwrap_or_default();
            encode_event("DELETED", &with_version(self.kind, previous, self.revision), &self.traceparent)
        };
        self.views.left.get_or_init(encode).clone()
    }
}

/// Which records somebody asks for.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Empty means every namespace.
    pub namespace: String,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selection {
    /// Whether a record is asked for.
    pub fn matches(&self, kind: Kind, key: &NamespacedName, record: &[u8]) -> bool {
        // Labels lie in front of a record; for fields all of it is decoded.
        self.in_namespace(key)
            && (self.labels.is_everything() || self.labels.matches(&partial_decode::metadata(record).labels))
            && (self.fields.is_everything()
                || self.admits_fields(kind, &partial_decode::fields(kind, record)))
    }

    /// What a watcher hears of a change, as an encoded frame of one event.
    pub fn event(&self, change: &Change) -> Option<Bytes> {
        if !self.in_namespace(&change.key) {
            return None;
        }
        let all = self.takes_all();
        let before = change.previous.is_some()
            && (all || change.before().is_some_and(|traits| self.admits(change.kind, traits)));
        let after = !change.deleted && (all || self.admits(change.kind, change.after()));
        match (before, after) {
            (false, true) => Some(change.added()),
            (true, true) => Some(change.modified()),
            (true, false) if change.deleted => Some(change.deleted()),
            (true, false) => Some(change.left()),
            (false, false) => None,
        }
    }

    fn in_namespace(&self, key: &NamespacedName) -> bool {
        self.namespace.is_empty() || self.namespace == key.namespace()
    }

    fn takes_all(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    fn admits(&self, kind: Kind, traits: &Traits) -> bool {
        self.labels.matches(&traits.labels) && self.admits_fields(kind, &traits.fields)
    }

    fn admits_fields(&self, kind: Kind, values: &[String]) -> bool {
        let value = |field: &'static str| {
            let index = partial_decode::selectable(kind).iter().position(|name| *name == field);
            index.and_then(|index| values.get(index)).map_or("", String::as_str)
        };
        self.fields.matches(value)
    }

    /// The one name a change must touch to be of interest, if the selection
    /// pins one: a node's own name, the node of a pod.
    pub fn topic(&self, kind: Kind) -> Option<&str> {
        let name = match kind {
            Kind::Node => self.fields.requires("metadata.name"),
            Kind::Pod => self.fields.requires("spec.nodeName"),
            _ => None,
        };
        // Pods without a node are nobody's topic: they are looked for among all.
        name.filter(|name| !name.is_empty())
    }
}

/// The names under which a change is of interest to a watcher with a topic.
pub fn topics(change: &Change) -> impl Iterator<Item = String> {
    let (before, after) = match change.kind {
        Kind::Node => (None, Some(change.key.name().to_owned())),
        Kind::Pod => {
            let after = partial_decode::pod_node(&change.record);
            let before =
                change.previous.as_deref().map(partial_decode::pod_node).filter(|before| *before != after);
            (before, Some(after))
        }
        _ => (None, None),
    };
    before.into_iter().chain(after).filter(|topic| !topic.is_empty())
}

/// A frame of one event. Every kind's event has the same layout, so the record
/// goes in as the bytes it is stored as.
pub fn encode_event(kind: &str, record: &[u8], traceparent: &str) -> Bytes {
    fn field_len(len: usize) -> usize {
        key_len(1) + encoded_len_varint(len as u64) + len
    }
    fn put(tag: u32, bytes: &[u8], frame: &mut BytesMut) {
        encode_key(tag, WireType::LengthDelimited, frame);
        encode_varint(bytes.len() as u64, frame);
        frame.put_slice(bytes);
    }
    let traced = if traceparent.is_empty() { 0 } else { field_len(traceparent.len()) };
    let event = field_len(kind.len()) + field_len(record.len()) + traced;
    let mut frame = BytesMut::with_capacity(field_len(event));
    encode_key(1, WireType::LengthDelimited, &mut frame);
    encode_varint(event as u64, &mut frame);
    put(1, kind.as_bytes(), &mut frame);
    put(2, record, &mut frame);
    if traced > 0 {
        put(3, traceparent.as_bytes(), &mut frame);
    }
    frame.freeze()
}

/// A frame that only says how far the watch has come.
pub fn encode_bookmark(revision: Revision, ends_initial_events: bool) -> Bytes {
    let mut metadata = pb::Metadata { resource_version: revision, ..Default::default() };
    if ends_initial_events {
        metadata.annotations.insert(INITIAL_EVENTS_END.to_owned(), "true".to_owned());
    }
    // Metadata is the first field of every kind.
    let record = pb::Node { metadata: Some(metadata), ..Default::default() };
    encode_event("BOOKMARK", &record.encode_to_vec(), "")
}

/// A record's bytes at another version.
pub fn with_version(kind: Kind, record: &[u8], version: Revision) -> Bytes {
    macro_rules! at_version {
        ($type:ty) => {{
            let mut record = <$type>::decode(record).unwrap_or_default();
            record.metadata.get_or_insert_default().resource_version = version;
            record.encode_to_vec().into()
        }};
    }
    match kind {
        Kind::Node => at_version!(pb::Node),
        Kind::Lease => at_version!(pb::Lease),
        Kind::Pod => at_version!(pb::Pod),
        Kind::DisruptionBudget => at_version!(pb::DisruptionBudget),
        Kind::Event => at_version!(pb::Event),
    }
}

/// Shared by all who watch.
pub type SharedChange = Arc<Change>;

#[cfg(test)]
mod tests;
