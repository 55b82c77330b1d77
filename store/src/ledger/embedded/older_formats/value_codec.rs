//! How a value was encoded in sled: a tag, a checksum, and at most one piece of the value.

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

/// Encodes a value in pieces of a given length.
#[cfg(test)]
pub(super) fn encode_in(piece: usize, value: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    if value.len() <= piece {
        return (with_checksum(WHOLE, &[], value), Vec::new());
    }
    let mut pieces = value.chunks(piece);
    let first = pieces.next().unwrap_or_default();
    let following: Vec<Vec<u8>> = pieces.map(|piece| with_checksum(NEXT, &[], piece)).collect();
    (with_checksum(FIRST, &(following.len() as u32).to_be_bytes(), first), following)
}

#[cfg(test)]
fn with_checksum(tag: u8, head: &[u8], value: &[u8]) -> Vec<u8> {
    let body = [head, value].concat();
    [&[tag][..], &crc32fast::hash(&body).to_be_bytes(), &body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_detected() {
        let (checked, _) = encode_in(64, b"a record");
        assert_eq!(decode(&checked).unwrap(), Piece::Whole(b"a record"));
        for bit in 8..checked.len() * 8 {
            let mut damaged = checked.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        assert!(decode(&checked[..4]).is_err());
    }
}
