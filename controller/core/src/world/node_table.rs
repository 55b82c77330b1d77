//! Nodes and the renewals of their leases by name, under one look-up, with a dense index for each name.
//!
//! Other modules keep what they know of a node in vectors by that index, so that a look-up by name happens once per
//! event.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use jiff::Timestamp;
use muster_proto::name::Name;
use muster_proto::node::Node;

/// The index of a name, while there is a node or a lease of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(u32);

impl NodeIndex {
    pub fn new(index: u32) -> NodeIndex {
        NodeIndex(index)
    }

    pub fn as_usize(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug, Default)]
pub struct NodeTable {
    /// Indices by the hash of the name.
    slots: HashTable<Slot>,
    /// By index.
    rows: Vec<Row>,
    /// Rows whose node and lease are both removed. They keep their index until another name needs it, so that a
    /// controller can look up the index of a node while it observes the node's removal.
    vacant: Vec<NodeIndex>,
    /// Fast, and with a new seed in each process.
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u64,
    index: NodeIndex,
}

#[derive(Clone, Debug)]
struct Row {
    name: Name,
    node: Option<Arc<Node>>,
    renewed: Option<Timestamp>,
}

impl Row {
    fn is_vacant(&self) -> bool {
        self.node.is_none() && self.renewed.is_none()
    }

    /// Sets the time of the last renewal; returns whether it changed.
    fn renew(&mut self, renewed: Timestamp) -> bool {
        self.renewed.replace(renewed) != Some(renewed)
    }
}

