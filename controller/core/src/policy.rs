//! The numbers that judgement goes by.

use std::time::Duration;

use crate::{cloud_nodes, ipam, pod_gc, scheduler};

/// How long silence is borne, and how fast nodes may be given up.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Between two assessments of the zones, at most.
    pub monitor_period: Duration,
    /// How long a node may be silent.
    pub grace: Duration,
    /// How long a node that never reported may be silent, from its creation.
    pub startup_grace: Duration,
    /// Nodes that may be tainted per second in a zone that is well, or wholly lost.
    pub eviction_rate: f64,
    /// The same in a large zone of which much is lost.
    pub secondary_eviction_rate: f64,
    /// The share of unhealthy nodes from which on a zone counts as disrupted.
    pub unhealthy_zone_threshold: f32,
    /// Zones of more nodes than this are large.
    pub large_zone_size: usize,
    /// How long the fleet must have been heard before anybody is evicted.
    pub hold: Duration,
    /// Where nodes get their address blocks from; `None` if they are not given any.
    pub cidrs: Option<ipam::Settings>,
    /// How far a cloud is believed; `None` if there is none to ask.
    pub cloud: Option<cloud_nodes::Settings>,
    pub placement: scheduler::Settings,
    pub collection: pod_gc::Settings,
}

impl Policy {
    /// The longest time between two decisions that is put down to our having nothing to do. The zones are assessed once a
    /// period; whoever comes much later than that stood still, and must not take what it did not read for silence.
    pub fn longest_pause(&self) -> Duration {
        self.monitor_period + self.grace / 4
    }
}

impl Default for Policy {
    fn default() -> Policy {
        let grace = Duration::from_secs(40);
        Policy {
            monitor_period: Duration::from_secs(5),
            grace,
            startup_grace: Duration::from_secs(60),
            eviction_rate: 0.1,
            secondary_eviction_rate: 0.01,
            unhealthy_zone_threshold: 0.55,
            large_zone_size: 50,
            hold: grace,
            cidrs: None,
            cloud: None,
            placement: scheduler::Settings::default(),
            collection: pod_gc::Settings::default(),
        }
    }
}
