//! The fold: everything seen and everything done, kept as what is known of each pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_proto::name::Uid;
use muster_proto::pod::Pod;

use super::container::{Found, Hook};
use super::plan::{Action, Ending, Outcome};
use super::pod_state::{Admission, Entry, Holds};
use crate::admission::{self, Site};
use muster_proto::time::Now;

/// What the node is like at the moment.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    pub site: Site,
    /// The address that pods on the node's network have.
    pub host_ip: Option<IpAddr>,
}

/// What the runtime has of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodReport {
    /// The pod's own grace, if the runtime kept it: a pod may be gone from the store before we start.
    pub own_grace: Option<Duration>,
    pub containers: BTreeMap<String, Found>,
}

impl PodReport {
    /// Whether any of its containers ran since the machine came up.
    pub(super) fn is_this_boot(&self) -> bool {
        self.containers.values().any(|found| found.is_this_boot)
    }
}

/// All that is known of the pods on this node.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(super) entries: BTreeMap<Uid, Entry>,
    pub(super) node: Option<NodeState>,
    reports: BTreeMap<Uid, PodReport>,
    has_pods: bool,
    has_containers: bool,
    /// Pods the store said are gone, until a listing agrees.
    gone: BTreeSet<Uid>,
}

impl Ledger {
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether store and runtime have been seen: before that, nothing can be concluded from what is missing.
    pub fn has_seen_all(&self) -> bool {
        self.has_pods && self.has_containers
    }

    /// Whether there also is a node, so that its pods can be begun and spoken of.
    pub fn is_complete(&self) -> bool {
        self.has_seen_all() && self.node.is_some()
    }

    /// Takes in what the node is like now; `None` when there is none, or it is not ours to act for.
    pub fn see_node(&mut self, node: Option<NodeState>, now: Now) {
        self.node = node;
        self.settle(now);
    }

