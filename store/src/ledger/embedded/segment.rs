//! One file of the journal: a header that says what it follows, and frames.
//!
//! A segment is never changed behind the last frame that was read from it, so opening cannot destroy anything: if the
//! bytes there are not all zero, a new segment is begun.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use bytes::{Buf, BufMut};
use muster_store_core::history::Revision;
use xxhash_rust::xxh3::xxh3_64;

use super::damage::{Damage, ReadError};
use super::disk::{Disk, DiskFile, at};
use super::format::StoreId;
use super::frame::{self, ALIGNMENT, HEADER, Header, Position, SegmentId};

const MAGIC: &[u8; 8] = b"MUSTERJ5";
/// The length of the header. Frames follow it.
pub(super) const START: u64 = 128;
const EXTENSION: &str = "journal";

/// What a segment's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) store: StoreId,
    pub(super) id: SegmentId,
    /// Segments are numbered without gaps.
    pub(super) sequence: u64,
    /// The place of the first frame.
    pub(super) first: Position,
    /// The revision before the first frame.
    pub(super) base: Revision,
    /// The last revision that was compacted before the first frame.
    pub(super) compacted: Revision,
}

impl SegmentHeader {
    fn encode(&self) -> [u8; START as usize] {
        let mut bytes = [0; START as usize];
        let mut rest = &mut bytes[16..];
        rest.put_slice(self.store.as_bytes());
        rest.put_slice(&self.id);
        let Position { number, previous_hash } = self.first;
        for number in [self.sequence, number, previous_hash, self.base, self.compacted] {
            rest.put_u64(number);
        }
        let hash = xxh3_64(&bytes[16..]);
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&hash.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; START as usize] = bytes.first_chunk()?;
        let (start, mut rest) = bytes.split_at(16);
        if start[..8] != *MAGIC || start[8..] != xxh3_64(rest).to_be_bytes() {
            return None;
        }
        let (mut store, mut id) = ([0; 16], [0; 16]);
        rest.copy_to_slice(&mut store);
        rest.copy_to_slice(&mut id);
        let mut next = || rest.get_u64();
        let (sequence, number, previous_hash, base, compacted) = (next(), next(), next(), next(), next());
        let first = Position { number, previous_hash };
        Some(Self { store: StoreId::from_bytes(store), id, sequence, first, base, compacted })
    }
}

/// Where a frame lies in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameIndex {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) head: Revision,
}

/// A segment of the journal.
pub(super) struct Segment {
    pub(super) path: PathBuf,
    pub(super) header: SegmentHeader,
    pub(super) file: Box<dyn DiskFile>,
    frames: RwLock<Vec<FrameIndex>>,
}

/// How the scan of a segment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentEnd {
    /// Behind the last frame.
    pub(super) offset: u64,
    /// The place of the next frame.
    pub(super) next: Position,
    pub(super) head: Revision,
    /// Only zeros follow, so that frames can be appended.
    pub(super) is_clean: bool,
    /// A frame further on is undamaged, so the one at `offset` was written completely once.
    pub(super) is_followed: bool,
}

impl Segment {
    pub(super) fn file_name(sequence: u64) -> String {
        format!("{sequence:010}.{EXTENSION}")
    }

    /// The number of a segment by its file's name.
    pub(super) fn sequence_of(name: &Path) -> Option<u64> {
        let is_segment = name.extension().is_some_and(|extension| extension == EXTENSION);
        is_segment.then(|| name.file_stem()?.to_str()?.parse().ok()).flatten()
    }

    /// Creates a segment of a given length, durably.
    pub(super) fn create(
        disk: &dyn Disk,
        directory: &Path,
        header: SegmentHeader,
        length: u64,
    ) -> io::Result<Self> {
        let path = directory.join(Self::file_name(header.sequence));
        let temporary = path.with_extension("new");
        if let Err(error) = disk.remove_file(&temporary)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let file = at(&temporary, disk.create(&temporary))?;
        at(&temporary, file.allocate(length))?;
        at(&temporary, file.write_all_at(&header.encode(), 0))?;
        at(&temporary, file.sync())?;
        at(&path, disk.rename(&temporary, &path))?;
        at(directory, disk.sync_dir(directory))?;
        Ok(Self { path, header, file, frames: RwLock::default() })
    }

    /// Opens a segment and checks its header.
    pub(super) fn open(disk: &dyn Disk, path: PathBuf, writable: bool) -> Result<Self, ReadError> {
        let file = disk.open(&path, writable).map_err(|error| ReadError::io(&path, 0, error))?;
        let mut bytes = [0; START as usize];
        let read = file.read_at(&mut bytes, 0).map_err(|error| ReadError::io(&path, 0, error))?;
        let Some(header) = SegmentHeader::decode(&bytes[..read]) else {
            return Err(Damage::at(
                &path,
                0,
                "the header of the journal segment does not match its checksum",
            )
            .into());
        };
        if Self::sequence_of(&path) != Some(header.sequence) {
            let what = format!("the file is segment {} by its header", header.sequence);
            return Err(Damage::at(&path, 0, what).into());
        }
        Ok(Self { path, header, file, frames: RwLock::default() })
    }

