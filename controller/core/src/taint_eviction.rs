//! Taint eviction: pods whose node has a NoExecute taint that they do not tolerate, or not any longer.
//!
//! A pod's toleration time runs from when this controller saw the taint. Its deadline is never postponed; a taint that
//! is tolerated for a shorter time brings it forward. There are two deadlines per pod: one for the health taints, which
//! this controller sets itself and which wait for the eviction hold and for full disruption to end, and one for all
//! other taints, which wait for nothing.

use std::collections::{BTreeSet, HashMap};

use muster_proto::event::{Event, EventType};
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::time::Mono;

use crate::deadlines::Deadlines;
use crate::decision::{DecisionSubject, Note, causes};
use crate::node_lifecycle::noexecute_taints::is_health_taint;
use crate::plan::{Action, Answer, ControllerName, EndMark, Failure, Outcome, Plan, Subject, event, uid};
use crate::trace_event::TraceEvent;
use crate::world::{Delta, World};
use muster_proto::time::Now;

pub mod toleration_time;

use toleration_time::{TolerationTime, toleration_time};

#[derive(Clone, Debug, Default)]
pub struct TaintEvictions {
    pending: HashMap<Key, PendingEviction>,
    /// When to look at each pending eviction; one that is withheld is not here. By uid too: an eviction in flight must
    /// not delay that of a new pod of the same name.
    deadlines: Deadlines<(Key, Uid)>,
    /// Evictions because of health taints that are due while none are allowed.
    withheld: BTreeSet<Key>,
    /// Events since the last decision.
    events: Vec<Event>,
    /// What began or ceased to be waited for since the last decision.
    notes: Vec<Note>,
}

/// The reason of the condition DisruptionTarget of a pod that was evicted here.
pub(crate) const EVICTION_REASON: &str = "DeletionByTaintManager";

/// A pod that will be evicted.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingEviction {
    pub uid: Uid,
    /// When its toleration of the health taints ends.
    pub health_deadline: Option<Mono>,
    /// When its toleration of any other taint ends.
    pub other_deadline: Option<Mono>,
}

impl PendingEviction {
    /// When the pod is evicted, if health taints evict from `health_from` on; `None` if only they do, and they may not.
    pub fn due_at(&self, health_from: Option<Mono>) -> Option<Mono> {
        let health = self.health_deadline.zip(health_from).map(|(at, from)| at.max(from));
        [health, self.other_deadline].into_iter().flatten().min()
    }
}

impl TaintEvictions {
    pub fn new() -> TaintEvictions {
        TaintEvictions::default()
    }

    pub fn observe(&mut self, delta: &Delta, world: &World, now: Now) {
        match delta {
            Delta::Node(change) => {
                // Pods of a removed node keep their deadlines. A new node of the same name sets them by its own taints,
                // or cancels them if it has none.
                let Some(node) = &change.new else { return };
                let taints = |node: &Node| no_execute(&node.spec.taints);
                if change.old.as_deref().map(taints) == Some(taints(node)) {
                    return;
                }
                for pod in world.pods_on(node.meta.name.as_str()) {
                    self.update(pod, &node.spec.taints, now);
                }
            }
            Delta::Pod(change) => {
                let Some(pod) = &change.new else {
                    self.cancel(&Key::of(&**change.either()));
                    return;
                };
                let relevant = |pod: &Pod| {
                    (pod.spec.node_name.clone(), pod.spec.tolerations.clone(), pod.meta.is_deleting())
                };
                if change.old.as_deref().map(relevant) == Some(relevant(pod)) {
                    return;
                }
                let node = pod.spec.node_name.as_ref().and_then(|name| world.node(name.as_str()));
                if let Some(node) = node {
                    self.update(pod, &node.spec.taints, now);
                } else if pod.meta.is_deleting() {
                    self.cancel(&Key::of(&**pod));
                }
            }
        }
    }

