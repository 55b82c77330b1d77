//! Accepted connections that can be aborted, and that are closed unless they begin to speak HTTP/2 in time.
//!
//! tonic's graceful stop waits for every connection without a limit, and each connection is a task that cannot be
//! aborted from outside. So each socket waits for the abort itself: from then on its reads and writes fail, and hyper
//! drops the connection with all its calls. hyper also waits for the client's HTTP/2 preface without a limit, so the
//! socket waits for the end of that time as well.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::admission::connection::{Connection, Peer};

/// A connection that fails once its token is cancelled.
pub(super) struct Abortable<IO> {
    io: IO,
    abort: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Until the client speaks HTTP/2.
    opening: Option<Opening>,
    connection: Arc<Connection>,
}

impl<IO: Unpin> Abortable<IO> {
    /// The TLS handshake may take as long as `timeout`, and the beginning of HTTP/2 again; `None` for no limit.
    pub(super) fn new(
        io: IO,
        abort: &CancellationToken,
        timeout: Option<Duration>,
        connection: Arc<Connection>,
    ) -> Abortable<IO> {
        // A token per connection: waiting on a shared one would make all connections contend for its lock.
        let abort = Box::pin(abort.child_token().cancelled_owned());
        Abortable { io, abort, opening: timeout.map(Opening::new), connection }
    }

    /// Polls `io`, and while it is pending also waits for the abort and for the end of the time to open.
    fn poll_or_abort<T>(
        &mut self,
        cx: &mut Context<'_>,
        work: impl FnOnce(Pin<&mut IO>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = work(Pin::new(&mut self.io), cx) {
            return Poll::Ready(done);
        }
        if self.abort.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the server has stopped",
            )));
        }
        if let Some(opening) = &mut self.opening
            && opening.poll_timeout(&self.connection, cx).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not speak HTTP/2",
            )));
        }
        Poll::Pending
    }

    /// As [`Abortable::poll_or_abort`], for bytes to the client.
    fn poll_written(
        &mut self,
        cx: &mut Context<'_>,
        work: impl FnOnce(Pin<&mut IO>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_or_abort(cx, work);
        if let (Some(opening), Poll::Ready(Ok(_))) = (&mut self.opening, &written)
            && opening.observe_write(&self.connection)
        {
            self.opening = None;
        }
        written
    }
}

/// A connection on which the client has not spoken HTTP/2 yet.
///
/// What arrives may be encrypted, so the server's own writes are observed instead. Once it has accepted the connection
/// it sends its settings, and nothing more until it has read the client's preface and settings.
struct Opening {
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
    is_accepted: bool,
    has_sent_settings: bool,
}

impl Opening {
    fn new(timeout: Duration) -> Opening {
        Opening { timeout, timer: Box::pin(sleep(timeout)), is_accepted: false, has_sent_settings: false }
    }

    /// The timeout begins again when the TLS handshake is over.
    fn observe_accept(&mut self, connection: &Connection) {
        if !self.is_accepted && connection.is_accepted() {
            self.is_accepted = true;
            self.timer.set(sleep(self.timeout));
        }
    }

    /// Whether this write shows that the client has spoken HTTP/2.
    fn observe_write(&mut self, connection: &Connection) -> bool {
        self.observe_accept(connection);
        self.is_accepted && std::mem::replace(&mut self.has_sent_settings, self.is_accepted)
    }

    fn poll_timeout(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Poll<()> {
        self.observe_accept(connection);
        self.timer.as_mut().poll(cx)
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
        self.poll_written(cx, |io, cx| io.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_written(cx, |io, cx| io.poll_write_vectored(cx, bufs))
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

impl Connected for Abortable<TcpStream> {
    type ConnectInfo = Peer;

    /// tonic asks once, when it accepts the connection.
    fn connect_info(&self) -> Peer {
        self.connection.accept();
        Peer { address: self.io.peer_addr().ok(), connection: Arc::clone(&self.connection) }
    }
}
