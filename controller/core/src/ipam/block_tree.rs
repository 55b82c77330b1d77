//! Who holds which of 2^n numbered blocks.
//!
//! A binary tree stands over the blocks; networks are nested or apart, so each covers exactly the blocks under one knot
//! of it, and its holder sits there. Every knot counts what lies under it, so a change costs one way up and a search
//! one way down, however many blocks there are; knots with nothing under them are not kept.

use std::collections::HashMap;
use std::ops::{Add, RangeInclusive};

use muster_proto::name::Uid;

/// The root; the children of knot k are 2k and 2k + 1.
const ROOT: u64 = 1;

#[derive(Clone, Debug)]
pub(super) struct Cover {
    /// A power of two.
    blocks: u64,
    knots: HashMap<u64, Knot>,
    /// How often a knot was looked at, for tests of what an operation costs.
    #[cfg(test)]
    pub(super) looks: std::cell::Cell<u64>,
}

#[derive(Clone, Debug, Default)]
struct Knot {
    /// Who holds all blocks under this knot; nearly always one.
    holders: Vec<Uid>,
    /// Whether all blocks under this knot are kept from being given out.
    is_barred: bool,
    under: Counts,
}

/// How many of the blocks under a knot are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Held or barred.
    taken: u64,
    held: u64,
    /// Held more than once.
    contested: u64,
}

impl Cover {
    /// Nobody holds any of so many blocks.
    pub(super) fn new(blocks: u64) -> Cover {
        assert!(blocks.is_power_of_two(), "a network is cut into 2^n blocks");
        Cover {
            blocks,
            knots: HashMap::new(),
            #[cfg(test)]
            looks: Default::default(),
        }
    }

    pub(super) fn taken(&self) -> u64 {
        self.counts(ROOT).taken
    }

    pub(super) fn held(&self) -> u64 {
        self.counts(ROOT).held
    }

    pub(super) fn contested(&self) -> u64 {
        self.counts(ROOT).contested
    }

    /// Keeps the blocks from being given out, for good.
    pub(super) fn bar(&mut self, run: &RangeInclusive<u64>) {
        let knot = self.knot_over(run);
        self.knots.entry(knot).or_default().is_barred = true;
        self.recount(knot);
    }

    /// Says whether that was news.
    pub(super) fn hold(&mut self, run: &RangeInclusive<u64>, holder: Uid) -> bool {
        let knot = self.knot_over(run);
        let holders = &mut self.knots.entry(knot).or_default().holders;
        if holders.contains(&holder) {
            return false;
        }
        holders.push(holder);
        self.recount(knot);
        true
    }

    /// Says whether it was held.
    pub(super) fn release(&mut self, run: &RangeInclusive<u64>, holder: Uid) -> bool {
        let knot = self.knot_over(run);
        let Some(holders) = self.knots.get_mut(&knot).map(|knot| &mut knot.holders) else { return false };
        let Some(place) = holders.iter().position(|held| *held == holder) else { return false };
        holders.remove(place);
        self.recount(knot);
        true
    }

    /// Everybody who holds one of these blocks, each once.
    pub(super) fn holders_of(&self, run: &RangeInclusive<u64>) -> Vec<Uid> {
        let knot = self.knot_over(run);
        let above = std::iter::successors(Some(knot / 2), |knot| Some(knot / 2)).take_while(|&knot| knot > 0);
        let mut found: Vec<Uid> = above.flat_map(|knot| self.holders_at(knot)).copied().collect();
        let mut below = vec![knot];
        while let Some(knot) = below.pop() {
            if self.counts(knot).held > 0 {
                found.extend(self.holders_at(knot));
                below.extend([2 * knot, 2 * knot + 1]);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The lowest free block from that one on.
    pub(super) fn first_free(&self, from: u64) -> Option<u64> {
        self.first_free_under(ROOT, 0, self.blocks, from)
    }

    /// The same among the `size` blocks from `first` on, which lie under `knot`.
    fn first_free_under(&self, knot: u64, first: u64, size: u64, from: u64) -> Option<u64> {
        if first + size <= from {
            return None;
        }
        match self.counts(knot).taken {
            0 => Some(first.max(from)),
            taken if taken == size => None,
            _ => {
                let half = size / 2;
                let low = self.first_free_under(2 * knot, first, half, from);
                low.or_else(|| self.first_free_under(2 * knot + 1, first + half, half, from))
            }
        }
    }

    /// The knot whose blocks are these: as many as a power of two, and starting at a multiple of it.
    fn knot_over(&self, run: &RangeInclusive<u64>) -> u64 {
        let size = run.end() - run.start() + 1;
        (self.blocks + run.start()) / size
    }

    /// Counts a knot and all above it anew.
    fn recount(&mut self, knot: u64) {
        let mut next = Some(knot);
        while let Some(knot) = next {
            let below = self.counts(2 * knot) + self.counts(2 * knot + 1);
            let size = self.blocks >> knot.ilog2();
            let held = self.knots.entry(knot).or_default();
            held.under = match (held.holders.len(), held.is_barred) {
                (0, false) => below,
                (0, true) => Counts { taken: size, ..below },
                (1, _) => Counts { taken: size, held: size, contested: below.held },
                (_, _) => Counts { taken: size, held: size, contested: size },
            };
            if held.under == Counts::default() {
                self.knots.remove(&knot);
            }
            next = (knot > ROOT).then_some(knot / 2);
        }
    }

    fn counts(&self, knot: u64) -> Counts {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        self.knots.get(&knot).map(|knot| knot.under).unwrap_or_default()
    }

    fn holders_at(&self, knot: u64) -> &[Uid] {
        self.knots.get(&knot).map(|knot| knot.holders.as_slice()).unwrap_or_default()
    }

    /// How many knots are kept.
    #[cfg(test)]
    pub(super) fn knots(&self) -> usize {
        self.knots.len()
    }
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            taken: self.taken + other.taken,
            held: self.held + other.held,
            contested: self.contested + other.contested,
        }
    }
}

#[cfg(test)]
mod tests;
