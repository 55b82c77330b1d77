//! Keys: the namespace and name of a record.

use std::fmt;

use crate::name::{Name, Namespace};
use crate::pb;
use crate::record::Record;

/// The namespace and name of a record. Ordered as the store lists records: by namespace, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// `None` for nodes, always set for the other kinds.
    pub namespace: Option<Namespace>,
    pub name: Name,
}

impl Key {
    /// The key of a node.
    pub fn node(name: Name) -> Key {
        Key { namespace: None, name }
    }

    /// The key of a record of any other kind.
    pub fn namespaced(namespace: Namespace, name: Name) -> Key {
        Key { namespace: Some(namespace), name }
    }

    pub fn of<R: Record>(record: &R) -> Key {
        let meta = record.meta();
        Key { namespace: meta.namespace.clone(), name: meta.name.clone() }
    }

    /// The key in metadata whose other fields may be invalid.
    pub fn of_unchecked(metadata: &pb::Metadata) -> Option<Key> {
        let namespace = match metadata.namespace.as_str() {
            "" => None,
            text => Some(text.parse().ok()?),
        };
        Some(Key { namespace, name: metadata.name.parse().ok()? })
    }

    /// The namespace as messages carry it: empty for a node.
    pub fn namespace_text(&self) -> String {
        self.namespace.as_ref().map(|namespace| namespace.as_str().to_owned()).unwrap_or_default()
    }

    /// The name as messages carry it.
    pub fn name_text(&self) -> String {
        self.name.as_str().to_owned()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => self.name.fmt(f),
        }
    }
}
