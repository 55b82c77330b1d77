//! The state of all pods: a fold of all observations and outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_proto::event::Event;
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::pod::Pod;

use super::container::{ContainerReport, Hook};
use super::mirrors::MirrorState;
use super::plan::{Action, Outcome, PodTermination};
use super::pod_state::{Admission, Held, PodState};
use crate::admission::{self, NodeFacts};
use muster_proto::time::Now;

/// The current state of the node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    pub facts: NodeFacts,
    /// The uid of the node's record; `None` before there is one.
    pub uid: Option<Uid>,
    /// The address of pods on the host network.
    pub host_ip: Option<IpAddr>,
}

/// What the runtime reports of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodReport {
    /// The pod's grace period, if the runtime kept it: the record may be gone from the store before the agent starts.
    pub own_grace: Option<Duration>,
    pub containers: BTreeMap<String, ContainerReport>,
}

impl PodReport {
    /// Whether one of its containers ran in the current boot.
    pub(super) fn is_this_boot(&self) -> bool {
        self.containers.values().any(|found| found.is_this_boot)
    }
}

/// The state of all pods on this node.
#[derive(Clone, Debug, Default)]
pub struct PodStates {
    pub(super) entries: BTreeMap<Uid, PodState>,
    pub(super) node: Option<NodeState>,
    /// The node as the agent knows it without the store: what static pods are admitted by until there is a record.
    pub(super) local: Option<NodeState>,
    pub(super) mirrors: BTreeMap<Key, MirrorState>,
    reports: BTreeMap<Uid, PodReport>,
    has_pods: bool,
    /// Whether the directory of static pods was read: before that, no container is an orphan.
    pub(super) has_static: bool,
    has_containers: bool,
    /// Events that have not been taken yet.
    events: Vec<Event>,
    /// Pods that the store said are gone, until a list confirms it.
    pub(super) gone: BTreeSet<Uid>,
}

impl PodStates {
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether store and runtime have been listed: before that, a missing pod means nothing.
    pub fn has_listed_all(&self) -> bool {
        self.has_pods && self.has_containers
    }

    /// Whether there is a node too, so that pods can be started and posted.
    pub fn is_complete(&self) -> bool {
        self.has_listed_all() && self.node.is_some()
    }

    /// Whether everything is known that the pod's state follows from.
    pub(super) fn is_settled(&self, pod_state: &PodState) -> bool {
        self.has_containers && pod_state.is_settled(self.has_pods, self.has_static)
    }

    /// The node that the pod is admitted by.
    pub(super) fn node_of(&self, pod_state: &PodState) -> Option<&NodeState> {
        self.node.as_ref().or(self.local.as_ref().filter(|_| pod_state.is_static))
    }

    /// Observes the node as the agent knows it without the store.
    pub fn observe_local_node(&mut self, node: NodeState, now: Now) {
        self.local = Some(node);
        self.settle(now);
    }

    /// Observes the node; `None` if there is none, or the store accepts another agent for it.
    pub fn observe_node(&mut self, node: Option<NodeState>, now: Now) {
        self.node = node;
        self.settle(now);
    }

