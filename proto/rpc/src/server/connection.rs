//! One connection: its TLS handshake, its calls, and its end.
//!
//! A connection ends when the client closes it, when the server stops, when its certificate is revoked, and when its
//! time is over: then the client is asked to use a new one (GOAWAY), calls in flight have a grace period, and what is
//! still open is closed. hyper waits for the client's HTTP/2 preface without a limit, so that has a time limit as well.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Bytes, Incoming as RequestBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::{Service, ServiceExt};

use super::listener::Accepted;
use crate::admission::connection::{self as admission, Peer};
use crate::clock::SharedClock;
use crate::identity::Identity;
use crate::tls::ServerTls;
use crate::tls::certificate::CertificateInfo;
use crate::tls::revocation::OpenConnection;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The length of HTTP/2's connection preface.
const PREFACE: usize = 24;
/// The longest life of a connection without a certificate: it is for a few calls.
const ANONYMOUS_AGE: Duration = Duration::from_secs(60);
/// A time that does not come.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What all connections of a server share.
pub(super) struct Connections {
    pub(super) http: auto::Builder<TokioExecutor>,
    pub(super) tls: Option<ServerTls>,
    pub(super) load: Arc<admission::Server>,
    pub(super) timing: Timing,
    /// Places of connections without a certificate.
    pub(super) anonymous: Arc<Semaphore>,
    pub(super) clock: SharedClock,
    /// Cancelled when the server stops.
    pub(super) drain: CancellationToken,
}

/// How long a connection may take for what. Zero means no limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// For the TLS handshake, and again for the beginning of HTTP/2.
    pub(super) handshake: Duration,
    /// For its whole life.
    pub(super) max_age: Duration,
    /// For its open calls at the end.
    pub(super) grace: Duration,
}

/// When a connection's client is asked to leave, and how much later the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lifetime {
    until_goaway: Duration,
    grace: Duration,
}

impl Timing {
    /// The lifetime of a connection whose certificate is valid for so long. `random` is 0 to 1: the ends of connections
    /// that began together are spread over half of the age.
    fn lifetime(&self, valid: Option<Duration>, random: f64) -> Lifetime {
        let age = if self.max_age.is_zero() { NEVER } else { self.max_age.mul_f64(1.0 - random / 2.0) };
        let by_age = Lifetime { until_goaway: age, grace: self.grace };
        let Some(valid) = valid else { return by_age };
        // The end is the certificate's. The nearer it is, the shorter the grace, so that some of the time is left.
        let grace = self.grace.min(valid / 2);
        let by_certificate = Lifetime { until_goaway: valid - grace, grace };
        if by_certificate.until_goaway < by_age.until_goaway {
            by_certificate
        } else {
            Lifetime { until_goaway: age, grace: self.grace.min(valid - age) }
        }
    }
}

/// An accepted connection.
pub(super) enum Incoming {
    Tcp(Accepted),
    /// Of a user that may administrate.
    Unix(UnixStream),
}

/// A stream of bytes in either direction, encrypted or not.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> Io for IO {}

/// A connection whose peer is known.
struct Established {
    io: Box<dyn Io>,
    peer: Peer,
    /// When the peer's certificate ends.
    not_after: Option<Timestamp>,
    /// Of a connection with a certificate.
    open: Option<OpenConnection>,
    /// Of a connection with TLS and without a certificate.
    anonymous: Option<OwnedSemaphorePermit>,
}

