//! How `muster` connects: addresses, certificates, namespace and timeout.
//!
//! Each setting comes from its flag, else its environment variable, else the context of the config file, else the
//! default for a Muster on this machine.

pub(crate) mod context;
mod peer;

use std::path::PathBuf;
use std::time::Duration;

use muster_grpc::fleet_service_client::FleetServiceClient;
use muster_proto::identity::ServerRole;
use muster_proto::name::Namespace;
use muster_proto::record::Kind;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::config::parse_duration;
use muster_rpc::tls::{ClientTls, PemFile};
use muster_store_client::{ClientError, EndpointError, StoreClient, StoreEndpoints};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

use self::context::{Context, Contexts};
pub(crate) use self::peer::{OrFailure, Peer};
use crate::failure::Failure;

// The default addresses of `muster up`. They have no scheme: it is https if certificates are given, else http.
pub(crate) const STORE: &str = "127.0.0.1:7400";
pub(crate) const CONTROLLER: &str = "127.0.0.1:7500";
const NAMESPACE: &str = "default";
/// Not the `env` of the flag: clap would treat it as a given flag, which conflicts with --all-namespaces and with
/// the namespace of a manifest.
const NAMESPACE_VARIABLE: &str = "MUSTER_NAMESPACE";

/// The flags of every command that calls the store or the controller.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionFlags {
    /// Addresses of the stores, in order of preference [default: http://127.0.0.1:7400]
    #[arg(long, env = "MUSTER_STORE", value_name = "URL", value_delimiter = ',')]
    pub(crate) store: Vec<String>,

    /// Address of the controller [default: http://127.0.0.1:7500]
    #[arg(long, env = "MUSTER_CONTROLLER", value_name = "URL")]
    pub(crate) controller: Option<String>,

    /// CA certificates that the servers' certificates are checked against, PEM
    #[arg(long, env = "MUSTER_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Client certificate, PEM
    #[arg(long, env = "MUSTER_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, PEM
    #[arg(long, env = "MUSTER_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Time limit for the answer to a request
    #[arg(
        long,
        env = "MUSTER_REQUEST_TIMEOUT",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = parse_duration
    )]
    pub(crate) request_timeout: Duration,

    #[command(flatten)]
    pub(crate) file: ConfigFlags,
}

/// The config file and the context to use.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConfigFlags {
    /// Context of the config file [default: the current context]
    #[arg(long, env = "MUSTER_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,

    #[command(flatten)]
    pub(crate) path: ConfigPath,
}

/// The config file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConfigPath {
    /// Config file with contexts [default: muster/config.toml in $XDG_CONFIG_HOME or ~/.config]
    // Not MUSTER_CONFIG: that is the config file of a service, which may run in the same environment.
    #[arg(long, env = "MUSTER_CONTEXTS", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The namespace of the records.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct NamespaceFlags {
    /// Namespace of the records [default: MUSTER_NAMESPACE, else the context's namespace, else default; for leases
    /// kube-node-lease]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<Namespace>,
}

/// The namespaces of records that are given without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// The namespace of the flag.
    pub(crate) requested: Option<Namespace>,
    /// The namespace of the environment variable or the context, else `default`.
    default: Namespace,
}

impl Namespaces {
    /// The namespace of a kind. For leases the default is the namespace of the node leases.
    pub(crate) fn of(&self, kind: Kind) -> Namespace {
        match (&self.requested, kind) {
            (Some(requested), _) => requested.clone(),
            (None, Kind::Lease) => NODE_LEASE_NAMESPACE.parse().expect("a valid name"),
            (None, _) => self.default.clone(),
        }
    }
}

