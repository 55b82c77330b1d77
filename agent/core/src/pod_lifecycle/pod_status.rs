//! A pod's status: phase, conditions and containers, derived from its state.

use std::time::Duration;

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::pb;
use muster_proto::pod::{Container, Pod, PodCondition, PodPhase, PodStatus};

use super::container::{ContainerState, Exit, State};
use super::pod_state::{Admission, Init, PodState};
use super::pod_states::PodStates;
use muster_proto::time::Now;

const INITIALIZED: &str = "Initialized";
const CONTAINERS_READY: &str = "ContainersReady";

pub(super) fn is_ready(status: &PodStatus) -> bool {
    let ready = status.conditions.iter().find(|condition| condition.kind == types::READY);
    ready.is_some_and(|ready| ready.status == ConditionStatus::True)
}

/// The status to post, if it differs from the store's.
///
/// A status that was posted and came back different is not posted again until the record changes: the store may
/// normalise a field.
pub(super) fn wanted(pod_state: &PodState, pod_states: &PodStates, now: Now) -> Option<PodStatus> {
    let pod = pod_state.pod.as_ref().filter(|_| pod_state.stop_causes.vanished.is_none())?;
    let (version, recorded) = pod_state.recorded()?;
    let status = of(pod_state, pod, pod_states, now);
    let was_posted =
        pod_state.posted.as_ref().is_some_and(|(at, posted)| *at == version && *posted == status);
    (status != *recorded && !was_posted).then_some(status)
}

/// The status that follows from the pod's state.
pub(super) fn of(pod_state: &PodState, pod: &Pod, pod_states: &PodStates, now: Now) -> PodStatus {
    let mut status = pod.status.clone();
    status.observed_generation = pod.meta.generation;
    status.phase = phase(pod_state, pod);
    // Of a pod that finished before this agent started, the record knows more than the agent.
    let is_known =
        pod_state.admission == Admission::Admitted && !(pod.is_finished() && pod_state.containers.is_empty());
    if is_known {
        status.start_time.get_or_insert(now.wall);
        addresses(&mut status, pod, pod_states);
    }
    if pod_state.is_stopped() && !pod.is_finished() {
        let rejected = match &pod_state.admission {
            Admission::Rejected(rejection) => Some((&rejection.reason, &rejection.message)),
            _ => None,
        };
        let ended =
            pod_state.termination.as_ref().map(|termination| (&termination.reason, &termination.message));
        if let Some((reason, message)) = ended.or(rejected) {
            status.reason.clone_from(reason);
            status.message.clone_from(message);
        }
    }
    let is_initialized = pod_state.init() == Init::Done;
    let describe = |containers: &[Container], wait| {
        containers.iter().map(|container| container_status(pod_state, container, wait)).collect()
    };
    if is_known {
        let wait = if is_initialized { "ContainerCreating" } else { "PodInitializing" };
        status.container_statuses = describe(&pod.spec.containers, wait);
        status.init_container_statuses = describe(&pod.spec.init_containers, "PodInitializing");
    }
    conditions(&mut status, pod_state, pod, now.wall);
    status
}

fn addresses(status: &mut PodStatus, pod: &Pod, pod_states: &PodStates) {
    let Some(host) = pod_states.node.as_ref().or(pod_states.local.as_ref()).and_then(|node| node.host_ip)
    else {
        return;
    };
    status.host_ip = Some(host);
    if pod.spec.host_network {
        status.pod_ips = vec![host];
    }
}

fn phase(pod_state: &PodState, pod: &Pod) -> PodPhase {
    if pod.is_finished() {
        return pod.status.phase; // A final phase is never changed.
    }
    if pod_state.is_stopped() {
        let went_well = pod_state.admission == Admission::Admitted
            && pod_state.termination.is_none()
            && pod_state.ended_well();
        return if went_well { PodPhase::Succeeded } else { PodPhase::Failed };
    }
    let has_run = |container: &Container| {
        pod_state
            .container_state(&container.name)
            .is_some_and(|container_state| !matches!(container_state.state, State::New | State::Starting))
    };
    if pod.status.phase == PodPhase::Running || pod.spec.containers.iter().all(has_run) {
        PodPhase::Running
    } else {
        PodPhase::Pending
    }
}

