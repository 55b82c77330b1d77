//! The agent's flags, with Kubernetes' names where it has the same flag.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, Parser};
use muster_rpc::config::parse_duration;
use muster_rpc::server::ServerConfig;
use muster_rpc::telemetry::TelemetryFlags;
use muster_rpc::tls::TlsFlags;

/// Registers this machine as a node, renews its lease, reports its status and runs its pods.
#[derive(Clone, Debug, Parser)]
#[command(name = "muster-agent", version, after_help = muster_rpc::health_command::HELP)]
pub struct Flags {
    /// Stores, in order of preference; calls go to the first that can be reached
    #[arg(
        long,
        aliases = ["server", "api-servers"],
        env = "MUSTER_STORE",
        value_name = "URL",
        value_delimiter = ',',
        required = true
    )]
    pub store: Vec<String>,

    /// Directory with ca.crt, tls.crt and tls.key: the client certificate for the store; --tls-cert is used otherwise
    #[arg(long, alias = "kubeconfig", env = "MUSTER_CREDENTIALS", value_name = "DIR")]
    pub credentials: Option<PathBuf>,

    /// Hints at older names of flags that were used.
    #[arg(skip)]
    pub hints: Vec<String>,

    /// Directory for the agent's identity and its containers' records
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR", default_value = "/var/lib/muster/agent")]
    pub state_dir: PathBuf,

    /// Where gRPC is served; port 0 picks a free one
    #[arg(long, env = "MUSTER_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:7600")]
    pub listen: SocketAddr,

    /// Where metrics and health are served; port 0 picks a free one
    #[arg(long, env = "MUSTER_HTTP_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:7601")]
    pub http_listen: SocketAddr,

    #[command(flatten)]
    pub node: NodeFlags,

    #[command(flatten)]
    pub status: StatusFlags,

    #[command(flatten)]
    pub eviction: EvictionFlags,

    #[command(flatten)]
    pub work: WorkFlags,

    #[command(flatten)]
    pub pod_security: PodSecurityFlags,

    #[command(flatten)]
    pub join: JoinFlags,

    #[command(flatten)]
    pub tls: TlsFlags,

    #[command(flatten)]
    pub server: ServerConfig,

    #[command(flatten)]
    pub telemetry: TelemetryFlags,
}

/// The older names of flags, which the kubelet had.
const OLDER_NAMES: [(&str, &str); 2] = [("--api-servers", "--store"), ("--kubeconfig", "--credentials")];

impl Flags {
    /// Notes which of these arguments use the older name of a flag.
    pub fn note_older_names(&mut self, args: impl IntoIterator<Item = OsString>) {
        for arg in args {
            let arg = arg.to_string_lossy();
            let name = arg.split('=').next().unwrap_or_default();
            if let Some((older, newer)) = OLDER_NAMES.iter().find(|(older, _)| *older == name) {
                self.hints.push(format!("{older} is the older name of {newer}: use that one"));
            }
        }
    }
}

/// How a machine without a certificate joins the fleet. Its certificate is kept in the state directory and renewed.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Joining")]
pub struct JoinFlags {
    /// Join token, as `muster token create` prints it; not needed any more once the agent has joined. Without one the
    /// agent waits for `muster approve`. Other users can read a command line, but not the variable
    #[arg(long, env = "MUSTER_JOIN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub join_token: Option<HiddenText>,

    /// Hash of the key of the store's authority, such as sha256:2c26...; the agent believes no other. Can be repeated
    #[arg(long, env = "MUSTER_CA_HASH", value_name = "HASH", value_delimiter = ',')]
    pub ca_hash: Vec<String>,

    /// Certificate authorities of the store, PEM, instead of --ca-hash
    #[arg(long, env = "MUSTER_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

/// A text that no debug output shows.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HiddenText(String);

impl HiddenText {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HiddenText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(HiddenText(text.to_owned()))
    }
}

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

/// The node's identity.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Node")]
pub struct NodeFlags {
    /// Name of the node; this machine's hostname unless given
    #[arg(long, env = "MUSTER_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// Unless a name is given, keep the one in --state-dir, whatever the hostname; for containers, whose hostname
    /// changes when they are created again. No two machines may have copies of one directory
    #[arg(long, env = "MUSTER_KEEP_NODE_NAME", value_parser = BoolishValueParser::new())]
    pub keep_node_name: bool,

    /// The same as --node-name
    #[arg(long, env = "MUSTER_HOSTNAME_OVERRIDE", value_name = "NAME")]
    pub hostname_override: Option<String>,

