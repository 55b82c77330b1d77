use proptest::prelude::*;

use super::*;
use crate::fixtures::uid;

const BLOCKS: u64 = 16;

/// The runs that networks can cover: powers of two, each at a multiple of its size.
fn run() -> impl Strategy<Value = RangeInclusive<u64>> {
    (0..=BLOCKS.ilog2(), 0..BLOCKS).prop_map(|(bits, block)| {
        let first = block >> bits << bits;
        first..=first + (1 << bits) - 1
    })
}

/// What the tree is compared with: a list of who holds what.
#[derive(Default)]
struct Ledger {
    holds: Vec<(RangeInclusive<u64>, Uid)>,
    barred: Vec<RangeInclusive<u64>>,
}

impl Ledger {
    fn holders(&self, block: u64) -> usize {
        self.holds.iter().filter(|(run, _)| run.contains(&block)).count()
    }

    fn is_taken(&self, block: u64) -> bool {
        self.holders(block) > 0 || self.barred.iter().any(|run| run.contains(&block))
    }
}

proptest! {
    #[test]
    fn the_tree_agrees_with_a_list(
        barred in proptest::collection::vec(run(), 0..2),
        steps in proptest::collection::vec((any::<bool>(), run(), 0..5u8), 1..80),
    ) {
        let (mut cover, mut ledger) = (Cover::new(BLOCKS), Ledger::default());
        for run in barred {
            cover.bar(&run);
            ledger.barred.push(run);
        }
        for (is_hold, run, who) in steps {
            let hold = (run.clone(), uid(&who.to_string()));
            let place = ledger.holds.iter().position(|held| *held == hold);
            if is_hold {
                prop_assert_eq!(cover.hold(&run, hold.1), place.is_none());
                if place.is_none() {
                    ledger.holds.push(hold);
                }
            } else {
                prop_assert_eq!(cover.release(&run, hold.1), place.is_some());
                place.map(|place| ledger.holds.remove(place));
            }
            let count = |wanted: &dyn Fn(u64) -> bool| (0..BLOCKS).filter(|block| wanted(*block)).count() as u64;
            prop_assert_eq!(cover.taken(), count(&|block| ledger.is_taken(block)));
            prop_assert_eq!(cover.held(), count(&|block| ledger.holders(block) > 0));
            prop_assert_eq!(cover.contested(), count(&|block| ledger.holders(block) > 1));
            for from in 0..BLOCKS {
                let free = (from..BLOCKS).find(|block| !ledger.is_taken(*block));
                prop_assert_eq!(cover.first_free(from), free, "from {}", from);
            }
            let mut sharing: Vec<Uid> = ledger.holds.iter()
                .filter(|(held, _)| held.start() <= run.end() && run.start() <= held.end())
                .map(|(_, holder)| *holder)
                .collect();
            sharing.sort_unstable();
            sharing.dedup();
            prop_assert_eq!(cover.holders_of(&run), sharing);
        }
        for (run, holder) in ledger.holds {
            cover.release(&run, holder);
        }
        let bars = if ledger.barred.is_empty() { 0 } else { cover.knots() };
        prop_assert_eq!((cover.held(), cover.knots()), (0, bars), "nothing is kept of what was released");
    }
}

#[test]
fn four_billion_blocks_cost_what_is_held() {
    let mut cover = Cover::new(1 << 32);
    cover.bar(&(0..=(1 << 31) - 1));
    assert_eq!((cover.taken(), cover.first_free(0)), (1 << 31, Some(1 << 31)));
    let last = (1 << 32) - 1;
    cover.hold(&(last..=last), uid("a"));
    assert_eq!((cover.held(), cover.first_free(last)), (1, None));
    assert!(cover.knots() < 100, "{}", cover.knots());
}
