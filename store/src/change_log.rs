//! The newest changes, in memory, and the notifications of watchers.
//!
//! A watcher reads from its own position and waits for a notification. It has no queue, so a slow watcher costs nothing
//! but its lag, and the writer never waits. Changes that are no longer in memory are read from the ledger. A watcher of
//! one node's records is notified only of changes that concern this node, and reads only those.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_proto::record::Kind;
use tokio::sync::watch;

use muster_store_core::change::{Change, SharedChange};
use muster_store_core::history::Revision;
use muster_store_core::selectors;

/// How many changes of each kind are kept in memory, and how many bytes of them.
const MAX_CHANGES: usize = 16 * 1024;
const MAX_BYTES: usize = 32 << 20;

/// The result of a read.
#[derive(Debug)]
pub enum Read {
    /// These changes, and no others up to `up_to`.
    Changes { changes: Vec<SharedChange>, up_to: Revision },
    /// The log begins later: read the ledger up to `until`.
    TooOld { until: Revision },
}

/// The newest changes of all kinds.
pub struct ChangeLog {
    head: watch::Sender<Revision>,
    kinds: BTreeMap<Kind, KindLog>,
}

struct KindLog {
    recent: Mutex<RecentChanges>,
    changed: watch::Sender<()>,
}

/// The newest changes of one kind.
#[derive(Default)]
struct RecentChanges {
    changes: VecDeque<SharedChange>,
    bytes: usize,
    /// Every change of this kind after this revision is in `changes`.
    complete_after: Revision,
    nodes: HashMap<String, NodeChanges>,
}

/// The changes that concern one node.
struct NodeChanges {
    changes: VecDeque<SharedChange>,
    /// Every change of this node's records after this revision is in `changes`.
    complete_after: Revision,
    changed: watch::Sender<()>,
    watchers: usize,
}

/// Notifies one watcher. The changes of a single node are kept apart while a watcher subscribes to that node.
pub struct Subscription {
    log: Arc<ChangeLog>,
    kind: Kind,
    node: Option<String>,
    changed: watch::Receiver<()>,
}

impl ChangeLog {
    /// An empty log of the changes after a revision.
    pub fn new(head: Revision) -> Arc<Self> {
        let kinds = Kind::ALL.map(|kind| {
            let recent = Mutex::new(RecentChanges { complete_after: head, ..Default::default() });
            (kind, KindLog { recent, changed: watch::Sender::new(()) })
        });
        Arc::new(Self { head: watch::Sender::new(head), kinds: kinds.into() })
    }

    /// Adds a stored change while loading, in order, so that watches resume after a restart without reading the disk.
    pub fn load(&self, change: Change) {
        lock(&self.kind(change.kind).recent).push(Arc::new(change));
    }

    /// Ends loading: all changes up to the head are loaded.
    pub fn finish_loading(&self, head: Revision) {
        self.head.send_replace(head);
    }

    fn kind(&self, kind: Kind) -> &KindLog {
        &self.kinds[&kind]
    }

    /// The newest revision that can be read.
    pub fn head(&self) -> Revision {
        *self.head.borrow()
    }

    /// A receiver that follows the head.
    pub fn follow_head(&self) -> watch::Receiver<Revision> {
        self.head.subscribe()
    }

    /// Adds the changes of a durable commit, in order, and notifies watchers.
    pub fn publish(&self, changes: &[SharedChange], head: Revision) {
        let mut changed_kinds = Vec::new();
        for kind in Kind::ALL {
            let mut of_kind = changes.iter().filter(|change| change.kind == kind).peekable();
            if of_kind.peek().is_none() {
                continue;
            }
            let mut recent = lock(&self.kind(kind).recent);
            for change in of_kind {
                recent.push(Arc::clone(change));
            }
            changed_kinds.push(kind);
        }
        // The head moves before watchers are notified: they may read up to it at once.
        self.head.send_replace(head);
        for kind in changed_kinds {
            let log = self.kind(kind);
            log.changed.send_replace(());
            let recent = lock(&log.recent);
            for change in changes.iter().filter(|change| change.kind == kind) {
                for name in selectors::nodes_of(change) {
                    if let Some(node) = recent.nodes.get(&name) {
                        node.changed.send_replace(());
                    }
                }
            }
        }
    }

    /// Moves the head and notifies the watchers of a kind whose new changes are in another log (renewals).
    pub fn notify(&self, kind: Kind, head: Revision) {
        self.head.send_replace(head);
        self.kind(kind).changed.send_replace(());
    }

    /// Subscribes to the changes of a kind, or to those that concern one node.
    pub fn subscribe(self: &Arc<Self>, kind: Kind, node: Option<&str>) -> Subscription {
        let log = self.kind(kind);
        let changed = match node {
            None => log.changed.subscribe(),
            Some(name) => {
                let mut recent = lock(&log.recent);
                // Earlier changes are not searched for this node: when a fleet starts, each agent would scan the whole
                // log. A watcher from an earlier revision reads the changes of all nodes until it has caught up.
                let now = recent.changes.back().map_or(recent.complete_after, |newest| newest.revision);
                let node = recent.nodes.entry(name.to_owned()).or_insert_with(|| NodeChanges {
                    changes: VecDeque::new(),
                    complete_after: now,
                    changed: watch::Sender::new(()),
                    watchers: 0,
                });
                node.watchers += 1;
                node.changed.subscribe()
            }
        };
        Subscription { log: Arc::clone(self), kind, node: node.map(str::to_owned), changed }
    }

