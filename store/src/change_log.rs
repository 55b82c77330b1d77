//! The newest changes, in memory, and the signals that tell of them.
//!
//! A watcher reads from where it is and waits for a signal; it has no queue, so
//! a slow one costs nothing but its lag, and the writer never waits. What is no
//! longer here is read from the ledger. A watcher of one node's records has a
//! topic: it is woken only by changes that touch its node and reads only those.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_proto::record::Kind;
use tokio::sync::watch;

use muster_store_core::change::{Change, SharedChange};
use muster_store_core::history::Revision;
use muster_store_core::selectors;

/// How much of each kind is held here, by number and by size.
const HELD: usize = 16 * 1024;
const HELD_BYTES: usize = 32 << 20;

/// What a read of the log came to.
#[derive(Debug)]
pub enum Read {
    /// These changes, and no others up to `up_to`.
    Changes { changes: Vec<SharedChange>, up_to: Revision },
    /// The log begins later: ask the ledger up to `until`.
    TooOld { until: Revision },
}

/// The newest changes of all kinds.
pub struct ChangeLog {
    head: watch::Sender<Revision>,
    kinds: BTreeMap<Kind, KindLog>,
}

struct KindLog {
    tail: Mutex<Tail>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Tail {
    changes: VecDeque<SharedChange>,
    bytes: usize,
    /// Every change of this kind after this revision is here.
    since: Revision,
    topics: HashMap<String, Topic>,
}

struct Topic {
    changes: VecDeque<SharedChange>,
    /// The newest change on this topic that may have been let go.
    gone: Revision,
    changed: watch::Sender<()>,
    watchers: usize,
}

/// Wakes a watcher; a topic is kept while somebody has its signal.
pub struct Signal {
    log: Arc<ChangeLog>,
    kind: Kind,
    topic: Option<String>,
    changed: watch::Receiver<()>,
}

impl ChangeLog {
    /// A log of what comes after a revision.
    pub fn new(head: Revision) -> Arc<Self> {
        let kinds = Kind::ALL.map(|kind| {
            let tail = Mutex::new(Tail { since: head, ..Default::default() });
            (kind, KindLog { tail, changed: watch::Sender::new(()) })
        });
        Arc::new(Self { head: watch::Sender::new(head), kinds: kinds.into() })
    }

    /// Takes in what happened before a restart, in order, so that those who were
    /// watching go on without the disk.
    pub fn recall(&self, change: Change) {
        lock(&self.kind(change.kind).tail).push(Arc::new(change));
    }

    /// Says that everything up to the head was recalled.
    pub fn recalled(&self, head: Revision) {
        self.head.send_replace(head);
    }

    fn kind(&self, kind: Kind) -> &KindLog {
        &self.kinds[&kind]
    }

    /// Everything up to here can be read.
    pub fn head(&self) -> Revision {
        *self.head.borrow()
    }

    /// Follows the head.
    pub fn follow_head(&self) -> watch::Receiver<Revision> {
        self.head.subscribe()
    }

    /// Takes in what a commit changed. Changes come in order, and only once they
    /// are durable.
    pub fn publish(&self, changes: &[SharedChange], head: Revision) {
        let mut touched = Vec::new();
        for kind in Kind::ALL {
            let mut of_kind = changes.iter().filter(|change| change.kind == kind).peekable();
            if of_kind.peek().is_none() {
                continue;
            }
            let mut tail = lock(&self.kind(kind).tail);
            for change in of_kind {
                tail.push(Arc::clone(change));
            }
            touched.push(kind);
        }
        // The head moves before anybody wakes: who wakes may read up to it.
        self.head.send_replace(head);
        for kind in touched {
            let log = self.kind(kind);
            log.changed.send_replace(());
            let tail = lock(&log.tail);
            for change in changes.iter().filter(|change| change.kind == kind) {
                for name in selectors::topics(change) {
                    if let Some(topic) = tail.topics.get(&name) {
                        topic.changed.send_replace(());
                    }
                }
            }
        }
    }

    /// Wakes the watchers of a kind whose news is not in this log.
    pub fn signal(&self, kind: Kind, head: Revision) {
        self.head.send_replace(head);
        self.kind(kind).changed.send_replace(());
    }

