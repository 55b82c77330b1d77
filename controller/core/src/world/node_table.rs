//! Machines by name: a node, a lease, or both, under one look-up, and a number for whoever keeps more about them.
//!
//! Numbers are dense, so that what is kept by them lies side by side and needs no further search.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use jiff::Timestamp;
use muster_proto::name::Name;
use muster_proto::node::Node;

/// What a machine goes by while there is a node or a lease of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(u32);

impl Number {
    pub fn of(index: u32) -> Number {
        Number(index)
    }

    /// Its place in a list by numbers.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug, Default)]
pub struct Machines {
    /// Numbers by the hash of the name.
    slots: HashTable<Slot>,
    /// By number.
    machines: Vec<Machine>,
    /// Machines of which neither a node nor a lease was left. They keep their number until another needs it, so that who
    /// is told of their end can still look them up.
    vacated: Vec<Number>,
    /// Quick, and seeded anew in each process.
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u64,
    number: Number,
}

#[derive(Clone, Debug)]
struct Machine {
    name: Name,
    node: Option<Arc<Node>>,
    renewed: Option<Timestamp>,
}

impl Machine {
    fn is_vacant(&self) -> bool {
        self.node.is_none() && self.renewed.is_none()
    }

    /// Says whether that is another time than before.
    fn renew(&mut self, renewed: Timestamp) -> bool {
        self.renewed.replace(renewed) != Some(renewed)
    }
}

impl Machines {
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.machine(self.number(name)?).node.as_ref()
    }

    pub fn renewal(&self, name: &str) -> Option<Timestamp> {
        self.machine(self.number(name)?).renewed
    }

    pub fn number(&self, name: &str) -> Option<Number> {
        let hash = self.hasher.hash_one(name);
        let is_meant = |slot: &Slot| slot.hash == hash && self.machine(slot.number).name == *name;
        self.slots.find(hash, is_meant).map(|slot| slot.number)
    }

    fn machine(&self, number: Number) -> &Machine {
        &self.machines[number.index()]
    }

    fn machine_mut(&mut self, number: Number) -> &mut Machine {
        &mut self.machines[number.index()]
    }

