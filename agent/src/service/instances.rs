//! Which instance of which container a call is about.

use muster_proto::name::Name;
use muster_proto::pb;
use tonic::Status;

use crate::runtime::{ContainerId, State, Workload};

/// A container as a caller names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) node: &'a str,
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) container: &'a str,
}

impl Wanted<'_> {
    /// Refuses a call that is meant for the agent of another node.
    pub(super) fn check_node(&self, own: &Name) -> Result<(), Status> {
        if self.node.is_empty() || self.node == own.as_str() {
            return Ok(());
        }
        Err(Status::failed_precondition(format!("this is the agent of node {own}, not of {}", self.node)))
    }

    /// The instances of the container that there are, the oldest first.
    pub(super) fn instances(&self, listed: Vec<Workload>) -> Result<Vec<Workload>, Status> {
        let Wanted { namespace, pod, container, .. } = *self;
        let is_its =
            |found: &Workload| found.pod_namespace.as_str() == namespace && found.pod_name.as_str() == pod;
        let mut of_pod: Vec<Workload> = listed.into_iter().filter(is_its).collect();
        if of_pod.is_empty() {
            return Err(Status::not_found(format!("no container of pod {namespace}/{pod} was started here")));
        }
        let mut names: Vec<&str> = of_pod.iter().map(|found| found.id.container.as_str()).collect();
        names.dedup();
        let name = match names.as_slice() {
            [only] if container.is_empty() => (*only).to_owned(),
            several if container.is_empty() => {
                let message =
                    format!("pod {namespace}/{pod} has several containers, name one: {}", several.join(", "));
                return Err(Status::invalid_argument(message));
            }
            _ => container.to_owned(),
        };
        of_pod.retain(|found| found.id.container == name);
        if of_pod.is_empty() {
            let message = format!("the container {name} of pod {namespace}/{pod} was not started here");
            return Err(Status::not_found(message));
        }
        of_pod.sort_by_key(|found| found.id.attempt);
        Ok(of_pod)
    }
}

/// The instance whose output a caller means: the current one, or the one before. Between two instances both are the last
/// one, as with kubectl.
pub(super) fn chosen(instances: &[Workload], previous: bool, is_waiting: bool) -> Option<&ContainerId> {
    let back = usize::from(previous && !is_waiting);
    let number = instances.len().checked_sub(1 + back)?;
    Some(&instances[number].id)
}

/// What comes after the output of an instance that was read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// There may be more of it, or another instance.
    Wait,
    /// The next instance.
    Instance(ContainerId),
    /// Nothing.
    End,
}

/// What comes after this instance, of those that there are now. `workload` is the pod as the agent sees it.
pub(super) fn next(instances: &[Workload], current: &ContainerId, workload: Option<&pb::Workload>) -> Next {
    let is_later = |found: &&Workload| found.id.pod == current.pod && found.id.attempt > current.attempt;
    if let Some(later) = instances.iter().find(is_later) {
        return Next::Instance(later.id.clone());
    }
    let Some(found) = instances.iter().find(|found| found.id == *current) else { return Next::End };
    let State::Exited(exit) = &found.state else { return Next::Wait };
    let Some(workload) = workload else { return Next::End };
    let is_main = workload.containers.iter().any(|status| status.name == current.container);
    match workload.phase.as_str() {
        "Succeeded" | "Failed" => Next::End,
        // An init container that has done its work is not started again.
        _ if !is_main && exit.code == 0 => Next::End,
        _ => Next::Wait,
    }
}

