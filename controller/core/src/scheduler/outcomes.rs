//! What came of a proposal.

use muster_proto::event::EventType;
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::time::Mono;

use super::pending_pods::Stage;
use super::queue::LineId;
use super::{FAILED_SCHEDULING, Scheduler};
use crate::plan::{Answer, Failure, Outcome, Subject, event};
use crate::world::World;
use muster_proto::time::Now;

impl Scheduler {
    pub fn settle(&mut self, outcome: &Outcome, world: &World, now: Now) {
        let Subject::Pod(key, uid) = &outcome.subject else { return };
        // Who is not waiting any more was bound while it was asked for: its record came first.
        let asked = self.waiting.get(key, *uid);
        if asked.is_none_or(|entry| matches!(entry.stage, Stage::Binding { .. }))
            && let Ok(Answer::Pod(pod)) = &outcome.result
            && let Some(node) = &pod.spec.node_name
        {
            let message = format!("Successfully assigned {key} to {node}");
            self.events.push(event(&**pod, EventType::Normal, "Scheduled", message));
        }
        // If it does not wait its record came first, or it is gone.
        let Some(entry) = self.waiting.get(key, *uid) else { return };
        match entry.stage.clone() {
            Stage::Telling { line } => self.settle_telling(key, line, &outcome.result, now.mono),
            Stage::Binding { node, doubted } => match &outcome.result {
                Ok(_) => self.await_record(key, node, now.mono),
                Err(failure) => {
                    if let (Failure::Refused(why), Some(pod)) = (failure, world.pod(key)) {
                        self.events.push(event(&**pod, EventType::Warning, FAILED_SCHEDULING, why));
                    }
                    self.settle_failure(key, node, doubted, failure, now.mono);
                }
            },
            // An answer to somebody who asked before us.
            Stage::Lined { .. } | Stage::Doubted { .. } | Stage::Bound { .. } | Stage::Resting { .. } => {}
        }
    }

    fn settle_telling(&mut self, key: &Key, line: LineId, result: &Result<Answer, Failure>, now: Mono) {
        let place = self.waiting.entry(key).place(key);
        self.queue.come_back(line, place.clone());
        let tell_at = match result {
            // There may be another reason by now; its record will show what it was told.
            Ok(_) => {
                self.waiting.succeed(key);
                self.queue.set_untold(line, place);
                None
            }
            Err(failure) => {
                let rested = self.waiting.fail(key, now);
                (!matches!(failure, Failure::Gone | Failure::Refused(_))).then_some(rested)
            }
        };
        self.waiting.set_stage(key, Stage::Lined { line, tell_at });
    }

    fn settle_failure(&mut self, key: &Key, node: Name, doubted: Option<Mono>, failure: &Failure, now: Mono) {
        let rested = self.waiting.fail(key, now);
        match failure {
            // It may well be bound already, by us.
            Failure::Conflict if doubted.is_some() => self.await_record(key, node, now),
            Failure::Conflict => {
                self.turn_away(key, &node, rested, "its record has changed".to_owned());
            }
            Failure::Gone => {
                if let Some(entry) = self.waiting.remove(key) {
                    self.fleet.give_back(&node, &entry.demand.claim);
                }
                self.wake_for(&node);
            }
            Failure::Refused(why) => {
                self.turn_away(key, &node, now + self.settings.patience, why.clone());
            }
            // It was not bound, and another node may suit it better by then.
            Failure::Later(why) if doubted.is_none() => {
                self.turn_away(key, &node, rested, why.clone());
            }
            Failure::Later(why) | Failure::Unknown(why) | Failure::Budget { message: why, .. } => {
                let since = doubted.unwrap_or(now);
                let stage = Stage::Doubted { node, since, again_at: rested, why: why.clone() };
                self.waiting.set_stage(key, stage);
            }
        }
    }

    /// Keeps what was taken until the record says that the pod is bound.
    fn await_record(&mut self, key: &Key, node: Name, now: Mono) {
        let until = now + self.settings.doubt;
        self.waiting.set_stage(key, Stage::Bound { node, until });
    }

    /// Gives back what was taken, and lets the pod line up again later.
    fn turn_away(&mut self, key: &Key, node: &Name, until: Mono, why: String) {
        self.fleet.give_back(node, &self.waiting.entry(key).demand.claim);
        self.wake_for(node);
        self.waiting.set_stage(key, Stage::Resting { until, why });
    }
}
