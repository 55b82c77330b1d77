//! The controller's flags, with the names of Kubernetes' flags, and the checked settings made from them.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use clap::builder::BoolishValueParser;
use muster_proto::{feature_gates, pb};
use muster_rpc::audit::AuditFlags;
use muster_rpc::config::parse_duration;
use muster_rpc::server::ServerConfig;
use muster_rpc::telemetry::TelemetryFlags;
use muster_rpc::tls::{ClientTls, Security, TlsError, TlsFlags};

use crate::authority::{AuthorityError, AuthorityFiles};
use crate::leader_election::{ElectionSettings, SettingsError};
use muster_controller_core::policy::{self, Policy};
use muster_controller_core::{cloud_nodes, ipam, pod_gc, scheduler};

/// Runs the controllers of the fleet: node lifecycle, taint eviction, scheduler, pod GC, ipam, drain, cloud nodes
#[derive(Clone, Debug, Parser)]
#[command(name = "muster-controller", version, after_help = muster_rpc::health_command::HELP)]
pub struct Flags {
    /// URLs of stores, in order of preference; calls go to the first reachable one
    #[arg(long, env = "MUSTER_STORE", value_name = "URL", value_delimiter = ',', required = true)]
    pub store: Vec<String>,

    /// Address on which gRPC is served; port 0 picks a free port
    #[arg(long, env = "MUSTER_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:7500")]
    pub listen: SocketAddr,

    /// Address on which metrics and health are served; port 0 picks a free port
    #[arg(long, env = "MUSTER_HTTP_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:7501")]
    pub http_listen: SocketAddr,

    /// Kubernetes' gates of nodes, such as TaintNodesByCondition=true: what they switch on is there in any case
    #[arg(long, env = "MUSTER_FEATURE_GATES", value_name = "NAME=BOOL", value_delimiter = ',')]
    pub feature_gates: Vec<String>,

    #[command(flatten)]
    pub health: HealthFlags,

    #[command(flatten)]
    pub leader: LeaderFlags,

    #[command(flatten)]
    pub pod_gc: PodGcFlags,

    #[command(flatten)]
    pub addresses: AddressFlags,

    #[command(flatten)]
    pub cloud: CloudFlags,

    #[command(flatten)]
    pub signer: SignerFlags,

    #[command(flatten)]
    pub audit: AuditFlags,

    #[command(flatten)]
    pub tls: TlsFlags,

    #[command(flatten)]
    pub server: ServerConfig,

    #[command(flatten)]
    pub telemetry: TelemetryFlags,
}

/// When a node becomes Unknown, and how fast failed nodes are tainted.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Health and evictions")]
pub struct HealthFlags {
    /// Longest time between two computations of the zone states
    #[arg(long, env = "MUSTER_NODE_MONITOR_PERIOD", value_parser = parse_duration,
          default_value = seconds(policy::DEFAULT_MONITOR_PERIOD))]
    pub node_monitor_period: Duration,

    /// How long a node may send no heartbeat before its Ready becomes Unknown
    #[arg(long, env = "MUSTER_NODE_MONITOR_GRACE_PERIOD", value_parser = parse_duration,
          default_value = seconds(policy::DEFAULT_GRACE))]
    pub node_monitor_grace_period: Duration,

    /// The same for a node that never reported, from its creation
    #[arg(long, env = "MUSTER_NODE_STARTUP_GRACE_PERIOD", value_parser = parse_duration,
          default_value = seconds(policy::DEFAULT_STARTUP_GRACE))]
    pub node_startup_grace_period: Duration,

    /// Nodes per second and zone that may be tainted NoExecute
    #[arg(long, env = "MUSTER_NODE_EVICTION_RATE", default_value_t = policy::DEFAULT_EVICTION_RATE)]
    pub node_eviction_rate: f64,

    /// The same in a large zone that is partially disrupted
    #[arg(long, env = "MUSTER_SECONDARY_NODE_EVICTION_RATE", default_value_t = policy::DEFAULT_SECONDARY_EVICTION_RATE)]
    pub secondary_node_eviction_rate: f64,

    /// Share of nodes that are not Ready from which on a zone is partially disrupted
    #[arg(long, env = "MUSTER_UNHEALTHY_ZONE_THRESHOLD", default_value_t = policy::DEFAULT_UNHEALTHY_ZONE_THRESHOLD)]
    pub unhealthy_zone_threshold: f32,

    /// Zones with more nodes than this are large; in a smaller zone that is partially disrupted no node is tainted
    #[arg(long, env = "MUSTER_LARGE_CLUSTER_SIZE_THRESHOLD", default_value_t = policy::DEFAULT_LARGE_ZONE_SIZE)]
    pub large_cluster_size_threshold: usize,

    /// How long the fleet is followed after a start before pods are evicted for node health [default: the grace period]
    #[arg(long, env = "MUSTER_EVICTION_HOLD", value_parser = parse_duration)]
    pub eviction_hold: Option<Duration>,

    /// Let a node get pods before its agent has ever reported whether it is Ready, as Kubernetes does
    #[arg(long, env = "MUSTER_TRUST_UNREPORTED_NODES", value_parser = BoolishValueParser::new(), num_args = 0..=1,
          default_value = "false", default_missing_value = "true", require_equals = true)]
    pub trust_unreported_nodes: bool,

    // Accepted to say where it went: Kubernetes' controller had it until 1.26.
    #[arg(long, value_name = "DURATION", hide = true)]
    pub pod_eviction_timeout: Option<String>,
}

