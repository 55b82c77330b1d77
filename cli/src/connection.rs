//! How `muster` connects: addresses, certificates, namespace and timeout.
//!
//! Each setting comes from its flag, else its environment variable, else the context of the config file, else the
//! default for a Muster on this machine.

pub(crate) mod agent;
pub(crate) mod context;
mod leader;
mod peer;
mod protocol;

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_grpc::fleet_service_client::FleetServiceClient;
use muster_proto::identity::ServerRole;
use muster_proto::name::Namespace;
use muster_proto::record::Kind;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::config::parse_duration;
use muster_rpc::tls::{ClientTls, PemFile, Target};
use muster_store_client::{ClientError, EndpointError, StoreClient, StoreEndpoints};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

use self::context::{Context, Contexts};
pub(crate) use self::peer::{OrFailure, Peer};
use crate::failure::Failure;
use crate::up::data_dir::Sockets;

// The default addresses of `muster up`. They have no scheme: it is https if certificates are given, else http.
pub(crate) const STORE: &str = "127.0.0.1:7400";
pub(crate) const CONTROLLER: &str = "127.0.0.1:7500";
pub(crate) const KUBERNETES: &str = "127.0.0.1:7480";
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

    /// Addresses of the controllers; of several, the one that leads is called [default: http://127.0.0.1:7500]
    #[arg(long, env = "MUSTER_CONTROLLER", value_name = "URL", value_delimiter = ',')]
    pub(crate) controller: Vec<String>,

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
    controllers: Vec<String>,
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
    /// The connection of `client`, for calls of other services.
    pub(crate) channel: Channel,
    pub(crate) peer: Peer,
    pub(crate) timeout: Duration,
}

impl ConnectionFlags {
    /// Reads the config file and resolves all settings.
    pub(crate) fn resolve(&self) -> Result<Connection, Failure> {
        let contexts = Contexts::read(&self.file.path)?;
        let mut context = contexts.choose(self.file.context.as_deref())?.unwrap_or_default();
        context.namespace = namespace_from_env()?.or(context.namespace);
        // Only where nothing says which Muster is meant. A socket needs no port and no certificate.
        let unnamed = Context { namespace: context.namespace.clone(), ..Context::default() };
        let is_local = self.store.is_empty() && self.controller.is_empty() && self.tls().is_empty();
        if is_local
            && context == unnamed
            && let Some(sockets) = Sockets::live()
        {
            let url = |path: &Path| format!("unix://{}", path.display());
            context.store = vec![url(&sockets.store)];
            context.controller = vec![url(&sockets.controller)];
        }
        resolve(self, &context)
    }