    /// Observes all pods that the store binds to this node. A pod that is not among them has vanished, so this must
    /// only be called with a complete list of a connected watch.
    pub fn observe_pods<'a>(&mut self, pods: impl IntoIterator<Item = &'a Pod>, now: Now) {
        self.has_pods = true;
        let (mut listed, mut mirrors) = (BTreeSet::new(), Vec::new());
        for pod in pods {
            let Some(uid) = pod.meta.uid else {
                continue; // The store gives every record a uid.
            };
            listed.insert(uid);
            match self.gone.contains(&uid) {
                true => {}
                // Only shows a pod: what it shows runs from a file, or does not run.
                false if pod.is_mirror() => mirrors.push(pod),
                false => self.entries.entry(uid).or_insert_with(|| PodState::new(uid)).observe_pod(pod),
            }
        }
        self.gone.retain(|uid| listed.contains(uid));
        for (uid, pod_state) in self.entries.iter_mut().filter(|(_, pod_state)| pod_state.pod.is_some()) {
            if !listed.contains(uid) && !pod_state.is_static {
                pod_state.stop_causes.vanished.get_or_insert(now.mono);
            }
        }
        self.observe_mirrors(mirrors);
        self.settle(now);
    }

    /// Observes all static pods of this node. One that is not among them has to stop.
    pub fn observe_static_pods<'a>(&mut self, pods: impl IntoIterator<Item = &'a Pod>, now: Now) {
        self.has_static = true;
        let mut listed = BTreeSet::new();
        for (pod, uid) in pods.into_iter().filter_map(|pod| Some((pod, pod.meta.uid?))) {
            listed.insert(uid);
            self.entries.entry(uid).or_insert_with(|| PodState::new(uid)).observe_static_pod(pod);
        }
        for (uid, pod_state) in self.entries.iter_mut().filter(|(_, pod_state)| pod_state.is_static) {
            if !listed.contains(uid) {
                pod_state.stop_causes.vanished.get_or_insert(now.mono);
            }
        }
        self.settle(now);
    }

    /// Observes everything that the runtime has, as it is after all outcomes observed so far.
    pub fn observe_containers(&mut self, reports: BTreeMap<Uid, PodReport>, now: Now) {
        self.has_containers = true;
        self.reports = reports;
        for (uid, report) in &self.reports {
            let pod_state = self.entries.entry(*uid).or_insert_with(|| PodState::found(*uid));
            pod_state.kept_grace = report.own_grace.or(pod_state.kept_grace);
        }
        for pod_state in self.entries.values_mut() {
            pod_state.observe_containers(self.reports.get(&pod_state.uid), now);
        }
        self.settle(now);
    }

    /// The node terminates a pod. A second termination changes nothing.
    pub fn terminate(&mut self, uid: Uid, termination: PodTermination, now: Now) {
        if let Some(pod_state) = self.entries.get_mut(&uid) {
            pod_state.terminate(termination, now);
        }
        self.settle(now);
    }

    /// A stop hook has ended, whether or not it succeeded.
    pub fn hook_ended(&mut self, uid: Uid, container: &str) {
        let pod_state = self.entries.get_mut(&uid);
        if let Some(container_state) = pod_state.and_then(|pod_state| pod_state.containers.get_mut(container))
        {
            container_state.hook = Hook::Done;
        }
    }

    /// An action is in progress. Until its outcome is observed, there is no other call of the store for the pod, and
    /// the container is neither started again nor sent TERM.
    pub fn begin(&mut self, action: &Action, now: Now) {
        self.begin_mirror(action);
        if let Some(pod_state) = action.uid().and_then(|uid| self.entries.get_mut(&uid)) {
            pod_state.begin(action, now);
        }
    }

    /// Observes the outcome of an action.
    pub fn observe(&mut self, action: &Action, outcome: Outcome, now: Now) {
        self.observe_mirror_outcome(action, &outcome, now);
        let Some(uid) = action.uid() else {
            return self.settle(now);
        };
        let is_static = self.entries.get(&uid).is_some_and(|pod_state| pod_state.is_static);
        if outcome == Outcome::Gone && !is_static {
            self.gone.insert(uid);
        }
        if matches!((action, &outcome), (Action::Release { keeps_files: false, .. }, Outcome::Done)) {
            self.reports.remove(&uid); // Otherwise the pod would be restored from it if it came back.
        }
        if let Some(pod_state) = self.entries.get_mut(&uid) {
            pod_state.observe(action, outcome, now);
        }
        self.settle(now);
    }

    /// Derives what follows from the observations: restored state, stop causes, admission, events.
    fn settle(&mut self, now: Now) {
        if !self.has_containers {
            return;
        }
        self.assign_mirrors();
        let (has_pods, has_static) = (self.has_pods, self.has_static);
        let settled =
            self.entries.values_mut().filter(|pod_state| pod_state.is_settled(has_pods, has_static));
        for pod_state in settled {
            pod_state.restore(self.reports.get(&pod_state.uid), now);
            pod_state.update_stop_causes(now);
            pod_state.record_back_offs();
        }
        self.admit(now);
        self.collect_events();
        let is_left = |pod_state: &PodState| !pod_state.is_stopped() || pod_state.held > Held::Nothing;
        self.entries.retain(|_, pod_state| pod_state.stop_causes.vanished.is_none() || is_left(pod_state));
    }

    /// Admits or rejects the pods that are not admitted yet, the oldest first: it was scheduled before the others.
    fn admit(&mut self, now: Now) {
        let is_open =
            |pod_state: &&PodState| matches!(pod_state.admission, Admission::Open | Admission::NodeRead);
        let mut open: Vec<(Arc<Pod>, Uid)> = self
            .entries
            .values()
            .filter(is_open)
            .filter(|pod_state| !pod_state.is_stopping() && self.is_settled(pod_state))
            .filter(|pod_state| !self.follows_another(pod_state))
            .filter_map(|pod_state| Some((pod_state.pod.clone()?, pod_state.uid)))
            .collect();
        open.sort_by(|(a, _), (b, _)| {
            let order =
                |pod: &Pod| (pod.meta.creation_timestamp, pod.meta.namespace.clone(), pod.meta.name.clone());
            order(a).cmp(&order(b))
        });
        for (pod, uid) in open {
            let others: Vec<Arc<Pod>> = self
                .entries
                .values()
                .filter(|pod_state| pod_state.is_active())
                .filter_map(|pod_state| pod_state.pod.clone())
                .collect();
            let others: Vec<&Pod> = others.iter().map(AsRef::as_ref).collect();
            let Some(node) = self.entries.get(&uid).and_then(|pod_state| self.node_of(pod_state)) else {
                continue;
            };
            let rejections = admission::rejections(&pod, &node.facts, &others);
            let Some(pod_state) = self.entries.get_mut(&uid) else {
                continue;
            };
            // A static pod does not wait for the store.
            let is_first_look = pod_state.admission == Admission::Open && !pod_state.is_static;
            pod_state.admission = match rejections.first() {
                None => {
                    pod_state.held = Held::All;
                    Admission::Admitted
                }
                Some(_) if is_first_look && admission::may_be_stale(&rejections) => Admission::NodeWanted,
                Some(first) => {
                    pod_state.record_rejected(first);
                    Admission::Rejected(first.clone())
                }
            };
            pod_state.update_stop_causes(now);
        }
    }

    /// Whether a static pod of the same name, from the file as it was before, has not stopped yet: ports and paths of the
    /// two would collide.
    fn follows_another(&self, pod_state: &PodState) -> bool {
        let Some(key) = pod_state.pod.as_deref().map(Key::of).filter(|_| pod_state.is_static) else {
            return false;
        };
        let is_other = |other: &&PodState| other.is_static && other.uid != pod_state.uid;
        self.entries
            .values()
            .filter(is_other)
            .any(|other| other.pod.as_deref().map(Key::of).as_ref() == Some(&key))
    }
}

