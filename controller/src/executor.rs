//! Performs one planned action with one or more calls, and returns its outcome.

use std::sync::Arc;

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::fence::Fence;
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::{Pod, PodCondition, PodPhase};
use muster_rpc::clock::SharedClock;
use muster_store_client::{ClientError, DeleteOptions, EvictOptions, Preconditions, StoreClient};

use crate::cloud::client::CloudClient;
use crate::leader_election::Refusals;
use muster_controller_core::plan::{Action, Answer, EndMark, Failure, Outcome, PlannedAction, Subject};

/// The clients that actions are performed with, for one term.
#[derive(Clone)]
pub struct Executor {
    /// Its writes carry the fence of the term, if there is one.
    pub client: StoreClient,
    /// The fence of the term, and where to report that the store refused it.
    pub fence: Option<(Fence, Refusals)>,
    /// `None` without a cloud plug-in.
    pub cloud: Option<CloudClient>,
    pub clock: SharedClock,
}

impl Executor {
    /// Performs the action, logs it and returns its outcome.
    pub async fn perform(self: Arc<Self>, planned: PlannedAction) -> Outcome {
        let PlannedAction { controller, subject, action, why, causes: _ } = planned;
        let name = action.name();
        let result = self.call(&subject, action).await;
        match &result {
            Ok(_) => tracing::info!(%subject, action = name, %why, "done"),
            Err(Failure::Conflict | Failure::Gone) => {
                tracing::debug!(%subject, action = name, %why, "obsolete: the record has changed or is gone");
            }
            Err(failure) => tracing::warn!(%subject, action = name, %why, %failure, "failed"),
        }
        Outcome { controller, subject, result }
    }

    async fn call(&self, subject: &Subject, action: Action) -> Result<Answer, Failure> {
        let client = &self.client;
        match (action, subject) {
            (Action::AskCloud { question, provider_id }, Subject::Node(name, _)) => match &self.cloud {
                Some(cloud) => return cloud.ask(question, name, &provider_id).await,
                None => return Err(Failure::Refused("no cloud plug-in is configured".to_owned())),
            },
            (Action::EndPod { mark, grace_period_seconds }, Subject::Pod(key, _)) => {
                if let Some(mark) = mark {
                    self.write_end_mark(key, subject, &mark).await?;
                }
                let options = DeleteOptions { preconditions: same_uid(subject), grace_period_seconds };
                client.delete::<Pod>(key, options).await.map(answer_pod)
            }
            (Action::UpdateNode(node), _) => client.update(*node).await.map(answer_node),
            (Action::UpdateNodeStatus(node), _) => client.update_status(*node).await.map(answer_node),
            (Action::UpdatePodStatus(pod), _) => client.update_status(*pod).await.map(answer_pod),
            (Action::DeleteNode { version }, Subject::Node(name, _)) => {
                let preconditions = Preconditions { resource_version: Some(version), ..same_uid(subject) };
                let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
                client.delete::<Node>(&Key::node(name.clone()), options).await.map(answer_node)
            }
            (Action::ReadNode, Subject::Node(name, _)) => {
                client.get(&Key::node(name.clone())).await.map(answer_node)
            }
            (Action::ReadLease, Subject::Lease(key)) => client.get(key).await.map(answer_lease),
            (Action::WriteLease(lease), _) => match lease.meta.resource_version {
                0 => client.create(*lease).await.map(answer_lease),
                _ => client.update(*lease).await.map(answer_lease),
            },
            (Action::EvictPod { grace_period_seconds }, Subject::Pod(key, _)) => {
                let delete = DeleteOptions { preconditions: same_uid(subject), grace_period_seconds };
                client.evict(key, EvictOptions { delete, dry_run: false }).await.map(answer_pod)
            }
            (Action::BindPod { node }, Subject::Pod(key, _)) => {
                client.bind(key, &node, same_uid(subject)).await.map(answer_pod)
            }
            (action, subject) => {
                return Err(Failure::Refused(format!("{} is no action for {subject}", action.name())));
            }
        }
        .map_err(|error| self.failure(error))
    }