impl Connections {
    /// Serves one connection until its end.
    pub(super) async fn serve<S, B>(self: Arc<Self>, incoming: Incoming, service: S)
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError> + Send + Sync + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let drain = self.drain.child_token();
        let established = tokio::select! {
            established = self.establish(incoming) => established,
            () = drain.cancelled() => return,
        };
        match established {
            Ok(established) => self.run(established, service, &drain).await,
            Err(reason) => tracing::debug!("a connection was not accepted: {reason}"),
        }
    }

    /// The TLS handshake, if there is one.
    async fn establish(&self, incoming: Incoming) -> Result<Established, BoxError> {
        let Accepted { socket, address } = match incoming {
            Incoming::Unix(stream) => return Ok(self.without_tls(Box::new(stream), None)),
            Incoming::Tcp(accepted) => accepted,
        };
        let Some(tls) = &self.tls else { return Ok(self.without_tls(Box::new(socket), address)) };
        let handshake = TlsAcceptor::from(tls.config()?).accept(socket);
        let stream = timeout(or_never(self.timing.handshake), handshake).await??;
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let identity = Identity::of(certificates.first().map(|own| &**own));
        let info = certificates.first().and_then(|own| CertificateInfo::read(own).ok());
        let open = match &info {
            None => None,
            Some(info) => Some(tls.revocations.open(info).ok_or("the certificate is revoked")?),
        };
        let anonymous = if certificates.is_empty() {
            let place = Arc::clone(&self.anonymous).try_acquire_owned();
            Some(place.map_err(|_| "there are too many connections without a certificate")?)
        } else {
            None
        };
        Ok(Established {
            anonymous,
            io: Box::new(stream),
            peer: Peer {
                address,
                connection: self.load.connection(identity),
                certificates: Some(Arc::new(certificates)),
            },
            not_after: info.map(|info| info.not_after),
            open,
        })
    }

    fn without_tls(&self, io: Box<dyn Io>, address: Option<SocketAddr>) -> Established {
        let connection = self.load.connection(Identity::without_tls());
        let peer = Peer { address, connection, certificates: None };
        Established { io, peer, not_after: None, open: None, anonymous: None }
    }

    /// Serves the calls of a connection.
    async fn run<S, B>(&self, established: Established, service: S, drain: &CancellationToken)
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError> + Send + Sync + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Established { io, peer, not_after, open, anonymous } = established;
        let mut timing = self.timing;
        if anonymous.is_some() && or_never(timing.max_age) > ANONYMOUS_AGE {
            timing.max_age = ANONYMOUS_AGE;
        }
        let valid = not_after.map(|end| Duration::try_from(end.duration_since(self.clock.wall())));
        let lifetime = timing.lifetime(valid.map(Result::unwrap_or_default), random());
        let revoked = open.as_ref().map(|open| open.revoked.clone()).unwrap_or_default();
        let has_begun = Arc::new(AtomicBool::new(false));
        let io = TokioIo::new(Opening { io, read: 0, has_begun: Arc::clone(&has_begun) });
        let service = service.map_request(move |request: Request<RequestBody>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            request
        });
        let mut connection = pin!(self.http.serve_connection(io, TowerToHyperService::new(service)));
        let mut opening = pin!(sleep(or_never(timing.handshake)));
        let mut ending = pin!(sleep(lifetime.until_goaway));
        let (mut is_opening, mut is_ending, mut is_draining) = (true, false, false);
        loop {
            tokio::select! {
                ended = &mut connection => {
                    if let Err(error) = ended {
                        tracing::debug!("a connection failed: {error}");
                    }
                    return;
                }
                () = &mut opening, if is_opening => {
                    if !has_begun.load(Ordering::Relaxed) {
                        tracing::debug!("a connection was closed: the client sent no request");
                        return;
                    }
                    is_opening = false;
                }
                () = &mut ending => {
                    if is_ending {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                    ending.set(sleep(lifetime.grace));
                    is_ending = true;
                }
                () = drain.cancelled(), if !is_draining => {
                    connection.as_mut().graceful_shutdown();
                    is_draining = true;
                }
                () = revoked.cancelled() => {
                    tracing::info!("a connection was closed: its certificate is revoked");
                    return;
                }
            }
        }
    }
}

fn or_never(duration: Duration) -> Duration {
    if duration.is_zero() { NEVER } else { duration }
}

/// A random number from 0 to 1.
fn random() -> f64 {
    f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 255.0
}

/// A connection that notices when the client has begun to speak HTTP/2.
struct Opening {
    io: Box<dyn Io>,
    /// Bytes of the preface that have arrived.
    read: usize,
    has_begun: Arc<AtomicBool>,
}

impl AsyncRead for Opening {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if self.read < PREFACE {
            self.read += buf.filled().len() - before;
            if self.read >= PREFACE {
                self.has_begun.store(true, Ordering::Relaxed);
            }
        }
        polled
    }
}

impl AsyncWrite for Opening {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(minutes * 60)
    }

    #[test]
    fn a_connection_ends_by_age_and_never_after_its_certificate() {
        let timing = Timing { handshake: minutes(1), max_age: minutes(60), grace: minutes(2) };
        let unlimited = Timing { max_age: Duration::ZERO, ..timing };
        for (timing, valid, random, until_goaway, grace) in [
            (timing, None, 0.0, minutes(60), minutes(2)),
            (timing, None, 1.0, minutes(30), minutes(2)),
            (timing, None, 0.5, minutes(45), minutes(2)),
            (timing, Some(minutes(600)), 0.0, minutes(60), minutes(2)),
            (timing, Some(minutes(61)), 0.0, minutes(59), minutes(2)),
            (timing, Some(minutes(32)), 1.0, minutes(30), minutes(2)),
            (timing, Some(minutes(20)), 1.0, minutes(18), minutes(2)),
            (timing, Some(minutes(2)), 0.0, minutes(1), minutes(1)),
            (timing, Some(Duration::ZERO), 0.0, Duration::ZERO, Duration::ZERO),
            (unlimited, None, 0.5, NEVER, minutes(2)),
            (unlimited, Some(minutes(20)), 0.5, minutes(18), minutes(2)),
        ] {
            let expected = Lifetime { until_goaway, grace };
            let found = timing.lifetime(valid, random);
            assert_eq!(found, expected, "{timing:?}, valid for {valid:?}, random {random}");
            assert!(valid.is_none_or(|valid| found.until_goaway + found.grace <= valid));
        }
    }
}
