//! What becomes of a pod on a simulated machine. Pure.

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::pb;
use muster_proto::pb::container_state::State;
use muster_proto::pod::{Pod, PodCondition, PodPhase, PodStatus};

use super::fleet_spec::Blueprint;

/// What a machine that is up does next about a pod of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Say that it runs.
    Run,
    /// It was asked to go: say that it has ended.
    End,
    /// It has ended and was asked to go: the record may go.
    Remove,
}

/// `None` when all is said.
pub(super) fn next(pod: &Pod) -> Option<Step> {
    match (pod.meta.is_deleting(), pod.is_finished()) {
        (true, true) => Some(Step::Remove),
        (true, false) => Some(Step::End),
        (false, true) => None,
        // One that somebody declared unready while its machine was away runs on.
        (false, false) => (!pod.is_ready() || pod.status.phase != PodPhase::Running).then_some(Step::Run),
    }
}

/// The pod as it runs on that machine.
pub(super) fn running(pod: &Pod, machine: usize, now: Timestamp) -> Pod {
    let mut pod = pod.clone();
    let host = Blueprint::ip(machine).into();
    let status = &mut pod.status;
    status.phase = PodPhase::Running;
    status.observed_generation = pod.meta.generation;
    status.host_ip = Some(host);
    status.pod_ips = vec![host];
    status.start_time.get_or_insert(now);
    let since = pb::ContainerStateRunning { started_at: status.start_time.map(time) };
    for kind in ["Initialized", "ContainersReady", types::READY] {
        set(status, kind, ConditionStatus::True, "", now);
    }
    pod.status.container_statuses = containers(&pod, true, &State::Running(since));
    pod
}

/// The pod as it was stopped: simulated programs do as they are told.
pub(super) fn ended(pod: &Pod, now: Timestamp) -> Pod {
    let mut pod = pod.clone();
    let status = &mut pod.status;
    status.phase = PodPhase::Succeeded;
    status.observed_generation = pod.meta.generation;
    let exit = pb::ContainerStateTerminated {
        exit_code: 0,
        reason: "Completed".to_owned(),
        started_at: status.start_time.map(time),
        finished_at: Some(time(now)),
        ..pb::ContainerStateTerminated::default()
    };
    for kind in ["ContainersReady", types::READY] {
        set(status, kind, ConditionStatus::False, "PodCompleted", now);
    }
    pod.status.container_statuses = containers(&pod, false, &State::Terminated(exit));
    pod
}

fn containers(pod: &Pod, ready: bool, state: &State) -> Vec<pb::ContainerStatus> {
    let said = pod.spec.containers.iter().map(|container| pb::ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone(),
        ready,
        state: Some(pb::ContainerState { state: Some(state.clone()) }),
        ..pb::ContainerStatus::default()
    });
    said.collect()
}

fn set(status: &mut PodStatus, kind: &str, holds: ConditionStatus, reason: &str, now: Timestamp) {
    status.set_condition(PodCondition {
        kind: kind.to_owned(),
        status: holds,
        reason: reason.to_owned(),
        message: String::new(),
        last_probe_time: None,
        last_transition_time: Some(now),
    });
}

fn time(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_proto::meta::Metadata;
    use muster_proto::pod::{Container, PodSpec};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn pod() -> Pod {
        let meta = Metadata::new("default".parse().ok(), "a".parse().unwrap());
        let main = Container { name: "main".to_owned(), image: "none".to_owned(), ..Container::default() };
        let spec = PodSpec { containers: vec![main], ..PodSpec::default() };
        Pod { meta, spec, status: PodStatus::default() }
    }

    fn deleting(mut pod: Pod) -> Pod {
        pod.meta.deletion_timestamp = Some(NOW);
        pod
    }

    #[test]
    fn a_pod_runs_ends_when_asked_to_and_only_then_goes() {
        let runs = running(&pod(), 0, NOW);
        let mut declared_unready = runs.clone();
        set(&mut declared_unready.status, types::READY, ConditionStatus::False, "NodeNotReady", NOW);
        for (pod, expected, what) in [
            (pod(), Some(Step::Run), "new"),
            (runs.clone(), None, "running"),
            (declared_unready, Some(Step::Run), "declared unready"),
            (deleting(pod()), Some(Step::End), "asked to go before it began"),
            (deleting(runs.clone()), Some(Step::End), "asked to go"),
            (deleting(ended(&runs, NOW)), Some(Step::Remove), "ended"),
            (ended(&runs, NOW), None, "ended by itself"),
        ] {
            assert_eq!(next(&pod), expected, "{what}");
        }
    }

    #[test]
    fn what_is_said_of_a_pod_survives_the_schema() {
        for said in [running(&pod(), 3, NOW), ended(&running(&pod(), 3, NOW), NOW)] {
            assert_eq!(Pod::try_from(pb::Pod::from(said.clone())).unwrap(), said);
        }
        assert!(running(&pod(), 3, NOW).is_ready());
        assert!(!ended(&running(&pod(), 3, NOW), NOW).is_ready());
    }
}
