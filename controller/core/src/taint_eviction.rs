//! Pods that a NoExecute taint drives off: when each has to go, and why.
//!
//! A pod's time runs from when we saw the taint. It is never put off; a taint with a shorter time brings it forward. Two
//! times are kept apart: that of the health taints, which are our own judgement and wait while we are not sure of it,
//! and that of all others, which somebody put on and meant.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::event::{Event, EventType};
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::pod::Pod;
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::time::Mono;

use crate::node_lifecycle::noexecute_taints::is_health_taint;
use crate::plan::{Action, Answer, ControllerName, EndMark, Failure, Outcome, Plan, Subject, event, uid};
use crate::trace_event::TraceEvent;
use crate::world::{Delta, World};
use muster_proto::time::Now;

pub mod toleration_time;

use toleration_time::{Stay, judge};

const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

#[derive(Clone, Debug, Default)]
pub struct TaintEvictions {
    armed: HashMap<Key, Armed>,
    /// When to look at each that is armed; one that is withheld altogether is not here.
    due: BTreeSet<(Mono, Key)>,
    /// Health evictions that fell due while there may be none.
    withheld: BTreeSet<Key>,
    in_flight: HashSet<(Key, Uid)>,
    /// What happened since the last decision, for people.
    events: Vec<Event>,
}

/// A pod that has to go.
#[derive(Clone, Debug, PartialEq)]
pub struct Armed {
    pub uid: Uid,
    /// When its health taints drive it off.
    pub by_health: Option<Mono>,
    /// When any other taint does.
    pub by_others: Option<Mono>,
    /// When to try again, and how often it failed.
    retry: Option<(Mono, u32)>,
    /// Its place in `due`.
    queued: Option<Mono>,
}

impl Armed {
    /// When it has to go if health evictions may be performed from `health_from` on; `None` while that is never.
    pub fn at(&self, health_from: Option<Mono>) -> Option<Mono> {
        let health = self.by_health.zip(health_from).map(|(at, from)| at.max(from));
        let at = [health, self.by_others].into_iter().flatten().min()?;
        Some(self.retry.map_or(at, |(retry, _)| at.max(retry)))
    }
}

impl TaintEvictions {
    pub fn new() -> TaintEvictions {
        TaintEvictions::default()
    }

    pub fn observe(&mut self, delta: &Delta, world: &World, now: Now) {
        match delta {
            Delta::Node(change) => {
                // Taints that are forgotten with their node leave the clocks running that they started. Whoever bears the
                // node's name next is judged by its own taints, also when it has none: that stops them.
                let Some(node) = &change.new else { return };
                let taints = |node: &muster_proto::node::Node| no_execute(&node.spec.taints);
                if change.old.as_deref().map(taints) == Some(taints(node)) {
                    return;
                }
                for pod in world.pods_on(node.meta.name.as_str()) {
                    self.judge(pod, &node.spec.taints, now);
                }
            }
            Delta::Pod(change) => {
                let Some(pod) = &change.new else {
                    let pod = change.either();
                    self.disarm(&Key::of(&**pod));
                    return;
                };
                let decides = |pod: &Pod| {
                    (pod.spec.node_name.clone(), pod.spec.tolerations.clone(), pod.meta.is_deleting())
                };
                if change.old.as_deref().map(decides) == Some(decides(pod)) {
                    return;
                }
                let node = pod.spec.node_name.as_ref().and_then(|name| world.node(name.as_str()));
                if let Some(node) = node {
                    self.judge(pod, &node.spec.taints, now);
                } else if pod.meta.is_deleting() {
                    self.disarm(&Key::of(&**pod));
                }
            }
        }
    }

    /// Sets a pod's clocks by the taints of its node.
    fn judge(&mut self, pod: &Pod, taints: &[Taint], now: Now) {
        let key = Key::of(pod);
        if pod.meta.is_deleting() {
            return self.disarm(&key);
        }
        let (health, others): (Vec<&Taint>, Vec<&Taint>) = taints
            .iter()
            .filter(|taint| taint.effect == TaintEffect::NoExecute)
            .partition(|taint| is_health_taint(taint));
        let stays = [health, others].map(|taints| judge(&taints, &pod.spec.tolerations));
        let held = self.armed.get(&key);
        // A clock that runs is never put back.
        let clock = |stay: &Stay, running: Option<Mono>| {
            stay.time().map(|time| running.map_or(now.mono + time, |at| at.min(now.mono + time)))
        };
        let by_health = clock(&stays[0], held.and_then(|armed| armed.by_health));
        let by_others = clock(&stays[1], held.and_then(|armed| armed.by_others));
        if by_health.is_none() && by_others.is_none() {
            if held.is_some() {
                self.disarm(&key);
                self.events.push(told(pod, "Cancelling deletion of"));
            }
            return;
        }
        if held.is_some_and(|held| (held.by_health, held.by_others) == (by_health, by_others)) {
            return;
        }
        let retry = held.and_then(|armed| armed.retry);
        self.disarm(&key);
        self.arm(key, Armed { uid: uid(&pod.meta), by_health, by_others, retry, queued: None });
    }

    fn arm(&mut self, key: Key, armed: Armed) {
        let first = armed.at(Some(Mono::ZERO));
        self.armed.insert(key.clone(), armed);
        if let Some(at) = first {
            self.queue(key, at);
        }
    }

