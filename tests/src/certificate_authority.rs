//! A certificate authority for tests: issues certificates to files, as an operator would.

use std::path::PathBuf;

use muster_rpc::tls::{ClientTls, PemFile};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// A certificate authority.
pub struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// # Panics
    /// When the machine cannot make keys or files.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory for certificates");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let own = params.self_signed(&key).expect("a certificate of its own");
        std::fs::write(directory.path().join("ca.pem"), own.pem()).expect("a file");
        Self { directory, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The authority's own certificate.
    pub fn own(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// A certificate and its key.
    pub fn issue(&self, common_name: &str, organization: &str) -> [PathBuf; 2] {
        self.issue_to_host(common_name, organization, "localhost")
    }

    /// A certificate for that host name, and its key.
    fn issue_to_host(&self, common_name: &str, organization: &str, host: &str) -> [PathBuf; 2] {
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("a valid name");
        params.distinguished_name.push(DnType::CommonName, common_name);
        if !organization.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let file = format!("{common_name}.{organization}").replace([':', '/'], "-");
        let paths = [self.path(&format!("{file}.pem")), self.path(&format!("{file}.key"))];
        std::fs::write(&paths[0], certificate.pem()).expect("a file");
        std::fs::write(&paths[1], key.serialize_pem()).expect("a file");
        paths
    }

    /// A directory with the credentials of a process: `ca.crt`, `tls.crt` and `tls.key`.
    pub fn credentials(&self, common_name: &str, organization: &str) -> PathBuf {
        self.credentials_of_host(common_name, organization, "localhost")
    }

    /// The same, for a process that serves under that host name.
    pub fn credentials_of_host(&self, common_name: &str, organization: &str, host: &str) -> PathBuf {
        let [cert, key] = self.issue_to_host(common_name, organization, host);
        let directory = cert.with_extension("credentials");
        std::fs::create_dir_all(&directory).expect("a directory");
        for (from, name) in [(self.own(), "ca.crt"), (cert, "tls.crt"), (key, "tls.key")] {
            std::fs::copy(from, directory.join(name)).expect("a file");
        }
        directory
    }

    /// The client credentials of that name and group.
    pub fn client(&self, common_name: &str, organization: &str) -> ClientTls {
        let [cert, key] = self.issue(common_name, organization);
        let ca = self.own();
        let file = PemFile::new;
        let tls = ClientTls::read(file("--ca", &ca), file("--cert", &cert), file("--key", &key));
        tls.expect("certificate, key and authority fit").server_name("localhost")
    }
}
