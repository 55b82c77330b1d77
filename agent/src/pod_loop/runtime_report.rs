//! Converts the runtime's list into reports for the pod states.

use std::collections::BTreeMap;

use muster_agent_core::pod_lifecycle::{ContainerReport, Exit, PodReport, ReportedState};
use muster_proto::name::Uid;

use crate::runtime::{self, State, Workload};

/// The newest attempt of each container.
pub(super) fn of(listed: Vec<Workload>) -> BTreeMap<Uid, PodReport> {
    let mut newest: BTreeMap<(Uid, String), u32> = BTreeMap::new();
    for workload in &listed {
        let attempt = newest.entry((workload.id.pod, workload.id.container.clone())).or_default();
        *attempt = workload.id.attempt.max(*attempt);
    }
    let mut reports: BTreeMap<Uid, PodReport> = BTreeMap::new();
    for workload in listed {
        let id = workload.id;
        if newest.get(&(id.pod, id.container.clone())) == Some(&id.attempt) {
            let report = reports.entry(id.pod).or_default();
            report.own_grace = report.own_grace.max(workload.own_grace);
            let is_this_boot = workload.is_this_boot;
            let found =
                ContainerReport { attempt: id.attempt, is_this_boot, observed: observed(workload.state) };
            report.containers.insert(id.container, found);
        }
    }
    reports
}

fn observed(state: State) -> ReportedState {
    match state {
        State::Starting => ReportedState::Waiting,
        State::Running(started) => {
            ReportedState::Running { pid: started.pid.unsigned_abs(), since: started.started_at }
        }
        State::Exited(exit) => ReportedState::Exited(exit_report(exit)),
    }
}

fn exit_report(exit: runtime::Exit) -> Exit {
    Exit {
        code: exit.code,
        signal: exit.signal.unwrap_or_default(),
        reason: exit.reason.as_str().to_owned(),
        message: exit.message,
        started_at: Some(exit.started_at),
        at: Some(exit.finished_at),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::runtime::{ContainerId, ExitReason, Started};
    use muster_agent_core::testing::uid;

    fn workload(attempt: u32, state: State) -> Workload {
        Workload {
            id: ContainerId { pod: uid("a"), container: "main".to_owned(), attempt },
            pod_namespace: "default".parse().unwrap(),
            pod_name: "a".parse().unwrap(),
            cpus: Vec::new(),
            own_grace: Some(Duration::from_secs(7)),
            is_this_boot: true,
            state,
        }
    }

    fn exit(reason: ExitReason) -> State {
        let (started_at, finished_at) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(7).unwrap());
        State::Exited(runtime::Exit {
            code: 137,
            signal: Some(9),
            reason,
            message: "more of it".to_owned(),
            started_at,
            finished_at,
        })
    }

    #[test]
    fn an_exit_is_reported_with_the_reason_of_a_container_status() {
        for (reason, word) in [
            (ExitReason::Completed, "Completed"),
            (ExitReason::Error, "Error"),
            (ExitReason::OutOfMemory, "OOMKilled"),
            (ExitReason::NotStarted, "StartError"),
            (ExitReason::Unknown, "ContainerStatusUnknown"),
        ] {
            let report = &of(vec![workload(0, exit(reason))])[&uid("a")].containers["main"];
            let expected = Exit {
                code: 137,
                signal: 9,
                reason: word.to_owned(),
                message: "more of it".to_owned(),
                started_at: Some(Timestamp::UNIX_EPOCH),
                at: Timestamp::from_second(7).ok(),
            };
            assert_eq!(report.observed, ReportedState::Exited(expected));
        }
    }

    #[test]
    fn the_newest_attempt_is_reported() {
        let running = State::Running(Started { pid: 7, started_at: Timestamp::UNIX_EPOCH });
        let listed =
            vec![workload(0, exit(ExitReason::Error)), workload(2, running), workload(1, State::Starting)];
        let report = &of(listed)[&uid("a")];
        assert_eq!(report.own_grace, Some(Duration::from_secs(7)));
        let report = &report.containers["main"];
        let observed = ReportedState::Running { pid: 7, since: Timestamp::UNIX_EPOCH };
        assert_eq!(*report, ContainerReport { attempt: 2, is_this_boot: true, observed });
    }
}
