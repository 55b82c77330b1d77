//! Which records a list returns, and which event a watch gets of a change.
//!
//! A watch compares the record before and after the change with its selectors: a record that starts to match is ADDED,
//! one that stops to match is DELETED.

use bytes::Bytes;
use muster_proto::label::Labels;
use muster_proto::record::Kind;
use muster_proto::selector::{FieldSelector, LabelSelector};

use crate::change::Change;
use crate::namespaced_name::NamespacedName;
use crate::partial_decode;

/// The namespace, label selector and field selector of a list or watch.
#[derive(Debug, Clone, Default)]
pub struct Selectors {
    /// Empty means every namespace.
    pub namespace: String,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selectors {
    /// Whether a record is selected.
    pub fn matches(&self, kind: Kind, key: &NamespacedName, record: &[u8]) -> bool {
        // Labels need only the metadata; fields need the whole record decoded.
        self.in_namespace(key)
            && (self.labels.is_everything() || self.labels.matches(&partial_decode::metadata(record).labels))
            && (self.fields.is_everything()
                || self.matches_fields(kind, &partial_decode::fields(kind, record)))
    }

    /// The event that a watcher gets of a change, as an encoded frame; `None` if the change is not selected.
    pub fn event(&self, change: &Change) -> Option<Bytes> {
        if !self.in_namespace(&change.key) {
            return None;
        }
        let all = self.is_everything();
        let before = change.previous.is_some()
            && (all || change.before().is_some_and(|values| self.matches_values(change.kind, values)));
        let after = !change.deleted && (all || self.matches_values(change.kind, change.after()));
        match (before, after) {
            (false, true) => Some(change.added()),
            (true, true) => Some(change.modified()),
            (true, false) if change.deleted => Some(change.deleted()),
            (true, false) => Some(change.left_selection()),
            (false, false) => None,
        }
    }

    fn in_namespace(&self, key: &NamespacedName) -> bool {
        self.namespace.is_empty() || self.namespace == key.namespace()
    }

    fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    fn matches_values(&self, kind: Kind, values: &SelectableValues) -> bool {
        self.labels.matches(&values.labels) && self.matches_fields(kind, &values.fields)
    }

    fn matches_fields(&self, kind: Kind, values: &[String]) -> bool {
        let value = |field: &'static str| {
            let index = partial_decode::selectable(kind).iter().position(|name| *name == field);
            index.and_then(|index| values.get(index)).map_or("", String::as_str)
        };
        self.fields.matches(value)
    }

    /// The only node whose records can match, if the field selector requires one: a node's own name, or the node that
    /// pods are bound to.
    pub fn node(&self, kind: Kind) -> Option<&str> {
        let name = match kind {
            Kind::Node => self.fields.requires("metadata.name"),
            Kind::Pod => self.fields.requires("spec.nodeName"),
            _ => None,
        };
        // Pods without a node have no node to be indexed by.
        name.filter(|name| !name.is_empty())
    }
}

/// The nodes whose records a change concerns: the node itself, or the nodes a pod was and is bound to.
pub fn nodes_of(change: &Change) -> impl Iterator<Item = String> {
    let (before, after) = match change.kind {
        Kind::Node => (None, Some(change.key.name().to_owned())),
        Kind::Pod => {
            let after = partial_decode::pod_node(&change.record);
            let before =
                change.previous.as_deref().map(partial_decode::pod_node).filter(|before| *before != after);
            (before, Some(after))
        }
        _ => (None, None),
    };
    before.into_iter().chain(after).filter(|node| !node.is_empty())
}

/// A record's labels and the values of its selectable fields.
#[derive(Debug)]
pub(crate) struct SelectableValues {
    labels: Labels,
    fields: Vec<String>,
}

impl SelectableValues {
    pub(crate) fn of(kind: Kind, record: &[u8]) -> Self {
        Self { labels: partial_decode::metadata(record).labels, fields: partial_decode::fields(kind, record) }
    }
}

#[cfg(test)]
mod tests;
