//! The real `muster-store` as a child process, with mutual TLS.

use std::path::Path;

use muster_proto::identity::ServerRole;
use muster_rpc::tls::Target;
use tonic::transport::Channel;

use crate::certificate_authority::Authority;
use crate::controller_process::ControllerProcess;
use crate::store_process::{StoreLaunch, StoreProcess};

/// A running store, and the authority of its certificates.
pub struct SecureStore {
    pub store: StoreProcess,
    authority: Authority,
}

impl SecureStore {
    /// Starts a store on this directory and waits until it serves.
    pub fn start(data_dir: &Path) -> SecureStore {
        let authority = Authority::new();
        let [cert, key] = authority.issue("store", "muster:stores");
        let files = [("--tls-cert", cert), ("--tls-key", key), ("--tls-client-ca", authority.own())];
        let launch = files.iter().fold(StoreLaunch::on(data_dir), |launch, (flag, path)| {
            launch.flag(flag, path.to_str().expect("a temporary path is text"))
        });
        SecureStore { store: launch.start(), authority }
    }

    /// Starts a controller with a certificate of its own and these flags, and waits until it serves.
    pub fn controller(&self, flags: &[&str]) -> ControllerProcess {
        let [cert, key] = self.authority.issue("controller", "muster:controllers");
        let files = [("tls-cert", cert), ("tls-key", key), ("tls-client-ca", self.authority.own())];
        let files = files.map(|(flag, path)| format!("--{flag}={}", path.display()));
        let flags: Vec<&str> = files.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        ControllerProcess::start(&self.url(), &flags)
    }

    fn url(&self) -> String {
        let address = self.store.grpc_address();
        format!("https://localhost:{}", address.port())
    }

    /// How to connect with a certificate.
    pub fn target(&self, common_name: &str, organization: &str) -> Target {
        let tls = self.authority.client(common_name, organization);
        let target = tls.target(&self.url(), ServerRole::Store).expect("a store has an address");
        target.configure(|endpoint| endpoint.tcp_nodelay(true))
    }

    /// Opens a connection with a certificate.
    pub async fn connect(&self, common_name: &str, organization: &str) -> Channel {
        let connected = self.target(common_name, organization).connect().await;
        connected.expect("the store accepts the certificate")
    }
}
