use proptest::prelude::*;

use super::*;
use crate::fixtures::uid;

const BLOCKS: u64 = 16;

/// The ranges that networks can cover: powers of two, each at a multiple of its size.
fn run() -> impl Strategy<Value = RangeInclusive<u64>> {
    (0..=BLOCKS.ilog2(), 0..BLOCKS).prop_map(|(bits, block)| {
        let first = block >> bits << bits;
        first..=first + (1 << bits) - 1
    })
}

/// What the tree is compared with: a list of holders.
#[derive(Default)]
struct HolderList {
    holds: Vec<(RangeInclusive<u64>, Uid)>,
    reserved: Vec<RangeInclusive<u64>>,
}

impl HolderList {
    fn holders(&self, block: u64) -> usize {
        self.holds.iter().filter(|(run, _)| run.contains(&block)).count()
    }

    fn is_taken(&self, block: u64) -> bool {
        self.holders(block) > 0 || self.reserved.iter().any(|run| run.contains(&block))
    }
}

proptest! {
    #[test]
    fn the_tree_agrees_with_a_list(
        reserved in proptest::collection::vec(run(), 0..2),
        steps in proptest::collection::vec((any::<bool>(), run(), 0..5u8), 1..80),
    ) {
        let (mut tree, mut list) = (BlockTree::new(BLOCKS), HolderList::default());
        for run in reserved {
            tree.reserve(&run);
            list.reserved.push(run);
        }
        for (is_hold, run, holder) in steps {
            let hold = (run.clone(), uid(&holder.to_string()));
            let index = list.holds.iter().position(|held| *held == hold);
            if is_hold {
                prop_assert_eq!(tree.hold(&run, hold.1), index.is_none());
                if index.is_none() {
                    list.holds.push(hold);
                }
            } else {
                prop_assert_eq!(tree.release(&run, hold.1), index.is_some());
                index.map(|index| list.holds.remove(index));
            }
            let count = |wanted: &dyn Fn(u64) -> bool| (0..BLOCKS).filter(|block| wanted(*block)).count() as u64;
            prop_assert_eq!(tree.taken(), count(&|block| list.is_taken(block)));
            prop_assert_eq!(tree.held(), count(&|block| list.holders(block) > 0));
            prop_assert_eq!(tree.shared(), count(&|block| list.holders(block) > 1));
            for from in 0..BLOCKS {
                let free = (from..BLOCKS).find(|block| !list.is_taken(*block));
                prop_assert_eq!(tree.first_free(from), free, "from {}", from);
            }
            let mut sharing: Vec<Uid> = list.holds.iter()
                .filter(|(held, _)| held.start() <= run.end() && run.start() <= held.end())
                .map(|(_, holder)| *holder)
                .collect();
            sharing.sort_unstable();
            sharing.dedup();
            prop_assert_eq!(tree.holders_of(&run), sharing);
        }
        for (run, holder) in list.holds {
            tree.release(&run, holder);
        }
        let bars = if list.reserved.is_empty() { 0 } else { tree.vertices() };
        prop_assert_eq!((tree.held(), tree.vertices()), (0, bars), "released blocks leave no vertices");
    }
}

#[test]
fn the_cost_of_four_billion_blocks_follows_what_is_held() {
    let mut tree = BlockTree::new(1 << 32);
    tree.reserve(&(0..=(1 << 31) - 1));
    assert_eq!((tree.taken(), tree.first_free(0)), (1 << 31, Some(1 << 31)));
    let last = (1 << 32) - 1;
    tree.hold(&(last..=last), uid("a"));
    assert_eq!((tree.held(), tree.first_free(last)), (1, None));
    assert!(tree.vertices() < 100, "{}", tree.vertices());
}