/// The resolved settings of flags, environment variables and config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    stores: Vec<String>,
    controller: String,
    tls: TlsFiles,
    /// Whether the certificates are used for this address. The certificates of a context are not used for an `http://`
    /// address that comes from a flag.
    store_uses_tls: bool,
    controller_uses_tls: bool,
    namespace: Option<Namespace>,
    timeout: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TlsFiles {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl TlsFiles {
    fn is_empty(&self) -> bool {
        *self == TlsFiles::default()
    }

    fn read(&self) -> Result<Option<ClientTls>, Failure> {
        let TlsFiles { ca, cert, key } = self;
        match (ca, cert, key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => {
                let file = PemFile::new;
                let tls =
                    ClientTls::read(file("--tls-ca", ca), file("--tls-cert", cert), file("--tls-key", key));
                tls.map(Some).map_err(|error| {
                    Failure::usage(error).hint("`muster certs DIR` creates certificates for development")
                })
            }
            _ => {
                let missing = [("--tls-ca", ca), ("--tls-cert", cert), ("--tls-key", key)];
                let missing: Vec<&str> =
                    missing.iter().filter(|(_, file)| file.is_none()).map(|(flag, _)| *flag).collect();
                let verb = if missing.len() == 1 { "is" } else { "are" };
                let failure = Failure::usage(format!("{} {verb} missing", missing.join(" and ")));
                Err(failure.hint("TLS needs --tls-ca, --tls-cert and --tls-key, as flags or in the context"))
            }
        }
    }
}

/// The store's client, and its name and address for error messages.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) client: StoreClient,
    pub(crate) peer: Peer,
}

/// The controller's client, and its name and address for error messages.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    pub(crate) client: FleetServiceClient<Channel>,
    pub(crate) peer: Peer,
    pub(crate) timeout: Duration,
}

impl ConnectionFlags {
    /// Reads the config file and resolves all settings.
    pub(crate) fn resolve(&self) -> Result<Connection, Failure> {
        let contexts = Contexts::read(&self.file.path)?;
        let mut context = contexts.choose(self.file.context.as_deref())?.unwrap_or_default();
        context.namespace = namespace_from_env()?.or(context.namespace);
        Ok(resolve(self, &context))
    }
}

/// The namespace of the environment variable, if it is set.
fn namespace_from_env() -> Result<Option<Namespace>, Failure> {
    let value = std::env::var(NAMESPACE_VARIABLE).ok().filter(|name| !name.is_empty());
    let namespace = value.map(|name| {
        name.parse::<Namespace>()
            .map_err(|error| Failure::usage(format!("{NAMESPACE_VARIABLE}: `{name}` {error}")))
    });
    namespace.transpose()
}

fn resolve(flags: &ConnectionFlags, context: &Context) -> Connection {
    let flag_tls =
        TlsFiles { ca: flags.tls_ca.clone(), cert: flags.tls_cert.clone(), key: flags.tls_key.clone() };
    let context_tls =
        TlsFiles { ca: context.tls_ca.clone(), cert: context.tls_cert.clone(), key: context.tls_key.clone() };
    let is_context_tls = flag_tls.is_empty();
    let is_plaintext = |url: &str| url.starts_with("http://");
    // An http:// address in a flag is another server than the context's, so the context's certificates are not for it.
    let other_store = is_context_tls && flags.store.iter().any(|url| is_plaintext(url));
    let other_controller = is_context_tls && flags.controller.as_deref().is_some_and(is_plaintext);
    let stores = [&flags.store, &context.store].into_iter().find(|urls| !urls.is_empty()).cloned();
    let controller = flags.controller.clone().or_else(|| context.controller.clone());
    Connection {
        store_uses_tls: !other_store,
        controller_uses_tls: !other_controller,
        stores: stores.unwrap_or_else(|| vec![STORE.to_owned()]),
        controller: controller.unwrap_or_else(|| CONTROLLER.to_owned()),
        tls: if is_context_tls { context_tls } else { flag_tls },
        namespace: context.namespace.clone(),
        timeout: flags.request_timeout,
    }
}

impl Connection {
    /// The namespaces of records that are given without one.
    pub(crate) fn namespaces(&self, flags: &NamespaceFlags) -> Namespaces {
        let default = self.namespace.clone();
        let default = default.unwrap_or_else(|| NAMESPACE.parse().expect("a valid name"));
        Namespaces { requested: flags.namespace.clone(), default }
    }

