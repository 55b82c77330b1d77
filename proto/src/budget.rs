//! Disruption budgets: how many pods of a set may be unavailable at once.
//!
//! A budget applies to evictions, not to deletions.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

use crate::meta::Metadata;
use crate::name::Name;
use crate::percent::IntOrPercent;
use crate::selector::LabelSelector;

#[derive(Clone, Debug, PartialEq)]
pub struct DisruptionBudget {
    pub meta: Metadata,
    pub spec: DisruptionBudgetSpec,
    pub status: DisruptionBudgetStatus,
}

/// Which pods a budget selects, and how many must be available.
#[derive(Clone, Debug, PartialEq)]
pub struct DisruptionBudgetSpec {
    /// Pods of the budget's own namespace; the empty selector means all of them.
    pub selector: LabelSelector,
    pub limit: DisruptionLimit,
    pub unhealthy_pod_eviction_policy: UnhealthyPodEvictionPolicy,
}

/// The limit of a budget, given in one of two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisruptionLimit {
    /// This many pods must be available.
    MinAvailable(IntOrPercent),
    /// This many pods may be unavailable.
    MaxUnavailable(IntOrPercent),
}

/// When a pod that is not ready may be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnhealthyPodEvictionPolicy {
    /// Only while enough other pods are healthy.
    #[default]
    IfHealthyBudget,
    AlwaysAllow,
}

/// The text is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be IfHealthyBudget or AlwaysAllow")]
pub struct UnhealthyPodEvictionPolicyError;

/// The current counts of a budget. Written by the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DisruptionBudgetStatus {
    /// Evictions that would be allowed now. A negative number, which the store never writes, allows none.
    pub disruptions_allowed: i32,
    pub current_healthy: i32,
    pub desired_healthy: i32,
    pub expected_pods: i32,
    /// Pods whose eviction was allowed and is not observed yet, with the time of the eviction.
    pub disrupted_pods: BTreeMap<Name, Timestamp>,
    pub observed_generation: i64,
}

impl FromStr for UnhealthyPodEvictionPolicy {
    type Err = UnhealthyPodEvictionPolicyError;

    /// Empty text is the default.
    fn from_str(text: &str) -> Result<Self, UnhealthyPodEvictionPolicyError> {
        match text {
            "" | "IfHealthyBudget" => Ok(Self::IfHealthyBudget),
            "AlwaysAllow" => Ok(Self::AlwaysAllow),
            _ => Err(UnhealthyPodEvictionPolicyError),
        }
    }
}

impl fmt::Display for UnhealthyPodEvictionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::IfHealthyBudget => "IfHealthyBudget",
            Self::AlwaysAllow => "AlwaysAllow",
        })
    }
}