/// How several controllers agree on one leader.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub struct LeaderFlags {
    /// Act only while holding the lease kube-system/muster-controller; if false there must be only one controller
    #[arg(long, env = "MUSTER_LEADER_ELECT", value_parser = BoolishValueParser::new(), num_args = 0..=1,
          default_value = "true", default_missing_value = "true", require_equals = true)]
    pub leader_elect: bool,

    /// How long the others wait after the leader's last renewal before they take over
    #[arg(long, env = "MUSTER_LEADER_ELECT_LEASE_DURATION", default_value = "15s", value_parser = parse_duration)]
    pub leader_elect_lease_duration: Duration,

    /// How long a leader acts without a successful renewal
    #[arg(long, env = "MUSTER_LEADER_ELECT_RENEW_DEADLINE", default_value = "10s", value_parser = parse_duration)]
    pub leader_elect_renew_deadline: Duration,

    /// How often the leader renews, and the pause after a failed attempt
    #[arg(long, env = "MUSTER_LEADER_ELECT_RETRY_PERIOD", default_value = "2s", value_parser = parse_duration)]
    pub leader_elect_retry_period: Duration,
}

/// When pods are removed that no agent will remove.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Pod GC")]
pub struct PodGcFlags {
    /// Time between two passes of pod GC
    #[arg(long, env = "MUSTER_POD_GC_PERIOD", default_value = "20s", value_parser = parse_duration)]
    pub pod_gc_period: Duration,

    /// How long a node must be missing before its pods are removed
    #[arg(long, env = "MUSTER_POD_GC_QUARANTINE", default_value = "40s", value_parser = parse_duration)]
    pub pod_gc_quarantine: Duration,

    /// How many terminated pods are kept; 0 or less keeps all
    #[arg(
        long,
        env = "MUSTER_TERMINATED_POD_GC_THRESHOLD",
        default_value_t = 12_500,
        allow_negative_numbers = true
    )]
    pub terminated_pod_gc_threshold: i64,
}

/// Which address blocks are allocated to nodes.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Address blocks")]
pub struct AddressFlags {
    /// Allocate address blocks for pods to each node
    #[arg(long, env = "MUSTER_ALLOCATE_NODE_CIDRS", value_parser = BoolishValueParser::new(), num_args = 0..=1,
          default_value = "false", default_missing_value = "true", require_equals = true)]
    pub allocate_node_cidrs: bool,

    /// Networks that blocks are allocated from, at most one for each IP family
    #[arg(long, env = "MUSTER_CLUSTER_CIDR", value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,

    /// Prefix length of a block, with one network [default: 24 for IPv4, 64 for IPv6]
    #[arg(long, env = "MUSTER_NODE_CIDR_MASK_SIZE", value_name = "BITS")]
    pub node_cidr_mask_size: Option<u8>,

    /// Prefix length of an IPv4 block
    #[arg(long, env = "MUSTER_NODE_CIDR_MASK_SIZE_IPV4", value_name = "BITS")]
    pub node_cidr_mask_size_ipv4: Option<u8>,

    /// Prefix length of an IPv6 block
    #[arg(long, env = "MUSTER_NODE_CIDR_MASK_SIZE_IPV6", value_name = "BITS")]
    pub node_cidr_mask_size_ipv6: Option<u8>,

    /// Networks of services, whose blocks are not allocated to nodes
    #[arg(long, env = "MUSTER_SERVICE_CLUSTER_IP_RANGE", value_name = "CIDR", value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<String>,
}

