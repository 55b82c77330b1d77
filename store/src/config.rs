//! The store's flags, and the checked settings they become.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use muster_rpc::audit::AuditFlags;
use muster_rpc::config::parse_duration;
use muster_rpc::server::ServerConfig;
use muster_rpc::telemetry::TelemetryFlags;
use muster_rpc::tls::{Security, TlsError, TlsFlags};

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

    /// The address that gRPC is served on; port 0 picks a free one
    #[arg(long, env = "MUSTER_LISTEN", default_value = "127.0.0.1:7400")]
    pub listen: SocketAddr,

    /// The address that metrics and health are served on; port 0 picks a free one
    #[arg(long, env = "MUSTER_HTTP_LISTEN", default_value = "127.0.0.1:7401")]
    pub http_listen: SocketAddr,

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
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    pub http_listen: SocketAddr,
    pub cache_bytes: u64,
    pub policy: Policy,
    pub audit: AuditFlags,
    pub security: Security,
    pub server: ServerConfig,
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
}

impl TryFrom<&Flags> for Config {
    type Error = ConfigError;

    fn try_from(flags: &Flags) -> Result<Self, ConfigError> {
        let defaults = Defaults {
            not_ready_toleration_seconds: flags.default_not_ready_toleration_seconds,
            unreachable_toleration_seconds: flags.default_unreachable_toleration_seconds,
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
        let event_limit = Amount { records: flags.event_max_count, bytes: flags.event_max_bytes };
        Ok(Self {
            data_dir: flags.data_dir.clone(),
            listen: flags.listen,
            http_listen: flags.http_listen,
            cache_bytes: flags.cache_bytes,
            policy: Policy { defaults, retention, event_ttl_millis, event_limit },
            audit: flags.audit.clone(),
            security: flags.tls.security(flags.listen)?,
            server: flags.server.clone(),
        })
    }
}

/// Durations are added to timestamps, which must stay within the range of the clock.
fn millis(flag: &'static str, duration: Duration) -> Result<i64, ConfigError> {
    const CENTURY: u128 = 100 * 366 * 24 * 3600 * 1000;
    let millis = duration.as_millis();
    if millis > CENTURY { Err(ConfigError::TooLong { flag }) } else { Ok(millis as i64) }
}
