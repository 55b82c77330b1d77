//! What the records of nodes say about their networks, which always wins over what was reserved.

use muster_proto::cidr::Cidr;
use muster_proto::event::EventType;
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;

use super::Ipam;
use super::network_condition;
use super::node_blocks::{AllocationState, NodeAllocation};
use crate::plan::{node_event, uid};

impl Ipam {
    /// Takes in a node's record.
    pub(super) fn observe_node(&mut self, node: &Node) {
        let uid = uid(&node.meta);
        let (recorded, is_deleting) = (&node.spec.pod_cidrs, node.meta.deletion_timestamp.is_some());
        // Writes are made at one version, so the store refuses those in flight for an older version.
        if let Some(allocation) = self.nodes.get_mut(&uid) {
            let retracted = std::mem::take(&mut allocation.retracted);
            retracted.iter().for_each(|cidrs| self.release(cidrs, uid));
        }
        match self.nodes.get_mut(&uid).map(|allocation| &mut allocation.state) {
            Some(AllocationState::Recorded { cidrs, .. }) if cidrs == recorded => {}
            _ if !recorded.is_empty() => self.set_recorded(uid, node),
            // A record that no longer names a network is treated like that of a new node.
            None | Some(AllocationState::Recorded { .. }) => {
                self.forget(uid);
                if !is_deleting {
                    self.join_queue(uid, node.meta.name.clone());
                }
            }
            Some(AllocationState::Reserved { may_be_written, .. }) => *may_be_written = false,
            Some(AllocationState::Queued | AllocationState::BackingOff) if is_deleting => self.forget(uid),
            Some(AllocationState::Queued | AllocationState::BackingOff) => {}
        }
        if let Some(allocation) = self.nodes.get_mut(&uid) {
            allocation.is_deleting = is_deleting;
        }
        if network_condition::is_marked(node) {
            self.conditions.add(node.meta.name.clone());
        }
    }

    /// Takes the networks that a node's record names and releases everything else that the node had.
    fn set_recorded(&mut self, uid: Uid, node: &Node) {
        let (name, cidrs) = (&node.meta.name, &node.spec.pod_cidrs);
        self.forget(uid);
        let problem = self.occupy(cidrs, uid).err();
        if let Some(reason) = &problem {
            let message = format!("Node {name} {reason}");
            self.events.push(node_event(name, uid, EventType::Warning, "CIDROutsidePool", message));
        }
        let state = AllocationState::Recorded { cidrs: cidrs.clone(), problem };
        self.nodes.insert(uid, NodeAllocation::new(name.clone(), 0, state));
        for (i, cidr) in cidrs.iter().enumerate() {
            self.resolve_overlaps(i, cidr, uid, name);
        }
    }

    /// Marks each network as held in the pool of its position, as far as it fits.
    fn occupy(&mut self, cidrs: &[Cidr], uid: Uid) -> Result<(), String> {
        let mut fits = Ok(());
        for (i, cidr) in cidrs.iter().enumerate() {
            let fitted = match self.pools.get_mut(i) {
                Some(pool) => pool.occupy(cidr, uid).map_err(|outside| format!("holds {outside}")),
                None => Err(format!("holds {cidr} too, but --cluster-cidr names no network for it")),
            };
            fits = fits.and(fitted);
        }
        fits
    }

    /// A record names this network. Nodes for which a part of it was only reserved get other blocks; another record
    /// that names it too is a conflict that an operator has to resolve.
    fn resolve_overlaps(&mut self, i: usize, cidr: &Cidr, uid: Uid, name: &Name) {
        let Some(pool) = self.pools.get(i) else { return };
        let others = pool.holders_of(cidr);
        let mut recorded = Vec::new();
        for other in others.into_iter().filter(|other| *other != uid) {
            match self.state(other) {
                Some(AllocationState::Recorded { .. }) => recorded.push(other),
                Some(AllocationState::Reserved { cidrs, .. }) if cidrs[i].overlaps(cidr) => {
                    self.retract(other);
                }
                _ => {}
            }
        }
        if let Some(other) = recorded.first().and_then(|other| self.nodes.get(other)) {
            let message = match recorded.len() {
                1 => format!("Node {name} holds {cidr}, and so does node {}", other.name),
                count => {
                    format!("Node {name} holds {cidr}, and so do node {} and {} more", other.name, count - 1)
                }
            };
            self.events.push(node_event(name, uid, EventType::Warning, "CIDRConflict", message));
        }
    }

    /// Lets a node queue for other blocks, unless it is being deleted and needs none.
    fn retract(&mut self, uid: Uid) {
        let Some(allocation) = self.nodes.get_mut(&uid).filter(|allocation| !allocation.is_deleting) else {
            return;
        };
        allocation.retracted.push(allocation.state.cidrs().to_vec());
        self.changed.insert(allocation.name.clone());
        self.enqueue(uid);
    }

    /// Releases everything that a node has: the node is gone, or gets a new allocation.
    pub(super) fn forget(&mut self, uid: Uid) {
        let Some(allocation) = self.nodes.remove(&uid) else { return };
        self.dequeue(&allocation);
        self.backing_off.forget(&uid);
        self.unplaceable.remove(&allocation.name);
        allocation.retracted.iter().for_each(|cidrs| self.release(cidrs, uid));
        self.release(allocation.state.cidrs(), uid);
    }

    pub(super) fn release(&mut self, cidrs: &[Cidr], uid: Uid) {
        for (pool, cidr) in self.pools.iter_mut().zip(cidrs) {
            pool.release(cidr, uid);
        }
    }
}
