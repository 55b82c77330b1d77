//! When each node last gave a sign of life, and when to check it next.
//!
//! Nodes go by their index, so that an entry takes 32 bytes and a scheduled check 16, with no names in either. A sign
//! of life is one write into the node's own entry. The order of checks changes only when a check is due, which is once
//! per grace and not once per renewal.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_proto::time::Mono;

use super::SignOfLife;
use crate::world::NodeIndex;

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    seen_at: u64,
    /// How long the controller had been cut off in total when the node was last seen.
    cut_off_before: u64,
    /// When its next check is; without meaning while it is silent.
    check_at: u64,
    /// The epoch in which its last sign of life was seen; 0 if none was.
    pub(super) seen_in: u32,
    pub(super) seen_by: SignOfLife,
    /// Whether it has a Ready condition.
    pub(super) reported: bool,
    /// Whether its grace has passed. A silent node has no check.
    silent: bool,
}

impl Entry {
    pub(super) fn new(seen_at: Mono, cut_off: Duration, seen_by: SignOfLife, reported: bool) -> Entry {
        Entry {
            seen_at: nanos(seen_at),
            cut_off_before: duration_nanos(cut_off),
            check_at: 0,
            seen_in: 0,
            seen_by,
            reported,
            // Until its first check is scheduled.
            silent: true,
        }
    }

    pub(super) fn seen_at(&self) -> Mono {
        mono(self.seen_at)
    }

    pub(super) fn cut_off_before(&self) -> Duration {
        Duration::from_nanos(self.cut_off_before)
    }

