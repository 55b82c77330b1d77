//! Resource amounts whose sums are exact: subtracting what was added gives the sum from before, to the last digit.

use std::collections::BTreeMap;

use muster_proto::pod::{PodSpec, requests};
use muster_proto::quantity::{Quantity, Resources};

/// The resource that limits how many pods a node runs. Pods do not request an amount of it.
pub(crate) const PODS: &str = "pods";

/// The resources that nearly every pod requests; kept in an array, since they are compared for every node.
const COMMON: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// The upper bound of an amount. Sums of bounded amounts cannot overflow, and no machine has as much.
const MAX_AMOUNT: Quantity = Quantity::whole(i64::MAX);

/// Amounts by resource, or a sum of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ResourceAmounts {
    common: [Quantity; 3],
    /// Without zero amounts.
    others: BTreeMap<String, Quantity>,
}

impl ResourceAmounts {
    pub(crate) fn of(resources: &Resources) -> ResourceAmounts {
        let bounded = |amount: Quantity| amount.clamp(Quantity::ZERO, MAX_AMOUNT);
        let common = COMMON.map(|name| bounded(requests::amount(resources, name)));
        let is_other = |name: &str| name != PODS && !COMMON.contains(&name);
        let others = resources.iter().filter(|(name, amount)| is_other(name) && !amount.is_zero());
        ResourceAmounts {
            common,
            others: others.map(|(name, &amount)| (name.clone(), bounded(amount))).collect(),
        }
    }

    /// The resources that may have an amount, the common ones first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        COMMON.into_iter().chain(self.others.keys().map(String::as_str))
    }

    pub(crate) fn add(&mut self, more: &ResourceAmounts) {
        for (held, more) in self.common.iter_mut().zip(&more.common) {
            *held = held.add(more).expect("sums of bounded amounts do not overflow");
        }
        for (name, more) in &more.others {
            match self.others.get_mut(name) {
                Some(held) => *held = held.add(more).expect("sums of bounded amounts do not overflow"),
                None => drop(self.others.insert(name.clone(), *more)),
            }
        }
    }

    /// Subtracts what was added before.
    pub(crate) fn subtract(&mut self, less: &ResourceAmounts) {
        for (held, less) in self.common.iter_mut().zip(&less.common) {
            *held = held.sub(less).expect("only what was added is subtracted");
        }
        for (name, less) in &less.others {
            let Some(held) = self.others.get_mut(name) else { continue };
            *held = held.sub(less).expect("only what was added is subtracted");
            if held.is_zero() {
                self.others.remove(name);
            }
        }
    }

    /// The resources of which these amounts exceed what `allocated` leaves of `all`, the common ones first.
    ///
    /// A resource that is not requested is never short, even if it is overcommitted.
    pub(crate) fn exceeding<'a>(
        &'a self,
        all: &'a ResourceAmounts,
        allocated: &'a ResourceAmounts,
    ) -> impl Iterator<Item = &'a str> {
        let common = COMMON.iter().enumerate().filter_map(|(i, &name)| {
            let is_short = lacks(self.common[i], all.common[i], allocated.common[i]);
            is_short.then_some(name)
        });
        let others = self.others.iter().filter_map(|(name, &wanted)| {
            let is_short =
                lacks(wanted, requests::amount(&all.others, name), requests::amount(&allocated.others, name));
            is_short.then_some(name.as_str())
        });
        common.chain(others)
    }
}

fn lacks(wanted: Quantity, all: Quantity, allocated: Quantity) -> bool {
    !wanted.is_zero() && allocated.add(&wanted).is_ok_and(|sum| sum > all)
}

/// CPU in thousandths and memory in bytes: what nodes are scored by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CpuMemory {
    pub(crate) cpu: i128,
    pub(crate) memory: i128,
}

impl CpuMemory {
    pub(crate) fn of(resources: &Resources) -> CpuMemory {
        CpuMemory {
            cpu: requests::amount(resources, "cpu").milli().into(),
            memory: requests::amount(resources, "memory").value().into(),
        }
    }

    pub(crate) fn is_zero(self) -> bool {
        self == CpuMemory::default()
    }

    pub(crate) fn plus(self, more: CpuMemory) -> CpuMemory {
        CpuMemory { cpu: self.cpu + more.cpu, memory: self.memory + more.memory }
    }

    pub(crate) fn minus(self, less: CpuMemory) -> CpuMemory {
        CpuMemory { cpu: self.cpu - less.cpu, memory: self.memory - less.memory }
    }
}

/// The pod's request for scoring, with a default for each container that requests no CPU or no memory: otherwise any
/// number of such containers would look like no use of the node.
pub(crate) fn non_zero_request(spec: &PodSpec) -> CpuMemory {
    let missing = Resources::from([
        ("cpu".to_owned(), Quantity::from_milli(100)),
        ("memory".to_owned(), Quantity::bytes(200 << 20)),
    ]);
    CpuMemory::of(&requests::of_or(spec, &missing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::amounts;

    fn of(text: &str) -> ResourceAmounts {
        ResourceAmounts::of(&amounts(text))
    }

    #[test]
    fn an_added_amount_is_subtracted_exactly() {
        let parts =
            ["cpu=1 memory=1Gi", "cpu=1n example.com/gpu=2", "memory=99999999999E example.com/gpu=1", "x=0"];
        let mut sum = ResourceAmounts::default();
        for part in parts.iter().chain(&parts) {
            sum.add(&of(part));
        }
        for part in parts.iter().rev().chain(&parts) {
            sum.subtract(&of(part));
        }
        assert_eq!(sum, ResourceAmounts::default());
    }

    #[test]
    fn only_a_requested_resource_can_be_short() {
        for (wanted, all, allocated, expected) in [
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
            let (wanted, all, allocated) = (of(wanted), of(all), of(allocated));
            assert_eq!(wanted.exceeding(&all, &allocated).collect::<Vec<_>>(), expected, "{wanted:?}");
        }
    }
}
