//! One file of the log: frames of decisions, one after the other.
//!
//! A frame has a header with a checksum of its own, so that reading goes on behind a damaged body, and a body of encoded
//! decisions with another. A segment is read once as a whole, which gives its blocks; after that single blocks are read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use muster_proto::pb;
use muster_store_core::decision_filter::{terms_of, time_of};
use prost::Message;

use super::index::Block;

/// `MDEC` in little endian.
const MAGIC: u32 = u32::from_le_bytes(*b"MDEC");
pub(super) const HEADER: usize = 28;
/// A block ends with the frame that makes it at least this long.
pub(super) const BLOCK: u64 = 64 << 10;
/// The longest body: a message of the service is shorter.
const MAX_BODY: u32 = 4 << 20;
/// The extension of a segment.
pub(super) const EXTENSION: &str = "decisions";

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    body: u32,
    first_id: u64,
    count: u32,
    body_checksum: u32,
}

/// Where a segment is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub file: PathBuf,
    pub offset: u64,
}

/// A segment that was read as a whole.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    pub(super) blocks: Vec<Block>,
    /// Up to where its frames follow each other without damage or a torn end.
    pub(super) end: u64,
    /// Whether a part in the middle is damaged; it has a block of its own.
    pub(super) is_damaged: bool,
    pub(super) last: Option<pb::Decision>,
}

/// The path of the segment that begins with that decision.
pub(super) fn path_of(directory: &Path, first_id: u64) -> PathBuf {
    directory.join(format!("{first_id:020}.{EXTENSION}"))
}

/// The first decision of the segment of that path; `None` if it is no segment.
pub(super) fn first_id_of(path: &Path) -> Option<u64> {
    let is_segment = path.extension().is_some_and(|extension| extension == EXTENSION);
    path.file_stem().filter(|_| is_segment)?.to_str()?.parse().ok()
}

/// A frame of these decisions, of which there is at least one.
pub(super) fn frame(decisions: &[pb::Decision]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    for decision in decisions {
        decision.encode_length_delimited(&mut bytes).expect("a vector grows as needed");
    }
    let body = &bytes[HEADER..];
    let header = Header {
        body: u32::try_from(body.len()).expect("a message of the service is shorter"),
        first_id: decisions[0].id,
        count: decisions.len() as u32,
        body_checksum: crc32fast::hash(body),
    };
    bytes[..HEADER].copy_from_slice(&header.encode());
    bytes
}

impl Header {
    fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.body.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first_id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.count.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.body_checksum.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..24]);
        bytes[24..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Header> {
        let bytes: &[u8; HEADER] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let header = Header {
            body: word(4),
            first_id: u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes")),
            count: word(16),
            body_checksum: word(20),
        };
        let is_whole = word(0) == MAGIC && word(24) == crc32fast::hash(&bytes[..24]);
        (is_whole && header.body <= MAX_BODY && header.count > 0).then_some(header)
    }
}

/// The decisions of the frame at the start of `bytes`, and its length; `None` if it is not whole.
fn decode_frame(bytes: &[u8]) -> Option<(Vec<pb::Decision>, usize)> {
    let header = Header::decode(bytes)?;
    let length = HEADER + header.body as usize;
    let mut body = bytes.get(HEADER..length)?;
    if crc32fast::hash(body) != header.body_checksum {
        return None;
    }
    let mut decisions = Vec::with_capacity(header.count as usize);
    while !body.is_empty() {
        decisions.push(pb::Decision::decode_length_delimited(&mut body).ok()?);
    }
    let is_as_said = decisions.len() == header.count as usize && decisions[0].id == header.first_id;
    is_as_said.then_some((decisions, length))
}

/// Reads a whole segment.
pub(super) fn scan(path: &Path) -> io::Result<Scanned> {
    let bytes = std::fs::read(path)?;
    let mut scanned = Scanned::default();
    let (mut at, mut damaged_since) = (0, None);
    let mut block: Option<Block> = None;
    while at < bytes.len() {
        let Some((decisions, length)) = decode_frame(&bytes[at..]) else {
            damaged_since.get_or_insert(at);
            // The next place where a frame could begin.
            let magic = MAGIC.to_le_bytes();
            let next = bytes[at + 1..].windows(4).position(|window| window == magic);
            at = next.map_or(bytes.len(), |next| at + 1 + next);
            continue;
        };
        if let Some(since) = damaged_since.take() {
            scanned.blocks.extend(block.take());
            let before = scanned.blocks.last();
            let first = before.map_or(first_id_of(path).unwrap_or(1), |block| block.last_id + 1);
            let from = before.map_or(i64::MIN, |block| block.last_time);
            let (next, until) = (&decisions[0], time_of(&decisions[0]));
            if first < next.id {
                let ids = (first, next.id - 1);
                scanned.blocks.push(Block::damaged(since as u64, (at - since) as u64, ids, (from, until)));
            }
            scanned.is_damaged = true;
        }
        let open = block.get_or_insert_with(|| Block::empty(at as u64));
        open.add(&decisions, length as u64);
        if open.length >= BLOCK {
            scanned.blocks.extend(block.take());
        }
        scanned.last = decisions.last().cloned();
        at += length;
        scanned.end = at as u64;
    }
    scanned.blocks.extend(block);
    Ok(scanned)
}

/// The decisions of a block, in order.
///
/// # Errors
/// The place of the damage, if the block cannot be read as it was written.
pub(super) fn read_block(file: &File, path: &Path, block: &Block) -> Result<Vec<pb::Decision>, Damage> {
    let damaged = |offset: usize| Damage { file: path.to_owned(), offset: block.offset + offset as u64 };
    if block.is_damaged {
        return Err(damaged(0));
    }
    let mut bytes = vec![0; usize::try_from(block.length).map_err(|_| damaged(0))?];
    file.read_exact_at(&mut bytes, block.offset).map_err(|_| damaged(0))?;
    let (mut at, mut all) = (0, Vec::new());
    while at < bytes.len() {
        let (decisions, length) = decode_frame(&bytes[at..]).ok_or_else(|| damaged(at))?;
        all.extend(decisions);
        at += length;
    }
    Ok(all)
}

impl Block {
    /// Adds a frame that follows the block.
    pub(super) fn add(&mut self, decisions: &[pb::Decision], length: u64) {
        self.length += length;
        for decision in decisions {
            self.add_decision(decision.id, time_of(decision), &terms_of(decision));
        }
    }
}
