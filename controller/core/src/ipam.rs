//! Address blocks for nodes: which node has which, and which nodes wait for one.
//!
//! The networks in a node's record are respected, whatever wrote them. A node whose record names none joins a queue,
//! gets a block of each pool, reserved by its uid until its record is gone, and [`Ipam::apply_to`] writes them into its
//! record. No block is allocated before all nodes are known, nor while a node from the start has a network that fits no
//! pool: what is in use would not be known.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::event::{Event, EventType};
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::time::Mono;

use crate::deadlines::Deadlines;
use crate::plan::{Failure, Plan, Subject, node_event, uid};
use crate::world::{Delta, World};
use muster_proto::time::Now;

mod block_tree;
mod cidr_pool;
mod network_condition;
pub(crate) mod node_blocks;
mod queue;
mod recorded;
mod settings;

use node_blocks::{AllocationState, NodeAllocation, QueueNumber};

pub use cidr_pool::{CidrPool, OutsidePool};
pub use settings::{FlagError, Flags, Settings};

/// Writes that may fail before the blocks are released.
const MAX_WRITES: u32 = 3;
/// How long a node whose blocks were released waits before it queues again.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1000));

/// The address blocks of all nodes.
#[derive(Clone, Debug)]
pub struct Ipam {
    /// In the order in which nodes name them.
    pools: Vec<CidrPool>,
    nodes: HashMap<Uid, NodeAllocation>,
    /// Nodes that wait, first come first served.
    queue: BTreeMap<QueueNumber, Uid>,
    /// Nodes in the queue without an event that says that they wait.
    unreported: BTreeSet<QueueNumber>,
    /// Nodes whose blocks were released: they queue again after a back-off. Writes of blocks are retried with the
    /// node's record and not tracked here.
    backing_off: Deadlines<Uid>,
    /// Nodes whose condition NetworkUnavailable may have to change.
    conditions: Deadlines<Name>,
    last_number: QueueNumber,
    is_started: bool,
    /// Nodes from the start with a network that fits no pool, and why.
    unplaceable: BTreeMap<Name, String>,
    /// Nodes whose record is to be written.
    changed: BTreeSet<Name>,
    events: Vec<Event>,
}

impl Ipam {
    pub fn new(settings: &Settings) -> Ipam {
        Ipam {
            pools: settings.pools.iter().map(|blocks| CidrPool::new(*blocks, &settings.services)).collect(),
            nodes: HashMap::new(),
            queue: BTreeMap::new(),
            unreported: BTreeSet::new(),
            backing_off: Deadlines::new(BACKOFF),
            conditions: Deadlines::default(),
            last_number: 0,
            is_started: false,
            unplaceable: BTreeMap::new(),
            changed: BTreeSet::new(),
            events: Vec::new(),
        }
    }

    /// All nodes are known: from now on blocks are allocated, unless one of these nodes makes that unsafe.
    pub fn start(&mut self, world: &World) {
        for node in world.nodes() {
            self.observe_node(node);
            let allocation = self.nodes.get(&uid(&node.meta));
            if let Some(AllocationState::Recorded { problem: Some(reason), .. }) =
                allocation.map(|allocation| &allocation.state)
            {
                self.unplaceable.insert(node.meta.name.clone(), reason.clone());
            }
        }
        self.is_started = true;
    }

    /// Why no blocks are allocated, though all nodes are known. It lasts as long as the node that it names.
    pub fn failure(&self) -> Option<String> {
        let (name, reason) = self.unplaceable.first_key_value()?;
        let others = match self.unplaceable.len() - 1 {
            0 => String::new(),
            count => format!(" (and {count} more such nodes)"),
        };
        Some(format!(
            "node {name} {reason}{others}: no blocks are given out until it is deleted or the flags fit"
        ))
    }

    pub fn observe(&mut self, delta: &Delta, _: &World, _: Now) {
        let Delta::Node(change) = delta else { return };
        match &change.new {
            Some(node) => self.observe_node(node),
            None => self.forget(uid(&change.either().meta)),
        }
    }

    /// Reserves blocks for the nodes that wait, as far as there are any.
    pub fn decide(&mut self, world: &World, now: Now, plan: &mut Plan) {
        self.requeue(now.mono);
        if self.is_started && self.unplaceable.is_empty() {
            self.serve_queue();
        }
        if self.is_started {
            self.write_conditions(world, now, plan);
        }
        plan.events.append(&mut self.events);
        if let Some(at) = self.backing_off.next() {
            plan.wake_by(at);
        }
    }

    /// Takes the nodes whose record should change.
    pub fn take_changed(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }

    /// Writes a node's blocks into its record if the record names none.
    pub fn apply_to(&self, node: &mut Node, _: Now) {
        if !node.spec.pod_cidrs.is_empty() || node.meta.deletion_timestamp.is_some() {
            return;
        }
        if let Some(AllocationState::Reserved { cidrs, .. }) = node.meta.uid.and_then(|uid| self.state(uid)) {
            node.spec.pod_cidrs.clone_from(cidrs);
        }
    }

    /// The record of a node could not be written. The write is retried elsewhere; after too many failures the blocks
    /// are released, unless one of the writes may have happened: then the record's next version shows it.
    pub fn assignment_failed(&mut self, subject: &Subject, failure: &Failure, now: Now) {
        let Subject::Node(name, uid) = subject else { return };
        let Some(NodeAllocation { state, .. }) = self.nodes.get_mut(uid) else { return };
        let AllocationState::Reserved { failures, may_be_written, .. } = state else { return };
        let reason = match failure {
            // The watch will show the next version of the record, or its deletion.
            Failure::Conflict | Failure::Gone => return,
            Failure::Unknown(reason) => {
                *may_be_written = true;
                reason
            }
            Failure::Refused(reason) | Failure::Later(reason) => reason,
            Failure::Budget { message, .. } => message,
        };
        *failures += 1;
        if *failures < MAX_WRITES || *may_be_written {
            return;
        }
        let message = format!("Node {name} status is now: CIDRAssignmentFailed: {reason}");
        self.events.push(node_event(name, *uid, EventType::Warning, "CIDRAssignmentFailed", message));
        self.back_off(*uid, now.mono);
    }

    /// The pools, in the order in which nodes name them.
    pub(crate) fn cidr_pools(&self) -> &[CidrPool] {
        &self.pools
    }

    pub(crate) fn allocation(&self, uid: Uid) -> Option<&NodeAllocation> {
        self.nodes.get(&uid)
    }

    /// How many nodes wait for blocks, in the queue or backing off.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len() + self.backing_off.len()
    }

    /// How many nodes are in the queue before that number.
    pub(crate) fn queued_before(&self, number: QueueNumber) -> usize {
        self.queue.range(..number).count()
    }

    /// When a node that backs off queues again.
    pub(crate) fn requeued_at(&self, uid: Uid) -> Option<Mono> {
        self.backing_off.due_at(&uid)
    }

    /// Whether all nodes are known.
    pub(crate) fn is_started(&self) -> bool {
        self.is_started
    }

    pub(crate) fn state(&self, uid: Uid) -> Option<&AllocationState> {
        self.nodes.get(&uid).map(|allocation| &allocation.state)
    }
}

#[cfg(test)]
mod tests;
