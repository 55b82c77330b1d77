//! Values as they lie in sled: a tag, a checksum, and no more than a piece.

use super::SEGMENT;

/// The most of a value that one entry of sled's tree holds.
///
/// sled puts a message of its log that is longer than a quarter of a segment into
/// a file of its own, which the log's sync does not cover. A message may be a
/// whole leaf of the tree, and leaves are split by the number of their entries
/// alone: so entries must be so short that no leaf is ever that long. They are a good deal
/// shorter, so that a change, which may have several leaves written anew, takes little of
/// what may be written between two syncs.
pub(super) const PIECE: usize = 2 * 1024;

/// The most entries in a leaf that sled writes: 17 before it is split, and the
/// last 3 of a neighbour that it takes in.
const LEAF: usize = 20;
/// What an entry has beside its piece: key, lengths, tag and checksum.
const BESIDE: usize = 64;
const _: () = assert!((LEAF + 1) * (PIECE + BESIDE) < SEGMENT / 4, "a leaf fits into a message");

const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const FURTHER: u8 = 3;

/// Tag, then the checksum of everything after it.
const HEADER: usize = 5;
/// How many pieces follow, in the first one.
const COUNT: usize = 4;

/// What a stored value turns out to be.
#[derive(Debug, PartialEq)]
pub(super) enum Piece<'a> {
    Whole(&'a [u8]),
    /// The beginning of a split value, and how many pieces follow.
    First {
        further: usize,
        value: &'a [u8],
    },
    Further(&'a [u8]),
}

/// The value as it is stored, and its further pieces if it is long.
pub(super) fn encode(value: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    encode_in(PIECE, value)
}

/// As [`encode`], in pieces of any size.
pub(super) fn encode_in(piece: usize, value: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    if value.len() <= piece {
        return (seal(WHOLE, &[], value), Vec::new());
    }
    let mut pieces = value.chunks(piece);
    let first = pieces.next().unwrap_or_default();
    let further: Vec<Vec<u8>> = pieces.map(|piece| seal(FURTHER, &[], piece)).collect();
    (seal(FIRST, &(further.len() as u32).to_be_bytes(), first), further)
}

/// Whether a stored entry is longer than this version writes them.
pub(super) fn is_long(stored: &[u8]) -> bool {
    stored.len() > PIECE + HEADER + COUNT
}

fn seal(tag: u8, head: &[u8], value: &[u8]) -> Vec<u8> {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(value);
    let mut sealed = Vec::with_capacity(HEADER + head.len() + value.len());
    sealed.push(tag);
    sealed.extend_from_slice(&hasher.finalize().to_be_bytes());
    sealed.extend_from_slice(head);
    sealed.extend_from_slice(value);
    sealed
}

/// Checks a stored value and says what it is.
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
        FURTHER => Ok(Piece::Further(body)),
        FIRST => match body.split_first_chunk::<COUNT>() {
            Some((further, value)) => {
                Ok(Piece::First { further: u32::from_be_bytes(*further) as usize, value })
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
    fn a_value_comes_back_as_it_went_in() {
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7] {
            let value: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let (first, further) = encode(&value);
            assert!(!is_long(&first));
            let mut back = match decode(&first).unwrap() {
                Piece::Whole(value) => value.to_vec(),
                Piece::First { further: count, value } => {
                    assert_eq!(count, further.len());
                    value.to_vec()
                }
                Piece::Further(_) => panic!("a value does not begin with a further piece"),
            };
            for piece in &further {
                assert!(!is_long(piece));
                match decode(piece).unwrap() {
                    Piece::Further(value) => back.extend_from_slice(value),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(back, value, "{len} bytes");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (sealed, _) = encode(b"a record");
        for bit in 8..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        assert!(decode(&sealed[..4]).is_err());
    }
}
