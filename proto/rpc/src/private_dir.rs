//! Directories and files that only their owner may access: the data of the store, the state of an agent.
//!
//! A process keeps its data only in a directory of its own. One that belongs to another user, or that a symbolic link
//! stands for, is refused: what the process writes there could be read or replaced. One of its own that others may
//! access is made private. What root prepared for another user is fine: a link of root's leads to the state directory of
//! a systemd service with `DynamicUser`.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::process::{getegid, geteuid, getgroups, umask};

/// The mode of a private directory.
const DIRECTORY: u32 = 0o700;
/// The mode of a private file.
const FILE: u32 = 0o600;
/// The access of group and others.
const FOREIGN: u32 = 0o077;

/// Keeps what this process creates from others, also files that libraries create. To be called before any is created.
pub fn restrict_umask() {
    umask(Mode::from_raw_mode(FOREIGN));
}

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateDirError {
    #[error("{flag}: {} is a symbolic link: give the directory itself, {}", path.display(), target.display())]
    Link { flag: &'static str, path: PathBuf, target: PathBuf },
    #[error("{flag}: {} is not a directory", path.display())]
    NotADirectory { flag: &'static str, path: PathBuf },
    #[error(
        "{flag}: {} belongs to user {owner}, and this process runs as user {own}: run it as that user, give it the \
         directory with `chown {own}`, or give another directory",
        path.display()
    )]
    ForeignOwner { flag: &'static str, path: PathBuf, owner: u32, own: u32 },
    #[error(
        "{flag}: {} has files of something else, and others may access it (mode {mode:o}): give a directory of its own, \
         or make it private with `chmod 700`",
        path.display()
    )]
    Shared { flag: &'static str, path: PathBuf, mode: u32 },
    #[error("{flag}: cannot use {}: {error}", path.display())]
    Io { flag: &'static str, path: PathBuf, error: io::Error },
}

/// What a directory's owner, group and mode mean for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Nobody else may access it.
    Private,
    /// It is the process's own, and others may access it.
    Lax,
    /// The volume of a container: it belongs to root, and the process may write to it as a member of its group. That is
    /// how Kubernetes mounts a volume with `fsGroup`.
    Volume,
    Foreign,
}

/// A user and its groups.
struct User {
    uid: u32,
    groups: Vec<u32>,
}

impl User {
    fn current() -> io::Result<User> {
        let mut groups: Vec<u32> = getgroups()?.into_iter().map(rustix::process::Gid::as_raw).collect();
        groups.push(getegid().as_raw());
        Ok(User { uid: geteuid().as_raw(), groups })
    }

    /// Root may do anything to another user. For root itself, nobody's link is better than another's.
    fn trusts_link_of(&self, owner: u32) -> bool {
        owner == 0 && self.uid != 0
    }

    fn access(&self, owner: u32, group: u32, mode: u32) -> Access {
        let is_writable_as = |bits: u32| mode & bits != 0;
        if owner == self.uid {
            if mode & FOREIGN == 0 { Access::Private } else { Access::Lax }
        } else if owner == 0
            && self.groups.contains(&group)
            && is_writable_as(0o020)
            && !is_writable_as(0o002)
        {
            Access::Volume
        } else {
            Access::Foreign
        }
    }
}

/// An existing directory that the process may use.
#[derive(Debug)]
pub struct UsableDir {
    path: PathBuf,
    access: Access,
    mode: u32,
}

