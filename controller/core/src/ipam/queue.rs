//! The queue of nodes that wait for blocks, first come first served.

use muster_proto::cidr::Cidr;
use muster_proto::event::EventType;
use muster_proto::name::{Name, Uid};
use muster_proto::time::Mono;

use super::node_blocks::{AllocationState, NodeAllocation};
use super::{CidrPool, Ipam};
use crate::plan::node_event;

impl Ipam {
    /// Reserves blocks for the nodes in the queue, as long as every pool has one.
    pub(super) fn serve_queue(&mut self) {
        while let Some((&number, &uid)) = self.queue.first_key_value()
            && let Some(cidrs) = self.allocate(uid)
        {
            self.queue.remove(&number);
            self.unreported.remove(&number);
            self.set_reserved(uid, cidrs);
        }
        self.report_waiting();
    }

    /// A block of each pool, or none of any.
    fn allocate(&mut self, uid: Uid) -> Option<Vec<Cidr>> {
        if self.pools.iter().any(CidrPool::is_full) {
            return None;
        }
        Some(
            self.pools
                .iter_mut()
                .map(|pool| pool.allocate(uid).expect("a pool that is not full has a block"))
                .collect(),
        )
    }

    fn set_reserved(&mut self, uid: Uid, cidrs: Vec<Cidr>) {
        let Some(allocation) = self.nodes.get_mut(&uid) else { return };
        allocation.state = AllocationState::Reserved { cidrs, failures: 0, may_be_written: false };
        self.changed.insert(allocation.name.clone());
    }

    /// Adds a node at the end of the queue.
    pub(super) fn join_queue(&mut self, uid: Uid, name: Name) {
        self.last_number += 1;
        self.nodes.insert(uid, NodeAllocation::new(name, self.last_number, AllocationState::Queued));
        self.enqueue(uid);
    }

    /// Puts a node into the queue under the number that it has.
    pub(super) fn enqueue(&mut self, uid: Uid) {
        let Some(allocation) = self.nodes.get_mut(&uid) else { return };
        allocation.state = AllocationState::Queued;
        self.conditions.add(allocation.name.clone());
        self.queue.insert(allocation.number, uid);
        self.unreported.insert(allocation.number);
    }

    pub(super) fn dequeue(&mut self, allocation: &NodeAllocation) {
        if allocation.state == AllocationState::Queued {
            self.queue.remove(&allocation.number);
            self.unreported.remove(&allocation.number);
        }
    }

    /// Releases the blocks that were reserved. The node queues again after a back-off, unless it is being deleted.
    pub(super) fn back_off(&mut self, uid: Uid, now: Mono) {
        let Some(allocation) = self.nodes.get_mut(&uid) else { return };
        if allocation.is_deleting {
            return self.forget(uid);
        }
        let before = std::mem::replace(&mut allocation.state, AllocationState::BackingOff);
        self.changed.insert(allocation.name.clone());
        self.conditions.add(allocation.name.clone());
        self.backing_off.fail(&uid, now);
        self.release(before.cidrs(), uid);
    }

    /// Queues the nodes whose back-off has passed.
    pub(super) fn requeue(&mut self, now: Mono) {
        while let Some(uid) = self.backing_off.pop(now) {
            self.enqueue(uid);
        }
    }

    /// Sends one event for each node that has to wait for a block.
    fn report_waiting(&mut self) {
        let Some(full) = self.pools.iter().find(|pool| pool.is_full()) else { return };
        for number in std::mem::take(&mut self.unreported) {
            let uid = self.queue[&number];
            let name = &self.nodes[&uid].name;
            let message = format!("Node {name} status is now: CIDRNotAvailable: {}", full.shortage());
            self.events.push(node_event(name, uid, EventType::Warning, "CIDRNotAvailable", message));
        }
    }
}