    /// Whether the agent creates its node; otherwise it waits for an administrator to create it
    #[arg(
        long,
        env = "MUSTER_REGISTER_NODE",
        default_value_t = true,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = BoolishValueParser::new()
    )]
    pub register_node: bool,

    /// Taints of a new node, such as dedicated=gpu:NoSchedule; a node that exists keeps its own
    #[arg(long, env = "MUSTER_REGISTER_WITH_TAINTS", value_name = "TAINT", value_delimiter = ',')]
    pub register_with_taints: Vec<String>,

    /// Labels of a new node, such as rack=r1; a node that exists keeps its own
    #[arg(long, env = "MUSTER_NODE_LABELS", value_name = "KEY=VALUE", value_delimiter = ',')]
    pub node_labels: Vec<String>,

    /// Address of the node, or one of each family; 0.0.0.0 or :: for the default of that family
    #[arg(long, env = "MUSTER_NODE_IP", value_name = "IP", default_value = "")]
    pub node_ip: String,

    /// `external` if a cloud plug-in fills in addresses and removes the uninitialized taint
    #[arg(long, env = "MUSTER_CLOUD_PROVIDER", value_name = "NAME", default_value = "")]
    pub cloud_provider: String,

    /// The cloud's id of this machine
    #[arg(long, env = "MUSTER_PROVIDER_ID", value_name = "ID", default_value = "")]
    pub provider_id: String,
}

/// The node's status.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Status")]
pub struct StatusFlags {
    /// How often the status is computed; it is posted when it changed [default: 10s]
    #[arg(long, env = "MUSTER_NODE_STATUS_UPDATE_FREQUENCY", value_name = "DURATION", value_parser = parse_duration)]
    pub node_status_update_frequency: Option<Duration>,

    /// How often a status that did not change is posted; --node-status-update-frequency if only that is
    /// given [default: 5m]
    #[arg(long, env = "MUSTER_NODE_STATUS_REPORT_FREQUENCY", value_name = "DURATION", value_parser = parse_duration)]
    pub node_status_report_frequency: Option<Duration>,

    /// How long a renewal of the node's lease is valid; the lease is renewed four times as often
    #[arg(
        long,
        env = "MUSTER_NODE_LEASE_DURATION_SECONDS",
        value_name = "SECONDS",
        default_value_t = 40,
        allow_negative_numbers = true
    )]
    pub node_lease_duration_seconds: i64,

    /// Images listed in the status, the largest first; -1 for all
    #[arg(
        long,
        env = "MUSTER_NODE_STATUS_MAX_IMAGES",
        value_name = "COUNT",
        default_value_t = 50,
        allow_negative_numbers = true
    )]
    pub node_status_max_images: i64,

    /// Report the condition OutOfDisk too, for readers that know no DiskPressure
    #[arg(long, env = "MUSTER_LEGACY_CONDITIONS", value_parser = BoolishValueParser::new())]
    pub legacy_conditions: bool,

    /// The most pods that the node runs
    #[arg(
        long,
        env = "MUSTER_MAX_PODS",
        value_name = "COUNT",
        default_value_t = 110,
        allow_negative_numbers = true
    )]
    pub max_pods: i64,

    /// The most pods that the node runs for each core, within --max-pods; 0 for no such limit
    #[arg(
        long,
        env = "MUSTER_PODS_PER_CORE",
        value_name = "COUNT",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub pods_per_core: i64,

    /// Resources reserved for the machine's own processes, such as cpu=500m,memory=1Gi,ephemeral-storage=1Gi,pid=1000
    #[arg(long, env = "MUSTER_SYSTEM_RESERVED", value_name = "RESOURCE=AMOUNT", value_delimiter = ',')]
    pub system_reserved: Vec<String>,

    /// Resources reserved for the agent and similar processes, written as --system-reserved
    #[arg(long, env = "MUSTER_KUBE_RESERVED", value_name = "RESOURCE=AMOUNT", value_delimiter = ',')]
    pub kube_reserved: Vec<String>,
}

/// Eviction under pressure.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Pressure")]
pub struct EvictionFlags {
    /// Thresholds below which pods are evicted at once; any value replaces the whole default
    #[arg(
        long,
        env = "MUSTER_EVICTION_HARD",
        value_name = "SIGNAL<AMOUNT",
        value_delimiter = ',',
        default_value = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,\
                         imagefs.inodesFree<5%"
    )]
    pub eviction_hard: Vec<String>,

    /// Thresholds below which pods are evicted after a grace period
    #[arg(long, env = "MUSTER_EVICTION_SOFT", value_name = "SIGNAL<AMOUNT", value_delimiter = ',')]
    pub eviction_soft: Vec<String>,

    /// How long each --eviction-soft must be met before a pod is evicted, such as memory.available=1m30s
    #[arg(
        long,
        env = "MUSTER_EVICTION_SOFT_GRACE_PERIOD",
        value_name = "SIGNAL=DURATION",
        value_delimiter = ','
    )]
    pub eviction_soft_grace_period: Vec<String>,

    /// How far above its threshold a signal must rise again, such as memory.available=50Mi
    #[arg(
        long,
        env = "MUSTER_EVICTION_MINIMUM_RECLAIM",
        value_name = "SIGNAL=AMOUNT",
        value_delimiter = ','
    )]
    pub eviction_minimum_reclaim: Vec<String>,

    /// The longest grace period in seconds of a pod evicted by --eviction-soft
    #[arg(
        long,
        env = "MUSTER_EVICTION_MAX_POD_GRACE_PERIOD",
        value_name = "SECONDS",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub eviction_max_pod_grace_period: i64,

    /// How long pressure must not have been observed before the node stops reporting it
    #[arg(
        long,
        env = "MUSTER_EVICTION_PRESSURE_TRANSITION_PERIOD",
        value_name = "DURATION",
        default_value = "5m",
        value_parser = parse_duration
    )]
    pub eviction_pressure_transition_period: Duration,
}

