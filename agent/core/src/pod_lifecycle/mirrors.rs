//! Mirror pods: the records in the store that show the static pods of this node.
//!
//! A static pod comes from a file and runs without the store. Its mirror carries the uid of the static pod in an
//! annotation, so a file that changed, which is another static pod, gets another mirror. A mirror is never run: one
//! without a static pod behind it only waits to be deleted, or is left over from an earlier agent and goes.

use std::sync::Arc;

use muster_proto::key::Key;
use muster_proto::meta::{Metadata, OwnerReference};
use muster_proto::name::Uid;
use muster_proto::pod::{Pod, PodStatus};
use muster_proto::time::{Mono, Now};
use muster_proto::wellknown::annotation;

use super::container::Retry;
use super::plan::{Action, Outcome, Plan};
use super::pod_state::PodState;
use super::pod_states::{NodeState, PodStates};

/// What is known of the mirror of one name.
#[derive(Clone, Debug, Default)]
pub(super) struct MirrorState {
    record: Option<Arc<Pod>>,
    is_calling: bool,
    retry: Retry,
}

/// The uid of the static pod that a mirror shows, as text.
fn shown(mirror: &Pod) -> Option<&str> {
    mirror.meta.annotations.get(annotation::MIRROR).map(String::as_str)
}

/// Whether the record shows this pod, and stays.
fn shows(mirror: &Pod, uid: Uid) -> bool {
    !mirror.meta.is_deleting() && shown(mirror).is_some_and(|shown| shown == uid.to_string())
}

/// The record that shows a static pod of this node in the store.
fn mirror_of(pod: &Pod, uid: Uid, node: &NodeState) -> Option<Pod> {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.facts.name.to_string(),
        uid: node.uid?.to_string(),
        controller: true,
        block_owner_deletion: false,
    };
    let mut meta = Metadata::new(pod.meta.namespace.clone(), pod.meta.name.clone());
    meta.labels.clone_from(&pod.meta.labels);
    meta.annotations.clone_from(&pod.meta.annotations);
    meta.annotations.insert(annotation::MIRROR.to_owned(), uid.to_string());
    meta.owner_references = vec![owner];
    Some(Pod { meta, spec: pod.spec.clone(), status: PodStatus::default() })
}

impl PodStates {
    /// Observes the mirrors among the pods of the store, all of them.
    pub(super) fn observe_mirrors(&mut self, mirrors: Vec<&Pod>) {
        let mut unseen: Vec<Key> = self.mirrors.keys().cloned().collect();
        for mirror in mirrors {
            let key = Key::of(mirror);
            unseen.retain(|held| *held != key);
            let state = self.mirrors.entry(key).or_default();
            // The answer to our own write may be newer than what the watch has delivered.
            let held = state.record.as_ref().map_or(0, |held| held.meta.resource_version);
            if mirror.meta.resource_version > held {
                state.record = Some(Arc::new(mirror.clone()));
            }
        }
        for key in unseen {
            if let Some(state) = self.mirrors.get_mut(&key) {
                state.record = None;
            }
        }
    }

    /// Gives every static pod the mirror that shows it, and forgets names that nothing needs any more.
    pub(super) fn assign_mirrors(&mut self) {
        for pod_state in self.entries.values_mut().filter(|pod_state| pod_state.is_static) {
            let key = pod_state.pod.as_deref().map(Key::of);
            let record = key.and_then(|key| self.mirrors.get(&key)?.record.as_ref());
            pod_state.mirror = record.filter(|mirror| shows(mirror, pod_state.uid)).cloned();
        }
        let has_pod = |key: &Key| {
            let is_its =
                |pod_state: &PodState| pod_state.pod.as_deref().is_some_and(|pod| Key::of(pod) == *key);
            self.entries.values().any(|pod_state| pod_state.is_static && is_its(pod_state))
        };
        self.mirrors.retain(|key, state| state.record.is_some() || state.is_calling || has_pod(key));
    }

