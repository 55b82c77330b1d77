//! What is said of a pod: phase, conditions and containers, as they follow from what is known of it.

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::pb;
use muster_proto::pod::{Container, Pod, PodCondition, PodPhase, PodStatus};

use super::container::{Exit, State, Track};
use super::pod_state::{Admission, Entry, Init};
use super::pod_states::Ledger;
use muster_proto::time::Now;

const INITIALIZED: &str = "Initialized";
const CONTAINERS_READY: &str = "ContainersReady";

pub(super) fn is_ready(status: &PodStatus) -> bool {
    let ready = status.conditions.iter().find(|condition| condition.kind == types::READY);
    ready.is_some_and(|ready| ready.status == ConditionStatus::True)
}

/// The status the store should have, if it has another.
///
/// One that was stored and came back different is not posted again until the record changes: the store may
/// have its own mind about a field.
pub(super) fn wanted(entry: &Entry, ledger: &Ledger, now: Now) -> Option<PodStatus> {
    let pod = entry.pod.as_ref().filter(|_| entry.stops.vanished.is_none())?;
    let status = of(entry, pod, ledger, now);
    let was_posted = entry
        .posted
        .as_ref()
        .is_some_and(|(version, posted)| *version == pod.meta.resource_version && *posted == status);
    (status != pod.status && !was_posted).then_some(status)
}

/// The status that what is known of the pod amounts to.
pub(super) fn of(entry: &Entry, pod: &Pod, ledger: &Ledger, now: Now) -> PodStatus {
    let mut status = pod.status.clone();
    status.observed_generation = pod.meta.generation;
    status.phase = phase(entry, pod);
    // Of a pod that had ended before this agent began, the record knows more than we do.
    let is_known =
        entry.admission == Admission::Admitted && !(pod.is_finished() && entry.containers.is_empty());
    if is_known {
        status.start_time.get_or_insert(now.wall);
        addresses(&mut status, pod, ledger);
    }
    if entry.is_over() && !pod.is_finished() {
        let rejected = match &entry.admission {
            Admission::Rejected(rejection) => Some((&rejection.reason, &rejection.message)),
            _ => None,
        };
        let ended = entry.ending.as_ref().map(|ending| (&ending.reason, &ending.message));
        if let Some((reason, message)) = ended.or(rejected) {
            status.reason.clone_from(reason);
            status.message.clone_from(message);
        }
    }
    let is_initialized = entry.init() == Init::Done;
    let describe = |containers: &[Container], wait| {
        containers.iter().map(|container| container_status(entry, container, wait)).collect()
    };
    if is_known {
        let wait = if is_initialized { "ContainerCreating" } else { "PodInitializing" };
        status.container_statuses = describe(&pod.spec.containers, wait);
        status.init_container_statuses = describe(&pod.spec.init_containers, "PodInitializing");
    }
    conditions(&mut status, entry, pod, now.wall);
    status
}

fn addresses(status: &mut PodStatus, pod: &Pod, ledger: &Ledger) {
    let Some(host) = ledger.node.as_ref().and_then(|node| node.host_ip) else {
        return;
    };
    status.host_ip = Some(host);
    if pod.spec.host_network {
        status.pod_ips = vec![host];
    }
}

fn phase(entry: &Entry, pod: &Pod) -> PodPhase {
    if pod.is_finished() {
        return pod.status.phase; // The end of a pod is never taken back.
    }
    if entry.is_over() {
        let went_well =
            entry.admission == Admission::Admitted && entry.ending.is_none() && entry.ended_well();
        return if went_well { PodPhase::Succeeded } else { PodPhase::Failed };
    }
    let has_run = |container: &Container| {
        entry.track(&container.name).is_some_and(|track| !matches!(track.state, State::New | State::Starting))
    };
    if pod.status.phase == PodPhase::Running || pod.spec.containers.iter().all(has_run) {
        PodPhase::Running
    } else {
        PodPhase::Pending
    }
}

