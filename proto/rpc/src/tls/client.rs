//! Calls with mutual TLS: each new connection uses the certificates that the files hold then.

use std::fmt;
use std::sync::Arc;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use muster_proto::identity::ServerRole;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::{Service, service_fn};

use super::any_server::AnyServer;
use super::credentials::{Credentials, PemFile, provider};
use super::server_role::RoleVerifier;
use super::{HTTP_2, TlsError};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Which servers a client trusts, and the certificate it presents.
#[derive(Clone, Debug)]
enum Trust {
    /// Its own certificate, and the authorities beside it.
    Mutual(Credentials),
    /// These authorities; a machine that joins has no certificate yet.
    Anonymous(Arc<RootCertStore>),
    /// Any server.
    Unverified,
}

/// What a client needs for TLS.
#[derive(Clone, Debug)]
pub struct ClientTls {
    trust: Trust,
    /// The name that the server's certificate must have, instead of the one in the URL.
    server_name: Option<String>,
}

impl ClientTls {
    /// Reads the authorities to trust and the client's own certificate and key.
    ///
    /// # Errors
    /// When a file cannot be read, is not PEM, or does not fit the others.
    pub fn read(ca: PemFile<'_>, cert: PemFile<'_>, key: PemFile<'_>) -> Result<ClientTls, TlsError> {
        Credentials::read(ca, cert, key).map(ClientTls::new)
    }

    pub fn new(credentials: Credentials) -> ClientTls {
        ClientTls { trust: Trust::Mutual(credentials), server_name: None }
    }

    /// Without a certificate of its own, for a machine that joins. `authorities` is PEM.
    ///
    /// # Errors
    /// When it holds no certificate that can be an authority.
    pub fn anonymous(authorities: &str) -> Result<ClientTls, TlsError> {
        let unusable = |error: &dyn fmt::Display| TlsError::Authorities(error.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
            let certificate = certificate.map_err(|error| unusable(&error))?;
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
        if roots.is_empty() {
            return Err(unusable(&"there is no certificate in PEM format"));
        }
        Ok(ClientTls { trust: Trust::Anonymous(Arc::new(roots)), server_name: None })
    }

    /// Without a certificate of its own, and without a look at the server's: for the first question of a machine that
    /// joins, whose answer must prove itself. No secret may be sent.
    pub fn unverified() -> ClientTls {
        ClientTls { trust: Trust::Unverified, server_name: None }
    }

    /// Expects the server's certificate to carry this name instead of the one in the URL.
    #[must_use]
    pub fn server_name(self, name: impl Into<String>) -> ClientTls {
        ClientTls { server_name: Some(name.into()), ..self }
    }

    /// Its own certificate, key and authorities, unless it has none.
    pub fn credentials(&self) -> Option<&Credentials> {
        match &self.trust {
            Trust::Mutual(credentials) => Some(credentials),
            Trust::Anonymous(_) | Trust::Unverified => None,
        }
    }

    /// The server at an `https://` URL, with mutual TLS. Its connections fail unless the server has that role: every
    /// certificate comes from the same authority, and one of a node must not pass for the store's.
    ///
    /// # Errors
    /// When it is no such URL.
    pub fn target(&self, url: &str, expected: ServerRole) -> Result<Target, TlsError> {
        let unusable =
            |reason: &dyn fmt::Display| TlsError::Url { url: url.to_owned(), reason: reason.to_string() };
        let Some(rest) = url.strip_prefix("https://") else {
            return Err(unusable(&"must start with https://"));
        };
        let uri: Uri = url.parse().map_err(|error| unusable(&error))?;
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(|error| unusable(&error))?;
        // tonic refuses an https URL that it does not secure itself, so it gets another one and this one as the origin.
        let endpoint = Endpoint::from_shared(format!("http://{rest}")).map_err(|error| unusable(&error))?;
        let endpoint = endpoint.origin(uri.clone());
        let connector = Connector { trust: self.trust.clone(), expected, name, uri: uri.clone() };
        Ok(Target { uri, endpoint, connector: Some(connector) })
    }
}

/// A server, and how to connect to it.
#[derive(Clone, Debug)]
pub struct Target {
    uri: Uri,
    endpoint: Endpoint,
    connector: Option<Connector>,
}

/// Without TLS.
impl From<Endpoint> for Target {
    fn from(endpoint: Endpoint) -> Target {
        Target { uri: endpoint.uri().clone(), endpoint, connector: None }
    }
}

impl Target {
    /// Changes the settings of its connections.
    #[must_use]
    pub fn configure(self, change: impl FnOnce(Endpoint) -> Endpoint) -> Target {
        Target { endpoint: change(self.endpoint), ..self }
    }

    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Connects when first used, and again whenever the connection has ended.
    pub fn connect_lazy(&self) -> Channel {
        match &self.connector {
            None => self.endpoint.connect_lazy(),
            Some(connector) => self.endpoint.connect_with_connector_lazy(self.service(connector)),
        }
    }

    /// Connects now, and again whenever the connection has ended.
    ///
    /// # Errors
    /// When the server cannot be reached, or is not what was expected.
    pub async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        match &self.connector {
            None => self.endpoint.connect().await,
            Some(connector) => self.endpoint.connect_with_connector(self.service(connector)).await,
        }
    }

    /// The connector as tonic calls it.
    fn service(
        &self,
        connector: &Connector,
    ) -> impl Service<
        Uri,
        Response = TokioIo<TlsStream<TcpStream>>,
        Error = BoxError,
        Future = impl Future<Output = Result<TokioIo<TlsStream<TcpStream>>, BoxError>> + Send + use<>,
    > + Send
    + use<> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(self.endpoint.get_tcp_nodelay());
        tcp.set_connect_timeout(self.endpoint.get_connect_timeout());
        let connector = connector.clone();
        service_fn(move |_| connector.clone().connect(tcp.clone()))
    }
}

/// Connects to one server with mutual TLS.
#[derive(Clone, Debug)]
struct Connector {
    trust: Trust,
    expected: ServerRole,
    name: ServerName<'static>,
    uri: Uri,
}

impl Connector {
    async fn connect(self, mut tcp: HttpConnector) -> Result<TokioIo<TlsStream<TcpStream>>, BoxError> {
        let socket = tcp.call(self.uri.clone()).await?.into_inner();
        let stream = TlsConnector::from(Arc::new(self.config()?)).connect(self.name, socket).await?;
        if stream.get_ref().1.alpn_protocol() != Some(HTTP_2) {
            return Err("the server does not speak HTTP/2".into());
        }
        Ok(TokioIo::new(stream))
    }

    fn config(&self) -> Result<ClientConfig, rustls::Error> {
        let url = self.uri.to_string();
        let url = url.trim_end_matches('/');
        let builder =
            ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = builder.dangerous();
        let role = |roots: &Arc<RootCertStore>| RoleVerifier::new(Arc::clone(roots), self.expected, url);
        let mut config = match &self.trust {
            Trust::Mutual(credentials) => {
                let material = credentials.current();
                let identity = Arc::new(SingleCertAndKey::from(Arc::clone(&material.identity)));
                builder
                    .with_custom_certificate_verifier(Arc::new(role(&material.roots)?))
                    .with_client_cert_resolver(identity)
            }
            Trust::Anonymous(roots) => {
                builder.with_custom_certificate_verifier(Arc::new(role(roots)?)).with_no_client_auth()
            }
            Trust::Unverified => builder
                .with_custom_certificate_verifier(Arc::new(AnyServer { provider: provider() }))
                .with_no_client_auth(),
        };
        config.alpn_protocols = vec![HTTP_2.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}
