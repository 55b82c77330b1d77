//! Pods that nobody else will ever remove.
//!
//! Four kinds, looked for every so often: more pods that have ended than are kept; pods being deleted on a node that
//! somebody vouches is off; pods of a node that is no more; pods being deleted that were never bound. This is the only
//! room that removes pods at once: in all four cases there is no agent left that could still say the pod has stopped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use self::index::Index;
use crate::plan::{Action, Answer, ControllerName, EndMark, Failure, Outcome, Plan, Subject, uid};
use crate::world::{Delta, World};
use muster_proto::time::Now;

mod index;
#[cfg(test)]
mod tests;

/// The numbers that collection goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Between two passes.
    pub period: Duration,
    /// How long a node must have been missing before its pods are.
    pub quarantine: Duration,
    /// How many pods that have ended are kept; `None` keeps all.
    pub kept: Option<usize>,
    /// How many pods are ended in one decision.
    pub batch: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            period: Duration::from_secs(20),
            quarantine: Duration::from_secs(40),
            kept: Some(12_500),
            batch: 256,
        }
    }
}

#[derive(Clone, Debug)]
pub struct PodGc {
    settings: Settings,
    index: Index,
    /// Nodes that pods name and that are not there.
    missing: BTreeMap<Name, Missing>,
    /// Those of them that the store does not have either, and whose pods are still to go.
    gone: BTreeSet<Name>,
    /// Nodes that the store is being asked for, missing still or not.
    questions: BTreeSet<Name>,
    /// Pods whose end we asked for.
    asked: HashMap<Key, Asked>,
    /// `None` before the first.
    next_pass: Option<Mono>,
}

/// What is known of a node that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// It may only be late, or about to be registered again.
    Quarantined { until: Mono },
    /// The store itself is being asked.
    Asked,
    /// The store has no such node.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    uid: Uid,
    cause: Cause,
    /// Its node, which was missing, has been there since.
    is_found: bool,
    /// The version the store left behind, if it has answered: there may be finalizers, and nothing more to do.
    done_at: Option<u64>,
}

/// Why nobody else will remove a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Ended,
    OutOfService,
    Orphaned,
    Unbound,
}

impl Cause {
    fn why(self) -> &'static str {
        match self {
            Cause::Ended => "too many pods have ended",
            Cause::OutOfService => "the node is out of service",
            Cause::Orphaned => "node no longer exists",
            Cause::Unbound => "the pod was never bound",
        }
    }
}

/// What awaits the pods of a node at the hands of this controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Nothing: their agent ends them.
    Left,
    /// Those being deleted are removed at that time: somebody vouches that the machine is off.
    OutOfService { at: Mono },
    /// There is no such node. Unless it comes back until then, all go.
    Orphaned { until: Mono },
    /// There is no such node, and the store is being asked for the last time, or has confirmed it.
    Condemned,
}

const DELETION_BY_POD_GC: &str = "DeletionByPodGC";

impl PodGc {
    pub fn new(settings: Settings) -> PodGc {
        PodGc {
            settings,
            index: Index::default(),
            missing: BTreeMap::new(),
            gone: BTreeSet::new(),
            questions: BTreeSet::new(),
            asked: HashMap::new(),
            next_pass: None,
        }
    }

    pub fn observe(&mut self, delta: &Delta, world: &World, now: Now) {
        match delta {
            Delta::Node(change) => {
                self.index.note_node(change);
                self.review(&change.either().meta.name, world, now.mono);
            }
            Delta::Pod(change) => {
                let pod = change.either();
                self.forget_answer(pod, change.new.is_none());
                for name in self.index.note_pod(change).into_iter().flatten() {
                    self.review(&name, world, now.mono);
                }
            }
        }
    }

    /// Whether a node is missing may have changed.
    fn review(&mut self, name: &Name, world: &World, now: Mono) {
        if !self.index.is_missed(name.as_str()) {
            if self.missing.remove(name).is_some() {
                self.find(name, world);
            }
        } else if !self.missing.contains_key(name) {
            let until = now + self.settings.quarantine;
            self.missing.insert(name.clone(), Missing::Quarantined { until });
        }
    }

