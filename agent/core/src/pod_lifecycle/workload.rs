//! The pods as the agent's own service shows them.

use muster_proto::name::Uid;
use muster_proto::pod::{Pod, PodStatus};

use super::pod_states::PodStates;
use super::pod_status as status;
use muster_proto::time::Now;

/// One pod as this node sees it.
#[derive(Clone, Debug)]
pub struct Workload<'a> {
    pub uid: Uid,
    /// `None` for a pod that the runtime has and of which no record was seen.
    pub pod: Option<&'a Pod>,
    /// The status that the store should have, whether or not it was posted; empty without a record.
    pub status: PodStatus,
    pub is_stopping: bool,
    /// The process ids of its running containers.
    pub pids: Vec<(&'a str, u32)>,
}

impl PodStates {
    /// All pods that the node has.
    pub fn workloads(&self, now: Now) -> impl Iterator<Item = Workload<'_>> {
        self.entries.values().map(move |pod_state| {
            let pod = pod_state.pod.as_deref();
            let running =
                pod_state.containers.iter().filter(|(_, container_state)| container_state.is_alive());
            Workload {
                uid: pod_state.uid,
                pod,
                status: pod.map(|pod| status::of(pod_state, pod, self, now)).unwrap_or_default(),
                is_stopping: pod_state.is_stopping(),
                pids: running
                    .filter_map(|(name, container_state)| Some((name.as_str(), container_state.pid?)))
                    .collect(),
            }
        })
    }
}
