//! The encoding of a commit in the journal: one frame with a header of its own checksum, and a body.
//!
//! Each header holds the hash of the header before it, so a missing, repeated or foreign frame breaks the chain. It also
//! holds the fingerprint of all records after the commit.

use bytes::{Buf, BufMut};
use muster_store_core::fingerprint::{self, Fingerprint};
use muster_store_core::history::{Commit, Revision, StoredChange, StoredRenewal};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 4] = b"MJF5";
/// The length of an encoded header.
pub(super) const HEADER: usize = 4 + 4 + 8 + 16 + 7 * 8 + fingerprint::LEN;
/// Frames begin at multiples of this, so that one can be found behind a damaged header.
pub(super) const ALIGNMENT: u64 = 8;

/// The longest body that a file can hold.
const MAX_BODY: u64 = i64::MAX as u64;

const CHANGE: u8 = 1;
const RENEWALS: u8 = 2;
/// Tag, revision and length of an item of the body.
const ITEM_HEADER: usize = 1 + 8 + 4;

/// Tells the frames of one segment from those of another. Random, so that a client cannot store a forged frame in a
/// record.
pub(super) type SegmentId = [u8; 16];

/// The fixed part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) segment: SegmentId,
    /// Frames are numbered without gaps from 1.
    pub(super) number: u64,
    /// The hash of the header of the frame before.
    pub(super) previous_hash: u64,
    /// The revision before the commit.
    pub(super) base: Revision,
    /// The revision after it.
    pub(super) head: Revision,
    pub(super) compacted: Revision,
    pub(super) body_len: u64,
    pub(super) body_hash: u64,
    pub(super) fingerprint: Fingerprint,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut rest = &mut bytes[16..];
        rest.put_slice(&self.segment);
        for number in [
            self.number,
            self.previous_hash,
            self.base,
            self.head,
            self.compacted,
            self.body_len,
            self.body_hash,
        ] {
            rest.put_u64(number);
        }
        rest.put_slice(&self.fingerprint.encode());
        let hash = xxh3_64(&bytes[16..]);
        bytes[..4].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&hash.to_be_bytes());
        bytes
    }

    /// The header at the beginning of `bytes`, if there is an undamaged one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.first_chunk()?;
        let (start, mut rest) = bytes.split_at(16);
        if &start[..8] != b"MJF5\0\0\0\0" || start[8..] != xxh3_64(rest).to_be_bytes() {
            return None;
        }
        let mut segment = [0; 16];
        rest.copy_to_slice(&mut segment);
        let mut next = || rest.get_u64();
        let (number, previous_hash, base, head) = (next(), next(), next(), next());
        let (compacted, body_len, body_hash) = (next(), next(), next());
        let fingerprint = Fingerprint::decode(rest.first_chunk()?)?;
        // A longer body would not fit into a file, and the frame's length not into its number.
        let is_plausible = base <= head && compacted <= head && body_len <= MAX_BODY;
        let header =
            Self { segment, number, previous_hash, base, head, compacted, body_len, body_hash, fingerprint };
        is_plausible.then_some(header)
    }

    /// What the next header refers to. It covers the body through its hash.
    pub(super) fn hash(&self) -> u64 {
        xxh3_64(&self.encode())
    }

    /// The length of the frame with its padding.
    pub(super) fn frame_len(&self) -> u64 {
        padded(HEADER as u64 + self.body_len)
    }
}

fn padded(len: u64) -> u64 {
    len.next_multiple_of(ALIGNMENT)
}

/// The place of a new frame in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) number: u64,
    pub(super) previous_hash: u64,
}

/// Encodes a commit as a frame. Changes whose previous version is older than `self_contained_from` carry that version,
/// so that they can be read without it.
pub(super) fn encode(
    commit: &Commit,
    compacted: Revision,
    segment: SegmentId,
    at: Position,
    self_contained_from: Revision,
) -> (Header, Vec<u8>) {
    let records: usize = commit.changes.iter().map(|(_, change)| change.record.len() + 256).sum();
    let renewals: usize = commit.renewals.iter().map(|(_, pack)| pack.len() * 24 + ITEM_HEADER).sum();
    let mut bytes = Vec::with_capacity(HEADER + records + renewals);
    bytes.resize(HEADER, 0);
    for (revision, change) in &commit.changes {
        put_item(&mut bytes, CHANGE, *revision, |bytes| {
            change.encode(change.previous < self_contained_from, bytes);
        });
    }
    for (first, pack) in &commit.renewals {
        put_item(&mut bytes, RENEWALS, *first, |bytes| StoredRenewal::encode_pack(pack, bytes));
    }
    let body = &bytes[HEADER..];
    let header = Header {
        segment,
        number: at.number,
        previous_hash: at.previous_hash,
        base: commit.base,
        head: commit.head,
        compacted,
        body_len: body.len() as u64,
        body_hash: xxh3_64(body),
        fingerprint: commit.fingerprint,
    };
    bytes[..HEADER].copy_from_slice(&header.encode());
    bytes.resize(header.frame_len() as usize, 0);
    (header, bytes)
}

fn put_item(bytes: &mut Vec<u8>, tag: u8, revision: Revision, content: impl FnOnce(&mut Vec<u8>)) {
    bytes.put_u8(tag);
    bytes.put_u64(revision);
    let length_at = bytes.len();
    bytes.put_u32(0);
    content(bytes);
    let length = (bytes.len() - length_at - 4) as u32;
    bytes[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
}

/// A decoded body.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Body {
    pub(super) changes: Vec<(Revision, StoredChange)>,
    pub(super) renewals: Vec<(Revision, Vec<StoredRenewal>)>,
}