    /// Takes in all pods that the store binds to this node. What is not among them has vanished, so this is
    /// for complete lists only: cut off from the store, show nothing.
    pub fn see_pods<'a>(&mut self, pods: impl IntoIterator<Item = &'a Pod>, now: Now) {
        self.has_pods = true;
        let mut listed = BTreeSet::new();
        for pod in pods {
            let Some(uid) = pod.meta.uid else {
                continue; // The store names every record it holds.
            };
            listed.insert(uid);
            if !self.gone.contains(&uid) {
                self.entries.entry(uid).or_insert_with(|| Entry::new(uid)).see(pod);
            }
        }
        self.gone.retain(|uid| listed.contains(uid));
        for (uid, entry) in &mut self.entries {
            if !listed.contains(uid) {
                entry.stops.vanished.get_or_insert(now.mono);
            }
        }
        self.settle(now);
    }

    /// Takes in all that the runtime has, as it is after every outcome observed so far.
    pub fn see_containers(&mut self, reports: BTreeMap<Uid, PodReport>, now: Now) {
        self.has_containers = true;
        self.reports = reports;
        for (uid, report) in &self.reports {
            let entry = self.entries.entry(*uid).or_insert_with(|| Entry::found(*uid));
            entry.kept_grace = report.own_grace.or(entry.kept_grace);
        }
        for entry in self.entries.values_mut() {
            entry.see_containers(self.reports.get(&entry.uid), now);
        }
        self.settle(now);
    }

    /// Takes in that the node itself ends a pod. A second ending changes nothing.
    pub fn end(&mut self, uid: Uid, ending: Ending, now: Now) {
        if let Some(entry) = self.entries.get_mut(&uid) {
            entry.end(ending, now);
        }
        self.settle(now);
    }

    /// Takes in that a stop hook is over, however it went.
    pub fn hook_ended(&mut self, uid: Uid, container: &str) {
        let entry = self.entries.get_mut(&uid);
        if let Some(track) = entry.and_then(|entry| entry.containers.get_mut(container)) {
            track.hook = Hook::Over;
        }
    }

    /// Takes in that something is under way. Until its outcome is observed, the store is asked nothing else about the
    /// pod, and the container is neither started again nor asked to stop.
    pub fn begin(&mut self, action: &Action, now: Now) {
        if let Some(entry) = action.uid().and_then(|uid| self.entries.get_mut(&uid)) {
            entry.begin(action, now);
        }
    }

    /// Takes in what came of an action.
    pub fn observe(&mut self, action: &Action, outcome: Outcome, now: Now) {
        let Some(uid) = action.uid() else {
            return;
        };
        if outcome == Outcome::Gone {
            self.gone.insert(uid);
        }
        if matches!((action, &outcome), (Action::Release { keeps_files: false, .. }, Outcome::Done)) {
            self.reports.remove(&uid); // Or the pod would be recognised by it, should it come back.
        }
        if let Some(entry) = self.entries.get_mut(&uid) {
            entry.observe(action, outcome, now);
        }
        self.settle(now);
    }

    /// Draws the conclusions that need nobody's help.
    fn settle(&mut self, now: Now) {
        if !self.has_seen_all() {
            return;
        }
        for entry in self.entries.values_mut() {
            entry.recognise(self.reports.get(&entry.uid), now);
            entry.conclude(now);
        }
        self.admit(now);
        let is_left = |entry: &Entry| !entry.is_over() || entry.holds > Holds::Nothing;
        self.entries.retain(|_, entry| entry.stops.vanished.is_none() || is_left(entry));
    }

    /// Looks at the pods that nobody looked at, the oldest first: it was promised the room before the rest.
    fn admit(&mut self, now: Now) {
        let Some(node) = &self.node else {
            return;
        };
        let is_open = |entry: &&Entry| matches!(entry.admission, Admission::Open | Admission::NodeRead);
        let mut open: Vec<(Arc<Pod>, Uid)> = self
            .entries
            .values()
            .filter(is_open)
            .filter(|entry| !entry.is_stopping())
            .filter_map(|entry| Some((entry.pod.clone()?, entry.uid)))
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
                .filter(|entry| entry.is_active())
                .filter_map(|entry| entry.pod.clone())
                .collect();
            let others: Vec<&Pod> = others.iter().map(AsRef::as_ref).collect();
            let objections = admission::objections(&pod, &node.site, &others);
            let Some(entry) = self.entries.get_mut(&uid) else {
                continue;
            };
            let is_first_look = entry.admission == Admission::Open;
            entry.admission = match objections.first() {
                None => {
                    entry.holds = Holds::All;
                    Admission::Admitted
                }
                Some(_) if is_first_look && admission::worth_a_fresh_look(&objections) => {
                    Admission::NodeWanted
                }
                Some(first) => Admission::Rejected(first.clone()),
            };
            entry.conclude(now);
        }
    }
}

impl Ledger {
    /// The record of a pod, as new as it is known.
    pub fn pod(&self, uid: Uid) -> Option<&Arc<Pod>> {
        self.entries.get(&uid)?.pod.as_ref()
    }

    /// The pods that take room on this node: admitted and not yet stopped.
    pub fn active(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.entries.values().filter(|entry| entry.is_active()).filter_map(|entry| entry.pod.as_ref())
    }

    /// Those of them that nothing ends so far.
    pub fn staying(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let stays = |entry: &&Entry| entry.is_active() && !entry.is_stopping();
        self.entries.values().filter(stays).filter_map(|entry| entry.pod.as_ref())
    }

    /// The pods that have ended, of which the machine may still have files.
    pub fn over(&self) -> impl Iterator<Item = Uid> {
        self.entries.values().filter(|entry| entry.is_over()).map(|entry| entry.uid)
    }

    /// Whether anything of the pod but files is still on the machine.
    pub fn is_present(&self, uid: Uid) -> bool {
        self.entries.get(&uid).is_some_and(|entry| !entry.is_over())
    }
}