fn conditions(status: &mut PodStatus, pod_state: &PodState, pod: &Pod, now: Timestamp) {
    let sidecars = pod.spec.init_containers.iter().filter(|init| init.sidecar);
    let is_unready = |container: &&Container| {
        !pod_state.container_state(&container.name).is_some_and(ContainerState::is_running)
    };
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
        ConditionValue { status: ConditionStatus::True, .. } if pod_state.is_stopping() => {
            no("Terminating", "the pod is being stopped")
        }
        _ => containers.clone(),
    };
    let initialized = match pod_state.init() {
        Init::Done if pod_state.admission == Admission::Admitted => yes(),
        _ => no("ContainersNotInitialized", ""),
    };
    // The Initialized condition of a finished pod stays: a restarted agent cannot know better.
    if !pod.is_finished() {
        set(status, INITIALIZED, initialized, now);
    }
    set(status, CONTAINERS_READY, containers, now);
    set(status, types::READY, ready, now);
    if let Some(termination) = pod_state.termination.as_ref().filter(|termination| termination.is_disruption)
    {
        let value = ConditionValue {
            reason: "TerminationByKubelet".to_owned(),
            message: termination.message.clone(),
            ..yes()
        };
        set(status, types::DISRUPTION_TARGET, value, now);
    }
}

#[derive(Clone)]
struct ConditionValue {
    status: ConditionStatus,
    reason: String,
    message: String,
}

fn yes() -> ConditionValue {
    ConditionValue { status: ConditionStatus::True, reason: String::new(), message: String::new() }
}

fn no(reason: &str, message: &str) -> ConditionValue {
    ConditionValue { status: ConditionStatus::False, reason: reason.to_owned(), message: message.to_owned() }
}

/// Sets a condition; the transition time changes only with the status.
fn set(status: &mut PodStatus, kind: &str, value: ConditionValue, now: Timestamp) {
    let ConditionValue { status: wanted, reason, message } = value;
    match status.conditions.iter_mut().find(|condition| condition.kind == kind) {
        Some(held) => {
            if held.status != wanted {
                held.last_transition_time = Some(now);
            }
            (held.status, held.reason, held.message) = (wanted, reason, message);
        }
        None => status.conditions.push(PodCondition {
            kind: kind.to_owned(),
            status: wanted,
            reason,
            message,
            last_probe_time: None,
            last_transition_time: Some(now),
        }),
    }
}

fn container_status(pod_state: &PodState, container: &Container, wait: &str) -> pb::ContainerStatus {
    use pb::container_state::State as Said;
    let waiting = |reason: &str| {
        Some(Said::Waiting(pb::ContainerStateWaiting { reason: reason.to_owned(), message: String::new() }))
    };
    let mut shown = pb::ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone(),
        ..Default::default()
    };
    let mut last = None;
    let mut state = waiting(wait);
    if let Some(container_state) = pod_state.container_state(&container.name) {
        shown.ready = container_state.is_running() && !pod_state.is_stopping();
        shown.restart_count = i32::try_from(container_state.restarts).unwrap_or(i32::MAX);
        shown.container_id.clone_from(&container_state.id);
        last = container_state.last.as_ref();
        match &container_state.state {
            State::New | State::Starting => {}
            State::Running { since } => {
                state = Some(Said::Running(pb::ContainerStateRunning { started_at: Some(time(*since)) }));
            }
            State::Exited(exit) if container_state.is_backing_off && !pod_state.is_stopping() => {
                state = Some(Said::Waiting(pb::ContainerStateWaiting {
                    reason: "CrashLoopBackOff".to_owned(),
                    message: container_state
                        .back_off
                        .map(|delay| back_off(&container.name, delay))
                        .unwrap_or_default(),
                }));
                last = Some(exit);
            }
            State::Exited(exit) => state = Some(Said::Terminated(terminated(exit))),
        }
    }
    shown.state = Some(pb::ContainerState { state });
    shown.last_state =
        last.map(|exit| pb::ContainerState { state: Some(Said::Terminated(terminated(exit))) });
    shown
}

/// The delay in the kubelet's words, and its end, which stays as it is until then.
fn back_off(container: &str, (delay, until): (Duration, Timestamp)) -> String {
    let until = until.round(jiff::Unit::Second).unwrap_or(until);
    format!(
        "back-off {}s restarting failed container {container}: the next start is at {until}",
        delay.as_secs()
    )
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
    // protobuf wants nanoseconds that count up, also before 1970; jiff's have the sign of the seconds.
    let (seconds, nanos) = (at.as_second(), at.subsec_nanosecond());
    if nanos < 0 {
        return prost_types::Timestamp { seconds: seconds - 1, nanos: nanos + 1_000_000_000 };
    }
    prost_types::Timestamp { seconds, nanos }
}
