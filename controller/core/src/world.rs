//! All nodes and pods as last seen, and which pods are on which node.
//!
//! The world is a fold of the store's watch events and of the records that our own writes returned; a record never goes
//! back to an older version. Each step returns the [`Delta`]s that the controllers observe. A record that was replaced
//! by another one of the same name (with another uid) is a removal followed by an addition.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::Record;

pub mod budgets;
pub mod node_table;

use budgets::Budgets;
pub use node_table::NodeIndex;
use node_table::NodeTable;

/// What changed. Old and new record have the same uid; at least one of them is there.
#[derive(Clone, Debug)]
pub enum Delta {
    Node(Change<Node>),
    Pod(Change<Pod>),
}

/// A record before and after.
#[derive(Debug)]
pub struct Change<R> {
    pub old: Option<Arc<R>>,
    pub new: Option<Arc<R>>,
}

/// A map for what is looked up with every event: its hash is fast, and with a new seed in each process.
pub type FastMap<K, V> = HashMap<K, V, RandomState>;

#[derive(Clone, Debug, Default)]
pub struct World {
    nodes: NodeTable,
    pods: FastMap<Key, Arc<Pod>>,
    /// By the node that each pod names, whether or not there is such a node.
    pods_on: FastMap<Name, BTreeSet<Key>>,
    ready_counts: ReadyCounts,
    /// Disruption budgets, which only the scheduler reads: nothing else waits for their watch.
    pub budgets: Budgets,
    applied: Revisions,
}

/// A revision of the store for nodes and one for pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revisions {
    pub nodes: u64,
    pub pods: u64,
}

impl Revisions {
    /// Later than any revision of a store.
    pub const MAX: Revisions = Revisions { nodes: u64::MAX, pods: u64::MAX };

    /// Whether everything up to `other` is covered, for nodes and for pods.
    pub fn cover(self, other: Revisions) -> bool {
        self.nodes >= other.nodes && self.pods >= other.pods
    }
}

/// How many nodes have which Ready condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadyCounts {
    pub ready: usize,
    pub not_ready: usize,
    /// Unknown, or no Ready condition at all.
    pub unknown: usize,
}

impl ReadyCounts {
    fn of(&mut self, node: &Node) -> &mut usize {
        match node.condition(types::READY).map(|ready| ready.status) {
            Some(ConditionStatus::True) => &mut self.ready,
            Some(ConditionStatus::False) => &mut self.not_ready,
            Some(ConditionStatus::Unknown) | None => &mut self.unknown,
        }
    }
}

