//! Which changes and records a list or watch selects.

use bytes::Bytes;
use muster_proto::label::Labels;
use muster_proto::record::Kind;
use muster_proto::selector::{FieldSelector, LabelSelector};

use crate::change::Change;
use crate::namespaced_name::NamespacedName;
use crate::partial_decode;

/// Which records somebody asks for.
#[derive(Debug, Clone, Default)]
pub struct Selectors {
    /// Empty means every namespace.
    pub namespace: String,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selectors {
    /// Whether a record is asked for.
    pub fn matches(&self, kind: Kind, key: &NamespacedName, record: &[u8]) -> bool {
        // Labels lie in front of a record; for fields all of it is decoded.
        self.in_namespace(key)
            && (self.labels.is_everything() || self.labels.matches(&partial_decode::metadata(record).labels))
            && (self.fields.is_everything()
                || self.matches_fields(kind, &partial_decode::fields(kind, record)))
    }

    /// What a watcher hears of a change, as an encoded frame of one event.
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

    /// The one name a change must touch to be of interest, if the selectors
    /// pins one: a node's own name, the node of a pod.
    pub fn node(&self, kind: Kind) -> Option<&str> {
        let name = match kind {
            Kind::Node => self.fields.requires("metadata.name"),
            Kind::Pod => self.fields.requires("spec.nodeName"),
            _ => None,
        };
        // Pods without a node are nobody's topic: they are looked for among all.
        name.filter(|name| !name.is_empty())
    }
}

/// The names under which a change is of interest to a watcher with a topic.
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

/// What can be selected by.
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