impl NodeTable {
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.row(self.index(name)?).node.as_ref()
    }

    pub fn renewal(&self, name: &str) -> Option<Timestamp> {
        self.row(self.index(name)?).renewed
    }

    pub fn index(&self, name: &str) -> Option<NodeIndex> {
        let hash = self.hasher.hash_one(name);
        let is_same = |slot: &Slot| slot.hash == hash && self.row(slot.index).name == *name;
        self.slots.find(hash, is_same).map(|slot| slot.index)
    }

    fn row(&self, index: NodeIndex) -> &Row {
        &self.rows[index.as_usize()]
    }

    fn row_mut(&mut self, index: NodeIndex) -> &mut Row {
        &mut self.rows[index.as_usize()]
    }

    /// All nodes, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.rows.iter().filter_map(|row| row.node.as_ref())
    }

    /// Returns the node that was there before.
    pub fn put_node(&mut self, node: Arc<Node>) -> Option<Arc<Node>> {
        let index = self.index_or_insert(&node.meta.name);
        self.row_mut(index).node.replace(node)
    }

    pub fn remove_node(&mut self, name: &Name) -> Option<Arc<Node>> {
        let index = self.index(name.as_str())?;
        let node = self.row_mut(index).node.take()?;
        self.note_if_vacant(index);
        Some(node)
    }

    /// Applies renewals that arrived together; returns for each the index of its name, if the time changed.
    ///
    /// It works in short passes over all renewals. The memory that one renewal needs is then fetched while others are
    /// processed, so a fleet that fits no cache costs little more per renewal than one that does.
    pub fn apply_renewals(&mut self, renewals: &[(Name, Timestamp)]) -> Vec<Option<NodeIndex>> {
        let hashes: Vec<u64> = renewals.iter().map(|(name, _)| self.hasher.hash_one(name.as_str())).collect();
        // By the hash alone. Nearly always right, but two names may have the same hash.
        let guess = |hash: &u64| self.slots.find(*hash, |slot| slot.hash == *hash).map(|slot| slot.index);
        let guesses: Vec<Option<NodeIndex>> = hashes.iter().map(guess).collect();
        let name_of = |index: NodeIndex| self.row(index).name.as_str();
        let guessed: Vec<Option<&str>> = guesses.iter().map(|guess| guess.map(name_of)).collect();
        let known: Vec<Option<NodeIndex>> = (renewals.iter().zip(guesses).zip(guessed))
            .map(|(((name, _), guess), guessed)| guess.filter(|_| guessed == Some(name.as_str())))
            .collect();
        let mut changed: Vec<Option<NodeIndex>> = (renewals.iter().zip(&known))
            .map(|((_, renewed), index)| index.filter(|index| self.row_mut(*index).renew(*renewed)))
            .collect();
        // New names last, because they may reuse the indices of vacant rows.
        for (i, (name, renewed)) in renewals.iter().enumerate().filter(|(i, _)| known[*i].is_none()) {
            let index = self.index_or_insert(name);
            changed[i] = self.row_mut(index).renew(*renewed).then_some(index);
        }
        changed
    }

    pub fn remove_renewal(&mut self, name: &Name) {
        let Some(index) = self.index(name.as_str()) else { return };
        if self.row_mut(index).renewed.take().is_some() {
            self.note_if_vacant(index);
        }
    }

    fn note_if_vacant(&mut self, index: NodeIndex) {
        if self.row(index).is_vacant() {
            self.vacant.push(index);
        }
    }

    fn index_or_insert(&mut self, name: &Name) -> NodeIndex {
        if let Some(index) = self.index(name.as_str()) {
            return index;
        }
        let row = Row { name: name.clone(), node: None, renewed: None };
        let index = match self.take_vacant() {
            Some(index) => {
                *self.row_mut(index) = row;
                index
            }
            None => {
                let next = u32::try_from(self.rows.len());
                self.rows.push(row);
                NodeIndex(next.expect("a fleet has fewer than four thousand million nodes"))
            }
        };
        let hash = self.hasher.hash_one(name.as_str());
        self.slots.insert_unique(hash, Slot { hash, index }, |slot| slot.hash);
        index
    }

    /// Takes the index of a row that is still vacant.
    fn take_vacant(&mut self) -> Option<NodeIndex> {
        while let Some(index) = self.vacant.pop() {
            let row = self.row(index);
            if !row.is_vacant() {
                continue;
            }
            let hash = self.hasher.hash_one(row.name.as_str());
            // A row that was filled and became vacant again is listed twice: its slot may be taken already.
            if let Ok(slot) = self.slots.find_entry(hash, |slot| slot.index == index) {
                slot.remove();
                return Some(index);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{epoch, node};

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn put(table: &mut NodeTable, name: &str) {
        table.put_node(Arc::new(node(name).build()));
    }

    fn renew(table: &mut NodeTable, names: &[&str]) -> Vec<Option<usize>> {
        let renewals: Vec<_> = names.iter().map(|text| (name(text), epoch())).collect();
        table.apply_renewals(&renewals).into_iter().map(|index| index.map(NodeIndex::as_usize)).collect()
    }

    fn index(table: &NodeTable, name: &str) -> Option<usize> {
        table.index(name).map(NodeIndex::as_usize)
    }

    #[test]
    fn a_node_and_its_lease_have_one_index() {
        let mut table = NodeTable::default();
        put(&mut table, "a");
        assert_eq!(renew(&mut table, &["b"]), [Some(1)], "a lease may come before its node");
        put(&mut table, "b");
        assert_eq!(
            renew(&mut table, &["a", "b", "a"]),
            [Some(0), None, None],
            "the others were applied before"
        );
        assert_eq!((index(&table, "a"), index(&table, "b")), (Some(0), Some(1)));
        assert_eq!(index(&table, "c"), None);
    }

    #[test]
    fn an_index_is_kept_while_a_node_or_a_lease_is_left_and_then_reused() {
        let mut table = NodeTable::default();
        for name in ["a", "b"] {
            put(&mut table, name);
        }
        renew(&mut table, &["a"]);
        assert!(table.remove_node(&name("a")).is_some());
        put(&mut table, "c");
        assert_eq!((index(&table, "a"), index(&table, "c")), (Some(0), Some(2)), "the lease is left");
        table.remove_renewal(&name("a"));
        assert_eq!(index(&table, "a"), Some(0), "a removed node can be looked up until its index is reused");
        put(&mut table, "d");
        assert_eq!((index(&table, "a"), index(&table, "d")), (None, Some(0)));
        put(&mut table, "e");
        assert_eq!(index(&table, "e"), Some(3));
    }

    #[test]
    fn a_batch_of_renewals_may_contain_new_names() {
        let mut table = NodeTable::default();
        put(&mut table, "a");
        table.remove_node(&name("a"));
        let expected = [Some(1), Some(0), None, Some(2)];
        assert_eq!(renew(&mut table, &["b", "a", "b", "c"]), expected, "a is back before b needs an index");
        for (name, expected) in [("a", 0), ("b", 1), ("c", 2)] {
            assert_eq!((index(&table, name), table.renewal(name)), (Some(expected), Some(epoch())));
        }
    }

    #[test]
    fn a_name_that_returns_before_its_index_is_reused_has_the_old_index() {
        let mut table = NodeTable::default();
        for name in ["a", "b"] {
            put(&mut table, name);
        }
        for _ in 0..2 {
            table.remove_node(&name("a"));
            put(&mut table, "a");
        }
        assert_eq!(index(&table, "a"), Some(0));
        put(&mut table, "c");
        assert_eq!(
            (index(&table, "a"), index(&table, "c")),
            (Some(0), Some(2)),
            "no two names share an index"
        );
    }
}
