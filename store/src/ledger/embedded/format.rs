//! The data directory's format tag: that it is a Muster data directory, in which format, and which store it is.
//!
//! It is checked before anything else is read, so that a directory of another program, or of a later Muster, is never
//! written to. A new directory is tagged as being created until its files are there, so that a store whose files are gone
//! is not taken for a new one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use muster_rpc::private_dir;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

/// Identifies a store and its history.
pub type StoreId = Uuid;

const FILE: &str = "MUSTER_FORMAT";
/// Locked by the process that uses the directory.
pub(super) const LOCK: &str = "LOCK";
const MAGIC: &str = "muster-store";
const VERSION: u32 = 6;
/// The format before: each checkpoint had its records in a file of its own. It is read as it is, and its checkpoints are
/// replaced as new ones are written.
const PREVIOUS: u32 = 5;
/// Older formats, which are converted. They kept all history in sled.
const OLDER: [u32; 4] = [1, 2, 3, 4];
const CREATING: &str = "creating";
/// A new volume holds this directory in its root; it does not count as content.
const LOST_AND_FOUND: &str = "lost+found";

/// The decoded tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    /// The directory is empty, or its creation was interrupted.
    New,
    /// A directory of an older format, which has to be converted.
    Older,
    /// A directory of the format before, which can be read as it is.
    Previous(StoreId),
    Current(StoreId),
}

impl Tag {
    /// The store in a directory whose files can be read as they are.
    pub(super) fn store(self) -> Option<StoreId> {
        match self {
            Tag::Previous(store) | Tag::Current(store) => Some(store),
            Tag::New | Tag::Older => None,
        }
    }
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

/// Reads the tag of a data directory.
pub(super) fn read(directory: &Path) -> Result<Tag, FormatError> {
    let unreadable = |source| FormatError::Unreadable { path: directory.to_owned(), source };
    // A temporary tag or a lock that a crash left behind does not make the directory foreign.
    if is_empty_volume(directory, &[&temporary(directory), &directory.join(LOCK)]).map_err(unreadable)? {
        return Ok(Tag::New);
    }
    let path = directory.join(FILE);
    match fs::read(&path) {
        Ok(text) => parse(&String::from_utf8_lossy(&text), path),
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            Err(FormatError::Foreign { path: directory.to_owned() })
        }
        Err(source) => Err(FormatError::Unreadable { path, source }),
    }
}

fn parse(text: &str, path: PathBuf) -> Result<Tag, FormatError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let version = match words[..] {
        [MAGIC, version, ..] => version.parse::<u32>().ok(),
        _ => None,
    };
    let damaged = || FormatError::Damaged { path: path.clone(), found: text.chars().take(64).collect() };
    match (version, &words[..]) {
        (Some(VERSION | PREVIOUS), [_, _, CREATING]) => Ok(Tag::New),
        (Some(version @ (VERSION | PREVIOUS)), [_, _, id, checksum]) => {
            let id = id.parse::<StoreId>().map_err(|_| damaged())?;
            match (*checksum == checksum_of(version, id), version) {
                (true, VERSION) => Ok(Tag::Current(id)),
                (true, _) => Ok(Tag::Previous(id)),
                (false, _) => Err(damaged()),
            }
        }
        (Some(older), [_, _] | [_, _, "used"]) if OLDER.contains(&older) => Ok(Tag::Older),
        (Some(found), _) if ![VERSION, PREVIOUS].contains(&found) && !OLDER.contains(&found) => {
            Err(FormatError::Unknown { path, found: found.to_string() })
        }
        _ => Err(damaged()),
    }
}

fn checksum_of(version: u32, id: StoreId) -> String {
    format!("{:016x}", xxh3_64(format!("{MAGIC} {version} {id}").as_bytes()))
}

/// Whether a directory holds nothing but what a new volume has, and `ours`.
pub fn is_empty_volume(directory: &Path, ours: &[&Path]) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() != LOST_AND_FOUND && !ours.contains(&&*entry.path()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Moves the files of one data directory into another, the tag last: until then the other is not a data directory.
pub fn move_into(from: &Path, directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        if name != FILE && name != LOCK {
            fs::rename(from.join(&name), directory.join(&name))?;
        }
    }
    fs::File::open(directory)?.sync_all()?;
    fs::rename(from.join(FILE), directory.join(FILE))?;
    fs::remove_dir_all(from)?;
    fs::File::open(directory)?.sync_all()
}

