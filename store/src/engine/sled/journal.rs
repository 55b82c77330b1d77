//! The journal: where a transaction is durable before sled has it on the disk.
//!
//! A transaction is written here and synced, which decides that it happens. Then it goes
//! into sled's tree, whose log is synced now and then; until it is, whoever opens the files
//! next takes in what sled may lack. Then the journal begins anew, over what it held.
//! A sector of the disk is expected to keep what it had when more is written behind it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use prost::Message;

use super::disk::forget_cached;
use super::window::Change;

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
    /// Drawn when the journal began anew. What is left behind the last page, which may be
    /// bytes of somebody's choice, does not have it. 0 in format 3, where a page stood alone.
    #[prost(fixed64, tag = "3")]
    cycle: u64,
}

/// Where the journal ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    /// Of the last transaction.
    pub(super) number: u64,
    offset: u64,
    cycle: u64,
}

impl End {
    /// What the journal holds up to this transaction is not needed any more.
    pub(super) fn anew(number: u64) -> Self {
        Self { number, offset: 0, cycle: uuid::Uuid::new_v4().as_u64_pair().0 }
    }

    #[cfg(test)]
    pub(super) fn of_format_3(number: u64) -> Self {
        Self { number, offset: 0, cycle: 0 }
    }
}

/// The journal of a data directory.
pub(super) fn journal_of(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Transactions one behind the other, with numbers that grow by one.
pub(super) struct Journal {
    file: File,
}

impl Journal {
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(journal_of(directory))?;
        Ok(Self { file })
    }

    /// Writes the next transaction, and says where the journal ends once that is synced.
    pub(super) fn write(&self, end: End, changes: Vec<Change>) -> io::Result<(Page, End)> {
        let page = Page { number: end.number + 1, changes, cycle: end.cycle };
        let mut written = vec![0; HEADER];
        page.encode(&mut written).map_err(io::Error::other)?;
        let (header, body) = written.split_at_mut(HEADER);
        header[4..].copy_from_slice(&(body.len() as u64).to_be_bytes());
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&header[4..]);
        checksum.update(body);
        header[..4].copy_from_slice(&checksum.finalize().to_be_bytes());
        self.file.write_all_at(&written, end.offset)?;
        let end = End { number: page.number, offset: end.offset + written.len() as u64, ..end };
        Ok((page, end))
    }

    /// The transactions since the journal began anew. If the last one was cut short, it
    /// was never synced, and did not happen. If another one is missing, it is damaged.
    pub(super) fn read(&self) -> io::Result<Vec<Page>> {
        forget_cached(&self.file)?;
        let mut written = vec![0; self.file.metadata()?.len() as usize];
        self.file.read_exact_at(&mut written, 0)?;
        Ok(decode(&written))
    }
}

fn decode(mut written: &[u8]) -> Vec<Page> {
    let mut pages: Vec<Page> = Vec::new();
    while let Some((page, rest)) = decode_first(written) {
        written = rest;
        let Some(page) = page else { continue };
        if pages.first().is_some_and(|first| first.cycle != page.cycle || first.cycle == 0) {
            break;
        }
        pages.push(page);
    }
    pages
}

/// What seems to be the first page, if it is whole, and what lies behind it.
fn decode_first(written: &[u8]) -> Option<(Option<Page>, &[u8])> {
    let (checksum, rest) = written.split_first_chunk::<4>()?;
    let (length, body) = rest.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
    let (body, further) = body.split_at_checked(length)?;
    let is_whole = crc32fast::hash(&rest[..8 + length]) == u32::from_be_bytes(*checksum);
    let page = is_whole.then(|| Page::decode(body).ok()).flatten();
    Some((page, further))
}

#[cfg(test)]
mod tests {
    use super::super::window::tests::change;
    use super::*;

    #[test]
    fn what_was_written_whole_is_read_back_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        assert_eq!(journal.read().unwrap(), vec![]);
        let long = vec![change(1, Some(5000), 3), change(2, None, 4), change(3, Some(0), 0)];
        let (long, end) = journal.write(End::anew(6), long).unwrap();
        assert_eq!((long.number, end.number), (7, 7));
        let (behind, end) = journal.write(end, vec![change(4, None, 0)]).unwrap();
        assert_eq!(journal.read().unwrap(), [long.clone(), behind]);
        // A shorter one takes their place, though the rest of them is still there.
        let (short, end) = journal.write(End::anew(end.number), long.changes[1..].to_vec()).unwrap();
        assert_eq!(journal.read().unwrap(), [short]);
        let written = fs::read(journal_of(directory.path())).unwrap();
        for damaged in 0..end.offset as usize {
            let mut written = written.clone();
            written[damaged] ^= 1;
            assert_eq!(decode(&written), vec![], "byte {damaged}");
            assert_eq!(decode(&written[..damaged]), vec![], "cut before byte {damaged}");
        }
    }

    #[test]
    fn those_behind_a_damaged_one_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        let mut end = End::anew(0);
        let (mut pages, mut ends) = (Vec::new(), vec![0]);
        for key in 0..4 {
            let (page, next) = journal.write(end, vec![change(key, Some(10), 0)]).unwrap();
            pages.push(page);
            ends.push(next.offset as usize);
            end = next;
        }
        let written = fs::read(journal_of(directory.path())).unwrap();
        for damaged in 0..4 {
            let mut written = written.clone();
            written[ends[damaged] + HEADER] ^= 1;
            let mut rest = pages.clone();
            rest.remove(damaged);
            assert_eq!(decode(&written), rest, "page {damaged}");
        }
    }

    #[test]
    fn what_looks_like_a_transaction_within_another_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        let short = || vec![change(1, Some(3), 0)];
        let (_, end) = journal.write(End::anew(8), short()).unwrap();
        // What somebody might expect to come next, chosen as a value beforehand.
        let (_, next) = journal.write(end, vec![change(2, Some(3), 0)]).unwrap();
        let mut forged = vec![0; (next.offset - end.offset) as usize];
        journal.file.read_exact_at(&mut forged, end.offset).unwrap();
        let mut value = vec![0; 256];
        for at in 0..value.len() - forged.len() {
            value[at..at + forged.len()].copy_from_slice(&forged);
            let change = Change { key: vec![9], value: Some(value.clone()), replaces: 0 };
            journal.write(End::anew(4), vec![change]).unwrap();
            let (only, _) = journal.write(End::anew(8), short()).unwrap();
            assert_eq!(journal.read().unwrap(), [only], "{at}");
        }
    }
}