    /// All nodes, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.machines.iter().filter_map(|machine| machine.node.as_ref())
    }

    /// Returns the node that was there before.
    pub fn put_node(&mut self, node: Arc<Node>) -> Option<Arc<Node>> {
        let number = self.number_or_new(&node.meta.name);
        self.machine_mut(number).node.replace(node)
    }

    pub fn remove_node(&mut self, name: &Name) -> Option<Arc<Node>> {
        let number = self.number(name.as_str())?;
        let node = self.machine_mut(number).node.take()?;
        self.note_vacancy(number);
        Some(node)
    }

    /// Notes renewals that arrived together; says of each whose number it is, if the time is another than before.
    ///
    /// In short steps that go over all of them. What one renewal needs from memory is then fetched while others are looked
    /// at, and a fleet that no cache holds costs little more per renewal than one that fits.
    pub fn renew_all(&mut self, renewals: &[(Name, Timestamp)]) -> Vec<Option<Number>> {
        let hashes: Vec<u64> = renewals.iter().map(|(name, _)| self.hasher.hash_one(name.as_str())).collect();
        // Nearly always right; but two names may have one hash.
        let guess = |hash: &u64| self.slots.find(*hash, |slot| slot.hash == *hash).map(|slot| slot.number);
        let guesses: Vec<Option<Number>> = hashes.iter().map(guess).collect();
        let name_of = |number: Number| self.machine(number).name.as_str();
        let guessed: Vec<Option<&str>> = guesses.iter().map(|guess| guess.map(name_of)).collect();
        let known: Vec<Option<Number>> = (renewals.iter().zip(guesses).zip(guessed))
            .map(|(((name, _), guess), guessed)| guess.filter(|_| guessed == Some(name.as_str())))
            .collect();
        let mut told: Vec<Option<Number>> = (renewals.iter().zip(&known))
            .map(|((_, renewed), number)| number.filter(|number| self.machine_mut(*number).renew(*renewed)))
            .collect();
        // Newcomers last: they may take the numbers of those who are gone.
        for (place, (name, renewed)) in
            renewals.iter().enumerate().filter(|(place, _)| known[*place].is_none())
        {
            let number = self.number_or_new(name);
            told[place] = self.machine_mut(number).renew(*renewed).then_some(number);
        }
        told
    }

    pub fn forget_renewal(&mut self, name: &Name) {
        let Some(number) = self.number(name.as_str()) else { return };
        if self.machine_mut(number).renewed.take().is_some() {
            self.note_vacancy(number);
        }
    }

    fn note_vacancy(&mut self, number: Number) {
        if self.machine(number).is_vacant() {
            self.vacated.push(number);
        }
    }

    fn number_or_new(&mut self, name: &Name) -> Number {
        if let Some(number) = self.number(name.as_str()) {
            return number;
        }
        let machine = Machine { name: name.clone(), node: None, renewed: None };
        let number = match self.take_vacated() {
            Some(number) => {
                *self.machine_mut(number) = machine;
                number
            }
            None => {
                let next = u32::try_from(self.machines.len());
                self.machines.push(machine);
                Number(next.expect("a fleet has fewer than four thousand million machines"))
            }
        };
        let hash = self.hasher.hash_one(name.as_str());
        self.slots.insert_unique(hash, Slot { hash, number }, |slot| slot.hash);
        number
    }

    /// The number of somebody who is gone for good.
    fn take_vacated(&mut self) -> Option<Number> {
        while let Some(number) = self.vacated.pop() {
            let machine = self.machine(number);
            if !machine.is_vacant() {
                continue;
            }
            let hash = self.hasher.hash_one(machine.name.as_str());
            // Whoever came back and went again is noted twice, and was found before.
            if let Ok(slot) = self.slots.find_entry(hash, |slot| slot.number == number) {
                slot.remove();
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{epoch, node};

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn put(machines: &mut Machines, name: &str) {
        machines.put_node(Arc::new(node(name).build()));
    }

    fn renew(machines: &mut Machines, names: &[&str]) -> Vec<Option<usize>> {
        let renewals: Vec<_> = names.iter().map(|text| (name(text), epoch())).collect();
        machines.renew_all(&renewals).into_iter().map(|number| number.map(Number::index)).collect()
    }

    fn number(machines: &Machines, name: &str) -> Option<usize> {
        machines.number(name).map(Number::index)
    }

    #[test]
    fn a_node_and_its_lease_have_one_number() {
        let mut machines = Machines::default();
        put(&mut machines, "a");
        assert_eq!(renew(&mut machines, &["b"]), [Some(1)], "a lease may come first");
        put(&mut machines, "b");
        assert_eq!(renew(&mut machines, &["a", "b", "a"]), [Some(0), None, None], "we know the others");
        assert_eq!((number(&machines, "a"), number(&machines, "b")), (Some(0), Some(1)));
        assert_eq!(number(&machines, "c"), None);
    }

    #[test]
    fn a_number_is_kept_while_a_node_or_a_lease_is_left_and_then_used_again() {
        let mut machines = Machines::default();
        for name in ["a", "b"] {
            put(&mut machines, name);
        }
        renew(&mut machines, &["a"]);
        assert!(machines.remove_node(&name("a")).is_some());
        put(&mut machines, "c");
        assert_eq!((number(&machines, "a"), number(&machines, "c")), (Some(0), Some(2)), "the lease is left");
        machines.forget_renewal(&name("a"));
        assert_eq!(number(&machines, "a"), Some(0), "whoever is told of its end can look it up");
        put(&mut machines, "d");
        assert_eq!((number(&machines, "a"), number(&machines, "d")), (None, Some(0)));
        put(&mut machines, "e");
        assert_eq!(number(&machines, "e"), Some(3));
    }

    #[test]
    fn renewals_that_arrive_together_may_be_of_machines_nobody_knows_yet() {
        let mut machines = Machines::default();
        put(&mut machines, "a");
        machines.remove_node(&name("a"));
        let expected = [Some(1), Some(0), None, Some(2)];
        assert_eq!(
            renew(&mut machines, &["b", "a", "b", "c"]),
            expected,
            "a is back before b needs a number"
        );
        for (name, expected) in [("a", 0), ("b", 1), ("c", 2)] {
            assert_eq!((number(&machines, name), machines.renewal(name)), (Some(expected), Some(epoch())));
        }
    }

    #[test]
    fn who_comes_back_in_time_has_the_old_number() {
        let mut machines = Machines::default();
        for name in ["a", "b"] {
            put(&mut machines, name);
        }
        for _ in 0..2 {
            machines.remove_node(&name("a"));
            put(&mut machines, "a");
        }
        assert_eq!(number(&machines, "a"), Some(0));
        put(&mut machines, "c");
        assert_eq!(
            (number(&machines, "a"), number(&machines, "c")),
            (Some(0), Some(2)),
            "no number is had twice"
        );
    }
}
