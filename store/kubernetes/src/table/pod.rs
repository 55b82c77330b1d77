//! The cells of a pod. Its status is what the first container that is not well says, not only the phase.

use jiff::Timestamp;
use muster_proto::pb;
use muster_proto::pb::container_state::State;
use serde_json::{Value, json};

use super::{created, moment, or};
use crate::age::age;

pub(super) fn cells(pod: &pb::Pod, now: Timestamp) -> Vec<Value> {
    let none = (pb::Metadata::default(), pb::PodSpec::default(), pb::PodStatus::default());
    let meta = pod.metadata.as_ref().unwrap_or(&none.0);
    let spec = pod.spec.as_ref().unwrap_or(&none.1);
    let status = pod.status.as_ref().unwrap_or(&none.2);
    let Containers { ready, total } = count(spec, status);
    vec![
        meta.name.as_str().into(),
        format!("{ready}/{total}").into(),
        word(meta, spec, status).into(),
        restarts(status, now).into(),
        created(meta, now),
        or(&status.pod_ip, "<none>"),
        or(&spec.node_name, "<none>"),
        "<none>".into(),
        "<none>".into(),
    ]
}

/// Marks the row of a pod that has ended.
pub(super) fn row_conditions(pod: &pb::Pod) -> Option<Value> {
    let status = pod.status.as_ref()?;
    let reason @ ("Succeeded" | "Failed") = status.phase.as_str() else { return None };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason,
        "message": "The pod has completed successfully or failed and will not restart."}]))
}

struct Containers {
    ready: usize,
    total: usize,
}

fn is_sidecar(container: &pb::Container) -> bool {
    container.restart_policy == "Always"
}

fn count(spec: &pb::PodSpec, status: &pb::PodStatus) -> Containers {
    let sidecars = || spec.init_containers.iter().filter(|container| is_sidecar(container));
    let is_up = |status: &&pb::ContainerStatus| {
        let state = status.state.as_ref().and_then(|state| state.state.as_ref());
        status.ready && matches!(state, Some(State::Running(_)))
    };
    let ready_sidecars = status
        .init_container_statuses
        .iter()
        .filter(|status| sidecars().any(|container| container.name == status.name))
        .filter(is_up);
    Containers {
        ready: status.container_statuses.iter().filter(is_up).count() + ready_sidecars.count(),
        total: spec.containers.len() + sidecars().count(),
    }
}

fn restarts(status: &pb::PodStatus, now: Timestamp) -> String {
    let all = || status.container_statuses.iter().chain(&status.init_container_statuses);
    let count: i64 = all().map(|container| i64::from(container.restart_count)).sum();
    let finished = all().filter_map(|container| match container.last_state.as_ref()?.state.as_ref()? {
        State::Terminated(terminated) => terminated.finished_at.map(|time| time.seconds),
        _ => None,
    });
    match moment(finished.max()) {
        Some(last) if count > 0 => format!("{count} ({} ago)", age(Some(last), now)),
        _ => count.to_string(),
    }
}

/// The word under STATUS.
fn word(meta: &pb::Metadata, spec: &pb::PodSpec, status: &pb::PodStatus) -> String {
    let is_terminal = matches!(status.phase.as_str(), "Succeeded" | "Failed");
    if meta.deletion_timestamp.is_some() {
        if status.reason == "NodeLost" {
            return "Unknown".to_owned();
        }
        if !is_terminal {
            return "Terminating".to_owned();
        }
    }
    let by_phase = || match status.reason.as_str() {
        "" => gated(status).unwrap_or_else(|| status.phase.clone()),
        reason => reason.to_owned(),
    };
    by_init_containers(spec, status).or_else(|| by_containers(status)).unwrap_or_else(by_phase)
}

