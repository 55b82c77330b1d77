//! One write for everything that the controllers want to change in a node's metadata and spec.
//!
//! Each controller writes its part with `apply_to`; a node that differs afterwards becomes one update, at the version
//! it was computed from. So controllers do not conflict with each other.

use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::time::{Mono, Now};

use crate::deadlines::Deadlines;
use crate::decision::Cause;
use crate::node_lifecycle::noexecute_taints;
use crate::plan::{Action, ControllerName, Outcome, Plan, Subject};
use crate::world::{Change, World};

#[derive(Debug, Default)]
pub struct NodeRecords {
    /// Nodes whose record may differ from what the controllers want.
    nodes: Deadlines<Name>,
}

impl NodeRecords {
    pub fn observe(&mut self, change: &Change<Node>) {
        let name = &change.either().meta.name;
        match change.new {
            Some(_) => self.nodes.add(name.clone()),
            None => self.nodes.forget(name),
        }
    }

    /// A controller now wants something else of this node's record.
    pub fn add(&mut self, name: Name) {
        self.nodes.add(name);
    }

    /// Plans an update of each node that `apply_all`, what all controllers want, changes.
    /// `causes` is why, given the record before and after.
    pub fn decide(
        &mut self,
        world: &World,
        apply_all: impl Fn(&mut Node),
        causes: impl Fn(&Node, &Node) -> Vec<Cause>,
        now: Now,
        plan: &mut Plan,
    ) {
        for name in self.nodes.take(now.mono) {
            let Some(node) = world.node(name.as_str()) else {
                self.nodes.forget(&name);
                continue;
            };
            let mut next = Node::clone(node);
            apply_all(&mut next);
            if next == **node {
                self.nodes.forget(&name);
                continue;
            }
            plan.trace_events.extend(noexecute_taints::trace_event(node, &next));
            let subject = Subject::of_node(&next);
            let causes = causes(node, &next);
            let action = Action::UpdateNode(Box::new(next));
            plan.act(ControllerName::NodeRecords, subject, action, "its record", causes);
            self.nodes.begin(name);
        }
        if let Some(at) = self.nodes.next() {
            plan.wake_by(at);
        }
    }

    pub fn settle(&mut self, outcome: &Outcome, now: Mono) {
        if let Subject::Node(name, _) = &outcome.subject {
            self.nodes.settle(name, &outcome.result, now);
        }
    }
}
