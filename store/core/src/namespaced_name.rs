//! The key of a record within its kind: namespace and name as one ordered value.

use std::fmt;
use std::sync::Arc;

/// Separates namespace and name; it sorts below every character that either may contain.
const SEPARATOR: char = '\0';

/// A record's namespace and name; sorts by namespace, then name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName(Arc<str>);

impl NamespacedName {
    /// The namespace is empty for nodes.
    pub fn new(namespace: &str, name: &str) -> Self {
        let mut key = String::with_capacity(namespace.len() + 1 + name.len());
        key.push_str(namespace);
        key.push(SEPARATOR);
        key.push_str(name);
        NamespacedName(key.into())
    }

    /// Sorts before all keys of the namespace.
    pub fn start_of(namespace: &str) -> Self {
        NamespacedName::new(namespace, "")
    }

    pub fn namespace(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.namespace(), self.name()) {
            ("", name) => f.write_str(name),
            (namespace, name) => write!(f, "{namespace}/{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_namespace_and_name() {
        let sorted = [("", "z"), ("a", "b"), ("a", "c"), ("a-b", "a"), ("a.b", "a"), ("ab", "a")];
        let mut keys: Vec<_> = sorted.iter().rev().map(|(ns, name)| NamespacedName::new(ns, name)).collect();
        keys.sort();
        let back: Vec<_> = keys.iter().map(|key| (key.namespace(), key.name())).collect();
        assert_eq!(back, sorted);
    }
}
