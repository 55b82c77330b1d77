//! The pods that may have to be deleted, kept up to date as records change: no pass looks at all pods.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::pod::{Pod, PodPhase};
use muster_proto::wellknown::taint as keys;

use crate::world::Change;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Index {
    /// Terminated pods in the order they are deleted.
    pub(super) terminated: BTreeSet<DeletionOrder>,
    /// Pods that are being deleted, by the node they are on.
    terminating_on: HashMap<Name, BTreeSet<Key>>,
    /// Pods that are being deleted and were never bound.
    pub(super) terminating_unbound: BTreeSet<Key>,
    /// Nodes that are not Ready and have the out-of-service taint.
    pub(super) out_of_service: BTreeSet<Name>,
    /// How many pods name each node, existing or not.
    pods_per_node: HashMap<Name, usize>,
    nodes: HashSet<Name>,
}

/// The order in which terminated pods are deleted: evicted ones, then the oldest, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeletionOrder {
    ran: bool,
    created: Option<Timestamp>,
    name: Name,
    pub(super) key: Key,
}

/// What the index reads of a pod's record.
#[derive(Debug, PartialEq)]
struct IndexedPod {
    node: Option<Name>,
    is_terminating: bool,
    terminated: Option<DeletionOrder>,
}

impl Index {
    /// Updates the index by a change of a node.
    pub(super) fn observe_node(&mut self, change: &Change<Node>) {
        let name = &change.either().meta.name;
        match &change.new {
            Some(node) => {
                if !self.nodes.contains(name) {
                    self.nodes.insert(name.clone());
                }
                if is_out_of_service(node) {
                    self.out_of_service.insert(name.clone());
                } else {
                    self.out_of_service.remove(name);
                }
            }
            None => {
                self.nodes.remove(name);
                self.out_of_service.remove(name);
            }
        }
    }

    /// Updates the index by a change of a pod. Returns the nodes that it stopped and started to name.
    pub(super) fn observe_pod(&mut self, change: &Change<Pod>) -> [Option<Name>; 2] {
        let (old, new) = change.sides(IndexedPod::of);
        if old == new {
            return [None, None];
        }
        let key = Key::of(&**change.either());
        let moved = old.as_ref().map(|indexed| &indexed.node) != new.as_ref().map(|indexed| &indexed.node);
        let names = [&old, &new].map(|side| side.as_ref().and_then(|indexed| indexed.node.clone()));
        if let Some(indexed) = old {
            self.remove(&key, &indexed);
        }
        if let Some(indexed) = new {
            self.insert(key, indexed);
        }
        if moved { names } else { [None, None] }
    }

    fn insert(&mut self, key: Key, indexed: IndexedPod) {
        self.terminated.extend(indexed.terminated);
        if let Some(node) = &indexed.node {
            *self.pods_per_node.entry(node.clone()).or_default() += 1;
        }
        match indexed.node {
            Some(node) if indexed.is_terminating => {
                self.terminating_on.entry(node).or_default().insert(key);
            }
            None if indexed.is_terminating => {
                self.terminating_unbound.insert(key);
            }
            _ => {}
        }
    }

    fn remove(&mut self, key: &Key, indexed: &IndexedPod) {
        if let Some(rank) = &indexed.terminated {
            self.terminated.remove(rank);
        }
        self.terminating_unbound.remove(key);
        let Some(node) = &indexed.node else { return };
        if let Some(keys) = self.terminating_on.get_mut(node) {
            keys.remove(key);
            if keys.is_empty() {
                self.terminating_on.remove(node);
            }
        }
        if let Some(count) = self.pods_per_node.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                self.pods_per_node.remove(node);
            }
        }
    }

    /// Whether pods name the node and it does not exist.
    pub(super) fn is_missing(&self, node: &str) -> bool {
        self.pods_per_node.contains_key(node) && !self.nodes.contains(node)
    }

    /// The pods that are being deleted on that node.
    pub(super) fn terminating_on(&self, node: &str) -> impl Iterator<Item = &Key> {
        self.terminating_on.get(node).into_iter().flatten()
    }
}

impl IndexedPod {
    fn of(pod: &Pod) -> IndexedPod {
        IndexedPod {
            node: pod.spec.node_name.clone(),
            is_terminating: pod.meta.is_deleting(),
            terminated: pod.is_finished().then(|| DeletionOrder::of(pod)),
        }
    }
}

impl DeletionOrder {
    fn of(pod: &Pod) -> DeletionOrder {
        let was_evicted = pod.status.phase == PodPhase::Failed && pod.status.reason == "Evicted";
        let Pod { meta, .. } = pod;
        DeletionOrder {
            ran: !was_evicted,
            created: meta.creation_timestamp,
            name: meta.name.clone(),
            key: Key::of(pod),
        }
    }
}

/// Whether the node is not Ready and its out-of-service taint says that the machine is off.
fn is_out_of_service(node: &Node) -> bool {
    !node.is_ready() && node.spec.taints.iter().any(|taint| taint.key == keys::OUT_OF_SERVICE)
}