    /// The store's client. Nothing is sent yet.
    pub(crate) fn store(&self) -> Result<Store, Failure> {
        let tls = if self.store_uses_tls { self.tls.read()? } else { None };
        let urls: Vec<String> = self.stores.iter().map(|url| with_scheme(url, tls.is_some())).collect();
        let peer = Peer::store(urls.join(", "), self.timeout);
        let endpoints = StoreEndpoints { deadline: self.timeout, ..StoreEndpoints::new(urls).with_tls(tls) };
        let client = StoreClient::connect(endpoints).map_err(|error| unusable(&error, "--store"))?;
        Ok(Store { client, peer })
    }

    /// The controller's client. Nothing is sent yet.
    pub(crate) fn controller(&self) -> Result<Controller, Failure> {
        let tls = if self.controller_uses_tls { self.tls.read()? } else { None };
        let url = with_scheme(&self.controller, tls.is_some());
        let not_an_address = |error: &dyn std::fmt::Display| {
            Failure::usage(format!("{url} is not the address of a controller: {error}"))
                .hint("--controller, MUSTER_CONTROLLER or the context sets the address")
        };
        let endpoint = Endpoint::from_shared(url.clone()).map_err(|error| not_an_address(&error))?;
        let endpoint = match (tls, url.starts_with("https://")) {
            (Some(tls), true) => {
                tls.secure(endpoint, ServerRole::Controller).map_err(|error| not_an_address(&error))?
            }
            (None, false) => endpoint,
            (Some(_), false) => {
                return Err(not_an_address(&"it has no TLS (http://) although certificates are given"));
            }
            (None, true) => return Err(not_an_address(&"it needs --tls-ca, --tls-cert and --tls-key")),
        };
        // A stream may have no messages for a long time. Keep-alive pings detect a dead connection within the request
        // timeout.
        let endpoint = endpoint
            .connect_timeout(self.timeout)
            .http2_keep_alive_interval(self.timeout)
            .keep_alive_timeout(self.timeout)
            .tcp_nodelay(true);
        let channel = endpoint.connect_lazy();
        let client = FleetServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let peer = Peer::controller(url, self.timeout);
        Ok(Controller { client, peer, timeout: self.timeout })
    }
}

impl Controller {
    /// A request with the request timeout as its deadline.
    pub(crate) fn with_timeout<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    /// Opens a stream. The request timeout applies to the first answer only: the stream itself has no time limit.
    pub(crate) async fn open_stream<T>(
        &self,
        call: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    ) -> Result<Streaming<T>, Failure> {
        let opened = tokio::time::timeout(self.timeout, call).await;
        let opened = opened.map_err(|_| self.peer.failure(ClientError::DeadlineExceeded))?;
        Ok(opened.or_failure(&self.peer)?.into_inner())
    }
}

/// The explanation of a node with many pods, or a fleet with many zones, can exceed tonic's default of 4 MiB.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;

fn with_scheme(url: &str, tls: bool) -> String {
    match url.split_once("://") {
        Some(_) => url.to_owned(),
        None => format!("{}://{url}", if tls { "https" } else { "http" }),
    }
}

fn unusable(error: &EndpointError, flag: &str) -> Failure {
    let hint = match error {
        EndpointError::NoCertificate { .. } => {
            "give --tls-ca, --tls-cert and --tls-key, or set them in a context"
        }
        EndpointError::None | EndpointError::Unusable { .. } | EndpointError::InClear { .. } => {
            "an address is http://HOST:PORT, or https://HOST:PORT with certificates"
        }
    };
    Failure::usage(format!("{flag}: {error}")).hint(hint)
}

/// Resolves the flags without a config file.
#[cfg(test)]
pub(crate) fn resolve_without_file(flags: &ConnectionFlags) -> Connection {
    resolve(flags, &Context::default())
}

#[cfg(test)]
mod tests;