fn gated(status: &pb::PodStatus) -> Option<String> {
    let scheduled = status.conditions.iter().find(|condition| condition.r#type == "PodScheduled")?;
    (scheduled.reason == "SchedulingGated").then(|| scheduled.reason.clone())
}

fn by_init_containers(spec: &pb::PodSpec, status: &pb::PodStatus) -> Option<String> {
    for (i, container) in status.init_container_statuses.iter().enumerate() {
        let is_sidecar =
            spec.init_containers.iter().any(|init| init.name == container.name && is_sidecar(init));
        let init = match container.state.as_ref().and_then(|state| state.state.as_ref()) {
            Some(State::Terminated(terminated)) if terminated.exit_code == 0 => continue,
            Some(State::Running(_)) if is_sidecar => continue,
            Some(State::Terminated(terminated)) => ended(terminated),
            Some(State::Waiting(waiting)) if !matches!(waiting.reason.as_str(), "" | "PodInitializing") => {
                waiting.reason.clone()
            }
            _ => format!("{i}/{}", spec.init_containers.len()),
        };
        return Some(format!("Init:{init}"));
    }
    None
}

fn ended(terminated: &pb::ContainerStateTerminated) -> String {
    match (terminated.reason.as_str(), terminated.signal) {
        ("", 0) => format!("ExitCode:{}", terminated.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// The first container that does not run decides.
fn by_containers(status: &pb::PodStatus) -> Option<String> {
    let mut word = None;
    let mut runs = false;
    for container in status.container_statuses.iter().rev() {
        match container.state.as_ref().and_then(|state| state.state.as_ref()) {
            Some(State::Waiting(waiting)) if !waiting.reason.is_empty() => {
                word = Some(waiting.reason.clone());
            }
            Some(State::Terminated(terminated)) => word = Some(ended(terminated)),
            Some(State::Running(_)) if container.ready => runs = true,
            _ => {}
        }
    }
    if word.as_deref() == Some("Completed") && runs {
        let is_ready = status
            .conditions
            .iter()
            .any(|condition| condition.r#type == "Ready" && condition.status == "True");
        return Some(if is_ready { "Running" } else { "NotReady" }.to_owned());
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(state: State) -> Option<pb::ContainerState> {
        Some(pb::ContainerState { state: Some(state) })
    }

    fn waiting(reason: &str) -> pb::ContainerStatus {
        let state =
            state(State::Waiting(pb::ContainerStateWaiting { reason: reason.into(), ..Default::default() }));
        pb::ContainerStatus { name: "c".into(), state, ..Default::default() }
    }

    fn terminated(reason: &str, exit_code: i32, signal: i32) -> pb::ContainerStatus {
        let ended =
            pb::ContainerStateTerminated { reason: reason.into(), exit_code, signal, ..Default::default() };
        pb::ContainerStatus { name: "c".into(), state: state(State::Terminated(ended)), ..Default::default() }
    }

    fn running() -> pb::ContainerStatus {
        let state = state(State::Running(pb::ContainerStateRunning::default()));
        pb::ContainerStatus { name: "c".into(), ready: true, state, ..Default::default() }
    }

    #[test]
    fn the_status_of_a_pod_is_what_kubectl_prints() {
        let ready = pb::PodCondition { r#type: "Ready".into(), status: "True".into(), ..Default::default() };
        for (containers, init, conditions, deleting, expected) in [
            (vec![], vec![], vec![], false, "Pending"),
            (vec![running()], vec![], vec![], false, "Pending"),
            (vec![waiting("CrashLoopBackOff"), running()], vec![], vec![], false, "CrashLoopBackOff"),
            (vec![terminated("", 3, 0), waiting("Later")], vec![], vec![], false, "ExitCode:3"),
            (vec![terminated("", 137, 9)], vec![], vec![], false, "Signal:9"),
            (vec![terminated("Completed", 0, 0)], vec![], vec![], false, "Completed"),
            (vec![terminated("Completed", 0, 0), running()], vec![], vec![ready.clone()], false, "Running"),
            (vec![terminated("Completed", 0, 0), running()], vec![], vec![], false, "NotReady"),
            (
                vec![waiting("PodInitializing")],
                vec![terminated("", 0, 0), waiting("")],
                vec![],
                false,
                "Init:1/2",
            ),
            (vec![], vec![terminated("", 2, 0)], vec![], false, "Init:ExitCode:2"),
            (vec![], vec![waiting("ErrImagePull")], vec![], false, "Init:ErrImagePull"),
            (vec![running()], vec![], vec![ready.clone()], true, "Terminating"),
        ] {
            let init_containers = vec![pb::Container::default(); 2];
            let spec = pb::PodSpec { init_containers, ..Default::default() };
            let status = pb::PodStatus {
                phase: "Pending".into(),
                container_statuses: containers,
                init_container_statuses: init,
                conditions,
                ..Default::default()
            };
            let deletion_timestamp = deleting.then(Default::default);
            let meta = pb::Metadata { deletion_timestamp, ..Default::default() };
            assert_eq!(word(&meta, &spec, &status), expected, "{status:?}");
        }
    }

    #[test]
    fn restarts_are_counted_and_the_last_one_is_dated() {
        let mut container = running();
        container.restart_count = 2;
        let now = Timestamp::from_second(400).expect("a time");
        let mut status = pb::PodStatus { container_statuses: vec![container.clone()], ..Default::default() };
        assert_eq!(restarts(&status, now), "2");
        container.last_state = terminated("", 1, 0).state;
        if let Some(State::Terminated(ended)) =
            container.last_state.as_mut().and_then(|last| last.state.as_mut())
        {
            ended.finished_at = Some(Default::default());
        }
        status.container_statuses = vec![container];
        assert_eq!(restarts(&status, now), "2 (6m40s ago)");
    }
}