/// Checks the directory of a flag. `None` if it does not exist. Nothing is changed.
///
/// # Errors
/// When it is a symbolic link, or belongs to another user. Links in the path to it are fine.
pub fn check(flag: &'static str, path: &Path) -> Result<Option<UsableDir>, PrivateDirError> {
    let failed = |error| PrivateDirError::Io { flag, path: path.to_owned(), error };
    // A slash at the end would follow the link.
    let path: PathBuf = path.components().collect();
    let found = match fs::symlink_metadata(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let user = User::current().map_err(failed)?;
    if found.is_symlink() {
        let target = fs::canonicalize(&path).or_else(|_| fs::read_link(&path)).map_err(failed)?;
        if user.trusts_link_of(found.uid()) {
            return check(flag, &target);
        }
        return Err(PrivateDirError::Link { flag, path, target });
    }
    if !found.is_dir() {
        return Err(PrivateDirError::NotADirectory { flag, path });
    }
    let mode = found.mode() & 0o7777;
    match user.access(found.uid(), found.gid(), mode) {
        Access::Foreign => {
            Err(PrivateDirError::ForeignOwner { flag, path, owner: found.uid(), own: user.uid })
        }
        access => Ok(Some(UsableDir { path, access, mode })),
    }
}

impl UsableDir {
    /// Makes the directory private, and logs it if it was not.
    ///
    /// # Errors
    /// When its mode cannot be changed.
    pub fn restrict(&self) -> io::Result<()> {
        let directory = self.path.display();
        match self.access {
            Access::Private | Access::Foreign => Ok(()),
            Access::Volume => {
                tracing::info!(%directory, "the directory is a volume of root; its group may access it, too");
                Ok(())
            }
            Access::Lax => {
                fs::set_permissions(&self.path, Permissions::from_mode(DIRECTORY))?;
                let mode = format_args!("{:o}", self.mode).to_string();
                tracing::warn!(%directory, mode, "others could access the directory; from now on only its owner can");
                Ok(())
            }
        }
    }

    /// As [`restrict`](Self::restrict), for a directory of which nothing else says that it is the process's: it must be
    /// private already, be empty, or hold one of these files. Otherwise a wrong flag would lock others out of theirs.
    ///
    /// # Errors
    /// When others may access it and it has other files, or its mode cannot be changed.
    pub fn restrict_own(&self, flag: &'static str, files: &[&str]) -> Result<(), PrivateDirError> {
        let failed = |error| PrivateDirError::Io { flag, path: self.path.clone(), error };
        if self.access == Access::Lax && !files.iter().any(|file| self.path.join(file).exists()) {
            let mut entries = fs::read_dir(&self.path).map_err(failed)?.flatten();
            // The root of a volume may hold this directory of the file system.
            if entries.any(|entry| entry.file_name() != "lost+found") {
                return Err(PrivateDirError::Shared {
                    flag,
                    path: self.path.clone(),
                    mode: self.mode & 0o777,
                });
            }
        }
        self.restrict().map_err(failed)
    }
}

/// Creates a directory and its missing parents, all of them private.
///
/// # Errors
/// When one cannot be created.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY).create(path)
}

/// Creates a private directory.
///
/// # Errors
/// When it exists or cannot be created.
pub fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY).create(path)
}

/// Options that create private files.
pub fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE);
    options
}