/// Which cloud plug-in is asked about machines, and the limits on deleting nodes.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cloud")]
pub struct CloudFlags {
    /// URL of a plug-in that serves CloudProviderService; without one no cloud is asked
    #[arg(long, env = "MUSTER_CLOUD_PROVIDER", value_name = "URL")]
    pub cloud_provider: Option<String>,

    /// How many answers in a row must say that a machine does not exist before its node is deleted
    #[arg(long, env = "MUSTER_CLOUD_DELETE_CONFIRMATIONS", default_value = "3")]
    pub cloud_delete_confirmations: NonZeroU32,

    /// Nodes that may be deleted within --cloud-delete-period because their machine does not exist
    #[arg(long, env = "MUSTER_CLOUD_DELETE_LIMIT", default_value_t = 10)]
    pub cloud_delete_limit: u32,

    /// The period of --cloud-delete-limit
    #[arg(long, env = "MUSTER_CLOUD_DELETE_PERIOD", default_value = "1h", value_parser = parse_duration)]
    pub cloud_delete_period: Duration,
}

/// The authority that issues certificates to nodes.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Signer")]
pub struct SignerFlags {
    /// Certificate of the authority that signs certificates of nodes, PEM; without it approved requests wait
    #[arg(long, env = "MUSTER_SIGNER_CERT", value_name = "FILE", requires = "signer_key")]
    pub signer_cert: Option<PathBuf>,

    /// Private key of --signer-cert, PEM; no other process needs it
    #[arg(long, env = "MUSTER_SIGNER_KEY", value_name = "FILE", requires = "signer_cert")]
    pub signer_key: Option<PathBuf>,

    /// How long a node's certificate is valid; agents renew it when a third of that is left
    #[arg(long, env = "MUSTER_CERTIFICATE_TTL", default_value = "24h", value_parser = parse_duration)]
    pub certificate_ttl: Duration,
}

/// The checked settings.
#[derive(Clone, Debug)]
pub struct Config {
    pub stores: Vec<String>,
    pub listen: SocketAddr,
    pub http_listen: SocketAddr,
    /// A socket for programs of the same user, beside the port.
    pub unix_socket: Option<PathBuf>,
    pub policy: Policy,
    /// `None` when this is the only controller.
    pub election: Option<ElectionSettings>,
    /// The cloud plug-in's address.
    pub cloud_provider: Option<String>,
    /// `None` when this controller does not sign.
    pub signer: Option<AuthorityFiles>,
    pub audit: AuditFlags,
    pub security: Security,
    pub client_tls: Option<ClientTls>,
    pub server: ServerConfig,
}