    /// A node is not missing any more. Should it go again, its pods have a new quarantine: what we asked for and has not
    /// been done by now is not to be done for what was.
    fn find(&mut self, name: &Name, world: &World) {
        for pod in world.pods_on(name.as_str()) {
            if let Some(asked) = self.asked.get_mut(&Key::of(&**pod)) {
                asked.is_found = true;
            }
        }
    }

    /// Whether this very pod is still to be ended for what we asked for it.
    pub fn is_due(&self, key: &Key, uid: Uid, world: &World) -> bool {
        let Some(asked) = self.asked.get(key).filter(|asked| asked.uid == uid) else { return false };
        match asked.cause {
            // That cannot change any more.
            Cause::Ended => true,
            Cause::OutOfService => {
                let node = world.pod(key).and_then(|pod| pod.spec.node_name.as_ref());
                node.is_some_and(|node| self.index.out_of_service.contains(node))
            }
            Cause::Orphaned => !asked.is_found,
            Cause::Unbound => self.index.ending_unbound.contains(key),
        }
    }

    /// A pod that has changed since the store answered may be asked for again.
    fn forget_answer(&mut self, pod: &Pod, is_gone: bool) {
        let key = Key::of(pod);
        let is_over = self.asked.get(&key).is_some_and(|asked| {
            let overtaken = asked.done_at.is_some_and(|version| pod.meta.resource_version > version);
            asked.uid == uid(&pod.meta) && (is_gone || overtaken)
        });
        if is_over {
            self.asked.remove(&key);
        }
    }

    pub fn decide(&mut self, world: &World, now: Now, plan: &mut Plan) {
        let mut left = self.settings.batch;
        self.end_orphans(world, now.mono, &mut left, plan);
        if self.next_pass.is_none_or(|at| at <= now.mono) {
            self.end_ended(world, &mut left, plan);
            self.end_out_of_service(world, &mut left, plan);
            self.ask_for_missing(now.mono, plan);
            self.end_unbound(world, &mut left, plan);
            self.next_pass = Some(now.mono + self.settings.period);
        }
        if left == 0 {
            // There may be more, and it is their turn already.
            self.next_pass = Some(now.mono);
        }
        self.next_pass.into_iter().for_each(|at| plan.wake_by(at));
    }

    /// Pods that have ended, beyond those that are kept.
    fn end_ended(&mut self, world: &World, left: &mut usize, plan: &mut Plan) {
        let Some(kept) = self.settings.kept else { return };
        let excess = self.index.ended.len().saturating_sub(kept);
        let keys = self.not_asked(self.index.ended.iter().take(excess).map(|rank| &rank.key), *left);
        self.end_all(keys, world, left, plan, Cause::Ended);
    }

    /// Pods being deleted on nodes that are off, as somebody vouches.
    fn end_out_of_service(&mut self, world: &World, left: &mut usize, plan: &mut Plan) {
        let nodes = self.index.out_of_service.iter();
        let keys = self.not_asked(nodes.flat_map(|node| self.index.ending_on(node.as_str())), *left);
        self.end_all(keys, world, left, plan, Cause::OutOfService);
    }

    /// Nodes that have been missing for long enough: the store itself has the last word.
    fn ask_for_missing(&mut self, now: Mono, plan: &mut Plan) {
        for (name, missing) in &mut self.missing {
            let is_over = matches!(missing, Missing::Quarantined { until } if *until <= now);
            // An answer to an earlier question, from before it came and went again, would say nothing.
            if is_over && self.questions.insert(name.clone()) {
                *missing = Missing::Asked;
                // Any bearer of the name will do, so nobody's uid is given.
                let subject = Subject::Node(name.clone(), nobody());
                plan.act(ControllerName::PodGc, subject, Action::ReadNode, "it is missing, and pods name it");
            }
        }
    }

