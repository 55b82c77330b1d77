//! What a checkpoint's tree holds: an entry for each record, which says where it lies, and each lease's newest renewal.

use bytes::{Buf, BufMut};
use muster_proto::record::Kind;
use muster_store_core::fingerprint::RecordHash;
use muster_store_core::history::{Revision, StoredRenewal};
use muster_store_core::namespaced_name::NamespacedName;

use crate::ledger::LedgerError;

/// The first byte of the keys of records, and of those of renewals.
pub(super) const RECORDS: u8 = b'k';
pub(super) const RENEWALS: u8 = b'r';

/// Where a record lies in the record files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    /// The number of the file. 0 is the checkpoint's own file, which format 5 had.
    pub(super) file: u32,
    pub(super) offset: u64,
}

/// The entry of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordEntry {
    pub(super) revision: Revision,
    pub(super) lease_id: u32,
    pub(super) length: u32,
    pub(super) location: Location,
    pub(super) hash: RecordHash,
}

impl RecordEntry {
    pub(super) const LEN: usize = Self::LEN_OF_FORMAT_5 + 4;
    const LEN_OF_FORMAT_5: usize = 40;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::LEN);
        bytes.put_u64(self.revision);
        bytes.put_u32(self.lease_id);
        bytes.put_u32(self.length);
        bytes.put_u64(self.location.offset);
        bytes.put_u128(self.hash.0);
        bytes.put_u32(self.location.file);
        bytes
    }

    pub(super) fn decode(mut entry: &[u8]) -> Result<Self, LedgerError> {
        if ![Self::LEN, Self::LEN_OF_FORMAT_5].contains(&entry.len()) {
            return Err(cut_short());
        }
        let (revision, lease_id, length) = (entry.get_u64(), entry.get_u32(), entry.get_u32());
        let (offset, hash) = (entry.get_u64(), RecordHash(entry.get_u128()));
        let file = if entry.has_remaining() { entry.get_u32() } else { 0 };
        Ok(Self { revision, lease_id, length, location: Location { file, offset }, hash })
    }
}

pub(super) fn record_key(kind: Kind, key: &NamespacedName) -> Vec<u8> {
    let mut bytes = vec![RECORDS, kind as u8];
    bytes.extend_from_slice(key.namespace().as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(key.name().as_bytes());
    bytes
}

pub(super) fn parse_record_key(key: &[u8]) -> Result<(Kind, NamespacedName), LedgerError> {
    let parsed = || {
        let (kind, names) = key.get(1..)?.split_first()?;
        let (namespace, name) = std::str::from_utf8(names).ok()?.split_once('\0')?;
        Some((Kind::from_byte(*kind)?, NamespacedName::new(namespace, name)))
    };
    parsed()
        .ok_or_else(|| LedgerError::Damaged(format!("the key {} is not one of a record", key.escape_ascii())))
}

pub(super) fn renewal_key(lease_id: u32) -> Vec<u8> {
    let mut bytes = vec![RENEWALS];
    bytes.put_u32(lease_id);
    bytes
}

pub(super) fn encode_renewal(revision: Revision, renewal: StoredRenewal) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    bytes.put_u64(revision);
    StoredRenewal::encode_pack(&[renewal], &mut bytes);
    bytes
}

pub(super) fn parse_renewal(value: &[u8]) -> Result<(Revision, StoredRenewal), LedgerError> {
    let (mut revision, renewal) = value.split_at_checked(8).ok_or_else(cut_short)?;
    let revision = revision.get_u64();
    let decoded = StoredRenewal::decode_pack(revision, renewal).map_err(LedgerError::Damaged)?;
    Ok((revision, *decoded.first().ok_or_else(cut_short)?))
}

/// The revision of any entry.
pub(super) fn revision_of(mut entry: &[u8]) -> Revision {
    if entry.len() < 8 { 0 } else { entry.get_u64() }
}

fn cut_short() -> LedgerError {
    LedgerError::Damaged("an entry of the checkpoint is cut short".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_this_format_and_of_the_one_before_are_read() {
        let location = Location { file: 7, offset: 1 << 40 };
        let entry = RecordEntry { revision: 3, lease_id: 4, length: 5, location, hash: RecordHash(6 << 100) };
        let bytes = entry.encode();
        assert_eq!(bytes.len(), RecordEntry::LEN);
        assert_eq!(RecordEntry::decode(&bytes).unwrap(), entry);
        let own = RecordEntry { location: Location { file: 0, ..location }, ..entry };
        assert_eq!(RecordEntry::decode(&bytes[..40]).unwrap(), own, "format 5 names no file");
        assert!(RecordEntry::decode(&bytes[..41]).is_err());
        assert_eq!(revision_of(&bytes), 3);
    }
}
