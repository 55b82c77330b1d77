//! The journal: where a transaction stands while sled takes it in bit by bit.
//!
//! sled believes that what it has handed to the kernel is safe. It notes so in its
//! log, and uses segments of the log again whose content it has written elsewhere.
//! If more than a segment is written between two of our syncs, power loss can
//! take both the old place and the new one, and with them what was acknowledged long
//! ago. So no more than a window's worth is written between two syncs. A
//! transaction that needs several is written here first and synced, which decides
//! that it happens: whoever opens the files next takes in what sled may lack.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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
/// How much of a segment a window may fill by this reckoning. It is one of averages: in
/// fact a window fills less, and in one case of some hundred thousand up to half as much
/// again. The test of power loss measures it.
const WINDOW: usize = SEGMENT / 2;

impl Change {
    /// How much of the log it takes.
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

const FILE: &str = "journal";
/// Checksum of all that follows, and its length.
const HEADER: usize = 12;

/// A transaction and its number.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Page {
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
    #[prost(message, repeated, tag = "2")]
    pub(super) changes: Vec<Change>,
}

/// The journal of a data directory.
pub(super) fn journal_of(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// One transaction at a time, under a number that grows. sled's tree holds the number
/// of the last one that it has taken in whole.
pub(super) struct Journal {
    file: File,
}

impl Journal {
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(journal_of(directory))?;
        Ok(Self { file })
    }

    /// Writes a transaction over the one before, which sled has by now. Not synced.
    pub(super) fn write(&self, page: &Page) -> io::Result<()> {
        let mut written = vec![0; HEADER];
        page.encode(&mut written).map_err(io::Error::other)?;
        let (header, body) = written.split_at_mut(HEADER);
        header[4..].copy_from_slice(&(body.len() as u64).to_be_bytes());
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&header[4..]);
        checksum.update(body);
        header[..4].copy_from_slice(&checksum.finalize().to_be_bytes());
        self.file.write_all_at(&written, 0)
    }

    /// The transaction that was written last; `None` if there is none, or if it was cut
    /// short, in which case it was never synced, and did not happen.
    pub(super) fn read(&self) -> io::Result<Option<Page>> {
        // The kernel counts what it failed to write as written: ask the disk.
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)?;
        let mut written = vec![0; self.file.metadata()?.len() as usize];
        self.file.read_exact_at(&mut written, 0)?;
        Ok(decode(&written))
    }
}

fn decode(written: &[u8]) -> Option<Page> {
    let (checksum, rest) = written.split_first_chunk::<4>()?;
    let (length, body) = rest.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
    let body = body.get(..length)?;
    if crc32fast::hash(&rest[..8 + length]) != u32::from_be_bytes(*checksum) {
        return None;
    }
    Page::decode(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: u8, value: Option<usize>, replaces: u64) -> Change {
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
        }
    }

    #[test]
    fn what_was_written_whole_is_read_back_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        assert_eq!(journal.read().unwrap(), None);
        let long = vec![change(1, Some(5000), 3), change(2, None, 4), change(3, Some(0), 0)];
        let long = Page { number: 7, changes: long };
        journal.write(&long).unwrap();
        assert_eq!(journal.read().unwrap(), Some(long.clone()));
        // A shorter one takes its place, though the rest of the longer one is still there.
        let short = Page { number: 8, changes: long.changes[1..].to_vec() };
        journal.write(&short).unwrap();
        assert_eq!(journal.read().unwrap(), Some(short));
        let written = fs::read(journal_of(directory.path())).unwrap();
        let length = HEADER + usize::from(written[HEADER - 1]);
        for damaged in 0..length {
            let mut written = written.clone();
            written[damaged] ^= 1;
            assert_eq!(decode(&written), None, "byte {damaged}");
            assert_eq!(decode(&written[..damaged]), None, "cut before byte {damaged}");
        }
    }
}
