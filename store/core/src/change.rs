//! A committed change as watchers receive it.
//!
//! One change is shared by all watchers. Each of its event forms (added, modified, deleted) is encoded once, and the
//! values that selectors need are decoded once, when the first watcher with a selector reads the change.

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

/// One change of one record.
#[derive(Debug)]
pub struct Change {
    pub revision: Revision,
    pub kind: Kind,
    pub key: NamespacedName,
    pub deleted: bool,
    /// The record after the change; for a deletion, its last content.
    pub record: Bytes,
    /// The record before the change.
    pub previous: Option<Bytes>,
    pub traceparent: String,
    /// When the change became visible to watchers; unset if it was read from the ledger.
    published: OnceLock<Mono>,
    cached: Cached,
}

/// Derived values, computed on first use.
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

    /// A change read from the ledger, with the record that it replaced.
    pub fn from_stored(revision: Revision, stored: StoredChange, previous: Option<Bytes>) -> Self {
        let key = stored.key();
        let StoredChange { kind, deleted, mut record, traceparent, .. } = stored;
        if kind == Kind::Lease {
            // Renewals folded into the stored value since then gave it a later resource version.
            record = with_version(kind, &record, revision);
        }
        Self::new(kind, revision, key, deleted, record, previous, traceparent)
    }

    /// Records when the change became visible to watchers.
    pub fn set_published(&self, now: Mono) {
        // The first call wins: a change is published once.
        let _ = self.published.set(now);
    }

    /// When the change became visible to watchers, if known.
    pub fn published_at(&self) -> Option<Mono> {
        self.published.get().copied()
    }

    /// Approximate memory use of the change.
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

    /// For a watcher whose selectors matched before and no longer match: a DELETED event with the old content at the
    /// new resource version.
    pub(crate) fn left_selection(&self) -> Bytes {
        let encode = || {
            let previous = self.previous.as_deref().unwrap_or_default();
            encode_event("DELETED", &with_version(self.kind, previous, self.revision), &self.traceparent)
        };
        self.cached.left_selection.get_or_init(encode).clone()
    }
}

/// A watch frame with one event. All kinds have the same event layout, so the record's stored bytes are copied
/// without decoding them.
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

/// A watch frame with one BOOKMARK event: the revision that the watch has reached.
pub fn encode_bookmark(revision: Revision, ends_initial_events: bool) -> Bytes {
    let mut metadata = pb::Metadata { resource_version: revision, ..Default::default() };
    if ends_initial_events {
        metadata.annotations.insert(INITIAL_EVENTS_END.to_owned(), "true".to_owned());
    }
    // Metadata is the first field of every kind, so a Node stands for any of them.
    let record = pb::Node { metadata: Some(metadata), ..Default::default() };
    encode_event("BOOKMARK", &record.encode_to_vec(), "")
}

/// A record's bytes with its resource version replaced.
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
        Kind::JoinToken => at_version!(pb::JoinToken),
        Kind::CertificateRequest => at_version!(pb::CertificateRequest),
        Kind::Revocation => at_version!(pb::Revocation),
        Kind::PriorityClass => at_version!(pb::PriorityClass),
    }
}

/// A change shared by all watchers.
pub type SharedChange = Arc<Change>;

#[cfg(test)]
pub(crate) mod tests;
