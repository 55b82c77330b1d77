//! How much sled may write between two syncs of its log.
//!
//! sled believes that what it has handed to the kernel is safe. It notes so in its
//! log, and uses segments of the log again whose content it has written elsewhere.
//! If more than a segment is written between two of our syncs, power loss can
//! take both the old place and the new one, and with them what was acknowledged long
//! ago. sled does not say how much it has written, so that is reckoned.

use prost::Message;

use super::SEGMENT;

/// What becomes of an entry of sled's tree.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Change {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    /// `None` removes it.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) value: Option<Vec<u8>>,
    /// How long the value is that it has so far.
    #[prost(uint64, tag = "3")]
    pub(super) replaces: u64,
}

/// What sled writes for a change whatever its length, on the average of a window: a share
/// of leaves that are written anew, and of leaves that are moved to empty a segment.
const PER_CHANGE: usize = 6 * 1024;
/// How often sled writes a byte that comes or goes: by itself, when its leaf is gathered,
/// split or merged, and when that is moved. Its neighbours tend to be as long as itself.
const PER_BYTE: usize = 12;
/// How much may be written between two syncs by this reckoning. It is one of averages: in
/// fact a window fills less, and in one case of some hundred thousand up to half as much
/// again. The test of power loss measures it.
pub(super) const WINDOW: usize = SEGMENT / 2;

/// How much of the log changes take.
pub(super) fn reckoned(changes: &[Change]) -> usize {
    changes.iter().map(Change::reckoned).sum()
}

impl Change {
    fn reckoned(&self) -> usize {
        let bytes = self.value.as_ref().map_or(0, Vec::len) + self.replaces as usize;
        PER_CHANGE + PER_BYTE * bytes
    }
}

/// Parts of `changes` that can be written between two syncs, in order. A part has one
/// change at least.
pub(super) fn windows(changes: &[Change]) -> Vec<&[Change]> {
    let (mut parts, mut rest) = (Vec::new(), changes);
    while let Some(first) = rest.first() {
        let mut filled = first.reckoned();
        let fits = |change: &&Change| {
            filled += change.reckoned();
            filled <= WINDOW
        };
        let (part, further) = rest.split_at(1 + rest[1..].iter().take_while(fits).count());
        parts.push(part);
        rest = further;
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
    fn windows_hold_all_in_order_and_no_more_than_they_may() {
        let many = |count, value, replaces| (0..count).map(|key| change(key, value, replaces)).collect();
        for (changes, expected) in [
            (vec![], vec![]),
            (many(1, Some(100), 0), vec![1]),
            // Many short ones, whose leaves count; few long ones, whose bytes do.
            (many(100, Some(10), 0), vec![41, 41, 18]),
            (many(20, Some(2048), 0), vec![8, 8, 4]),
            (many(20, None, 2048), vec![8, 8, 4]),
            (many(9, Some(2048), 2048), vec![4, 4, 1]),
            // One that is too long all by itself is alone.
            (vec![change(1, Some(1), 0), change(2, Some(SEGMENT), 0), change(3, None, 1)], vec![1, 1, 1]),
        ] {
            let parts = windows(&changes);
            assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), expected);
            assert_eq!(parts.concat(), changes);
            assert!(parts.iter().all(|part| part.len() == 1 || reckoned(part) <= WINDOW));
        }
    }
}
