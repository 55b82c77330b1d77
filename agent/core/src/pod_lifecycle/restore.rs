//! The state of containers that an earlier process of this agent ran, restored from the pod's status.

use jiff::Timestamp;
use muster_proto::pb;

use super::container::{ContainerState, Exit, State};

impl ContainerState {
    /// The state of a container as the pod's status has it.
    pub(super) fn from_status(status: &pb::ContainerStatus) -> Self {
        use pb::container_state::State as Said;
        let state = |of: &Option<pb::ContainerState>| of.as_ref().and_then(|of| of.state.clone());
        let mut container_state = Self::new();
        container_state.restarts = u32::try_from(status.restart_count).unwrap_or(0);
        container_state.id.clone_from(&status.container_id);
        container_state.last = match state(&status.last_state) {
            Some(Said::Terminated(ended)) => Some(exit_of(ended)),
            _ => None,
        };
        container_state.state = match state(&status.state) {
            Some(Said::Running(running)) => {
                State::Running { since: running.started_at.as_ref().and_then(time_of).unwrap_or_default() }
            }
            Some(Said::Terminated(ended)) => State::Exited(exit_of(ended)),
            // It was waiting for its next run.
            _ => container_state.last.take().map_or(State::New, State::Exited),
        };
        container_state
    }
}

fn exit_of(ended: pb::ContainerStateTerminated) -> Exit {
    Exit {
        code: ended.exit_code,
        signal: ended.signal,
        reason: ended.reason,
        message: ended.message,
        started_at: ended.started_at.as_ref().and_then(time_of),
        at: ended.finished_at.as_ref().and_then(time_of),
    }
}

fn time_of(time: &prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}
