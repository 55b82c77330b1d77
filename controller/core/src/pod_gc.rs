//! Deletes pods that no agent will ever remove.
//!
//! Four kinds, looked for periodically: terminated pods beyond a threshold; pods being deleted on a node with the
//! out-of-service taint; pods of a node that does not exist; pods being deleted that were never bound. This is the only
//! controller that deletes pods without a grace period: in all four cases no agent can confirm that the pod has
//! stopped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use muster_proto::event::EventType;
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use self::index::Index;
use crate::decision::{Rule, causes};
use crate::plan::{Action, Answer, ControllerName, EndMark, Failure, Outcome, Plan, Subject, event, uid};
use crate::world::{Delta, World};
use muster_proto::time::Now;

mod index;
#[cfg(test)]
mod tests;

/// Times and limits of pod GC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The time between two passes.
    pub period: Duration,
    /// How long a node must be missing before its pods are deleted.
    pub quarantine: Duration,
    /// How many terminated pods are kept; `None` keeps all.
    pub terminated_pod_threshold: Option<usize>,
    /// How many pods are deleted in one decision.
    pub batch: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            period: Duration::from_secs(20),
            quarantine: Duration::from_secs(40),
            terminated_pod_threshold: Some(12_500),
            batch: 256,
        }
    }
}

#[derive(Clone, Debug)]
pub struct PodGc {
    settings: Settings,
    index: Index,
    /// Nodes that pods name and that do not exist.
    missing: BTreeMap<Name, Missing>,
    /// Missing nodes that the store does not have either, and whose pods are still to be deleted.
    gone: BTreeSet<Name>,
    /// Nodes that are being read from the store, whether or not they are still missing.
    reads_in_flight: BTreeSet<Name>,
    /// Pods whose deletion is in flight or was done.
    deletions: HashMap<Key, PlannedDeletion>,
    /// `None` before the first pass.
    next_pass: Option<Mono>,
}

/// What is known of a missing node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// The watch may be late, or the node may be registered again.
    Quarantined { until: Mono },
    /// The node is being read from the store.
    Reading,
    /// The store has no such node.
    Gone,
}

/// A deletion that was planned.
#[derive(Clone, Copy, Debug)]
struct PlannedDeletion {
    uid: Uid,
    cause: Cause,
    /// Whether the node, which was missing, has existed since then.
    node_is_back: bool,
    /// The version of the record after the deletion: it may remain because of finalizers, with nothing more to do.
    deleted_version: Option<u64>,
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Terminated,
    OutOfService,
    Orphaned,
    Unbound,
}

impl Cause {
    fn rule(self) -> Rule {
        match self {
            Cause::Terminated => Rule::GcTerminatedPods,
            Cause::OutOfService => Rule::GcOutOfService,
            Cause::Orphaned => Rule::GcNodeMissing,
            Cause::Unbound => Rule::GcNeverBound,
        }
    }

    fn why(self) -> &'static str {
        match self {
            Cause::Terminated => "too many pods have ended",
            Cause::OutOfService => "the node is out of service",
            Cause::Orphaned => "node no longer exists",
            Cause::Unbound => "the pod was never bound",
        }
    }
}

/// What pod GC is going to do with the pods of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodGcForecast {
    /// Nothing: their agent stops them.
    None,
    /// Pods being deleted are removed at that time: the out-of-service taint says that the machine is off.
    OutOfService { at: Mono },
    /// There is no such node. Unless it comes back until then, all pods are deleted.
    NodeMissing { until: Mono },
    /// There is no such node, and the store is asked to confirm that, or has confirmed it.
    Deleting,
}

const DELETION_BY_POD_GC: &str = "DeletionByPodGC";

impl PodGc {
    pub fn new(settings: Settings) -> PodGc {
        PodGc {
            settings,
            index: Index::default(),
            missing: BTreeMap::new(),
            gone: BTreeSet::new(),
            reads_in_flight: BTreeSet::new(),
            deletions: HashMap::new(),
            next_pass: None,
        }
    }

    pub fn observe(&mut self, delta: &Delta, world: &World, now: Now) {
        match delta {
            Delta::Node(change) => {
                self.index.observe_node(change);
                self.update_missing(&change.either().meta.name, world, now.mono);
            }
            Delta::Pod(change) => {
                let pod = change.either();
                self.forget_deletion(pod, change.new.is_none());
                for name in self.index.observe_pod(change).into_iter().flatten() {
                    self.update_missing(&name, world, now.mono);
                }
            }
        }
    }

