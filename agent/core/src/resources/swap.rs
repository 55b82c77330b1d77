//! How much swap a container may use.

use muster_proto::pod::{Container, Pod, QosClass};
use muster_proto::quantity::Quantity;

use crate::resources::priority;

/// What pods may do with the machine's swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// Pods may not swap.
    #[default]
    NoSwap,
    /// Burstable pods get a share of the swap in proportion to their memory request.
    LimitedSwap,
}

impl std::str::FromStr for SwapBehavior {
    type Err = String;

    /// Empty text is NoSwap, the default.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" | "NoSwap" => Ok(Self::NoSwap),
            "LimitedSwap" => Ok(Self::LimitedSwap),
            _ => Err(format!("{text:?} must be NoSwap or LimitedSwap")),
        }
    }
}

/// The machine's swap, and how pods may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapPolicy {
    pub behavior: SwapBehavior,
    /// Whether cgroups are version 2 and limit swap.
    pub is_controlled: bool,
    /// In bytes.
    pub memory_total: u64,
    /// In bytes; all of it is for pods.
    pub swap_total: u64,
}

/// The swap a container may use, in bytes.
pub fn limit(pod: &Pod, container: &Container, policy: &SwapPolicy) -> u64 {
    if policy.behavior == SwapBehavior::NoSwap || !policy.is_controlled {
        return 0;
    }
    if pod.qos() != QosClass::Burstable || priority::is_critical(pod) {
        return 0;
    }
    let amount = |of: &muster_proto::quantity::Resources| of.get("memory").copied();
    let limit = amount(&container.resources.limits);
    // A container with a limit and no request requests as much as its limit.
    let request = amount(&container.resources.requests).or(limit);
    match request {
        Some(request) if Some(request) != limit => share(request, policy),
        _ => 0,
    }
}

/// The fraction of the swap that the request is of the memory.
fn share(request: Quantity, policy: &SwapPolicy) -> u64 {
    let request = u64::try_from(request.value()).unwrap_or(0);
    if request > policy.memory_total || policy.memory_total == 0 {
        return 0;
    }
    // In floating point and truncated, as the kubelet does: the figures must agree to the byte.
    (request as f64 / policy.memory_total as f64 * policy.swap_total as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ContainerBuilder, container, pod};

    const GI: u64 = 1 << 30;
    const POLICY: SwapPolicy = SwapPolicy {
        behavior: SwapBehavior::LimitedSwap,
        is_controlled: true,
        memory_total: 16 * GI,
        swap_total: 8 * GI,
    };

    fn limit_of(requests: &str, limits: &str, policy: &SwapPolicy) -> u64 {
        let container = container("main").requests(requests).limits(limits);
        // The other container keeps the pod Burstable whatever this one requests.
        let other = crate::testing::container("other").requests("cpu=1");
        let pod = pod("a").containers(vec![container.clone(), other]).build();
        limit(&pod, &container, policy)
    }

    #[test]
    fn s078_the_share_of_swap_is_the_share_of_memory() {
        for (requests, limits, expected) in [
            ("memory=1Gi", "memory=2Gi", 536_870_912),
            ("memory=1Gi", "", 536_870_912),
            ("memory=16Gi", "memory=17Gi", 8 * GI),
            ("memory=1Gi", "memory=1Gi", 0),
            ("", "memory=1Gi", 0),
            ("cpu=1", "", 0),
            ("memory=17Gi", "memory=18Gi", 0),
            ("memory=1", "memory=2", 0),
            ("memory=3", "", 1),
        ] {
            assert_eq!(limit_of(requests, limits, &POLICY), expected, "{requests:?} | {limits:?}");
        }
    }

    #[test]
    fn s078_swap_is_allowed_only_to_burstable_pods_on_a_machine_that_limits_it() {
        let off = [
            SwapPolicy { behavior: SwapBehavior::NoSwap, ..POLICY },
            SwapPolicy { is_controlled: false, ..POLICY },
            SwapPolicy { memory_total: 0, ..POLICY },
            SwapPolicy { swap_total: 0, ..POLICY },
        ];
        for policy in off {
            assert_eq!(limit_of("memory=1Gi", "memory=2Gi", &policy), 0, "{policy:?}");
        }
        let burstable = || pod("a").containers(vec![container("main").requests("memory=1Gi")]);
        let full = "cpu=1 memory=1Gi";
        let guaranteed = pod("a").containers(vec![container("main").requests(full).limits(full)]);
        for (name, pod, expected) in [
            ("burstable", burstable(), 536_870_912),
            ("best effort", pod("a"), 0),
            ("guaranteed", guaranteed, 0),
            ("critical", burstable().priority(priority::SYSTEM_CRITICAL), 0),
            ("static", burstable().unstored().source("file"), 0),
            ("annotated", burstable().source("file").mirror(), 536_870_912),
        ] {
            let pod = pod.build();
            assert_eq!(limit(&pod, &pod.spec.containers[0], &POLICY), expected, "{name}");
        }
    }

    #[test]
    fn s079_unlimited_swap_is_refused() {
        for (text, expected) in [
            ("", Some(SwapBehavior::NoSwap)),
            ("NoSwap", Some(SwapBehavior::NoSwap)),
            ("LimitedSwap", Some(SwapBehavior::LimitedSwap)),
            ("UnlimitedSwap", None),
        ] {
            assert_eq!(text.parse::<SwapBehavior>().ok(), expected, "{text:?}");
        }
    }
}