/// A flag with an invalid value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Leader(#[from] SettingsError),
    #[error(transparent)]
    Addresses(#[from] ipam::FlagError),
    #[error(transparent)]
    Signer(#[from] AuthorityError),
    #[error("--{flag} must be more than 0")]
    Zero { flag: &'static str },
    #[error("--{flag} must be a number that is not negative, not {value}")]
    Rate { flag: &'static str, value: f64 },
    #[error(
        "--pod-eviction-timeout is a flag of muster-store, which gives pods their default tolerations: set it there"
    )]
    PodEvictionTimeout,
    #[error("--feature-gates: {0}")]
    FeatureGates(String),
    #[error("--unhealthy-zone-threshold must be more than 0 and at most 1, not {value}")]
    Threshold { value: f32 },
}

impl TryFrom<&Flags> for Config {
    type Error = ConfigError;

    fn try_from(flags: &Flags) -> Result<Config, ConfigError> {
        let security = flags.tls.security(flags.listen)?;
        feature_gates::read(flags.feature_gates.iter().map(String::as_str))
            .map_err(ConfigError::FeatureGates)?;
        Ok(Config {
            stores: flags.store.clone(),
            listen: flags.listen,
            http_listen: flags.http_listen,
            unix_socket: None,
            policy: policy(flags)?,
            election: election(&flags.leader)?,
            cloud_provider: flags.cloud.cloud_provider.clone(),
            signer: signer(&flags.signer)?,
            audit: flags.audit.clone(),
            client_tls: security.client(),
            security,
            server: flags.server.clone(),
        })
    }
}

impl Config {
    /// The settings as callers see them.
    pub(crate) fn effective(&self) -> pb::ControllerSettings {
        let Policy { pod_gc, .. } = &self.policy;
        // A flag's limit is far below the largest duration of the schema.
        let time = |time: Duration| time.try_into().ok();
        pb::ControllerSettings {
            node_monitor_period: time(self.policy.monitor_period),
            node_monitor_grace_period: time(self.policy.grace),
            node_startup_grace_period: time(self.policy.startup_grace),
            node_eviction_rate: self.policy.eviction_rate,
            secondary_node_eviction_rate: self.policy.secondary_eviction_rate,
            unhealthy_zone_threshold: decimal(self.policy.unhealthy_zone_threshold),
            large_cluster_size_threshold: i64::try_from(self.policy.large_zone_size).unwrap_or(i64::MAX),
            eviction_hold: time(self.policy.hold),
            trust_unreported_nodes: self.policy.trust_unreported_nodes,
            leader_elect: self.election.is_some(),
            pod_gc_period: time(pod_gc.period),
            pod_gc_quarantine: time(pod_gc.quarantine),
        }
    }
}

/// The double that reads as the same decimal number: 0.55 and not 0.550000011920929.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// A default as a flag takes it.
fn seconds(time: Duration) -> String {
    format!("{}s", time.as_secs())
}

fn policy(flags: &Flags) -> Result<Policy, ConfigError> {
    let health = &flags.health;
    for (flag, time) in [
        ("node-monitor-period", health.node_monitor_period),
        ("node-monitor-grace-period", health.node_monitor_grace_period),
        ("node-startup-grace-period", health.node_startup_grace_period),
        ("pod-gc-period", flags.pod_gc.pod_gc_period),
    ] {
        if time.is_zero() {
            return Err(ConfigError::Zero { flag });
        }
    }
    for (flag, value) in [
        ("node-eviction-rate", health.node_eviction_rate),
        ("secondary-node-eviction-rate", health.secondary_node_eviction_rate),
    ] {
        if !value.is_finite() || value < 0.0 {
            return Err(ConfigError::Rate { flag, value });
        }
    }
    if health.pod_eviction_timeout.is_some() {
        return Err(ConfigError::PodEvictionTimeout);
    }
    let value = health.unhealthy_zone_threshold;
    if !(value > 0.0 && value <= 1.0) {
        return Err(ConfigError::Threshold { value });
    }
    Ok(Policy {
        monitor_period: health.node_monitor_period,
        grace: health.node_monitor_grace_period,
        startup_grace: health.node_startup_grace_period,
        eviction_rate: health.node_eviction_rate,
        secondary_eviction_rate: health.secondary_node_eviction_rate,
        unhealthy_zone_threshold: value,
        large_zone_size: health.large_cluster_size_threshold,
        hold: health.eviction_hold.unwrap_or(health.node_monitor_grace_period),
        trust_unreported_nodes: health.trust_unreported_nodes,
        ipam: cidrs(&flags.addresses)?,
        cloud_nodes: flags.cloud.cloud_provider.as_ref().map(|_| cloud_nodes::Settings {
            period: health.node_monitor_period,
            confirmations: flags.cloud.cloud_delete_confirmations,
            delete_limit: flags.cloud.cloud_delete_limit,
            delete_period: flags.cloud.cloud_delete_period,
        }),
        scheduler: scheduler::Settings::default(),
        pod_gc: pod_gc::Settings {
            period: flags.pod_gc.pod_gc_period,
            quarantine: flags.pod_gc.pod_gc_quarantine,
            terminated_pod_threshold: usize::try_from(flags.pod_gc.terminated_pod_gc_threshold)
                .ok()
                .filter(|kept| *kept > 0),
            ..pod_gc::Settings::default()
        },
    })
}

fn election(flags: &LeaderFlags) -> Result<Option<ElectionSettings>, SettingsError> {
    let settings = flags.leader_elect.then(|| ElectionSettings {
        lease_duration: flags.leader_elect_lease_duration,
        renew_deadline: flags.leader_elect_renew_deadline,
        retry_period: flags.leader_elect_retry_period,
        ..ElectionSettings::new(identity())
    });
    if let Some(settings) = &settings {
        settings.check()?;
    }
    Ok(settings)
}

fn signer(flags: &SignerFlags) -> Result<Option<AuthorityFiles>, ConfigError> {
    if flags.certificate_ttl.is_zero() {
        return Err(ConfigError::Zero { flag: "certificate-ttl" });
    }
    let files = flags.signer_cert.clone().zip(flags.signer_key.clone());
    let files = files.map(|(certificate, key)| AuthorityFiles {
        certificate,
        key,
        certificate_ttl: flags.certificate_ttl,
    });
    files.as_ref().map_or(Ok(()), AuthorityFiles::check)?;
    Ok(files)
}

/// A unique name that begins with the machine's host name.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(63).collect();
    format!("{host}_{}", uuid::Uuid::new_v4())
}

