//! A pod's status in one word, by kubectl's rules: the reason of the first container that is not running well.

use jiff::Timestamp;
use muster_proto::pb;
use muster_proto::pb::container_state::State;
use muster_proto::pod::{Pod, PodPhase};

use crate::print::Cell;

/// A pod's status, short enough for a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodSummary {
    pub(crate) ready: usize,
    pub(crate) containers: usize,
    pub(crate) status: String,
    pub(crate) restarts: i32,
    pub(crate) last_restart: Option<Timestamp>,
}

impl PodSummary {
    pub(crate) fn of(pod: &Pod) -> PodSummary {
        let statuses = &pod.status.container_statuses;
        let terminations = statuses.iter().filter_map(|status| terminated(status.last_state.as_ref()));
        PodSummary {
            ready: statuses.iter().filter(|status| status.ready && running(status)).count(),
            containers: pod.spec.containers.len(),
            status: status(pod),
            restarts: statuses.iter().map(|status| status.restart_count).sum(),
            last_restart: terminations.filter_map(|end| moment(end.finished_at.as_ref())).max(),
        }
    }

    /// The status with its colour.
    pub(crate) fn cell(&self) -> Cell {
        let cell = Cell::new(&self.status);
        match self.status.as_str() {
            "Running" if self.ready == self.containers => cell.good(),
            "Completed" | "Succeeded" => cell.good(),
            "Running" | "Pending" | "Terminating" | "ContainerCreating" => cell.doubtful(),
            _ => cell.bad(),
        }
    }
}

fn status(pod: &Pod) -> String {
    if pod.meta.is_deleting() {
        return "Terminating".to_owned();
    }
    let phase = match pod.status.reason.as_str() {
        "" => pod.status.phase.to_string(),
        reason => reason.to_owned(),
    };
    if pod.is_finished() && !pod.status.reason.is_empty() {
        return phase;
    }
    init_status(pod).or_else(|| container_status(pod)).unwrap_or(phase)
}

/// The status of the first init container that has not completed, such as `Init:0/2`.
fn init_status(pod: &Pod) -> Option<String> {
    let total = pod.spec.init_containers.len();
    for (i, status) in pod.status.init_container_statuses.iter().enumerate() {
        let sidecar = pod.spec.init_containers.iter().any(|init| init.name == status.name && init.sidecar);
        match state(status.state.as_ref()) {
            Some(State::Terminated(end)) if end.exit_code == 0 => {}
            Some(State::Running(_)) if sidecar => {}
            Some(State::Terminated(end)) => return Some(format!("Init:{}", termination_reason(end))),
            Some(State::Waiting(waiting)) if !matches!(waiting.reason.as_str(), "" | "PodInitializing") => {
                return Some(format!("Init:{}", waiting.reason));
            }
            _ => return Some(format!("Init:{i}/{total}")),
        }
    }
    None
}

/// The reason of the first container that waits or has terminated.
fn container_status(pod: &Pod) -> Option<String> {
    let statuses = &pod.status.container_statuses;
    let reason = statuses.iter().find_map(|status| match state(status.state.as_ref()) {
        Some(State::Waiting(waiting)) if !waiting.reason.is_empty() => Some(waiting.reason.clone()),
        Some(State::Terminated(end)) => Some(termination_reason(end)),
        _ => None,
    })?;
    // A pod with a completed container is Running as long as another container runs.
    let runs = statuses.iter().any(running) && pod.status.phase == PodPhase::Running;
    Some(if reason == "Completed" && runs { "Running".to_owned() } else { reason })
}

pub(crate) fn termination_reason(end: &pb::ContainerStateTerminated) -> String {
    match (end.reason.as_str(), end.signal, end.exit_code) {
        ("", 0, 0) => "Completed".to_owned(),
        ("", 0, code) => format!("ExitCode:{code}"),
        ("", signal, _) => format!("Signal:{signal}"),
        (reason, ..) => reason.to_owned(),
    }
}

fn running(status: &pb::ContainerStatus) -> bool {
    matches!(state(status.state.as_ref()), Some(State::Running(_)))
}

pub(crate) fn terminated(state_of: Option<&pb::ContainerState>) -> Option<&pb::ContainerStateTerminated> {
    match state(state_of) {
        Some(State::Terminated(end)) => Some(end),
        _ => None,
    }
}

pub(crate) fn state(state: Option<&pb::ContainerState>) -> Option<&State> {
    state.and_then(|state| state.state.as_ref())
}

/// Converts a protobuf timestamp; `None` if it is out of range.
pub(crate) fn moment(time: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok())
}
