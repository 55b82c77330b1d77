//! A real store in this process, on a real socket. Its directory survives a restart.

use std::ffi::OsString;
use std::sync::Arc;

use muster_proto::identity::ServerRole;
use muster_rpc::config::parse_with_config;
use muster_rpc::shutdown::Shutdown;
use muster_store::config::Flags;
use muster_store::run::{Running, start};
use muster_store_client::{StoreClient, StoreEndpoints};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::api::Api;
use crate::audit_log::AuditLog;
use crate::certificate_authority::Authority;
use crate::{TIMEOUT, eventually, in_time};

/// A running store and its data directory.
pub struct TestStore {
    directory: TempDir,
    flags: Vec<String>,
    authority: Option<Authority>,
    audit_log: AuditLog,
    running: Running,
    shutdown: Shutdown,
    admin: Channel,
}

impl TestStore {
    /// A store without TLS: every caller is the administrator.
    pub async fn start() -> Self {
        Self::with_flags(&[]).await
    }

    /// As [`start`](Self::start), with further flags of `muster-store`.
    pub async fn with_flags(flags: &[&str]) -> Self {
        Self::open(directory(), flags.iter().map(|flag| (*flag).to_owned()).collect(), None).await
    }

    /// A store that requires client certificates.
    pub async fn secure() -> Self {
        Self::secure_with_flags(&[]).await
    }

    /// As [`secure`](Self::secure), with further flags of `muster-store`.
    pub async fn secure_with_flags(more: &[&str]) -> Self {
        let authority = Authority::new();
        let [cert, key] = authority.issue("store", "muster:stores");
        let files = [("tls-cert", cert), ("tls-key", key), ("tls-client-ca", authority.own())];
        let flags = files.iter().map(|(flag, path)| format!("--{flag}={}", path.display()));
        let flags = flags.chain(more.iter().map(|flag| (*flag).to_owned()));
        Self::open(directory(), flags.collect(), Some(authority)).await
    }

    async fn open(directory: TempDir, flags: Vec<String>, authority: Option<Authority>) -> Self {
        let shutdown = Shutdown::new();
        let data = format!("--data-dir={}", directory.path().join("store").display());
        let audit_log = directory.path().join("audit.log");
        let audit = format!("--audit-log={}", audit_log.display());
        let fixed = ["muster-store", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", &data, &audit];
        let args = fixed.into_iter().chain(flags.iter().map(String::as_str)).map(OsString::from);
        let parsed: Flags = parse_with_config(args).expect("flags that muster-store takes");
        let config = (&parsed).try_into().expect("flags that fit together");
        let running = in_time("the start of a store", start(config, shutdown.clone())).await;
        let running = running.expect("the store starts");
        let admin = channel(&running, authority.as_ref(), "eva", "muster:admins");
        Self { directory, flags, authority, audit_log: AuditLog::at(&audit_log), running, shutdown, admin }
    }

    /// Its URL, with the host name of its certificate.
    pub fn url(&self) -> String {
        url(&self.running, self.authority.is_some()).replace("127.0.0.1", "localhost")
    }

    /// The URL of its Kubernetes API, with the host name of its certificate.
    ///
    /// # Panics
    /// When it was started without one.
    pub fn kubernetes_url(&self) -> String {
        let address =
            self.running.kubernetes_address.expect("the store was started with --kubernetes-listen");
        let scheme = if self.authority.is_some() { "https" } else { "http" };
        format!("{scheme}://localhost:{}", address.port())
    }

    /// The authority of its certificates; `None` without TLS.
    pub fn authority(&self) -> Option<&Authority> {
        self.authority.as_ref()
    }

    /// The store's API for an administrator.
    pub fn api(&self) -> Api {
        Api::new(self.admin.clone(), self.admin.clone()).audited(&self.audit_log)
    }

    /// The store's API for a caller with that certificate.
    pub fn api_as(&self, common_name: &str, organization: &str) -> Api {
        let own = channel(&self.running, self.authority.as_ref(), common_name, organization);
        Api::new(own, self.admin.clone()).audited(&self.audit_log)
    }

    /// The store's API for the agent of a node.
    pub fn api_as_node(&self, name: &str) -> Api {
        self.api_as(&format!("node:{name}"), "muster:nodes")
    }

    /// The client that controller and agent use.
    pub fn client(&self) -> StoreClient {
        let endpoints = StoreEndpoints::new([url(&self.running, self.authority.is_some())]);
        let tls = self.authority.as_ref().map(|authority| authority.client("eva", "muster:admins"));
        StoreClient::connect(endpoints.with_tls(tls)).expect("an address that can be used")
    }

    /// Its audit log.
    pub fn audit_log(&self) -> &AuditLog {
        &self.audit_log
    }

    /// How often a watch was served from the disk.
    pub fn replays_from_disk(&self) -> u64 {
        self.running.store.metrics().watch_replays.get()
    }

    /// How many heartbeat streams are open.
    pub fn heartbeat_streams(&self) -> i64 {
        self.running.store.metrics().heartbeats.get()
    }

    /// How many heartbeat streams of one incarnation replaced each other too often.
    pub fn contested_heartbeats(&self) -> u64 {
        self.running.store.metrics().contested_heartbeats.get()
    }

    /// Shuts the store down; the directory stays.
    pub async fn stop(self) -> Stopped {
        let Self { directory, flags, authority, running, shutdown, admin, .. } = self;
        drop(admin);
        let store = Arc::downgrade(&running.store);
        shutdown.trigger();
        in_time("the end of the store", running.stopped()).await.expect("the store shuts down");
        // The files are unlocked when the last connection has dropped the store.
        eventually(TIMEOUT, "the last use of the store", || async {
            (store.strong_count() == 0).then_some(())
        })
        .await;
        Stopped { directory, flags, authority }
    }

    /// Restarts the store on the same directory. It listens on another port then.
    pub async fn restart(self) -> Self {
        self.stop().await.start().await
    }
}

/// The directory and settings of a stopped store.
pub struct Stopped {
    directory: TempDir,
    flags: Vec<String>,
    authority: Option<Authority>,
}

impl Stopped {
    pub async fn start(self) -> TestStore {
        TestStore::open(self.directory, self.flags, self.authority).await
    }
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory for a store")
}

fn url(running: &Running, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", running.address)
}

fn channel(running: &Running, authority: Option<&Authority>, name: &str, organization: &str) -> Channel {
    let url = url(running, authority.is_some());
    match authority {
        None => Endpoint::from_shared(url).expect("an address").connect_lazy(),
        Some(authority) => {
            let target = authority.client(name, organization).target(&url, ServerRole::Store);
            target.expect("an address").connect_lazy()
        }
    }
}
