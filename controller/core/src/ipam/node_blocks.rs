//! What one node has of the pools, and how it came to have it.

use muster_proto::cidr::Cidr;
use muster_proto::name::Name;

/// The order in which nodes joined the queue.
pub(crate) type QueueNumber = u64;

/// The address blocks of one node.
#[derive(Clone, Debug)]
pub(crate) struct NodeAllocation {
    pub(crate) name: Name,
    /// Its place in the queue, kept when it has to queue again.
    pub(crate) number: QueueNumber,
    /// A node that is being deleted keeps its blocks until it is gone, but gets no new ones.
    pub(super) is_deleting: bool,
    /// Blocks that were reserved for the node before another writer recorded them elsewhere. A write of them may still
    /// be in flight, so no node gets them until the record's next version shows that the write can no longer succeed.
    pub(super) retracted: Vec<Vec<Cidr>>,
    pub(super) state: AllocationState,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AllocationState {
    /// The record names these networks.
    Recorded {
        cidrs: Vec<Cidr>,
        /// Why they do not fit the pools, if they do not.
        problem: Option<String>,
    },
    /// These blocks are the node's, but its record does not name them yet.
    Reserved { cidrs: Vec<Cidr>, failures: u32, may_be_written: bool },
    /// It waits for a block of each pool.
    Queued,
    /// Its blocks could not be written and were released; it queues again later.
    BackingOff,
}

impl NodeAllocation {
    pub(super) fn new(name: Name, number: QueueNumber, state: AllocationState) -> NodeAllocation {
        NodeAllocation { name, number, is_deleting: false, retracted: Vec::new(), state }
    }
}

impl AllocationState {
    /// The networks that the node has.
    pub(super) fn cidrs(&self) -> &[Cidr] {
        match self {
            AllocationState::Recorded { cidrs, .. } | AllocationState::Reserved { cidrs, .. } => cidrs,
            AllocationState::Queued | AllocationState::BackingOff => &[],
        }
    }
}
