//! TLS settings: mutual TLS, or none on addresses that only this machine can reach.
//!
//! [`TlsFlags`] are the operator's flags; [`Security`] is the checked result for one listening address, with all files
//! read, so that an invalid flag stops the process before it binds. [`ClientTls`] is the same for calls: it accepts only
//! servers of the role that the caller names.
//!
//! Both use the same [`Credentials`]. [`follow`] reads their files again while the process runs; each new connection
//! uses what was read last. [`Revocations`] ends connections before their certificates expire.

mod any_server;
pub mod certificate;
mod client;
mod credentials;
mod reload;
pub mod revocation;
mod server_role;
mod server_tls;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

pub use self::client::{ClientTls, Target};
pub use self::credentials::{Credentials, PemFile};
pub use self::reload::follow;
pub use self::revocation::{Revocations, RevokedCertificates};
pub(crate) use self::server_tls::ServerTls;

/// The protocol that both sides of gRPC agree on in the handshake.
const HTTP_2: &[u8] = b"h2";
/// What clients of pages may choose from.
pub(crate) const ANY_HTTP: &[&[u8]] = &[HTTP_2, b"http/1.1"];
pub(crate) const GRPC: &[&[u8]] = &[HTTP_2];

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
    #[error("{flag}: {} cannot be used: {reason}", path.display())]
    Unusable { flag: &'static str, path: PathBuf, reason: String },
    #[error("{flag}: {} is not the key of {}: {reason}", path.display(), certificate.display())]
    Mismatch { flag: &'static str, path: PathBuf, certificate: PathBuf, reason: String },
    #[error("the authorities cannot be used: {0}")]
    Authorities(String),
    #[error("{url} is not the address of a server with TLS: {reason}")]
    Url { url: String, reason: String },
}

/// The checked TLS setup of one listening address.
#[derive(Clone, Debug)]
pub enum Security {
    /// No TLS: every caller is the administrator. The warning, if any, is for the log.
    Plain { warning: Option<String> },
    /// TLS with client certificates.
    MutualTls(Credentials),
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

    /// The TLS setup for calls with the same certificate, trusting the same authorities. `None` without TLS.
    pub fn client(&self) -> Option<ClientTls> {
        match self {
            Security::Plain { .. } => None,
            Security::MutualTls(credentials) => Some(ClientTls::new(credentials.clone())),
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
        Ok(Security::MutualTls(Credentials::read(ca, cert, key)?))
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

#[cfg(test)]
mod tests;
