//! Pods that are displaced: deletions that were requested and that the records do not show yet.

use std::collections::BTreeMap;

use muster_proto::backoff::Backoff;
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::time::Mono;

use crate::deadlines::Deadlines;
use crate::decision::causes;
use crate::plan::{Action, ControllerName, EndMark, Plan, Subject};

/// The reason of the condition DisruptionTarget of a pod that is displaced.
pub(crate) const PREEMPTED_REASON: &str = "PreemptionByScheduler";

/// A pod that is displaced from its node for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) uid: Uid,
    pub(crate) node: Name,
    /// The pod that needs its space.
    pub(crate) by: Key,
    pub(crate) by_uid: Uid,
    pub(crate) by_priority: i32,
}

impl Victim {
    /// Why the pod goes, as its status says it.
    pub(crate) fn message(&self) -> String {
        let Victim { node, by, by_priority, .. } = self;
        format!("displaced by pod {by} of priority {by_priority}, which needs its space on node {node}")
    }
}

/// The pods whose deletion was requested, until their records show it and the outcome of the request is known.
#[derive(Clone, Debug)]
pub(crate) struct Victims {
    victims: BTreeMap<Key, Displaced>,
    /// When a deletion that failed is requested again.
    retries: Deadlines<Key>,
}

#[derive(Clone, Debug)]
struct Displaced {
    victim: Victim,
    /// Whether the outcome of a request is not known yet.
    is_in_flight: bool,
    /// Whether the record shows that the pod is being deleted, or is gone. That may come before the outcome.
    is_seen: bool,
}

impl Victims {
    pub(crate) fn new(backoff: Backoff) -> Victims {
        Victims { victims: BTreeMap::new(), retries: Deadlines::new(backoff) }
    }

    pub(crate) fn get(&self, key: &Key, uid: Uid) -> Option<&Victim> {
        self.victims.get(key).map(|displaced| &displaced.victim).filter(|victim| victim.uid == uid)
    }

    /// The keys of all of them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.victims.keys()
    }

    /// Requests the deletion of a pod, later if the outcome of its binding is still to come. If it was requested before
    /// for another pod, only that changes.
    pub(crate) fn displace(
        &mut self,
        key: &Key,
        victim: Victim,
        is_unanswered: bool,
        now: Mono,
        plan: &mut Plan,
    ) {
        match self.victims.get_mut(key) {
            Some(displaced) if displaced.victim.uid == victim.uid => displaced.victim = victim,
            _ => {
                if !is_unanswered {
                    request(key, &victim, plan);
                }
                let displaced = Displaced { victim, is_in_flight: !is_unanswered, is_seen: false };
                self.victims.insert(key.clone(), displaced);
                if is_unanswered {
                    self.fail(key, now);
                }
            }
        }
    }

    /// Requests the deletions again that failed. Those that are no longer `needed` are dropped.
    pub(crate) fn retry(
        &mut self,
        needed: impl Fn(&Victim) -> bool,
        is_unanswered: impl Fn(&Key) -> bool,
        now: Mono,
        plan: &mut Plan,
    ) {
        while let Some(key) = self.retries.pop(now) {
            match self.victims.get_mut(&key) {
                Some(displaced) if needed(&displaced.victim) && is_unanswered(&key) => {
                    self.fail(&key, now);
                }
                Some(displaced) if needed(&displaced.victim) => {
                    displaced.is_in_flight = true;
                    request(&key, &displaced.victim, plan);
                }
                _ => self.forget(&key),
            }
        }
    }

    /// The pod's record shows that it is being deleted, or it is gone.
    pub(crate) fn observe_end(&mut self, key: &Key, uid: Uid) {
        if let Some(displaced) = self.victims.get_mut(key).filter(|displaced| displaced.victim.uid == uid) {
            displaced.is_seen = true;
            if !displaced.is_in_flight {
                self.forget(key);
            }
        }
    }

    /// The pod was deleted.
    pub(crate) fn succeed(&mut self, key: &Key) {
        self.retries.succeed(key);
        if let Some(displaced) = self.victims.get_mut(key) {
            displaced.is_in_flight = false;
            if displaced.is_seen {
                self.forget(key);
            }
        }
    }

    /// The request failed, and is made again later, unless the pod is being deleted all the same.
    pub(crate) fn fail(&mut self, key: &Key, now: Mono) {
        let Some(displaced) = self.victims.get_mut(key) else { return };
        displaced.is_in_flight = false;
        if displaced.is_seen {
            return self.forget(key);
        }
        let at = self.retries.fail(key, now);
        self.retries.schedule(key.clone(), at);
    }

    /// The pod is not to be displaced any more.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.victims.remove(key);
        self.retries.forget(key);
    }

    pub(crate) fn next_retry(&self) -> Option<Mono> {
        self.retries.next()
    }
}

fn request(key: &Key, victim: &Victim, plan: &mut Plan) {
    let mark = EndMark { reason: PREEMPTED_REASON.to_owned(), message: victim.message(), fail: false };
    plan.act(
        ControllerName::Scheduler,
        Subject::Pod(key.clone(), victim.uid),
        Action::EndPod { mark: Some(mark), grace_period_seconds: None },
        "a pod of higher priority needs its space",
        [causes::displaced(victim)],
    );
}
