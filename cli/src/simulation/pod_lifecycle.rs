//! The lifecycle of a pod on a simulated node. Pure.

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::pb;
use muster_proto::pb::container_state::State;
use muster_proto::pod::{Pod, PodCondition, PodPhase, PodStatus};

use super::fleet_spec::FleetSpec;

/// The next step of an agent for one of its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Report that the pod runs.
    ReportRunning,
    /// The pod is being deleted: report that its containers have terminated.
    ReportTerminated,
    /// The pod is being deleted and has terminated: delete its record.
    DeleteRecord,
}

/// The next step; `None` if the store's record is up to date.
pub(super) fn next_step(pod: &Pod) -> Option<Step> {
    match (pod.meta.is_deleting(), pod.is_finished()) {
        (true, true) => Some(Step::DeleteRecord),
        (true, false) => Some(Step::ReportTerminated),
        (false, true) => None,
        // A pod that the controller marked not ready while its node was Unknown still runs.
        (false, false) => {
            (!pod.is_ready() || pod.status.phase != PodPhase::Running).then_some(Step::ReportRunning)
        }
    }
}

/// The pod with the status of a running pod on the node with that index.
pub(super) fn running(pod: &Pod, node_index: usize, now: Timestamp) -> Pod {
    let mut pod = pod.clone();
    let host = FleetSpec::ip(node_index).into();
    let status = &mut pod.status;
    status.phase = PodPhase::Running;
    status.observed_generation = pod.meta.generation;
    status.host_ip = Some(host);
    status.pod_ips = vec![host];
    status.start_time.get_or_insert(now);
    let since = pb::ContainerStateRunning { started_at: status.start_time.map(time) };
    for kind in ["Initialized", "ContainersReady", types::READY] {
        set_condition(status, kind, ConditionStatus::True, "", now);
    }
    pod.status.container_statuses = containers(&pod, true, &State::Running(since));
    pod
}

/// The pod with the status of a pod that has terminated. Simulated containers exit with code 0.
pub(super) fn terminated(pod: &Pod, now: Timestamp) -> Pod {
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
        set_condition(status, kind, ConditionStatus::False, "PodCompleted", now);
    }
    pod.status.container_statuses = containers(&pod, false, &State::Terminated(exit));
    pod
}

fn containers(pod: &Pod, ready: bool, state: &State) -> Vec<pb::ContainerStatus> {
    let statuses = pod.spec.containers.iter().map(|container| pb::ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone(),
        ready,
        state: Some(pb::ContainerState { state: Some(state.clone()) }),
        ..pb::ContainerStatus::default()
    });
    statuses.collect()
}

fn set_condition(status: &mut PodStatus, kind: &str, value: ConditionStatus, reason: &str, now: Timestamp) {
    status.set_condition(PodCondition {
        kind: kind.to_owned(),
        status: value,
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
    fn a_deleted_pod_terminates_before_its_record_is_deleted() {
        let runs = running(&pod(), 0, NOW);
        let mut marked_not_ready = runs.clone();
        set_condition(
            &mut marked_not_ready.status,
            types::READY,
            ConditionStatus::False,
            "NodeNotReady",
            NOW,
        );
        for (pod, expected, what) in [
            (pod(), Some(Step::ReportRunning), "new"),
            (runs.clone(), None, "running"),
            (marked_not_ready, Some(Step::ReportRunning), "marked not ready"),
            (deleting(pod()), Some(Step::ReportTerminated), "deleted before it started"),
            (deleting(runs.clone()), Some(Step::ReportTerminated), "deleted while running"),
            (deleting(terminated(&runs, NOW)), Some(Step::DeleteRecord), "terminated after its deletion"),
            (terminated(&runs, NOW), None, "terminated without a deletion"),
        ] {
            assert_eq!(next_step(&pod), expected, "{what}");
        }
    }

    #[test]
    fn reported_statuses_pass_the_schemas_checks() {
        for pod in [running(&pod(), 3, NOW), terminated(&running(&pod(), 3, NOW), NOW)] {
            assert_eq!(Pod::try_from(pb::Pod::from(pod.clone())).unwrap(), pod);
        }
        assert!(running(&pod(), 3, NOW).is_ready());
        assert!(!terminated(&running(&pod(), 3, NOW), NOW).is_ready());
    }
}
