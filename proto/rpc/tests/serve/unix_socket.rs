//! The unix socket beside the port: for the user of the server and root, and for nobody else.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use muster_rpc::server::{ServerConfig, UnixSocket};
use rustix::process::{Uid, getuid};
use rustix::thread::set_thread_res_uid;
use tempfile::TempDir;
use tonic::transport::Endpoint;

use crate::mutual_tls::{Authority, security};
use crate::probe::{Client, Running, patiently, start_server};

const NOBODY: u32 = 65_534;

/// A server with TLS on its port, and with a socket.
async fn start() -> (Running, PathBuf, TempDir) {
    let (home, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let path = home.path().join("run/probe.sock");
    let socket = UnixSocket::bind("--data-dir", &path).await.unwrap();
    let security = security(&authority, "store", "muster:stores");
    let server = start_server(ServerConfig::default(), security, |server| server.also_on(Some(socket))).await;
    (server, path, home)
}

#[tokio::test]
async fn the_own_user_is_an_administrator_on_the_socket() {
    let (server, path, _home) = start().await;
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
    let client = Client { channel: patiently(endpoint.connect()).await.unwrap() };
    assert_eq!(client.call("WhoAmI").await.unwrap(), "admin");
    drop(client);
    server.shutdown.trigger();
    server.stopped().await;
    assert!(!path.exists(), "the file is removed at the end");
}

#[tokio::test]
async fn another_user_is_refused_even_if_the_files_let_it_in() {
    assert!(getuid().is_root(), "only root can become another user");
    let (_server, path, home) = start().await;
    // The mode of the files keeps others out already; the server does not rely on it.
    for directory in [home.path(), path.parent().unwrap()] {
        fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let other = tokio::task::spawn_blocking(move || {
        // A thread of its own: the user is an attribute of the thread.
        let connecting = std::thread::spawn(move || {
            let nobody = Uid::from_raw(NOBODY);
            set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let mut stream = UnixStream::connect(path).unwrap();
            stream.read(&mut [0; 64])
        });
        connecting.join().unwrap()
    });
    let received = patiently(other).await.unwrap();
    assert!(matches!(received, Ok(0) | Err(_)), "the server speaks to another user: {received:?}");
}
