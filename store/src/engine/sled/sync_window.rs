//! How much sled may write between two syncs of its log.
//!
//! sled treats what it has handed to the kernel as durable. Its log says so, and it reuses segments of the log whose
//! content it has written elsewhere. If more than a segment is written between two of our syncs, power loss can destroy
//! both the old copy and the new one of a record that was acknowledged long ago. sled does not report how much it has
//! written, so we estimate it.

use prost::Message;

use super::SEGMENT;

/// A change of one entry of sled's tree.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Change {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    /// `None` removes it.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) value: Option<Vec<u8>>,
    /// The length of the value that it replaces.
    #[prost(uint64, tag = "3")]
    pub(super) replaces: u64,
}

/// What sled writes for a change of any length, averaged over a window: its share of the leaves that are rewritten, and
/// of the leaves that are moved to free a segment.
const PER_CHANGE: usize = 6 * 1024;
/// How often sled writes a byte that is added or removed: once by itself, again when its leaf is consolidated, split or
/// merged, and again when that leaf is moved. Values next to each other tend to have the same length.
const PER_BYTE: usize = 12;
/// How much may be written between two syncs, as estimated. The estimate is an average: most windows write less, and
/// about one in a hundred thousand writes up to half as much again. The power-loss test measures it.
pub(super) const WINDOW: usize = SEGMENT / 2;

/// How many bytes of sled's log these changes take, as estimated.
pub(super) fn estimated_bytes(changes: &[Change]) -> usize {
    changes.iter().map(Change::estimated_bytes).sum()
}

impl Change {
    fn estimated_bytes(&self) -> usize {
        let bytes = self.value.as_ref().map_or(0, Vec::len) + self.replaces as usize;
        PER_CHANGE + PER_BYTE * bytes
    }
}

/// Splits `changes` into parts that can be written between two syncs, in order. A part has at least one change.
pub(super) fn windows(changes: &[Change]) -> Vec<&[Change]> {
    let (mut parts, mut rest) = (Vec::new(), changes);
    while let Some(first) = rest.first() {
        let mut filled = first.estimated_bytes();
        let fits = |change: &&Change| {
            filled += change.estimated_bytes();
            filled <= WINDOW
        };
        let (part, following) = rest.split_at(1 + rest[1..].iter().take_while(fits).count());
        parts.push(part);
        rest = following;
    }
    parts
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn change(key: u8, value: Option<usize>, replaces: u64) -> Change {
        Change { key: vec![key], value: value.map(|length| vec![key; length]), replaces }
    }

    #[test]
    fn windows_keep_the_order_and_stay_below_the_limit() {
        let many = |count, value, replaces| (0..count).map(|key| change(key, value, replaces)).collect();
        for (changes, expected) in [
            (vec![], vec![]),
            (many(1, Some(100), 0), vec![1]),
            // Many short values, where the leaves dominate; few long ones, where the bytes do.
            (many(100, Some(10), 0), vec![41, 41, 18]),
            (many(20, Some(2048), 0), vec![8, 8, 4]),
            (many(20, None, 2048), vec![8, 8, 4]),
            (many(9, Some(2048), 2048), vec![4, 4, 1]),
            // A change that is too long by itself gets a window of its own.
            (vec![change(1, Some(1), 0), change(2, Some(SEGMENT), 0), change(3, None, 1)], vec![1, 1, 1]),
        ] {
            let parts = windows(&changes);
            assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), expected);
            assert_eq!(parts.concat(), changes);
            assert!(parts.iter().all(|part| part.len() == 1 || estimated_bytes(part) <= WINDOW));
        }
    }
}
