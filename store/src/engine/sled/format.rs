//! The data directory's format tag: what lies here, and in which format.
//!
//! It is written before anything else and checked before anything is opened, so
//! that a directory of something else, or of a later Muster, is never written to.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const FILE: &str = "MUSTER_FORMAT";
const MAGIC: &str = "muster-store";
const VERSION: u32 = 1;

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
pub fn check(directory: &Path) -> Result<(), FormatError> {
    let path = directory.join(FILE);
    let text = match fs::read(&path) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            return Err(FormatError::Foreign { path: directory.to_owned() });
        }
        Err(source) => return Err(FormatError::Unreadable { path, source }),
    };
    let version = text.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' ')).map(str::trim_end);
    match version.map(str::parse::<u32>) {
        Some(Ok(VERSION)) => Ok(()),
        Some(Ok(found)) => Err(FormatError::Unknown { path, found: found.to_string() }),
        _ => Err(FormatError::Damaged { path, found: text.chars().take(64).collect() }),
    }
}

/// Checks the tag, or writes it into an empty directory.
pub(super) fn check_or_create(directory: &Path) -> Result<(), FormatError> {
    let unreadable = |source| FormatError::Unreadable { path: directory.to_owned(), source };
    // Written aside and renamed: a crash leaves the whole tag or none, and what
    // was begun aside does not make the directory somebody else's.
    let aside = directory.join(format!("{FILE}.new"));
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        if entry.map_err(unreadable)?.path() != aside {
            return check(directory);
        }
    }
    let mut file = fs::File::create(&aside).map_err(unreadable)?;
    writeln!(file, "{MAGIC} {VERSION}").and_then(|()| file.sync_all()).map_err(unreadable)?;
    fs::rename(&aside, directory.join(FILE)).map_err(unreadable)?;
    fs::File::open(directory).and_then(|dir| dir.sync_all()).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_format_is_taken() {
        for (content, expected) in [
            (Some("muster-store 1\n"), "ok"),
            (Some("muster-store 2\n"), "format 2"),
            (Some("muster-store x\n"), "damaged"),
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
                Ok(()) => "ok".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(said.contains(expected), "{content:?}: {said}");
            let tag = fs::read_to_string(directory.path().join(FILE)).ok();
            assert_eq!(tag.as_deref(), content, "a refusal changes nothing");
        }
    }

    #[test]
    fn an_empty_directory_becomes_ours_even_if_a_crash_cut_it_short() {
        for begun in [None, Some(""), Some("muster-s")] {
            let directory = tempfile::tempdir().unwrap();
            if let Some(begun) = begun {
                fs::write(directory.path().join("MUSTER_FORMAT.new"), begun).unwrap();
            }
            check_or_create(directory.path()).unwrap();
            check(directory.path()).unwrap();
        }
    }
}