    /// Updates whether the node is missing.
    fn update_missing(&mut self, name: &Name, world: &World, now: Mono) {
        if !self.index.is_missing(name.as_str()) {
            if self.missing.remove(name).is_some() {
                self.mark_back(name, world);
            }
        } else if !self.missing.contains_key(name) {
            let until = now + self.settings.quarantine;
            self.missing.insert(name.clone(), Missing::Quarantined { until });
        }
    }

    /// A node is not missing any more. If it goes missing again, its pods get a new quarantine: deletions that were
    /// planned and not yet performed must not be performed for the earlier absence.
    fn mark_back(&mut self, name: &Name, world: &World) {
        for pod in world.pods_on(name.as_str()) {
            if let Some(deletion) = self.deletions.get_mut(&Key::of(&**pod)) {
                deletion.node_is_back = true;
            }
        }
    }

    /// Whether the planned deletion of the pod, which is not performed yet, still has its cause.
    pub fn is_due(&self, key: &Key, uid: Uid, world: &World) -> bool {
        let Some(deletion) = self.deletions.get(key).filter(|deletion| deletion.uid == uid) else {
            return false;
        };
        match deletion.cause {
            // A terminated pod stays so.
            Cause::Terminated => true,
            Cause::OutOfService => {
                let node = world.pod(key).and_then(|pod| pod.spec.node_name.as_ref());
                node.is_some_and(|node| self.index.out_of_service.contains(node))
            }
            Cause::Orphaned => !deletion.node_is_back,
            Cause::Unbound => self.index.terminating_unbound.contains(key),
        }
    }

    /// A pod that has changed since its deletion may be deleted again.
    fn forget_deletion(&mut self, pod: &Pod, is_gone: bool) {
        let key = Key::of(pod);
        let is_over = self.deletions.get(&key).is_some_and(|deletion| {
            let overtaken =
                deletion.deleted_version.is_some_and(|version| pod.meta.resource_version > version);
            deletion.uid == uid(&pod.meta) && (is_gone || overtaken)
        });
        if is_over {
            self.deletions.remove(&key);
        }
    }

    pub fn decide(&mut self, world: &World, now: Now, plan: &mut Plan) {
        let mut left = self.settings.batch;
        self.delete_orphans(world, now.mono, &mut left, plan);
        if self.next_pass.is_none_or(|at| at <= now.mono) {
            self.delete_terminated(world, &mut left, plan);
            self.delete_out_of_service(world, &mut left, plan);
            self.read_missing_nodes(now.mono, plan);
            self.delete_unbound(world, &mut left, plan);
            self.next_pass = Some(now.mono + self.settings.period);
        }
        if left == 0 {
            // There may be more pods, and they are due already.
            self.next_pass = Some(now.mono);
        }
        self.next_pass.into_iter().for_each(|at| plan.wake_by(at));
    }

    /// Terminated pods beyond the threshold.
    fn delete_terminated(&mut self, world: &World, left: &mut usize, plan: &mut Plan) {
        let Some(threshold) = self.settings.terminated_pod_threshold else { return };
        let excess = self.index.terminated.len().saturating_sub(threshold);
        let keys =
            self.without_deletion(self.index.terminated.iter().take(excess).map(|rank| &rank.key), *left);
        self.delete_all(keys, world, left, plan, Cause::Terminated);
    }

    /// Pods being deleted on nodes that are out of service.
    fn delete_out_of_service(&mut self, world: &World, left: &mut usize, plan: &mut Plan) {
        let nodes = self.index.out_of_service.iter();
        let keys =
            self.without_deletion(nodes.flat_map(|node| self.index.terminating_on(node.as_str())), *left);
        self.delete_all(keys, world, left, plan, Cause::OutOfService);
    }

    /// Reads nodes from the store whose quarantine is over: the watch could be late.
    fn read_missing_nodes(&mut self, now: Mono, plan: &mut Plan) {
        for (name, missing) in &mut self.missing {
            let is_over = matches!(missing, Missing::Quarantined { until } if *until <= now);
            // The outcome of an earlier read, from before the node came back and went again, proves nothing.
            if is_over && self.reads_in_flight.insert(name.clone()) {
                *missing = Missing::Reading;
                // Any node of that name counts, so the uid is that of no node.
                let subject = Subject::Node(name.clone(), no_uid());
                plan.act(
                    ControllerName::PodGc,
                    subject,
                    Action::ReadNode,
                    "it is missing, and pods name it",
                    [],
                );
            }
        }
    }