/// Tags a directory whose files are about to be created.
pub(super) fn write_creating(directory: &Path) -> io::Result<()> {
    write(directory, &format!("{MAGIC} {VERSION} {CREATING}\n"))
}

/// Tags a directory whose files are complete.
pub(super) fn write_current(directory: &Path, id: StoreId) -> io::Result<()> {
    write(directory, &format!("{MAGIC} {VERSION} {id} {}\n", checksum_of(VERSION, id)))
}

/// Tags a directory of the format before as one of this format.
pub(super) fn update(directory: &Path, id: StoreId) -> Result<(), FormatError> {
    match read(directory)? {
        Tag::Previous(_) => write_current(directory, id)
            .map_err(|source| FormatError::Unreadable { path: directory.to_owned(), source }),
        _ => Ok(()),
    }
}

/// Writes the tag to a temporary file that is then renamed: a crash leaves the old tag or the new one.
fn write(directory: &Path, text: &str) -> io::Result<()> {
    let mut options = private_dir::file_options();
    let mut file = options.write(true).create(true).truncate(true).open(temporary(directory))?;
    file.write_all(text.as_bytes())?;
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
        let id = Uuid::from_u128(7);
        let current = format!("muster-store 6 {id} {}\n", checksum_of(6, id));
        let previous = format!("muster-store 5 {id} {}\n", checksum_of(5, id));
        let mixed = format!("muster-store 5 {id} {}\n", checksum_of(6, id));
        let flipped = current.replace("-0000", "-0001");
        for (content, expected) in [
            (Some("muster-store 1\n"), "Older"),
            (Some("muster-store 4\n"), "Older"),
            (Some("muster-store 4 used\n"), "Older"),
            (Some("muster-store 5 creating\n"), "New"),
            (Some("muster-store 6 creating\n"), "New"),
            (Some(current.as_str()), "Current"),
            (Some(previous.as_str()), "Previous"),
            (Some(mixed.as_str()), "damaged"),
            (Some(flipped.as_str()), "damaged"),
            (Some("muster-store 5\n"), "damaged"),
            (Some("muster-store 6\n"), "damaged"),
            (Some("muster-store 7\n"), "format 7"),
            (Some("muster-store 7 used\n"), "format 7"),
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
            let said = match read(directory.path()) {
                Ok(tag) => format!("{tag:?}"),
                Err(error) => error.to_string(),
            };
            assert!(said.contains(expected), "{content:?}: {said}");
            let tag = fs::read_to_string(directory.path().join(FILE)).ok();
            assert_eq!(tag.as_deref(), content, "reading changes nothing");
        }
    }

    #[test]
    fn no_flipped_bit_of_the_tag_makes_it_another_one() {
        let id = Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
        let text = format!("muster-store 6 {id} {}\n", checksum_of(6, id)).into_bytes();
        for bit in 0..8 * (text.len() - 1) {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let read = parse(&String::from_utf8_lossy(&flipped), PathBuf::new());
            // A letter of the id in the other case is the same id.
            assert!(
                read.is_err() || matches!(read, Ok(Tag::Current(same)) if same == id),
                "bit {bit}: {read:?}"
            );
        }
    }

    #[test]
    fn an_empty_volume_is_new_even_after_a_crash_in_between() {
        for begun in [None, Some(""), Some("muster-s")] {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir(directory.path().join("lost+found")).unwrap();
            if let Some(begun) = begun {
                fs::write(directory.path().join("MUSTER_FORMAT.new"), begun).unwrap();
            }
            assert_eq!(read(directory.path()).unwrap(), Tag::New);
            write_creating(directory.path()).unwrap();
            assert_eq!(read(directory.path()).unwrap(), Tag::New);
            let id = Uuid::new_v4();
            write_current(directory.path(), id).unwrap();
            assert_eq!(read(directory.path()).unwrap(), Tag::Current(id));
        }
    }
}