    pub(super) fn record_sign(&mut self, now: Mono, cut_off: Duration, sign: SignOfLife) {
        self.seen_at = nanos(now);
        self.cut_off_before = duration_nanos(cut_off);
        self.seen_by = sign;
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct DeadlineOrder {
    entries: Vec<Option<Entry>>,
    /// One check for each node that is not silent, by time and then by index.
    checks: BTreeSet<(u64, NodeIndex)>,
}

impl DeadlineOrder {
    pub(super) fn get(&self, index: NodeIndex) -> Option<&Entry> {
        self.entries.get(index.as_usize())?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: NodeIndex) -> Option<&mut Entry> {
        self.entries.get_mut(index.as_usize())?.as_mut()
    }

    /// Adds a node. It is not checked before [`Self::check_by`] schedules that.
    pub(super) fn insert(&mut self, index: NodeIndex, entry: Entry) {
        if self.entries.len() <= index.as_usize() {
            self.entries.resize(index.as_usize() + 1, None);
        }
        self.entries[index.as_usize()] = Some(entry);
    }

    pub(super) fn remove(&mut self, index: NodeIndex) -> Option<Entry> {
        let entry = self.entries.get_mut(index.as_usize())?.take()?;
        if !entry.silent {
            self.checks.remove(&(entry.check_at, index));
        }
        Some(entry)
    }

    /// Schedules a check at that time at the latest. An earlier check stays: it will find that there is time left.
    pub(super) fn check_by(&mut self, index: NodeIndex, at: Mono) {
        let Some(entry) = self.entries.get_mut(index.as_usize()).and_then(Option::as_mut) else { return };
        let at = nanos(at);
        if !entry.silent {
            if entry.check_at <= at {
                return;
            }
            self.checks.remove(&(entry.check_at, index));
        }
        entry.silent = false;
        entry.check_at = at;
        self.checks.insert((at, index));
    }

    /// Takes the next node whose check was due before now. It counts as silent unless another check is scheduled.
    pub(super) fn take_due(&mut self, now: Mono) -> Option<NodeIndex> {
        let &(at, index) = self.checks.first().filter(|(at, _)| *at < nanos(now))?;
        self.checks.remove(&(at, index));
        let entry = self.get_mut(index).expect("a check is of a node that was inserted");
        entry.silent = true;
        Some(index)
    }

    /// When the next check is due.
    pub(super) fn next_check(&self) -> Option<Mono> {
        self.checks.first().map(|(at, _)| mono(*at))
    }
}

/// Half the size of a [`Mono`], and enough for five centuries.
fn nanos(time: Mono) -> u64 {
    duration_nanos(time.elapsed_since_origin())
}

fn duration_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn mono(nanos: u64) -> Mono {
    Mono::since_origin(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    fn order_of(indices: &[u32]) -> DeadlineOrder {
        let mut order = DeadlineOrder::default();
        for index in indices {
            order.insert(
                NodeIndex::new(*index),
                Entry::new(at(0).mono, Duration::ZERO, SignOfLife::FirstSeen, true),
            );
        }
        order
    }

    /// The nodes whose checks are due at that time, in order.
    fn due(order: &mut DeadlineOrder, seconds: u64) -> Vec<u32> {
        std::iter::from_fn(|| order.take_due(at(seconds).mono)).map(|index| index.as_usize() as u32).collect()
    }

    #[test]
    fn checks_are_due_in_order_and_once() {
        let mut order = order_of(&[0, 1, 2, 3]);
        assert_eq!((due(&mut order, 100), order.next_check()), (vec![], None), "no check is scheduled yet");
        for (index, seconds) in [(0, 30), (1, 10), (2, 20), (3, 10)] {
            order.check_by(NodeIndex::new(index), at(seconds).mono);
        }
        assert_eq!(due(&mut order, 10), [0; 0], "not before the time has passed");
        assert_eq!((due(&mut order, 11), order.next_check()), (vec![1, 3], Some(at(20).mono)));
        assert_eq!((due(&mut order, 99), due(&mut order, 99)), (vec![2, 0], vec![]));
    }

    #[test]
    fn a_check_is_brought_forward_and_never_postponed() {
        for (first, then, expected) in [(10, 20, 10), (20, 10, 10), (10, 10, 10)] {
            let mut order = order_of(&[0]);
            order.check_by(NodeIndex::new(0), at(first).mono);
            order.check_by(NodeIndex::new(0), at(then).mono);
            assert_eq!(order.next_check(), Some(at(expected).mono), "{first} and then {then}");
            assert_eq!(due(&mut order, 99), [0], "{first} and then {then}");
        }
        let mut order = order_of(&[0]);
        order.check_by(NodeIndex::new(0), at(10).mono);
        assert_eq!(due(&mut order, 11), [0]);
        assert!(order.get(NodeIndex::new(0)).is_some_and(Entry::is_silent));
        order.check_by(NodeIndex::new(0), at(50).mono);
        assert_eq!(order.next_check(), Some(at(50).mono), "the earlier check is over");
    }

    #[test]
    fn a_removed_node_is_not_checked_and_its_index_can_be_reused() {
        let mut order = order_of(&[0, 1]);
        order.check_by(NodeIndex::new(0), at(10).mono);
        order.check_by(NodeIndex::new(1), at(20).mono);
        assert!(order.remove(NodeIndex::new(0)).is_some());
        assert_eq!((order.remove(NodeIndex::new(0)), order.remove(NodeIndex::new(7))), (None, None));
        order.check_by(NodeIndex::new(0), at(5).mono);
        assert_eq!(order.next_check(), Some(at(20).mono));
        order.insert(NodeIndex::new(0), Entry::new(at(30).mono, Duration::ZERO, SignOfLife::Lease, false));
        order.check_by(NodeIndex::new(0), at(40).mono);
        assert_eq!(due(&mut order, 99), [1, 0]);
    }

    #[test]
    fn times_are_exact_and_an_entry_is_half_a_cache_line() {
        let time = Mono::since_origin(Duration::new(3_200_000_000, 123_456_789));
        let entry = Entry::new(time, Duration::from_nanos(7), SignOfLife::Lease, true);
        assert_eq!((entry.seen_at(), entry.cut_off_before()), (time, Duration::from_nanos(7)));
        assert_eq!(nanos(Mono::MAX), u64::MAX, "the last time stays the last");
        assert_eq!(size_of::<Option<Entry>>(), 32);
        assert_eq!(size_of::<(u64, NodeIndex)>(), 16);
    }
}
