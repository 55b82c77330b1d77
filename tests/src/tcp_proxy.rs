//! A TCP proxy to the store whose connections can be blackholed (open, but nothing passes) or closed.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// A proxy to one address.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    /// One for each connection so far; true once the connection is blackholed, `None` once it is cut.
    connections: Arc<Mutex<Vec<Option<watch::Sender<bool>>>>>,
    accepting: AbortHandle,
}

impl TcpProxy {
    /// Starts to forward connections.
    pub async fn to(target: SocketAddr) -> TcpProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port for a proxy");
        let address = listener.local_addr().expect("a listener has an address");
        let connections = Arc::new(Mutex::new(Vec::new()));
        let held = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let (blackhole, blackholed) = watch::channel(false);
                held.lock().unwrap_or_else(PoisonError::into_inner).push(Some(blackhole));
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(near_in, far_out, blackholed.clone()));
                tokio::spawn(pass(far_in, near_out, blackholed));
            }
        });
        TcpProxy { address, connections, accepting: accepting.abort_handle() }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections were accepted so far.
    pub fn connections_made(&self) -> usize {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Blackholes all current connections: they stay open, but nothing passes. New connections work.
    pub fn blackhole(&self) {
        for connection in self.connections.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten() {
            connection.send_replace(true);
        }
    }
}

impl TcpProxy {
    /// Closes all current connections. New ones work.
    pub fn cut(&self) {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).fill_with(|| None);
    }

    /// Closes all connections and stops listening.
    pub fn close(&self) {
        self.accepting.abort();
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Forwards one direction until the peer closes it, it is blackholed or the proxy is closed.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut blackholed: watch::Receiver<bool>) {
    let mut part = vec![0; 16 * 1024];
    loop {
        let read = tokio::select! {
            biased;
            changed = blackholed.wait_for(|is_blackholed| *is_blackholed) => match changed {
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
    // Read and drop, so that both ends stay open.
    while matches!(from.read(&mut part).await, Ok(1..)) {}
    drop(to);
}
