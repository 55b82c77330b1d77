//! A unix socket beside the TCP port, for programs of the same user on this machine.
//!
//! The kernel says which user connects. The user of this process and root are served, as administrators; nobody else is.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

use crate::private_dir::{self, PrivateDirError};

/// The pause before the next accept when the process has run out of a resource, such as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// Only the owner may connect.
const MODE: u32 = 0o600;

/// A socket that accepts connections. Its file is removed when it is dropped.
#[derive(Debug)]
pub struct UnixSocket {
    inner: UnixListener,
    path: PathBuf,
}

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum UnixSocketError {
    #[error("another process serves on {}: stop it, or use another directory", path.display())]
    InUse { path: PathBuf },
    #[error(transparent)]
    Directory(#[from] PrivateDirError),
    #[error("cannot listen on {}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

impl UnixSocket {
    /// Binds a socket in a directory that is made private. The file of a process that is gone is replaced. `flag` names
    /// the directory in errors.
    ///
    /// # Errors
    /// When another process serves on the socket, the directory is not this user's, or the socket cannot be bound.
    pub async fn bind(flag: &'static str, path: &Path) -> Result<UnixSocket, UnixSocketError> {
        let failed = |error| UnixSocketError::Io { path: path.to_owned(), error };
        let directory = path.parent().unwrap_or(Path::new("."));
        match private_dir::check(flag, directory)? {
            Some(directory) => directory.restrict().map_err(failed)?,
            None => private_dir::create_dir_all(directory).map_err(failed)?,
        }
        match UnixStream::connect(path).await {
            Ok(_) => return Err(UnixSocketError::InUse { path: path.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?;
            }
            // There is none; or binding will say what is wrong.
            Err(_) => {}
        }
        let inner = UnixListener::bind(path).map_err(failed)?;
        let socket = UnixSocket { inner, path: path.to_owned() };
        fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(failed)?;
        Ok(socket)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection of this process's user or of root.
    pub(super) async fn accept(&self) -> UnixStream {
        let own = geteuid().as_raw();
        loop {
            match self.inner.accept().await {
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(peer) if peer.uid() == own || peer.uid() == 0 => return stream,
                    Ok(peer) => tracing::warn!(
                        socket = %self.path.display(),
                        uid = peer.uid(),
                        "refused a connection: only root and user {own} may connect"
                    ),
                    Err(error) => tracing::warn!(%error, "refused a connection of an unknown user"),
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections, trying again in {ACCEPT_PAUSE:?}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // A process that finds the file later notices that nothing serves on it.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_file_of_a_dead_process_is_replaced_and_that_of_a_live_one_is_not() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run/store.sock");
        let live = UnixSocket::bind("--data-dir", &path).await.unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        let refused = UnixSocket::bind("--data-dir", &path).await.unwrap_err();
        assert!(refused.to_string().starts_with("another process serves on"), "{refused}");
        UnixStream::connect(&path).await.unwrap();

        // A process that is killed leaves its file behind.
        let kept = home.path().join("run/kept.sock");
        fs::rename(&path, &kept).unwrap();
        drop(live);
        fs::rename(&kept, &path).unwrap();
        let next = UnixSocket::bind("--data-dir", &path).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
        drop(next);
        assert!(!path.exists());
    }
}
