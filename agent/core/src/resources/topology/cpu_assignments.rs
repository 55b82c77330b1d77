//! Which containers have which processors exclusively.
//!
//! Processors are assigned when the first container of a pod starts: all of its containers get theirs then, or the pod
//! is rejected. They stay assigned until the pod is released.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::name::Uid;
use muster_proto::pod::Pod;

use super::cpus::{self, Layout};
use super::{Policy, Scope};
use crate::admission::Rejection;

type OfPod = BTreeMap<String, BTreeSet<u32>>;

/// The processors of the machine, and the containers they are assigned to.
#[derive(Clone, Debug)]
pub struct CpuAssignments {
    layout: Layout,
    policy: Policy,
    scope: Scope,
    assigned: BTreeMap<Uid, OfPod>,
}

impl CpuAssignments {
    /// Nothing is assigned yet.
    pub fn new(layout: Layout, policy: Policy, scope: Scope) -> CpuAssignments {
        CpuAssignments { layout, policy, scope, assigned: BTreeMap::new() }
    }

    /// Restores what an earlier process of this agent assigned to a container.
    pub fn restore(&mut self, pod: Uid, container: &str, cpus: impl IntoIterator<Item = u32>) {
        self.assigned.entry(pod).or_default().entry(container.to_owned()).or_default().extend(cpus);
    }

    /// The processors of a container that is about to start; none means that it shares processors.
    ///
    /// # Errors
    /// When the pod cannot have what the policy requires.
    pub fn assign(&mut self, pod: &Pod, container: &str) -> Result<Vec<u32>, Rejection> {
        let Some(uid) = pod.meta.uid.filter(|_| self.policy != Policy::None) else { return Ok(Vec::new()) };
        let held = self.assigned.get(&uid).cloned().unwrap_or_default();
        if !held.contains_key(container) {
            let of_pod = self.admit(pod, held)?;
            self.assigned.insert(uid, of_pod);
        }
        let mine = self.assigned.get(&uid).and_then(|of_pod| of_pod.get(container));
        Ok(mine.into_iter().flatten().copied().collect())
    }

    /// Releases all processors of a pod.
    pub fn release(&mut self, pod: Uid) {
        self.assigned.remove(&pod);
    }

    /// The processors for containers without exclusive ones; none means any. If all processors are assigned, containers
    /// that share stay where they are: there is no other processor to run on.
    pub fn shared(&self) -> Vec<u32> {
        let taken = self.taken();
        let all = self.layout.values().flatten().copied();
        let free: BTreeSet<u32> = all.filter(|cpu| !taken.contains(cpu)).collect();
        if taken.is_empty() { Vec::new() } else { free.into_iter().collect() }
    }

    /// Whether processors are assigned at all. If not, no container is moved: it may have set its own affinity.
    pub fn is_enabled(&self) -> bool {
        self.policy != Policy::None
    }

    fn taken(&self) -> BTreeSet<u32> {
        self.assigned.values().flat_map(BTreeMap::values).flatten().copied().collect()
    }

    /// Assigns processors to the pod's containers that have none yet.
    fn admit(&self, pod: &Pod, mut of_pod: OfPod) -> Result<OfPod, Rejection> {
        // A running pod was admitted before, and a restart of the agent must not reject it.
        let policy = if of_pod.is_empty() { self.policy } else { Policy::BestEffort };
        let nodes = self.layout.len();
        let taken = self.taken();
        // Processors of this pod's containers that run for the pod's whole life.
        let mut kept = BTreeSet::new();
        let mut of_whole_pod = None;
        if self.scope == Scope::Pod {
            let count = cpus::wanted(self.scope, pod).iter().map(|(_, count)| count).sum();
            let hints = cpus::hints(&self.layout, &taken, count);
            of_whole_pod = policy.admit(nodes, &[vec![hints]])?.pop();
        }
        for (name, count) in cpus::wanted(Scope::Container, pod) {
            let Some(name) = name.filter(|name| !of_pod.contains_key(name)) else { continue };
            let unavailable: BTreeSet<u32> = taken.union(&kept).copied().collect();
            let hint = match of_whole_pod {
                Some(hint) => Some(hint),
                None => {
                    let hints = cpus::hints(&self.layout, &unavailable, count);
                    policy.admit(nodes, &[vec![hints]])?.pop()
                }
            };
            let mask = hint.and_then(|hint| hint.mask);
            let picked = cpus::pick(&self.layout, &unavailable, count, mask).ok_or_else(shortage)?;
            if !is_passing(pod, &name) {
                kept.extend(&picked);
            }
            of_pod.insert(name, picked);
        }
        Ok(of_pod)
    }
}

/// Whether the container exits before the main containers start, which may then have its processors.
fn is_passing(pod: &Pod, name: &str) -> bool {
    pod.spec.init_containers.iter().any(|init| init.name == name && !init.sidecar)
}

