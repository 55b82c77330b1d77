//! The settings of the controllers, and their defaults.

use std::time::Duration;

use crate::{cloud_nodes, ipam, pod_gc, scheduler};

/// Kubernetes' default for `--node-monitor-period`.
pub const DEFAULT_MONITOR_PERIOD: Duration = Duration::from_secs(5);
/// Four heartbeats at the agents' default of one in ten seconds.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(40);
/// Longer than the grace, because a machine that boots takes time to report first.
pub const DEFAULT_STARTUP_GRACE: Duration = Duration::from_secs(60);
/// Kubernetes' default for `--node-eviction-rate`: one node in ten seconds.
pub const DEFAULT_EVICTION_RATE: f64 = 0.1;
/// Kubernetes' default for `--secondary-node-eviction-rate`: one node in 100 seconds.
pub const DEFAULT_SECONDARY_EVICTION_RATE: f64 = 0.01;
/// Kubernetes' default for `--unhealthy-zone-threshold`.
pub const DEFAULT_UNHEALTHY_ZONE_THRESHOLD: f32 = 0.55;
/// Kubernetes' default for `--large-cluster-size-threshold`.
pub const DEFAULT_LARGE_ZONE_SIZE: usize = 50;

/// How long nodes may be silent, how fast they may be tainted NoExecute, and the settings of each controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The longest time between two assessments of the zones.
    pub monitor_period: Duration,
    /// How long a node may be silent.
    pub grace: Duration,
    /// How long a node that never reported may be silent, from its creation.
    pub startup_grace: Duration,
    /// Nodes that may be tainted per second in a zone that is Normal or in FullDisruption.
    pub eviction_rate: f64,
    /// The same in a large zone in PartialDisruption.
    pub secondary_eviction_rate: f64,
    /// The share of unhealthy nodes from which on a zone is in PartialDisruption.
    pub unhealthy_zone_threshold: f32,
    /// Zones of more nodes than this are large.
    pub large_zone_size: usize,
    /// How long after a start or an interruption no pod is evicted because of its node's health.
    pub hold: Duration,
    /// Whether a node that never reported may get pods, as in Kubernetes. Otherwise it keeps the taint that it was
    /// created with until it has a Ready condition.
    pub trust_unreported_nodes: bool,
    /// `None` if nodes get no address blocks.
    pub ipam: Option<ipam::Settings>,
    /// `None` if there is no cloud to ask.
    pub cloud_nodes: Option<cloud_nodes::Settings>,
    pub scheduler: scheduler::Settings,
    pub pod_gc: pod_gc::Settings,
}

impl Policy {
    /// The longest time between two decisions in normal operation. Zones are assessed once per monitor period; if a
    /// decision comes much later than that, this process was paused, and a gap in its own reading is not a missed
    /// heartbeat.
    pub fn longest_pause(&self) -> Duration {
        self.monitor_period + self.grace / 4
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            monitor_period: DEFAULT_MONITOR_PERIOD,
            grace: DEFAULT_GRACE,
            startup_grace: DEFAULT_STARTUP_GRACE,
            eviction_rate: DEFAULT_EVICTION_RATE,
            secondary_eviction_rate: DEFAULT_SECONDARY_EVICTION_RATE,
            unhealthy_zone_threshold: DEFAULT_UNHEALTHY_ZONE_THRESHOLD,
            large_zone_size: DEFAULT_LARGE_ZONE_SIZE,
            hold: DEFAULT_GRACE,
            trust_unreported_nodes: false,
            ipam: None,
            cloud_nodes: None,
            scheduler: scheduler::Settings::default(),
            pod_gc: pod_gc::Settings::default(),
        }
    }
}
