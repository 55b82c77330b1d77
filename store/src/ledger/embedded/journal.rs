//! The journal: every commit as one frame, in segments. It makes commits durable, and it is the history of changes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use muster_proto::record::Kind;
use muster_store_core::fingerprint::Fingerprint;
use muster_store_core::history::{Commit, Revision, StoredChange};
use uuid::Uuid;

use super::acknowledged::{Acknowledged, Mark};
use super::damage::{Damage, ReadError};
use super::disk::{Disk, at};
use super::format::StoreId;
use super::frame::{self, Body, Header, Position};
use super::segment::{FrameIndex, START, Segment, SegmentEnd, SegmentHeader};
use crate::ledger::LedgerError;

/// The length of a segment, unless one frame needs more. Retention deletes whole segments.
pub(super) const SEGMENT: u64 = 8 << 20;
/// The same on a disk that is short of space: deletions must go on there, and old segments are freed sooner.
pub(super) const SHORT_SEGMENT: u64 = 1 << 20;

/// How many frames are looked up at once.
const LOOKED_UP: usize = 64;

/// The end of the journal.
struct Tail {
    segment: Arc<Segment>,
    length: u64,
    offset: u64,
    next: Position,
    head: Revision,
    compacted: Revision,
    /// Of all records after the newest frame; `None` before the first.
    fingerprint: Option<Fingerprint>,
    /// A write failed, and what reached the disk is not known: the next commit needs a new segment.
    failed: bool,
}

impl Tail {
    fn newest(&self) -> Head {
        let Position { number, previous_hash } = self.next;
        Head { number: number - 1, hash: previous_hash, revision: self.head, compacted: self.compacted }
    }
}

/// What is collected while segments are read.
#[derive(Default)]
struct Scan {
    /// The last acknowledged frame, if it is looked for.
    mark: Option<Mark>,
    is_mark_found: bool,
    compacted: Revision,
    fingerprint: Option<Fingerprint>,
}

impl Scan {
    /// Reads a segment, up to the frame that its successor has in its place: that one was never acknowledged.
    fn segment(&mut self, segment: &Segment, ends_before: Option<Position>) -> Result<SegmentEnd, ReadError> {
        let mut abandoned: Option<SegmentEnd> = None;
        self.compacted = segment.header.compacted;
        let end = segment.scan(|header, offset| {
            let next = Position { number: header.number, previous_hash: header.previous_hash };
            if abandoned.is_none() && ends_before == Some(next) {
                let head = header.base;
                abandoned = Some(SegmentEnd { offset, next, head, is_clean: false, is_followed: false });
            }
            if abandoned.is_some() {
                return Ok(());
            }
            if let Some(mark) = self.mark
                && mark.number == header.number
            {
                if mark.hash != header.hash() {
                    let what = format!("frame {} is not the one that was acknowledged", header.number);
                    return Err(Damage::at(&segment.path, offset, what).into());
                }
                self.is_mark_found = true;
            }
            (self.compacted, self.fingerprint) = (header.compacted, Some(header.fingerprint));
            Ok(())
        })?;
        if let Some(end) = abandoned {
            segment.abandon_from(end.next.number);
        }
        Ok(abandoned.unwrap_or(end))
    }

    fn tail(self, segment: Arc<Segment>, end: SegmentEnd, length: u64) -> Tail {
        Tail {
            segment,
            length,
            offset: end.offset,
            next: end.next,
            head: end.head,
            compacted: self.compacted,
            fingerprint: self.fingerprint,
            // Frames are appended only to zeros: what else lies there is left as it is.
            failed: !end.is_clean,
        }
    }
}

/// The place of a frame, and what it led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Of the newest frame.
    pub(super) number: u64,
    /// The hash of its header.
    pub(super) hash: u64,
    pub(super) revision: Revision,
    pub(super) compacted: Revision,
}

impl Head {
    /// Before the first frame.
    pub(super) const EMPTY: Head = Head { number: 0, hash: 0, revision: 0, compacted: 0 };
}

/// All segments of the journal.
pub(super) struct Journal {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    store: StoreId,
    /// `None` if the journal is only read.
    acknowledged: Option<Acknowledged>,
    segments: RwLock<BTreeMap<u64, Arc<Segment>>>,
    tail: Mutex<Tail>,
}

