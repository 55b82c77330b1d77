//! What to do now: who is bound where, and who is told why not.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::event::EventType;
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::pod::{Pod, PodCondition};
use muster_proto::time::Mono;

use super::pending_pods::Stage;
use super::{FAILED_SCHEDULING, Scheduler};
use crate::plan::{Action, ControllerName, Plan, Subject, event, uid};
use crate::world::World;
use muster_proto::time::Now;

const UNSCHEDULABLE: &str = "Unschedulable";

impl Scheduler {
    pub fn decide(&mut self, world: &World, now: Now, plan: &mut Plan) {
        plan.events.append(&mut self.events);
        while let Some(key) = self.waiting.take_due(now.mono) {
            self.attend(key, now.mono, plan);
        }
        self.queue.advance(now.mono);
        self.place(now.mono, plan);
        self.tell(world, now, plan);
        for at in [self.queue.next_at(now.mono), self.waiting.next_alarm()].into_iter().flatten() {
            plan.wake_by(at);
        }
    }

    /// Sees to a pod whose time has come.
    fn attend(&mut self, key: Key, now: Mono, plan: &mut Plan) {
        let entry = self.waiting.entry(&key);
        match entry.stage.clone() {
            Stage::Lined { line, .. } => {
                self.queue.set_untold(line, entry.place(&key));
                self.waiting.set_stage(&key, Stage::Lined { line, tell_at: None });
            }
            Stage::Doubted { node, since, .. } if now < since + self.settings.doubt => {
                if self.fleet.has(&node) {
                    self.bind(key, node, Some(since), plan);
                } else {
                    // It may have been bound all the same, and a namesake of the node may be on its way to us.
                    let why = format!("node {node} is gone");
                    let again_at = since + self.settings.doubt;
                    self.waiting.set_stage(&key, Stage::Doubted { node, since, again_at, why });
                }
            }
            Stage::Doubted { node, .. } | Stage::Bound { node, .. } => {
                self.fleet.give_back(&node, &entry.demand.claim);
                self.wake_for(&node);
                self.enter(&key);
            }
            Stage::Resting { .. } => self.enter(&key),
            // What is under way has no alarm: it comes back by itself.
            Stage::Telling { .. } | Stage::Binding { .. } => {}
        }
    }

    fn bind(&mut self, key: Key, node: Name, doubted: Option<Mono>, plan: &mut Plan) {
        let why = if doubted.is_none() { "no node suits it better" } else { "it may not be bound yet" };
        self.waiting.set_stage(&key, Stage::Binding { node: node.clone(), doubted });
        let uid = self.waiting.entry(&key).uid;
        plan.act(ControllerName::Scheduler, Subject::Pod(key, uid), Action::BindPod { node }, why);
    }

    /// Tries the pods that are ready, as many as are tried at once.
    fn place(&mut self, now: Mono, plan: &mut Plan) {
        let mut looks = 0;
        for _ in 0..self.settings.tries {
            if looks >= self.settings.looks {
                return;
            }
            let Some((line, place, demand)) = self.queue.next() else { return };
            match self.rankings.choose(&self.fleet, &demand, &mut looks) {
                Ok(node) => {
                    self.queue.placed(line, &place);
                    self.fleet.take(&node, &demand.claim);
                    self.bind(place.key, node, None, plan);
                }
                Err(verdict) => self.queue.failed(line, verdict, now),
            }
        }
    }

    /// Writes into the records of pods why they wait, where they do not say so already.
    fn tell(&mut self, world: &World, now: Now, plan: &mut Plan) {
        let mut told = 0;
        while told < self.settings.tries {
            let Some((line, place, why)) = self.queue.next_untold() else { return };
            let pod =
                world.pod(&place.key).filter(|pod| self.waiting.get(&place.key, uid(&pod.meta)).is_some());
            let Some(marked) = pod.and_then(|pod| unschedulable(pod, why, now)) else {
                self.queue.set_told(line, &place);
                continue;
            };
            plan.emit(event(&marked, EventType::Warning, FAILED_SCHEDULING, why));
            let subject = Subject::of_pod(&marked);
            plan.act(
                ControllerName::Scheduler,
                subject,
                Action::UpdatePodStatus(Box::new(marked)),
                "no node will do",
            );
            self.queue.stand_aside(line, &place);
            self.waiting.set_stage(&place.key, Stage::Telling { line });
            told += 1;
        }
    }
}

/// The pod with a status that says why it has no node; `None` if it says so already.
fn unschedulable(pod: &Pod, why: &str, now: Now) -> Option<Pod> {
    let says_so = pod.condition(types::POD_SCHEDULED).is_some_and(|held| {
        held.status == ConditionStatus::False && held.reason == UNSCHEDULABLE && held.message == why
    });
    if says_so {
        return None;
    }
    let mut marked = pod.clone();
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
