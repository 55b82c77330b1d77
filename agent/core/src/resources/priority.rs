//! PressureState: how much a pod matters, and how long it may take to go.

use std::time::Duration;

use muster_proto::pod::Pod;

/// From here on a pod is critical to the system.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// How long a pod may take to stop when neither it nor anybody else says.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// What the pod asked for; nothing is 0.
pub fn of(pod: &Pod) -> i32 {
    pod.spec.priority.unwrap_or(0)
}

/// Whether the node takes the pod in and keeps it even while it runs short itself.
pub fn is_critical(pod: &Pod) -> bool {
    pod.is_static() || pod.is_mirror() || of(pod) >= SYSTEM_CRITICAL
}

/// The time to stop that the pod itself asks for, if it does.
pub fn stated_grace(pod: &Pod) -> Option<Duration> {
    pod.spec.termination_grace_period_seconds.map(seconds)
}

/// The time to stop that the pod has unless somebody shortens it.
pub fn own_grace(pod: &Pod) -> Duration {
    stated_grace(pod).unwrap_or(DEFAULT_GRACE)
}

/// Seconds of a record as a duration; less than none is none.
pub fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    #[test]
    fn what_the_node_runs_on_its_own_account_is_critical() {
        for (pod, expected) in [
            (pod("a"), false),
            (pod("a").priority(SYSTEM_CRITICAL - 1), false),
            (pod("a").priority(SYSTEM_CRITICAL), true),
            (pod("a").source("api"), false),
            (pod("a").source("file"), true),
            (pod("a").mirror(), true),
        ] {
            let pod = pod.build();
            assert_eq!(is_critical(&pod), expected, "{:?} {:?}", pod.spec.priority, pod.meta.annotations);
        }
    }

    #[test]
    fn a_pod_that_says_nothing_has_thirty_seconds() {
        assert_eq!(own_grace(&pod("a").build()), DEFAULT_GRACE);
        assert_eq!(own_grace(&pod("a").grace(0).build()), Duration::ZERO);
        assert_eq!(seconds(-1), Duration::ZERO);
    }
}
