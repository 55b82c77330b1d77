//! A pod's priority, and its grace period.

use std::time::Duration;

use muster_proto::pod::Pod;

/// The priority from which on a pod is system-critical.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// The grace period of a pod that does not set one.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The pod's priority; 0 if it has none.
pub fn of(pod: &Pod) -> i32 {
    pod.spec.priority()
}

/// Whether the node admits and keeps the pod even under pressure.
pub fn is_critical(pod: &Pod) -> bool {
    pod.is_static() || of(pod) >= SYSTEM_CRITICAL
}

/// The grace period that the pod's spec sets.
pub fn stated_grace(pod: &Pod) -> Option<Duration> {
    pod.spec.termination_grace_period_seconds.map(seconds)
}

/// The pod's grace period, unless its deletion or the node shortens it.
pub fn own_grace(pod: &Pod) -> Duration {
    stated_grace(pod).unwrap_or(DEFAULT_GRACE)
}

/// Seconds of a record as a duration; a negative number is 0.
pub fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    #[test]
    fn s213_static_and_high_priority_pods_are_critical_and_annotations_alone_are_not_believed() {
        for (pod, expected) in [
            (pod("a"), false),
            (pod("a").priority(SYSTEM_CRITICAL - 1), false),
            (pod("a").priority(SYSTEM_CRITICAL), true),
            (pod("a").source("api"), false),
            (pod("a").unstored().source("file"), true),
            (pod("a").source("file"), false),
            (pod("a").mirror(), false),
        ] {
            let pod = pod.build();
            assert_eq!(is_critical(&pod), expected, "{:?} {:?}", pod.spec.priority, pod.meta.annotations);
        }
    }

    #[test]
    fn the_default_grace_period_is_thirty_seconds() {
        assert_eq!(own_grace(&pod("a").build()), DEFAULT_GRACE);
        assert_eq!(own_grace(&pod("a").grace(0).build()), Duration::ZERO);
        assert_eq!(seconds(-1), Duration::ZERO);
    }
}
