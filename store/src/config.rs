//! The store's flags, and the checked settings they become.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use muster_etcd::TlsFiles;
use muster_rpc::audit::AuditFlags;
use muster_rpc::config::parse_duration;
use muster_rpc::server::ServerConfig;
use muster_rpc::telemetry::TelemetryFlags;
use muster_rpc::tls::{Security, TlsError, TlsFlags};

use crate::decision_log;
use crate::ledger::etcd::Keys;
use muster_store_core::draft::Policy;
use muster_store_core::limits::{Amount, EVENTS};
use muster_store_core::memory::Retention;
use muster_store_core::rules::Defaults;

/// Muster's store: keeps all records and serves watches of their changes.
#[derive(Debug, Clone, Parser)]
#[command(name = "muster-store", version, args_conflicts_with_subcommands = false, after_help = muster_rpc::health_command::HELP)]
pub struct Flags {
    /// The directory of the store's files
    #[arg(long, env = "MUSTER_DATA_DIR", default_value = "/var/lib/muster/store", global = true)]
    pub data_dir: PathBuf,

    /// Where records and their history are kept
    #[arg(long, env = "MUSTER_ENGINE", value_enum, default_value_t, global = true)]
    pub engine: EngineName,

    #[command(flatten)]
    pub etcd: EtcdFlags,

    /// The address that gRPC is served on; port 0 picks a free one
    #[arg(long, env = "MUSTER_LISTEN", default_value = "127.0.0.1:7400")]
    pub listen: SocketAddr,

    /// The address that metrics and health are served on; port 0 picks a free one
    #[arg(long, env = "MUSTER_HTTP_LISTEN", default_value = "127.0.0.1:7401")]
    pub http_listen: SocketAddr,

    /// The address that the Kubernetes API is served on, for kubectl and others; port 0 picks a free one [default: not served]
    #[arg(long, env = "MUSTER_KUBERNETES_LISTEN", value_name = "ADDRESS")]
    pub kubernetes_listen: Option<SocketAddr>,

    /// How long changes are kept at least, for watches to resume from
    #[arg(long, env = "MUSTER_HISTORY_MIN_AGE", default_value = "5m", value_parser = parse_duration)]
    pub history_min_age: Duration,

    /// How many changes are kept at least, even if they are older
    #[arg(long, env = "MUSTER_HISTORY_MIN_CHANGES", default_value_t = 10_000)]
    pub history_min_changes: usize,

    /// How much history is kept at most, in bytes, even if it is younger or has fewer changes
    #[arg(long, env = "MUSTER_HISTORY_MAX_BYTES", default_value_t = 1 << 30)]
    pub history_max_bytes: u64,

    /// How long an event is kept after it last occurred
    #[arg(long, env = "MUSTER_EVENT_TTL", default_value = "1h", value_parser = parse_duration)]
    pub event_ttl: Duration,

    /// How many events are kept at most; beyond this the oldest are deleted
    #[arg(long, env = "MUSTER_EVENT_MAX_COUNT", default_value_t = EVENTS.records)]
    pub event_max_count: usize,

    /// How much all events take at most, in bytes; beyond this the oldest are deleted
    #[arg(long, env = "MUSTER_EVENT_MAX_BYTES", default_value_t = EVENTS.bytes)]
    pub event_max_bytes: usize,

    /// Seconds that a pod tolerates a node that is not ready, unless it has a toleration of its own
    #[arg(long, env = "MUSTER_DEFAULT_NOT_READY_TOLERATION_SECONDS", default_value_t = 300)]
    pub default_not_ready_toleration_seconds: i64,

    /// Seconds that a pod tolerates an unreachable node, unless it has a toleration of its own
    #[arg(long, env = "MUSTER_DEFAULT_UNREACHABLE_TOLERATION_SECONDS", default_value_t = 300)]
    pub default_unreachable_toleration_seconds: i64,

