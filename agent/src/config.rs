//! The agent's flags, and the checked settings that they become.
//!
//! The agent does not start with an invalid flag, and every error names the flag. The thresholds of `--eviction-*` stay
//! texts here; `run/checks.rs` parses them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use muster_proto::name::{Name, NameError};
use muster_rpc::server::ServerConfig;
use muster_rpc::tls::{ClientTls, Security, TlsError};

use muster_agent_core::pod_security::IdRange;
use muster_agent_core::resources::swap::SwapBehavior;
use muster_agent_core::resources::topology::{Policy, Scope};

use crate::runtime::logs::LogLimits;

mod check;
mod flags;
pub mod kubelet_file;
mod lists;
#[cfg(test)]
mod tests;

pub use flags::{
    EvictionFlags, Flags, HiddenText, JoinFlags, NodeFlags, PodSecurityFlags, StatusFlags, WorkFlags,
};
pub use muster_agent_core::config::{CapacityConfig, Cloud, NodeConfig, NodeIpError, NodeIps, family};

/// Settings that were checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The stores' addresses, in order of preference.
    pub stores: Vec<String>,
    /// The client certificate; `None` connects without TLS.
    pub client_tls: Option<ClientTls>,
    pub state_dir: PathBuf,
    /// Whether the certificate is in the state directory, and renewed by the agent.
    pub has_joined: bool,
    pub listen: SocketAddr,
    pub http_listen: SocketAddr,
    pub security: Security,
    pub server: ServerConfig,
    pub node: NodeConfig,
    pub status: StatusConfig,
    pub lease_duration: Duration,
    pub capacity: CapacityConfig,
    pub eviction: EvictionConfig,
    pub shutdown: ShutdownConfig,
    pub topology: TopologyConfig,
    pub swap: SwapConfig,
    /// Processes and threads that each pod may have; `None` means no limit.
    pub pod_max_pids: Option<u64>,
    pub log_limits: LogLimits,
    pub pod_security: PodSecurityConfig,
    /// The directory of static pods.
    pub pod_manifest_path: Option<PathBuf>,
    /// Whether the status has the condition OutOfDisk too.
    pub legacy_conditions: bool,
    /// Values that were ignored, for the log.
    pub warnings: Vec<String>,
}

/// How often the status is computed and posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusConfig {
    pub update_frequency: Duration,
    pub report_frequency: Duration,
    /// `None` lists all images.
    pub max_images: Option<usize>,
}

/// The eviction thresholds, as texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionConfig {
    /// Such as `memory.available<100Mi`.
    pub hard: Vec<String>,
    pub soft: Vec<String>,
    /// Such as `memory.available=1m30s`.
    pub soft_grace_period: Vec<String>,
    /// Such as `memory.available=50Mi`.
    pub minimum_reclaim: Vec<String>,
    pub max_pod_grace_period: Duration,
    pub pressure_transition_period: Duration,
}

/// How pods are stopped when the machine shuts down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownConfig {
    pub grace_period: Duration,
    pub critical_pods: Duration,
    /// By ascending priority; empty unless given instead of the two above.
    pub by_pod_priority: Vec<(i32, Duration)>,
    pub on_sigterm: bool,
}

/// How resources of several NUMA nodes are aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopologyConfig {
    pub policy: Policy,
    pub scope: Scope,
}

/// How swap is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapConfig {
    /// Whether the agent refuses to start on a machine with swap.
    pub fail_on: bool,
    pub behavior: SwapBehavior,
}

/// The users of pods, and what pods may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSecurityConfig {
    /// The ids of pods that ask for none, where the agent runs as root.
    pub own_ids: IdRange,
    pub allowed_ids: Vec<IdRange>,
    pub allow_privileged: bool,
}

/// A flag that is not valid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("--{flag}: {reason}")]
    Flag { flag: &'static str, reason: String },
    #[error(
        "the hostname {hostname:?} cannot name a node: it {error}; give the node a name with --node-name"
    )]
    Hostname { hostname: String, error: NameError },
    #[error(
        "this machine has {bytes} bytes of swap: turn it off (swapoff -a), or accept it with --fail-swap-on=false"
    )]
    SwapOn { bytes: u64 },
}

impl Config {
    /// The node's name on a machine with that hostname, where the state directory has the name `kept`.
    ///
    /// The kept name counts only with --keep-node-name: a container that is created again has another hostname and the
    /// old directory, and is the same node. A copied machine has another hostname and the old directory too, and is
    /// not.
    ///
    /// # Errors
    /// When no name was given or kept, and the hostname is not a valid name.
    pub fn node_name(&self, kept: Option<&Name>, hostname: &str) -> Result<Name, ConfigError> {
        let kept = kept.filter(|_| self.node.keep_name);
        if let Some(name) = self.node.name.as_ref().or(kept) {
            return Ok(name.clone());
        }
        check::normal_name(hostname)
            .map_err(|error| ConfigError::Hostname { hostname: hostname.trim().to_owned(), error })
    }
}

impl SwapConfig {
    /// Whether the agent may start on a machine with that much swap.
    ///
    /// # Errors
    /// When there is swap and it is not accepted: pods would be slow without a visible cause.
    pub fn check(&self, bytes: u64) -> Result<(), ConfigError> {
        if self.fail_on && bytes > 0 { Err(ConfigError::SwapOn { bytes }) } else { Ok(()) }
    }
}