impl PodStates {
    /// The events since the last call, to be recorded.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// An agent that does not act for the node records nothing: another agent may.
    fn collect_events(&mut self) {
        // The store records events of pods that it has, so those of a static pod wait for its mirror.
        let has_record = |pod_state: &&mut PodState| !pod_state.is_static || pod_state.mirror.is_some();
        let recorded = self.entries.values_mut().filter(has_record);
        let events = recorded.flat_map(|pod_state| std::mem::take(&mut pod_state.events));
        if self.node.is_some() {
            self.events.extend(events);
        } else {
            events.for_each(drop);
        }
    }

    /// The newest known record of a pod.
    pub fn pod(&self, uid: Uid) -> Option<&Arc<Pod>> {
        self.entries.get(&uid)?.pod.as_ref()
    }

    /// The pods that use the node's allocatable resources: admitted and not yet stopped.
    pub fn active(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.entries
            .values()
            .filter(|pod_state| pod_state.is_active())
            .filter_map(|pod_state| pod_state.pod.as_ref())
    }

    /// The active pods that nothing stops so far.
    pub fn not_stopping(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let stays = |pod_state: &&PodState| pod_state.is_active() && !pod_state.is_stopping();
        self.entries.values().filter(stays).filter_map(|pod_state| pod_state.pod.as_ref())
    }

    /// The pods that have stopped, of which the machine may still have files.
    pub fn stopped(&self) -> impl Iterator<Item = Uid> {
        self.entries.values().filter(|pod_state| pod_state.is_stopped()).map(|pod_state| pod_state.uid)
    }

    /// Whether more than files of the pod is left on the machine.
    pub fn is_present(&self, uid: Uid) -> bool {
        self.entries.get(&uid).is_some_and(|pod_state| !pod_state.is_stopped())
    }
}