impl Journal {
    /// Creates an empty journal that continues after `head`.
    pub(super) fn create(
        disk: Arc<dyn Disk>,
        directory: &Path,
        store: StoreId,
        head: Head,
    ) -> io::Result<Self> {
        at(directory, disk.create_dir(directory))?;
        let mark = Mark { number: head.number, hash: head.hash };
        let acknowledged = Acknowledged::create(&*disk, directory, store, mark)?;
        let next = Position { number: head.number + 1, previous_hash: head.hash };
        let header = new_header(store, 1, next, head.revision, head.compacted);
        let segment = Arc::new(Segment::create(&*disk, directory, header, SEGMENT)?);
        Ok(Self::of(disk, directory, store, Some(acknowledged), vec![segment], |segment| Tail {
            segment,
            length: SEGMENT,
            offset: START,
            next,
            head: head.revision,
            compacted: head.compacted,
            fingerprint: None,
            failed: false,
        }))
    }

    fn of(
        disk: Arc<dyn Disk>,
        directory: &Path,
        store: StoreId,
        acknowledged: Option<Acknowledged>,
        segments: Vec<Arc<Segment>>,
        tail: impl FnOnce(Arc<Segment>) -> Tail,
    ) -> Self {
        let last = Arc::clone(segments.last().expect("a journal has a segment"));
        let segments = segments.into_iter().map(|segment| (segment.header.sequence, segment)).collect();
        let tail = Mutex::new(tail(last));
        let directory = directory.to_owned();
        Self { disk, directory, store, acknowledged, segments: RwLock::new(segments), tail }
    }

