//! One cluster network: its blocks, their holders, and which block is allocated next.

use std::ops::RangeInclusive;

use muster_proto::cidr::{Blocks, Cidr};
use muster_proto::name::Uid;

use super::block_tree::BlockTree;

/// The blocks of one cluster network.
///
/// A block is held by every node whose network overlaps it, and is free again when the last of them is gone. Blocks
/// that overlap a service range are never free.
#[derive(Clone, Debug)]
pub struct CidrPool {
    blocks: Blocks,
    tree: BlockTree,
    /// Where the search begins: a block that was freed is not used again before all others.
    next: u64,
    reserved: u64,
}

/// A network that shares no address with the pool's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cidr}, which lies outside the cluster network {cluster}")]
pub struct OutsidePool {
    pub cidr: Cidr,
    pub cluster: Cidr,
}

impl CidrPool {
    /// A pool without holders. Blocks that overlap a service range are reserved.
    pub fn new(blocks: Blocks, services: &[Cidr]) -> CidrPool {
        let mut tree = BlockTree::new(blocks.count());
        for run in services.iter().filter_map(|service| blocks.touched_by(service)) {
            tree.reserve(&run);
        }
        let reserved = tree.taken();
        CidrPool { blocks, tree, next: 0, reserved }
    }

    /// The network that the blocks are cut from.
    pub fn cluster(&self) -> Cidr {
        self.blocks.cluster()
    }

    /// The prefix length of a block.
    pub fn mask(&self) -> u8 {
        self.blocks.mask()
    }

    /// How many blocks there are.
    pub fn count(&self) -> u64 {
        self.blocks.count()
    }

    /// How many blocks have a holder.
    pub fn used(&self) -> u64 {
        self.tree.held()
    }

    /// How many blocks are reserved for services, whether or not a node holds them.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// How many blocks have more than one holder.
    pub fn conflicts(&self) -> u64 {
        self.tree.shared()
    }

    pub fn is_full(&self) -> bool {
        self.tree.taken() == self.blocks.count()
    }

    /// Allocates the next free block to that holder.
    pub fn allocate(&mut self, holder: Uid) -> Option<Cidr> {
        let found = self.tree.first_free(self.next).or_else(|| self.tree.first_free(0))?;
        self.tree.hold(&(found..=found), holder);
        self.next = (found + 1) % self.blocks.count();
        self.blocks.nth(found)
    }

    /// Records that the holder has this network: every block that overlaps it.
    pub fn occupy(&mut self, cidr: &Cidr, holder: Uid) -> Result<(), OutsidePool> {
        let run = self.run(cidr)?;
        self.tree.hold(&run, holder);
        Ok(())
    }

    /// Records that the holder no longer has this network. Without effect if it did not have it.
    pub fn release(&mut self, cidr: &Cidr, holder: Uid) {
        if let Ok(run) = self.run(cidr) {
            self.tree.release(&run, holder);
        }
    }

    /// All holders of blocks that overlap this network, each once.
    pub fn holders_of(&self, cidr: &Cidr) -> Vec<Uid> {
        self.run(cidr).map(|run| self.tree.holders_of(&run)).unwrap_or_default()
    }

    /// Describes why a full pool has no block, for events and explanations.
    pub fn shortage(&self) -> String {
        let (cluster, mask) = (self.cluster(), self.mask());
        let blocks = match self.count() {
            1 => format!("the one block of /{mask} in {cluster} is taken"),
            count => format!("all {count} blocks of /{mask} in {cluster} are taken"),
        };
        match self.reserved {
            0 => blocks,
            reserved => format!("{blocks}, {reserved} of them by services"),
        }
    }

    fn run(&self, cidr: &Cidr) -> Result<RangeInclusive<u64>, OutsidePool> {
        self.blocks.touched_by(cidr).ok_or_else(|| OutsidePool { cidr: *cidr, cluster: self.cluster() })
    }
}

#[cfg(test)]
mod tests;
