//! One node as placement sees it: what it says of itself, and what is taken of it.

use std::sync::Arc;

use muster_proto::node::Node;
use muster_proto::pod::ports::HostPort;
use muster_proto::pod::requests;
use muster_proto::taint::{Taint, TaintEffect};

use super::pod_requirements::Claim;
use super::resources::{Amounts, Load, PODS};

/// What a node says of itself, in the form that many pods can be held against it.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) node: Arc<Node>,
    /// Taints that keep pods away.
    pub(super) barring: Vec<Taint>,
    /// Taints that send pods elsewhere if there is an elsewhere.
    pub(super) discouraging: Vec<Taint>,
    /// How many pods it takes.
    pub(super) max_pods: i64,
    pub(super) allocatable: Amounts,
    pub(super) capacity: Load,
}

impl Facts {
    pub(super) fn of(node: &Arc<Node>) -> Facts {
        let soft = |taint: &Taint| taint.effect == TaintEffect::PreferNoSchedule;
        let (discouraging, barring) = node.spec.taints.iter().cloned().partition(soft);
        let allocatable = &node.status.allocatable;
        Facts {
            node: Arc::clone(node),
            barring,
            discouraging,
            max_pods: requests::amount(allocatable, PODS).value(),
            allocatable: Amounts::of(allocatable),
            capacity: Load::of(allocatable),
        }
    }

    /// Takes in a newer record of the same node. If anything that placement reads has changed, gives what was before.
    pub(super) fn update(&mut self, node: &Arc<Node>) -> Option<Box<Facts>> {
        let held = &self.node;
        let same = held.spec.unschedulable == node.spec.unschedulable
            && held.spec.taints == node.spec.taints
            && held.meta.labels == node.meta.labels
            && held.status.allocatable == node.status.allocatable;
        if same {
            // Most news of a node are of its health, which is not read here.
            self.node = Arc::clone(node);
            return None;
        }
        Some(Box::new(std::mem::replace(self, Facts::of(node))))
    }
}

/// What the pods of a node have taken, those on their way included.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Taken {
    pub(super) pods: i64,
    pub(super) amounts: Amounts,
    pub(super) load: Load,
    pub(super) filled: Load,
    pub(super) ports: Vec<HostPort>,
}

impl Taken {
    pub(super) fn add(&mut self, claim: &Claim) {
        self.pods += 1;
        self.amounts.add(&claim.amounts);
        self.load = self.load.plus(claim.load);
        self.filled = self.filled.plus(claim.filled);
        self.ports.extend(claim.ports.iter().cloned());
    }

    /// Gives back what was added.
    pub(super) fn give_back(&mut self, claim: &Claim) {
        self.pods -= 1;
        self.amounts.take_away(&claim.amounts);
        self.load = self.load.minus(claim.load);
        self.filled = self.filled.minus(claim.filled);
        for port in &claim.ports {
            if let Some(held) = self.ports.iter().position(|held| held == port) {
                self.ports.swap_remove(held);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{node, pod};

    #[test]
    fn what_a_pod_took_is_given_back_whole() {
        let spec = |name: &str, port| pod(name).requests("cpu=1 a/b=1").port(port).build().spec;
        let claims = [Claim::of(&spec("a", 80)), Claim::of(&spec("b", 81))];
        let mut taken = Taken::default();
        taken.add(&claims[0]);
        let one = taken.clone();
        taken.add(&claims[1]);
        assert_eq!((taken.pods, taken.ports.len()), (2, 2));
        taken.give_back(&claims[1]);
        assert_eq!(taken, one);
        taken.give_back(&claims[0]);
        assert_eq!(taken, Taken::default());
    }

    #[test]
    fn only_what_placement_reads_is_a_change() {
        let base = || node("n").label("zone", "a").allocatable("cpu=4 pods=10").taint("a=b:NoSchedule");
        for (sample, changed) in [
            (base(), false),
            (base().ready(muster_proto::condition::ConditionStatus::True), false),
            (base().label("zone", "b"), true),
            (base().cordoned(), true),
            (base().taint("c:NoExecute"), true),
            (base().allocatable("cpu=5 pods=10"), true),
        ] {
            let mut facts = Facts::of(&Arc::new(base().build()));
            let newer = Arc::new(sample.build());
            assert_eq!(facts.update(&newer).is_some(), changed, "{newer:?}");
            assert_eq!(facts.node, newer);
        }
    }
}
