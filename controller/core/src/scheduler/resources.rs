//! Amounts in a form that sums of them can be kept in: what was added can be taken away again, to the last bit.

use std::collections::BTreeMap;

use muster_proto::pod::{PodSpec, requests};
use muster_proto::quantity::{Quantity, Resources};

/// How many pods a node takes; not something that is asked for by amount.
pub(crate) const PODS: &str = "pods";

/// The resources that nearly every pod asks for; in places of their own, since every node is asked about them.
const USUAL: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// What no amount is larger than. Sums of these cannot overflow, and no machine has as much.
const MOST: Quantity = Quantity::whole(i64::MAX);

/// Amounts by resource, or a sum of such.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Amounts {
    usual: [Quantity; 3],
    /// Without those that are zero.
    others: BTreeMap<String, Quantity>,
}

impl Amounts {
    pub(crate) fn of(resources: &Resources) -> Amounts {
        let bounded = |amount: Quantity| amount.clamp(Quantity::ZERO, MOST);
        let usual = USUAL.map(|name| bounded(requests::amount(resources, name)));
        let is_other = |name: &str| name != PODS && !USUAL.contains(&name);
        let others = resources.iter().filter(|(name, amount)| is_other(name) && !amount.is_zero());
        Amounts { usual, others: others.map(|(name, &amount)| (name.clone(), bounded(amount))).collect() }
    }

    /// The resources that there can be some of here, the usual ones first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        USUAL.into_iter().chain(self.others.keys().map(String::as_str))
    }

    pub(crate) fn add(&mut self, more: &Amounts) {
        for (held, more) in self.usual.iter_mut().zip(&more.usual) {
            *held = held.add(more).expect("sums of bounded amounts do not overflow");
        }
        for (name, more) in &more.others {
            match self.others.get_mut(name) {
                Some(held) => *held = held.add(more).expect("sums of bounded amounts do not overflow"),
                None => drop(self.others.insert(name.clone(), *more)),
            }
        }
    }

    /// Takes away what was added.
    pub(crate) fn take_away(&mut self, less: &Amounts) {
        for (held, less) in self.usual.iter_mut().zip(&less.usual) {
            *held = held.sub(less).expect("only what was added is taken away");
        }
        for (name, less) in &less.others {
            let Some(held) = self.others.get_mut(name) else { continue };
            *held = held.sub(less).expect("only what was added is taken away");
            if held.is_zero() {
                self.others.remove(name);
            }
        }
    }

    /// The resources of which more is wanted here than is left of `all` when `taken` is gone, the usual ones first.
    ///
    /// What is not wanted is not looked at, however much of it others have taken.
    pub(crate) fn beyond<'a>(
        &'a self,
        all: &'a Amounts,
        taken: &'a Amounts,
    ) -> impl Iterator<Item = &'a str> {
        let usual = USUAL.iter().enumerate().filter_map(|(i, &name)| {
            let is_short = lacks(self.usual[i], all.usual[i], taken.usual[i]);
            is_short.then_some(name)
        });
        let others = self.others.iter().filter_map(|(name, &wanted)| {
            let is_short =
                lacks(wanted, requests::amount(&all.others, name), requests::amount(&taken.others, name));
            is_short.then_some(name.as_str())
        });
        usual.chain(others)
    }
}

fn lacks(wanted: Quantity, all: Quantity, taken: Quantity) -> bool {
    !wanted.is_zero() && taken.add(&wanted).is_ok_and(|sum| sum > all)
}

/// Cpu in thousandths and memory in bytes: what nodes are ranked by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    pub(crate) cpu: i128,
    pub(crate) memory: i128,
}

impl Load {
    pub(crate) fn of(resources: &Resources) -> Load {
        Load {
            cpu: requests::amount(resources, "cpu").milli().into(),
            memory: requests::amount(resources, "memory").value().into(),
        }
    }

    pub(crate) fn is_zero(self) -> bool {
        self == Load::default()
    }

    pub(crate) fn plus(self, more: Load) -> Load {
        Load { cpu: self.cpu + more.cpu, memory: self.memory + more.memory }
    }

    pub(crate) fn minus(self, less: Load) -> Load {
        Load { cpu: self.cpu - less.cpu, memory: self.memory - less.memory }
    }
}

/// What a container that names no cpu or no memory is ranked as if it wanted: otherwise any number of such would look
/// like nothing.
pub(crate) fn load_with_missing(spec: &PodSpec) -> Load {
    let missing = Resources::from([
        ("cpu".to_owned(), Quantity::from_milli(100)),
        ("memory".to_owned(), Quantity::bytes(200 << 20)),
    ]);
    Load::of(&requests::of_or(spec, &missing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::amounts;

    fn of(text: &str) -> Amounts {
        Amounts::of(&amounts(text))
    }

    #[test]
    fn what_was_added_can_be_taken_away_exactly() {
        let parts =
            ["cpu=1 memory=1Gi", "cpu=1n example.com/gpu=2", "memory=99999999999E example.com/gpu=1", "x=0"];
        let mut sum = Amounts::default();
        for part in parts.iter().chain(&parts) {
            sum.add(&of(part));
        }
        for part in parts.iter().rev().chain(&parts) {
            sum.take_away(&of(part));
        }
        assert_eq!(sum, Amounts::default());
    }

    #[test]
    fn only_what_is_wanted_can_be_short() {
        for (wanted, all, taken, expected) in [
            ("", "", "cpu=1", vec![]),
            ("cpu=1", "cpu=4", "cpu=3", vec![]),
            ("cpu=1001m", "cpu=4", "cpu=3", vec!["cpu"]),
            ("cpu=1 memory=1", "cpu=4", "cpu=9", vec!["cpu", "memory"]),
            ("cpu=0 memory=1", "memory=1", "cpu=9", vec![]),
            ("a/b=1 z/z=2", "a/b=1 z/z=2", "z/z=1", vec!["z/z"]),
            ("ephemeral-storage=2Gi a/b=1", "ephemeral-storage=1Gi", "", vec!["ephemeral-storage", "a/b"]),
            ("memory=99999999999E", "memory=1Gi", "memory=99999999999E", vec!["memory"]),
            ("pods=9", "pods=1", "", vec![]),
        ] {
            let (wanted, all, taken) = (of(wanted), of(all), of(taken));
            assert_eq!(wanted.beyond(&all, &taken).collect::<Vec<_>>(), expected, "{wanted:?}");
        }
    }
}
