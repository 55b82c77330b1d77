//! The data directory's format tag: what lies here, and in which format.
//!
//! It is written before anything else and checked before anything is opened, so
//! that a directory of something else, or of a later Muster, is never written to.
//! Once a commit is on the disk it says that too, so that a store whose files are
//! gone is not taken for a new one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const FILE: &str = "MUSTER_FORMAT";
const MAGIC: &str = "muster-store";
const VERSION: u32 = 4;
/// Formats before, which are brought to the present one. In 1, values lay in pieces so
/// long that sled kept some of them in files that no sync covered; 2 had no journal, and 3
/// had one of a single transaction.
const OUTDATED: [u32; 3] = [1, 2, 3];
const USED: &str = "used";
/// The root of a volume that was just made holds this, and it is nobody's.
const LOST_AND_FOUND: &str = "lost+found";

/// What a data directory says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    /// It has an earlier format.
    pub(super) outdated: bool,
    /// Something was committed here.
    pub(super) used: bool,
}

/// Why a directory is not taken as a data directory.
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
        (Some(found), ..) if found != VERSION && !OUTDATED.contains(&found) => {
            Err(FormatError::Unknown { path, found: found.to_string() })
        }
        (Some(found), None, _) => Ok(Tag { outdated: found != VERSION, used: false }),
        (Some(found), Some(USED), None) => Ok(Tag { outdated: found != VERSION, used: true }),
        _ => Err(FormatError::Damaged { path, found: text.chars().take(64).collect() }),
    }
}

/// Checks the tag, or writes it into an empty directory.
pub(super) fn check_or_create(directory: &Path) -> Result<Tag, FormatError> {
    let unreadable = |source| FormatError::Unreadable { path: directory.to_owned(), source };
    // What was begun aside does not make the directory somebody else's.
    if !is_vacant(directory, &aside(directory)).map_err(unreadable)? {
        return check(directory);
    }
    write(directory, false).map_err(unreadable)?;
    Ok(Tag { outdated: false, used: false })
}

/// Whether there is nothing in a directory but what a new volume has, and `ours`.
pub fn is_vacant(directory: &Path, ours: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() != LOST_AND_FOUND && entry.path() != ours {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Moves the files of one data directory into another, the tag last: until then
/// nobody takes the other for a store.
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

/// Writes the tag of the present format.
///
/// Aside, then renamed: a crash leaves a whole tag or the one before.
pub(super) fn write(directory: &Path, used: bool) -> io::Result<()> {
    let mut file = fs::File::create(aside(directory))?;
    match used {
        true => writeln!(file, "{MAGIC} {VERSION} {USED}"),
        false => writeln!(file, "{MAGIC} {VERSION}"),
    }?;
    file.sync_all()?;
    fs::rename(aside(directory), directory.join(FILE))?;
    fs::File::open(directory)?.sync_all()
}

fn aside(directory: &Path) -> PathBuf {
    directory.join(format!("{FILE}.new"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_format_is_taken() {
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
    fn an_empty_volume_becomes_ours_even_if_a_crash_cut_it_short() {
        for begun in [None, Some(""), Some("muster-s")] {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir(directory.path().join("lost+found")).unwrap();
            if let Some(begun) = begun {
                fs::write(directory.path().join("MUSTER_FORMAT.new"), begun).unwrap();
            }
            let tag = check_or_create(directory.path()).unwrap();
            assert_eq!(tag, Tag { outdated: false, used: false });
            assert_eq!(check(directory.path()).unwrap(), tag);
            write(directory.path(), true).unwrap();
            assert!(check(directory.path()).unwrap().used);
        }
    }
}
