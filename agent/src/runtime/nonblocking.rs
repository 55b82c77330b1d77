//! Pipes and terminals that are read and written without blocking a thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that tokio watches.
pub(super) fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // The replacement of this call is unsafe, for types whose descriptor may change. That of an OwnedFd does not.
    #[allow(deprecated, reason = "sound for an OwnedFd, and nothing else here needs unsafe code")]
    AsyncFd::with_interest(fd, interest)
}

/// One end of a pipe, or a terminal.
#[derive(Debug)]
pub struct Channel(AsyncFd<OwnedFd>);

impl Channel {
    /// The other end is not affected.
    pub fn new(fd: OwnedFd, interest: Interest) -> io::Result<Channel> {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Channel(watched(fd, interest)?))
    }

    /// Reads what there is, and waits until there is something; 0 at the end.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|fd| read(fd, buffer)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(read) => return read,
                Err(_) => {}
            }
        }
    }

    /// Reads what there is; 0 at the end, and also if there is nothing now.
    pub fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match read(self.0.get_ref(), buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                other => return other,
            }
        }
    }

    /// Writes all of it, and waits while the reader does not read.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            match ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), bytes)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(written) => bytes = &bytes[written?..],
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

fn read(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    match rustix::io::read(fd, buffer) {
        // A terminal that no process has open any more.
        Err(Errno::IO) => Ok(0),
        other => Ok(other?),
    }
}
