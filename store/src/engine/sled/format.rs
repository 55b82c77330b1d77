//! The data directory's format tag: that it is a Muster data directory, and in which format.
//!
//! It is written before anything else and checked before anything is opened, so that a directory of another program, or
//! of a later Muster, is never written to. After the first commit it also says that the store was used, so that a store
//! whose files are gone is not treated as a new one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const FILE: &str = "MUSTER_FORMAT";
const MAGIC: &str = "muster-store";
const VERSION: u32 = 4;
/// Older formats, which are converted. In 1, pieces of values were so long that sled kept some of them in files that no
/// sync covered; 2 had no journal; the journal of 3 held a single transaction.
const OLDER: [u32; 3] = [1, 2, 3];
const USED: &str = "used";
/// A new volume holds this directory in its root; it does not count as content.
const LOST_AND_FOUND: &str = "lost+found";

/// The decoded tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    /// The format is an older one.
    pub(super) is_older: bool,
    /// Something was committed here.
    pub(super) used: bool,
}

/// Why a directory cannot be used as a data directory.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error(
        "{path} holds files but no {FILE}: it is not a Muster data directory; give --data-dir an empty or new one"
    )]
    Foreign { path: PathBuf },
    #[error(
        "{path} has format {found}, this version of Muster reads format {VERSION}: use the version that wrote it, or restore a backup"
    )]
    Unknown { path: PathBuf, found: String },
    #[error(
        "{path}: the format tag is damaged ({found:?}); nothing was changed; restore a backup into a new directory"
    )]
    Damaged { path: PathBuf, found: String },
    #[error("{path}: the format tag cannot be read or written: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
}

/// Checks the tag of an existing data directory.
fn check(directory: &Path) -> Result<Tag, FormatError> {
    let path = directory.join(FILE);
    let text = match fs::read(&path) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            return Err(FormatError::Foreign { path: directory.to_owned() });
        }
        Err(source) => return Err(FormatError::Unreadable { path, source }),
    };
    let mut words = text.split_whitespace();
    let (magic, version) = (words.next(), words.next().and_then(|version| version.parse::<u32>().ok()));
    match (version.filter(|_| magic == Some(MAGIC)), words.next(), words.next()) {
        (Some(found), ..) if found != VERSION && !OLDER.contains(&found) => {
            Err(FormatError::Unknown { path, found: found.to_string() })
        }
        (Some(found), None, _) => Ok(Tag { is_older: found != VERSION, used: false }),
        (Some(found), Some(USED), None) => Ok(Tag { is_older: found != VERSION, used: true }),
        _ => Err(FormatError::Damaged { path, found: text.chars().take(64).collect() }),
    }
}

/// Checks the tag, or writes it into an empty directory.
pub(super) fn check_or_create(directory: &Path) -> Result<Tag, FormatError> {
    let unreadable = |source| FormatError::Unreadable { path: directory.to_owned(), source };
    // A temporary tag that a crash left behind does not make the directory foreign.
    if !is_empty_volume(directory, &temporary(directory)).map_err(unreadable)? {
        return check(directory);
    }
    write(directory, false).map_err(unreadable)?;
    Ok(Tag { is_older: false, used: false })
}

/// Whether a directory holds nothing but what a new volume has, and `ours`.
pub fn is_empty_volume(directory: &Path, ours: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() != LOST_AND_FOUND && entry.path() != ours {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Moves the files of one data directory into another, the tag last: until then the other is not a data directory.
pub fn move_into(from: &Path, directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        if name != FILE {
            fs::rename(from.join(&name), directory.join(&name))?;
        }
    }
    fs::File::open(directory)?.sync_all()?;
    fs::rename(from.join(FILE), directory.join(FILE))?;
    fs::remove_dir_all(from)?;
    fs::File::open(directory)?.sync_all()
}

/// Writes the tag of the current format, to a temporary file that is then renamed: a crash leaves the old tag or the new
/// one.
pub(super) fn write(directory: &Path, used: bool) -> io::Result<()> {
    let mut file = fs::File::create(temporary(directory))?;
    match used {
        true => writeln!(file, "{MAGIC} {VERSION} {USED}"),
        false => writeln!(file, "{MAGIC} {VERSION}"),
    }?;
    file.sync_all()?;
    fs::rename(temporary(directory), directory.join(FILE))?;
    fs::File::open(directory)?.sync_all()
}

fn temporary(directory: &Path) -> PathBuf {
    directory.join(format!("{FILE}.new"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_formats_are_accepted() {
        for (content, expected) in [
            (Some("muster-store 1\n"), "ok"),
            (Some("muster-store 2\n"), "ok"),
            (Some("muster-store 2 used\n"), "ok"),
            (Some("muster-store 3\n"), "ok"),
            (Some("muster-store 3 used\n"), "ok"),
            (Some("muster-store 4\n"), "ok"),
            (Some("muster-store 4 used\n"), "ok"),
            (Some("muster-store 5\n"), "format 5"),
            (Some("muster-store 5 used\n"), "format 5"),
            (Some("muster-store x\n"), "damaged"),
            (Some("muster-store 4 lent\n"), "damaged"),
            (Some("another-store 2\n"), "damaged"),
            (Some(""), "damaged"),
            (Some("\u{0}\u{1}"), "damaged"),
            (None, "not a Muster data directory"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("something"), "else").unwrap();
            if let Some(content) = content {
                fs::write(directory.path().join(FILE), content).unwrap();
            }
            let said = match check_or_create(directory.path()) {
                Ok(_) => "ok".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(said.contains(expected), "{content:?}: {said}");
            let tag = fs::read_to_string(directory.path().join(FILE)).ok();
            assert_eq!(tag.as_deref(), content, "a refusal changes nothing");
        }
    }

    #[test]
    fn an_empty_volume_is_initialised_even_after_a_crash_in_between() {
        for begun in [None, Some(""), Some("muster-s")] {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir(directory.path().join("lost+found")).unwrap();
            if let Some(begun) = begun {
                fs::write(directory.path().join("MUSTER_FORMAT.new"), begun).unwrap();
            }
            let tag = check_or_create(directory.path()).unwrap();
            assert_eq!(tag, Tag { is_older: false, used: false });
            assert_eq!(check(directory.path()).unwrap(), tag);
            write(directory.path(), true).unwrap();
            assert!(check(directory.path()).unwrap().used);
        }
    }
}