    /// Creates the mirrors that are missing, and deletes those that show nothing, or something else.
    pub(super) fn decide_mirrors(&self, now: Mono, plan: &mut Plan) {
        let (Some(node), true) = (&self.node, self.has_listed_all() && self.has_static) else {
            return;
        };
        for pod_state in self.entries.values().filter(|pod_state| pod_state.is_static) {
            let Some(pod) = pod_state.pod.as_deref().filter(|_| !pod_state.is_vanished()) else {
                continue;
            };
            let state = self.mirrors.get(&Key::of(pod));
            let is_free = state.is_none_or(|state| state.record.is_none() && !state.is_calling);
            let not_before = state.map_or(Mono::ZERO, |state| state.retry.not_before);
            let mirror = mirror_of(pod, pod_state.uid, node).filter(|_| is_free);
            if let Some(mirror) = mirror
                && super::decide::due(not_before, now, plan)
            {
                plan.push(Action::CreateMirror { uid: pod_state.uid, mirror: Box::new(mirror) });
            }
        }
        for (key, state) in self.mirrors.iter().filter(|(_, state)| !state.is_calling) {
            let Some(mirror) = state.record.as_deref() else {
                continue;
            };
            if let Some(uid) = mirror.meta.uid.filter(|_| self.is_over(mirror, node))
                && super::decide::due(state.retry.not_before, now, plan)
            {
                plan.push(Action::DeleteMirror { key: key.clone(), uid });
            }
        }
    }

    /// Whether a mirror has to go: somebody deleted it, the pod that it shows is gone, or the pod runs again although the
    /// mirror says that it has finished.
    fn is_over(&self, mirror: &Pod, node: &NodeState) -> bool {
        if mirror.meta.is_deleting() {
            return true;
        }
        let is_shown = |pod_state: &&PodState| pod_state.is_static && shows(mirror, pod_state.uid);
        match self.entries.values().find(is_shown) {
            Some(pod_state) => mirror.is_finished() && !pod_state.is_stopping(),
            // What another client annotated is not ours to delete.
            None => mirror
                .meta
                .controller()
                .is_some_and(|owner| owner.kind == "Node" && node.facts.name == owner.name.as_str()),
        }
    }

    pub(super) fn begin_mirror(&mut self, action: &Action) {
        if let Some(key) = action.mirror_key() {
            self.mirrors.entry(key).or_default().is_calling = true;
        }
    }

    /// Observes the outcome of a call that concerns a mirror: its creation, its deletion, or a report to it.
    pub(super) fn observe_mirror_outcome(&mut self, action: &Action, outcome: &Outcome, now: Now) {
        if let Some(key) = action.mirror_key() {
            let state = self.mirrors.entry(key).or_default();
            state.is_calling = false;
            match (action, outcome) {
                (_, Outcome::Stored(mirror)) => {
                    state.record = Some(Arc::new((**mirror).clone()));
                    state.retry = Retry::default();
                }
                (Action::DeleteMirror { uid, .. }, Outcome::Gone) => {
                    state.record = None;
                    self.gone.insert(*uid);
                }
                _ => state.retry.fail(now.mono),
            }
        }
        if let Action::Report { key, uid, .. } = action
            && self.entries.get(uid).is_some_and(|pod_state| pod_state.is_static)
            && let Some(state) = self.mirrors.get_mut(key)
        {
            match outcome {
                Outcome::Stored(mirror) => state.record = Some(Arc::new((**mirror).clone())),
                Outcome::Gone => state.record = None,
                _ => {}
            }
        }
    }

    /// The record in the store that has a pod's status: the pod's own, or that of its mirror.
    pub fn record(&self, uid: Uid) -> Option<&Arc<Pod>> {
        let pod_state = self.entries.get(&uid)?;
        if pod_state.is_static { pod_state.mirror.as_ref() } else { pod_state.pod.as_ref() }
    }
}
