//! The keys below the prefix, and what they hold.
//!
//! | Key | Value |
//! |---|---|
//! | `format` | the format and the store's id, as text |
//! | `head` | [`Head`]: where history ends, and the proof of everything up to there |
//! | `leader` | who leads, bound to a lease of etcd |
//! | `migration` | there while a store is being moved here (`transfer`) |
//! | `c/REVISION` | [`Stored`]: the change at that revision |
//! | `r/REVISION` | [`Stored`]: renewals, by the last revision of their commit |
//!
//! The newest change of a record is the record. Revisions are sixteen hexadecimal digits, so that keys sort by them. A
//! change above the head is part of a commit that was not finished; nobody reads it.

use bytes::Bytes;
use muster_etcd::pb;
use muster_store_core::fingerprint::{self, Fingerprint};
use muster_store_core::history::{Revision, StoredRenewal};
use prost::Message;
use prost::bytes::{Buf, BufMut};
use uuid::Uuid;

/// The format that this version reads and writes.
const FORMAT: u32 = 1;
const TAG: &str = "muster-store format ";

/// The keys of one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

/// A part of the keys that are numbered by revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Changes,
    Renewals,
}

impl Keys {
    /// The keys below a prefix such as `/muster`; `None` if there is none.
    pub fn below(prefix: &str) -> Option<Self> {
        let prefix = prefix.trim_end_matches('/');
        (!prefix.is_empty()).then(|| Self { prefix: prefix.to_owned() })
    }

    fn key(&self, name: &str) -> Bytes {
        format!("{}/{name}", self.prefix).into()
    }

    pub fn format(&self) -> Bytes {
        self.key("format")
    }

    pub fn head(&self) -> Bytes {
        self.key("head")
    }

    pub fn leader(&self) -> Bytes {
        self.key("leader")
    }

    pub(super) fn migration(&self) -> Bytes {
        self.key("migration")
    }

    /// All keys: the first possible one, and the one after the last.
    pub(super) fn all(&self) -> (Bytes, Bytes) {
        // `0` follows `/`.
        (self.key(""), format!("{}0", self.prefix).into())
    }

    pub(super) fn numbered(&self, section: Section, revision: Revision) -> Bytes {
        self.key(&format!("{}{revision:016x}", section.name()))
    }

    /// The revision in the head that was read.
    ///
    /// # Errors
    /// When there is none.
    pub fn revision_of_head(&self, found: &pb::RangeResponse) -> Result<Revision, String> {
        let head = found.kvs.first().ok_or("etcd has no key `head`")?;
        Ok(Head::decode(&*head.value).map_err(|error| format!("the key `head`: {error}"))?.revision)
    }

    /// The key after the last one of a section.
    pub(super) fn end(&self, section: Section) -> Bytes {
        let name = section.name();
        self.key(&format!("{}0", &name[..name.len() - 1]))
    }

    /// The revision of a numbered key.
    pub(super) fn revision(&self, section: Section, key: &[u8]) -> Option<Revision> {
        let digits = key.strip_prefix(&*self.key(section.name()))?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 16)?;
        Revision::from_str_radix(digits, 16).ok()
    }
}

impl Section {
    fn name(self) -> &'static str {
        match self {
            Section::Changes => "c/",
            Section::Renewals => "r/",
        }
    }
}

/// Why the value of `format` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error(
        "it was written by a newer version of Muster (format {0}, and this one knows {FORMAT}): upgrade this store"
    )]
    Newer(u32),
    #[error("its key `format` is not Muster's")]
    Foreign,
}

/// The value of `format`.
pub(super) fn format_value(store: Uuid) -> String {
    format!("{TAG}{FORMAT} id {store}\n")
}

/// The id of the store that has this value.
pub(super) fn parse_format(value: &[u8]) -> Result<Uuid, FormatError> {
    let text = std::str::from_utf8(value).ok().and_then(|text| text.trim_end().strip_prefix(TAG));
    let (format, rest) = text.and_then(|text| text.split_once(' ')).ok_or(FormatError::Foreign)?;
    match format.parse::<u32>() {
        Ok(FORMAT) => {}
        Ok(newer) if newer > FORMAT => return Err(FormatError::Newer(newer)),
        _ => return Err(FormatError::Foreign),
    }
    rest.strip_prefix("id ").and_then(|id| id.parse().ok()).ok_or(FormatError::Foreign)
}

