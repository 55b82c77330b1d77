//! How a value is encoded in sled: a tag, a checksum, and at most one piece of the value.

use super::SEGMENT;

/// The most of a value that one entry of sled's tree holds.
///
/// sled puts a log message that is longer than a quarter of a segment into a file of its own, which the log's sync does
/// not cover. A message can be a whole leaf of the tree, and sled splits leaves by the number of entries only. So entries
/// must be so short that no leaf gets that long. They are much shorter than that, so that one change, which can make sled
/// rewrite several leaves, takes a small part of what may be written between two syncs.
pub(super) const PIECE: usize = 2 * 1024;

/// The most entries in a leaf that sled writes: 17 before it is split, and 3 of a neighbour that is merged into it.
const LEAF: usize = 20;
/// What an entry has besides its piece: key, lengths, tag and checksum.
const ENTRY_OVERHEAD: usize = 64;
const _: () = assert!((LEAF + 1) * (PIECE + ENTRY_OVERHEAD) < SEGMENT / 4, "a leaf fits into a message");

const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const NEXT: u8 = 3;

/// Tag, then the checksum of everything after it.
const HEADER: usize = 5;
/// The number of pieces that follow, stored in the first one.
const COUNT: usize = 4;

/// A decoded entry.
#[derive(Debug, PartialEq)]
pub(super) enum Piece<'a> {
    Whole(&'a [u8]),
    /// The beginning of a split value, and how many pieces follow.
    First {
        following: usize,
        value: &'a [u8],
    },
    Next(&'a [u8]),
}

/// The encoded value, and its further pieces if it is long.
pub(super) fn encode(value: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    encode_in(PIECE, value)
}

/// As [`encode`], in pieces of any size.
pub(super) fn encode_in(piece: usize, value: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    if value.len() <= piece {
        return (with_checksum(WHOLE, &[], value), Vec::new());
    }
    let mut pieces = value.chunks(piece);
    let first = pieces.next().unwrap_or_default();
    let following: Vec<Vec<u8>> = pieces.map(|piece| with_checksum(NEXT, &[], piece)).collect();
    (with_checksum(FIRST, &(following.len() as u32).to_be_bytes(), first), following)
}

/// Whether a stored entry is longer than this version writes them.
pub(super) fn is_long(stored: &[u8]) -> bool {
    stored.len() > PIECE + HEADER + COUNT
}

fn with_checksum(tag: u8, head: &[u8], value: &[u8]) -> Vec<u8> {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(value);
    let mut checked = Vec::with_capacity(HEADER + head.len() + value.len());
    checked.push(tag);
    checked.extend_from_slice(&hasher.finalize().to_be_bytes());
    checked.extend_from_slice(head);
    checked.extend_from_slice(value);
    checked
}

/// Checks and decodes an entry.
pub(super) fn decode(stored: &[u8]) -> Result<Piece<'_>, String> {
    let Some((header, body)) = stored.split_first_chunk::<HEADER>() else {
        return Err("the value is shorter than its header".into());
    };
    let [tag, checksum @ ..] = *header;
    if crc32fast::hash(body) != u32::from_be_bytes(checksum) {
        return Err("the checksum does not match".into());
    }
    match tag {
        WHOLE => Ok(Piece::Whole(body)),
        NEXT => Ok(Piece::Next(body)),
        FIRST => match body.split_first_chunk::<COUNT>() {
            Some((following, value)) => {
                Ok(Piece::First { following: u32::from_be_bytes(*following) as usize, value })
            }
            None => Err("a split value has no count".into()),
        },
        other => Err(format!("unknown tag {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_and_decoded() {
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7] {
            let value: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let (first, following) = encode(&value);
            assert!(!is_long(&first));
            let mut back = match decode(&first).unwrap() {
                Piece::Whole(value) => value.to_vec(),
                Piece::First { following: count, value } => {
                    assert_eq!(count, following.len());
                    value.to_vec()
                }
                Piece::Next(_) => panic!("a value does not begin with a following piece"),
            };
            for piece in &following {
                assert!(!is_long(piece));
                match decode(piece).unwrap() {
                    Piece::Next(value) => back.extend_from_slice(value),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(back, value, "{len} bytes");
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let (checked, _) = encode(b"a record");
        for bit in 8..checked.len() * 8 {
            let mut damaged = checked.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        assert!(decode(&checked[..4]).is_err());
    }
}