    /// Writes to a pod's status why it is deleted, unless the status says so already.
    async fn write_end_mark(&self, key: &Key, subject: &Subject, mark: &EndMark) -> Result<(), Failure> {
        let pod: Pod = self.client.get(key).await.map_err(|error| self.failure(error))?;
        if &Subject::of_pod(&pod) != subject {
            return Err(Failure::Gone);
        }
        if let Some(pod) = with_end_mark(&pod, mark, self.clock.wall()) {
            self.client.update_status(pod).await.map_err(|error| self.failure(error))?;
        }
        Ok(())
    }

    /// What an error means for the controller that planned the action.
    fn failure(&self, error: ClientError) -> Failure {
        if let (ClientError::Fenced(_), Some((fence, refusals))) = (&error, &self.fence) {
            refusals.report(fence);
        }
        match error {
            ClientError::Conflict(_) | ClientError::AlreadyExists(_) => Failure::Conflict,
            ClientError::NotFound(_) => Failure::Gone,
            ClientError::BudgetExhausted { message, retry_after } => Failure::Budget { message, retry_after },
            ClientError::Unavailable(_) | ClientError::DeadlineExceeded => {
                Failure::Unknown(error.to_string())
            }
            ClientError::TooBusy { .. } | ClientError::FutureVersion { .. } | ClientError::Fenced(_) => {
                Failure::Later(error.to_string())
            }
            other => Failure::Refused(other.to_string()),
        }
    }
}

/// The pod with the reason of its deletion in its status; `None` if the status says so already.
fn with_end_mark(pod: &Pod, mark: &EndMark, now: jiff::Timestamp) -> Option<Pod> {
    let mut next = pod.clone();
    let is_marked =
        next.condition(types::DISRUPTION_TARGET).is_some_and(|held| held.status == ConditionStatus::True);
    if !is_marked {
        next.status.conditions.retain(|held| held.kind != types::DISRUPTION_TARGET);
        next.status.conditions.push(PodCondition {
            kind: types::DISRUPTION_TARGET.to_owned(),
            status: ConditionStatus::True,
            reason: mark.reason.clone(),
            message: mark.message.clone(),
            last_probe_time: None,
            last_transition_time: Some(now),
        });
    }
    if mark.fail && !next.is_finished() {
        next.status.phase = PodPhase::Failed;
    }
    (next != *pod).then_some(next)
}

/// The write applies to the record with this uid, not to a later one of the same name.
fn same_uid(subject: &Subject) -> Preconditions {
    let uid = match subject {
        Subject::Node(_, uid) | Subject::Pod(_, uid) => Some(*uid),
        Subject::Lease(_) => None,
    };
    Preconditions { uid, resource_version: None }
}

fn answer_node(node: Node) -> Answer {
    Answer::Node(Box::new(node))
}

fn answer_pod(pod: Pod) -> Answer {
    Answer::Pod(Box::new(pod))
}

fn answer_lease(lease: Lease) -> Answer {
    Answer::Lease(Box::new(lease))
}

#[cfg(test)]
mod tests {
    use muster_proto::condition::ConditionStatus::True;

    use super::*;
    use muster_controller_core::fixtures::{at, pod};

    #[test]
    fn the_reason_of_a_deletion_is_written_once() {
        let mark = EndMark { reason: "Why".to_owned(), message: "So".to_owned(), fail: false };
        let first = with_end_mark(&pod("p").running(True).build(), &mark, at(1).wall).unwrap();
        let condition = first.condition(types::DISRUPTION_TARGET).unwrap();
        assert_eq!((condition.status, condition.reason.as_str()), (True, "Why"));
        assert_eq!(first.status.phase, PodPhase::Running);
        assert_eq!(with_end_mark(&first, &mark, at(2).wall), None, "the status says so already");
    }

    #[test]
    fn a_pod_without_an_agent_to_report_fails_unless_it_is_finished() {
        let mark = EndMark { reason: "Why".to_owned(), message: String::new(), fail: true };
        for (phase, expected) in [
            (PodPhase::Pending, PodPhase::Failed),
            (PodPhase::Running, PodPhase::Failed),
            (PodPhase::Succeeded, PodPhase::Succeeded),
        ] {
            let ended = with_end_mark(&pod("p").phase(phase).build(), &mark, at(1).wall).unwrap();
            assert_eq!(ended.status.phase, expected);
        }
    }
}
