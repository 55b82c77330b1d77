//! History: what a commit adds to it, and the stored encoding of changes and renewals.

use bytes::{Buf, BufMut, Bytes};
use muster_proto::record::Kind;
use prost::Message;

use crate::fingerprint::Fingerprint;
use crate::namespaced_name::NamespacedName;

/// A position in the store's history. A record's resource version is the revision that wrote it.
pub type Revision = u64;

/// What one commit adds to history.
#[derive(Debug, Default)]
pub struct Commit {
    /// The revision the commit starts from.
    pub base: Revision,
    /// The last revision it takes.
    pub head: Revision,
    /// Changes by revision.
    pub changes: Vec<(Revision, StoredChange)>,
    /// Renewals, by the revision of the first of each pack.
    pub renewals: Vec<(Revision, Vec<StoredRenewal>)>,
    /// Old history that this commit deletes.
    pub compaction: Option<Compaction>,
    /// Whether it may use the space that is kept in reserve on the disk: it deletes something.
    pub uses_reserve: bool,
    /// Of all records and renewals after the commit.
    pub fingerprint: Fingerprint,
}

/// The oldest part of history, to be deleted.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Compaction {
    /// The last revision that is no longer in history.
    pub up_to: Revision,
    /// How many changes are dropped from history.
    pub entries: usize,
    /// The changes that nothing needs any more: those that the dropped ones replaced, and dropped deletions. Each is
    /// after the one that it replaced.
    pub obsolete: Vec<Revision>,
}

/// One change of a record, as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredChange {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    /// The record in the schema's encoding; for a deletion, its last content.
    pub record: Bytes,
    pub deleted: bool,
    /// The record's previous resource version; 0 if the record did not exist.
    pub previous: Revision,
    /// The record before the change. A ledger may leave it out where it can find it at `previous`.
    pub previous_record: Option<Bytes>,
    /// When it was committed, in milliseconds since 1970.
    pub at_millis: i64,
    /// The trace context of the write.
    pub traceparent: String,
    /// For a lease: the number by which its renewals refer to it; otherwise 0.
    pub lease_id: u32,
}

#[derive(Clone, PartialEq, Message)]
struct ChangeMessage {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(bytes = "bytes", tag = "4")]
    record: Bytes,
    #[prost(bool, tag = "5")]
    deleted: bool,
    #[prost(uint64, tag = "6")]
    previous: u64,
    #[prost(int64, tag = "7")]
    at_millis: i64,
    #[prost(string, tag = "8")]
    traceparent: String,
    #[prost(uint32, tag = "9")]
    lease_id: u32,
    #[prost(bytes = "bytes", optional, tag = "10")]
    previous_record: Option<Bytes>,
}

impl StoredChange {
    /// Appends the encoded change to `buffer`.
    pub fn encode(&self, with_previous_record: bool, buffer: &mut Vec<u8>) {
        let wire = ChangeMessage {
            kind: self.kind as u32,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            record: self.record.clone(),
            deleted: self.deleted,
            previous: self.previous,
            at_millis: self.at_millis,
            traceparent: self.traceparent.clone(),
            lease_id: self.lease_id,
            previous_record: self.previous_record.clone().filter(|_| with_previous_record),
        };
        buffer.reserve(wire.encoded_len());
        wire.encode_raw(buffer);
    }

    /// Decodes a change. Its records are copied, so that they do not keep the whole buffer in memory.
    pub fn decode(value: &[u8]) -> Result<Self, String> {
        let wire = ChangeMessage::decode(value).map_err(|e| e.to_string())?;
        let kind = u8::try_from(wire.kind).ok().and_then(Kind::from_byte);
        Ok(Self {
            kind: kind.ok_or_else(|| format!("unknown kind {}", wire.kind))?,
            namespace: wire.namespace,
            name: wire.name,
            record: wire.record,
            deleted: wire.deleted,
            previous: wire.previous,
            previous_record: wire.previous_record,
            at_millis: wire.at_millis,
            traceparent: wire.traceparent,
            lease_id: wire.lease_id,
        })
    }
}

/// One renewal of a lease, in 24 bytes. Its revision is the pack's first revision plus its position in the pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRenewal {
    pub lease_id: u32,
    pub status_age_millis: u32,
    pub status_digest: u64,
    /// Microseconds since 1970.
    pub at_micros: i64,
}

impl StoredRenewal {
    const LEN: usize = 24;

    /// Appends the encoded renewals to `buffer`.
    pub fn encode_pack(pack: &[StoredRenewal], buffer: &mut Vec<u8>) {
        buffer.reserve(pack.len() * Self::LEN);
        for renewal in pack {
            buffer.put_u32(renewal.lease_id);
            buffer.put_u32(renewal.status_age_millis);
            buffer.put_u64(renewal.status_digest);
            buffer.put_i64(renewal.at_micros);
        }
    }

    pub fn decode_pack(first: Revision, mut pack: &[u8]) -> Result<Vec<StoredRenewal>, String> {
        if !pack.len().is_multiple_of(Self::LEN) {
            return Err(format!("the renewals from revision {first} on are cut short"));
        }
        let mut renewals = Vec::with_capacity(pack.len() / Self::LEN);
        while pack.has_remaining() {
            renewals.push(StoredRenewal {
                lease_id: pack.get_u32(),
                status_age_millis: pack.get_u32(),
                status_digest: pack.get_u64(),
                at_micros: pack.get_i64(),
            });
        }
        Ok(renewals)
    }
}

impl StoredChange {
    /// The key of the changed record.
    pub fn key(&self) -> NamespacedName {
        NamespacedName::new(&self.namespace, &self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_and_packs_survive_encoding_and_decoding() {
        let change = StoredChange {
            kind: Kind::Pod,
            namespace: "default".into(),
            name: "web".into(),
            record: Bytes::from_static(b"record"),
            deleted: true,
            previous: 41,
            previous_record: Some(Bytes::from_static(b"before")),
            at_millis: -5,
            traceparent: "00-aa-bb-01".into(),
            lease_id: 7,
        };
        let mut bytes = Vec::new();
        change.encode(true, &mut bytes);
        assert_eq!(StoredChange::decode(&bytes).unwrap(), change);
        bytes.clear();
        change.encode(false, &mut bytes);
        let without = StoredChange { previous_record: None, ..change };
        assert_eq!(StoredChange::decode(&bytes).unwrap(), without);

        let pack: Vec<_> = (0..3)
            .map(|i| StoredRenewal {
                lease_id: i,
                status_age_millis: 10 * i,
                status_digest: u64::MAX - u64::from(i),
                at_micros: -1,
            })
            .collect();
        let mut bytes = Vec::new();
        StoredRenewal::encode_pack(&pack, &mut bytes);
        assert_eq!(bytes.len(), 72);
        assert_eq!(StoredRenewal::decode_pack(1, &bytes).unwrap(), pack);
        assert!(StoredRenewal::decode_pack(1, &bytes[1..]).is_err());
    }
}
