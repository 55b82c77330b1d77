//! The roll: when each node was last heard, and when to look at it next.
//!
//! Nodes go by their number, so that an entry takes 32 bytes and a place in the order of looks 16, with no names in
//! either. A sign of life is one write into the node's own entry. The order is touched only when a look comes up, which
//! is once per grace and not once per renewal.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_proto::time::Mono;

use super::Sign;
use crate::world::Number;

/// What is remembered of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    heard_at: u64,
    /// Its place in the order of looks; of no meaning while it is silent.
    look_at: u64,
    /// The epoch in which it last gave a sign of life; `None` if it never did.
    pub(super) spoke_in: Option<u32>,
    pub(super) heard_by: Sign,
    /// Whether it has a Ready condition.
    pub(super) reported: bool,
    /// Whether its grace has passed. Whoever is silent is not looked at.
    silent: bool,
}

impl Entry {
    pub(super) fn new(heard_at: Mono, heard_by: Sign, reported: bool) -> Entry {
        Entry {
            heard_at: nanos(heard_at),
            look_at: 0,
            spoke_in: None,
            heard_by,
            reported,
            // Until it gets its first place.
            silent: true,
        }
    }

    pub(super) fn heard_at(&self) -> Mono {
        mono(self.heard_at)
    }

    pub(super) fn hear(&mut self, now: Mono, sign: Sign) {
        self.heard_at = nanos(now);
        self.heard_by = sign;
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Roll {
    entries: Vec<Option<Entry>>,
    /// One for each node that is not silent: when to look at it, by moment and then by number.
    looks: BTreeSet<(u64, Number)>,
}

impl Roll {
    pub(super) fn get(&self, number: Number) -> Option<&Entry> {
        self.entries.get(number.index())?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: Number) -> Option<&mut Entry> {
        self.entries.get_mut(number.index())?.as_mut()
    }

    /// Enters a node. It is not looked at before it is given a moment for that.
    pub(super) fn enter(&mut self, number: Number, entry: Entry) {
        if self.entries.len() <= number.index() {
            self.entries.resize(number.index() + 1, None);
        }
        self.entries[number.index()] = Some(entry);
    }

    pub(super) fn strike(&mut self, number: Number) -> Option<Entry> {
        let entry = self.entries.get_mut(number.index())?.take()?;
        if !entry.silent {
            self.looks.remove(&(entry.look_at, number));
        }
        Some(entry)
    }

    /// Looks at a node at that moment at the latest. An earlier look stays: it finds out that there is time left.
    pub(super) fn look_by(&mut self, number: Number, at: Mono) {
        let Some(entry) = self.entries.get_mut(number.index()).and_then(Option::as_mut) else { return };
        let at = nanos(at);
        if !entry.silent {
            if entry.look_at <= at {
                return;
            }
            self.looks.remove(&(entry.look_at, number));
        }
        entry.silent = false;
        entry.look_at = at;
        self.looks.insert((at, number));
    }

    /// Takes the next node whose look was due before now. It counts as silent, unless it is given another look.
    pub(super) fn take_due(&mut self, now: Mono) -> Option<Number> {
        let &(at, number) = self.looks.first().filter(|(at, _)| *at < nanos(now))?;
        self.looks.remove(&(at, number));
        let entry = self.get_mut(number).expect("a look is at a node that was entered");
        entry.silent = true;
        Some(number)
    }

    /// When the next look is due.
    pub(super) fn next_look(&self) -> Option<Mono> {
        self.looks.first().map(|(at, _)| mono(*at))
    }
}

/// Half the size of a [`Mono`], and good for five centuries.
fn nanos(moment: Mono) -> u64 {
    u64::try_from(moment.elapsed_since_origin().as_nanos()).unwrap_or(u64::MAX)
}

fn mono(nanos: u64) -> Mono {
    Mono::since_origin(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    fn entered(numbers: &[u32]) -> Roll {
        let mut roll = Roll::default();
        for number in numbers {
            roll.enter(Number::of(*number), Entry::new(at(0).mono, Sign::FirstSeen, true));
        }
        roll
    }

    /// Who is taken at that moment, in order.
    fn due(roll: &mut Roll, seconds: u64) -> Vec<u32> {
        std::iter::from_fn(|| roll.take_due(at(seconds).mono)).map(|number| number.index() as u32).collect()
    }

    #[test]
    fn looks_come_up_in_order_and_once() {
        let mut roll = entered(&[0, 1, 2, 3]);
        assert_eq!((due(&mut roll, 100), roll.next_look()), (vec![], None), "nobody has a look yet");
        for (number, seconds) in [(0, 30), (1, 10), (2, 20), (3, 10)] {
            roll.look_by(Number::of(number), at(seconds).mono);
        }
        assert_eq!(due(&mut roll, 10), [0; 0], "not before the moment has passed");
        assert_eq!((due(&mut roll, 11), roll.next_look()), (vec![1, 3], Some(at(20).mono)));
        assert_eq!((due(&mut roll, 99), due(&mut roll, 99)), (vec![2, 0], vec![]));
    }

    #[test]
    fn a_look_is_brought_forward_and_never_put_off() {
        for (first, then, expected) in [(10, 20, 10), (20, 10, 10), (10, 10, 10)] {
            let mut roll = entered(&[0]);
            roll.look_by(Number::of(0), at(first).mono);
            roll.look_by(Number::of(0), at(then).mono);
            assert_eq!(roll.next_look(), Some(at(expected).mono), "{first} and then {then}");
            assert_eq!(due(&mut roll, 99), [0], "{first} and then {then}");
        }
        let mut roll = entered(&[0]);
        roll.look_by(Number::of(0), at(10).mono);
        assert_eq!(due(&mut roll, 11), [0]);
        assert!(roll.get(Number::of(0)).is_some_and(Entry::is_silent));
        roll.look_by(Number::of(0), at(50).mono);
        assert_eq!(roll.next_look(), Some(at(50).mono), "after a look there is nothing to keep to");
    }

    #[test]
    fn who_is_struck_off_is_not_looked_at_and_the_number_serves_again() {
        let mut roll = entered(&[0, 1]);
        roll.look_by(Number::of(0), at(10).mono);
        roll.look_by(Number::of(1), at(20).mono);
        assert!(roll.strike(Number::of(0)).is_some());
        assert_eq!((roll.strike(Number::of(0)), roll.strike(Number::of(7))), (None, None));
        roll.look_by(Number::of(0), at(5).mono);
        assert_eq!(roll.next_look(), Some(at(20).mono));
        roll.enter(Number::of(0), Entry::new(at(30).mono, Sign::Lease, false));
        roll.look_by(Number::of(0), at(40).mono);
        assert_eq!(due(&mut roll, 99), [1, 0]);
    }

    #[test]
    fn moments_are_exact_and_an_entry_is_half_a_cache_line() {
        let moment = Mono::since_origin(Duration::new(3_200_000_000, 123_456_789));
        assert_eq!(Entry::new(moment, Sign::Lease, true).heard_at(), moment);
        assert_eq!(nanos(Mono::MAX), u64::MAX, "never stays never");
        assert_eq!(size_of::<Option<Entry>>(), 32);
        assert_eq!(size_of::<(u64, Number)>(), 16);
    }
}
