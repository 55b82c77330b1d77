//! Containers' logs: appended to one file per attempt, and limited in size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::record::Files;

/// Opens a log for its writer.
pub fn open(path: &Path) -> io::Result<File> {
    // Appends at the current end: the log may be rotated while a container writes to it.
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// The last bytes of a log, at most `bytes` of them.
pub fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text)?;
    Ok(text)
}

/// Rotates a log that exceeds its limit: copies it to the old log, which is replaced, and empties it. Returns whether
/// it did.
///
/// The writer has the file open, so it is copied and emptied in place. What is written between the two is lost.
pub fn cut(files: &Files, limit: u64) -> io::Result<bool> {
    let log = files.log();
    match fs::metadata(&log) {
        Ok(found) if found.len() > limit => {}
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    fs::copy(&log, files.old_log())?;
    OpenOptions::new().write(true).open(&log)?.set_len(0)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_log_is_rotated_under_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::beside(&dir.path().join("0.order"));
        assert!(!cut(&files, 4).unwrap(), "a missing log is short enough");

        let mut writer = open(&files.log()).unwrap();
        writer.write_all(b"four").unwrap();
        assert!(!cut(&files, 4).unwrap());
        writer.write_all(b"five").unwrap();
        assert!(cut(&files, 4).unwrap());
        writer.write_all(b"more").unwrap();
        assert_eq!(fs::read(files.old_log()).unwrap(), b"fourfive");
        assert_eq!(fs::read(files.log()).unwrap(), b"more", "the writer continues in the empty file");
        assert_eq!(tail(&files.log(), 2).unwrap(), b"re");
        assert_eq!(tail(&files.log(), 200).unwrap(), b"more");
    }
}