/// Where history ends.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Head {
    #[prost(uint64, tag = "1")]
    pub(super) revision: Revision,
    /// The random id of the commit that wrote this.
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) batch: Bytes,
    /// The id in the head before.
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) before: Bytes,
    /// etcd's revision of the leader's key.
    #[prost(int64, tag = "4")]
    pub(super) leader: i64,
    /// The last revision that is no longer in history.
    #[prost(uint64, tag = "5")]
    pub(super) compacted: Revision,
    /// Of all records and renewals.
    #[prost(bytes = "bytes", tag = "6")]
    pub(super) fingerprint: Bytes,
}

impl Head {
    /// The head of an empty history.
    pub(super) fn empty() -> Self {
        let fingerprint = Bytes::copy_from_slice(&Fingerprint::default().encode());
        Head { batch: batch_id(), fingerprint, ..Default::default() }
    }

    pub(super) fn fingerprint(&self) -> Option<Fingerprint> {
        let bytes: &[u8; fingerprint::LEN] = (&*self.fingerprint).try_into().ok()?;
        Fingerprint::decode(bytes)
    }
}

/// A new id of a commit.
pub(super) fn batch_id() -> Bytes {
    Bytes::copy_from_slice(Uuid::new_v4().as_bytes())
}

/// A change or renewals, with the id of their commit: it proves after a lost answer that the commit was done.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Stored {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) batch: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) content: Bytes,
}

/// A renewal and its revision.
pub(super) type NumberedRenewal = (Revision, StoredRenewal);

/// What one takes in a pack, in bytes.
pub(super) const RENEWAL_LEN: usize = 32;

pub(super) fn encode_pack(renewals: &[NumberedRenewal]) -> Bytes {
    let mut bytes = Vec::with_capacity(renewals.len() * RENEWAL_LEN);
    for (revision, renewal) in renewals {
        bytes.put_u64(*revision);
        StoredRenewal::encode_pack(std::slice::from_ref(renewal), &mut bytes);
    }
    bytes.into()
}

pub(super) fn decode_pack(bytes: &[u8]) -> Result<Vec<NumberedRenewal>, String> {
    let mut renewals = Vec::with_capacity(bytes.len() / RENEWAL_LEN);
    for mut entry in bytes.chunks(RENEWAL_LEN) {
        if entry.len() < RENEWAL_LEN {
            return Err("renewals are cut short".to_owned());
        }
        let revision = entry.get_u64();
        renewals.extend(StoredRenewal::decode_pack(revision, entry)?.into_iter().map(|it| (revision, it)));
    }
    Ok(renewals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_revision_and_their_sections_do_not_meet() {
        let keys = Keys::below("/muster/").unwrap();
        assert_eq!(&*keys.head(), b"/muster/head");
        let key = |revision| keys.numbered(Section::Changes, revision);
        assert_eq!(&*key(0x1f), b"/muster/c/000000000000001f");
        assert!(key(9) < key(10) && key(255) < key(256) && key(u64::MAX) < keys.end(Section::Changes));
        assert!(keys.end(Section::Changes) < keys.format());
        let (from, to) = keys.all();
        assert!(from < key(0) && keys.numbered(Section::Renewals, u64::MAX) < to);
        assert_eq!(keys.revision(Section::Changes, &key(77)), Some(77));
        assert_eq!(keys.revision(Section::Renewals, &key(77)), None);
        assert_eq!(keys.revision(Section::Changes, b"/muster/c/77"), None);
        assert_eq!(Keys::below("//"), None);
    }

    #[test]
    fn only_the_own_format_is_understood() {
        let store = Uuid::new_v4();
        assert_eq!(parse_format(format_value(store).as_bytes()), Ok(store));
        let newer = format_value(store).replace("format 1", "format 12");
        assert_eq!(parse_format(newer.as_bytes()), Err(FormatError::Newer(12)));
        for foreign in ["", "hello", "muster-store format x id y", "muster-store format 1 id y", "\u{fffd}"] {
            assert_eq!(parse_format(foreign.as_bytes()), Err(FormatError::Foreign), "{foreign:?}");
        }
    }

    #[test]
    fn packs_survive_encoding_and_one_that_is_cut_short_is_refused() {
        let renewal =
            |lease_id| StoredRenewal { lease_id, status_age_millis: 1, status_digest: 2, at_micros: 3 };
        let pack = [(7, renewal(1)), (9, renewal(2))];
        let bytes = encode_pack(&pack);
        assert_eq!(decode_pack(&bytes).unwrap(), pack);
        assert!(decode_pack(&bytes[1..]).is_err());
    }
}
