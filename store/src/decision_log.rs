//! The log of decisions: segments of checksummed frames in a directory of their own, beside the ledger.
//!
//! Decisions are history and not state, so they are not in the ledger: a store without its log of decisions serves all
//! the same. A batch is one frame, on disk before it is acknowledged. A frame that a crash cut short is removed at the
//! next start; damage in the middle stays where it is, is named by what reads it, and stops nothing else. Retention
//! deletes whole segments.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::pb;
use muster_rpc::clock::SharedClock;
use muster_rpc::private_dir;
use muster_rpc::shutdown::Shutdown;
use muster_store_core::decision_filter::{DecisionFilter, LogEnd, OrderError, already_recorded};
use tokio::sync::watch;

mod index;
mod segment;
#[cfg(test)]
mod tests;

use index::Block;
pub use segment::Damage;

/// The directory of the log in the data directory.
pub const DIRECTORY: &str = "decisions";
/// The length at which a segment is complete, unless a small limit needs shorter ones.
const SEGMENT: u64 = 16 << 20;
/// Segments that a full log has at least, so that retention deletes a small part at a time.
const SEGMENTS: u32 = 16;
/// How often old segments are looked for while nothing is recorded.
const RETENTION_PERIOD: Duration = Duration::from_secs(60);
/// How much is read for one page. A page may be short because of it.
const PAGE_BYTES: u64 = 16 << 20;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub age: Duration,
    pub max_bytes: u64,
}

/// Why decisions were not recorded or read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error("{} is damaged at offset {}: decisions there cannot be read; ask for others by time", .0.file.display(), .0.offset)]
    Damaged(Damage),
    #[error("decisions are kept from {oldest} on, and those after {requested} were requested")]
    Expired { requested: u64, oldest: u64 },
    #[error("the log ends with decision {last_id}, and those after {requested} were requested")]
    Future { requested: u64, last_id: u64 },
    #[error("the log of decisions cannot be written: {0}")]
    Disk(#[from] io::Error),
}

/// One page of decisions, the newest first.
#[derive(Debug, Default, PartialEq)]
pub struct Page {
    pub decisions: Vec<pb::Decision>,
    pub last_id: u64,
    /// Older decisions are before this one; `None` if there are none.
    pub next_before: Option<u64>,
}

/// A segment that is not written any more.
#[derive(Debug)]
struct Complete {
    path: PathBuf,
    length: u64,
    blocks: Vec<Block>,
}

/// The segment that is written.
#[derive(Debug)]
struct Active {
    path: PathBuf,
    file: File,
    length: u64,
    /// The last one is still growing.
    blocks: Vec<Block>,
    began: i64,
}

#[derive(Debug, Default)]
struct State {
    complete: Vec<Arc<Complete>>,
    active: Option<Active>,
    end: LogEnd,
}

/// The log.
#[derive(Debug)]
pub struct DecisionLog {
    directory: PathBuf,
    retention: Retention,
    state: Mutex<State>,
    head: watch::Sender<u64>,
}