    /// How long a pod tolerates a node that is not ready or unreachable: sets both of the defaults above
    #[arg(long, env = "MUSTER_POD_EVICTION_TIMEOUT", value_name = "DURATION", value_parser = parse_duration,
          conflicts_with_all = ["default_not_ready_toleration_seconds", "default_unreachable_toleration_seconds"])]
    pub pod_eviction_timeout: Option<Duration>,

    /// How long decisions of the controller are kept; days are written 30d
    #[arg(long, env = "MUSTER_DECISION_RETENTION", default_value = "30d", value_parser = parse_retention)]
    pub decision_retention: Duration,

    /// How much the decisions take at most on disk, such as 1GiB; beyond this the oldest are deleted
    #[arg(long, env = "MUSTER_DECISION_MAX_BYTES", default_value = "1GiB", value_parser = parse_bytes)]
    pub decision_max_bytes: u64,

    /// Size of the storage engine's cache in bytes; all records are in memory in addition
    #[arg(long, env = "MUSTER_CACHE_BYTES", default_value_t = 32 << 20)]
    pub cache_bytes: u64,

    #[command(flatten)]
    pub audit: AuditFlags,

    #[command(flatten)]
    pub tls: TlsFlags,

    #[command(flatten)]
    pub server: ServerConfig,

    #[command(flatten)]
    pub telemetry: TelemetryFlags,

    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What `--engine` may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// In --data-dir, on this machine's disk
    #[default]
    Embedded,
    /// In an etcd cluster, for several stores of which one leads
    Etcd,
}

/// The flags of `--engine etcd`.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "etcd (with --engine etcd)")]
pub struct EtcdFlags {
    /// The URLs of etcd's members, separated by commas
    #[arg(long, env = "MUSTER_ETCD_ENDPOINTS", value_delimiter = ',', value_name = "URL", global = true)]
    pub etcd_endpoints: Vec<String>,

    /// All keys are below this one; stores with the same prefix are one store
    #[arg(long, env = "MUSTER_ETCD_PREFIX", default_value = "/muster", global = true)]
    pub etcd_prefix: String,

    /// Certificate authorities of etcd's members, PEM
    #[arg(long, env = "MUSTER_ETCD_CA", value_name = "FILE", global = true)]
    pub etcd_ca: Option<PathBuf>,

    /// Certificate chain that etcd knows this store by, PEM
    #[arg(long, env = "MUSTER_ETCD_CERT", value_name = "FILE", global = true)]
    pub etcd_cert: Option<PathBuf>,

    /// Private key of --etcd-cert, PEM
    #[arg(long, env = "MUSTER_ETCD_KEY", value_name = "FILE", global = true)]
    pub etcd_key: Option<PathBuf>,

    /// The address that the other stores name while this one leads [default: where it listens]
    #[arg(long, env = "MUSTER_ADVERTISE", value_name = "HOST:PORT")]
    pub advertise: Option<String>,
}

/// Where records and their history are kept.
#[derive(Debug, Clone)]
pub enum Engine {
    Embedded,
    Etcd(EtcdConfig),
}

/// The checked settings of `--engine etcd`.
#[derive(Debug, Clone)]
pub struct EtcdConfig {
    pub endpoints: Vec<String>,
    pub prefix: String,
    pub keys: Keys,
    pub tls: TlsFiles,
    pub advertise: Option<String>,
}

impl Engine {
    fn of(flags: &Flags) -> Result<Self, ConfigError> {
        if flags.engine == EngineName::Embedded {
            return match flags.etcd.etcd_endpoints.is_empty() {
                true => Ok(Engine::Embedded),
                false => Err(ConfigError::NotEtcd),
            };
        }
        EtcdConfig::try_from(&flags.etcd).map(Engine::Etcd)
    }
}

impl TryFrom<&EtcdFlags> for EtcdConfig {
    type Error = ConfigError;

    fn try_from(flags: &EtcdFlags) -> Result<Self, ConfigError> {
        let EtcdFlags { etcd_endpoints, etcd_prefix, etcd_ca, etcd_cert, etcd_key, advertise } = flags;
        if etcd_endpoints.is_empty() {
            return Err(ConfigError::NoEndpoints);
        }
        Ok(EtcdConfig {
            endpoints: etcd_endpoints.clone(),
            prefix: etcd_prefix.clone(),
            keys: Keys::below(etcd_prefix).ok_or(ConfigError::NoPrefix)?,
            tls: TlsFiles { ca: etcd_ca.clone(), cert: etcd_cert.clone(), key: etcd_key.clone() },
            advertise: advertise.clone(),
        })
    }
}

/// Subcommands of the binary.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Writes all records of a running store to a file
    Backup {
        /// The file; it is written under a temporary name and renamed when it is complete
        file: PathBuf,
        /// The URL of the running store; by default the one at --listen
        #[arg(long)]
        store: Option<String>,
    },
    /// Reads all files of a data directory and says what is damaged; changes nothing. No store may be running on it
    Check,
    /// Moves a whole store from a data directory into etcd, or back, and compares both; no store may be running on either
    Migrate {
        /// A data directory, or `etcd` for the one at --etcd-endpoints
        #[arg(long, value_name = "DIR|etcd")]
        from: String,
        /// A new data directory, or `etcd`, where nothing may be below --etcd-prefix
        #[arg(long, value_name = "DIR|etcd")]
        to: String,
    },
    /// Writes what can be proven of a damaged data directory into a new one; the damaged one stays as it is
    Repair {
        /// The new data directory
        #[arg(long)]
        into: PathBuf,
    },
    /// Fills a new data directory from a backup; no store may be running on it
    Restore {
        /// The backup file
        file: PathBuf,
    },
}

