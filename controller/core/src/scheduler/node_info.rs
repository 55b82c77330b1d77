//! One node as the scheduler sees it: what its record offers, and what is allocated on it.

use std::sync::Arc;

use muster_proto::node::Node;
use muster_proto::pod::ports::HostPort;
use muster_proto::pod::requests;
use muster_proto::taint::{Taint, TaintEffect};

use super::pod_requirements::PodRequest;
use super::resources::{CpuMemory, PODS, ResourceAmounts};

/// What the scheduler reads of a node's record, prepared for comparison with many pods.
#[derive(Clone, Debug)]
pub(super) struct NodeView {
    pub(super) node: Arc<Node>,
    /// NoSchedule and NoExecute.
    pub(super) hard_taints: Vec<Taint>,
    /// PreferNoSchedule.
    pub(super) soft_taints: Vec<Taint>,
    /// How many pods the node may run.
    pub(super) max_pods: i64,
    pub(super) allocatable: ResourceAmounts,
    pub(super) capacity: CpuMemory,
}

impl NodeView {
    pub(super) fn of(node: &Arc<Node>) -> NodeView {
        let soft = |taint: &Taint| taint.effect == TaintEffect::PreferNoSchedule;
        let (soft_taints, hard_taints) = node.spec.taints.iter().cloned().partition(soft);
        let allocatable = &node.status.allocatable;
        NodeView {
            node: Arc::clone(node),
            hard_taints,
            soft_taints,
            max_pods: requests::amount(allocatable, PODS).value(),
            allocatable: ResourceAmounts::of(allocatable),
            capacity: CpuMemory::of(allocatable),
        }
    }

    /// Takes a newer record of the same node. Returns the old view if anything that the scheduler reads has changed.
    pub(super) fn update(&mut self, node: &Arc<Node>) -> Option<Box<NodeView>> {
        let held = &self.node;
        let same = held.spec.unschedulable == node.spec.unschedulable
            && held.spec.taints == node.spec.taints
            && held.meta.labels == node.meta.labels
            && held.status.allocatable == node.status.allocatable;
        if same {
            // Most changes of a node are of its health, which is not read here.
            self.node = Arc::clone(node);
            return None;
        }
        Some(Box::new(std::mem::replace(self, NodeView::of(node))))
    }
}

/// What the pods of a node take, those being bound included.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Allocated {
    pub(super) pods: i64,
    pub(super) amounts: ResourceAmounts,
    pub(super) requested: CpuMemory,
    pub(super) non_zero_requested: CpuMemory,
    pub(super) ports: Vec<HostPort>,
}

impl Allocated {
    pub(super) fn add(&mut self, request: &PodRequest) {
        self.pods += 1;
        self.amounts.add(&request.amounts);
        self.requested = self.requested.plus(request.requested);
        self.non_zero_requested = self.non_zero_requested.plus(request.non_zero_requested);
        self.ports.extend(request.ports.iter().cloned());
    }

    /// Subtracts a part of what was added before.
    pub(super) fn subtract(&mut self, part: &Allocated) {
        self.pods -= part.pods;
        self.amounts.subtract(&part.amounts);
        self.requested = self.requested.minus(part.requested);
        self.non_zero_requested = self.non_zero_requested.minus(part.non_zero_requested);
        self.remove_ports(&part.ports);
    }

    /// Subtracts what was added before.
    pub(super) fn remove(&mut self, request: &PodRequest) {
        self.pods -= 1;
        self.amounts.subtract(&request.amounts);
        self.requested = self.requested.minus(request.requested);
        self.non_zero_requested = self.non_zero_requested.minus(request.non_zero_requested);
        self.remove_ports(&request.ports);
    }

    fn remove_ports(&mut self, ports: &[HostPort]) {
        for port in ports {
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
    fn removing_a_pod_restores_what_was_allocated_before() {
        let spec = |name: &str, port| pod(name).requests("cpu=1 a/b=1").port(port).build().spec;
        let pods = [PodRequest::of(&spec("a", 80)), PodRequest::of(&spec("b", 81))];
        let mut allocated = Allocated::default();
        allocated.add(&pods[0]);
        let one = allocated.clone();
        allocated.add(&pods[1]);
        assert_eq!((allocated.pods, allocated.ports.len()), (2, 2));
        allocated.remove(&pods[1]);
        assert_eq!(allocated, one);
        allocated.remove(&pods[0]);
        assert_eq!(allocated, Allocated::default());
    }

    #[test]
    fn only_what_the_scheduler_reads_is_a_change() {
        let base = || node("n").label("zone", "a").allocatable("cpu=4 pods=10").taint("a=b:NoSchedule");
        for (sample, changed) in [
            (base(), false),
            (base().ready(muster_proto::condition::ConditionStatus::True), false),
            (base().label("zone", "b"), true),
            (base().cordoned(), true),
            (base().taint("c:NoExecute"), true),
            (base().allocatable("cpu=5 pods=10"), true),
        ] {
            let mut view = NodeView::of(&Arc::new(base().build()));
            let newer = Arc::new(sample.build());
            assert_eq!(view.update(&newer).is_some(), changed, "{newer:?}");
            assert_eq!(view.node, newer);
        }
    }
}
