//! A pod's state in one word, the way kubectl finds it: the most telling of what its containers say.

use jiff::Timestamp;
use muster_proto::pb;
use muster_proto::pb::container_state::State;
use muster_proto::pod::{Pod, PodPhase};

use crate::print::Cell;

/// A pod's state, short enough for a table.
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
        let ends = statuses.iter().filter_map(|status| ended(status.last_state.as_ref()));
        PodSummary {
            ready: statuses.iter().filter(|status| status.ready && running(status)).count(),
            containers: pod.spec.containers.len(),
            status: status(pod),
            restarts: statuses.iter().map(|status| status.restart_count).sum(),
            last_restart: ends.filter_map(|end| moment(end.finished_at.as_ref())).max(),
        }
    }

    /// The state in the colour it deserves.
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
    initialising(pod).or_else(|| of_containers(pod)).unwrap_or(phase)
}

/// What the first init container that is not done says, such as `Init:0/2`.
fn initialising(pod: &Pod) -> Option<String> {
    let total = pod.spec.init_containers.len();
    for (i, status) in pod.status.init_container_statuses.iter().enumerate() {
        let sidecar = pod.spec.init_containers.iter().any(|init| init.name == status.name && init.sidecar);
        match state(status.state.as_ref()) {
            Some(State::Terminated(end)) if end.exit_code == 0 => {}
            Some(State::Running(_)) if sidecar => {}
            Some(State::Terminated(end)) => return Some(format!("Init:{}", why_ended(end))),
            Some(State::Waiting(waiting)) if !matches!(waiting.reason.as_str(), "" | "PodInitializing") => {
                return Some(format!("Init:{}", waiting.reason));
            }
            _ => return Some(format!("Init:{i}/{total}")),
        }
    }
    None
}

/// What the first container with something to say says.
fn of_containers(pod: &Pod) -> Option<String> {
    let statuses = &pod.status.container_statuses;
    let told = statuses.iter().find_map(|status| match state(status.state.as_ref()) {
        Some(State::Waiting(waiting)) if !waiting.reason.is_empty() => Some(waiting.reason.clone()),
        Some(State::Terminated(end)) => Some(why_ended(end)),
        _ => None,
    })?;
    // A pod of which one container is done and another runs, runs.
    let runs = statuses.iter().any(running) && pod.status.phase == PodPhase::Running;
    Some(if told == "Completed" && runs { "Running".to_owned() } else { told })
}

fn why_ended(end: &pb::ContainerStateTerminated) -> String {
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

fn ended(state_of: Option<&pb::ContainerState>) -> Option<&pb::ContainerStateTerminated> {
    match state(state_of) {
        Some(State::Terminated(end)) => Some(end),
        _ => None,
    }
}

fn state(state: Option<&pb::ContainerState>) -> Option<&State> {
    state.and_then(|state| state.state.as_ref())
}

/// A time of the schema; one that is out of range is not shown.
pub(crate) fn moment(time: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok())
}
