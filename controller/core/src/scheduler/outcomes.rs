//! The outcomes of the scheduler's actions.

use muster_proto::event::EventType;
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::time::Mono;
use muster_proto::time::Now;

use super::pending_pods::PendingState;
use super::queue::ClassId;
use super::{FAILED_SCHEDULING, Scheduler};
use crate::plan::{Answer, Failure, Outcome, Subject, event};
use crate::world::World;

impl Scheduler {
    pub fn settle(&mut self, outcome: &Outcome, world: &World, now: Now) {
        let Subject::Pod(key, uid) = &outcome.subject else { return };
        let is_of_binding = self.unanswered.get(key) == Some(uid);
        if is_of_binding {
            self.unanswered.remove(key);
        } else if let Some(victim) = self.victims.get(key, *uid).cloned() {
            return self.settle_victim(key, &victim, &outcome.result, now);
        }
        // A pod that is no longer pending was bound by this action: its record came before the outcome.
        let pending = self.pending_pods.get(key, *uid);
        if pending.is_none_or(|pod| matches!(pod.state, PendingState::Binding { .. }))
            && let Ok(Answer::Pod(pod)) = &outcome.result
            && let Some(node) = &pod.spec.node_name
        {
            let message = format!("Successfully assigned {key} to {node}");
            self.events.push(event(&**pod, EventType::Normal, "Scheduled", message));
        }
        let Some(pending) = pending else { return };
        match pending.state.clone() {
            PendingState::Reporting { class } => self.settle_report(key, class, &outcome.result, now.mono),
            PendingState::Binding { node, uncertain_since } => match &outcome.result {
                Ok(_) => self.assume_bound(key, node, now.mono),
                Err(failure) => {
                    if let (Failure::Refused(why), Some(pod)) = (failure, world.pod(key)) {
                        self.events.push(event(&**pod, EventType::Warning, FAILED_SCHEDULING, why));
                    }
                    self.settle_failed_binding(key, node, uncertain_since, failure, now.mono);
                }
            },
            PendingState::Nominated(nomination) => {
                self.settle_nomination(key, nomination, &outcome.result, now);
            }
            PendingState::Withdrawn => self.enqueue(key),
            // The outcome of an action that a previous leader planned.
            PendingState::Queued { .. }
            | PendingState::Uncertain { .. }
            | PendingState::Assumed { .. }
            | PendingState::BackingOff { .. } => {}
        }
    }

    fn settle_report(&mut self, key: &Key, class: ClassId, result: &Result<Answer, Failure>, now: Mono) {
        let queued = self.pending_pods.pod(key).queued(key);
        self.queue.end_report(class, queued.clone());
        let report_at = match result {
            // The reason may have changed meanwhile; the next decision compares it with the record.
            Ok(_) => {
                self.pending_pods.succeed(key);
                self.queue.set_unreported(class, queued);
                None
            }
            Err(failure) => {
                let retry_at = self.pending_pods.fail(key, now);
                (!matches!(failure, Failure::Gone | Failure::Refused(_))).then_some(retry_at)
            }
        };
        self.pending_pods.set_state(key, PendingState::Queued { class, report_at });
    }

    fn settle_failed_binding(
        &mut self,
        key: &Key,
        node: Name,
        uncertain_since: Option<Mono>,
        failure: &Failure,
        now: Mono,
    ) {
        let retry_at = self.pending_pods.fail(key, now);
        match failure {
            // An earlier attempt of ours may have bound it.
            Failure::Conflict if uncertain_since.is_some() => self.assume_bound(key, node, now),
            Failure::Conflict => {
                self.back_off(key, &node, retry_at, "its record has changed".to_owned());
            }
            Failure::Gone => {
                if let Some(pod) = self.pending_pods.remove(key) {
                    self.cache.release(&node, &pod.requirements.request);
                }
                self.wake_for(&node);
            }
            Failure::Refused(why) => {
                self.back_off(key, &node, now + self.settings.retry_interval, why.clone());
            }
            // It was not bound, and another node may be better when it is tried again.
            Failure::Later(why) if uncertain_since.is_none() => {
                self.back_off(key, &node, retry_at, why.clone());
            }
            Failure::Later(why) | Failure::Unknown(why) | Failure::Budget { message: why, .. } => {
                let since = uncertain_since.unwrap_or(now);
                let state = PendingState::Uncertain { node, since, retry_at, why: why.clone() };
                self.pending_pods.set_state(key, state);
            }
        }
    }

    /// Keeps the pod's request allocated until the record shows that the pod is bound, or the time for that is over.
    fn assume_bound(&mut self, key: &Key, node: Name, now: Mono) {
        let until = now + self.settings.assume_timeout;
        self.pending_pods.set_state(key, PendingState::Assumed { node, until });
    }

    /// Releases what was allocated for the pod and queues the pod again at that time.
    fn back_off(&mut self, key: &Key, node: &Name, until: Mono, why: String) {
        self.cache.release(node, &self.pending_pods.pod(key).requirements.request);
        self.wake_for(node);
        self.pending_pods.set_state(key, PendingState::BackingOff { until, why });
    }
}
