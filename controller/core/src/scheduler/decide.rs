//! What to do now: which pods are bound to which nodes, and which records get the reason why they are not.

use std::cmp::Reverse;

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::event::EventType;
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::pod::{Pod, PodCondition};
use muster_proto::time::Mono;
use muster_proto::time::Now;

use super::pending_pods::PendingState;
use super::victim_search::Search;
use super::{FAILED_SCHEDULING, Scheduler};
use crate::decision::causes;
use crate::plan::{Action, ControllerName, Plan, Subject, event, uid};
use crate::world::World;

const UNSCHEDULABLE: &str = "Unschedulable";

impl Scheduler {
    pub fn decide(&mut self, world: &World, now: Now, plan: &mut Plan) {
        plan.events.append(&mut self.events);
        while let Some(key) = self.pending_pods.pop_due(now.mono) {
            self.end_state(key, now.mono, plan);
        }
        self.retry_victims(now.mono, plan);
        self.queue.advance(now.mono);
        self.assign(world, now, plan);
        self.report(world, now, plan);
        let due = self.nominated.next().map(|_| now.mono);
        let next =
            [self.queue.next_at(now.mono), self.pending_pods.next_deadline(), self.victims.next_retry(), due];
        for at in next.into_iter().flatten() {
            plan.wake_by(at);
        }
    }

    /// Handles a pod whose state has reached its deadline.
    fn end_state(&mut self, key: Key, now: Mono, plan: &mut Plan) {
        let pod = self.pending_pods.pod(&key);
        match pod.state.clone() {
            PendingState::Queued { class, .. } => {
                self.queue.set_unreported(class, pod.queued(&key));
                self.pending_pods.set_state(&key, PendingState::Queued { class, report_at: None });
            }
            PendingState::Uncertain { node, since, .. } if now < since + self.settings.assume_timeout => {
                if self.cache.has(&node) {
                    self.bind(key, node, Some(since), plan);
                } else {
                    // The pod may have been bound all the same, and another node of that name may be created.
                    let why = format!("node {node} is gone");
                    let retry_at = since + self.settings.assume_timeout;
                    self.pending_pods.set_state(&key, PendingState::Uncertain { node, since, retry_at, why });
                }
            }
            PendingState::Uncertain { node, .. } | PendingState::Assumed { node, .. } => {
                self.cache.release(&node, &pod.requirements.request);
                self.wake_for(&node);
                self.enqueue(&key);
            }
            PendingState::BackingOff { .. } => self.enqueue(&key),
            PendingState::Nominated(_) => self.look_later(&key),
            // A state with a write in flight has no deadline: the outcome ends it.
            PendingState::Reporting { .. } | PendingState::Binding { .. } | PendingState::Withdrawn => {}
        }
    }

    pub(super) fn bind(&mut self, key: Key, node: Name, uncertain_since: Option<Mono>, plan: &mut Plan) {
        let why =
            if uncertain_since.is_none() { "no node suits it better" } else { "it may not be bound yet" };
        self.pending_pods.set_state(&key, PendingState::Binding { node: node.clone(), uncertain_since });
        let uid = self.pending_pods.pod(&key).uid;
        let cause = causes::pod_scheduled(&node, uncertain_since.is_some());
        plan.act(ControllerName::Scheduler, Subject::Pod(key, uid), Action::BindPod { node }, why, [cause]);
    }

    /// Chooses nodes for the first pods in the queue, and looks at the nominated pods that are due among them, within the
    /// limits of one decision.
    fn assign(&mut self, world: &World, now: Now, plan: &mut Plan) {
        let mut examined = 0;
        for _ in 0..self.settings.max_pods {
            if examined >= self.settings.max_examined_nodes {
                return;
            }
            let queued = self.queue.next();
            if let Some((priority, nominated)) = self.nominated.next().cloned()
                && queued.as_ref().is_none_or(|(_, first, requirements)| {
                    (priority, &nominated) < (Reverse(requirements.priority()), first)
                })
            {
                self.look_at_nominated(&nominated, (world, now), &mut examined, plan);
                continue;
            }
            let Some((class, queued, requirements)) = queued else { return };
            match self.rankings.choose(&self.cache, &requirements, &mut examined) {
                Ok(node) => {
                    self.queue.assigned(class, &queued);
                    self.cache.allocate(&node, &requirements.request);
                    self.bind(queued.key, node, None, plan);
                }
                Err(fit_error) => match self.search_victims(&requirements, world, &mut examined) {
                    Search::Found(candidate) => {
                        self.nominate(class, &queued, candidate, &fit_error, (world, now), plan);
                    }
                    Search::Nothing => self.queue.failed(class, fit_error, now.mono),
                    Search::TryAgain => {
                        self.queue.failed(class, fit_error, now.mono);
                        self.queue.retry_soon(class);
                    }
                },
            }
        }
    }

    /// Writes into the records of waiting pods why they wait, where the records do not say so.
    fn report(&mut self, world: &World, now: Now, plan: &mut Plan) {
        let mut reported = 0;
        while reported < self.settings.max_pods {
            let Some((class, queued, why)) = self.queue.next_unreported() else { return };
            let pod = world
                .pod(&queued.key)
                .filter(|pod| self.pending_pods.get(&queued.key, uid(&pod.meta)).is_some());
            let Some(marked) = pod.and_then(|pod| unschedulable(pod, why, None, now)) else {
                self.queue.set_reported(class, &queued);
                continue;
            };
            plan.emit(event(&marked, EventType::Warning, FAILED_SCHEDULING, why));
            let subject = Subject::of_pod(&marked);
            plan.act(
                ControllerName::Scheduler,
                subject,
                Action::UpdatePodStatus(Box::new(marked)),
                "it fits no node",
                [causes::pod_unschedulable(why)],
            );
            self.queue.begin_report(class, &queued);
            self.pending_pods.set_state(&queued.key, PendingState::Reporting { class });
            reported += 1;
        }
    }
}

/// The pod with a status that says why it has no node, and on which node it is nominated; `None` if it says so already.
pub(super) fn unschedulable(pod: &Pod, why: &str, nominated: Option<&Name>, now: Now) -> Option<Pod> {
    let says_so = pod.condition(types::POD_SCHEDULED).is_some_and(|held| {
        held.status == ConditionStatus::False && held.reason == UNSCHEDULABLE && held.message == why
    });
    if says_so && pod.status.nominated_node_name.as_ref() == nominated {
        return None;
    }
    let mut marked = pod.clone();
    marked.status.nominated_node_name = nominated.cloned();
    marked.status.set_condition(PodCondition {
        kind: types::POD_SCHEDULED.to_owned(),
        status: ConditionStatus::False,
        reason: UNSCHEDULABLE.to_owned(),
        message: why.to_owned(),
        last_probe_time: None,
        last_transition_time: Some(now.wall),
    });
    Some(marked)
}