    fn tls(&self) -> TlsFiles {
        TlsFiles { ca: self.tls_ca.clone(), cert: self.tls_cert.clone(), key: self.tls_key.clone() }
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

fn resolve(flags: &ConnectionFlags, context: &Context) -> Result<Connection, Failure> {
    // Each setting by itself: another certificate for a context keeps the context's CA.
    let setting = |flag: &Option<PathBuf>, own: &Option<PathBuf>| flag.clone().or_else(|| own.clone());
    let tls = TlsFiles {
        ca: setting(&flags.tls_ca, &context.tls_ca),
        cert: setting(&flags.tls_cert, &context.tls_cert),
        key: setting(&flags.tls_key, &context.tls_key),
    };
    let has_flag_tls = !flags.tls().is_empty();
    let is_plaintext = |urls: &[String]| urls.iter().any(|url| url.starts_with("http://"));
    let (other_store, other_controller) = (is_plaintext(&flags.store), is_plaintext(&flags.controller));
    let is_other = other_store || other_controller;
    if let Some(name) = &flags.file.context
        && is_other
        && !has_flag_tls
        && !tls.is_empty()
    {
        let flag = if other_store { "--store" } else { "--controller" };
        let message =
            format!("{flag} has an address without TLS (http://), but context `{name}` has certificates");
        return Err(Failure::usage(message).hint(
            "write https://, or leave --context out: without it the certificates of the context are not used for \
             an http:// address",
        ));
    }
    let first =
        |lists: [&Vec<String>; 2], default: &str| match lists.into_iter().find(|urls| !urls.is_empty()) {
            Some(urls) => urls.clone(),
            None => vec![default.to_owned()],
        };
    Ok(Connection {
        // An http:// address in a flag is another server than that of the current context, so the context's
        // certificates are not for it.
        store_uses_tls: has_flag_tls || !other_store,
        controller_uses_tls: has_flag_tls || !other_controller,
        stores: first([&flags.store, &context.store], STORE),
        controllers: first([&flags.controller, &context.controller], CONTROLLER),
        tls,
        namespace: context.namespace.clone(),
        timeout: flags.request_timeout,
    })
}

impl Connection {
    /// The namespaces of records that are given without one.
    pub(crate) fn namespaces(&self, flags: &NamespaceFlags) -> Namespaces {
        let default = self.namespace.clone();
        let default = default.unwrap_or_else(|| NAMESPACE.parse().expect("a valid name"));
        Namespaces { requested: flags.namespace.clone(), default }
    }

    /// The addresses of the stores, for a command line on another machine: a socket is of no use there.
    pub(crate) fn stores(&self) -> Vec<String> {
        let is_socket = self.stores.iter().any(|url| url.starts_with("unix:"));
        if is_socket { vec![STORE.to_owned()] } else { self.stores.clone() }
    }

    /// The first store's URL, and with TLS the files of authority, certificate and key.
    pub(crate) fn store_credentials(&self) -> Result<(String, Option<[&Path; 3]>), Failure> {
        let tls = if self.store_uses_tls { self.tls.read()? } else { None };
        let files = [&self.tls.ca, &self.tls.cert, &self.tls.key].map(Option::as_deref);
        let [ca, cert, key] = files;
        let files = ca.zip(cert).zip(key).map(|((ca, cert), key)| [ca, cert, key]);
        let store = self.stores().into_iter().next().unwrap_or_default();
        Ok((with_scheme(&store, tls.is_some()), files.filter(|_| tls.is_some())))
    }

    /// The files of certificates, with the flags that can name them.
    pub(crate) fn certificate_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [("--tls-cert", &self.tls.cert), ("--tls-ca", &self.tls.ca)];
        files.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?)))
    }

    /// The time limit for the answer to a request.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
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

    /// The client of the controller. Of several addresses it is the one that leads, which needs a call to each; with one
    /// address nothing is sent yet.
    pub(crate) async fn controller(&self) -> Result<Controller, Failure> {
        let mut controllers = self.controllers()?;
        let leader = if controllers.len() > 1 { leader::find(&controllers).await } else { None };
        // Without a leader the first one tells why, in the answer to the command's own call.
        Ok(controllers.swap_remove(leader.unwrap_or(0)))
    }

    /// The clients of all addresses of controllers. Nothing is sent yet.
    pub(crate) fn controllers(&self) -> Result<Vec<Controller>, Failure> {
        let tls = if self.controller_uses_tls { self.tls.read()? } else { None };
        self.controllers.iter().map(|url| self.controller_at(url, tls.as_ref())).collect()
    }

    fn controller_at(&self, url: &str, tls: Option<&ClientTls>) -> Result<Controller, Failure> {
        let url = with_scheme(url, tls.is_some());
        let target = target(&url, tls, ServerRole::Controller, self.timeout).map_err(|reason| {
            Failure::usage(format!("{url} is not the address of a controller: {reason}"))
                .hint("--controller, MUSTER_CONTROLLER or the context sets the address")
        })?;
        let channel = target.connect_lazy();
        let client = FleetServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let peer = Peer::controller(url, self.timeout);
        Ok(Controller { client, channel, peer, timeout: self.timeout })
    }

    /// A connection of its own to each store, for checks of each address.
    pub(crate) fn store_channels(&self) -> Result<Vec<(Peer, Channel)>, Failure> {
        let tls = if self.store_uses_tls { self.tls.read()? } else { None };
        let channel = |url: &String| {
            let url = with_scheme(url, tls.is_some());
            let target = target(&url, tls.as_ref(), ServerRole::Store, self.timeout)
                .map_err(|reason| Failure::usage(format!("--store: {url}: {reason}")))?;
            Ok((Peer::store(url, self.timeout), target.connect_lazy()))
        };
        self.stores.iter().map(channel).collect()
    }

    /// A connection to each agent at these addresses. They have the certificates of the stores.
    pub(crate) fn agent_channels(&self, urls: &[String]) -> Result<Vec<(Peer, Channel)>, Failure> {
        let tls = if self.store_uses_tls { self.tls.read()? } else { None };
        let channel = |url: &String| {
            let url = with_scheme(url, tls.is_some());
            let tls = tls.as_ref().filter(|_| !url.starts_with("http://"));
            let target = target(&url, tls, ServerRole::Agent, self.timeout)
                .map_err(|reason| Failure::usage(format!("--agent: {url}: {reason}")))?;
            Ok((Peer::agent(url, "--agent", self.timeout), target.connect_lazy()))
        };
        urls.iter().map(channel).collect()
    }

    /// A request with the request timeout as its deadline.
    pub(crate) fn with_timeout<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }
}

/// Where one server is and how it is called, or why it cannot be.
fn target(url: &str, tls: Option<&ClientTls>, role: ServerRole, timeout: Duration) -> Result<Target, String> {
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| error.to_string())?;
    let target = match (tls, url.starts_with("https://")) {
        (Some(tls), true) => tls.target(url, role).map_err(|error| error.to_string())?,
        (None, false) => Target::from(endpoint),
        (Some(_), false) => return Err("it has no TLS (http://) although certificates are given".to_owned()),
        (None, true) => return Err("it needs --tls-ca, --tls-cert and --tls-key".to_owned()),
    };
    // A stream may have no messages for a long time. Keep-alive pings detect a dead connection within the request
    // timeout.
    Ok(target.configure(|endpoint| {
        endpoint
            .connect_timeout(timeout)
            .http2_keep_alive_interval(timeout)
            .keep_alive_timeout(timeout)
            .tcp_nodelay(true)
    }))
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
pub(crate) fn resolve_without_file(flags: &ConnectionFlags) -> Connection {
    resolve(flags, &Context::default()).expect("nothing contradicts a context without settings")
}

#[cfg(test)]
mod tests;