/// Decodes the body of a frame whose hash was checked.
pub(super) fn decode_body(body: &[u8]) -> Result<Body, String> {
    let mut decoded = Body::default();
    for item in items(body) {
        let (tag, revision, content) = item?;
        match tag {
            CHANGE => decoded.changes.push((revision, StoredChange::decode(content)?)),
            RENEWALS => decoded.renewals.push((revision, StoredRenewal::decode_pack(revision, content)?)),
            other => return Err(format!("unknown item {other}")),
        }
    }
    Ok(decoded)
}

/// The change at a revision.
pub(super) fn decode_change(body: &[u8], wanted: Revision) -> Result<Option<StoredChange>, String> {
    for item in items(body) {
        let (tag, revision, content) = item?;
        if tag == CHANGE && revision == wanted {
            return StoredChange::decode(content).map(Some);
        }
    }
    Ok(None)
}

type Item<'a> = (u8, Revision, &'a [u8]);

fn items(mut body: &[u8]) -> impl Iterator<Item = Result<Item<'_>, String>> {
    std::iter::from_fn(move || {
        if body.is_empty() {
            return None;
        }
        if body.len() < ITEM_HEADER {
            body = &[];
            return Some(Err("an item is cut short".to_owned()));
        }
        let (tag, revision, length) = (body.get_u8(), body.get_u64(), body.get_u32() as usize);
        match body.split_at_checked(length) {
            Some((content, rest)) => {
                body = rest;
                Some(Ok((tag, revision, content)))
            }
            None => {
                body = &[];
                Some(Err("an item is cut short".to_owned()))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use muster_mutation::{bytes, cases};
    use muster_proto::record::Kind;
    use proptest::prelude::*;

    use super::*;

    fn commit() -> Commit {
        let change = StoredChange {
            kind: Kind::Node,
            namespace: String::new(),
            name: "a".to_owned(),
            record: Bytes::from_static(b"after"),
            deleted: false,
            previous: 3,
            previous_record: Some(Bytes::from_static(b"before")),
            at_millis: 5,
            traceparent: String::new(),
            lease_id: 0,
        };
        let renewal = StoredRenewal { lease_id: 1, status_age_millis: 2, status_digest: 3, at_micros: 4 };
        Commit {
            base: 6,
            head: 9,
            changes: vec![(7, change)],
            renewals: vec![(8, vec![renewal, renewal])],
            ..Default::default()
        }
    }

    const AT: Position = Position { number: 4, previous_hash: 11 };

    /// A header and a body.
    fn encoded() -> (Vec<u8>, Vec<u8>) {
        let (header, mut frame) = encode(&commit(), 2, [7; 16], AT, 4);
        frame.truncate(HEADER + header.body_len as usize);
        let body = frame.split_off(HEADER);
        (frame, body)
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn any_body_is_decoded_or_refused(body in bytes(vec![encoded().1])) {
            if let Ok(decoded) = decode_body(&body) {
                for (revision, _) in decoded.changes {
                    prop_assert!(decode_change(&body, revision).is_ok_and(|change| change.is_some()));
                }
            }
        }

        /// With the checksum that belongs to it: behind the checksum, too, nothing is taken for granted.
        #[test]
        fn any_header_is_decoded_or_refused(mut header in bytes(vec![encoded().0])) {
            header.resize(HEADER, 0);
            header[..8].copy_from_slice(b"MJF5\0\0\0\0");
            let hash = xxh3_64(&header[16..]);
            header[8..16].copy_from_slice(&hash.to_be_bytes());
            if let Some(decoded) = Header::decode(&header) {
                prop_assert_eq!(&decoded.encode()[..], &header);
                prop_assert!(decoded.frame_len() >= HEADER as u64);
            }
        }
    }

    #[test]
    fn a_commit_is_read_back_with_the_previous_version_where_it_is_needed() {
        for (self_contained_from, carried) in [(3, false), (4, true)] {
            let (header, bytes) = encode(&commit(), 2, [7; 16], AT, self_contained_from);
            assert_eq!(Header::decode(&bytes), Some(header));
            assert_eq!(bytes.len() as u64, header.frame_len());
            let body = &bytes[HEADER..HEADER + header.body_len as usize];
            let decoded = decode_body(body).unwrap();
            assert_eq!(decoded.renewals, commit().renewals);
            let (revision, change) = &decoded.changes[0];
            assert_eq!((*revision, change.previous_record.is_some()), (7, carried));
            assert_eq!(decode_change(body, 7).unwrap().as_ref(), Some(change));
            assert_eq!(decode_change(body, 8).unwrap(), None);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_found() {
        let (header, bytes) = encode(&commit(), 2, [7; 16], AT, 0);
        for bit in 0..8 * HEADER {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&damaged), None, "bit {bit}");
        }
        let next = Header { number: 5, ..header };
        assert_ne!(next.hash(), header.hash());
    }

    #[test]
    fn a_body_that_is_cut_short_is_an_error() {
        let (header, bytes) = encode(&commit(), 2, [7; 16], AT, 0);
        let body = &bytes[HEADER..HEADER + header.body_len as usize];
        for cut in 1..body.len() {
            // A cut between two items leaves a body that decodes; the body's hash finds it.
            let decoded = decode_body(&body[..cut]);
            assert!(decoded.is_err() || xxh3_64(&body[..cut]) != header.body_hash, "{cut}");
        }
    }
}