fn shortage() -> Rejection {
    Rejection::new("UnexpectedAdmissionError", "too few processors are free to give it the ones it asks for")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ContainerBuilder, PodBuilder, container, pod, uid};
    use muster_proto::pod::Container;

    fn cpu_assignments(policy: Policy, scope: Scope) -> CpuAssignments {
        CpuAssignments::new(Layout::from([(0, vec![0, 1, 2, 3]), (1, vec![4, 5, 6, 7])]), policy, scope)
    }

    fn whole(name: &str, count: u32) -> Container {
        let text = format!("cpu={count} memory=1Gi");
        container(name).requests(&text).limits(&text)
    }

    fn asks(name: &str, count: u32) -> PodBuilder {
        pod(name).containers(vec![whole("main", count)])
    }

    #[test]
    fn s077_processors_are_assigned_once_and_released() {
        let mut cpu_assignments = cpu_assignments(Policy::SingleNumaNode, Scope::Container);
        let (a, b, c) = (asks("a", 3).build(), asks("b", 2).build(), asks("c", 3).build());
        assert_eq!(cpu_assignments.assign(&a, "main"), Ok(vec![0, 1, 2]));
        assert_eq!(cpu_assignments.assign(&a, "main"), Ok(vec![0, 1, 2]), "a restart keeps them");
        assert_eq!(cpu_assignments.assign(&b, "main"), Ok(vec![4, 5]));
        let refused = cpu_assignments.assign(&c, "main").unwrap_err();
        assert_eq!(refused.reason, "TopologyAffinityError", "three are free, but on no single node");
        cpu_assignments.release(uid("a"));
        assert_eq!(cpu_assignments.assign(&c, "main"), Ok(vec![0, 1, 2]));
        assert_eq!(cpu_assignments.assign(&pod("shares").build(), "main"), Ok(vec![]));
    }

    #[test]
    fn s077_a_pod_is_aligned_as_a_whole_only_in_pod_scope() {
        let pair = pod("pair").containers(vec![whole("x", 3), whole("y", 3)]).build();
        let mut apart = cpu_assignments(Policy::SingleNumaNode, Scope::Container);
        assert_eq!(apart.assign(&pair, "x"), Ok(vec![0, 1, 2]));
        assert_eq!(apart.assign(&pair, "y"), Ok(vec![4, 5, 6]));
        let together = cpu_assignments(Policy::SingleNumaNode, Scope::Pod).assign(&pair, "x");
        assert_eq!(together.unwrap_err().reason, "TopologyAffinityError");
    }

    #[test]
    fn main_containers_reuse_the_processors_of_init_containers() {
        let inits = vec![whole("side", 1).sidecar(), whole("init", 3)];
        let pod = pod("a").inits(inits).containers(vec![whole("main", 3)]).build();
        let mut cpu_assignments = cpu_assignments(Policy::SingleNumaNode, Scope::Pod);
        assert_eq!(cpu_assignments.assign(&pod, "side"), Ok(vec![0]));
        assert_eq!(cpu_assignments.assign(&pod, "init"), Ok(vec![1, 2, 3]));
        assert_eq!(cpu_assignments.assign(&pod, "main"), Ok(vec![1, 2, 3]));
    }

    #[test]
    fn containers_that_share_are_kept_off_assigned_processors() {
        let mut cpu_assignments = cpu_assignments(Policy::SingleNumaNode, Scope::Container);
        assert_eq!(cpu_assignments.shared(), [0; 0], "none is assigned: all are shared");
        cpu_assignments.assign(&asks("a", 3).build(), "main").unwrap();
        assert_eq!(cpu_assignments.shared(), [3, 4, 5, 6, 7]);
        cpu_assignments.assign(&asks("b", 4).build(), "main").unwrap();
        assert_eq!(cpu_assignments.shared(), [3]);
        cpu_assignments.release(uid("a"));
        assert_eq!(cpu_assignments.shared(), [0, 1, 2, 3]);
        cpu_assignments.assign(&asks("c", 4).build(), "main").unwrap();
        assert_eq!(cpu_assignments.shared(), [0; 0], "there is no other processor");
    }

    #[test]
    fn assignments_of_an_earlier_agent_are_kept() {
        let mut cpu_assignments = cpu_assignments(Policy::Restricted, Scope::Container);
        cpu_assignments.restore(uid("a"), "main", [0, 4]);
        assert_eq!(cpu_assignments.assign(&asks("a", 2).build(), "main"), Ok(vec![0, 4]));
        assert_eq!(cpu_assignments.assign(&asks("b", 3).build(), "main"), Ok(vec![1, 2, 3]));
        assert_eq!(
            cpu_assignments.assign(&asks("c", 4).build(), "main").unwrap_err().reason,
            "TopologyAffinityError"
        );
    }

    #[test]
    fn without_a_policy_all_containers_share() {
        assert_eq!(
            cpu_assignments(Policy::None, Scope::Pod).assign(&asks("a", 9).build(), "main"),
            Ok(vec![])
        );
        let short = cpu_assignments(Policy::BestEffort, Scope::Pod).assign(&asks("a", 9).build(), "main");
        assert_eq!(short.unwrap_err().reason, "UnexpectedAdmissionError");
    }
}
