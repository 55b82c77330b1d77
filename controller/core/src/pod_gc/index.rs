//! Who might have to be collected, kept as records change: no pass looks at all pods.

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
    /// Pods that have ended, those first that are missed least.
    pub(super) ended: BTreeSet<Rank>,
    /// Pods that are being deleted, by the node they are on.
    ending_on: HashMap<Name, BTreeSet<Key>>,
    /// Pods that are being deleted and were never bound.
    pub(super) ending_unbound: BTreeSet<Key>,
    /// Nodes that are not ready and for which somebody vouches that they are off.
    pub(super) out_of_service: BTreeSet<Name>,
    /// How many pods name each node.
    named: HashMap<Name, usize>,
    nodes: HashSet<Name>,
}

/// The order in which pods that have ended go: evicted ones, then the oldest, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    ran: bool,
    created: Option<Timestamp>,
    name: Name,
    pub(super) key: Key,
}

/// What a pod's record means to the index.
#[derive(Debug, PartialEq)]
struct Filed {
    node: Option<Name>,
    is_ending: bool,
    ended: Option<Rank>,
}

impl Index {
    /// Takes in a change of a node.
    pub(super) fn note_node(&mut self, change: &Change<Node>) {
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

    /// Takes in a change of a pod. Gives the nodes that it stopped and started to name.
    pub(super) fn note_pod(&mut self, change: &Change<Pod>) -> [Option<Name>; 2] {
        let (old, new) = change.sides(Filed::of);
        if old == new {
            return [None, None];
        }
        let key = Key::of(&**change.either());
        let moved = old.as_ref().map(|filed| &filed.node) != new.as_ref().map(|filed| &filed.node);
        let names = [&old, &new].map(|side| side.as_ref().and_then(|filed| filed.node.clone()));
        if let Some(filed) = old {
            self.withdraw(&key, &filed);
        }
        if let Some(filed) = new {
            self.file(key, filed);
        }
        if moved { names } else { [None, None] }
    }

    fn file(&mut self, key: Key, filed: Filed) {
        self.ended.extend(filed.ended);
        if let Some(node) = &filed.node {
            *self.named.entry(node.clone()).or_default() += 1;
        }
        match filed.node {
            Some(node) if filed.is_ending => drop(self.ending_on.entry(node).or_default().insert(key)),
            None if filed.is_ending => drop(self.ending_unbound.insert(key)),
            _ => {}
        }
    }

    fn withdraw(&mut self, key: &Key, filed: &Filed) {
        if let Some(rank) = &filed.ended {
            self.ended.remove(rank);
        }
        self.ending_unbound.remove(key);
        let Some(node) = &filed.node else { return };
        if let Some(keys) = self.ending_on.get_mut(node) {
            keys.remove(key);
            if keys.is_empty() {
                self.ending_on.remove(node);
            }
        }
        if let Some(count) = self.named.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                self.named.remove(node);
            }
        }
    }

    /// Whether pods name the node and there is none.
    pub(super) fn is_missed(&self, node: &str) -> bool {
        self.named.contains_key(node) && !self.nodes.contains(node)
    }

    /// The pods that are being deleted on that node.
    pub(super) fn ending_on(&self, node: &str) -> impl Iterator<Item = &Key> {
        self.ending_on.get(node).into_iter().flatten()
    }
}

impl Filed {
    fn of(pod: &Pod) -> Filed {
        Filed {
            node: pod.spec.node_name.clone(),
            is_ending: pod.meta.is_deleting(),
            ended: pod.is_finished().then(|| Rank::of(pod)),
        }
    }
}

impl Rank {
    fn of(pod: &Pod) -> Rank {
        let was_evicted = pod.status.phase == PodPhase::Failed && pod.status.reason == "Evicted";
        let Pod { meta, .. } = pod;
        Rank {
            ran: !was_evicted,
            created: meta.creation_timestamp,
            name: meta.name.clone(),
            key: Key::of(pod),
        }
    }
}

/// Whether the node does not answer and somebody vouches that its machine is off.
fn is_out_of_service(node: &Node) -> bool {
    !node.is_ready() && node.spec.taints.iter().any(|taint| taint.key == keys::OUT_OF_SERVICE)
}