    /// Opens the journal and reads all of it.
    ///
    /// Nothing is written. What is missing, or damaged and was acknowledged, is an error.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        store: StoreId,
        writable: bool,
    ) -> Result<Self, ReadError> {
        let (acknowledged, mark) = Acknowledged::open(&*disk, directory, store, writable)?;
        let segments = open_segments(&*disk, directory, store, writable)?;
        let mut scan = Scan { mark: Some(mark), ..Default::default() };
        scan.is_mark_found = segments[0].header.first.number > mark.number;
        let mut last: Option<SegmentEnd> = None;
        for (index, segment) in segments.iter().enumerate() {
            if last.is_some_and(|end| !segment.continues(&end)) {
                let first = segment.header.first.number;
                let what = format!("the segment continues after frame {}, which is not before it", first - 1);
                return Err(Damage::at(&segment.path, 0, what).into());
            }
            let ends_before = segments.get(index + 1).map(|next| next.header.first);
            let end = scan.segment(segment, ends_before)?;
            let (is_complete, what) = match ends_before {
                Some(next) => (end.next == next, "and others follow it"),
                None => (end.next.number > mark.number && !end.is_followed, "and was acknowledged"),
            };
            if !is_complete {
                let what = format!("frame {} is damaged or missing, {what}", end.next.number);
                return Err(Damage::at(&segment.path, end.offset, what).into());
            }
            last = Some(end);
        }
        let (Some(end), Some(segment)) = (last, segments.last()) else { unreachable!("there is a segment") };
        if !scan.is_mark_found {
            let what = format!("frame {} was acknowledged and is not in the journal", mark.number);
            return Err(Damage::at(&segment.path, end.offset, what).into());
        }
        let length = segment.file.len().map_err(|e| ReadError::io(&segment.path, 0, e))?;
        Ok(Self::of(disk, directory, store, Some(acknowledged), segments, |segment| {
            scan.tail(segment, end, length)
        }))
    }

    /// The parts of a damaged journal that are undamaged in themselves, oldest first, and what is damaged. They can only
    /// be read.
    pub(super) fn open_parts(
        disk: &Arc<dyn Disk>,
        directory: &Path,
        store: StoreId,
    ) -> Result<(Vec<Self>, Vec<String>), ReadError> {
        let (mut parts, mut damages) = (Vec::new(), Vec::new());
        if let Err(error) = Acknowledged::open(&**disk, directory, store, false) {
            damages.push(error.to_string());
        }
        let mut part: Vec<Arc<Segment>> = Vec::new();
        let (mut scan, mut last) = (Scan::default(), None);
        let mut finish = |part: &mut Vec<Arc<Segment>>, scan: &mut Scan, end: Option<SegmentEnd>| {
            let (segments, scan) = (std::mem::take(part), std::mem::take(scan));
            if let (false, Some(end)) = (segments.is_empty(), end) {
                let disk = Arc::clone(disk);
                parts.push(Self::of(disk, directory, store, None, segments, |last| scan.tail(last, end, 0)));
            }
        };
        let sequences = sequences(&**disk, directory)?;
        let opened: Vec<_> = sequences
            .iter()
            .map(|sequence| Segment::open(&**disk, directory.join(Segment::file_name(*sequence)), false))
            .collect();
        let firsts: Vec<_> =
            opened.iter().map(|segment| segment.as_ref().ok().map(|segment| segment.header.first)).collect();
        for (index, segment) in opened.into_iter().enumerate() {
            let ends_before = firsts.get(index + 1).copied().flatten();
            let scanned = segment.and_then(|segment| {
                let is_next = last.is_some_and(|end| segment.continues(&end));
                if !is_next {
                    finish(&mut part, &mut scan, last.take());
                }
                let end = scan.segment(&segment, ends_before)?;
                Ok((segment, end))
            });
            match scanned {
                Ok((segment, end)) => {
                    if ends_before.is_some_and(|next| next != end.next) || end.is_followed {
                        let what = format!("frame {} is damaged or missing", end.next.number);
                        damages.push(Damage::at(&segment.path, end.offset, what).to_string());
                    }
                    part.push(Arc::new(segment));
                    last = Some(end);
                }
                Err(error) => {
                    damages.push(error.to_string());
                    finish(&mut part, &mut scan, last.take());
                }
            }
        }
        finish(&mut part, &mut scan, last);
        Ok((parts, damages))
    }

    /// Makes what was read durable, so that it counts as acknowledged.
    pub(super) fn adopt(&self) -> io::Result<()> {
        let tail = self.tail();
        at(&tail.segment.path, tail.segment.file.sync())?;
        let (number, hash) = (tail.next.number - 1, tail.next.previous_hash);
        let Some(acknowledged) = &self.acknowledged else { return Ok(()) };
        acknowledged.write(Mark { number, hash })?;
        acknowledged.sync()
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest frame.
    pub(super) fn head(&self) -> Head {
        self.tail().newest()
    }

    /// The newest frame, and the fingerprint of all records after it, if there is one.
    pub(super) fn head_and_fingerprint(&self) -> (Head, Option<Fingerprint>) {
        let tail = self.tail();
        (tail.newest(), tail.fingerprint)
    }

    /// The hash of a frame's header, as its successor has it.
    pub(super) fn hash_of(&self, number: u64) -> Result<Option<u64>, LedgerError> {
        if number == self.head().number {
            return Ok(Some(self.head().hash));
        }
        if number == self.first_base().number {
            return Ok(Some(self.first_base().hash));
        }
        let mut hash = None;
        self.read_frames(number + 1, number + 1, |_, header, _| {
            hash = Some(header.previous_hash);
            Ok(())
        })?;
        Ok(hash)
    }

    /// Whether a commit of this length needs a new segment.
    pub(super) fn needs_segment(&self, bytes: u64) -> bool {
        let tail = self.tail();
        tail.failed || tail.offset + bytes > tail.length
    }

    /// Appends a commit; durable when it returns. Returns the length of its frame.
    pub(super) fn append(&self, commit: &Commit) -> Result<u64, LedgerError> {
        let mut tail = self.tail();
        if commit.base != tail.head {
            return Err(LedgerError::Conflict { expected: commit.base, found: tail.head });
        }
        let compacted = commit.compaction.as_ref().map_or(tail.compacted, |compaction| compaction.up_to);
        let encode = |tail: &Tail| {
            let header = &tail.segment.header;
            frame::encode(commit, compacted, header.id, tail.next, header.base + 1)
        };
        let (mut header, mut bytes) = encode(&tail);
        if tail.failed || tail.offset + bytes.len() as u64 > tail.length {
            // In a segment of its own every change may need its previous version.
            let previous: usize = commit
                .changes
                .iter()
                .filter_map(|(_, change)| change.previous_record.as_ref())
                .map(Bytes::len)
                .sum();
            self.begin_segment(&mut tail, (bytes.len() + previous) as u64).map_err(failed)?;
            (header, bytes) = encode(&tail);
        }
        let (segment, offset) = (Arc::clone(&tail.segment), tail.offset);
        let written = segment.file.write_all_at(&bytes, offset).and_then(|()| segment.file.sync());
        if let Err(error) = at(&segment.path, written) {
            tail.failed = true;
            return Err(failed(error));
        }
        let frame = FrameIndex { offset, len: bytes.len() as u64, head: header.head };
        segment.push(frame);
        tail.offset += frame.len;
        tail.head = header.head;
        tail.compacted = compacted;
        tail.fingerprint = Some(header.fingerprint);
        tail.next = Position { number: header.number + 1, previous_hash: header.hash() };
        let mark = Mark { number: header.number, hash: tail.next.previous_hash };
        if let Some(acknowledged) = &self.acknowledged
            && let Err(error) = acknowledged.write(mark)
        {
            // The commit is durable all the same. An older mark only finds less damage.
            tracing::warn!(%error, "the mark of the last acknowledged commit could not be written");
        }
        Ok(frame.len)
    }

    /// Begins a new segment after the last acknowledged frame. What a failed write left behind it is never read.
    pub(super) fn recover(&self) -> Result<(), LedgerError> {
        let mut tail = self.tail();
        if tail.failed {
            self.begin_segment(&mut tail, 0).map_err(failed)?;
        }
        Ok(())
    }

    fn begin_segment(&self, tail: &mut Tail, frame: u64) -> io::Result<()> {
        let is_short = self.disk.available(&self.directory)? < 3 * SEGMENT;
        let length = if is_short { SHORT_SEGMENT } else { SEGMENT }.max(START + frame + 4096);
        let header = {
            let sequence = tail.segment.header.sequence + 1;
            new_header(self.store, sequence, tail.next, tail.head, tail.compacted)
        };
        // A mark that a crash would lose could not find damage in the segment that ends here.
        self.acknowledged.as_ref().map_or(Ok(()), Acknowledged::sync)?;
        let segment = Arc::new(Segment::create(&*self.disk, &self.directory, header, length)?);
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        segments.insert(header.sequence, Arc::clone(&segment));
        (tail.segment, tail.length, tail.offset, tail.failed) = (segment, length, START, false);
        Ok(())
    }

    fn segments_after(&self, revision: Revision) -> Vec<Arc<Segment>> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segments.values().filter(|segment| segment.head() > revision).cloned().collect()
    }

    /// The first revision that can be read.
    pub(super) fn first_base(&self) -> Head {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let (_, first) = segments.first_key_value().expect("a journal has a segment");
        let Position { number, previous_hash } = first.header.first;
        Head { number: number - 1, hash: previous_hash, revision: first.header.base, compacted: 0 }
    }

    /// Calls `each` with the frames `from..=to` by number.
    pub(super) fn read_frames(
        &self,
        from: u64,
        to: u64,
        mut each: impl FnMut(&Segment, &Header, Body) -> Result<(), LedgerError>,
    ) -> Result<(), LedgerError> {
        let segments: Vec<_> = {
            let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
            segments.values().filter(|segment| segment.last_number() >= from).cloned().collect()
        };
        for segment in segments {
            for frame in segment.frames_from(from) {
                let (header, body) = segment.read_frame(frame)?;
                if header.number > to {
                    return Ok(());
                }
                each(&segment, &header, segment.decode_body(frame.offset, &body)?)?;
            }
        }
        Ok(())
    }

    /// The number of the first frame that ends after a revision.
    pub(super) fn first_frame_after(&self, revision: Revision) -> u64 {
        // Read first: a frame that is appended in between must not be passed over.
        let next = self.head().number + 1;
        let segment = self.segments_after(revision).into_iter().next();
        segment.map_or(next, |segment| segment.number_after(revision))
    }

    /// At most `limit` changes of one kind after `after` and up to `until`, in order and with the records they replaced,
    /// and the revision up to which there are no others.
    pub(super) fn changes_of(
        &self,
        kind: Kind,
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<(Vec<(Revision, StoredChange)>, Revision), LedgerError> {
        let mut found = Vec::new();
        for segment in self.segments_after(after) {
            let mut from = after;
            loop {
                let frames = segment.frames_after(from, LOOKED_UP);
                let Some(last) = frames.last() else { break };
                from = last.head;
                for frame in frames {
                    let (header, body) = segment.read_frame(frame)?;
                    if header.base >= until {
                        return Ok((found, until.max(after)));
                    }
                    for (revision, mut change) in segment.decode_body(frame.offset, &body)?.changes {
                        if revision <= after || change.kind != kind {
                            continue;
                        }
                        if revision > until {
                            return Ok((found, until.max(after)));
                        }
                        self.resolve_previous(&segment, &mut change)?;
                        found.push((revision, change));
                        if found.len() == limit {
                            return Ok((found, revision));
                        }
                    }
                }
            }
        }
        Ok((found, until.max(after)))
    }

    /// A superseded version of a record. It is either in the change that superseded it, or in the same segment.
    pub(super) fn version(
        &self,
        revision: Revision,
        superseded_by: Revision,
    ) -> Result<Option<Bytes>, LedgerError> {
        let Some(segment) = self.segments_after(superseded_by - 1).into_iter().next() else {
            return Ok(None);
        };
        let Some(change) = change_in(&segment, superseded_by)? else { return Ok(None) };
        match change.previous_record {
            Some(record) => Ok(Some(record)),
            None => Ok(change_in(&segment, revision)?.map(|change| change.record)),
        }
    }

    /// Fills in the record that a change replaced. If the change does not carry it, it is in the same segment.
    pub(super) fn resolve_previous(
        &self,
        segment: &Segment,
        change: &mut StoredChange,
    ) -> Result<(), LedgerError> {
        if change.previous > 0 && change.previous_record.is_none() {
            change.previous_record = change_in(segment, change.previous)?.map(|change| change.record);
        }
        Ok(())
    }

    /// Deletes segments that hold neither a frame after `number` nor history after `compacted`.
    pub(super) fn trim(&self, number: u64, compacted: Revision) -> io::Result<usize> {
        let current = self.tail().segment.header.sequence;
        let obsolete: Vec<_> = {
            let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
            let is_obsolete = |segment: &&Arc<Segment>| {
                segment.header.sequence < current
                    && segment.last_number() <= number
                    && segment.head() <= compacted
            };
            segments.values().take_while(is_obsolete).cloned().collect()
        };
        for segment in &obsolete {
            at(&segment.path, self.disk.remove_file(&segment.path))?;
            let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
            segments.remove(&segment.header.sequence);
        }
        if !obsolete.is_empty() {
            at(&self.directory, self.disk.sync_dir(&self.directory))?;
        }
        Ok(obsolete.len())
    }

    /// The segments that no frame is appended to any more.
    pub(super) fn closed_segments(&self) -> Vec<Arc<Segment>> {
        let current = self.tail().segment.header.sequence;
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segments.values().filter(|segment| segment.header.sequence < current).cloned().collect()
    }
}

