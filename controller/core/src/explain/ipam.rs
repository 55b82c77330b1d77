//! How full the address pools are, and why a node has its blocks or has none.

use std::collections::BTreeMap;

use muster_proto::cidr::Cidr;
use muster_proto::node::Node;

use crate::explain::{Explanation, ExplanationAction, ExplanationState};
use crate::ipam::node_blocks::{AllocationState, QueueNumber};
use crate::ipam::{CidrPool, Ipam};

/// How full a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// The network.
    pub cidr: Cidr,
    /// The prefix length of a block.
    pub node_mask: u8,
    pub blocks: u64,
    /// Blocks that nodes have, or that are being written to their records.
    pub used: u64,
    /// Blocks reserved for services.
    pub reserved: u64,
    /// Nodes that wait for a block of each pool.
    pub waiting: u64,
    /// Blocks that more than one node has.
    pub conflicts: u64,
}

impl Ipam {
    /// The pools, in the order of the networks in a node's record.
    pub fn pools(&self) -> Vec<PoolReport> {
        let waiting = self.waiting() as u64;
        let report = |pool: &CidrPool| PoolReport {
            cidr: pool.cluster(),
            node_mask: pool.mask(),
            blocks: pool.count(),
            used: pool.used(),
            reserved: pool.reserved(),
            waiting,
            conflicts: pool.conflicts(),
        };
        self.cidr_pools().iter().map(report).collect()
    }

    /// Why a node has its blocks, or what it waits for.
    pub fn explain(&self, node: &Node) -> Explanation {
        let state = node.meta.uid.and_then(|uid| self.state(uid));
        let number = node.meta.uid.and_then(|uid| self.allocation(uid)).map(|allocation| allocation.number);
        let (inputs, earliest) = (self.inputs(), None);
        let say = |state, reason| Explanation {
            action: ExplanationAction::AssignCidr,
            state,
            reason,
            inputs,
            earliest,
            decision: 0,
        };
        match state {
            Some(AllocationState::Recorded { problem: Some(reason), .. }) => {
                say(ExplanationState::Refused, format!("The node {reason}."))
            }
            Some(AllocationState::Recorded { cidrs, problem: None }) => {
                say(ExplanationState::Done, self.recorded(cidrs, node))
            }
            Some(AllocationState::Reserved { cidrs, may_be_written: true, .. }) => say(
                ExplanationState::Due,
                format!(
                    "{} was sent to the store, and it is not known whether the store has it.",
                    list(cidrs)
                ),
            ),
            Some(AllocationState::Reserved { cidrs, failures: 0, .. }) => {
                say(ExplanationState::Due, format!("{} is being written to the node's record.", list(cidrs)))
            }
            Some(AllocationState::Reserved { cidrs, failures, .. }) => say(
                ExplanationState::Due,
                format!("{} could not be written {failures} times and is tried again.", list(cidrs)),
            ),
            Some(AllocationState::BackingOff) => {
                let reason =
                    "The node's blocks could not be written and were released; the node is queued again.";
                let earliest = node.meta.uid.and_then(|uid| self.requeued_at(uid));
                Explanation { earliest, ..say(ExplanationState::Waiting, reason.to_owned()) }
            }
            Some(AllocationState::Queued) => {
                say(ExplanationState::Waiting, self.obstacle(number.unwrap_or_default()))
            }
            None if node.meta.deletion_timestamp.is_some() => {
                say(ExplanationState::None, "A node that is being deleted gets no block.".to_owned())
            }
            None => say(ExplanationState::Waiting, "The controller has not seen the node yet.".to_owned()),
        }
    }

    /// What the node's record has, and whether another node has the same.
    fn recorded(&self, cidrs: &[Cidr], node: &Node) -> String {
        let sharing = |(pool, cidr): (&CidrPool, &Cidr)| {
            let holders = pool.holders_of(cidr);
            let other = holders.iter().find(|holder| Some(**holder) != node.meta.uid);
            other
                .and_then(|other| self.allocation(*other))
                .map(|other| (cidr.to_string(), other.name.clone()))
        };
        match self.cidr_pools().iter().zip(cidrs).find_map(sharing) {
            Some((cidr, other)) => {
                format!("The node's record has {}, but node {other} has {cidr} too.", list(cidrs))
            }
            None => format!("The node's record has {}.", list(cidrs)),
        }
    }

    /// Why a node has no block yet.
    fn obstacle(&self, number: QueueNumber) -> String {
        if !self.is_started() {
            return "No block is allocated before all nodes are known.".to_owned();
        }
        if let Some(failure) = self.failure() {
            return sentence(&failure);
        }
        match self.cidr_pools().iter().find(|pool| pool.is_full()) {
            Some(full) => {
                let ahead = self.queued_before(number);
                sentence(&format!("{}; {ahead} nodes wait before this one for a free block", full.shortage()))
            }
            None => "The node gets its blocks with the next decision.".to_owned(),
        }
    }

    fn inputs(&self) -> BTreeMap<String, String> {
        let full = |pool: &CidrPool| {
            let (used, reserved) = (pool.used(), pool.reserved());
            let text =
                format!("{} blocks of /{}, {used} used, {reserved} reserved", pool.count(), pool.mask());
            (pool.cluster().to_string(), text)
        };
        self.cidr_pools().iter().map(full).collect()
    }
}

/// A fragment as a sentence.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).chain(['.']).collect()
}

fn list(cidrs: &[Cidr]) -> String {
    cidrs.iter().map(Cidr::to_string).collect::<Vec<_>>().join(" and ")
}
