//! All nodes and pods as last seen, and which pods are on which node.
//!
//! Folded from the store's changes and from what our own writes returned; no version ever goes back. Each step gives
//! the [`Delta`]s that the controllers are told of: a record replaced by a namesake is one that went and another that came.

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

pub mod node_table;

use node_table::Machines;
pub use node_table::Number;

/// What changed. Both sides are the same bearer of the name; one of them is always there.
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

/// A map for what is looked up with every event. Its hash is quick, and seeded anew in each process.
pub type QuickMap<K, V> = HashMap<K, V, RandomState>;

#[derive(Clone, Debug, Default)]
pub struct World {
    machines: Machines,
    pods: QuickMap<Key, Arc<Pod>>,
    /// Of every node that a pod names, whether or not there is such a node.
    pods_on: QuickMap<Name, BTreeSet<Key>>,
    tally: Tally,
    told: Reach,
}

/// How far the streams have told of nodes and of pods: everything up to these revisions is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    pub nodes: u64,
    pub pods: u64,
}

impl Reach {
    /// Further than any stream ever tells.
    pub const NEVER: Reach = Reach { nodes: u64::MAX, pods: u64::MAX };

    pub fn covers(self, other: Reach) -> bool {
        self.nodes >= other.nodes && self.pods >= other.pods
    }
}

/// How many nodes say what of themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub ready: usize,
    pub not_ready: usize,
    /// Unknown, or never said.
    pub unknown: usize,
}

impl Tally {
    fn count(&mut self, node: &Node) -> &mut usize {
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
        self.machines.node(name)
    }

    /// The number of a node or lease of that name. It stays the same while there is one, and is then used again.
    pub fn number(&self, name: &str) -> Option<Number> {
        self.machines.number(name)
    }

    pub fn pod(&self, key: &Key) -> Option<&Arc<Pod>> {
        self.pods.get(key)
    }

    /// All nodes, by name. For a start or a question; never for an event or a timer.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        let mut nodes: Vec<_> = self.machines.nodes().collect();
        nodes.sort_unstable_by(|a, b| a.meta.name.cmp(&b.meta.name));
        nodes.into_iter()
    }

    /// All pods, by namespace and name. For a start or a question; never for an event or a timer.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let mut pods: Vec<_> = self.pods.iter().collect();
        pods.sort_unstable_by_key(|(key, _)| *key);
        pods.into_iter().map(|(_, pod)| pod)
    }

    pub fn node_count(&self) -> usize {
        let Tally { ready, not_ready, unknown } = self.tally;
        ready + not_ready + unknown
    }

    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    pub fn told(&self) -> Reach {
        self.told
    }

    /// The stream of nodes has told everything up to there.
    pub fn reach_nodes(&mut self, revision: u64) {
        self.told.nodes = revision;
    }

    /// The stream of pods has told everything up to there.
    pub fn reach_pods(&mut self, revision: u64) {
        self.told.pods = revision;
    }

    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The pods that name this node, by namespace and name.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods_on.get(node).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// A node as a write of our own returned it. What the stream has passed by already is no news: had it lasted, it
    /// would be here.
    pub fn learn_node(&mut self, node: Node) -> Vec<Delta> {
        if node.meta.resource_version > self.told.nodes { self.put_node(node) } else { Vec::new() }
    }

    /// A pod as a write of our own returned it.
    pub fn learn_pod(&mut self, pod: Pod) -> Vec<Delta> {
        if pod.meta.resource_version > self.told.pods { self.put_pod(pod) } else { Vec::new() }
    }

    /// A node as the stream tells of it.
    pub fn apply_node(&mut self, node: Node) -> Vec<Delta> {
        self.told.nodes = self.told.nodes.max(node.meta.resource_version);
        self.put_node(node)
    }

    /// A pod as the stream tells of it.
    pub fn apply_pod(&mut self, pod: Pod) -> Vec<Delta> {
        self.told.pods = self.told.pods.max(pod.meta.resource_version);
        self.put_pod(pod)
    }

    fn put_node(&mut self, node: Node) -> Vec<Delta> {
        let Some(change) = replace(self.node(node.meta.name.as_str()), node) else { return Vec::new() };
        let new = change.last().and_then(|change| change.new.clone()).expect("the record itself comes last");
        *self.tally.count(&new) += 1;
        if let Some(old) = self.machines.put_node(new) {
            *self.tally.count(&old) -= 1;
        }
        change.into_iter().map(Delta::Node).collect()
    }

    fn put_pod(&mut self, pod: Pod) -> Vec<Delta> {
        let key = Key::of(&pod);
        let Some(change) = replace(self.pods.get(&key), pod) else { return Vec::new() };
        for change in &change {
            self.reindex(&key, change);
        }
        let new = change.last().and_then(|change| change.new.clone()).expect("the record itself comes last");
        self.pods.insert(key, new);
        change.into_iter().map(Delta::Pod).collect()
    }

    /// Node leases that were renewed, each at that time by the clock of whoever renewed it. Says of each whose number it
    /// is, if that is another time than before.
    pub fn apply_renewals(&mut self, renewals: &[(Name, Timestamp)]) -> Vec<Option<Number>> {
        self.machines.renew_all(renewals)
    }

    pub fn remove_renewal(&mut self, name: &Name) {
        self.machines.forget_renewal(name);
    }

    /// When a node's lease was last renewed, by the clock of whoever renewed it.
    pub fn renewal(&self, name: &str) -> Option<Timestamp> {
        self.machines.renewal(name)
    }

    /// A node is gone: the bearer of that uid, or, where that is not known, whoever was older than the revision.
    pub fn remove_node(&mut self, name: &Name, uid: Option<Uid>, revision: u64) -> Vec<Delta> {
        self.told.nodes = self.told.nodes.max(revision);
        if !self.node(name.as_str()).is_some_and(|held| is_meant(&**held, uid, revision)) {
            return Vec::new();
        }
        let old = self.machines.remove_node(name);
        if let Some(old) = &old {
            *self.tally.count(old) -= 1;
        }
        vec![Delta::Node(Change { old, new: None })]
    }

    /// A pod is gone: the bearer of that uid, or, where that is not known, whoever was older than the revision.
    pub fn remove_pod(&mut self, key: &Key, uid: Option<Uid>, revision: u64) -> Vec<Delta> {
        self.told.pods = self.told.pods.max(revision);
        if !self.pods.get(key).is_some_and(|held| is_meant(&**held, uid, revision)) {
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

/// The steps from what is held to what is new; `None` if it is no news, or has no identity.
fn replace<R: Record>(held: Option<&Arc<R>>, new: R) -> Option<Vec<Change<R>>> {
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

fn is_meant<R: Record>(held: &R, uid: Option<Uid>, revision: u64) -> bool {
    match uid {
        Some(uid) => held.meta().uid == Some(uid),
        None => held.meta().resource_version <= revision,
    }
}

impl<R> Change<R> {
    /// The record after, or if it went, before.
    pub fn either(&self) -> &Arc<R> {
        self.new.as_ref().or(self.old.as_ref()).expect("a change has at least one side")
    }

    /// What a part of the record was and is.
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