/// The change at a revision of this segment.
fn change_in(segment: &Segment, revision: Revision) -> Result<Option<StoredChange>, LedgerError> {
    let Some(frame) = segment.frames_after(revision.saturating_sub(1), 1).into_iter().next() else {
        return Ok(None);
    };
    let (_, body) = segment.read_frame(frame)?;
    let found = frame::decode_change(&body, revision);
    Ok(found.map_err(|what| ReadError::from(Damage::at(&segment.path, frame.offset, what)))?)
}

fn open_segments(
    disk: &dyn Disk,
    directory: &Path,
    store: StoreId,
    writable: bool,
) -> Result<Vec<Arc<Segment>>, ReadError> {
    let sequences = sequences(disk, directory)?;
    if sequences.is_empty() {
        return Err(Damage::at(directory, 0, "the journal has no segment").into());
    }
    let mut segments: Vec<Arc<Segment>> = Vec::new();
    for sequence in sequences {
        let path = directory.join(Segment::file_name(sequence));
        let segment = Segment::open(disk, path, writable)?;
        if segment.header.store != store {
            let what = format!("the segment belongs to the store {}", segment.header.store);
            return Err(Damage::at(&segment.path, 0, what).into());
        }
        if let Some(before) = segments.last()
            && before.header.sequence + 1 != sequence
        {
            let what = format!("the segment before it, {}, is missing", Segment::file_name(sequence - 1));
            return Err(Damage::at(&segment.path, 0, what).into());
        }
        segments.push(Arc::new(segment));
    }
    Ok(segments)
}

/// The numbers of the segments, in order.
fn sequences(disk: &dyn Disk, directory: &Path) -> Result<Vec<u64>, ReadError> {
    let names = disk.list(directory).map_err(|error| ReadError::io(directory, 0, error))?;
    let mut sequences: Vec<u64> =
        names.iter().filter_map(|name| Segment::sequence_of(Path::new(name))).collect();
    sequences.sort_unstable();
    Ok(sequences)
}

fn new_header(
    store: StoreId,
    sequence: u64,
    first: Position,
    base: Revision,
    compacted: Revision,
) -> SegmentHeader {
    SegmentHeader { store, id: *Uuid::new_v4().as_bytes(), sequence, first, base, compacted }
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn failed(error: io::Error) -> LedgerError {
    LedgerError::Failed(format!("the journal: {error}"))
}