/// Validated settings.
#[derive(Debug, Clone)]
pub struct Config {
    pub engine: Engine,
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    pub http_listen: SocketAddr,
    /// Where the Kubernetes API is served, if it is.
    pub kubernetes: Option<KubernetesConfig>,
    /// A socket for programs of the same user, beside the port.
    pub unix_socket: Option<PathBuf>,
    pub cache_bytes: u64,
    /// How much is kept of the controller's decisions.
    pub decisions: decision_log::Retention,
    pub policy: Policy,
    pub audit: AuditFlags,
    pub security: Security,
    /// The file of the authorities; `None` without TLS.
    pub authorities: Option<PathBuf>,
    pub server: ServerConfig,
}

/// Where the Kubernetes API is served.
#[derive(Debug, Clone)]
pub struct KubernetesConfig {
    pub listen: SocketAddr,
    pub security: Security,
}

/// Why the flags are not valid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("--{flag} must not be negative")]
    Negative { flag: &'static str },
    #[error("--{flag} is too long")]
    TooLong { flag: &'static str },
    #[error("etcd needs --etcd-endpoints: give the URLs of etcd's members, such as https://10.0.0.1:2379")]
    NoEndpoints,
    #[error("--etcd-endpoints are given without --engine etcd: give both, or neither")]
    NotEtcd,
    #[error("--etcd-prefix must not be empty: give a key of its own, such as /muster")]
    NoPrefix,
}

impl TryFrom<&Flags> for Config {
    type Error = ConfigError;

    fn try_from(flags: &Flags) -> Result<Self, ConfigError> {
        let defaults = match flags.pod_eviction_timeout {
            None => Defaults {
                not_ready_toleration_seconds: flags.default_not_ready_toleration_seconds,
                unreachable_toleration_seconds: flags.default_unreachable_toleration_seconds,
            },
            Some(timeout) => {
                // Tolerations are in whole seconds. Rounded up, so that a pod is evicted no earlier than was asked for.
                let seconds = (millis("pod-eviction-timeout", timeout)? as u64).div_ceil(1000) as i64;
                Defaults { not_ready_toleration_seconds: seconds, unreachable_toleration_seconds: seconds }
            }
        };
        for (flag, seconds) in [
            ("default-not-ready-toleration-seconds", defaults.not_ready_toleration_seconds),
            ("default-unreachable-toleration-seconds", defaults.unreachable_toleration_seconds),
        ] {
            if seconds < 0 {
                return Err(ConfigError::Negative { flag });
            }
        }
        let retention = Retention {
            min_age_millis: millis("history-min-age", flags.history_min_age)?,
            min_changes: flags.history_min_changes,
            max_bytes: flags.history_max_bytes,
        };
        let event_ttl_millis = millis("event-ttl", flags.event_ttl)?;
        let security = flags.tls.security(flags.listen)?;
        let event_limit = Amount { records: flags.event_max_count, bytes: flags.event_max_bytes };
        Ok(Self {
            engine: Engine::of(flags)?,
            data_dir: flags.data_dir.clone(),
            listen: flags.listen,
            http_listen: flags.http_listen,
            kubernetes: match flags.kubernetes_listen {
                Some(listen) => {
                    // Checked for its own address; with TLS the credentials are those of gRPC, which are read again
                    // when their files change.
                    let own = flags.tls.security(listen)?;
                    let security = if let Security::MutualTls(_) = own { security.clone() } else { own };
                    Some(KubernetesConfig { listen, security })
                }
                None => None,
            },
            unix_socket: None,
            cache_bytes: flags.cache_bytes,
            decisions: decision_log::Retention {
                age: Duration::from_millis(millis("decision-retention", flags.decision_retention)? as u64),
                max_bytes: flags.decision_max_bytes,
            },
            policy: Policy { defaults, retention, event_ttl_millis, event_limit },
            audit: flags.audit.clone(),
            security,
            authorities: flags.tls.tls_client_ca.clone(),
            server: flags.server.clone(),
        })
    }
}

/// A duration as the other flags write it, or in days: `30d`.
fn parse_retention(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    match days.and_then(|days| days.checked_mul(24 * 3600)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => parse_duration(text).map_err(|error| format!("{error}; days are written 30d")),
    }
}

/// A number of bytes, with or without one of the units KiB, MiB and GiB.
fn parse_bytes(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 1 << 20;
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let unit = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    match bytes {
        Some(bytes) if bytes >= LEAST => Ok(bytes),
        Some(_) => Err("must be at least 1MiB".to_owned()),
        None => Err(format!("must be a number of bytes such as 1GiB or 512MiB, not {text:?}")),
    }
}

/// Durations are added to timestamps, which must stay within the range of the clock.
fn millis(flag: &'static str, duration: Duration) -> Result<i64, ConfigError> {
    const CENTURY: u128 = 100 * 366 * 24 * 3600 * 1000;
    let millis = duration.as_millis();
    if millis > CENTURY { Err(ConfigError::TooLong { flag }) } else { Ok(millis as i64) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn tolerations(args: &[&str]) -> Result<(i64, i64), String> {
        let args = ["muster-store", "--data-dir=/nowhere"].iter().chain(args);
        let flags = Flags::try_parse_from(args).map_err(|error| error.to_string())?;
        let config = Config::try_from(&flags).map_err(|error| error.to_string())?;
        let defaults = config.policy.defaults;
        Ok((defaults.not_ready_toleration_seconds, defaults.unreachable_toleration_seconds))
    }

    #[test]
    fn the_pod_eviction_timeout_sets_both_default_tolerations() {
        assert_eq!(tolerations(&[]), Ok((300, 300)));
        assert_eq!(tolerations(&["--pod-eviction-timeout=2m"]), Ok((120, 120)));
        assert_eq!(
            tolerations(&["--pod-eviction-timeout=1500ms"]),
            Ok((2, 2)),
            "not before the time has passed"
        );
        assert_eq!(tolerations(&["--default-unreachable-toleration-seconds=7"]), Ok((300, 7)));
    }

    #[test]
    fn the_pod_eviction_timeout_and_the_flags_that_it_sets_exclude_each_other() {
        for flag in ["--default-not-ready-toleration-seconds", "--default-unreachable-toleration-seconds"] {
            let error = tolerations(&["--pod-eviction-timeout=2m", &format!("{flag}=5")]).unwrap_err();
            assert!(error.contains(flag) && error.contains("--pod-eviction-timeout"), "{error}");
        }
    }

    #[test]
    fn decisions_are_kept_by_days_and_by_size() {
        let kept = |args: &[&str]| {
            let flags = Flags::try_parse_from(["muster-store"].iter().chain(args))
                .map_err(|error| error.to_string())?;
            let kept = Config::try_from(&flags).map_err(|error| error.to_string())?.decisions;
            Ok::<_, String>((kept.age.as_secs(), kept.max_bytes))
        };
        assert_eq!(kept(&[]), Ok((30 * 24 * 3600, 1 << 30)));
        assert_eq!(
            kept(&["--decision-retention=36h", "--decision-max-bytes=512MiB"]),
            Ok((36 * 3600, 512 << 20))
        );
        assert_eq!(kept(&["--decision-max-bytes=2097152"]), Ok((30 * 24 * 3600, 2 << 20)));
        for (flag, expected) in [
            ("--decision-retention=soon", "days are written 30d"),
            ("--decision-max-bytes=1GB", "such as 1GiB"),
            ("--decision-max-bytes=1000", "at least 1MiB"),
        ] {
            let error = kept(&[flag]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    fn engine(flags: &[&str]) -> Result<Engine, String> {
        let flags = ["muster-store"].iter().chain(flags);
        let flags = Flags::try_parse_from(flags).map_err(|error| error.to_string())?;
        Config::try_from(&flags).map(|config| config.engine).map_err(|error| error.to_string())
    }

    #[test]
    fn etcd_needs_its_endpoints_and_nothing_else() {
        assert!(matches!(engine(&[]), Ok(Engine::Embedded)));
        let urls = ["--engine=etcd", "--etcd-endpoints=http://a:1,http://b:2"];
        let Ok(Engine::Etcd(etcd)) = engine(&urls) else { panic!("{:?}", engine(&urls)) };
        assert_eq!((etcd.endpoints.len(), &*etcd.prefix), (2, "/muster"));
        for (flags, expected) in [
            (vec!["--engine=etcd"], "etcd needs --etcd-endpoints"),
            (vec!["--etcd-endpoints=http://a:1"], "without --engine etcd"),
            (vec![urls[0], urls[1], "--etcd-prefix=/"], "--etcd-prefix must not be empty"),
            (vec!["--engine=sled"], "possible values: embedded, etcd"),
        ] {
            let refused = engine(&flags).expect_err("it is refused");
            assert!(refused.contains(expected), "{flags:?}: {refused}");
        }
    }
}
