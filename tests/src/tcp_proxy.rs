//! A way to the store that can go bad: connections stay open and swallow everything, or there are none.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// A proxy before one address.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    /// One for each connection that was made; true once it swallows.
    connections: Arc<Mutex<Vec<watch::Sender<bool>>>>,
    accepting: AbortHandle,
}

impl TcpProxy {
    /// Begins to pass connections on.
    pub async fn to(target: SocketAddr) -> TcpProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port for a proxy");
        let address = listener.local_addr().expect("a listener has an address");
        let connections = Arc::new(Mutex::new(Vec::new()));
        let held = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let (swallow, swallows) = watch::channel(false);
                held.lock().unwrap_or_else(PoisonError::into_inner).push(swallow);
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(near_in, far_out, swallows.clone()));
                tokio::spawn(pass(far_in, near_out, swallows));
            }
        });
        TcpProxy { address, connections, accepting: accepting.abort_handle() }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections were made.
    pub fn connections_made(&self) -> usize {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// From now on the connections there are lead nowhere, and do not say so. New ones are good.
    pub fn blackhole(&self) {
        for connection in self.connections.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            connection.send_replace(true);
        }
    }
}

impl TcpProxy {
    /// From now on nobody is there: connections end, and there are no new ones.
    pub fn close(&self) {
        self.accepting.abort();
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Passes on what one end says, until it ends, is swallowed or the proxy is closed.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut swallows: watch::Receiver<bool>) {
    let mut part = vec![0; 16 * 1024];
    loop {
        let read = tokio::select! {
            biased;
            swallowed = swallows.wait_for(|swallows| *swallows) => match swallowed {
                Ok(_) => break,
                Err(_) => return,
            },
            read = from.read(&mut part) => read,
        };
        let Ok(count @ 1..) = read else { return };
        if to.write_all(&part[..count]).await.is_err() {
            return;
        }
    }
    // Both ends stay open: the other is held here for as long as this one says anything.
    while matches!(from.read(&mut part).await, Ok(1..)) {}
    drop(to);
}