    /// A signal for changes of a kind, or of one topic of it.
    pub fn subscribe(self: &Arc<Self>, kind: Kind, topic: Option<&str>) -> Signal {
        let log = self.kind(kind);
        let changed = match topic {
            None => log.changed.subscribe(),
            Some(name) => {
                let mut tail = lock(&log.tail);
                // Sorting out the past for a new topic would cost every agent of a
                // starting fleet a walk through the log: a watcher from before
                // this moment reads all changes until it has caught up with it.
                let now = tail.changes.back().map_or(tail.since, |newest| newest.revision);
                let topic = tail.topics.entry(name.to_owned()).or_insert_with(|| Topic {
                    changes: VecDeque::new(),
                    gone: now,
                    changed: watch::Sender::new(()),
                    watchers: 0,
                });
                topic.watchers += 1;
                topic.changed.subscribe()
            }
        };
        Signal { log: Arc::clone(self), kind, topic: topic.map(str::to_owned), changed }
    }

    /// At most `limit` changes of a kind after `after`, or of one topic of it.
    pub fn read(&self, kind: Kind, topic: Option<&str>, after: Revision, limit: usize) -> Read {
        // Before the lock: what is published later is left for the next read.
        let head = self.head();
        let tail = lock(&self.kind(kind).tail);
        let topic = topic.and_then(|name| tail.topics.get(name)).filter(|topic| topic.gone <= after);
        let held = match topic {
            Some(topic) => &topic.changes,
            None if after < tail.since => return Read::TooOld { until: tail.since },
            None => &tail.changes,
        };
        let from = held.partition_point(|change| change.revision <= after);
        let changes: Vec<_> = held.range(from..).take(limit).cloned().collect();
        let last = changes.last().map_or(after, |change| change.revision);
        let up_to = if changes.len() == limit { last } else { last.max(head) };
        Read::Changes { changes, up_to }
    }
}

impl Tail {
    fn push(&mut self, change: SharedChange) {
        self.bytes += change.weight();
        if !self.topics.is_empty() {
            for name in selectors::topics(&change) {
                if let Some(topic) = self.topics.get_mut(&name) {
                    topic.changes.push_back(Arc::clone(&change));
                }
            }
        }
        self.changes.push_back(change);
        while self.changes.len() > HELD || self.bytes > HELD_BYTES {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.bytes -= oldest.weight();
            self.since = oldest.revision;
            for name in selectors::topics(&oldest) {
                if let Some(topic) = self.topics.get_mut(&name)
                    && topic.changes.front().is_some_and(|front| front.revision == oldest.revision)
                {
                    topic.gone = oldest.revision;
                    topic.changes.pop_front();
                }
            }
        }
    }
}

impl Signal {
    /// What happened so far is known; wait for what comes next.
    pub fn seen(&mut self) {
        self.changed.mark_unchanged();
    }

    /// Returns once something happened since [`seen`](Self::seen).
    pub async fn next(&mut self) {
        // The sender lives in the log, which this signal keeps.
        let _ = self.changed.changed().await;
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        let Some(name) = &self.topic else { return };
        let mut tail = lock(&self.log.kind(self.kind).tail);
        if let Some(topic) = tail.topics.get_mut(name) {
            topic.watchers -= 1;
            if topic.watchers == 0 {
                tail.topics.remove(name);
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
    fn a_topic_is_read_without_its_neighbours_even_after_they_pushed_the_rest_out() {
        let log = ChangeLog::new(0);
        let mut signal = log.subscribe(Kind::Node, Some("a"));
        signal.seen();
        log.publish(&[node_change(1, "a", 0)], 1);
        assert!(signal.changed.has_changed().unwrap());
        assert_eq!(revisions(log.read(Kind::Node, Some("a"), 0, 9)), (vec![1], 1));
        signal.seen();
        for revision in 2..=(HELD as u64 + 10) {
            log.publish(&[node_change(revision, "b", 0)], revision);
        }
        assert!(!signal.changed.has_changed().unwrap(), "the neighbours' changes wake nobody here");
        let head = HELD as u64 + 10;
        assert_eq!(revisions(log.read(Kind::Node, Some("a"), 1, 9)), (vec![], head));
        assert!(matches!(log.read(Kind::Node, Some("a"), 0, 9), Read::TooOld { .. }), "1 was let go");
        assert!(matches!(log.read(Kind::Node, None, 1, 9), Read::TooOld { .. }));
        drop(signal);
        assert!(lock(&log.kind(Kind::Node).tail).topics.is_empty());
    }

    #[test]
    fn large_changes_push_others_out_by_size() {
        let log = ChangeLog::new(0);
        for revision in 1..=5 {
            log.publish(&[node_change(revision, "a", HELD_BYTES / 4)], revision);
        }
        assert!(matches!(log.read(Kind::Node, None, 0, 9), Read::TooOld { until: 2 }));
        assert_eq!(revisions(log.read(Kind::Node, None, 2, 9)), (vec![3, 4, 5], 5));
    }
}
