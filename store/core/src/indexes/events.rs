//! Events by the time they expire, in total and by the node that recorded them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::limits::Amount;
use crate::namespaced_name::NamespacedName;

/// Events in the order they expire, and their amount.
#[derive(Debug, Default)]
struct EventOrder {
    expiries: BTreeSet<(i64, NamespacedName)>,
    amount: Amount,
}

/// An event as it is indexed.
#[derive(Debug)]
struct IndexedEvent {
    expires_millis: i64,
    host: Arc<str>,
    bytes: usize,
}

/// The index of events.
#[derive(Debug, Default)]
pub struct EventIndex {
    all: EventOrder,
    /// The events that an agent recorded, by its node.
    by_host: HashMap<Arc<str>, EventOrder>,
    events: HashMap<NamespacedName, IndexedEvent>,
}

impl EventOrder {
    fn insert(&mut self, key: &NamespacedName, event: &IndexedEvent) {
        self.expiries.insert((event.expires_millis, key.clone()));
        self.amount.replace(None, Some(event.bytes));
    }

    fn remove(&mut self, key: &NamespacedName, event: &IndexedEvent) {
        self.expiries.remove(&(event.expires_millis, key.clone()));
        self.amount.replace(Some(event.bytes), None);
    }

    fn oldest(&self) -> Option<NamespacedName> {
        self.expiries.first().map(|(_, key)| key.clone())
    }
}

impl EventIndex {
    /// Adds or replaces an event. `host` is empty for an event that no agent recorded.
    pub fn put(&mut self, key: &NamespacedName, expires_millis: i64, host: &str, bytes: usize) {
        self.remove(key);
        let event = IndexedEvent { expires_millis, host: host.into(), bytes };
        self.all.insert(key, &event);
        if !host.is_empty() {
            self.by_host.entry(Arc::clone(&event.host)).or_default().insert(key, &event);
        }
        self.events.insert(key.clone(), event);
    }

    pub fn remove(&mut self, key: &NamespacedName) {
        let Some(event) = self.events.remove(key) else { return };
        self.all.remove(key, &event);
        if let Some(of_host) = self.by_host.get_mut(&event.host) {
            of_host.remove(key, &event);
            if of_host.expiries.is_empty() {
                self.by_host.remove(&event.host);
            }
        }
    }

    /// Expired events, oldest first.
    pub fn expired(&self, now_millis: i64, limit: usize) -> Vec<NamespacedName> {
        let due = self.all.expiries.iter().take_while(|(at, _)| *at <= now_millis);
        due.take(limit).map(|(_, key)| key.clone()).collect()
    }

    /// When the next event expires, in milliseconds since 1970.
    pub fn next_expiry(&self) -> Option<i64> {
        self.all.expiries.first().map(|(at, _)| *at)
    }

    /// The event to delete if there are more than `limit`.
    pub fn excess(&self, limit: Amount) -> Option<NamespacedName> {
        self.all.amount.exceeds(limit).then(|| self.all.oldest())?
    }

    /// The event to delete if this node's agent recorded more than `limit`.
    pub fn excess_of(&self, host: &str, limit: Amount) -> Option<NamespacedName> {
        let of_host = self.by_host.get(host)?;
        of_host.amount.exceeds(limit).then(|| of_host.oldest())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_are_in_excess_in_total_and_by_node() {
        let key = |name: &str| NamespacedName::new("default", name);
        let name = |found: Option<NamespacedName>| found.map(|key| key.name().to_owned());
        let mut index = EventIndex::default();
        for (name, expires, host, bytes) in
            [("old", 5, "", 100), ("a1", 10, "a", 100), ("a2", 20, "a", 100), ("b1", 15, "b", 100)]
        {
            index.put(&key(name), expires, host, bytes);
        }
        let limit = |records, bytes| Amount { records, bytes };
        assert_eq!(index.excess(limit(4, 400)), None);
        assert_eq!(name(index.excess(limit(3, 400))).as_deref(), Some("old"));
        assert_eq!(name(index.excess(limit(4, 399))).as_deref(), Some("old"));
        assert_eq!(index.excess_of("a", limit(2, 200)), None);
        assert_eq!(name(index.excess_of("a", limit(1, 200))).as_deref(), Some("a1"));
        assert_eq!(index.excess_of("", limit(0, 0)), None, "what no agent recorded has no node");

        // Repeated: it is the youngest now, and counts once.
        index.put(&key("a1"), 30, "a", 150);
        assert_eq!(name(index.excess_of("a", limit(2, 200))).as_deref(), Some("a2"));
        assert_eq!(index.excess(limit(4, 450)), None);
        assert_eq!((index.next_expiry(), index.expired(16, 9)), (Some(5), vec![key("old"), key("b1")]));
        for name in ["old", "a1", "a2", "b1", "b1"] {
            index.remove(&key(name));
        }
        assert_eq!((index.all.amount, index.next_expiry()), (Amount::default(), None));
        assert!(index.by_host.is_empty() && index.events.is_empty());
    }
}
