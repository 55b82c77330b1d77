//! TLS settings: mutual TLS, or none on addresses that only this machine can reach.
//!
//! [`TlsFlags`] are the operator's flags; [`Security`] is the checked result for one listening address, with all files
//! read, so that an invalid flag stops the process before it binds. [`ClientTls`] is the same for calls: it accepts only
//! servers of the role that the caller names.

mod server_role;

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_proto::identity::ServerRole;
use rustls::client::danger::ServerCertVerifier;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};
use x509_parser::pem::Pem;

use self::server_role::RoleVerifier;

/// The timeout of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

const CERT: &str = "--tls-cert";
const KEY: &str = "--tls-key";
const CLIENT_CA: &str = "--tls-client-ca";

/// The TLS flags of every Muster process. It uses its certificate as a server and as a client of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Security")]
pub struct TlsFlags {
    /// Certificate chain of this process, PEM
    #[arg(long, env = "MUSTER_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, PEM
    #[arg(long, env = "MUSTER_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Certificate authorities whose certificates are accepted from peers, PEM
    #[arg(long, env = "MUSTER_TLS_CLIENT_CA", value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,

    /// Serve without TLS on an address that other machines can reach; every caller is then an administrator
    #[arg(long, env = "MUSTER_INSECURE", value_parser = clap::builder::BoolishValueParser::new())]
    pub insecure: bool,
}

/// Why the TLS flags cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{missing} is missing: TLS needs --tls-cert, --tls-key and --tls-client-ca")]
    Incomplete { missing: &'static str },
    #[error(
        "{address} can be reached by other machines and there is no TLS: give --tls-cert, --tls-key and \
         --tls-client-ca, listen on a loopback address, or accept it with --insecure"
    )]
    Unprotected { address: SocketAddr },
    #[error("--insecure contradicts --tls-cert, --tls-key and --tls-client-ca: give one or the other")]
    Contradiction,
    #[error("{flag}: cannot read {}: {error}", path.display())]
    Unreadable { flag: &'static str, path: PathBuf, error: io::Error },
    #[error("{flag}: {} holds no {expected} in PEM format", path.display())]
    NotPem { flag: &'static str, path: PathBuf, expected: &'static str },
    #[error("the certificate, key and authorities do not work together: {0}")]
    Mismatch(String),
}

/// The checked TLS setup of one listening address.
#[derive(Clone, Debug)]
pub enum Security {
    /// No TLS: every caller is the administrator. The warning, if any, is for the log.
    Plain { warning: Option<String> },
    /// TLS with client certificates.
    MutualTls(Box<ServerTlsConfig>),
}

impl Security {
    /// No TLS, for addresses of this machine.
    pub const fn plain() -> Security {
        Security::Plain { warning: None }
    }

    /// A warning for the log.
    pub fn warning(&self) -> Option<&str> {
        match self {
            Security::Plain { warning } => warning.as_deref(),
            Security::MutualTls(_) => None,
        }
    }
}

impl TlsFlags {
    /// The TLS setup for listening on `address`.
    ///
    /// # Errors When flags are missing or contradict each other, a file cannot be used, or other machines could reach
    /// the address without TLS.
    pub fn security(&self, address: SocketAddr) -> Result<Security, TlsError> {
        let Some([cert, key, ca]) = self.files()? else {
            return self.without_tls(address);
        };
        if self.insecure {
            return Err(TlsError::Contradiction);
        }
        let config = server_config(&Material::read(ca, cert, key)?);
        // tonic checks that the key belongs to the certificate when a server is built; do that now, not in serve.
        tonic::transport::Server::builder().tls_config(config.clone()).map_err(|error| mismatch(&error))?;
        Ok(Security::MutualTls(Box::new(config)))
    }

    /// The TLS setup for this process's own calls: with its certificate, trusting the same authorities. `None` without
    /// TLS.
    ///
    /// # Errors
    /// When flags are missing or a file cannot be used.
    pub fn client(&self) -> Result<Option<ClientTls>, TlsError> {
        self.files()?.map(|[cert, key, ca]| ClientTls::read(ca, cert, key)).transpose()
    }

    fn without_tls(&self, address: SocketAddr) -> Result<Security, TlsError> {
        if address.ip().to_canonical().is_loopback() {
            Ok(Security::plain())
        } else if self.insecure {
            let warning = format!("{address} is served without TLS: every caller is an administrator");
            Ok(Security::Plain { warning: Some(warning) })
        } else {
            Err(TlsError::Unprotected { address })
        }
    }

