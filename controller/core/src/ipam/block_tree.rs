//! Which node holds which of 2^n numbered blocks.
//!
//! A binary tree over the blocks: networks are nested or disjoint, so each covers exactly the blocks under one vertex,
//! and the vertex lists its holders. Every vertex counts what lies under it, so a change costs one path up and a search
//! one path down, however many blocks there are; vertices with nothing under them are not kept.

use std::collections::HashMap;
use std::ops::{Add, RangeInclusive};

use muster_proto::name::Uid;

/// The root; the children of vertex k are 2k and 2k + 1.
const ROOT: u64 = 1;

/// The holders of the blocks of one network.
#[derive(Clone, Debug)]
pub(super) struct BlockTree {
    /// A power of two.
    blocks: u64,
    vertices: HashMap<u64, Vertex>,
    /// How many vertices were visited, for tests of the cost of an operation.
    #[cfg(test)]
    pub(super) visits: std::cell::Cell<u64>,
}

#[derive(Clone, Debug, Default)]
struct Vertex {
    /// The nodes that hold all blocks under this vertex; nearly always at most one.
    holders: Vec<Uid>,
    /// Whether all blocks under this vertex are never allocated.
    is_reserved: bool,
    under: Counts,
}

/// How many of the blocks under a vertex are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Held or reserved.
    taken: u64,
    held: u64,
    /// Held by several nodes.
    shared: u64,
}

impl BlockTree {
    /// A tree over that many blocks, none of them held.
    pub(super) fn new(blocks: u64) -> BlockTree {
        assert!(blocks.is_power_of_two(), "a network is cut into 2^n blocks");
        BlockTree {
            blocks,
            vertices: HashMap::new(),
            #[cfg(test)]
            visits: Default::default(),
        }
    }

    pub(super) fn taken(&self) -> u64 {
        self.counts(ROOT).taken
    }

    pub(super) fn held(&self) -> u64 {
        self.counts(ROOT).held
    }

    pub(super) fn shared(&self) -> u64 {
        self.counts(ROOT).shared
    }

    /// Excludes the blocks from allocation for good.
    pub(super) fn reserve(&mut self, run: &RangeInclusive<u64>) {
        let vertex = self.vertex_over(run);
        self.vertices.entry(vertex).or_default().is_reserved = true;
        self.recount(vertex);
    }

    /// Returns whether the holder is new.
    pub(super) fn hold(&mut self, run: &RangeInclusive<u64>, holder: Uid) -> bool {
        let vertex = self.vertex_over(run);
        let holders = &mut self.vertices.entry(vertex).or_default().holders;
        if holders.contains(&holder) {
            return false;
        }
        holders.push(holder);
        self.recount(vertex);
        true
    }

    /// Returns whether the blocks were held.
    pub(super) fn release(&mut self, run: &RangeInclusive<u64>, holder: Uid) -> bool {
        let vertex = self.vertex_over(run);
        let Some(holders) = self.vertices.get_mut(&vertex).map(|vertex| &mut vertex.holders) else {
            return false;
        };
        let Some(index) = holders.iter().position(|held| *held == holder) else { return false };
        holders.remove(index);
        self.recount(vertex);
        true
    }

    /// All holders of any of these blocks, each once.
    pub(super) fn holders_of(&self, run: &RangeInclusive<u64>) -> Vec<Uid> {
        let vertex = self.vertex_over(run);
        let above = std::iter::successors(Some(vertex / 2), |vertex| Some(vertex / 2))
            .take_while(|&vertex| vertex > 0);
        let mut found: Vec<Uid> = above.flat_map(|vertex| self.holders_at(vertex)).copied().collect();
        let mut below = vec![vertex];
        while let Some(vertex) = below.pop() {
            if self.counts(vertex).held > 0 {
                found.extend(self.holders_at(vertex));
                below.extend([2 * vertex, 2 * vertex + 1]);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The lowest free block that is not below `from`.
    pub(super) fn first_free(&self, from: u64) -> Option<u64> {
        self.first_free_under(ROOT, 0, self.blocks, from)
    }

    /// The same among the `size` blocks from `first` on, which lie under `vertex`.
    fn first_free_under(&self, vertex: u64, first: u64, size: u64, from: u64) -> Option<u64> {
        if first + size <= from {
            return None;
        }
        match self.counts(vertex).taken {
            0 => Some(first.max(from)),
            taken if taken == size => None,
            _ => {
                let half = size / 2;
                let low = self.first_free_under(2 * vertex, first, half, from);
                low.or_else(|| self.first_free_under(2 * vertex + 1, first + half, half, from))
            }
        }
    }

    /// The vertex over exactly these blocks: their number is a power of two, and the first is a multiple of it.
    fn vertex_over(&self, run: &RangeInclusive<u64>) -> u64 {
        let size = run.end() - run.start() + 1;
        (self.blocks + run.start()) / size
    }

    /// Updates the counts of a vertex and of all above it.
    fn recount(&mut self, vertex: u64) {
        let mut next = Some(vertex);
        while let Some(vertex) = next {
            let below = self.counts(2 * vertex) + self.counts(2 * vertex + 1);
            let size = self.blocks >> vertex.ilog2();
            let held = self.vertices.entry(vertex).or_default();
            held.under = match (held.holders.len(), held.is_reserved) {
                (0, false) => below,
                (0, true) => Counts { taken: size, ..below },
                (1, _) => Counts { taken: size, held: size, shared: below.held },
                (_, _) => Counts { taken: size, held: size, shared: size },
            };
            if held.under == Counts::default() {
                self.vertices.remove(&vertex);
            }
            next = (vertex > ROOT).then_some(vertex / 2);
        }
    }

    fn counts(&self, vertex: u64) -> Counts {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.vertices.get(&vertex).map(|vertex| vertex.under).unwrap_or_default()
    }

    fn holders_at(&self, vertex: u64) -> &[Uid] {
        self.vertices.get(&vertex).map(|vertex| vertex.holders.as_slice()).unwrap_or_default()
    }

    /// How many vertices are in memory.
    #[cfg(test)]
    pub(super) fn vertices(&self) -> usize {
        self.vertices.len()
    }
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            taken: self.taken + other.taken,
            held: self.held + other.held,
            shared: self.shared + other.shared,
        }
    }
}

#[cfg(test)]
mod tests;
