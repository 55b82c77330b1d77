//! Listening: the address is bound before anything else, and a failure names the flag to change.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

/// The pause before the next accept when the process has run out of a resource, such as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// A bound address that accepts connections from now on; they are served once a server uses the listener.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    address: SocketAddr,
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{flag}: cannot listen on {address}: {}", explain(error))]
pub struct BindError {
    pub flag: &'static str,
    pub address: SocketAddr,
    #[source]
    pub error: io::Error,
}

/// The three common reasons, in words that say what to do.
fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is in use by another process".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this machine does not have that address".to_owned(),
        io::ErrorKind::PermissionDenied => "this process may not use that port".to_owned(),
        _ => error.to_string(),
    }
}

/// Binds an address. Port 0 picks a free port; [`Listener::address`] returns it.
///
/// # Errors
/// When the address cannot be bound; the error names `flag`, such as `--listen`.
pub async fn bind(flag: &'static str, address: SocketAddr) -> Result<Listener, BindError> {
    let failed = |error| BindError { flag, address, error };
    let inner = TcpListener::bind(address).await.map_err(failed)?;
    let address = inner.local_addr().map_err(failed)?;
    Ok(Listener { inner, address })
}

impl Listener {
    /// The address that was bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection.
    ///
    /// An accept that fails for lack of file descriptors would fail again at once: pause, so that the loop does not
    /// take the CPU of the calls that could free one.
    pub(crate) async fn accept(&self) -> Accepted {
        loop {
            match self.inner.accept().await {
                Ok((socket, address)) => {
                    // A socket that is already gone cannot be set up; reading from it will say so.
                    let _ = socket.set_nodelay(true);
                    return Accepted { socket, address: Some(address) };
                }
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections, trying again in {ACCEPT_PAUSE:?}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// A new connection.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) socket: TcpStream,
    pub(crate) address: Option<SocketAddr>,
}

/// Whether a failed accept concerns only this peer.
fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_explained_with_flag_and_address() {
        let taken = bind("--listen", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        assert_ne!(taken.address().port(), 0, "the free port that was picked is known");
        let error = bind("--http-listen", taken.address()).await.unwrap_err();
        let expected = format!(
            "--http-listen: cannot listen on {}: the port is in use by another process",
            taken.address()
        );
        assert_eq!(error.to_string(), expected);
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_explained() {
        let error = bind("--listen", "192.0.2.1:0".parse().unwrap()).await.unwrap_err();
        let expected = "--listen: cannot listen on 192.0.2.1:0: this machine does not have that address";
        assert_eq!(error.to_string(), expected);
    }
}