    /// Reads all frames in order, up to the first that is not whole. `each` gets the header and the offset.
    pub(super) fn scan(
        &self,
        mut each: impl FnMut(&Header, u64) -> Result<(), ReadError>,
    ) -> Result<SegmentEnd, ReadError> {
        let bytes = self.read_all()?;
        let (mut offset, mut next, mut head) = (START, self.header.first, self.header.base);
        while let Some(header) = self.frame_at(&bytes, offset, next, head) {
            each(&header, offset)?;
            self.push(FrameIndex { offset, len: header.frame_len(), head: header.head });
            offset += header.frame_len();
            next = Position { number: next.number + 1, previous_hash: header.hash() };
            head = header.head;
        }
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let is_clean = rest.iter().all(|byte| *byte == 0);
        let is_followed = !is_clean && self.has_frame_behind(rest, next.number);
        Ok(SegmentEnd { offset, next, head, is_clean, is_followed })
    }

    fn read_all(&self) -> Result<Vec<u8>, ReadError> {
        let length = self.file.len().map_err(|error| ReadError::io(&self.path, 0, error))?;
        let mut bytes = vec![0; length as usize];
        let read = self.file.read_at(&mut bytes, 0);
        let read = read.map_err(|error| ReadError::io(&self.path, 0, error))?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// The frame at an offset, if it is whole and continues the chain.
    fn frame_at(&self, bytes: &[u8], offset: u64, next: Position, head: Revision) -> Option<Header> {
        let bytes = bytes.get(offset as usize..)?;
        let header = Header::decode(bytes)?;
        let continues = header.segment == self.header.id
            && header.number == next.number
            && header.previous_hash == next.previous_hash
            && header.base == head;
        let body = bytes.get(HEADER..)?.get(..usize::try_from(header.body_len).ok()?)?;
        (continues && xxh3_64(body) == header.body_hash).then_some(header)
    }

    /// Whether an undamaged header of a later frame follows.
    fn has_frame_behind(&self, rest: &[u8], number: u64) -> bool {
        let candidates = (0..rest.len()).step_by(ALIGNMENT as usize);
        candidates
            .filter_map(|offset| Header::decode(&rest[offset..]))
            .any(|header| header.segment == self.header.id && header.number > number)
    }

    /// Whether this segment continues where another one ends.
    pub(super) fn continues(&self, end: &SegmentEnd) -> bool {
        self.header.first == end.next && self.header.base == end.head
    }

    /// Adds a frame that was written.
    pub(super) fn push(&self, frame: FrameIndex) {
        self.frames.write().unwrap_or_else(PoisonError::into_inner).push(frame);
    }

    /// Forgets frames from a number on: they were never acknowledged, and the next segment continues before them.
    pub(super) fn abandon_from(&self, number: u64) {
        let kept = number.saturating_sub(self.header.first.number) as usize;
        self.frames.write().unwrap_or_else(PoisonError::into_inner).truncate(kept);
    }

    /// The revision after the last frame.
    pub(super) fn head(&self) -> Revision {
        let frames = self.frames.read().unwrap_or_else(PoisonError::into_inner);
        frames.last().map_or(self.header.base, |last| last.head)
    }

    /// The number of the last frame; that of the frame before the segment if it has none.
    pub(super) fn last_number(&self) -> u64 {
        let frames = self.frames.read().unwrap_or_else(PoisonError::into_inner);
        self.header.first.number + frames.len() as u64 - 1
    }

    /// The number of the first frame that ends after a revision.
    pub(super) fn number_after(&self, revision: Revision) -> u64 {
        let frames = self.frames.read().unwrap_or_else(PoisonError::into_inner);
        self.header.first.number + frames.partition_point(|frame| frame.head <= revision) as u64
    }

    /// The frames that end after a revision, in order.
    pub(super) fn frames_after(&self, revision: Revision, limit: usize) -> Vec<FrameIndex> {
        let frames = self.frames.read().unwrap_or_else(PoisonError::into_inner);
        let from = frames.partition_point(|frame| frame.head <= revision);
        frames[from..].iter().take(limit).copied().collect()
    }

    /// The frames from a number on.
    pub(super) fn frames_from(&self, number: u64) -> Vec<FrameIndex> {
        let frames = self.frames.read().unwrap_or_else(PoisonError::into_inner);
        let from = (number.saturating_sub(self.header.first.number) as usize).min(frames.len());
        frames[from..].to_vec()
    }

    /// Reads a frame again and checks it.
    pub(super) fn read_frame(&self, frame: FrameIndex) -> Result<(Header, Vec<u8>), ReadError> {
        let mut bytes = vec![0; frame.len as usize];
        let read = self.file.read_at(&mut bytes, frame.offset);
        let read = read.map_err(|error| ReadError::io(&self.path, frame.offset, error))?;
        bytes.truncate(read);
        let damaged = || Damage::at(&self.path, frame.offset, "a journal frame does not match its checksum");
        let header = Header::decode(&bytes).ok_or_else(damaged)?;
        let body_len = header.body_len as usize;
        let body = bytes.get(HEADER..HEADER + body_len).ok_or_else(damaged)?;
        if header.segment != self.header.id || xxh3_64(body) != header.body_hash {
            return Err(damaged().into());
        }
        bytes.truncate(HEADER + body_len);
        bytes.drain(..HEADER);
        Ok((header, bytes))
    }

    /// Decodes a body, naming the place if that fails.
    pub(super) fn decode_body(&self, offset: u64, body: &[u8]) -> Result<frame::Body, ReadError> {
        frame::decode_body(body).map_err(|what| Damage::at(&self.path, offset, what).into())
    }
}
