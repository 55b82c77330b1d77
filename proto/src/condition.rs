//! Conditions: the state of one aspect of a node or pod.

use std::fmt;
use std::str::FromStr;

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionStatus {
    True,
    False,
    /// Not known, usually because no heartbeat or report arrived.
    Unknown,
}

/// The text is not a status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be True, False or Unknown")]
pub struct ConditionStatusError;

impl FromStr for ConditionStatus {
    type Err = ConditionStatusError;

    fn from_str(text: &str) -> Result<Self, ConditionStatusError> {
        match text {
            "True" => Ok(Self::True),
            "False" => Ok(Self::False),
            "Unknown" => Ok(Self::Unknown),
            _ => Err(ConditionStatusError),
        }
    }
}

impl fmt::Display for ConditionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        })
    }
}

/// Condition types with a fixed meaning; a writer may use any other too.
pub mod types {
    /// Of a node: it accepts pods. Of a pod: it serves requests.
    pub const READY: &str = "Ready";
    pub const MEMORY_PRESSURE: &str = "MemoryPressure";
    pub const DISK_PRESSURE: &str = "DiskPressure";
    pub const PID_PRESSURE: &str = "PIDPressure";
    pub const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
    /// The pod has a node.
    pub const POD_SCHEDULED: &str = "PodScheduled";
    /// The pod is about to be terminated by a disruption, such as an eviction.
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
}
