//! What every ledger must do. Each ledger's tests run this suite on new ledgers.

use std::ops::Bound;
use std::sync::{Arc, RwLock};

use bytes::Bytes;
use jiff::Timestamp;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_store_core::draft::{Draft, Policy};
use muster_store_core::history::{Commit, Revision};
use muster_store_core::indexes::Indexes;
use muster_store_core::lease_table::Claim;
use muster_store_core::limits::EVENTS;
use muster_store_core::memory::{Memory, RecordVersion, Retention};
use muster_store_core::namespaced_name::NamespacedName;
use muster_store_core::rules::Defaults;

use super::{Ledger, LedgerError};

/// A writer on a ledger, as the store has one.
pub(crate) struct TestWriter<L> {
    pub(crate) ledger: Arc<L>,
    pub(crate) memory: Arc<RwLock<Memory>>,
    indexes: Indexes,
    policy: Policy,
    now: i64,
}

/// What a commit does.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Put {
        name: String,
        bytes: usize,
    },
    Delete {
        name: String,
    },
    /// Creates the lease of this name, or writes it again.
    PutLease {
        name: String,
    },
    Renew {
        name: String,
    },
}

impl<L: Ledger> TestWriter<L> {
    pub(crate) fn on(ledger: L) -> Self {
        Self::keeping(ledger, 10_000)
    }

    /// A writer that keeps some changes in history.
    pub(crate) fn keeping(ledger: L, min_changes: usize) -> Self {
        Self::try_keeping(ledger, min_changes).unwrap()
    }

    pub(crate) fn try_keeping(ledger: L, min_changes: usize) -> Result<Self, LedgerError> {
        let memory = ledger.load(&mut |_| ())?;
        Ok(Self::going_on(Arc::new(ledger), Arc::new(RwLock::new(memory)), min_changes))
    }

    /// A writer that continues from what is in memory.
    pub(crate) fn going_on(ledger: Arc<L>, memory: Arc<RwLock<Memory>>, min_changes: usize) -> Self {
        let policy = Policy {
            defaults: Defaults::default(),
            retention: Retention { min_age_millis: 0, min_changes, max_bytes: u64::MAX },
            event_ttl_millis: 0,
            event_limit: EVENTS,
        };
        let (indexes, now) = {
            let memory = memory.read().unwrap();
            (Indexes::rebuild(&memory, 0), memory.head() as i64)
        };
        Self { ledger, memory, indexes, policy, now }
    }

    /// Commits some steps, and applies them when they are durable.
    pub(crate) fn commit(&mut self, steps: &[Step]) -> Result<(), LedgerError> {
        let commit = self.draft(steps);
        let after = self.memory.read().unwrap().fingerprint_after(&commit);
        assert_eq!(after, commit.fingerprint, "others find out the same without applying it");
        let committed = self.ledger.commit(&commit);
        let mut memory = self.memory.write().unwrap();
        match &committed {
            Ok(()) => memory.apply_commit(&commit),
            Err(_) => self.indexes = Indexes::rebuild(&memory, 0),
        }
        assert_eq!(
            committed.is_ok(),
            memory.fingerprint() == commit.fingerprint || commit.changes.is_empty()
        );
        committed
    }

    pub(crate) fn draft(&mut self, steps: &[Step]) -> Commit {
        self.now += 1;
        let memory = self.memory.read().unwrap();
        let now = Timestamp::from_second(self.now).unwrap();
        let mut draft = Draft::new(&memory, &mut self.indexes, &self.policy, now);
        for step in steps {
            match step {
                Step::Put { name, bytes } => drop(draft.put(node(name, *bytes)).unwrap()),
                Step::Delete { name } => {
                    if let Some(node) = draft.get::<Node>("", name).unwrap() {
                        draft.remove(node).unwrap();
                    }
                }
                Step::PutLease { name } => drop(draft.put(lease(name)).unwrap()),
                Step::Renew { name } => {
                    let key = NamespacedName::new("leases", name);
                    if let Some(lease) = memory.get(Kind::Lease, &key)
                        && let Some(claim) = memory.leases.claim(lease.lease_id)
                        && draft.is_claim_valid(claim)
                    {
                        let Claim { .. } = claim;
                        draft.renew(claim, Some((self.now as u64, 7))).unwrap();
                    }
                }
            }
        }
        draft.maintain().unwrap();
        draft.finish().commit
    }

    /// All nodes as they were at a revision, by name, with their content.
    pub(crate) fn nodes_at(&self, at: Revision) -> Vec<(String, Bytes)> {
        let memory = self.memory.read().unwrap();
        let found = memory.scan_at(Kind::Node, Bound::Unbounded, at);
        found
            .map(|(key, version)| {
                let record = match version {
                    RecordVersion::Current(current) => current.record,
                    RecordVersion::InLedger { revision, superseded_by, .. } => {
                        self.ledger.version(revision, superseded_by).unwrap().expect("it is not compacted")
                    }
                };
                (key.name().to_owned(), record)
            })
            .collect()
    }

    pub(crate) fn head(&self) -> Revision {
        self.memory.read().unwrap().head()
    }
}