    /// Pods of nodes that the store does not have.
    fn end_orphans(&mut self, world: &World, now: Mono, left: &mut usize, plan: &mut Plan) {
        while let Some(name) = self.gone.first().cloned() {
            if self.missing.get(&name) != Some(&Missing::Gone) {
                self.gone.remove(&name); // It came back.
                continue;
            }
            let keys: Vec<Key> = world.pods_on(name.as_str()).map(|pod| Key::of(&**pod)).collect();
            let keys = self.not_asked(keys.iter(), *left);
            self.end_all(keys, world, left, plan, Cause::Orphaned);
            if *left == 0 {
                return; // There may be more of them.
            }
            // Should some of them stay, the node is missed once more from now on.
            let until = now + self.settings.quarantine;
            self.gone.remove(&name);
            self.missing.insert(name, Missing::Quarantined { until });
        }
    }

    /// Pods being deleted that were never bound.
    fn end_unbound(&mut self, world: &World, left: &mut usize, plan: &mut Plan) {
        let keys = self.not_asked(self.index.ending_unbound.iter(), *left);
        self.end_all(keys, world, left, plan, Cause::Unbound);
    }

    /// The first of them whose end we have not asked for, at most so many.
    fn not_asked<'a>(&self, keys: impl Iterator<Item = &'a Key>, most: usize) -> Vec<Key> {
        keys.filter(|key| !self.asked.contains_key(key)).take(most).cloned().collect()
    }

    fn end_all(&mut self, keys: Vec<Key>, world: &World, left: &mut usize, plan: &mut Plan, cause: Cause) {
        let why = cause.why();
        for key in keys {
            let Some(pod) = world.pod(&key) else { continue };
            let mark = (!pod.is_finished()).then(|| EndMark {
                reason: DELETION_BY_POD_GC.to_owned(),
                message: format!("PodGC: {why}"),
                fail: true,
            });
            let action = Action::EndPod { mark, grace_period_seconds: Some(0) };
            plan.act(ControllerName::PodGc, Subject::of_pod(pod), action, why);
            self.asked.insert(key, Asked { uid: uid(&pod.meta), cause, is_found: false, done_at: None });
            *left -= 1;
        }
    }

    pub fn settle(&mut self, outcome: &Outcome, _world: &World, now: Now) {
        match &outcome.subject {
            Subject::Node(name, _) => self.settle_question(name, &outcome.result, now.mono),
            Subject::Pod(key, uid) => self.settle_end(key, *uid, &outcome.result),
            Subject::Lease(_) => {}
        }
    }

    fn settle_question(&mut self, name: &Name, result: &Result<Answer, Failure>, now: Mono) {
        self.questions.remove(name);
        // If it came back meanwhile, or is missed anew, this is the answer to an old question.
        let Some(missing) = self.missing.get_mut(name).filter(|missing| **missing == Missing::Asked) else {
            return;
        };
        *missing = match result {
            Err(Failure::Gone) => {
                self.gone.insert(name.clone());
                Missing::Gone
            }
            _ => Missing::Quarantined { until: now + self.settings.quarantine },
        };
    }

    fn settle_end(&mut self, key: &Key, uid: Uid, result: &Result<Answer, Failure>) {
        let Some(asked) = self.asked.get_mut(key).filter(|asked| asked.uid == uid) else { return };
        match result {
            Ok(Answer::Pod(pod)) => asked.done_at = Some(pod.meta.resource_version),
            // The next pass will look at it again.
            _ => drop(self.asked.remove(key)),
        }
    }

    /// The pods that are being deleted on that node.
    pub fn ending_on(&self, node: &str) -> impl Iterator<Item = &Key> {
        self.index.ending_on(node)
    }

    /// What awaits the pods of that node.
    pub fn explain_node(&self, node: &str) -> Prospect {
        match self.missing.get(node) {
            Some(Missing::Quarantined { until }) => Prospect::Orphaned { until: *until },
            Some(Missing::Asked | Missing::Gone) => Prospect::Condemned,
            None if self.index.out_of_service.contains(node) => {
                Prospect::OutOfService { at: self.next_pass.unwrap_or(Mono::ZERO) }
            }
            None => Prospect::Left,
        }
    }
}

/// The uid that no record has.
fn nobody() -> Uid {
    "00000000-0000-0000-0000-000000000000".parse().expect("this is how a uid is written")
}
