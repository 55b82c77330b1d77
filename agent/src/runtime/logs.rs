//! What containers print: appended to a file of the attempt, and kept to a size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::record::Files;

/// Opens a log for its writer.
pub fn open(path: &Path) -> io::Result<File> {
    // Always at the end, wherever that is now: the log may be cut while a container writes to it.
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// The last bytes of a log, at most so many.
pub fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text)?;
    Ok(text)
}

/// Puts a log that has outgrown its limit aside and begins it anew; the one put aside before is dropped. Whether it was
/// done comes back.
///
/// The writer holds the file open, so it is copied and emptied in place. What is written between the two is lost.
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
    fn a_log_is_cut_under_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::beside(&dir.path().join("0.order"));
        assert!(!cut(&files, 4).unwrap(), "no log is short enough");

        let mut writer = open(&files.log()).unwrap();
        writer.write_all(b"four").unwrap();
        assert!(!cut(&files, 4).unwrap());
        writer.write_all(b"five").unwrap();
        assert!(cut(&files, 4).unwrap());
        writer.write_all(b"more").unwrap();
        assert_eq!(fs::read(files.old_log()).unwrap(), b"fourfive");
        assert_eq!(fs::read(files.log()).unwrap(), b"more", "the writer goes on at the new beginning");
        assert_eq!(tail(&files.log(), 2).unwrap(), b"re");
        assert_eq!(tail(&files.log(), 200).unwrap(), b"more");
    }
}