fn cidrs(flags: &AddressFlags) -> Result<Option<ipam::Settings>, ipam::FlagError> {
    let wanted = flags.allocate_node_cidrs.then(|| {
        ipam::Settings::check(&ipam::Flags {
            cluster_cidr: &flags.cluster_cidr,
            node_cidr_mask_size: flags.node_cidr_mask_size,
            node_cidr_mask_size_ipv4: flags.node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6: flags.node_cidr_mask_size_ipv6,
            service_cluster_ip_range: &flags.service_cluster_ip_range,
        })
    });
    wanted.transpose()
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
    fn the_eviction_hold_is_a_whole_grace_unless_it_is_set() {
        let second = Duration::from_secs(1);
        assert_eq!(policy(&["--node-monitor-grace-period=9s"]).unwrap().hold, 9 * second);
        assert_eq!(
            policy(&["--node-monitor-grace-period=9s", "--eviction-hold=2s"]).unwrap().hold,
            2 * second
        );
    }

    #[test]
    fn nodes_that_never_reported_are_trusted_only_if_that_is_asked_for() {
        let trusts = |args: &[&str]| policy(args).unwrap().trust_unreported_nodes;
        assert!(!trusts(&[]));
        assert!(trusts(&["--trust-unreported-nodes"]));
        assert!(!trusts(&["--trust-unreported-nodes=false"]));
    }

    #[test]
    fn all_terminated_pods_are_kept_if_the_threshold_is_not_positive() {
        let kept = |args: &[&str]| policy(args).unwrap().pod_gc.terminated_pod_threshold;
        assert_eq!(kept(&["--terminated-pod-gc-threshold=7"]), Some(7));
        assert_eq!(kept(&["--terminated-pod-gc-threshold=0"]), None);
        assert_eq!(kept(&["--terminated-pod-gc-threshold=-1"]), None);
        assert_eq!(kept(&["--terminated-pod-gc-threshold", "-1"]), None);
    }

    #[test]
    fn an_invalid_flag_is_named() {
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
            ("--pod-eviction-timeout=5m", "--pod-eviction-timeout is a flag of muster-store"),
            ("--leader-elect-retry-period=11s", "--leader-elect-renew-deadline must be longer than"),
            ("--allocate-node-cidrs", "--cluster-cidr: "),
            ("--listen=0.0.0.0:0", "0.0.0.0:0 can be reached by other machines and there is no TLS"),
        ] {
            let error = policy(&[arg]).unwrap_err();
            assert!(error.starts_with(message), "{arg}: {error}");
        }
    }
}
