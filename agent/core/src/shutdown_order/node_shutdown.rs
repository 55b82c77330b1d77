//! The pods of a node that shuts down: when each group is stopped, and when all of them are done.

use std::time::Duration;

use muster_proto::name::Uid;
use muster_proto::time::{Mono, Now};

use super::{GroupShutdown, GroupStep, Schedule};
use crate::pod_lifecycle::PodStates;

/// How long the first group waits until the store knows that the node is not ready, so that no more work is sent to it.
const NOT_READY_WITHIN: Duration = Duration::from_secs(1);
/// How long after the last group's time the statuses of its pods are waited for: a pod that is killed at the last moment
/// has not exited at that moment, and its status still has to be posted.
pub const LAST_STATUS_WITHIN: Duration = Duration::from_secs(5);

/// What a shutdown needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownStep {
    /// So many pods were told to terminate: decide and perform.
    Act { pods: usize },
    /// Look again when something changed, or by then.
    Wait { until: Mono },
    /// Every pod has stopped and the store knows, or the time is over.
    Done,
}

/// The shutdown of a node's pods.
#[derive(Clone, Debug)]
pub struct NodeShutdown {
    groups: GroupShutdown,
    pods: Vec<Uid>,
    /// When the first group is stopped, whether or not the store knows that the node is not ready.
    start_by: Option<Mono>,
    /// When the last statuses are no longer waited for.
    done_by: Option<Mono>,
}

impl NodeShutdown {
    /// The shutdown of the pods that the node has now.
    pub fn new(schedule: &Schedule, pod_states: &PodStates) -> NodeShutdown {
        let pods = pod_states.active().filter_map(|pod| pod.meta.uid).collect();
        let groups = GroupShutdown::new(schedule, pod_states.active().map(AsRef::as_ref));
        NodeShutdown { groups, pods, start_by: None, done_by: None }
    }

    /// Terminates the pods of the group whose turn it is. `is_not_ready_posted`: the store knows that the node is not
    /// ready.
    pub fn step(&mut self, pod_states: &mut PodStates, is_not_ready_posted: bool, now: Now) -> ShutdownStep {
        let until = *self.start_by.get_or_insert(now.mono + NOT_READY_WITHIN);
        if !is_not_ready_posted && now.mono < until {
            return ShutdownStep::Wait { until };
        }
        self.groups.observe(|uid| pod_states.is_present(uid), now.mono);
        match self.groups.decide() {
            GroupStep::Stop(terminations) => {
                let pods = terminations.len();
                for (uid, termination) in terminations {
                    pod_states.terminate(uid, termination, now);
                }
                self.groups.begun(now.mono);
                ShutdownStep::Act { pods }
            }
            GroupStep::Wait { until } => ShutdownStep::Wait { until },
            GroupStep::Done => {
                let until = *self.done_by.get_or_insert(now.mono + LAST_STATUS_WITHIN);
                let is_done = |uid: &Uid| {
                    let is_posted = pod_states.pod(*uid).is_none_or(|pod| pod.is_finished());
                    !pod_states.is_present(*uid) && is_posted
                };
                if now.mono >= until || self.pods.iter().all(is_done) {
                    ShutdownStep::Done
                } else {
                    ShutdownStep::Wait { until }
                }
            }
        }
    }
}