impl DecisionLog {
    /// Opens the log of a data directory, or begins one. Cuts off a frame that a crash left incomplete.
    ///
    /// # Errors
    /// When the directory cannot be read or written. Damage is no error: it is named by what reads it.
    pub fn open(data_dir: &Path, retention: Retention) -> io::Result<DecisionLog> {
        let directory = data_dir.join(DIRECTORY);
        if !directory.exists() {
            private_dir::create_dir(&directory)?;
            File::open(data_dir)?.sync_all()?;
        }
        let mut paths: Vec<PathBuf> =
            fs::read_dir(&directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        paths.retain(|path| segment::first_id_of(path).is_some());
        paths.sort();
        let mut state = State::default();
        let last = paths.pop();
        for (index, path) in paths.iter().enumerate() {
            let next = paths.get(index + 1).or(last.as_ref()).and_then(|path| segment::first_id_of(path));
            state.complete.push(Arc::new(open_complete(path.clone(), next.unwrap_or(u64::MAX))?));
        }
        if let Some(path) = last {
            open_last(path, &mut state)?;
        }
        if state.end.last_id == 0 {
            state.end = end_before(&state);
        }
        let head = watch::Sender::new(state.end.last_id);
        Ok(DecisionLog { directory, retention, state: Mutex::new(state), head })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the newest decision, now and after each change.
    pub fn head(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    /// Appends a checked batch, without the decisions that the log has already; returns the newest number. It is on disk
    /// then. Blocks.
    ///
    /// `permitted` is asked while nothing else is appended: who was the leader before cannot append after it was refused.
    ///
    /// # Errors
    /// When it is not permitted, does not follow the log, or cannot be written.
    pub fn append<E: From<LogError>>(
        &self,
        mut batch: Vec<pb::Decision>,
        now: Timestamp,
        permitted: impl FnOnce() -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut state = self.state();
        permitted()?;
        let known = already_recorded(&state.end, &batch).map_err(LogError::from)?;
        batch.drain(..known);
        if let Some(last) = batch.last() {
            let end = end_of(last);
            self.write(&mut state, &batch, now).map_err(LogError::from)?;
            state.end = end;
            self.head.send_replace(state.end.last_id);
        }
        Ok(state.end.last_id)
    }

    fn write(&self, state: &mut State, batch: &[pb::Decision], now: Timestamp) -> io::Result<()> {
        let frame = segment::frame(batch);
        self.roll(state, frame.len() as u64, now)?;
        let active = match &mut state.active {
            Some(active) => active,
            none => none.insert(self.begin(batch[0].id, now)?),
        };
        if active.length == 0 {
            active.began = now.as_microsecond();
        }
        let written = active.file.write_all_at(&frame, active.length).and_then(|()| active.file.sync_data());
        if let Err(error) = written {
            // What reached the file is not known: the next frame goes over it, or into another segment.
            if active.file.set_len(active.length).is_err() {
                self.complete(state);
            }
            return Err(error);
        }
        let is_full = active.blocks.last().is_none_or(|block| block.length >= segment::BLOCK);
        if is_full {
            active.blocks.push(Block::empty(active.length));
        }
        active.blocks.last_mut().expect("it was added").add(batch, frame.len() as u64);
        active.length += frame.len() as u64;
        Ok(())
    }

    /// Begins a new segment.
    fn begin(&self, first_id: u64, now: Timestamp) -> io::Result<Active> {
        let path = segment::path_of(&self.directory, first_id);
        let file =
            private_dir::file_options().read(true).write(true).create(true).truncate(true).open(&path)?;
        File::open(&self.directory)?.sync_all()?;
        Ok(Active { path, file, length: 0, blocks: Vec::new(), began: now.as_microsecond() })
    }

    /// Completes the active segment if it is long or old enough.
    fn roll(&self, state: &mut State, more: u64, now: Timestamp) -> io::Result<()> {
        let longest = SEGMENT.min(self.retention.max_bytes / u64::from(SEGMENTS)).max(segment::BLOCK);
        let oldest = i64::try_from((self.retention.age / SEGMENTS).as_micros()).unwrap_or(i64::MAX);
        let is_over = |active: &Active| {
            let age = now.as_microsecond().saturating_sub(active.began);
            active.length > 0 && (active.length + more > longest || age > oldest)
        };
        if state.active.as_ref().is_some_and(is_over) {
            self.complete(state);
        }
        self.delete_old(state, now)
    }

    fn complete(&self, state: &mut State) {
        let Some(Active { path, length, blocks, .. }) = state.active.take() else { return };
        if let Err(error) = index::write(&path, length, &blocks) {
            tracing::warn!(%error, file = %path.display(), "the index of decisions was not written; the next start reads all of them");
        }
        state.complete.push(Arc::new(Complete { path, length, blocks }));
    }

    /// Deletes what is too old or too much. Blocks.
    ///
    /// # Errors
    /// When a file cannot be deleted.
    pub fn enforce_retention(&self, now: Timestamp) -> io::Result<()> {
        let mut state = self.state();
        self.roll(&mut state, 0, now)
    }

    fn delete_old(&self, state: &mut State, now: Timestamp) -> io::Result<()> {
        let age = i64::try_from(self.retention.age.as_micros()).unwrap_or(i64::MAX);
        let oldest = now.as_microsecond().saturating_sub(age);
        let active = state.active.as_ref().map_or(0, |active| active.length);
        let mut total = active + state.complete.iter().map(|complete| complete.length).sum::<u64>();
        while let Some(first) = state.complete.first() {
            let times = first.blocks.iter().filter(|block| !block.is_damaged).map(|block| block.last_time);
            let is_old = times.max().is_none_or(|last| last < oldest);
            if !is_old && total <= self.retention.max_bytes {
                break;
            }
            remove(&first.path)?;
            remove(&index::path_of(&first.path))?;
            total -= first.length;
            state.complete.remove(0);
        }
        // The name of an empty segment keeps the number of the newest decision.
        if state.complete.is_empty() && state.active.is_none() && state.end.last_id > 0 {
            state.active = Some(self.begin(state.end.last_id + 1, now)?);
        }
        Ok(())
    }

    /// The segments, the oldest first, and the newest number. A segment that is deleted meanwhile is skipped by readers.
    fn snapshot(&self) -> (Vec<Arc<Complete>>, u64) {
        let state = self.state();
        let active = state.active.as_ref().map(|active| {
            let Active { path, length, blocks, .. } = active;
            Arc::new(Complete { path: path.clone(), length: *length, blocks: blocks.clone() })
        });
        (state.complete.iter().cloned().chain(active).collect(), state.end.last_id)
    }

    /// Decisions before a number, the newest first, at most `most`. Blocks.
    ///
    /// # Errors
    /// When a part that may have a match is damaged.
    pub fn list(&self, filter: &DecisionFilter, before: Option<u64>, most: usize) -> Result<Page, LogError> {
        let (segments, last_id) = self.snapshot();
        let terms = filter.terms();
        let mut page = Page { last_id, ..Page::default() };
        let (before, mut left) = (before.unwrap_or(u64::MAX), PAGE_BYTES);
        for complete in segments.iter().rev() {
            let mut file = None;
            for block in complete.blocks.iter().rev() {
                if block.first_id >= before || !block.may_match(filter, &terms) {
                    continue;
                }
                if left < block.length {
                    page.next_before = Some(block.last_id + 1);
                    return Ok(page);
                }
                left -= block.length;
                let Some(open) = open_once(&mut file, &complete.path)? else { break };
                let read = match segment::read_block(open, &complete.path, block) {
                    Ok(read) => read,
                    // What is newer is worth an answer; the next page names the damage.
                    Err(_) if !page.decisions.is_empty() => {
                        page.next_before = page.decisions.last().map(|oldest| oldest.id);
                        return Ok(page);
                    }
                    Err(damage) => return Err(LogError::Damaged(damage)),
                };
                let wanted = |decision: &pb::Decision| decision.id < before && filter.matches(decision);
                for decision in read.into_iter().rev().filter(wanted) {
                    if page.decisions.len() == most {
                        page.next_before = page.decisions.last().map(|oldest| oldest.id);
                        return Ok(page);
                    }
                    page.decisions.push(decision);
                }
            }
        }
        Ok(page)
    }

    /// Decisions after a number, the oldest first, about `most` of them, and up to which number that is complete.
    /// Blocks.
    ///
    /// # Errors
    /// When the next ones are deleted or damaged.
    pub fn read_after(
        &self,
        after: u64,
        filter: &DecisionFilter,
        most: usize,
    ) -> Result<(Vec<pb::Decision>, u64), LogError> {
        let (segments, last_id) = self.snapshot();
        if after > last_id {
            return Err(LogError::Future { requested: after, last_id });
        }
        let first = segments.iter().flat_map(|complete| &complete.blocks).next();
        let oldest = first.map_or(last_id + 1, |block| block.first_id);
        if after > 0 && after + 1 < oldest {
            return Err(LogError::Expired { requested: after, oldest });
        }
        let (mut found, mut reached, terms) = (Vec::new(), after, filter.terms());
        for complete in &segments {
            let mut file = None;
            for block in &complete.blocks {
                if block.last_id <= after {
                    continue;
                }
                if block.may_match(filter, &terms) {
                    let Some(open) = open_once(&mut file, &complete.path)? else {
                        return Err(LogError::Expired { requested: after, oldest });
                    };
                    let read = segment::read_block(open, &complete.path, block).map_err(LogError::Damaged)?;
                    found.extend(
                        read.into_iter().filter(|it| it.id > after && it.id <= last_id && filter.matches(it)),
                    );
                }
                reached = reached.max(block.last_id.min(last_id));
                if found.len() >= most {
                    return Ok((found, reached));
                }
            }
        }
        Ok((found, last_id))
    }

    /// How much the log takes on disk, in bytes.
    pub fn bytes(&self) -> u64 {
        let state = self.state();
        let active = state.active.as_ref().map_or(0, |active| active.length);
        active + state.complete.iter().map(|complete| complete.length).sum::<u64>()
    }
}

/// The end of a log whose last segment has no decision: that of the segment before, else the number before its name.
fn end_before(state: &State) -> LogEnd {
    let before = state.complete.iter().rev().find_map(|complete| Some((complete, complete.blocks.last()?)));
    if let Some((complete, block)) = before {
        let file = File::open(&complete.path).ok();
        let last = file.and_then(|file| segment::read_block(&file, &complete.path, block).ok()?.pop());
        return last.as_ref().map_or(LogEnd { last_id: block.last_id, ..LogEnd::default() }, end_of);
    }
    let first_id = state.active.as_ref().and_then(|active| segment::first_id_of(&active.path));
    LogEnd { last_id: first_id.map_or(0, |first| first.saturating_sub(1)), ..LogEnd::default() }
}

/// Deletes what is too old, also while nothing is recorded.
pub async fn keep_limits(log: Arc<DecisionLog>, clock: SharedClock, shutdown: Shutdown) {
    while !shutdown.is_requested() {
        let (log, now) = (Arc::clone(&log), clock.wall());
        let kept = tokio::task::spawn_blocking(move || log.enforce_retention(now)).await;
        if let Ok(Err(error)) = kept {
            tracing::warn!(%error, "old decisions could not be deleted");
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(RETENTION_PERIOD) => {}
        }
    }
}

fn end_of(last: &pb::Decision) -> LogEnd {
    LogEnd { last_id: last.id, leader: last.leader.clone(), term: last.term }
}

/// Opens a segment that is not the last one; `next` is the first decision behind it.
fn open_complete(path: PathBuf, next: u64) -> io::Result<Complete> {
    let length = fs::metadata(&path)?.len();
    let blocks = match index::read(&path, length) {
        Some(blocks) => blocks,
        None => {
            let scanned = segment::scan(&path)?;
            let mut blocks = scanned.blocks;
            if scanned.end < length {
                // No later frame of this file is whole, and others followed it: it is not a torn end.
                let first =
                    blocks.last().map_or(segment::first_id_of(&path), |block| Some(block.last_id + 1));
                let since = blocks.last().map_or(i64::MIN, |block| block.last_time);
                let ids = (first.unwrap_or(1), next - 1);
                blocks.push(Block::damaged(scanned.end, length - scanned.end, ids, (since, i64::MAX)));
            }
            report(&path, &blocks);
            blocks
        }
    };
    Ok(Complete { path, length, blocks })
}

/// Opens the newest segment. It is continued unless it is damaged.
fn open_last(path: PathBuf, state: &mut State) -> io::Result<()> {
    let scanned = segment::scan(&path)?;
    let length = fs::metadata(&path)?.len();
    report(&path, &scanned.blocks);
    if let Some(last) = &scanned.last {
        state.end = end_of(last);
    }
    if scanned.is_damaged {
        let blocks = scanned.blocks;
        state.complete.push(Arc::new(Complete { path, length, blocks }));
        return Ok(());
    }
    let file = private_dir::file_options().read(true).write(true).open(&path)?;
    if scanned.end < length {
        let cut = length - scanned.end;
        tracing::warn!(file = %path.display(), offset = scanned.end, bytes = cut, "decisions that were not complete are cut off");
        file.set_len(scanned.end)?;
        file.sync_all()?;
    }
    let began = scanned.blocks.first().map_or(i64::MAX, |block| block.first_time);
    state.active = Some(Active { path, file, length: scanned.end, blocks: scanned.blocks, began });
    Ok(())
}

fn report(path: &Path, blocks: &[Block]) {
    for damaged in blocks.iter().filter(|block| block.is_damaged) {
        tracing::error!(
            file = %path.display(), offset = damaged.offset, bytes = damaged.length,
            "the log of decisions is damaged: what is there cannot be read"
        );
    }
}

/// The file, opened at the first use; `None` if retention deleted it meanwhile.
fn open_once<'a>(file: &'a mut Option<File>, path: &Path) -> io::Result<Option<&'a File>> {
    if file.is_none() {
        match File::open(path) {
            Ok(opened) => *file = Some(opened),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(file.as_ref())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
