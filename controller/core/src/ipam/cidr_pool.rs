//! One cluster network: its blocks, who holds them, and which is given out next.

use std::ops::RangeInclusive;

use muster_proto::cidr::{Blocks, Cidr};
use muster_proto::name::Uid;

use super::block_tree::Cover;

/// The blocks of one cluster network.
///
/// A block has as many holders as nodes whose network touches it, and is free again when the last of them goes. Blocks
/// that a service range touches are never free.
#[derive(Clone, Debug)]
pub struct Pool {
    blocks: Blocks,
    cover: Cover,
    /// Where the search begins: a block that was freed is not used again before the others had their turn.
    next: u64,
    reserved: u64,
}

/// A network that shares no address with the pool's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cidr}, which lies outside the cluster network {cluster}")]
pub struct Outside {
    pub cidr: Cidr,
    pub cluster: Cidr,
}

impl Pool {
    /// A pool nobody holds anything of. Blocks that a service range touches are set aside.
    pub fn new(blocks: Blocks, services: &[Cidr]) -> Pool {
        let mut cover = Cover::new(blocks.count());
        for run in services.iter().filter_map(|service| blocks.touched_by(service)) {
            cover.bar(&run);
        }
        let reserved = cover.taken();
        Pool { blocks, cover, next: 0, reserved }
    }

    /// The network it is cut from.
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

    /// Blocks with a holder.
    pub fn used(&self) -> u64 {
        self.cover.held()
    }

    /// Blocks set aside for services, whether or not somebody holds them.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Blocks with more than one holder.
    pub fn conflicts(&self) -> u64 {
        self.cover.contested()
    }

    pub fn is_full(&self) -> bool {
        self.cover.taken() == self.blocks.count()
    }

    /// Gives the next free block to that holder.
    pub fn take(&mut self, holder: Uid) -> Option<Cidr> {
        let found = self.cover.first_free(self.next).or_else(|| self.cover.first_free(0))?;
        self.cover.hold(&(found..=found), holder);
        self.next = (found + 1) % self.blocks.count();
        self.blocks.nth(found)
    }

    /// Notes that somebody has this network: every block it touches.
    pub fn occupy(&mut self, cidr: &Cidr, holder: Uid) -> Result<(), Outside> {
        let run = self.run(cidr)?;
        self.cover.hold(&run, holder);
        Ok(())
    }

    /// Notes that the holder no longer has this network. What it did not have is not taken from it.
    pub fn release(&mut self, cidr: &Cidr, holder: Uid) {
        if let Ok(run) = self.run(cidr) {
            self.cover.release(&run, holder);
        }
    }

    /// Everybody who has a block that this network touches, each once.
    pub fn holders_of(&self, cidr: &Cidr) -> Vec<Uid> {
        self.run(cidr).map(|run| self.cover.holders_of(&run)).unwrap_or_default()
    }

    /// Why a pool that is full has nothing to give, for people.
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

    fn run(&self, cidr: &Cidr) -> Result<RangeInclusive<u64>, Outside> {
        self.blocks.touched_by(cidr).ok_or_else(|| Outside { cidr: *cidr, cluster: self.cluster() })
    }
}

#[cfg(test)]
mod tests;
