//! The file of the audit log: only ever appended to, and opened again when it was renamed or removed.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_proto::time::Mono;

use crate::clock::SharedClock;

/// How often it is checked whether the file is still the one of its name.
const CHECK: Duration = Duration::from_secs(1);

/// How much memory is kept for the next lines.
const MAX_SPARE: usize = 1 << 20;

/// Lines that are to be written.
#[derive(Default)]
pub(super) struct Unwritten {
    bytes: Vec<u8>,
    /// How many of the bytes are in the file.
    written: usize,
}

impl Unwritten {
    /// To append lines to.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// In another file, a line that is half in the old one is written as a whole.
    fn restart_line(&mut self) {
        let whole = self.bytes[..self.written].iter().rposition(|byte| *byte == b'\n');
        self.written = whole.map_or(0, |end| end + 1);
    }

    fn write_to(&mut self, out: &mut impl Write) -> io::Result<()> {
        while self.written < self.bytes.len() {
            match out.write(&self.bytes[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        out.flush()?;
        self.bytes.clear();
        self.bytes.shrink_to(MAX_SPARE);
        self.written = 0;
        Ok(())
    }
}

/// Where the lines go.
pub(super) enum LogFile {
    StandardOutput,
    File { path: PathBuf, open: Open, clock: SharedClock, checked: Option<Mono> },
}

/// An open file and its identity on the disk.
pub(super) struct Open {
    file: File,
    identity: (u64, u64),
}

impl LogFile {
    /// Opens a file, or standard output for `-`. A new file can be read by its owner only.
    pub(super) fn open(path: &Path, clock: SharedClock) -> io::Result<LogFile> {
        if path == Path::new("-") {
            return Ok(LogFile::StandardOutput);
        }
        let open = open(path)?;
        Ok(LogFile::File { path: path.to_owned(), open, clock, checked: None })
    }

    /// Checks before the next write, however short ago the last check was.
    pub(super) fn expect_rotation(&mut self) {
        if let LogFile::File { checked, .. } = self {
            *checked = None;
        }
        // At once, and not with the next line: what renamed the file may wait for the new one.
        if let Err(error) = self.follow_name(&mut Unwritten::default()) {
            tracing::warn!(file = %self, %error, "the audit log cannot be opened again; it is tried with its next line");
        }
    }

    /// Writes everything. After an error, what was written is not written again.
    pub(super) fn write(&mut self, unwritten: &mut Unwritten) -> io::Result<()> {
        self.follow_name(unwritten)?;
        match self {
            LogFile::StandardOutput => unwritten.write_to(&mut io::stdout().lock()),
            LogFile::File { open, .. } => unwritten.write_to(&mut open.file),
        }
    }

    /// Opens the file again if its name belongs to another file, or to none.
    fn follow_name(&mut self, unwritten: &mut Unwritten) -> io::Result<()> {
        let LogFile::File { path, open: opened, clock, checked } = self else { return Ok(()) };
        let now = clock.mono();
        if checked.is_some_and(|checked| now - checked < CHECK) {
            return Ok(());
        }
        if fs::metadata(&*path).map(|found| identity(&found)).ok() != Some(opened.identity) {
            *opened = open(path)?;
            unwritten.restart_line();
        }
        *checked = Some(now);
        Ok(())
    }
}

impl fmt::Display for LogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogFile::StandardOutput => f.write_str("standard output"),
            LogFile::File { path, .. } => write!(f, "{}", path.display()),
        }
    }
}

fn open(path: &Path) -> io::Result<Open> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let identity = identity(&file.metadata()?);
    Ok(Open { file, identity })
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes and then is full.
    struct Full(Vec<u8>, usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let free = (self.1 - self.0.len()).min(bytes.len());
            if free == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.extend_from_slice(&bytes[..free]);
            Ok(free)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_was_cut_short_goes_on_in_the_same_file_and_is_whole_in_another() {
        let lines = b"first\nsecond\nthird\n";
        for cut in 1..lines.len() {
            let mut unwritten = Unwritten::default();
            unwritten.bytes().extend_from_slice(lines);
            let mut file = Full(Vec::new(), cut);
            assert!(unwritten.write_to(&mut file).is_err());
            let whole = lines[..cut].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);

            file.1 = usize::MAX;
            let mut other = Full(Vec::new(), usize::MAX);
            let mut elsewhere = Unwritten { bytes: unwritten.bytes.clone(), written: unwritten.written };
            elsewhere.restart_line();
            elsewhere.write_to(&mut other).unwrap();
            assert_eq!(other.0, &lines[whole..], "cut after {cut} bytes, in another file");

            unwritten.write_to(&mut file).unwrap();
            assert_eq!(file.0, lines, "cut after {cut} bytes");
            assert!(unwritten.bytes().is_empty());
        }
    }
}
