//! The real `muster-store` as a child process, with mutual TLS.

use std::path::Path;

use muster_proto::identity::ServerRole;
use tonic::transport::{Channel, Endpoint};

use crate::certificate_authority::Authority;
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

    /// How to connect with a certificate.
    pub fn endpoint(&self, common_name: &str, organization: &str) -> Endpoint {
        let tls = self.authority.client(common_name, organization);
        let url = self.store.url().replace("http://", "https://");
        let endpoint = Endpoint::from_shared(url).expect("a store has an address").tcp_nodelay(true);
        tls.secure(endpoint, ServerRole::Store).expect("certificates that can be used")
    }

    /// Opens a connection with a certificate.
    pub async fn connect(&self, common_name: &str, organization: &str) -> Channel {
        let connected = self.endpoint(common_name, organization).connect().await;
        connected.expect("the store accepts the certificate")
    }
}
