//! Relieves pressure on the machine: reclaims disk space that no pod needs, or evicts one pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_agent_core::EVENT_SOURCE;
use muster_agent_core::pod_lifecycle::PodStates;
use muster_agent_core::pressure::eviction_ranking::{Candidate, EvictionStep, Usage};
use muster_agent_core::pressure::{PressureState, StarvedResource};
use muster_agent_core::status::NodeEvent;
use muster_proto::event::{Event, EventType, ObjectReference};
use muster_proto::name::Uid;
use muster_proto::pod::Pod;

use super::PodLoop;
use crate::runtime::{self, ContainerId, DiskUsage};

impl PodLoop {
    /// One round for one observation: what a round frees shows only in the next observation.
    pub(super) async fn relieve_pressure(&mut self, pressure: &PressureState, pod_states: &mut PodStates) {
        let Some(resource) = pressure.most_urgent() else { return self.evictor.observe_no_pressure() };
        // Every file of every pod is counted only if disk space or inodes are short.
        let disk = match resource {
            StarvedResource::Disk | StarvedResource::Inodes => self.executor.disk_usages().await,
            StarvedResource::Memory | StarvedResource::Pids => BTreeMap::new(),
        };
        let usages = per_pod(self.executor.usages().await, disk);
        let pods: Vec<Arc<Pod>> = pod_states.not_stopping().cloned().collect();
        let candidates: Vec<Candidate<'_>> = pods.iter().filter_map(|pod| candidate(pod, &usages)).collect();
        let now = self.now();
        match self.evictor.decide(pressure, &candidates, |uid| pod_states.is_present(uid), now.mono) {
            EvictionStep::Nothing => {
                tracing::debug!(%resource, "short, and no pod may be evicted");
            }
            EvictionStep::Wait { .. } => {}
            EvictionStep::ReclaimDisk => {
                self.record_threshold_met(resource);
                let count = self.executor.sweep(pod_states.stopped().collect()).await;
                tracing::info!(%resource, count, "removed the files of terminated containers");
                self.evictor.observe_reclaimed();
            }
            EvictionStep::Evict { uid, termination } => {
                self.record_threshold_met(resource);
                if let Some(pod) = pod_states.pod(uid) {
                    tracing::warn!(pod = %pod.meta.name, message = termination.message, "evicted");
                    let (about, message) = (ObjectReference::to(pod.as_ref()), termination.message.clone());
                    let event = Event::about(about, EventType::Warning, "Evicted", message, EVENT_SOURCE);
                    self.events.record(event);
                }
                pod_states.terminate(uid, termination, now);
                self.evictor.observe_evicted(uid, now.mono);
                self.shared.metrics.evictions.inc();
            }
        }
    }

    fn record_threshold_met(&self, resource: StarvedResource) {
        let uid = self.shared.node().borrow().as_ref().and_then(|node| node.meta.uid);
        let message = format!("Attempting to reclaim {resource}");
        let event = NodeEvent { kind: EventType::Warning, reason: "EvictionThresholdMet", message };
        self.events.record_node(&self.name, uid, event);
    }
}

fn candidate<'a>(pod: &'a Pod, usages: &BTreeMap<Uid, Usage>) -> Option<Candidate<'a>> {
    let usage = usages.get(&pod.meta.uid?).copied().unwrap_or_default();
    Some(Candidate { pod, usage })
}

/// What each pod uses in all. On the disk only its own directory counts: files that its processes write elsewhere cannot
/// be attributed to it.
fn per_pod(
    usages: BTreeMap<ContainerId, runtime::Usage>,
    disk: BTreeMap<Uid, DiskUsage>,
) -> BTreeMap<Uid, Usage> {
    let on_disk = |usage: DiskUsage| Usage { disk: usage.bytes, inodes: usage.inodes, ..Usage::default() };
    let mut pods: BTreeMap<Uid, Usage> = disk.into_iter().map(|(uid, usage)| (uid, on_disk(usage))).collect();
    for (id, used) in usages {
        let pod = pods.entry(id.pod).or_default();
        pod.memory = pod.memory.saturating_add(used.memory_bytes);
        pod.pids = pod.pids.saturating_add(used.pids);
    }
    pods
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_agent_core::testing::{pod, uid};

    #[test]
    fn a_pod_uses_what_its_containers_use() {
        let id =
            |pod, container: &str| ContainerId { pod: uid(pod), container: container.into(), attempt: 0 };
        let used = |memory_bytes, pids| runtime::Usage { memory_bytes, pids, ..Default::default() };
        let usages = [(id("a", "x"), used(1, 2)), (id("a", "y"), used(10, 20)), (id("b", "x"), used(5, 5))];
        let disk = [(uid("a"), DiskUsage { bytes: 4096, inodes: 3 })];
        let pods = per_pod(usages.into_iter().collect(), disk.into());
        assert_eq!(pods[&uid("a")], Usage { memory: 11, disk: 4096, inodes: 3, pids: 22 });
        assert_eq!(pods[&uid("b")].memory, 5);
        let idle = pod("idle").build();
        assert_eq!(candidate(&idle, &pods).unwrap().usage, Usage::default());
    }
}