impl World {
    pub fn new() -> World {
        World::default()
    }

    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.node(name)
    }

    /// The index of a node or lease of that name. It is stable while either exists, and reused afterwards.
    pub fn node_index(&self, name: &str) -> Option<NodeIndex> {
        self.nodes.index(name)
    }

    pub fn pod(&self, key: &Key) -> Option<&Arc<Pod>> {
        self.pods.get(key)
    }

    /// All nodes, by name. For a start or a request; never for an event or a timer.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        let mut nodes: Vec<_> = self.nodes.nodes().collect();
        nodes.sort_unstable_by(|a, b| a.meta.name.cmp(&b.meta.name));
        nodes.into_iter()
    }

    /// All pods, by namespace and name. For a start or a request; never for an event or a timer.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let mut pods: Vec<_> = self.pods.iter().collect();
        pods.sort_unstable_by_key(|(key, _)| *key);
        pods.into_iter().map(|(_, pod)| pod)
    }

    pub fn node_count(&self) -> usize {
        let ReadyCounts { ready, not_ready, unknown } = self.ready_counts;
        ready + not_ready + unknown
    }

    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// The revisions up to which every change of nodes and of pods is applied.
    pub fn applied(&self) -> Revisions {
        self.applied
    }

    /// The watch of nodes is synced at this revision.
    pub fn nodes_synced(&mut self, revision: u64) {
        self.applied.nodes = revision;
    }

    /// The watch of pods is synced at this revision.
    pub fn pods_synced(&mut self, revision: u64) {
        self.applied.pods = revision;
    }

    pub fn ready_counts(&self) -> ReadyCounts {
        self.ready_counts
    }

    /// The pods that name this node, by namespace and name.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods_on.get(node).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// Applies a node that a write of our own returned, unless the watch is past that version already: then the watch
    /// has delivered it or a later change, possibly a deletion.
    pub fn apply_written_node(&mut self, node: Node) -> Vec<Delta> {
        if node.meta.resource_version > self.applied.nodes { self.put_node(node) } else { Vec::new() }
    }

    /// Applies a pod that a write of our own returned, unless the watch is past that version already.
    pub fn apply_written_pod(&mut self, pod: Pod) -> Vec<Delta> {
        if pod.meta.resource_version > self.applied.pods { self.put_pod(pod) } else { Vec::new() }
    }

    /// Applies a node from the watch.
    pub fn apply_node(&mut self, node: Node) -> Vec<Delta> {
        self.applied.nodes = self.applied.nodes.max(node.meta.resource_version);
        self.put_node(node)
    }

    /// Applies a pod from the watch.
    pub fn apply_pod(&mut self, pod: Pod) -> Vec<Delta> {
        self.applied.pods = self.applied.pods.max(pod.meta.resource_version);
        self.put_pod(pod)
    }

    fn put_node(&mut self, node: Node) -> Vec<Delta> {
        let Some(changes) = changes(self.node(node.meta.name.as_str()), node) else { return Vec::new() };
        let new = changes.last().and_then(|change| change.new.clone()).expect("the new record comes last");
        *self.ready_counts.of(&new) += 1;
        if let Some(old) = self.nodes.put_node(new) {
            *self.ready_counts.of(&old) -= 1;
        }
        changes.into_iter().map(Delta::Node).collect()
    }

    fn put_pod(&mut self, pod: Pod) -> Vec<Delta> {
        let key = Key::of(&pod);
        let Some(changes) = changes(self.pods.get(&key), pod) else { return Vec::new() };
        for change in &changes {
            self.reindex(&key, change);
        }
        let new = changes.last().and_then(|change| change.new.clone()).expect("the new record comes last");
        self.pods.insert(key, new);
        changes.into_iter().map(Delta::Pod).collect()
    }

    /// Applies renewals of node leases, each with its `renewTime` (by the clock of the renewing agent). Returns for
    /// each the index of the node, or `None` if that renewal was applied before.
    pub fn apply_renewals(&mut self, renewals: &[(Name, Timestamp)]) -> Vec<Option<NodeIndex>> {
        self.nodes.apply_renewals(renewals)
    }

    pub fn remove_renewal(&mut self, name: &Name) {
        self.nodes.remove_renewal(name);
    }

    /// When a node's lease was last renewed, by the clock of the renewing agent.
    pub fn renewal(&self, name: &str) -> Option<Timestamp> {
        self.nodes.renewal(name)
    }

    /// Removes the node with that uid, or, if the uid is not known, a node older than the revision.
    pub fn remove_node(&mut self, name: &Name, uid: Option<Uid>, revision: u64) -> Vec<Delta> {
        self.applied.nodes = self.applied.nodes.max(revision);
        if !self.node(name.as_str()).is_some_and(|held| is_removed(&**held, uid, revision)) {
            return Vec::new();
        }
        let old = self.nodes.remove_node(name);
        if let Some(old) = &old {
            *self.ready_counts.of(old) -= 1;
        }
        vec![Delta::Node(Change { old, new: None })]
    }

    /// Removes the pod with that uid, or, if the uid is not known, a pod older than the revision.
    pub fn remove_pod(&mut self, key: &Key, uid: Option<Uid>, revision: u64) -> Vec<Delta> {
        self.applied.pods = self.applied.pods.max(revision);
        if !self.pods.get(key).is_some_and(|held| is_removed(&**held, uid, revision)) {
            return Vec::new();
        }
        let change = Change { old: self.pods.remove(key), new: None };
        self.reindex(key, &change);
        vec![Delta::Pod(change)]
    }

    fn reindex(&mut self, key: &Key, change: &Change<Pod>) {
        let node = |pod: &Option<Arc<Pod>>| pod.as_ref().and_then(|pod| pod.spec.node_name.clone());
        let (old, new) = (node(&change.old), node(&change.new));
        if old == new {
            return;
        }
        if let Some(node) = old
            && let Some(keys) = self.pods_on.get_mut(&node)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.pods_on.remove(&node);
            }
        }
        if let Some(node) = new {
            self.pods_on.entry(node).or_default().insert(key.clone());
        }
    }
}

/// The changes from the held record to the new one; `None` if the new one is not newer, or has no uid.
fn changes<R: Record>(held: Option<&Arc<R>>, new: R) -> Option<Vec<Change<R>>> {
    new.meta().uid?;
    let Some(held) = held else { return Some(vec![Change { old: None, new: Some(Arc::new(new)) }]) };
    if held.meta().resource_version >= new.meta().resource_version {
        return None;
    }
    let (old, same) = (Some(Arc::clone(held)), held.meta().uid == new.meta().uid);
    let new = Some(Arc::new(new));
    Some(if same {
        vec![Change { old, new }]
    } else {
        vec![Change { old, new: None }, Change { old: None, new }]
    })
}

/// Whether a deletion with that uid and revision is one of the held record.
fn is_removed<R: Record>(held: &R, uid: Option<Uid>, revision: u64) -> bool {
    match uid {
        Some(uid) => held.meta().uid == Some(uid),
        None => held.meta().resource_version <= revision,
    }
}

impl<R> Change<R> {
    /// The record after the change, or, if it was removed, before.
    pub fn either(&self) -> &Arc<R> {
        self.new.as_ref().or(self.old.as_ref()).expect("a change has at least one side")
    }

    /// A part of the record before and after.
    pub fn sides<'a, T>(&'a self, part: impl Fn(&'a R) -> T) -> (Option<T>, Option<T>) {
        (self.old.as_deref().map(&part), self.new.as_deref().map(&part))
    }
}

impl<R> Clone for Change<R> {
    fn clone(&self) -> Self {
        Change { old: self.old.clone(), new: self.new.clone() }
    }
}

#[cfg(test)]
mod tests;
