//! The real etcd as a child process: one member, for stores to run on, and its calls as encoded messages, to compare the
//! store with.
//!
//! `.ci/tools etcd etcd36` installs it, in two versions; `MUSTER_TEST_ETCD=etcd-3.6` chooses the other one.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

pub mod cluster;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prost::Message;
use rustix::process::Pid;
use tonic::transport::Endpoint;

use crate::certificate_authority::Authority;
use crate::load::raw_client::RawClient;
use crate::store_process::{TIMEOUT, free_port};
use crate::tools::tool;

/// The etcds of `.ci/tools`: Debian's 3.4, and 3.6.
pub const PROGRAMS: [&str; 2] = ["etcd", "etcd-3.6"];

/// The call that writes one key.
pub const PUT: &str = "/etcdserverpb.KV/Put";

/// `etcdserverpb.PutRequest`, without its options.
#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// The call that raises or disarms an alarm.
const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
const ACTIVATE: i32 = 1;
const DEACTIVATE: i32 = 2;
const NOSPACE: i32 = 1;

/// `etcdserverpb.AlarmRequest`.
#[derive(Clone, PartialEq, Message)]
struct AlarmRequest {
    #[prost(int32, tag = "1")]
    action: i32,
    #[prost(uint64, tag = "2")]
    member_id: u64,
    #[prost(int32, tag = "3")]
    alarm: i32,
}

impl PutRequest {
    /// Writes the encoding of a message.
    pub fn of(key: &str, value: &impl Message) -> PutRequest {
        PutRequest { key: key.as_bytes().to_vec(), value: value.encode_to_vec() }
    }
}

/// A running etcd with default settings, except for its addresses and its quota. It is killed when it is dropped.
#[derive(Debug)]
pub struct Etcd {
    child: Child,
    port: u16,
    secure_port: Option<u16>,
    log: PathBuf,
}

impl Etcd {
    /// Starts one on free loopback ports, with its files in a new directory, and waits until it writes.
    pub async fn start(directory: &Path) -> Etcd {
        Etcd::start_with(directory, None).await
    }

    /// The same; it also serves clients with certificates of this authority, at [`Etcd::secure_url`].
    pub async fn start_with(directory: &Path, authority: Option<&Authority>) -> Etcd {
        fs::create_dir_all(directory).expect("a directory for etcd");
        let (port, peers) = (free_port(), format!("http://127.0.0.1:{}", free_port()));
        let mut clients = format!("http://127.0.0.1:{port}");
        let secure_port = authority.map(|_| free_port());
        if let Some(port) = secure_port {
            clients.push_str(&format!(",https://127.0.0.1:{port}"));
        }
        let log = directory.join("log");
        let output = fs::File::create(&log).expect("a file");
        let chosen = std::env::var("MUSTER_TEST_ETCD");
        let mut command = Command::new(tool(chosen.as_deref().unwrap_or(PROGRAMS[0])));
        // etcd takes flags from variables too.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ETCD_"))
        {
            command.env_remove(name);
        }
        if let Some(authority) = authority {
            let [cert, key] = authority.issue("etcd", "");
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(authority.own());
            command.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
        }
        let child = command
            .args(["--name", "bench", "--data-dir"])
            .arg(directory.join("data"))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("bench={peers}")])
            // Its history of large values would exceed the default of 2 GiB, and it would refuse further writes.
            .args(["--quota-backend-bytes", &(8_u64 << 30).to_string()])
            .args(["--logger", "zap", "--log-level", "warn"])
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle of it"))
            .stderr(output)
            .spawn()
            .expect("etcd can be run");
        let mut etcd = Etcd { child, port, secure_port, log };
        etcd.wait_until_it_writes().await;
        etcd
    }

    async fn wait_until_it_writes(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.writes().await {
            let ended = self.child.try_wait().expect("etcd is our child");
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                panic!("etcd does not write ({ended:?}); its log:\n{log}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn writes(&self) -> bool {
        let endpoint = Endpoint::from_shared(self.url()).expect("a sound URL");
        let Ok(channel) = endpoint.connect().await else {
            return false;
        };
        let first = PutRequest { key: b"first".to_vec(), value: Vec::new() };
        RawClient::new(channel, PUT).call(first.encode_to_vec()).await.is_ok()
    }

    /// Writes a key of somebody else.
    pub async fn put(&self, key: &str) {
        let channel = Endpoint::from_shared(self.url()).expect("a sound URL").connect_lazy();
        let request = PutRequest { key: key.as_bytes().to_vec(), value: Vec::new() };
        RawClient::new(channel, PUT).call(request.encode_to_vec()).await.expect("etcd writes");
    }

    /// Where it serves clients.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Where it serves clients with TLS.
    pub fn secure_url(&self) -> String {
        format!("https://localhost:{}", self.secure_port.expect("it was started with certificates"))
    }

    /// Raises the alarm that its space is used up, or disarms it, as an operator does.
    pub async fn set_space_alarm(&self, is_raised: bool) {
        let action = if is_raised { ACTIVATE } else { DEACTIVATE };
        let request = AlarmRequest { action, member_id: 1, alarm: NOSPACE };
        let channel = Endpoint::from_shared(self.url()).expect("a sound URL").connect_lazy();
        let changed = RawClient::new(channel, ALARM).call(request.encode_to_vec()).await;
        changed.expect("etcd takes the alarm");
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