/// Whether a container waits for its next start.
pub(super) fn is_waiting(workload: Option<&pb::Workload>, container: &str) -> bool {
    let status = workload.and_then(|found| found.containers.iter().find(|status| status.name == container));
    let state = status.and_then(|status| status.state.as_ref()?.state.as_ref());
    matches!(state, Some(pb::container_state::State::Waiting(_)))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use muster_agent_core::testing::uid;

    use super::*;
    use crate::runtime::{Exit, ExitReason, Started};

    fn running(container: &str, attempt: u32) -> Workload {
        Workload {
            id: ContainerId { pod: uid("a"), container: container.to_owned(), attempt },
            pod_namespace: "default".parse().unwrap(),
            pod_name: "a".parse().unwrap(),
            cpus: Vec::new(),
            own_grace: None,
            is_this_boot: true,
            state: State::Running(Started { pid: 1, started_at: Timestamp::UNIX_EPOCH }),
        }
    }

    fn exited(container: &str, attempt: u32, code: i32) -> Workload {
        let (reason, at) = (ExitReason::Error, Timestamp::UNIX_EPOCH);
        let exit =
            Exit { code, signal: None, reason, message: String::new(), started_at: at, finished_at: at };
        Workload { state: State::Exited(exit), ..running(container, attempt) }
    }

    fn wanted(container: &str) -> Wanted<'_> {
        Wanted { node: "n1", namespace: "default", pod: "a", container }
    }

    #[test]
    fn a_container_need_not_be_named_if_it_is_the_only_one() {
        let one = vec![running("x", 1), exited("x", 0, 1)];
        let found = wanted("").instances(one.clone()).unwrap();
        assert_eq!(found.iter().map(|found| found.id.attempt).collect::<Vec<_>>(), [0, 1]);
        let two = [one.clone(), vec![running("y", 0)]].concat();
        let refused = wanted("").instances(two.clone()).unwrap_err();
        assert!(refused.message().contains("name one: x, y"), "{refused}");
        assert_eq!(wanted("y").instances(two).unwrap().len(), 1);
        let refused = wanted("z").instances(one.clone()).unwrap_err();
        assert!(refused.message().contains("container z of pod default/a"), "{refused}");
        let other = Wanted { pod: "b", ..wanted("") };
        assert_eq!(other.instances(one).unwrap_err().code(), tonic::Code::NotFound);
        let refused = wanted("").check_node(&"n2".parse().unwrap()).unwrap_err();
        assert!(refused.message().contains("agent of node n2, not of n1"), "{refused}");
    }

    #[test]
    fn the_previous_instance_is_the_one_before_unless_the_last_one_has_ended_and_another_is_to_come() {
        let instances = [exited("x", 3, 1), running("x", 4)];
        let attempt = |previous, is_waiting| chosen(&instances, previous, is_waiting).map(|id| id.attempt);
        assert_eq!((attempt(false, false), attempt(true, false)), (Some(4), Some(3)));
        assert_eq!((attempt(false, true), attempt(true, true)), (Some(4), Some(4)));
        assert_eq!(chosen(&instances[1..], true, false), None);
    }

    #[test]
    fn the_output_goes_on_until_the_pod_has_ended() {
        let workload = |phase: &str| pb::Workload {
            phase: phase.to_owned(),
            containers: vec![pb::ContainerStatus { name: "x".to_owned(), ..Default::default() }],
            ..Default::default()
        };
        let (alive, over) = (workload("Running"), workload("Failed"));
        let first = running("x", 0).id;
        for (instances, workload, expected) in [
            (vec![running("x", 0)], Some(&alive), Next::Wait),
            (vec![running("x", 0)], None, Next::Wait),
            (vec![exited("x", 0, 1)], Some(&alive), Next::Wait),
            (vec![exited("x", 0, 1)], Some(&over), Next::End),
            (vec![exited("x", 0, 1)], None, Next::End),
            (vec![exited("x", 0, 1), running("x", 1)], Some(&alive), Next::Instance(running("x", 1).id)),
            (vec![running("x", 2)], Some(&alive), Next::Instance(running("x", 2).id)),
            (vec![], Some(&alive), Next::End),
        ] {
            assert_eq!(next(&instances, &first, workload), expected, "{instances:?}");
        }
        let init = running("init", 0).id;
        assert_eq!(next(&[exited("init", 0, 0)], &init, Some(&alive)), Next::End);
        assert_eq!(next(&[exited("init", 0, 1)], &init, Some(&alive)), Next::Wait);
    }
}
