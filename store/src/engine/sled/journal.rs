//! The journal: a transaction is durable here before it is durable in sled.
//!
//! A transaction is committed when it is written here and synced. Then it is put into sled's tree, whose log is synced
//! now and then. Until that sync, opening the files replays the journal into sled. After it the journal starts again at
//! its beginning and overwrites its old content. A sector of the disk is expected to keep its content when bytes behind
//! it are written.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use prost::Message;

use super::disk::drop_cached;
use super::sync_window::Change;

const FILE: &str = "journal";
/// Checksum of all that follows, and its length.
const HEADER: usize = 12;

/// A transaction and its number.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
    #[prost(message, repeated, tag = "2")]
    pub(super) changes: Vec<Change>,
    /// A random number, new each time the journal starts again. Old bytes behind the last entry, which a client may have
    /// chosen, do not have it. 0 in format 3, whose journal held one entry.
    #[prost(fixed64, tag = "3")]
    generation: u64,
}

/// Where the journal ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    /// Of the last transaction.
    pub(super) number: u64,
    offset: u64,
    generation: u64,
}

impl End {
    /// The journal starts again: entries up to this transaction are not needed any more.
    pub(super) fn restarted(number: u64) -> Self {
        Self { number, offset: 0, generation: uuid::Uuid::new_v4().as_u64_pair().0 }
    }

    #[cfg(test)]
    pub(super) fn of_format_3(number: u64) -> Self {
        Self { number, offset: 0, generation: 0 }
    }
}

/// The journal of a data directory.
pub(super) fn journal_of(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Transactions one after the other, numbered without gaps.
pub(super) struct Journal {
    file: File,
}

impl Journal {
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(journal_of(directory))?;
        Ok(Self { file })
    }

    /// Writes the next transaction, and returns where the journal ends once that is synced.
    pub(super) fn write(&self, end: End, changes: Vec<Change>) -> io::Result<(Entry, End)> {
        let entry = Entry { number: end.number + 1, changes, generation: end.generation };
        let mut written = vec![0; HEADER];
        entry.encode(&mut written).map_err(io::Error::other)?;
        let (header, body) = written.split_at_mut(HEADER);
        header[4..].copy_from_slice(&(body.len() as u64).to_be_bytes());
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&header[4..]);
        checksum.update(body);
        header[..4].copy_from_slice(&checksum.finalize().to_be_bytes());
        self.file.write_all_at(&written, end.offset)?;
        let end = End { number: entry.number, offset: end.offset + written.len() as u64, ..end };
        Ok((entry, end))
    }

    /// The transactions since the journal started again. A last entry that is cut short was never synced and is not
    /// committed. If an earlier one is missing, the journal is damaged.
    pub(super) fn read(&self) -> io::Result<Vec<Entry>> {
        drop_cached(&self.file)?;
        let mut written = vec![0; self.file.metadata()?.len() as usize];
        self.file.read_exact_at(&mut written, 0)?;
        Ok(decode(&written))
    }
}

fn decode(mut written: &[u8]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    while let Some((entry, rest)) = decode_first(written) {
        written = rest;
        let Some(entry) = entry else { continue };
        if entries.first().is_some_and(|first| first.generation != entry.generation || first.generation == 0)
        {
            break;
        }
        entries.push(entry);
    }
    entries
}

/// The first entry, if its checksum matches, and the bytes behind it.
fn decode_first(written: &[u8]) -> Option<(Option<Entry>, &[u8])> {
    let (checksum, rest) = written.split_first_chunk::<4>()?;
    let (length, body) = rest.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
    let (body, following) = body.split_at_checked(length)?;
    let is_whole = crc32fast::hash(&rest[..8 + length]) == u32::from_be_bytes(*checksum);
    let entry = is_whole.then(|| Entry::decode(body).ok()).flatten();
    Some((entry, following))
}

#[cfg(test)]
mod tests {
    use super::super::sync_window::tests::change;
    use super::*;

    #[test]
    fn complete_entries_are_read_back_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        assert_eq!(journal.read().unwrap(), vec![]);
        let long = vec![change(1, Some(5000), 3), change(2, None, 4), change(3, Some(0), 0)];
        let (long, end) = journal.write(End::restarted(6), long).unwrap();
        assert_eq!((long.number, end.number), (7, 7));
        let (behind, end) = journal.write(end, vec![change(4, None, 0)]).unwrap();
        assert_eq!(journal.read().unwrap(), [long.clone(), behind]);
        // A shorter entry overwrites the first; the bytes behind it are still there.
        let (short, end) = journal.write(End::restarted(end.number), long.changes[1..].to_vec()).unwrap();
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
    fn entries_behind_a_damaged_one_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        let mut end = End::restarted(0);
        let (mut entries, mut ends) = (Vec::new(), vec![0]);
        for key in 0..4 {
            let (entry, next) = journal.write(end, vec![change(key, Some(10), 0)]).unwrap();
            entries.push(entry);
            ends.push(next.offset as usize);
            end = next;
        }
        let written = fs::read(journal_of(directory.path())).unwrap();
        for damaged in 0..4 {
            let mut written = written.clone();
            written[ends[damaged] + HEADER] ^= 1;
            let mut rest = entries.clone();
            rest.remove(damaged);
            assert_eq!(decode(&written), rest, "entry {damaged}");
        }
    }

    #[test]
    fn a_value_that_looks_like_an_entry_is_not_read_as_one() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        let short = || vec![change(1, Some(3), 0)];
        let (_, end) = journal.write(End::restarted(8), short()).unwrap();
        // A client that guesses the next entry could have stored it as a value before.
        let (_, next) = journal.write(end, vec![change(2, Some(3), 0)]).unwrap();
        let mut forged = vec![0; (next.offset - end.offset) as usize];
        journal.file.read_exact_at(&mut forged, end.offset).unwrap();
        let mut value = vec![0; 256];
        for at in 0..value.len() - forged.len() {
            value[at..at + forged.len()].copy_from_slice(&forged);
            let change = Change { key: vec![9], value: Some(value.clone()), replaces: 0 };
            journal.write(End::restarted(4), vec![change]).unwrap();
            let (only, _) = journal.write(End::restarted(8), short()).unwrap();
            assert_eq!(journal.read().unwrap(), [only], "{at}");
        }
    }
}
