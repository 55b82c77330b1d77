//! The agent's identity, kept across restarts.
//!
//! The state directory belongs to one agent at a time, by a lock that the kernel releases when the process ends,
//! however it ends. A small file in it has the node's name, the uid of its record, and the incarnation, which tells
//! this agent from agents on other machines with the same node name. The file is replaced as a whole, and a file that
//! cannot be read is never replaced: an operator has to decide what the agent was.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use muster_proto::name::{Name, Uid};
use muster_rpc::private_dir::{self, PrivateDirError};
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

const FILE: &str = "identity.json";
const ASIDE: &str = "identity.json.new";
const LOCK: &str = "lock";
/// The flag that names the directory.
const STATE_DIR: &str = "--state-dir";
/// The version of the file's format.
const FORMAT: u32 = 1;

/// The agent's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node's name.
    pub name: Name,
    /// The uid of the node's record; `None` before it was registered.
    pub node_uid: Option<Uid>,
    /// Identifies this agent, whatever its node's name.
    pub incarnation: Uid,
}

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(transparent)]
    NotPrivate(#[from] PrivateDirError),
    #[error("--state-dir: {} is in use by another agent; give each its own", directory.display())]
    InUse { directory: PathBuf },
    #[error("--state-dir: cannot use {}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error(
        "--state-dir: {} is damaged ({reason}); it was left as it is: restore it, or remove it to start as a new \
         agent",
        path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "--state-dir: {} belongs to node {kept}, not {wanted}: give --node-name {kept} (or --keep-node-name, if the \
         hostname may change), or another directory to start as a new agent",
        directory.display()
    )]
    OtherName { directory: PathBuf, kept: Name, wanted: Name },
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_uid: Option<String>,
    incarnation: String,
}

/// A state directory that no other agent uses as long as this value lives.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// The lock is held while the file is open.
    _lock: File,
}

impl StateDir {
    /// Locks the directory, and creates it if it does not exist. Only its owner may read it.
    ///
    /// # Errors
    /// When it is a link or another user's, another agent has locked it, or it cannot be created or written to.
    pub fn open(path: impl Into<PathBuf>) -> Result<StateDir, IdentityError> {
        let path = path.into();
        match private_dir::check(STATE_DIR, &path)? {
            Some(found) => found.restrict_own(STATE_DIR, &[LOCK, FILE])?,
            None => private_dir::create_dir_all(&path).map_err(io_error(&path))?,
        }
        let file = path.join(LOCK);
        let mut options = private_dir::file_options();
        let lock = options.create(true).truncate(false).write(true).open(&file).map_err(io_error(&file))?;
        match lock.try_lock() {
            Ok(()) => Ok(StateDir { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(IdentityError::InUse { directory: path }),
            Err(TryLockError::Error(error)) => Err(io_error(&file)(error)),
        }
    }

    /// Where other parts of the agent may keep files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of the agent of the node `name`: the stored one, or, the first time, one with the incarnation
    /// `fresh`, which is stored.
    ///
    /// # Errors
    /// When the directory belongs to another node, or the file cannot be read, parsed or written.
    pub fn identify(&self, name: &Name, fresh: Uid) -> Result<Identity, IdentityError> {
        match self.load()? {
            Some(identity) if identity.name == *name => Ok(identity),
            Some(identity) => Err(IdentityError::OtherName {
                directory: self.path.clone(),
                kept: identity.name,
                wanted: name.clone(),
            }),
            None => {
                let identity = Identity { name: name.clone(), node_uid: None, incarnation: fresh };
                self.save(&identity)?;
                Ok(identity)
            }
        }
    }

    /// The stored identity; `None` if no agent ran here before.
    ///
    /// # Errors
    /// When the file cannot be read or parsed.
    pub fn load(&self) -> Result<Option<Identity>, IdentityError> {
        let path = self.path.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(&path)(error)),
        };
        parse(&text).map(Some).map_err(|reason| IdentityError::Damaged { path, reason })
    }

    /// Stores the identity: it is on the disk when this returns, and never half of it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, identity: &Identity) -> Result<(), IdentityError> {
        let (path, aside) = (self.path.join(FILE), self.path.join(ASIDE));
        let stored = Stored {
            format: FORMAT,
            name: identity.name.to_string(),
            node_uid: identity.node_uid.map(|uid| uid.to_string()),
            incarnation: identity.incarnation.to_string(),
        };
        let mut text = serde_json::to_vec_pretty(&stored).map_err(|error| io_error(&path)(error.into()))?;
        text.push(b'\n');
        let write = || {
            let mut options = private_dir::file_options();
            let mut file = options.create(true).truncate(true).write(true).open(&aside)?;
            file.write_all(&text)?;
            file.sync_all()
        };
        write().map_err(io_error(&aside))?;
        fs::rename(&aside, &path).map_err(io_error(&path))?;
        // The rename has to reach the disk as well as the content.
        File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(io_error(&self.path))
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let path = path.to_owned();
    move |error| IdentityError::Io { path, error }
}

fn parse(text: &[u8]) -> Result<Identity, String> {
    let stored: Stored = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if stored.format != FORMAT {
        return Err(format!("format {} is not known to this version", stored.format));
    }
    let uid = |field: &str, text: &str| text.parse::<Uid>().map_err(|error| format!("{field} {error}"));
    Ok(Identity {
        name: stored.name.parse().map_err(|error| format!("name {error}"))?,
        node_uid: stored.node_uid.map(|text| uid("node_uid", &text)).transpose()?,
        incarnation: uid("incarnation", &stored.incarnation)?,
    })
}