    /// Looks at it at that moment, and not before.
    fn queue(&mut self, key: Key, at: Mono) {
        let armed = self.armed.get_mut(&key).expect("only who is armed is looked at");
        if let Some(before) = armed.queued.replace(at) {
            self.due.remove(&(before, key.clone()));
        }
        self.due.insert((at, key));
    }

    fn disarm(&mut self, key: &Key) {
        self.withheld.remove(key);
        if let Some(at) = self.armed.remove(key).and_then(|armed| armed.queued) {
            self.due.remove(&(at, key.clone()));
        }
    }

    /// Ends the pods whose time has come. Health evictions are performed from `health_from` on, or not at all.
    pub fn decide(&mut self, world: &World, health_from: Option<Mono>, now: Now, plan: &mut Plan) {
        plan.events.append(&mut self.events);
        let mut looked_at = BTreeSet::new();
        if health_from.is_some() {
            looked_at = std::mem::take(&mut self.withheld);
        }
        while let Some((at, _)) = self.due.first()
            && *at <= now.mono
        {
            let (_, key) = self.due.pop_first().expect("there is a first");
            self.armed.get_mut(&key).expect("only who is armed is looked at").queued = None;
            looked_at.insert(key);
        }
        for key in looked_at {
            self.consider(key, world, health_from, now, plan);
        }
        if let Some((at, _)) = self.due.first() {
            plan.wake_by(*at);
        }
    }

    fn consider(&mut self, key: Key, world: &World, health_from: Option<Mono>, now: Now, plan: &mut Plan) {
        let Some(armed) = self.armed.get(&key) else { return };
        match armed.at(health_from) {
            Some(at) if at <= now.mono => {}
            Some(at) => return self.queue(key, at),
            // Due, but for our doubts: looked at again when they are over.
            None => {
                self.withheld.insert(key);
                return;
            }
        }
        let bearer = (key.clone(), armed.uid);
        let Some(pod) = world.pod(&key).filter(|pod| uid(&pod.meta) == armed.uid) else { return };
        if !self.in_flight.insert(bearer) {
            return;
        }
        if armed.retry.is_none() {
            plan.trace_events.extend(toleration_over(pod, armed, world, now.mono));
        }
        let mark = EndMark {
            reason: "DeletionByTaintManager".to_owned(),
            message: "Taint manager: deleting due to NoExecute taint".to_owned(),
            fail: false,
        };
        let action = Action::EndPod { mark: Some(mark), grace_period_seconds: None };
        plan.act(ControllerName::TaintEviction, Subject::of_pod(pod), action, "a NoExecute taint");
    }

    pub fn settle(&mut self, outcome: &Outcome, now: Now) {
        let Subject::Pod(key, uid) = &outcome.subject else { return };
        self.in_flight.remove(&(key.clone(), *uid));
        if let Ok(Answer::Pod(pod)) = &outcome.result {
            self.events.push(told(pod, "Marking for deletion"));
        }
        let Some(armed) = self.armed.get_mut(key).filter(|armed| armed.uid == *uid) else { return };
        match &outcome.result {
            Ok(_) | Err(Failure::Gone) => self.disarm(key),
            Err(_) => {
                let failures = armed.retry.map_or(1, |(_, failures)| failures.saturating_add(1));
                let again = now.mono + RETRIES.delay(failures, 0.0);
                armed.retry = Some((again, failures));
                self.queue(key.clone(), again);
            }
        }
    }

    /// Whether this very pod has to go now.
    pub fn is_due(&self, key: &Key, uid: Uid, health_from: Option<Mono>, now: Mono) -> bool {
        let armed = self.armed.get(key).filter(|armed| armed.uid == uid);
        armed.and_then(|armed| armed.at(health_from)).is_some_and(|at| at <= now)
    }

    /// Pods with a time at which they have to go.
    pub fn count(&self) -> usize {
        self.armed.len()
    }

    pub fn armed(&self, key: &Key) -> Option<&Armed> {
        self.armed.get(key)
    }
}

/// Since when a pod's time ran, and for which taint.
fn toleration_over(pod: &Pod, armed: &Armed, world: &World, now: Mono) -> Option<TraceEvent> {
    let node = pod.spec.node_name.clone()?;
    let is_health = armed.by_others.is_none_or(|at| at > now);
    let over = if is_health { armed.by_health? } else { armed.by_others? };
    let drives =
        |taint: &&Taint| taint.effect == TaintEffect::NoExecute && is_health_taint(taint) == is_health;
    let taints: Vec<&Taint> = world.node(node.as_str())?.spec.taints.iter().filter(drives).collect();
    let stay = judge(&taints, &pod.spec.tolerations);
    let (Stay::For(_, taint, _) | Stay::No(taint)) = stay else { return None };
    let since = over - stay.time().unwrap_or_default();
    Some(TraceEvent::TolerationOver { pod: Key::of(pod), node, taint: taint.to_string(), since, over })
}

fn told(pod: &Pod, what: &str) -> Event {
    let message = format!("{what} Pod {}", Key::of(pod));
    event(pod, EventType::Normal, "TaintManagerEviction", message)
}

/// The taints that drive pods off.
fn no_execute(taints: &[Taint]) -> Vec<Taint> {
    taints.iter().filter(|taint| taint.effect == TaintEffect::NoExecute).cloned().collect()
}