/// Makes all files and directories below this directory private that belong to the process. Links are not followed.
///
/// # Errors
/// When a directory cannot be read, or a mode cannot be changed.
pub fn restrict_below(directory: &Path) -> io::Result<()> {
    let own = geteuid().as_raw();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let found = entry.metadata()?;
        if found.is_symlink() || found.uid() != own {
            continue;
        }
        if found.mode() & FOREIGN != 0 {
            let mode = if found.is_dir() { DIRECTORY } else { FILE };
            fs::set_permissions(entry.path(), Permissions::from_mode(mode))?;
        }
        if found.is_dir() {
            restrict_below(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const FLAG: &str = "--data-dir";

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn directory(parent: &Path, name: &str, mode: u32) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_directory_is_used_by_its_owner_only() {
        use Access::{Foreign, Lax, Private, Volume};
        let user = User { uid: 7, groups: vec![8, 9] };
        for (owner, group, mode, expected) in [
            (7, 8, 0o700, Private),
            (7, 1, 0o700, Private),
            (7, 8, 0o2700, Private),
            (7, 8, 0o750, Lax),
            (7, 8, 0o755, Lax),
            (7, 8, 0o770, Lax),
            (7, 8, 0o1777, Lax),
            (6, 8, 0o700, Foreign),
            (6, 8, 0o777, Foreign),
            (6, 8, 0o2770, Foreign),
            (0, 0, 0o755, Foreign),
            (0, 0, 0o1777, Foreign),
            (0, 1, 0o2775, Foreign),
            (0, 8, 0o755, Foreign),
            (0, 8, 0o2777, Foreign),
            (0, 8, 0o2775, Volume),
            (0, 9, 0o770, Volume),
        ] {
            assert_eq!(user.access(owner, group, mode), expected, "{owner}:{group} {mode:o}");
        }
        let root = User { uid: 0, groups: vec![0] };
        assert_eq!(root.access(0, 0, 0o755), Lax);
        assert_eq!(root.access(7, 0, 0o700), Foreign, "root too keeps its data to itself");
        for (of, owner, expected) in
            [(&user, 0, true), (&user, 7, false), (&user, 6, false), (&root, 0, false)]
        {
            assert_eq!(of.trusts_link_of(owner), expected, "{} and a link of {owner}", of.uid);
        }
    }

    #[test]
    fn a_link_is_refused_with_its_target_and_a_link_on_the_way_is_not() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (real, link) = (directory(&root, "real", 0o700), root.join("link"));
        symlink(&real, &link).unwrap();
        for given in [link.clone(), PathBuf::from(format!("{}/", link.display()))] {
            let refused = check(FLAG, &given).unwrap_err().to_string();
            let expected = format!(
                "--data-dir: {} is a symbolic link: give the directory itself, {}",
                link.display(),
                real.display()
            );
            assert_eq!(refused, expected);
        }
        directory(&real, "below", 0o700);
        assert!(check(FLAG, &link.join("below")).unwrap().is_some());
        assert!(check(FLAG, &link.join("missing")).unwrap().is_none());
        symlink(root.join("nowhere"), root.join("dangling")).unwrap();
        assert!(matches!(check(FLAG, &root.join("dangling")), Err(PrivateDirError::Link { .. })));
        fs::write(root.join("file"), "").unwrap();
        assert!(matches!(check(FLAG, &root.join("file")), Err(PrivateDirError::NotADirectory { .. })));
    }

    #[test]
    fn a_directory_of_its_own_is_made_private_and_that_of_others_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let restricted = |path: &Path| check(FLAG, path).unwrap().unwrap().restrict_own(FLAG, &["MARK"]);
        let empty = directory(root.path(), "empty", 0o1777);
        directory(&empty, "lost+found", 0o700);
        let marked = directory(root.path(), "marked", 0o755);
        fs::write(marked.join("MARK"), "").unwrap();
        for path in [&empty, &marked] {
            restricted(path).unwrap();
            assert_eq!(mode(path), 0o700, "{}", path.display());
        }
        let shared = directory(root.path(), "shared", 0o755);
        fs::write(shared.join("passwd"), "").unwrap();
        let refused = restricted(&shared).unwrap_err().to_string();
        assert!(refused.contains("files of something else") && refused.contains("(mode 755)"), "{refused}");
        assert_eq!(mode(&shared), 0o755);
        fs::set_permissions(&shared, Permissions::from_mode(0o700)).unwrap();
        restricted(&shared).unwrap();
    }

    #[test]
    fn everything_below_a_directory_is_made_private() {
        let root = tempfile::tempdir().unwrap();
        let inner = directory(root.path(), "inner", 0o755);
        fs::write(inner.join("file"), "").unwrap();
        fs::set_permissions(inner.join("file"), Permissions::from_mode(0o664)).unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(outside.path(), Permissions::from_mode(0o644)).unwrap();
        symlink(outside.path(), root.path().join("link")).unwrap();
        restrict_below(root.path()).unwrap();
        assert_eq!((mode(&inner), mode(&inner.join("file"))), (0o700, 0o600));
        assert_eq!(mode(outside.path()), 0o644, "a link is not followed");
    }
}
