//! Priority classes: names for the priorities of pods.
//!
//! A pod gets the value of its class when it is created; a class that changes or goes later changes no pod.

use std::fmt;
use std::str::FromStr;

use crate::meta::Metadata;

/// What a record says of a class.
#[derive(Clone, Debug, PartialEq)]
pub struct PriorityClass {
    pub meta: Metadata,
    pub value: i32,
    /// Whether pods that name neither a class nor a priority get this class.
    pub global_default: bool,
    pub description: String,
    pub preemption_policy: PreemptionPolicy,
}

/// Whether a pod may displace pods of lower priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PreemptionPolicy {
    #[default]
    PreemptLowerPriority,
    Never,
}

/// The text is not a preemption policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be PreemptLowerPriority or Never")]
pub struct PreemptionPolicyError;

/// The highest value of a class that users make: what is above is for the system.
pub const MAX_USER_VALUE: i32 = 1_000_000_000;

/// Names that begin so are reserved.
pub const RESERVED_PREFIX: &str = "system-";

/// The classes that need no record.
const SYSTEM_CLASSES: [(&str, i32); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

/// The value of a class that needs no record; `None` for all other names.
pub fn system_value(name: &str) -> Option<i32> {
    SYSTEM_CLASSES.into_iter().find(|(class, _)| *class == name).map(|(_, value)| value)
}

impl FromStr for PreemptionPolicy {
    type Err = PreemptionPolicyError;

    /// Empty text is the default.
    fn from_str(text: &str) -> Result<Self, PreemptionPolicyError> {
        match text {
            "" | "PreemptLowerPriority" => Ok(Self::PreemptLowerPriority),
            "Never" => Ok(Self::Never),
            _ => Err(PreemptionPolicyError),
        }
    }
}

impl fmt::Display for PreemptionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PreemptLowerPriority => "PreemptLowerPriority",
            Self::Never => "Never",
        })
    }
}
