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
pub struct Selection {
    /// Empty means every namespace.
    pub namespace: String,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selection {
    /// Whether a record is asked for.
    pub fn matches(&self, kind: Kind, key: &NamespacedName, record: &[u8]) -> bool {
        // Labels lie in front of a record; for fields all of it is decoded.
        self.in_namespace(key)
            && (self.labels.is_everything() || self.labels.matches(&partial_decode::metadata(record).labels))
            && (self.fields.is_everything()
                || self.admits_fields(kind, &partial_decode::fields(kind, record)))
    }

    /// What a watcher hears of a change, as an encoded frame of one event.
    pub fn event(&self, change: &Change) -> Option<Bytes> {
        if !self.in_namespace(&change.key) {
            return None;
        }
        let all = self.takes_all();
        let before = change.previous.is_some()
            && (all || change.before().is_some_and(|traits| self.admits(change.kind, traits)));
        let after = !change.deleted && (all || self.admits(change.kind, change.after()));
        match (before, after) {
            (false, true) => Some(change.added()),
            (true, true) => Some(change.modified()),
            (true, false) if change.deleted => Some(change.deleted()),
            (true, false) => Some(change.left()),
            (false, false) => None,
        }
    }

    fn in_namespace(&self, key: &NamespacedName) -> bool {
        self.namespace.is_empty() || self.namespace == key.namespace()
    }

    fn takes_all(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    fn admits(&self, kind: Kind, traits: &Traits) -> bool {
        self.labels.matches(&traits.labels) && self.admits_fields(kind, &traits.fields)
    }

    fn admits_fields(&self, kind: Kind, values: &[String]) -> bool {
        let value = |field: &'static str| {
            let index = partial_decode::selectable(kind).iter().position(|name| *name == field);
            index.and_then(|index| values.get(index)).map_or("", String::as_str)
        };
        self.fields.matches(value)
    }

    /// The one name a change must touch to be of interest, if the selection
    /// pins one: a node's own name, the node of a pod.
    pub fn topic(&self, kind: Kind) -> Option<&str> {
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
pub fn topics(change: &Change) -> impl Iterator<Item = String> {
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
    before.into_iter().chain(after).filter(|topic| !topic.is_empty())
}

/// What can be selected by.
#[derive(Debug)]
pub(crate) struct Traits {
    labels: Labels,
    fields: Vec<String>,
}

impl Traits {
    pub(crate) fn of(kind: Kind, record: &[u8]) -> Self {
        Self { labels: partial_decode::metadata(record).labels, fields: partial_decode::fields(kind, record) }
    }
}

#[cfg(test)]
mod tests;
