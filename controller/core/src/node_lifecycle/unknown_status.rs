//! The status of a silent node: its conditions become Unknown.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::node::{Node, NodeCondition};

use muster_proto::time::Now;

/// The reason of a condition that the agent never reported.
pub const NEVER_UPDATED: &str = "NodeStatusNeverUpdated";
/// The reason of a condition that the agent reported before.
pub const STOPPED: &str = "NodeStatusUnknown";

const CONDITIONS: [&str; 4] =
    [types::READY, types::MEMORY_PRESSURE, types::DISK_PRESSURE, types::PID_PRESSURE];

/// The record with its conditions Unknown; `None` if Ready is Unknown already.
pub fn mark_unknown(node: &Node, now: Now) -> Option<Node> {
    if node.condition(types::READY).is_some_and(|ready| ready.status == ConditionStatus::Unknown) {
        return None;
    }
    let mut marked = node.clone();
    for kind in CONDITIONS {
        match marked.status.conditions.iter_mut().find(|held| held.kind == kind) {
            None => marked.status.conditions.push(NodeCondition {
                kind: kind.to_owned(),
                status: ConditionStatus::Unknown,
                reason: NEVER_UPDATED.to_owned(),
                message: "The node's agent never posted node status.".to_owned(),
                last_heartbeat_time: node.meta.creation_timestamp,
                last_transition_time: Some(now.wall),
            }),
            Some(held) if held.status != ConditionStatus::Unknown => {
                held.status = ConditionStatus::Unknown;
                held.reason = STOPPED.to_owned();
                held.message = "The node's agent stopped posting node status.".to_owned();
                held.last_transition_time = Some(now.wall);
            }
            Some(_) => {}
        }
    }
    Some(marked)
}

/// Whether the record was marked Unknown after the agent had reported.
pub fn is_marked_unknown(node: &Node) -> bool {
    let ready = node.condition(types::READY);
    ready.is_some_and(|ready| ready.status == ConditionStatus::Unknown && ready.reason == STOPPED)
}

#[cfg(test)]
mod tests {
    use muster_proto::condition::ConditionStatus::{False, True, Unknown};

    use super::*;
    use crate::fixtures::{at, epoch, node};

    fn conditions(node: &Node) -> Vec<(&str, ConditionStatus, &str)> {
        node.status
            .conditions
            .iter()
            .map(|held| (held.kind.as_str(), held.status, held.reason.as_str()))
            .collect()
    }

    #[test]
    fn s084_a_node_that_never_reported_gets_all_four_conditions() {
        let marked = mark_unknown(&node("a").build(), at(61)).unwrap();
        assert_eq!(
            conditions(&marked),
            CONDITIONS.map(|kind| (kind, Unknown, NEVER_UPDATED)),
            "Ready first, then the pressures"
        );
        let heartbeats = marked.status.conditions.iter().map(|held| held.last_heartbeat_time);
        assert!(heartbeats.into_iter().all(|time| time == Some(epoch())), "the time of creation is used");
        assert!(marked.status.conditions.iter().all(|held| held.last_transition_time == Some(at(61).wall)));
    }

    #[test]
    fn s085_only_conditions_that_the_agent_reports_become_unknown() {
        let reported = node("a")
            .ready(True)
            .condition(types::MEMORY_PRESSURE, False)
            .condition(types::DISK_PRESSURE, Unknown)
            .condition(types::NETWORK_UNAVAILABLE, False)
            .condition("Custom", True)
            .build();
        let marked = mark_unknown(&reported, at(61)).unwrap();
        assert_eq!(
            conditions(&marked),
            [
                ("Ready", Unknown, STOPPED),
                ("MemoryPressure", Unknown, STOPPED),
                ("DiskPressure", Unknown, ""),
                ("NetworkUnavailable", False, ""),
                ("Custom", True, ""),
                ("PIDPressure", Unknown, NEVER_UPDATED),
            ]
        );
        let ready = marked.condition("Ready").unwrap();
        assert_eq!(ready.last_heartbeat_time, Some(epoch()), "the heartbeat time of the agent is kept");
        assert_eq!(ready.last_transition_time, Some(at(61).wall));
        let disk = marked.condition(types::DISK_PRESSURE).unwrap();
        assert_eq!(disk.last_transition_time, Some(epoch()), "it was Unknown before");
    }

    #[test]
    fn a_node_that_is_unknown_already_is_not_marked_again() {
        assert_eq!(mark_unknown(&node("a").ready(Unknown).build(), at(61)), None);
        assert!(mark_unknown(&node("a").ready(False).build(), at(61)).is_some());
    }
}
