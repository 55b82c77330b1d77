//! Where the store and the controller are, and who we are to them.
//!
//! Each setting comes from its flag, else its variable, else the context of the config file, else a default
//! for a Muster on this machine.

pub(crate) mod context;
mod peer;

use std::path::PathBuf;
use std::time::Duration;

use muster_grpc::fleet_service_client::FleetServiceClient;
use muster_proto::name::Namespace;
use muster_proto::record::Kind;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::config::parse_duration;
use muster_rpc::tls::{ClientTls, PemFile};
use muster_store_client::{ClientError, EndpointError, StoreClient, StoreEndpoints};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

use self::context::{Context, Contexts};
pub(crate) use self::peer::{At, Peer};
use crate::failure::Failure;

// Where `muster up` listens unless told otherwise. Without a scheme: certificates decide on it.
pub(crate) const STORE: &str = "127.0.0.1:7400";
pub(crate) const CONTROLLER: &str = "127.0.0.1:7500";
const NAMESPACE: &str = "default";
/// Not a variable of the flag: that would count as if it were said with each command, and contradict what is.
const NAMESPACE_VARIABLE: &str = "MUSTER_NAMESPACE";

/// Where to find Muster, and with what to be let in.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionFlags {
    /// Stores, in order of preference [default: http://127.0.0.1:7400]
    #[arg(long, env = "MUSTER_STORE", value_name = "URL", value_delimiter = ',')]
    pub(crate) store: Vec<String>,

    /// The controller [default: http://127.0.0.1:7500]
    #[arg(long, env = "MUSTER_CONTROLLER", value_name = "URL")]
    pub(crate) controller: Option<String>,

    /// Certificate authorities that the servers' certificates must come from, PEM
    #[arg(long, env = "MUSTER_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Certificate that says who we are, PEM
    #[arg(long, env = "MUSTER_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, PEM
    #[arg(long, env = "MUSTER_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// How long an answer may take
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

/// Which config file, and what of it.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConfigFlags {
    /// Context of the config file to use instead of the current one
    #[arg(long, env = "MUSTER_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,

    #[command(flatten)]
    pub(crate) path: ConfigPath,
}

/// Which config file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConfigPath {
    /// File with contexts [default: muster/config.toml in $XDG_CONFIG_HOME or ~/.config]
    // Not MUSTER_CONFIG: that names the settings of a service, which may run in the same environment.
    #[arg(long, env = "MUSTER_CONTEXTS", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Which namespace records are looked for in.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct NamespaceFlags {
    /// Namespace of the records [default: MUSTER_NAMESPACE, that of the context, or default; of leases
    /// kube-node-lease]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<Namespace>,
}

/// The namespace of a record that does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// As the caller said it.
    pub(crate) asked: Option<Namespace>,
    /// As the variable or the context says it.
    usual: Namespace,
}

impl Namespaces {
    /// Where records of a kind are looked for. The leases that an operator means are the nodes'.
    pub(crate) fn of(&self, kind: Kind) -> Namespace {
        match (&self.asked, kind) {
            (Some(asked), _) => asked.clone(),
            (None, Kind::Lease) => NODE_LEASE_NAMESPACE.parse().expect("a valid name"),
            (None, _) => self.usual.clone(),
        }
    }
}

/// What flags, variables and config file come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    stores: Vec<String>,
    controller: String,
    tls: TlsFiles,
    /// Whether the certificates are for these addresses: those of a context are not for an address from
    /// elsewhere.
    store_in_tls: bool,
    controller_in_tls: bool,
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
                    Failure::usage(error).hint("`muster certs DIR` makes certificates for development")
                })
            }
            _ => {
                let missing = [("--tls-ca", ca), ("--tls-cert", cert), ("--tls-key", key)];
                let missing: Vec<&str> =
                    missing.iter().filter(|(_, file)| file.is_none()).map(|(flag, _)| *flag).collect();
                let failure = Failure::usage(format!("{} is missing", missing.join(" and ")));
                Err(failure.hint("TLS needs --tls-ca, --tls-cert and --tls-key, here or in the context"))
            }
        }
    }
}

/// The store, and how to speak of it when it fails us.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) client: StoreClient,
    pub(crate) peer: Peer,
}

/// The controller, and how to speak of it when it fails us.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    pub(crate) client: FleetServiceClient<Channel>,
    pub(crate) peer: Peer,
    pub(crate) timeout: Duration,
}

impl ConnectionFlags {
    /// What they come to, with the config file they name.
    pub(crate) fn settle(&self) -> Result<Connection, Failure> {
        let contexts = Contexts::read(&self.file.path)?;
        let mut context = contexts.choose(self.file.context.as_deref())?.unwrap_or_default();
        context.namespace = usual_namespace()?.or(context.namespace);
        Ok(settle(self, &context))
    }
}