    /// Certificate, key and authorities: all or none.
    fn files(&self) -> Result<Option<[PemFile<'_>; 3]>, TlsError> {
        let given = [(CERT, &self.tls_cert), (KEY, &self.tls_key), (CLIENT_CA, &self.tls_client_ca)];
        match given {
            [(_, None), (_, None), (_, None)] => Ok(None),
            [(_, Some(cert)), (_, Some(key)), (_, Some(ca))] => {
                Ok(Some([PemFile::new(CERT, cert), PemFile::new(KEY, key), PemFile::new(CLIENT_CA, ca)]))
            }
            some => {
                let missing = some.iter().find(|(_, path)| path.is_none()).map_or(CERT, |(flag, _)| flag);
                Err(TlsError::Incomplete { missing })
            }
        }
    }
}

/// A file of PEM blocks and the flag that named it, so that an error can say which flag to correct.
#[derive(Clone, Copy, Debug)]
pub struct PemFile<'a> {
    pub flag: &'static str,
    pub path: &'a Path,
}

impl<'a> PemFile<'a> {
    pub fn new(flag: &'static str, path: &'a Path) -> PemFile<'a> {
        PemFile { flag, path }
    }

    fn certificates(&self) -> Result<Vec<u8>, TlsError> {
        self.read("certificate", |label| label == "CERTIFICATE")
    }

    fn private_key(&self) -> Result<Vec<u8>, TlsError> {
        self.read("private key", |label| label.ends_with("PRIVATE KEY"))
    }

    fn read(&self, expected: &'static str, wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>, TlsError> {
        let PemFile { flag, path } = *self;
        let text = fs::read(path).map_err(|error| TlsError::Unreadable { flag, path: path.into(), error })?;
        let found = Pem::iter_from_buffer(&text).any(|block| block.is_ok_and(|pem| wanted(&pem.label)));
        if found { Ok(text) } else { Err(TlsError::NotPem { flag, path: path.into(), expected }) }
    }
}

/// The files of one process, as read: PEM blocks.
struct Material {
    /// The authorities of its peers.
    authorities: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Material {
    fn read(ca: PemFile<'_>, cert: PemFile<'_>, key: PemFile<'_>) -> Result<Material, TlsError> {
        let authorities = ca.certificates()?;
        Ok(Material { authorities, certificate: cert.certificates()?, key: key.private_key()? })
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(&self.certificate, &self.key)
    }
}

/// Without the key.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").finish_non_exhaustive()
    }
}

/// How a server with these files accepts connections.
fn server_config(material: &Material) -> ServerTlsConfig {
    ServerTlsConfig::new()
        .identity(material.identity())
        .client_ca_root(Certificate::from_pem(&material.authorities))
        .timeout(HANDSHAKE_TIMEOUT)
}

/// How a client with these files connects to the server at `url`, and what it requires of the server's certificate.
fn client_config(
    material: &Material,
    expected: ServerRole,
    url: &str,
) -> Result<(ClientTlsConfig, Arc<dyn ServerCertVerifier>), TlsError> {
    let verifier = RoleVerifier::new(&material.authorities, expected, url).map_err(TlsError::Mismatch)?;
    Ok((ClientTlsConfig::new().identity(material.identity()), Arc::new(verifier)))
}

/// What a client needs for mutual TLS.
#[derive(Clone, Debug)]
pub struct ClientTls {
    material: Arc<Material>,
    /// The name that the server's certificate must have, instead of the one in the URL.
    server_name: Option<String>,
}

impl ClientTls {
    /// Reads the authorities to trust and the client's own certificate and key.
    ///
    /// # Errors
    /// When a file cannot be read, is not PEM, or does not fit the others.
    pub fn read(ca: PemFile<'_>, cert: PemFile<'_>, key: PemFile<'_>) -> Result<ClientTls, TlsError> {
        let material = Arc::new(Material::read(ca, cert, key)?);
        let tls = ClientTls { material, server_name: None };
        // As for the server: building an endpoint checks that the parts fit. It is never connected.
        tls.secure(Endpoint::from_static("https://localhost"), ServerRole::Store)?;
        Ok(tls)
    }

    /// Expects the server's certificate to carry this name instead of the one in the URL.
    #[must_use]
    pub fn server_name(self, name: impl Into<String>) -> ClientTls {
        ClientTls { server_name: Some(name.into()), ..self }
    }

    /// The endpoint with mutual TLS. Its connections fail unless the server has that role: every certificate comes from
    /// the same authority, and one of a node must not pass for the store's.
    ///
    /// # Errors
    /// When the certificates cannot be used for this endpoint.
    pub fn secure(&self, endpoint: Endpoint, expected: ServerRole) -> Result<Endpoint, TlsError> {
        let url = endpoint.uri().to_string();
        let (config, verifier) = client_config(&self.material, expected, url.trim_end_matches('/'))?;
        let config = match &self.server_name {
            Some(name) => config.domain_name(name),
            None => config,
        };
        endpoint.tls_config_with_verifier(config, verifier).map_err(|error| mismatch(&error))
    }
}

/// tonic's error says only "transport error"; the reason is its source.
fn mismatch(error: &tonic::transport::Error) -> TlsError {
    let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    TlsError::Mismatch(reason)
}

#[cfg(test)]
mod tests;
