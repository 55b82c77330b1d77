//! Accepted connections that can be cut.
//!
//! tonic's graceful stop waits for every connection without end, and its connections are tasks of their own that no one
//! else can abort. So each socket listens for the hard stop itself: from then on it reads and writes nothing but an
//! error, and hyper drops the connection with all its calls.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// A connection that ends when its token does.
pub(super) struct Cuttable<IO> {
    io: IO,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<IO: Unpin> Cuttable<IO> {
    pub(super) fn new(io: IO, cut: &CancellationToken) -> Cuttable<IO> {
        // A token per connection: waiting on a shared one would make all connections contend for its lock.
        Cuttable { io, cut: Box::pin(cut.child_token().cancelled_owned()) }
    }

    /// Lets `io` work, and when it would wait, waits for the cut as well.
    fn poll_or_cut<T>(
        &mut self,
        cx: &mut Context<'_>,
        work: impl FnOnce(Pin<&mut IO>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = work(Pin::new(&mut self.io), cx) {
            return Poll::Ready(done);
        }
        ready!(self.cut.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server has stopped")))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Cuttable<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_or_cut(cx, |io, cx| io.poll_read(cx, buf))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Cuttable<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_or_cut(cx, |io, cx| io.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_or_cut(cx, |io, cx| io.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_or_cut(cx, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_or_cut(cx, AsyncWrite::poll_shutdown)
    }
}

impl<IO: Connected> Connected for Cuttable<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> IO::ConnectInfo {
        self.io.connect_info()
    }
}
