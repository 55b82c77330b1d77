//! What is known of a segment in memory: for each block of frames where it is, its numbers and times, and a Bloom filter
//! of the subjects, nodes, zones and rules in it. 1 GiB of decisions has about 3 MiB of index.
//!
//! The index of a segment that is complete is written beside it, so that a start need not read the segment. It has a
//! checksum; if it is missing or wrong, the segment is read.

use std::io;
use std::path::{Path, PathBuf};

use muster_rpc::private_dir;
use muster_store_core::decision_filter::DecisionFilter;
use std::io::Write;

/// Words of a block's Bloom filter.
const WORDS: usize = 16;
/// Bits that a term sets.
const BITS: u32 = 4;
/// `MDIX` and the version of the format.
const MAGIC: [u8; 8] = *b"MDIX\x01\0\0\0";
const ENTRY: usize = 8 * (7 + WORDS);

/// A part of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) length: u64,
    /// It cannot be read. Its numbers and times are those between its neighbours.
    pub(super) is_damaged: bool,
    pub(super) first_id: u64,
    pub(super) last_id: u64,
    /// Microseconds since 1970.
    pub(super) first_time: i64,
    pub(super) last_time: i64,
    terms: [u64; WORDS],
}

impl Block {
    pub(super) fn empty(offset: u64) -> Block {
        Block {
            offset,
            length: 0,
            is_damaged: false,
            first_id: 0,
            last_id: 0,
            first_time: i64::MAX,
            last_time: i64::MIN,
            terms: [0; WORDS],
        }
    }

    /// A part that cannot be read. What is in it is not known, so it may have anything.
    pub(super) fn damaged(offset: u64, length: u64, ids: (u64, u64), times: (i64, i64)) -> Block {
        Block {
            offset,
            length,
            is_damaged: true,
            first_id: ids.0,
            last_id: ids.1,
            first_time: times.0,
            last_time: times.1,
            terms: [u64::MAX; WORDS],
        }
    }

    pub(super) fn add_decision(&mut self, id: u64, time: i64, terms: &[u64]) {
        if self.first_id == 0 {
            self.first_id = id;
        }
        self.last_id = id;
        self.first_time = self.first_time.min(time);
        self.last_time = self.last_time.max(time);
        for bit in terms.iter().flat_map(|term| bits(*term)) {
            self.terms[bit / 64] |= 1 << (bit % 64);
        }
    }

    /// Whether a decision of the block may match.
    pub(super) fn may_match(&self, filter: &DecisionFilter, terms: &[u64]) -> bool {
        let is_in_time = filter.since.is_none_or(|since| self.last_time >= since)
            && filter.until.is_none_or(|until| self.first_time < until);
        let has = |term: &u64| bits(*term).all(|bit| self.terms[bit / 64] & (1 << (bit % 64)) != 0);
        is_in_time && terms.iter().all(has)
    }

    fn words(&self) -> [u64; 7] {
        let Block { offset, length, is_damaged, first_id, last_id, first_time, last_time, .. } = self;
        let times = [first_time.cast_unsigned(), last_time.cast_unsigned()];
        [*offset, *length, u64::from(*is_damaged), *first_id, *last_id, times[0], times[1]]
    }
}

fn bits(term: u64) -> impl Iterator<Item = usize> {
    // Slices of the hash, which is well mixed in its low bits only after a multiplication.
    let mixed = term.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..BITS).map(move |slice| (mixed >> (slice * 16)) as usize % (WORDS * 64))
}

/// The path of the index of a segment.
pub(super) fn path_of(segment: &Path) -> PathBuf {
    segment.with_extension("index")
}

/// Writes the index of a complete segment of that length.
pub(super) fn write(segment: &Path, length: u64, blocks: &[Block]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(16 + blocks.len() * ENTRY + 4);
    bytes.extend(MAGIC);
    bytes.extend(length.to_le_bytes());
    for block in blocks {
        block.words().iter().chain(&block.terms).for_each(|word| bytes.extend(word.to_le_bytes()));
    }
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    let path = path_of(segment);
    let mut file = private_dir::file_options().write(true).create(true).truncate(true).open(path)?;
    file.write_all(&bytes)
}

/// The index of a segment of that length; `None` if there is none that is whole.
pub(super) fn read(segment: &Path, length: u64) -> Option<Vec<Block>> {
    let bytes = std::fs::read(path_of(segment)).ok()?;
    let (content, checksum) = bytes.split_last_chunk::<4>()?;
    let is_whole = u32::from_le_bytes(*checksum) == crc32fast::hash(content);
    let entries = content.strip_prefix(&MAGIC).filter(|_| is_whole)?;
    let (of_segment, entries) = entries.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*of_segment) != length || entries.len() % ENTRY != 0 {
        return None;
    }
    let block = |entry: &[u8]| {
        let mut words = entry
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("a chunk of eight bytes")));
        let mut next = || words.next().expect("an entry has all words");
        Block {
            offset: next(),
            length: next(),
            is_damaged: next() != 0,
            first_id: next(),
            last_id: next(),
            first_time: next().cast_signed(),
            last_time: next().cast_signed(),
            terms: std::array::from_fn(|_| next()),
        }
    };
    Some(entries.chunks_exact(ENTRY).map(block).collect())
}
