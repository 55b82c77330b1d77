//! The certificate, key and authorities of an agent that has joined, in its state directory.
//!
//! Each set is a directory of its own, and a link names the current one. A new set is written and synced as a whole
//! before the link is replaced, so a crash leaves the old set or the new one and never a certificate with another key.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use muster_rpc::private_dir;

/// Below the state directory.
const DIRECTORY: &str = "credentials";
const CURRENT: &str = "current";
const ASIDE: &str = "current.new";
/// The key of a request that is not decided yet: a restart must not make another request.
const PENDING: &str = "pending.key";

/// What the agent joins with.
pub struct CredentialSet {
    /// PEM, as everything here.
    pub certificate: String,
    pub key: String,
    pub authorities: String,
}

/// Where the sets are.
#[derive(Clone, Debug)]
pub struct CredentialDir {
    path: PathBuf,
}

impl CredentialDir {
    pub fn in_state_dir(state_dir: &Path) -> CredentialDir {
        CredentialDir { path: state_dir.join(DIRECTORY) }
    }

    /// The directory of the current set, with `ca.crt`, `tls.crt` and `tls.key`, whether it exists or not.
    pub fn current(&self) -> PathBuf {
        self.path.join(CURRENT)
    }

    /// Whether the agent has joined.
    pub fn exists(&self) -> bool {
        self.current().join("tls.crt").exists()
    }

    /// The current certificate, PEM.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn certificate(&self) -> io::Result<String> {
        fs::read_to_string(self.current().join("tls.crt"))
    }

    /// The key of the pending request, PEM; the first time the one that `make` makes, which is stored.
    ///
    /// # Errors
    /// When it can be neither read nor written.
    pub fn pending_key(&self, make: impl FnOnce() -> io::Result<String>) -> io::Result<String> {
        let path = self.path.join(PENDING);
        match fs::read_to_string(&path) {
            Ok(key) => Ok(key),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                private_dir::create_dir_all(&self.path)?;
                let key = make()?;
                let aside = path.with_extension("new");
                write(&aside, &key)?;
                fs::rename(&aside, &path)?;
                sync(&self.path)?;
                Ok(key)
            }
            Err(error) => Err(error),
        }
    }

    /// Forgets the key of the pending request.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove_pending_key(&self) -> io::Result<()> {
        match fs::remove_file(self.path.join(PENDING)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes a set the current one. It is on the disk when this returns; the sets before it are removed.
    ///
    /// # Errors
    /// When it cannot be written: the current set stays then.
    pub fn replace(&self, name: &str, set: &CredentialSet) -> io::Result<()> {
        private_dir::create_dir_all(&self.path)?;
        let (directory, aside) = (self.path.join(name), self.path.join(ASIDE));
        // Left by an attempt that a crash ended.
        remove_if_there(fs::remove_dir_all(&directory))?;
        remove_if_there(fs::remove_file(&aside))?;
        private_dir::create_dir(&directory)?;
        for (file, text) in
            [("tls.crt", &set.certificate), ("tls.key", &set.key), ("ca.crt", &set.authorities)]
        {
            write(&directory.join(file), text)?;
        }
        sync(&directory)?;
        sync(&self.path)?;
        symlink(name, &aside)?;
        fs::rename(&aside, self.current())?;
        sync(&self.path)?;
        self.remove_all_but(name);
        Ok(())
    }

    /// What cannot be removed is removed after the next renewal.
    fn remove_all_but(&self, name: &str) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            let is_set = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_set && entry.file_name() != name {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn remove_if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = private_dir::file_options().create(true).truncate(true).write(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn set(text: &str) -> CredentialSet {
        CredentialSet {
            certificate: format!("certificate {text}"),
            key: format!("key {text}"),
            authorities: format!("authorities {text}"),
        }
    }

    fn current(directory: &CredentialDir) -> Vec<String> {
        let read = |name: &str| fs::read_to_string(directory.current().join(name)).unwrap();
        ["tls.crt", "tls.key", "ca.crt"].map(read).to_vec()
    }

    #[test]
    fn a_set_replaces_the_one_before_as_a_whole_and_is_private() {
        let state = tempfile::tempdir().unwrap();
        let directory = CredentialDir::in_state_dir(state.path());
        assert!(!directory.exists());
        directory.replace("1", &set("one")).unwrap();
        directory.replace("2", &set("two")).unwrap();
        assert_eq!(current(&directory), ["certificate two", "key two", "authorities two"]);
        assert!(directory.exists() && !directory.path.join("1").exists());
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(directory.current().join("tls.key")), mode(directory.path.clone())), (0o600, 0o700));
    }

    #[test]
    fn an_attempt_that_a_crash_ended_leaves_the_current_set_and_does_not_hinder_the_next() {
        let state = tempfile::tempdir().unwrap();
        let directory = CredentialDir::in_state_dir(state.path());
        directory.replace("1", &set("one")).unwrap();
        // Half of the next set, and a link that was not renamed.
        fs::create_dir(directory.path.join("2")).unwrap();
        fs::write(directory.path.join("2/tls.crt"), "half").unwrap();
        symlink("2", directory.path.join(ASIDE)).unwrap();
        assert_eq!(current(&directory), ["certificate one", "key one", "authorities one"]);
        directory.replace("2", &set("two")).unwrap();
        assert_eq!(current(&directory), ["certificate two", "key two", "authorities two"]);
    }

    #[test]
    fn the_key_of_a_pending_request_is_made_once() {
        let state = tempfile::tempdir().unwrap();
        let directory = CredentialDir::in_state_dir(state.path());
        let made = |text: &str| directory.pending_key(|| Ok(text.to_owned())).unwrap();
        assert_eq!((made("first"), made("second")), ("first".to_owned(), "first".to_owned()));
        directory.remove_pending_key().unwrap();
        directory.remove_pending_key().unwrap();
        assert_eq!(made("third"), "third");
    }
}