    /// Sets a pod's deadlines by the taints of its node.
    fn update(&mut self, pod: &Pod, taints: &[Taint], now: Now) {
        let key = Key::of(pod);
        if pod.meta.is_deleting() {
            return self.cancel(&key);
        }
        let (health, others): (Vec<&Taint>, Vec<&Taint>) = taints
            .iter()
            .filter(|taint| taint.effect == TaintEffect::NoExecute)
            .partition(|taint| is_health_taint(taint));
        let held = self.pending.get(&key);
        let deadline = |taints: &[&Taint], held: Option<Mono>| {
            let limit = toleration_time(taints, &pod.spec.tolerations).limit()?;
            Some(held.map_or(now.mono + limit, |at| at.min(now.mono + limit)))
        };
        let health_deadline = deadline(&health, held.and_then(|pending| pending.health_deadline));
        let other_deadline = deadline(&others, held.and_then(|pending| pending.other_deadline));
        if health_deadline.is_none() && other_deadline.is_none() {
            if held.is_some() {
                self.cancel(&key);
                self.events.push(eviction_event(pod, "Cancelling deletion of"));
                let subject = DecisionSubject::Pod(Key::of(pod));
                let note = causes::eviction_cancelled().observed(ControllerName::TaintEviction, subject);
                self.notes.push(note.of(pod.meta.uid));
            }
            return;
        }
        let pending = PendingEviction { uid: uid(&pod.meta), health_deadline, other_deadline };
        if held == Some(&pending) {
            return;
        }
        let is_health = other_deadline.is_none_or(|at| health_deadline.is_some_and(|health| health < at));
        let (at, taints) = if is_health { (health_deadline, &health) } else { (other_deadline, &others) };
        // One that is not tolerated at all is evicted in the next decision, which records that.
        if let (Some(at), Some(node)) = (at.filter(|at| *at > now.mono), &pod.spec.node_name)
            && let TolerationTime::Limited(limit, taint, _) = toleration_time(taints, &pod.spec.tolerations)
        {
            let cause = causes::toleration_time(node, taint, limit, at, now);
            let subject = DecisionSubject::Pod(key.clone());
            self.notes.push(cause.waiting(ControllerName::TaintEviction, subject).of(pod.meta.uid));
        }
        self.withheld.remove(&key);
        if let Some(at) = self.due_at_of(&key, &pending, Some(Mono::ZERO)) {
            self.deadlines.schedule((key.clone(), pending.uid), at);
        }
        self.pending.insert(key, pending);
    }

    /// When a pod is evicted; after a failure not before its retry.
    fn due_at_of(&self, key: &Key, pending: &PendingEviction, health_from: Option<Mono>) -> Option<Mono> {
        let retry_at = self.deadlines.retry_at(&(key.clone(), pending.uid));
        pending.due_at(health_from).map(|at| at.max(retry_at.unwrap_or(at)))
    }

    fn cancel(&mut self, key: &Key) {
        self.withheld.remove(key);
        if let Some(pending) = self.pending.remove(key) {
            self.deadlines.forget(&(key.clone(), pending.uid));
        }
    }

    /// Evicts the pods that are due. Health taints evict from `health_from` on, or not at all.
    pub fn decide(&mut self, world: &World, health_from: Option<Mono>, now: Now, plan: &mut Plan) {
        plan.events.append(&mut self.events);
        self.notes.drain(..).for_each(|note| plan.note(note));
        if health_from.is_some() {
            for key in std::mem::take(&mut self.withheld) {
                if let Some(pending) = self.pending.get(&key) {
                    self.deadlines.add((key, pending.uid));
                }
            }
        }
        for (key, uid) in self.deadlines.take(now.mono) {
            self.evict_if_due(key, uid, world, health_from, now, plan);
        }
        if let Some(at) = self.deadlines.next() {
            plan.wake_by(at);
        }
    }