    /// Pods of nodes that the store does not have.
    fn delete_orphans(&mut self, world: &World, now: Mono, left: &mut usize, plan: &mut Plan) {
        while let Some(name) = self.gone.first().cloned() {
            if self.missing.get(&name) != Some(&Missing::Gone) {
                self.gone.remove(&name); // It came back.
                continue;
            }
            let keys: Vec<Key> = world.pods_on(name.as_str()).map(|pod| Key::of(&**pod)).collect();
            let keys = self.without_deletion(keys.iter(), *left);
            self.delete_all(keys, world, left, plan, Cause::Orphaned);
            if *left == 0 {
                return; // There may be more pods.
            }
            // If some of the pods remain, the node goes through another quarantine.
            let until = now + self.settings.quarantine;
            self.gone.remove(&name);
            self.missing.insert(name, Missing::Quarantined { until });
        }
    }

    /// Pods being deleted that were never bound.
    fn delete_unbound(&mut self, world: &World, left: &mut usize, plan: &mut Plan) {
        let keys = self.without_deletion(self.index.terminating_unbound.iter(), *left);
        self.delete_all(keys, world, left, plan, Cause::Unbound);
    }

    /// The first of the keys without a planned deletion, at most `most`.
    fn without_deletion<'a>(&self, keys: impl Iterator<Item = &'a Key>, most: usize) -> Vec<Key> {
        keys.filter(|key| !self.deletions.contains_key(key)).take(most).cloned().collect()
    }

    fn delete_all(&mut self, keys: Vec<Key>, world: &World, left: &mut usize, plan: &mut Plan, cause: Cause) {
        let why = cause.why();
        for key in keys {
            let Some(pod) = world.pod(&key) else { continue };
            let mark = (!pod.is_finished()).then(|| EndMark {
                reason: DELETION_BY_POD_GC.to_owned(),
                message: format!("PodGC: {why}"),
                fail: true,
            });
            let action = Action::EndPod { mark, grace_period_seconds: Some(0) };
            let decided = causes::gc(cause.rule(), why, pod.spec.node_name.as_ref());
            plan.act(ControllerName::PodGc, Subject::of_pod(pod), action, why, [decided]);
            if let (Cause::Orphaned, Some(node)) = (cause, &pod.spec.node_name) {
                let message = format!("Node {node} does not exist, so the pod is removed");
                plan.emit(event(&**pod, EventType::Warning, "NodeGone", message));
            }
            self.deletions.insert(
                key,
                PlannedDeletion { uid: uid(&pod.meta), cause, node_is_back: false, deleted_version: None },
            );
            *left -= 1;
        }
    }

    pub fn settle(&mut self, outcome: &Outcome, _world: &World, now: Now) {
        match &outcome.subject {
            Subject::Node(name, _) => self.settle_read(name, &outcome.result, now.mono),
            Subject::Pod(key, uid) => self.settle_deletion(key, *uid, &outcome.result),
            Subject::Lease(_) => {}
        }
    }

    fn settle_read(&mut self, name: &Name, result: &Result<Answer, Failure>, now: Mono) {
        self.reads_in_flight.remove(name);
        // If the node came back meanwhile, or is missing again, this is the outcome of an old read.
        let Some(missing) = self.missing.get_mut(name).filter(|missing| **missing == Missing::Reading) else {
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

    fn settle_deletion(&mut self, key: &Key, uid: Uid, result: &Result<Answer, Failure>) {
        let Some(deletion) = self.deletions.get_mut(key).filter(|deletion| deletion.uid == uid) else {
            return;
        };
        match result {
            Ok(Answer::Pod(pod)) => deletion.deleted_version = Some(pod.meta.resource_version),
            // The next pass finds the pod again.
            _ => drop(self.deletions.remove(key)),
        }
    }

    /// The pods that are being deleted on that node.
    pub fn terminating_on(&self, node: &str) -> impl Iterator<Item = &Key> {
        self.index.terminating_on(node)
    }

    /// What is going to happen to the pods of that node.
    pub fn forecast(&self, node: &str) -> PodGcForecast {
        match self.missing.get(node) {
            Some(Missing::Quarantined { until }) => PodGcForecast::NodeMissing { until: *until },
            Some(Missing::Reading | Missing::Gone) => PodGcForecast::Deleting,
            None if self.index.out_of_service.contains(node) => {
                PodGcForecast::OutOfService { at: self.next_pass.unwrap_or(Mono::ZERO) }
            }
            None => PodGcForecast::None,
        }
    }
}

/// The uid that no record has.
fn no_uid() -> Uid {
    "00000000-0000-0000-0000-000000000000".parse().expect("the constant is a valid uid")
}
