//! The journal: where a transaction is durable before sled has it on the disk.
//!
//! A transaction is written here and synced, which decides that it happens. Then it goes
//! into sled's tree, whose log is synced now and then; until it is, whoever opens the files
//! next takes in what sled may lack. Then the journal begins anew, over what it held.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use prost::Message;

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
}

/// Where the journal ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct End {
    /// Of the last transaction.
    pub(super) number: u64,
    offset: u64,
}

impl End {
    /// What the journal holds up to this transaction is not needed any more.
    pub(super) fn anew(number: u64) -> Self {
        Self { number, offset: 0 }
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
        let page = Page { number: end.number + 1, changes };
        let mut written = vec![0; HEADER];
        page.encode(&mut written).map_err(io::Error::other)?;
        let (header, body) = written.split_at_mut(HEADER);
        header[4..].copy_from_slice(&(body.len() as u64).to_be_bytes());
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&header[4..]);
        checksum.update(body);
        header[..4].copy_from_slice(&checksum.finalize().to_be_bytes());
        let next = End { number: page.number, offset: end.offset + written.len() as u64 };
        // No header is like this. Without it, what is left of earlier transactions would
        // come next, which is bytes of somebody's choice.
        written.extend([0; HEADER]);
        self.file.write_all_at(&written, end.offset)?;
        Ok((page, next))
    }

    /// The transactions since the journal began anew. If the last one was cut short, it
    /// was never synced, and did not happen.
    pub(super) fn read(&self) -> io::Result<Vec<Page>> {
        // The kernel counts what it failed to write as written: ask the disk.
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)?;
        let mut written = vec![0; self.file.metadata()?.len() as usize];
        self.file.read_exact_at(&mut written, 0)?;
        Ok(decode(&written))
    }
}

fn decode(mut written: &[u8]) -> Vec<Page> {
    let mut pages: Vec<Page> = Vec::new();
    while let Some((page, rest)) = decode_first(written)
        && pages.last().is_none_or(|last| page.number == last.number + 1)
    {
        pages.push(page);
        written = rest;
    }
    pages
}

fn decode_first(written: &[u8]) -> Option<(Page, &[u8])> {
    let (checksum, rest) = written.split_first_chunk::<4>()?;
    let (length, body) = rest.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
    let (body, further) = body.split_at_checked(length)?;
    if crc32fast::hash(&rest[..8 + length]) != u32::from_be_bytes(*checksum) {
        return None;
    }
    Some((Page::decode(body).ok()?, further))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: u8, value: Option<usize>, replaces: u64) -> Change {
        Change { key: vec![key], value: value.map(|length| vec![key; length]), replaces }
    }

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
        let (short, mut end) = journal.write(End::anew(end.number), long.changes[1..].to_vec()).unwrap();
        assert_eq!(journal.read().unwrap(), [short.clone()]);
        let written = fs::read(journal_of(directory.path())).unwrap();
        for damaged in 0..end.offset as usize {
            let mut written = written.clone();
            written[damaged] ^= 1;
            assert_eq!(decode(&written), vec![], "byte {damaged}");
            assert_eq!(decode(&written[..damaged]), vec![], "cut before byte {damaged}");
        }
        // One that is damaged takes those behind it along.
        let mut pages = vec![short];
        let mut ends = vec![end];
        for key in 5..8 {
            let (page, next) = journal.write(end, vec![change(key, Some(10), 0)]).unwrap();
            end = next;
            pages.push(page);
            ends.push(end);
        }
        let mut written = fs::read(journal_of(directory.path())).unwrap();
        assert_eq!(decode(&written), pages);
        written[ends[1].offset as usize + HEADER] ^= 1;
        assert_eq!(decode(&written), pages[..2]);
    }

    #[test]
    fn a_transaction_that_lies_within_another_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        let (short, end) = journal.write(End::anew(8), vec![change(1, Some(3), 0)]).unwrap();
        // As written behind it, and hence where the page before ends, by whoever chose a value.
        let (_, forged) = journal.write(end, vec![change(2, Some(3), 0)]).unwrap();
        let length = (forged.offset - end.offset) as usize;
        let mut forged = vec![0; length];
        journal.file.read_exact_at(&mut forged, end.offset).unwrap();
        let mut value = vec![0; 256];
        for at in 0..value.len() - length {
            value[at..at + length].copy_from_slice(&forged);
            let change = Change { key: vec![9], value: Some(value.clone()), replaces: 0 };
            journal.write(End::anew(4), vec![change]).unwrap();
            let (again, _) = journal.write(End::anew(8), short.changes.clone()).unwrap();
            assert_eq!(journal.read().unwrap(), [again], "{at}");
        }
    }
}
