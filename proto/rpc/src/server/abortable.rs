//! Accepted connections that can be aborted.
//!
//! tonic's graceful stop waits for every connection without a limit, and each connection is a task that cannot be
//! aborted from outside. So each socket waits for the abort itself: from then on its reads and writes fail, and hyper
//! drops the connection with all its calls.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// A connection that fails once its token is cancelled.
pub(super) struct Abortable<IO> {
    io: IO,
    abort: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<IO: Unpin> Abortable<IO> {
    pub(super) fn new(io: IO, abort: &CancellationToken) -> Abortable<IO> {
        // A token per connection: waiting on a shared one would make all connections contend for its lock.
        Abortable { io, abort: Box::pin(abort.child_token().cancelled_owned()) }
    }

    /// Polls `io`, and while it is pending also waits for the abort.
    fn poll_or_abort<T>(
        &mut self,
        cx: &mut Context<'_>,
        work: impl FnOnce(Pin<&mut IO>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = work(Pin::new(&mut self.io), cx) {
            return Poll::Ready(done);
        }
        ready!(self.abort.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server has stopped")))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Abortable<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_or_abort(cx, |io, cx| io.poll_read(cx, buf))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Abortable<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_or_abort(cx, |io, cx| io.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_or_abort(cx, |io, cx| io.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_or_abort(cx, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_or_abort(cx, AsyncWrite::poll_shutdown)
    }
}

impl<IO: Connected> Connected for Abortable<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> IO::ConnectInfo {
        self.io.connect_info()
    }
}
