//! Containers' logs: their output, appended to one file per attempt, and limited in size.
//!
//! A container writes to its log itself, so that it needs neither the agent nor its shim. When the log is longer than
//! its limit, [`ContainerLog::check`] moves its front into a file of its own, `<attempt>.log.<offset>`, named after the
//! byte of the whole output that the file begins with. Readers speak of places in the whole output, which rotation does
//! not change.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use muster_agent_core::log_marks::LogMarks;
use rustix::fs::{FallocateFlags, fallocate};

use super::record::{Files, absent_is_fine};

#[cfg(test)]
mod tests;

/// Bytes that are read at once when lines are searched for.
const BLOCK: usize = 64 << 10;

/// How long the log of a container may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// A file longer than this is rotated.
    pub max_bytes: u64,
    /// The files of one attempt, the one that is written to included.
    pub max_files: u32,
}

/// The kubelet's defaults.
impl Default for LogLimits {
    fn default() -> Self {
        Self { max_bytes: 10 << 20, max_files: 5 }
    }
}

impl LogLimits {
    /// The bytes that all files but the one that is written to may have.
    fn rotated_bytes(self) -> u64 {
        self.max_bytes.saturating_mul(u64::from(self.max_files.saturating_sub(1)))
    }
}

/// Opens a log for its writer.
pub fn open(path: &Path) -> io::Result<File> {
    // Appends at the current end: the log may be rotated while a container writes to it.
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Opens a log for a reader, who never waits for a writer.
fn open_to_read(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no file")) }
}

/// The last bytes of a log file, at most `bytes` of them.
pub fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = open_to_read(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text)?;
    Ok(text)
}

/// A part of the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub data: Vec<u8>,
    /// The place behind `data`.
    pub end: u64,
    /// Bytes before `data` that are gone.
    pub skipped: u64,
}

/// The log of one attempt at a container, in all its files.
#[derive(Debug)]
pub struct ContainerLog {
    files: Files,
    /// Locked while the files are read or rotated, so that no reader meets a file that moves.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The place of the first byte of the file that is written to; `None` until it is read from the names of the others.
    base: Option<u64>,
    marks: LogMarks,
}

