//! Which containers the kernel kills first when the machine is out of memory.
//!
//! As the kubelet sets it, so that the kernel's choice agrees with our evictions: containers without requests are
//! killed first, Guaranteed ones last. The score of the agent's own process does not pass to its pods.

use muster_proto::pod::{Container, Pod, QosClass};
use muster_proto::quantity::Quantity;

use crate::resources::priority;

/// Killed after everything but the machine's own processes.
const LAST: i32 = -997;
/// Killed first.
const FIRST: i32 = 1000;

/// The `oom_score_adj` of a container on a machine with that much memory.
pub fn score_adj(pod: &Pod, container: &Container, memory_total: u64) -> i32 {
    if priority::is_critical(pod) {
        return LAST;
    }
    match pod.qos() {
        QosClass::Guaranteed => LAST,
        QosClass::BestEffort => FIRST,
        QosClass::Burstable => {
            let asked = container.resources.requests.get("memory").map_or(0, Quantity::value);
            let asked = u128::try_from(asked).unwrap_or(0);
            let share = (1000 * asked).checked_div(memory_total.into()).unwrap_or(0);
            // Between the two others, whatever was requested.
            let share = i32::try_from(share).unwrap_or(FIRST);
            (FIRST - share).clamp(FIRST + LAST, FIRST - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ContainerBuilder, container, pod};

    const GI: u64 = 1 << 30;

    #[test]
    fn containers_with_smaller_requests_are_killed_sooner() {
        let full = "cpu=1 memory=1Gi";
        for (name, container, expected) in [
            ("best effort", container("main"), 1000),
            ("asks for a processor", container("main").requests("cpu=1"), 999),
            ("asks for a quarter", container("main").requests("memory=4Gi"), 750),
            ("asks for all", container("main").requests("memory=16Gi"), 3),
            ("asks for more than there is", container("main").requests("memory=64Gi"), 3),
            ("guaranteed", container("main").requests(full).limits(full), -997),
        ] {
            let pod = pod("a").containers(vec![container.clone()]).build();
            assert_eq!(score_adj(&pod, &container, 16 * GI), expected, "{name}");
        }
        let critical = pod("a").priority(priority::SYSTEM_CRITICAL).build();
        assert_eq!(score_adj(&critical, &critical.spec.containers[0], 16 * GI), -997);
        let unknown = pod("a").containers(vec![container("main").requests("memory=1Gi")]).build();
        assert_eq!(score_adj(&unknown, &unknown.spec.containers[0], 0), 999);
    }
}