    /// At most `limit` changes of a kind after `after`, or of those that concern one node.
    pub fn read(&self, kind: Kind, node: Option<&str>, after: Revision, limit: usize) -> Read {
        // Read before the lock: later changes are left for the next read.
        let head = self.head();
        let recent = lock(&self.kind(kind).recent);
        let node = node.and_then(|name| recent.nodes.get(name)).filter(|node| node.complete_after <= after);
        let changes = match node {
            Some(node) => &node.changes,
            None if after < recent.complete_after => return Read::TooOld { until: recent.complete_after },
            None => &recent.changes,
        };
        let from = changes.partition_point(|change| change.revision <= after);
        let changes: Vec<_> = changes.range(from..).take(limit).cloned().collect();
        let last = changes.last().map_or(after, |change| change.revision);
        let up_to = if changes.len() == limit { last } else { last.max(head) };
        Read::Changes { changes, up_to }
    }
}

impl RecentChanges {
    fn push(&mut self, change: SharedChange) {
        self.bytes += change.approx_bytes();
        if !self.nodes.is_empty() {
            for name in selectors::nodes_of(&change) {
                if let Some(node) = self.nodes.get_mut(&name) {
                    node.changes.push_back(Arc::clone(&change));
                }
            }
        }
        self.changes.push_back(change);
        while self.changes.len() > MAX_CHANGES || self.bytes > MAX_BYTES {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.bytes -= oldest.approx_bytes();
            self.complete_after = oldest.revision;
            for name in selectors::nodes_of(&oldest) {
                if let Some(node) = self.nodes.get_mut(&name)
                    && node.changes.front().is_some_and(|front| front.revision == oldest.revision)
                {
                    node.complete_after = oldest.revision;
                    node.changes.pop_front();
                }
            }
        }
    }
}

impl Subscription {
    /// Marks all notifications so far as handled.
    pub fn mark_read(&mut self) {
        self.changed.mark_unchanged();
    }

    /// Returns once a notification arrived since [`mark_read`](Self::mark_read).
    pub async fn changed(&mut self) {
        // Never fails: the sender is in the log, which this subscription keeps alive.
        let _ = self.changed.changed().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(name) = &self.node else { return };
        let mut recent = lock(&self.log.kind(self.kind).recent);
        if let Some(node) = recent.nodes.get_mut(name) {
            node.watchers -= 1;
            if node.watchers == 0 {
                recent.nodes.remove(name);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use muster_store_core::namespaced_name::NamespacedName;

    fn node_change(revision: Revision, name: &str, weight: usize) -> SharedChange {
        let record = Bytes::from(vec![0; weight]);
        let key = NamespacedName::new("", name);
        Arc::new(Change::new(Kind::Node, revision, key, false, record, None, String::new()))
    }

    fn revisions(read: Read) -> (Vec<Revision>, Revision) {
        match read {
            Read::Changes { changes, up_to } => (changes.iter().map(|c| c.revision).collect(), up_to),
            Read::TooOld { until } => panic!("too old, until {until}"),
        }
    }

    #[test]
    fn a_reader_gets_each_change_once_and_the_head_when_there_is_no_more() {
        let log = ChangeLog::new(10);
        log.publish(&[node_change(11, "a", 0), node_change(12, "b", 0), node_change(15, "a", 0)], 20);
        assert_eq!(revisions(log.read(Kind::Node, None, 10, 2)), (vec![11, 12], 12));
        assert_eq!(revisions(log.read(Kind::Node, None, 12, 2)), (vec![15], 20));
        assert_eq!(revisions(log.read(Kind::Pod, None, 10, 2)), (vec![], 20));
        assert!(matches!(log.read(Kind::Node, None, 9, 2), Read::TooOld { until: 10 }));
    }

    #[test]
    fn a_watcher_of_one_node_reads_only_its_changes_even_after_others_filled_the_log() {
        let log = ChangeLog::new(0);
        let mut subscription = log.subscribe(Kind::Node, Some("a"));
        subscription.mark_read();
        log.publish(&[node_change(1, "a", 0)], 1);
        assert!(subscription.changed.has_changed().unwrap());
        assert_eq!(revisions(log.read(Kind::Node, Some("a"), 0, 9)), (vec![1], 1));
        subscription.mark_read();
        for revision in 2..=(MAX_CHANGES as u64 + 10) {
            log.publish(&[node_change(revision, "b", 0)], revision);
        }
        assert!(
            !subscription.changed.has_changed().unwrap(),
            "changes of another node do not notify this watcher"
        );
        let head = MAX_CHANGES as u64 + 10;
        assert_eq!(revisions(log.read(Kind::Node, Some("a"), 1, 9)), (vec![], head));
        assert!(
            matches!(log.read(Kind::Node, Some("a"), 0, 9), Read::TooOld { .. }),
            "the change at 1 was dropped"
        );
        assert!(matches!(log.read(Kind::Node, None, 1, 9), Read::TooOld { .. }));
        drop(subscription);
        assert!(lock(&log.kind(Kind::Node).recent).nodes.is_empty());
    }

    #[test]
    fn the_log_is_limited_in_bytes() {
        let log = ChangeLog::new(0);
        for revision in 1..=5 {
            log.publish(&[node_change(revision, "a", MAX_BYTES / 4)], revision);
        }
        assert!(matches!(log.read(Kind::Node, None, 0, 9), Read::TooOld { until: 2 }));
        assert_eq!(revisions(log.read(Kind::Node, None, 2, 9)), (vec![3, 4, 5], 5));
    }
}
