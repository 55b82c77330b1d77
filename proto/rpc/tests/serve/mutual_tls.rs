//! Mutual TLS over a real handshake: the certificate is the caller's identity, and without one there is no call.

use std::path::PathBuf;
use std::time::Duration;

use muster_proto::identity::ServerRole;
use muster_rpc::server::ServerConfig;
use muster_rpc::tls::{ClientTls, PemFile, Security, TlsFlags};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::probe::{Client, Running, patiently, start};

/// A certificate authority that writes what it issues to files.
pub(crate) struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { dir, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Issues a certificate and returns the paths of it and its key.
    pub(crate) fn issue(&self, common_name: &str, organization: &str) -> [PathBuf; 2] {
        self.issue_until(common_name, organization, None)
    }

    /// Issues a certificate that ends at this time, in seconds since 1970.
    pub(crate) fn issue_until(
        &self,
        common_name: &str,
        organization: &str,
        not_after: Option<u64>,
    ) -> [PathBuf; 2] {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        if let Some(seconds) = not_after {
            params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        }
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = common_name.replace(':', "-");
        let paths = [self.path(&format!("{file}.pem")), self.path(&format!("{file}.key"))];
        std::fs::write(&paths[0], certificate.pem()).unwrap();
        std::fs::write(&paths[1], key.serialize_pem()).unwrap();
        paths
    }

    pub(crate) fn client(&self, common_name: &str, organization: &str) -> ClientTls {
        self.read(self.issue(common_name, organization))
    }

    /// The client with these files.
    pub(crate) fn read(&self, [cert, key]: [PathBuf; 2]) -> ClientTls {
        let ca = self.path("ca.pem");
        ClientTls::read(PemFile::new("--ca", &ca), PemFile::new("--cert", &cert), PemFile::new("--key", &key))
            .unwrap()
    }
}

async fn start_with(authority: &Authority) -> Running {
    start_as(ServerConfig::default(), authority, "store", "muster:stores").await
}

/// A server that requires certificates of this authority.
pub(crate) async fn start_secure(config: ServerConfig, authority: &Authority) -> Running {
    start_as(config, authority, "store", "muster:stores").await
}

async fn start_as(
    config: ServerConfig,
    authority: &Authority,
    common_name: &str,
    organization: &str,
) -> Running {
    start(config, security(authority, common_name, organization)).await
}

/// The setup of a server with a certificate of this authority.
pub(crate) fn security(authority: &Authority, common_name: &str, organization: &str) -> Security {
    let [cert, key] = authority.issue(common_name, organization);
    let flags = TlsFlags {
        tls_cert: Some(cert),
        tls_key: Some(key),
        tls_client_ca: Some(authority.path("ca.pem")),
        insecure: false,
    };
    flags.security("0.0.0.0:7400".parse().unwrap()).unwrap()
}

/// A new connection with such a certificate.
pub(crate) async fn connect_as(server: &Running, tls: &ClientTls) -> Client {
    let target = tls.target(&url(server), ServerRole::Store).unwrap();
    Client { channel: patiently(target.connect()).await.unwrap() }
}

fn url(server: &Running) -> String {
    format!("https://localhost:{}", server.address.port())
}

pub(crate) async fn who_am_i(server: &Running, tls: &ClientTls) -> Result<String, String> {
    ask(patiently(tls.target(&url(server), ServerRole::Store).unwrap().connect()).await).await
}

async fn ask(connected: Result<Channel, tonic::transport::Error>) -> Result<String, String> {
    // In TLS 1.3 a client learns that its certificate was refused only after its own half of the handshake.
    let channel = connected.map_err(|error| root_cause(&error))?;
    Client { channel }.call("WhoAmI").await.map_err(|status| status.to_string())
}

#[tokio::test]
async fn the_certificate_is_the_callers_identity() {
    let authority = Authority::new();
    let server = start_with(&authority).await;
    for (common_name, organization, expected) in [
        ("node:a", "muster:nodes", "node:a"),
        ("system:node:b", "system:nodes", "node:b"),
        ("eva", "muster:admins", "admin"),
        ("c1", "muster:controllers", "controller"),
    ] {
        let tls = authority.client(common_name, organization);
        let found = who_am_i(&server, &tls).await;
        assert_eq!(found.as_deref(), Ok(expected), "CN={common_name} O={organization}");
    }
}

#[tokio::test]
async fn a_caller_without_a_trusted_certificate_is_refused() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = start_with(&authority).await;
    let ours = std::fs::read(authority.path("ca.pem")).unwrap();
    let anonymous = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&ours));
    let anonymous = Endpoint::from_shared(url(&server)).unwrap().tls_config(anonymous).unwrap();
    assert!(ask(patiently(anonymous.connect()).await).await.is_err(), "no certificate");

    let [cert, key] = stranger.issue("eva", "muster:admins");
    let ca = authority.path("ca.pem");
    let foreign = ClientTls::read(
        PemFile::new("--ca", &ca),
        PemFile::new("--cert", &cert),
        PemFile::new("--key", &key),
    );
    assert!(who_am_i(&server, &foreign.unwrap()).await.is_err(), "a certificate of another authority");
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_called() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = start_with(&stranger).await;
    let tls = authority.client("eva", "muster:admins");
    let refused = who_am_i(&server, &tls).await.unwrap_err();
    assert!(refused.contains("invalid peer certificate"), "{refused}");
}

#[tokio::test]
async fn a_server_of_another_role_is_not_called() {
    let authority = Authority::new();
    let tls = authority.client("eva", "muster:admins");
    for (common_name, organization, accepted) in [
        ("store", "muster:stores", Some(ServerRole::Store)),
        ("c1", "muster:controllers", Some(ServerRole::Controller)),
        ("node:a", "muster:nodes", Some(ServerRole::Agent)),
        ("eva", "muster:admins", None),
        ("store", "guests", None),
    ] {
        let server = start_as(ServerConfig::default(), &authority, common_name, organization).await;
        for expected in [ServerRole::Store, ServerRole::Controller, ServerRole::Agent] {
            let answer = ask(patiently(tls.target(&url(&server), expected).unwrap().connect()).await).await;
            if accepted == Some(expected) {
                assert_eq!(answer.as_deref(), Ok("admin"), "{organization} as {expected}");
                continue;
            }
            let url = format!("https://localhost:{}", server.address.port());
            let reason = format!(
                "the server at {url} presents a certificate of role {organization}, expected {expected}"
            );
            let refused = answer.unwrap_err();
            assert!(refused.contains(&reason), "{organization} as {expected}: {refused}");
        }
    }
}

/// The last cause: tonic's own text is only "transport error".
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |&cause| cause.source()).last().unwrap().to_string()
}