/// The namespace that the variable names, if it names one.
fn usual_namespace() -> Result<Option<Namespace>, Failure> {
    let said = std::env::var(NAMESPACE_VARIABLE).ok().filter(|name| !name.is_empty());
    let named = said.map(|name| {
        name.parse::<Namespace>()
            .map_err(|error| Failure::usage(format!("{NAMESPACE_VARIABLE}: `{name}` {error}")))
    });
    named.transpose()
}

fn settle(flags: &ConnectionFlags, context: &Context) -> Connection {
    let own_tls =
        TlsFiles { ca: flags.tls_ca.clone(), cert: flags.tls_cert.clone(), key: flags.tls_key.clone() };
    let their_tls =
        TlsFiles { ca: context.tls_ca.clone(), cert: context.tls_cert.clone(), key: context.tls_key.clone() };
    let from_context = own_tls.is_empty();
    let is_clear = |url: &str| url.starts_with("http://");
    // An address that is given by hand, in clear, is somewhere else than the context and its certificates.
    let store_elsewhere = from_context && flags.store.iter().any(|url| is_clear(url));
    let controller_elsewhere = from_context && flags.controller.as_deref().is_some_and(is_clear);
    let stores = [&flags.store, &context.store].into_iter().find(|urls| !urls.is_empty()).cloned();
    let controller = flags.controller.clone().or_else(|| context.controller.clone());
    Connection {
        store_in_tls: !store_elsewhere,
        controller_in_tls: !controller_elsewhere,
        stores: stores.unwrap_or_else(|| vec![STORE.to_owned()]),
        controller: controller.unwrap_or_else(|| CONTROLLER.to_owned()),
        tls: if from_context { their_tls } else { own_tls },
        namespace: context.namespace.clone(),
        timeout: flags.request_timeout,
    }
}

impl Connection {
    /// Where records are looked for that do not say.
    pub(crate) fn namespaces(&self, flags: &NamespaceFlags) -> Namespaces {
        let usual = self.namespace.clone();
        let usual = usual.unwrap_or_else(|| NAMESPACE.parse().expect("a valid name"));
        Namespaces { asked: flags.namespace.clone(), usual }
    }

    /// The store. Nothing is sent yet.
    pub(crate) fn store(&self) -> Result<Store, Failure> {
        let tls = if self.store_in_tls { self.tls.read()? } else { None };
        let urls: Vec<String> = self.stores.iter().map(|url| with_scheme(url, tls.is_some())).collect();
        let peer = Peer::store(urls.join(", "), self.timeout);
        let endpoints = StoreEndpoints { deadline: self.timeout, ..StoreEndpoints::new(urls).with_tls(tls) };
        let client = StoreClient::connect(endpoints).map_err(|error| unusable(&error, "--store"))?;
        Ok(Store { client, peer })
    }

    /// The controller. Nothing is sent yet.
    pub(crate) fn controller(&self) -> Result<Controller, Failure> {
        let tls = if self.controller_in_tls { self.tls.read()? } else { None };
        let url = with_scheme(&self.controller, tls.is_some());
        let not_an_address = |error: &dyn std::fmt::Display| {
            Failure::usage(format!("{url} is not the address of a controller: {error}"))
                .hint("--controller, MUSTER_CONTROLLER or the context says where it is")
        };
        let endpoint = Endpoint::from_shared(url.clone()).map_err(|error| not_an_address(&error))?;
        let endpoint = match (tls, url.starts_with("https://")) {
            (Some(tls), true) => endpoint.tls_config(tls.config()).map_err(|error| not_an_address(&error))?,
            (None, false) => endpoint,
            (Some(_), false) => {
                return Err(not_an_address(&"it would be spoken to in clear though certificates are given"));
            }
            (None, true) => return Err(not_an_address(&"it needs --tls-ca, --tls-cert and --tls-key")),
        };
        // A stream may be silent for long. Whether anybody is still there is asked as often as an answer may take, and
        // answered in that time or not at all.
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
    /// A request that tells how long its answer may take.
    pub(crate) fn timed<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    /// The stream that a call opens. It may go on for as long as it likes, but has to begin like any answer.
    pub(crate) async fn opened<T>(
        &self,
        opening: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    ) -> Result<Streaming<T>, Failure> {
        let opened = tokio::time::timeout(self.timeout, opening).await;
        let opened = opened.map_err(|_| self.peer.failure(ClientError::DeadlineExceeded))?;
        Ok(opened.at(&self.peer)?.into_inner())
    }
}

/// An explanation of a node with many pods, or a fleet of many zones, is larger than tonic's 4 MiB.
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
            "give --tls-ca, --tls-cert and --tls-key, or put them into a context"
        }
        EndpointError::None | EndpointError::Unusable { .. } | EndpointError::InClear { .. } => {
            "an address is written http://HOST:PORT, or https:// with certificates"
        }
    };
    Failure::usage(format!("{flag}: {error}")).hint(hint)
}

/// What flags come to without a config file.
#[cfg(test)]
pub(crate) fn settle_without_file(flags: &ConnectionFlags) -> Connection {
    settle(flags, &Context::default())
}

#[cfg(test)]
mod tests;
