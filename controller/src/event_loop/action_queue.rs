//! Planned actions that wait to be performed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use muster_controller_core::plan::{Lane, PlannedAction};

/// Planned actions by lane. Lanes take turns, so that the many actions of one lane do not delay another; within a lane
/// the order is first in, first out.
#[derive(Default)]
pub(super) struct ActionQueue {
    /// No lane is empty.
    lanes: BTreeMap<Lane, VecDeque<PlannedAction>>,
    /// The lane that had the last turn.
    last: Option<Lane>,
}

impl ActionQueue {
    pub(super) fn extend(&mut self, actions: Vec<PlannedAction>) {
        for action in actions {
            self.lanes.entry(action.lane()).or_default().push_back(action);
        }
    }

    pub(super) fn next(&mut self) -> Option<PlannedAction> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let lane = self.lanes.range((after, Bound::Unbounded)).next().or_else(|| self.lanes.iter().next());
        let lane = *lane?.0;
        self.last = Some(lane);
        let actions = self.lanes.get_mut(&lane)?;
        let next = actions.pop_front();
        if actions.is_empty() {
            self.lanes.remove(&lane);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_controller_core::fixtures::{node, pod};
    use muster_controller_core::plan::{Action, ControllerName, Subject};

    fn of_node(controller: ControllerName, name: &str) -> PlannedAction {
        let subject = Subject::of_node(&node(name).build());
        PlannedAction { controller, subject, action: Action::ReadNode, why: "".into(), causes: Vec::new() }
    }

    fn of_pod(controller: ControllerName, name: &str) -> PlannedAction {
        let subject = Subject::of_pod(&pod(name).build());
        let action = Action::EvictPod { grace_period_seconds: None };
        PlannedAction { controller, subject, action, why: "".into(), causes: Vec::new() }
    }

    /// The next `count` actions, by the names of their subjects.
    fn next(queue: &mut ActionQueue, count: usize) -> Vec<String> {
        let next = std::iter::from_fn(|| queue.next()).take(count);
        next.map(|action| match action.subject {
            Subject::Node(name, _) => name.to_string(),
            Subject::Pod(key, _) | Subject::Lease(key) => key.name.to_string(),
        })
        .collect()
    }

    #[test]
    fn many_actions_of_one_lane_do_not_delay_another() {
        let mut queue = ActionQueue::default();
        let readiness = |i| of_pod(ControllerName::NodeLifecycle, &format!("pod{i}"));
        queue.extend((0..200).map(readiness).collect());
        queue.extend(["e1", "e2"].map(|name| of_pod(ControllerName::TaintEviction, name)).to_vec());
        queue.extend(["r1", "r2"].map(|name| of_node(ControllerName::NodeRecords, name)).to_vec());
        // The status of a node does not queue behind the readiness of pods either.
        queue.extend(["n1", "n2"].map(|name| of_node(ControllerName::NodeLifecycle, name)).to_vec());
        assert_eq!(next(&mut queue, 8), ["n1", "pod0", "r1", "e1", "n2", "pod1", "r2", "e2"]);
        assert_eq!(next(&mut queue, 2), ["pod2", "pod3"], "a lane that is alone has every turn");
        queue.extend(vec![of_pod(ControllerName::Drain, "d1")]);
        assert_eq!(next(&mut queue, 3), ["d1", "pod4", "pod5"], "a lane that comes later has the next turn");
        assert_eq!(next(&mut queue, 1000).len(), 194, "nothing is lost");
        assert!(queue.next().is_none());
    }
}