impl ContainerLog {
    pub fn new(files: Files) -> ContainerLog {
        ContainerLog { files, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how long the log is now, and rotates it if it is too long. A log that does not exist is short enough.
    pub fn check(&self, limits: LogLimits, now: Timestamp) -> io::Result<()> {
        let mut state = self.state();
        let Some(length) = self.length()? else { return Ok(()) };
        let base = self.base(&mut state)?;
        state.marks.note(now, base.saturating_add(length));
        if length > limits.max_bytes {
            let moved = self.rotate(base, length, limits)?;
            state.base = Some(base.saturating_add(moved));
        }
        Ok(())
    }

    /// What follows a place, at most `bytes` of it. A place before the oldest file is moved to that file's beginning.
    pub fn read(&self, from: u64, bytes: usize) -> io::Result<Part> {
        let mut state = self.state();
        let base = self.base(&mut state)?;
        self.read_at(base, from, bytes)
    }

    /// The place behind all that was written.
    pub fn end(&self) -> io::Result<u64> {
        let mut state = self.state();
        let base = self.base(&mut state)?;
        Ok(base.saturating_add(self.length()?.unwrap_or_default()))
    }

    /// The place where the last so many lines begin. A last line without an end counts.
    pub fn last_lines(&self, lines: u64) -> io::Result<u64> {
        let mut state = self.state();
        let base = self.base(&mut state)?;
        let end = base.saturating_add(self.length()?.unwrap_or_default());
        if lines == 0 {
            return Ok(end);
        }
        let (mut found, mut to) = (0, end);
        while to > 0 {
            let from = to.saturating_sub(BLOCK as u64);
            let (begin, data) = self.read_between(base, from, to)?;
            for (i, byte) in data.iter().enumerate().rev() {
                let behind = begin + i as u64 + 1;
                // The end of the last line ends no line before it.
                if *byte == b'\n' && behind < end {
                    found += 1;
                    if found == lines {
                        return Ok(behind);
                    }
                }
            }
            // What comes before is gone.
            if begin > from || data.is_empty() {
                return Ok(begin);
            }
            to = from;
        }
        Ok(0)
    }

    /// The place where the first line begins that may have been written after that time.
    pub fn since(&self, time: Timestamp) -> io::Result<u64> {
        let mut state = self.state();
        let base = self.base(&mut state)?;
        let Some(before) = state.marks.place_at(time).checked_sub(1) else { return Ok(0) };
        // The mark may be within a line, whose beginning is older.
        let (begin, data) = self.read_between(base, before, before + BLOCK as u64)?;
        let line = data.iter().position(|byte| *byte == b'\n');
        Ok(line.map_or(begin, |end| begin + end as u64 + 1))
    }

    /// The length of the file that is written to; `None` if there is none.
    fn length(&self) -> io::Result<Option<u64>> {
        match fs::metadata(self.files.log()) {
            Ok(found) => Ok(Some(found.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn base(&self, state: &mut State) -> io::Result<u64> {
        if let Some(base) = state.base {
            return Ok(base);
        }
        let newest = self.files.rotated_logs()?.pop();
        let base = match newest {
            Some((offset, path)) => offset.saturating_add(fs::metadata(path)?.len()),
            None => 0,
        };
        state.base = Some(base);
        Ok(base)
    }

    fn read_at(&self, base: u64, from: u64, bytes: usize) -> io::Result<Part> {
        if from >= base {
            let file = open_to_read(&self.files.log())?;
            // A container may shorten its own log.
            let from = from.min(base.saturating_add(file.metadata()?.len()));
            return part_of(&file, base, from, from, bytes);
        }
        for (offset, path) in self.files.rotated_logs()? {
            let file = open_to_read(&path)?;
            let end = offset.saturating_add(file.metadata()?.len()).min(base);
            if from < end {
                let bytes = bytes.min(usize::try_from(end - from.max(offset)).unwrap_or(bytes));
                return part_of(&file, offset, from, from.max(offset), bytes);
            }
        }
        let file = open_to_read(&self.files.log())?;
        part_of(&file, base, from, base, bytes)
    }

    /// All that there is between two places, from however many files, and the place where it begins: what was removed is left
    /// out.
    fn read_between(&self, base: u64, from: u64, to: u64) -> io::Result<(u64, Vec<u8>)> {
        let bytes = |from: u64| usize::try_from(to.saturating_sub(from)).unwrap_or(BLOCK);
        let Part { mut data, mut end, .. } = self.read_at(base, from, bytes(from))?;
        let begin = end - data.len() as u64;
        while end < to {
            let part = self.read_at(base, end, bytes(end))?;
            if part.data.is_empty() || part.skipped > 0 {
                break;
            }
            end = part.end;
            data.extend(part.data);
        }
        Ok((begin, data))
    }

    /// Moves the front of the log into files of their own and deletes the oldest ones; returns how many bytes it moved.
    fn rotate(&self, base: u64, length: u64, limits: LogLimits) -> io::Result<u64> {
        let path = self.files.log();
        let log = OpenOptions::new().read(true).write(true).open(&path)?;
        let moved = whole_blocks(length, log.metadata()?.blksize());
        // A container can make its log as long as it likes, with a hole in it: no more is copied than is kept.
        let first = moved.saturating_sub(limits.rotated_bytes());
        let mut from = first;
        while from < moved {
            let to = from.saturating_add(limits.max_bytes.max(1)).min(moved);
            copy(&log, from, to, &self.files.rotated_log(base + from))?;
            from = to;
        }
        // Where the filesystem can cut off the front of a file, nothing is lost that is written meanwhile.
        let moved = if moved > 0 && fallocate(&log, FallocateFlags::COLLAPSE_RANGE, 0, moved).is_ok() {
            moved
        } else {
            self.empty(&log, base, moved)?
        };
        let rotated = self.files.rotated_logs()?;
        let kept = usize::try_from(limits.max_files.saturating_sub(1)).unwrap_or(usize::MAX);
        for (_, path) in rotated.iter().rev().skip(kept) {
            absent_is_fine(fs::remove_file(path))?;
        }
        Ok(moved)
    }

    /// Copies what lies behind `copied` too, and empties the log in place, since its writer has it open. What is written
    /// between the two is lost.
    fn empty(&self, log: &File, base: u64, mut copied: u64) -> io::Result<u64> {
        loop {
            let length = log.metadata()?.len();
            if length <= copied {
                log.set_len(0)?;
                return Ok(copied);
            }
            copy(log, copied, length, &self.files.rotated_log(base + copied))?;
            copied = length;
        }
    }
}

/// The bytes of whole blocks, of which a front of a file can consist. At least one byte of the file must stay.
fn whole_blocks(length: u64, block: u64) -> u64 {
    let block = block.max(1);
    length.saturating_sub(1) / block * block
}

fn part_of(file: &File, base: u64, wanted: u64, from: u64, bytes: usize) -> io::Result<Part> {
    let mut data = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match file.read_at(&mut data[filled..], from - base + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    data.truncate(filled);
    Ok(Part { data, end: from + filled as u64, skipped: from.saturating_sub(wanted) })
}

/// Copies a part of a file to a new file, which replaces what a crash may have left of it.
fn copy(log: &File, from: u64, to: u64, target: &Path) -> io::Result<()> {
    let mut target = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(target)?;
    let mut source = log;
    source.seek(SeekFrom::Start(from))?;
    io::copy(&mut source.take(to - from), &mut target)?;
    Ok(())
}