fn conditions(status: &mut PodStatus, entry: &Entry, pod: &Pod, now: Timestamp) {
    let sidecars = pod.spec.init_containers.iter().filter(|init| init.sidecar);
    let is_unready = |container: &&Container| !entry.track(&container.name).is_some_and(Track::is_running);
    let unready: Vec<&str> = sidecars
        .chain(&pod.spec.containers)
        .filter(is_unready)
        .map(|container| container.name.as_str())
        .collect();
    let containers = match status.phase {
        PodPhase::Succeeded => no("PodCompleted", ""),
        PodPhase::Failed => no("PodFailed", ""),
        _ if unready.is_empty() => yes(),
        _ => no("ContainersNotReady", &format!("containers not running: {}", unready.join(", "))),
    };
    let ready = match &containers {
        Said { status: ConditionStatus::True, .. } if entry.is_stopping() => {
            no("Terminating", "the pod is being stopped")
        }
        _ => containers.clone(),
    };
    let initialized = match entry.init() {
        Init::Done if entry.admission == Admission::Admitted => yes(),
        _ => no("ContainersNotInitialized", ""),
    };
    // What was true of a pod that has ended stays: an agent that starts anew cannot know better.
    if !pod.is_finished() {
        set(status, INITIALIZED, initialized, now);
    }
    set(status, CONTAINERS_READY, containers, now);
    set(status, types::READY, ready, now);
    if let Some(ending) = entry.ending.as_ref().filter(|ending| ending.is_disruption) {
        let said =
            Said { reason: "TerminationByKubelet".to_owned(), message: ending.message.clone(), ..yes() };
        set(status, types::DISRUPTION_TARGET, said, now);
    }
}

#[derive(Clone)]
struct Said {
    status: ConditionStatus,
    reason: String,
    message: String,
}

fn yes() -> Said {
    Said { status: ConditionStatus::True, reason: String::new(), message: String::new() }
}

fn no(reason: &str, message: &str) -> Said {
    Said { status: ConditionStatus::False, reason: reason.to_owned(), message: message.to_owned() }
}

/// Sets a condition in its place; the time moves only with the status.
fn set(status: &mut PodStatus, kind: &str, said: Said, now: Timestamp) {
    let Said { status: holds, reason, message } = said;
    match status.conditions.iter_mut().find(|condition| condition.kind == kind) {
        Some(held) => {
            if held.status != holds {
                held.last_transition_time = Some(now);
            }
            (held.status, held.reason, held.message) = (holds, reason, message);
        }
        None => status.conditions.push(PodCondition {
            kind: kind.to_owned(),
            status: holds,
            reason,
            message,
            last_probe_time: None,
            last_transition_time: Some(now),
        }),
    }
}

fn container_status(entry: &Entry, container: &Container, wait: &str) -> pb::ContainerStatus {
    use pb::container_state::State as Said;
    let waiting = |reason: &str| {
        Some(Said::Waiting(pb::ContainerStateWaiting { reason: reason.to_owned(), message: String::new() }))
    };
    let mut said = pb::ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone(),
        ..Default::default()
    };
    let mut last = None;
    let mut state = waiting(wait);
    if let Some(track) = entry.track(&container.name) {
        said.ready = track.is_running() && !entry.is_stopping();
        said.restart_count = i32::try_from(track.restarts).unwrap_or(i32::MAX);
        said.container_id.clone_from(&track.id);
        last = track.last.as_ref();
        match &track.state {
            State::New | State::Starting => {}
            State::Running { since } => {
                state = Some(Said::Running(pb::ContainerStateRunning { started_at: Some(time(*since)) }));
            }
            State::Exited(exit) if track.is_backing_off && !entry.is_stopping() => {
                state = waiting("CrashLoopBackOff");
                last = Some(exit);
            }
            State::Exited(exit) => state = Some(Said::Terminated(terminated(exit))),
        }
    }
    said.state = Some(pb::ContainerState { state });
    said.last_state = last.map(|exit| pb::ContainerState { state: Some(Said::Terminated(terminated(exit))) });
    said
}

fn terminated(exit: &Exit) -> pb::ContainerStateTerminated {
    pb::ContainerStateTerminated {
        exit_code: exit.code,
        signal: exit.signal,
        reason: exit.reason.clone(),
        message: exit.message.clone(),
        started_at: exit.started_at.map(time),
        finished_at: exit.at.map(time),
    }
}

fn time(at: Timestamp) -> prost_types::Timestamp {
    // Both count seconds down and nanoseconds up before 1970; jiff's nanoseconds carry the sign.
    let (seconds, nanos) = (at.as_second(), at.subsec_nanosecond());
    if nanos < 0 {
        return prost_types::Timestamp { seconds: seconds - 1, nanos: nanos + 1_000_000_000 };
    }
    prost_types::Timestamp { seconds, nanos }
}
