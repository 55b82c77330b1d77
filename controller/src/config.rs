//! The controller's flags, under the names that Kubernetes gives them, and the checked settings they become.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use muster_rpc::config::parse_duration;
use muster_rpc::server::ServerConfig;
use muster_rpc::telemetry::TelemetryFlags;
use muster_rpc::tls::{ClientTls, Security, TlsError, TlsFlags};

use crate::policy::Policy;

/// Judges the fleet: address blocks, health, zones, evictions, placement, drains.
#[derive(Clone, Debug, Parser)]
#[command(name = "muster-controller", version, after_help = muster_rpc::probe::HELP)]
pub struct Flags {
    /// Stores, in order of preference; calls go to the first that can be reached
    #[arg(long, env = "MUSTER_STORE", value_name = "URL", value_delimiter = ',', required = true)]
    pub store: Vec<String>,

    /// Where gRPC is served; port 0 picks a free one
    #[arg(long, env = "MUSTER_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:7500")]
    pub listen: SocketAddr,

    /// Where metrics and health are served; port 0 picks a free one
    #[arg(long, env = "MUSTER_HTTP_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:7501")]
    pub http_listen: SocketAddr,

    #[command(flatten)]
    pub health: HealthFlags,

    #[command(flatten)]
    pub tls: TlsFlags,

    #[command(flatten)]
    pub server: ServerConfig,

    #[command(flatten)]
    pub telemetry: TelemetryFlags,
}

/// When a node is given up, and how fast.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Health and evictions")]
pub struct HealthFlags {
    /// Between two assessments of the zones
    #[arg(long, env = "MUSTER_NODE_MONITOR_PERIOD", default_value = "5s", value_parser = parse_duration)]
    pub node_monitor_period: Duration,

    /// How long a node may be silent
    #[arg(long, env = "MUSTER_NODE_MONITOR_GRACE_PERIOD", default_value = "40s", value_parser = parse_duration)]
    pub node_monitor_grace_period: Duration,

    /// How long a node that never reported may be silent, from its creation
    #[arg(long, env = "MUSTER_NODE_STARTUP_GRACE_PERIOD", default_value = "60s", value_parser = parse_duration)]
    pub node_startup_grace_period: Duration,

    /// Nodes per second and zone whose pods may be driven off
    #[arg(long, env = "MUSTER_NODE_EVICTION_RATE", default_value_t = 0.1)]
    pub node_eviction_rate: f64,

    /// The same in a large zone of which much is lost
    #[arg(long, env = "MUSTER_SECONDARY_NODE_EVICTION_RATE", default_value_t = 0.01)]
    pub secondary_node_eviction_rate: f64,

    /// The share of nodes that are not Ready from which on a zone counts as disrupted
    #[arg(long, env = "MUSTER_UNHEALTHY_ZONE_THRESHOLD", default_value_t = 0.55)]
    pub unhealthy_zone_threshold: f32,

    /// Zones of more nodes than this are large; in a smaller one that is disrupted nobody is given up
    #[arg(long, env = "MUSTER_LARGE_CLUSTER_SIZE_THRESHOLD", default_value_t = 50)]
    pub large_cluster_size_threshold: usize,

    /// How long the fleet must have been heard after a start before anybody is evicted [default: the grace period]
    #[arg(long, env = "MUSTER_EVICTION_HOLD", value_parser = parse_duration)]
    pub eviction_hold: Option<Duration>,
}

/// Settings that were checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub stores: Vec<String>,
    pub listen: SocketAddr,
    pub http_listen: SocketAddr,
    pub policy: Policy,
    pub security: Security,
    pub client_tls: Option<ClientTls>,
    pub server: ServerConfig,
}

/// A flag that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("--{flag} must be more than 0")]
    Zero { flag: &'static str },
    #[error("--{flag} must be a number that is not negative, not {value}")]
    Rate { flag: &'static str, value: f64 },
    #[error("--unhealthy-zone-threshold must be more than 0 and at most 1, not {value}")]
    Threshold { value: f32 },
}

impl TryFrom<&Flags> for Config {
    type Error = ConfigError;

    fn try_from(flags: &Flags) -> Result<Config, ConfigError> {
        Ok(Config {
            stores: flags.store.clone(),
            listen: flags.listen,
            http_listen: flags.http_listen,
            policy: Policy::try_from(&flags.health)?,
            security: flags.tls.security(flags.listen)?,
            client_tls: flags.tls.client()?,
            server: flags.server.clone(),
        })
    }
}

impl TryFrom<&HealthFlags> for Policy {
    type Error = ConfigError;

    fn try_from(flags: &HealthFlags) -> Result<Policy, ConfigError> {
        for (flag, time) in [
            ("node-monitor-period", flags.node_monitor_period),
            ("node-monitor-grace-period", flags.node_monitor_grace_period),
            ("node-startup-grace-period", flags.node_startup_grace_period),
        ] {
            if time.is_zero() {
                return Err(ConfigError::Zero { flag });
            }
        }
        for (flag, value) in [
            ("node-eviction-rate", flags.node_eviction_rate),
            ("secondary-node-eviction-rate", flags.secondary_node_eviction_rate),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(ConfigError::Rate { flag, value });
            }
        }
        let value = flags.unhealthy_zone_threshold;
        if !(value > 0.0 && value <= 1.0) {
            return Err(ConfigError::Threshold { value });
        }
        Ok(Policy {
            monitor_period: flags.node_monitor_period,
            grace: flags.node_monitor_grace_period,
            startup_grace: flags.node_startup_grace_period,
            eviction_rate: flags.node_eviction_rate,
            secondary_eviction_rate: flags.secondary_node_eviction_rate,
            unhealthy_zone_threshold: value,
            large_zone_size: flags.large_cluster_size_threshold,
            hold: flags.eviction_hold.unwrap_or(flags.node_monitor_grace_period),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(args: &[&str]) -> Result<Policy, String> {
        let args = ["muster-controller", "--store=http://127.0.0.1:1"].iter().chain(args);
        let flags = Flags::try_parse_from(args).map_err(|error| error.to_string())?;
        Config::try_from(&flags).map(|config| config.policy).map_err(|error| error.to_string())
    }

    #[test]
    fn the_default_flags_are_the_default_policy() {
        assert_eq!(policy(&[]).unwrap(), Policy::default());
    }

    #[test]
    fn nobody_is_evicted_for_a_whole_grace_unless_told_otherwise() {
        let second = Duration::from_secs(1);
        assert_eq!(policy(&["--node-monitor-grace-period=9s"]).unwrap().hold, 9 * second);
        assert_eq!(
            policy(&["--node-monitor-grace-period=9s", "--eviction-hold=2s"]).unwrap().hold,
            2 * second
        );
    }

    #[test]
    fn a_flag_that_cannot_be_is_named() {
        for (arg, message) in [
            ("--node-monitor-period=0", "--node-monitor-period must be more than 0"),
            ("--node-eviction-rate=-1", "--node-eviction-rate must be a number that is not negative, not -1"),
            (
                "--node-eviction-rate=NaN",
                "--node-eviction-rate must be a number that is not negative, not NaN",
            ),
            (
                "--unhealthy-zone-threshold=1.5",
                "--unhealthy-zone-threshold must be more than 0 and at most 1, not 1.5",
            ),
            ("--listen=0.0.0.0:0", "0.0.0.0:0 can be reached by other machines and there is no TLS"),
        ] {
            let error = policy(&[arg]).unwrap_err();
            assert!(error.starts_with(message), "{arg}: {error}");
        }
    }
}
