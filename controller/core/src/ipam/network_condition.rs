//! The condition NetworkUnavailable of nodes that wait for an address block: pods there would have no addresses, so the
//! taint that follows from the condition keeps them away.
//!
//! A node that gets its blocks at once never has the condition. One that another program set is left alone.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::node::{Node, NodeCondition};
use muster_proto::time::Now;

use super::Ipam;
use super::node_blocks::AllocationState;
use crate::decision::causes;
use crate::plan::{Action, ControllerName, Outcome, Plan, Subject};
use crate::world::World;

/// The reason of the condition while the node waits, which says that we set it.
const WAITING: &str = "CIDRNotAvailable";
/// The reason after that.
const ASSIGNED: &str = "CIDRAssigned";

impl Ipam {
    /// Plans the status of nodes that began to wait, or wait no more.
    pub(super) fn write_conditions(&mut self, world: &World, now: Now, plan: &mut Plan) {
        for name in self.conditions.take(now.mono) {
            let node = world.node(name.as_str());
            let next = node.and_then(|node| with_condition(node, self.state(node.meta.uid?)?, now));
            let Some(next) = next else {
                self.conditions.forget(&name);
                continue;
            };
            let why = "whether the node has an address block";
            let subject = Subject::of_node(&next);
            let waits = next
                .condition(types::NETWORK_UNAVAILABLE)
                .is_some_and(|held| held.status == ConditionStatus::True);
            let cause = causes::address_block_condition(waits);
            plan.act(ControllerName::Ipam, subject, Action::UpdateNodeStatus(Box::new(next)), why, [cause]);
            self.conditions.begin(name);
        }
        if let Some(at) = self.conditions.next() {
            plan.wake_by(at);
        }
    }

    /// A status was written or refused.
    pub fn settle(&mut self, outcome: &Outcome, now: Now) {
        if let Subject::Node(name, _) = &outcome.subject {
            self.conditions.settle(name, &outcome.result, now.mono);
        }
    }
}

/// Whether the node's record says that it waits for a block.
pub(super) fn is_marked(node: &Node) -> bool {
    let held = node.condition(types::NETWORK_UNAVAILABLE);
    held.is_some_and(|held| held.status == ConditionStatus::True && held.reason == WAITING)
}

/// The record with the condition that it is to have; `None` if it has it or needs none.
fn with_condition(node: &Node, state: &AllocationState, now: Now) -> Option<Node> {
    let (status, reason, message) = match state {
        AllocationState::Queued | AllocationState::BackingOff => {
            let held = node.condition(types::NETWORK_UNAVAILABLE).map(|held| held.status);
            if held == Some(ConditionStatus::True) {
                return None;
            }
            (ConditionStatus::True, WAITING, "The node waits for an address block for its pods.")
        }
        AllocationState::Recorded { .. } if is_marked(node) => {
            (ConditionStatus::False, ASSIGNED, "The node has an address block for its pods.")
        }
        AllocationState::Recorded { .. } | AllocationState::Reserved { .. } => return None,
    };
    let mut next = node.clone();
    next.status.conditions.retain(|held| held.kind != types::NETWORK_UNAVAILABLE);
    next.status.conditions.push(NodeCondition {
        kind: types::NETWORK_UNAVAILABLE.to_owned(),
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_heartbeat_time: Some(now.wall),
        last_transition_time: Some(now.wall),
    });
    Some(next)
}
