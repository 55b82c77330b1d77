//! Initializes new nodes from the cloud's description of their machines, and deletes nodes whose machine is gone.
//!
//! The cloud is asked about nodes that are not Ready (`machine_checks`); nodes whose machine does not exist are
//! deleted, within a limit (`deletion_limit`) that a fail-over does not reset (`deletion_record`). Nodes with the
//! `uninitialized` taint are initialized (`initialization`). A Ready node is never deleted, whatever the cloud answers.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::taint::{self, Taint, TaintEffect};
use muster_proto::time::Mono;
use muster_proto::wellknown::taint::{SHUTDOWN, UNINITIALIZED};

use crate::plan::{Outcome, Plan, Subject, uid};
use crate::world::{Delta, World};
use muster_proto::time::Now;

mod deletion_limit;
pub(crate) mod deletion_record;
pub(crate) mod initialization;
pub(crate) mod machine_checks;

use initialization::Initialization;
use machine_checks::MachineChecks;

/// How often the cloud is asked, and which answers lead to deletions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often the cloud is asked about one node (`--node-monitor-period`).
    pub period: Duration,
    /// Answers in a row that a machine does not exist before its node is deleted (`--cloud-delete-confirmations`).
    pub confirmations: NonZeroU32,
    /// Nodes that may be deleted for want of a machine (`--cloud-delete-limit`) ...
    pub delete_limit: u32,
    /// ... within any period of this length (`--cloud-delete-period`).
    pub delete_period: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            period: Duration::from_secs(5),
            confirmations: NonZeroU32::new(3).expect("3 is not 0"),
            delete_limit: 10,
            delete_period: Duration::from_secs(60 * 60),
        }
    }
}

/// The cloud node controller.
#[derive(Clone, Debug)]
pub struct CloudNodes {
    pub(crate) checks: MachineChecks,
    pub(crate) initialization: Initialization,
    changed: BTreeSet<Name>,
}

/// A node; of nodes that are due at the same time the lower name comes first.
type NodeKey = (Name, Uid);

impl CloudNodes {
    pub fn new(settings: Settings) -> CloudNodes {
        CloudNodes {
            checks: MachineChecks::new(settings),
            initialization: Initialization::new(settings.period),
            changed: BTreeSet::new(),
        }
    }

    pub fn observe(&mut self, delta: &Delta, _: &World, now: Now) {
        let Delta::Node(change) = delta else { return };
        match &change.new {
            Some(node) if node.meta.deletion_timestamp.is_none() => {
                self.checks.observe(node, now.mono);
                self.initialization.observe(node, now.mono);
                if node.is_ready() && has_shutdown_taint(node) {
                    self.changed.insert(node.meta.name.clone());
                }
            }
            _ => {
                let uid = uid(&change.either().meta);
                self.checks.forget(uid);
                self.initialization.forget(uid);
            }
        }
    }

    /// What to ask and do now. At most one action per node is in flight.
    ///
    /// The answer whether a machine exists can delete its node, so the cloud is not asked before `hold_until`. New
    /// nodes are initialized from the start, since that harms no node.
    pub fn decide(&mut self, world: &World, hold_until: Mono, now: Now, plan: &mut Plan) {
        self.checks.read_record(now.mono, plan);
        if now.mono >= hold_until {
            self.checks.decide(self.initialization.in_flight(), world, now, plan);
        } else {
            plan.wake_by(hold_until);
        }
        self.initialization.decide(self.checks.in_flight(), world, now, plan);
    }

    /// The outcome of an action.
    pub fn settle(&mut self, outcome: &Outcome, world: &World, now: Now) {
        let (name, uid) = match &outcome.subject {
            Subject::Node(name, uid) => (name, uid),
            Subject::Lease(_) => return self.checks.settle_record(&outcome.result, now),
            Subject::Pod(..) => return,
        };
        let has_changed = if self.checks.in_flight() == Some(*uid) {
            self.checks.settle(*uid, &outcome.result, world, now.mono)
        } else if self.initialization.in_flight() == Some(*uid) {
            self.initialization.settle(*uid, &outcome.result, now.mono)
        } else {
            false
        };
        if has_changed {
            self.changed.insert(name.clone());
        }
    }

    /// Takes the nodes whose record should change.
    pub fn take_changed(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }

    /// Writes the cloud's answers about its machine into a node's record.
    pub fn apply_to(&self, node: &mut Node, now: Now) {
        let Some(uid) = node.meta.uid else { return };
        let is_ready = node.is_ready();
        let taints = &mut node.spec.taints;
        // Only Ready proves that the machine runs again: the cloud's answers lag behind.
        if is_ready {
            taint::remove(taints, SHUTDOWN, TaintEffect::NoSchedule);
        } else if self.checks.is_off(uid) && !taints.iter().any(is_shutdown_taint) {
            taints.push(Taint::new(SHUTDOWN, "", TaintEffect::NoSchedule).added_at(now.wall));
        }
        if let Some(machine) = self.initialization.machine(uid).filter(|_| is_uninitialized(node)) {
            initialization::initialize(node, machine);
        }
    }
}

fn is_shutdown_taint(taint: &Taint) -> bool {
    taint.is(SHUTDOWN, TaintEffect::NoSchedule)
}

pub(crate) fn has_shutdown_taint(node: &Node) -> bool {
    node.spec.taints.iter().any(is_shutdown_taint)
}

pub(crate) fn is_uninitialized(node: &Node) -> bool {
    node.spec.taints.iter().any(|taint| taint.key == UNINITIALIZED)
}

#[cfg(test)]
mod tests;