/// How pods run on the machine and are stopped.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Work")]
pub struct WorkFlags {
    /// Directory of manifests whose pods run on this node, with or without the store (static pods); a --config that names
    /// a directory is taken for it
    #[arg(long, env = "MUSTER_POD_MANIFEST_PATH", value_name = "DIR")]
    pub pod_manifest_path: Option<PathBuf>,

    /// How long pods may take in all to stop when the machine shuts down; 0 does not wait for them
    #[arg(long, env = "MUSTER_SHUTDOWN_GRACE_PERIOD", value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub shutdown_grace_period: Duration,

    /// How much of --shutdown-grace-period is kept for critical pods
    #[arg(long, env = "MUSTER_SHUTDOWN_GRACE_PERIOD_CRITICAL_PODS", value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub shutdown_grace_period_critical_pods: Duration,

    /// Seconds for pods of each priority and above, such as 100000=10,0=60; instead of the two above
    #[arg(
        long,
        env = "MUSTER_SHUTDOWN_GRACE_PERIOD_BY_POD_PRIORITY",
        value_name = "PRIORITY=SECONDS",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    pub shutdown_grace_period_by_pod_priority: Vec<String>,

    /// Treat SIGTERM and SIGINT as a shutdown of the machine and stop its pods; otherwise pods outlive the agent
    #[arg(long, env = "MUSTER_SHUTDOWN_ON_SIGTERM", value_parser = BoolishValueParser::new())]
    pub shutdown_on_sigterm: bool,

    /// Processes and threads that each pod may have; -1 for no limit
    #[arg(
        long,
        env = "MUSTER_POD_MAX_PIDS",
        value_name = "COUNT",
        default_value_t = -1,
        allow_negative_numbers = true
    )]
    pub pod_max_pids: i64,

    /// Size of a container's log at which it is rotated, such as 10Mi
    #[arg(long, env = "MUSTER_CONTAINER_LOG_MAX_SIZE", value_name = "SIZE", default_value = "10Mi")]
    pub container_log_max_size: String,

    /// Files that the log of a container may have, at least 2
    #[arg(
        long,
        env = "MUSTER_CONTAINER_LOG_MAX_FILES",
        value_name = "COUNT",
        default_value_t = 5,
        allow_negative_numbers = true
    )]
    pub container_log_max_files: i64,

    /// How cores and devices of several NUMA nodes are aligned: none, best-effort, restricted, single-numa-node
    #[arg(long, env = "MUSTER_TOPOLOGY_MANAGER_POLICY", value_name = "POLICY", default_value = "none")]
    pub topology_manager_policy: String,

    /// What is aligned: each container, or the whole pod
    #[arg(long, env = "MUSTER_TOPOLOGY_MANAGER_SCOPE", value_name = "SCOPE", default_value = "container")]
    pub topology_manager_scope: String,

    /// Kubernetes' gates of nodes, such as NodeSwap=true: what they switch on is there in any case
    #[arg(long, env = "MUSTER_FEATURE_GATES", value_name = "NAME=BOOL", value_delimiter = ',')]
    pub feature_gates: Vec<String>,

    /// Whether the agent refuses to start on a machine with swap
    #[arg(
        long,
        env = "MUSTER_FAIL_SWAP_ON",
        default_value_t = true,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = BoolishValueParser::new()
    )]
    pub fail_swap_on: bool,

    /// How pods may use swap: NoSwap or LimitedSwap
    #[arg(long, env = "MUSTER_MEMORY_SWAP_BEHAVIOR", value_name = "BEHAVIOR", default_value = "NoSwap")]
    pub memory_swap_behavior: String,
}

/// The users and privileges of pods.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Pod security")]
pub struct PodSecurityFlags {
    // Neither users of the machine nor ranges of container tools are up there.
    /// Ids from which each pod gets a user and group of its own, where the agent runs as root; no two agents on one
    /// machine may share them
    #[arg(
        long,
        env = "MUSTER_POD_UID_RANGE",
        value_name = "FIRST-LAST",
        default_value = "2000000000-2000065535"
    )]
    pub pod_uid_range: String,

    /// Users and groups that pods may ask for with runAsUser and runAsGroup, such as 1000 or 3000-3999
    #[arg(long, env = "MUSTER_ALLOW_RUN_AS", value_name = "ID", value_delimiter = ',')]
    pub allow_run_as: Vec<String>,

    /// Whether pods may be privileged, gain privileges, and run as any user, root included
    #[arg(long, env = "MUSTER_ALLOW_PRIVILEGED", value_parser = BoolishValueParser::new())]
    pub allow_privileged: bool,
}
