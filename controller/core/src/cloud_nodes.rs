//! What a cloud knows of the machines behind nodes, and what follows from it.
//!
//! Nodes that are not Ready are asked about (`suspects`); those whose machine is gone are deleted, as far as the brake
//! lets go of them. Nodes that no cloud has described yet are described (`newcomers`). A node that is Ready speaks for
//! itself: it is never deleted, whatever the cloud says.
//!
//! All this is decided here without a cloud in reach.

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

use initialization::Newcomers;
use machine_checks::Suspects;

/// How often the cloud is asked, and how far it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often it is asked about one node (`--node-monitor-period`).
    pub period: Duration,
    /// Answers in a row that a machine does not exist before it is believed (`--cloud-delete-confirmations`).
    pub confirmations: NonZeroU32,
    /// Nodes that may be deleted on its word (`--cloud-delete-limit`) ...
    pub delete_limit: u32,
    /// ... within any such time (`--cloud-delete-period`).
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

/// Nodes about which the cloud has something to say.
#[derive(Clone, Debug)]
pub struct Cloud {
    pub(crate) suspects: Suspects,
    pub(crate) newcomers: Newcomers,
    touched: BTreeSet<Name>,
}

/// A node as it is ordered: of those that are due at one time the lower name comes first.
type NodeKey = (Name, Uid);

impl Cloud {
    pub fn new(settings: Settings) -> Cloud {
        Cloud {
            suspects: Suspects::new(settings),
            newcomers: Newcomers::new(settings.period),
            touched: BTreeSet::new(),
        }
    }

    /// What changed.
    pub fn observe(&mut self, delta: &Delta, _: &World, now: Now) {
        let Delta::Node(change) = delta else { return };
        match &change.new {
            Some(node) if node.meta.deletion_timestamp.is_none() => {
                self.suspects.see(node, now.mono);
                self.newcomers.see(node, now.mono);
                if node.is_ready() && is_marked_off(node) {
                    self.touched.insert(node.meta.name.clone());
                }
            }
            _ => {
                let uid = uid(&change.either().meta);
                self.suspects.forget(uid);
                self.newcomers.forget(uid);
            }
        }
    }

    /// What to ask and do now. About one node there is one proposal under way at most.
    ///
    /// Nodes are deleted on the cloud's word, so it is not asked whether machines exist before we may act on the answer.
    /// Newcomers are described from the first: that takes nothing from anybody.
    pub fn decide(&mut self, world: &World, hold_until: Mono, now: Now, plan: &mut Plan) {
        self.suspects.recall(now.mono, plan);
        if now.mono >= hold_until {
            self.suspects.decide(self.newcomers.busy_with(), world, now, plan);
        } else {
            plan.wake_by(hold_until);
        }
        self.newcomers.decide(self.suspects.busy_with(), world, now, plan);
    }

    /// What came of it.
    pub fn settle(&mut self, outcome: &Outcome, world: &World, now: Now) {
        let (name, uid) = match &outcome.subject {
            Subject::Node(name, uid) => (name, uid),
            Subject::Lease(_) => return self.suspects.settle_memory(&outcome.result, now),
            Subject::Pod(..) => return,
        };
        let has_news = if self.suspects.busy_with() == Some(*uid) {
            self.suspects.settle(*uid, &outcome.result, world, now.mono)
        } else if self.newcomers.busy_with() == Some(*uid) {
            self.newcomers.settle(*uid, &outcome.result, now.mono)
        } else {
            false
        };
        if has_news {
            self.touched.insert(name.clone());
        }
    }

    /// Nodes whose next record should differ from what was last said of it.
    pub fn take_changed(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.touched).into_iter().collect()
    }

    /// Writes into a node's record what the cloud said of its machine.
    pub fn apply_to(&self, node: &mut Node, now: Now) {
        let Some(uid) = node.meta.uid else { return };
        let is_ready = node.is_ready();
        let taints = &mut node.spec.taints;
        // Only Ready proves that the machine is on again: the cloud's word lags behind.
        if is_ready {
            taint::remove(taints, SHUTDOWN, TaintEffect::NoSchedule);
        } else if self.suspects.is_off(uid) && !taints.iter().any(marks_off) {
            taints.push(Taint::new(SHUTDOWN, "", TaintEffect::NoSchedule).added_at(now.wall));
        }
        if let Some(machine) = self.newcomers.machine(uid).filter(|_| is_undescribed(node)) {
            initialization::describe(node, machine);
        }
    }
}

fn marks_off(taint: &Taint) -> bool {
    taint.is(SHUTDOWN, TaintEffect::NoSchedule)
}

pub(crate) fn is_marked_off(node: &Node) -> bool {
    node.spec.taints.iter().any(marks_off)
}

pub(crate) fn is_undescribed(node: &Node) -> bool {
    node.spec.taints.iter().any(|taint| taint.key == UNINITIALIZED)
}

#[cfg(test)]
mod tests;