pub(crate) fn node(name: &str, bytes: usize) -> Node {
    let annotations = [("content".to_owned(), "x".repeat(bytes))].into();
    let metadata = pb::Metadata { name: name.to_owned(), annotations, ..Default::default() };
    Node::try_from(pb::Node { metadata: Some(metadata), ..Default::default() }).unwrap()
}

fn lease(name: &str) -> muster_proto::lease::Lease {
    let metadata =
        pb::Metadata { name: name.to_owned(), namespace: "leases".to_owned(), ..Default::default() };
    muster_proto::lease::Lease::try_from(pb::Lease { metadata: Some(metadata), spec: None }).unwrap()
}

pub(crate) fn put(name: &str, bytes: usize) -> Step {
    Step::Put { name: name.to_owned(), bytes }
}

pub(crate) fn delete(name: &str) -> Step {
    Step::Delete { name: name.to_owned() }
}

/// Runs every check. `fresh` makes an empty ledger; `reopen` opens the files of one again after it was dropped.
pub(crate) fn check<L: Ledger>(fresh: &dyn Fn() -> L, reopen: &dyn Fn(L) -> L) {
    what_was_committed_is_loaded(fresh(), reopen);
    a_commit_from_another_base_is_refused(fresh());
    every_revision_of_history_can_be_read(fresh(), reopen);
    recovering_loses_nothing(fresh(), reopen);
}

fn what_was_committed_is_loaded<L: Ledger>(ledger: L, reopen: &dyn Fn(L) -> L) {
    let mut writer = TestWriter::on(ledger);
    writer.commit(&[put("a", 10), put("b", 200_000), Step::PutLease { name: "l".into() }]).unwrap();
    writer.commit(&[Step::Renew { name: "l".into() }, put("a", 20), delete("b"), put("c", 0)]).unwrap();
    writer.commit(&[Step::Renew { name: "l".into() }]).unwrap();
    let (fingerprint, head) = (writer.memory.read().unwrap().fingerprint(), writer.head());
    let writer = TestWriter::on(reopen(Arc::into_inner(writer.ledger).unwrap()));
    assert_eq!((writer.memory.read().unwrap().fingerprint(), writer.head()), (fingerprint, head));
    let mut recalled = Vec::new();
    writer.ledger.load(&mut |change| recalled.push((change.revision, change.previous.is_some()))).unwrap();
    // The renewals at 4 and 8 are not changes.
    assert_eq!(recalled, [(1, false), (2, false), (3, false), (5, true), (6, true), (7, false)]);
}

fn a_commit_from_another_base_is_refused<L: Ledger>(ledger: L) {
    let mut writer = TestWriter::on(ledger);
    writer.commit(&[put("a", 1)]).unwrap();
    let mut foreign = writer.draft(&[put("b", 1)]);
    for base in [0, 2] {
        foreign.base = base;
        let refused = writer.ledger.commit(&foreign);
        assert!(matches!(refused, Err(LedgerError::Conflict { found: 1, .. })), "{refused:?}");
    }
    let kept = writer.ledger.load(&mut |_| ()).unwrap();
    assert_eq!(kept.fingerprint(), writer.memory.read().unwrap().fingerprint(), "nothing is undone");
    writer.commit(&[put("c", 1)]).unwrap();
}

fn every_revision_of_history_can_be_read<L: Ledger>(ledger: L, reopen: &dyn Fn(L) -> L) {
    let mut writer = TestWriter::on(ledger);
    let mut expected = Vec::new();
    for step in [put("a", 1), put("b", 2), put("a", 3), delete("b"), put("b", 4), delete("a"), put("a", 5)] {
        writer.commit(&[step]).unwrap();
        expected.push(writer.nodes_at(writer.head()));
    }
    for _ in 0..2 {
        for (at, expected) in (1..).zip(&expected) {
            assert_eq!(writer.nodes_at(at), *expected, "at {at}");
        }
        let (changes, up_to) = writer.ledger.changes_of(Kind::Node, 2, 6, 3).unwrap();
        let found: Vec<_> = changes
            .iter()
            .map(|(at, change)| (*at, change.deleted, change.previous_record.is_some()))
            .collect();
        assert_eq!((found, up_to), (vec![(3, false, true), (4, true, true), (5, false, false)], 5));
        let (rest, up_to) = writer.ledger.changes_of(Kind::Node, 5, 6, 3).unwrap();
        assert_eq!((rest.len(), up_to), (1, 6));
        assert_eq!(writer.ledger.changes_of(Kind::Pod, 0, 7, 3).unwrap(), (vec![], 7));
        writer = TestWriter::on(reopen(Arc::into_inner(writer.ledger).unwrap()));
    }
}

fn recovering_loses_nothing<L: Ledger>(ledger: L, reopen: &dyn Fn(L) -> L) {
    let mut writer = TestWriter::on(ledger);
    writer.commit(&[put("a", 1)]).unwrap();
    writer.ledger.recover().unwrap();
    writer.commit(&[put("b", 1)]).unwrap();
    let fingerprint = writer.memory.read().unwrap().fingerprint();
    let writer = TestWriter::on(reopen(Arc::into_inner(writer.ledger).unwrap()));
    assert_eq!(writer.memory.read().unwrap().fingerprint(), fingerprint);
}