    fn evict_if_due(
        &mut self,
        key: Key,
        pod_uid: Uid,
        world: &World,
        health_from: Option<Mono>,
        now: Now,
        plan: &mut Plan,
    ) {
        let Some(pending) = self.pending.get(&key).filter(|pending| pending.uid == pod_uid) else { return };
        match self.due_at_of(&key, pending, health_from) {
            Some(at) if at <= now.mono => {}
            Some(at) => return self.deadlines.schedule((key, pod_uid), at),
            // Looked at again when health taints may evict.
            None => {
                self.withheld.insert(key);
                return;
            }
        }
        let Some(pod) = world.pod(&key).filter(|pod| uid(&pod.meta) == pod_uid) else { return };
        let deadlines_key = (key, pod_uid);
        let over = toleration_over(pod, pending, world, now.mono);
        let cause = match &over {
            Some(TraceEvent::TolerationOver { node, taint, since, over, .. }) => {
                causes::toleration_over(node, taint, *since, *over, now)
            }
            _ => causes::toleration_over_unnamed(),
        };
        if self.deadlines.failures(&deadlines_key) == 0 {
            plan.trace_events.extend(over);
        }
        let mark = EndMark {
            reason: EVICTION_REASON.to_owned(),
            message: "Taint manager: deleting due to NoExecute taint".to_owned(),
            fail: false,
        };
        let action = Action::EndPod { mark: Some(mark), grace_period_seconds: None };
        let subject = Subject::of_pod(pod);
        plan.act(ControllerName::TaintEviction, subject, action, "a NoExecute taint", [cause]);
        self.deadlines.begin(deadlines_key);
    }

    pub fn settle(&mut self, outcome: &Outcome, now: Now) {
        let Subject::Pod(key, uid) = &outcome.subject else { return };
        if let Ok(Answer::Pod(pod)) = &outcome.result {
            self.events.push(eviction_event(pod, "Marking for deletion"));
        }
        let deadlines_key = (key.clone(), *uid);
        let is_pending = self.pending.get(key).is_some_and(|pending| pending.uid == *uid);
        match &outcome.result {
            Err(failure) if is_pending && *failure != Failure::Gone => {
                self.deadlines.fail(&deadlines_key, now.mono);
            }
            _ => {
                self.deadlines.succeed(&deadlines_key);
                if is_pending {
                    self.cancel(key);
                }
            }
        }
    }

    /// Whether the pod with this uid is to be evicted now.
    pub fn is_due(&self, key: &Key, uid: Uid, health_from: Option<Mono>, now: Mono) -> bool {
        let pending = self.pending.get(key).filter(|pending| pending.uid == uid);
        pending.and_then(|pending| self.due_at_of(key, pending, health_from)).is_some_and(|at| at <= now)
    }

    /// How many evictions are pending.
    pub fn count(&self) -> usize {
        self.pending.len()
    }

    pub fn is_pending(&self, key: &Key) -> bool {
        self.pending.contains_key(key)
    }

    /// When a pod is evicted, if health taints evict from `health_from` on; `None` if it is not.
    pub fn due_at(&self, key: &Key, health_from: Option<Mono>) -> Option<Mono> {
        self.pending.get(key).and_then(|pending| self.due_at_of(key, pending, health_from))
    }
}

/// The trace event of a toleration time that is over.
fn toleration_over(pod: &Pod, pending: &PendingEviction, world: &World, now: Mono) -> Option<TraceEvent> {
    let node = pod.spec.node_name.clone()?;
    let is_health = pending.other_deadline.is_none_or(|at| at > now);
    let over = if is_health { pending.health_deadline? } else { pending.other_deadline? };
    let evicts =
        |taint: &&Taint| taint.effect == TaintEffect::NoExecute && is_health_taint(taint) == is_health;
    let taints: Vec<&Taint> = world.node(node.as_str())?.spec.taints.iter().filter(evicts).collect();
    let time = toleration_time(&taints, &pod.spec.tolerations);
    let (TolerationTime::Limited(_, taint, _) | TolerationTime::NotTolerated(taint)) = time else {
        return None;
    };
    let since = over - time.limit().unwrap_or_default();
    Some(TraceEvent::TolerationOver { pod: Key::of(pod), node, taint: taint.to_string(), since, over })
}

fn eviction_event(pod: &Pod, what: &str) -> Event {
    let message = format!("{what} Pod {}", Key::of(pod));
    event(pod, EventType::Normal, "TaintManagerEviction", message)
}

fn no_execute(taints: &[Taint]) -> Vec<Taint> {
    taints.iter().filter(|taint| taint.effect == TaintEffect::NoExecute).cloned().collect()
}
