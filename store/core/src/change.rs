//! A change on its way to watchers.
//!
//! It is shared by all of them and encoded once per way of seeing it; what it
//! takes to select by is decoded once, and only if somebody selects.

use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::time::Mono;
use muster_proto::wellknown::annotation::INITIAL_EVENTS_END;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::history::{Revision, StoredChange};
use crate::namespaced_name::NamespacedName;
use crate::selectors::SelectableValues;

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
    cached: Cached,
}

#[derive(Debug, Default)]
struct Cached {
    after: OnceLock<SelectableValues>,
    before: OnceLock<SelectableValues>,
    added: OnceLock<Bytes>,
    modified: OnceLock<Bytes>,
    deleted: OnceLock<Bytes>,
    left_selection: OnceLock<Bytes>,
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
        let (published, cached) = (OnceLock::new(), Cached::default());
        Self { revision, kind, key, deleted, record, previous, traceparent, published, cached }
    }

    /// A change as it lies in the ledger, with the record it replaced.
    pub fn from_stored(revision: Revision, stored: StoredChange, previous: Option<Bytes>) -> Self {
        let key = stored.key();
        let StoredChange { kind, deleted, mut record, traceparent, .. } = stored;
        if kind == Kind::Lease {
            // Renewals folded in since then gave the value a later version.
            record = with_version(kind, &record, revision);
        }
        Self::new(kind, revision, key, deleted, record, previous, traceparent)
    }

    /// Notes that watchers can see it from now on.
    pub fn set_published(&self, now: Mono) {
        // Only once: what was published stays so.
        let _ = self.published.set(now);
    }

    /// When watchers could first see it, if that is known.
    pub fn published_at(&self) -> Option<Mono> {
        self.published.get().copied()
    }

    /// About how much memory the change holds on to.
    pub fn approx_bytes(&self) -> usize {
        256 + self.record.len() + self.previous.as_ref().map_or(0, Bytes::len)
    }

    pub(crate) fn after(&self) -> &SelectableValues {
        self.cached.after.get_or_init(|| SelectableValues::of(self.kind, &self.record))
    }

    pub(crate) fn before(&self) -> Option<&SelectableValues> {
        let previous = self.previous.as_ref()?;
        Some(self.cached.before.get_or_init(|| SelectableValues::of(self.kind, previous)))
    }

    pub(crate) fn added(&self) -> Bytes {
        self.cached.added.get_or_init(|| encode_event("ADDED", &self.record, &self.traceparent)).clone()
    }

    pub(crate) fn modified(&self) -> Bytes {
        self.cached.modified.get_or_init(|| encode_event("MODIFIED", &self.record, &self.traceparent)).clone()
    }

    pub(crate) fn deleted(&self) -> Bytes {
        self.cached.deleted.get_or_init(|| encode_event("DELETED", &self.record, &self.traceparent)).clone()
    }

    /// It no longer matches: a deletion to this watcher, of the old content at
    /// the new version.
    pub(crate) fn left_selection(&self) -> Bytes {
        let encode = || {
            let previous = self.previous.as_deref().unwrap_or_default();
            encode_event("DELETED", &with_version(self.kind, previous, self.revision), &self.traceparent)
        };
        self.cached.left_selection.get_or_init(encode).clone()
    }
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
pub(crate) mod tests;
