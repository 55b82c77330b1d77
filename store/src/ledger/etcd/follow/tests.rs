//! Followers of a leader on an etcd in memory.

use std::sync::{Arc, RwLock};

use muster_proto::identity::Caller;
use muster_proto::record::Kind;
use muster_rpc::clock::SystemClock;
use muster_store_core::draft::Policy;
use muster_store_core::lanes::Lane;
use muster_store_core::limits::EVENTS;
use muster_store_core::memory::{Memory, Retention};
use muster_store_core::rules::Defaults;
use prometheus_client::registry::Registry;

use super::super::fake::{FakeEtcd, Fault};
use super::super::{EtcdLedger, Term, prepare};
use super::*;
use crate::change_log::Read;
use crate::error::StoreError;
use crate::ledger::Ledger;
use crate::ledger::conformance::{Step, TestWriter, delete as remove, put as write};
use crate::metrics::Metrics;
use crate::queue::WriteClass;
use crate::store::Store;

fn keys() -> Keys {
    Keys::below("/muster").unwrap()
}

/// Takes the leader's key, as a store that was elected. The one before loses it.
fn claim(etcd: &FakeEtcd) -> Term {
    etcd.delete(keys().leader());
    Term { leader_revision: etcd.put(keys().leader(), "10.0.0.1:7400") }
}

fn new_leader(etcd: &Arc<FakeEtcd>, min_changes: usize) -> TestWriter<EtcdLedger> {
    let identity = prepare(&**etcd, &keys()).unwrap();
    TestWriter::keeping(EtcdLedger::open(etcd.clone(), keys(), identity, &claim(etcd)).unwrap(), min_changes)
}

fn policy() -> Policy {
    Policy {
        defaults: Defaults::default(),
        retention: Retention { min_age_millis: 0, min_changes: 100, max_bytes: u64::MAX },
        event_ttl_millis: 0,
        event_limit: EVENTS,
    }
}

/// A store that follows.
struct Follower {
    etcd: Arc<FakeEtcd>,
    ledger: Arc<EtcdLedger>,
    store: Arc<Store>,
}

impl Follower {
    fn of(etcd: &Arc<FakeEtcd>) -> Self {
        let identity = prepare(&**etcd, &keys()).unwrap();
        let ledger = Arc::new(EtcdLedger::new(etcd.clone(), keys(), identity));
        let metrics = Metrics::register(&mut Registry::default());
        let store = Store::load(ledger.clone(), policy(), SystemClock::shared(), metrics).unwrap();
        Self { etcd: etcd.clone(), ledger, store }
    }

    fn take_in(&self, events: &[pb::Event]) -> Result<(), FollowError> {
        self.ledger.take_in(events, &mut |commit, compacted| {
            let revision = commit.head;
            self.store
                .replicate(commit, compacted)
                .map_err(|difference| FollowError::Mismatch { revision, difference })
        })
    }

    fn news(&self) -> Vec<pb::Event> {
        self.etcd.events_from(self.ledger.position() + 1)
    }

    /// Takes in everything that has happened.
    fn catch_up(&self) {
        self.take_in(&self.news()).unwrap();
    }

    /// Writes from here on.
    fn lead(&self) -> TestWriter<EtcdLedger> {
        let term = claim(&self.etcd);
        self.catch_up();
        self.ledger.lead(&term).unwrap();
        TestWriter::going_on(self.ledger.clone(), self.store.memory().clone(), 5)
    }

    /// The changes that watchers of nodes get after a revision, and up to where.
    fn watched(&self, after: Revision) -> (Vec<(Revision, bool, bool)>, Revision) {
        match self.store.log().read(Kind::Node, None, after, usize::MAX) {
            Read::TooOld { until } => panic!("after {after}: the log begins at {until}"),
            Read::Changes { changes, up_to } => {
                let of = |change: &muster_store_core::change::SharedChange| {
                    (change.revision, change.deleted, change.previous.is_some())
                };
                (changes.iter().map(of).collect(), up_to)
            }
        }
    }
}

/// What two memories have in common if they are the same store: records, renewals, history.
fn summary(memory: &RwLock<Memory>) -> impl PartialEq + std::fmt::Debug + use<> {
    let memory = memory.read().unwrap();
    (memory.fingerprint(), memory.head(), memory.compacted())
}

/// Steps of all kinds, in commits of one or more transactions.
fn commits() -> Vec<Vec<Step>> {
    let renew = |lease: &str| Step::Renew { name: lease.into() };
    let mut commits = vec![vec![
        write("a", 1),
        write("b", 2),
        Step::PutLease { name: "l".into() },
        Step::PutLease { name: "m".into() },
    ]];
    for round in 0..40 {
        let (one, two) = (format!("n{}", round % 4), format!("once-{round}"));
        commits.push(vec![write(&one, round), renew("l"), write(&two, 1), write(&one, round + 1)]);
        commits.push(vec![renew("m"), renew("l")]);
        commits.push(vec![remove(&two), write(&two, 2), remove(&two), Step::PutLease { name: "m".into() }]);
        if round % 10 == 3 {
            // Two hundred changes and two of 200 KB: some transactions.
            let mut large: Vec<_> = (0..200).map(|number| write(&format!("large-{number}"), round)).collect();
            large.extend([write("b", 200_000), write("a", 200_000), renew("m")]);
            commits.push(large);
        }
    }
    commits
}

#[test]
fn a_follower_has_the_same_records_history_and_changes_as_the_leader_at_each_head() {
    let etcd = Arc::new(FakeEtcd::default());
    let mut leader = new_leader(&etcd, 30);
    let follower = Follower::of(&etcd);
    let mut cursor = follower.store.log().head();
    for steps in commits() {
        leader.commit(&steps).unwrap();
        // One transaction after the other, as a slow watch shows them.
        let before = (summary(follower.store.memory()), follower.store.log().head());
        let news = follower.news();
        let last = news.iter().rposition(|event| event.kv.as_ref().unwrap().key == keys().head()).unwrap();
        let head_at = news[last].kv.as_ref().unwrap().mod_revision;
        for together in news.chunk_by(|one, next| {
            one.kv.as_ref().unwrap().mod_revision == next.kv.as_ref().unwrap().mod_revision
        }) {
            let at = together[0].kv.as_ref().unwrap().mod_revision;
            follower.take_in(together).unwrap();
            let now = (summary(follower.store.memory()), follower.store.log().head());
            assert_eq!(now == before, at < head_at, "a commit is visible with its head, and not before");
        }
        assert_eq!(summary(follower.store.memory()), summary(&leader.memory));
        assert_eq!(follower.store.log().head(), leader.head());
        let (changes, up_to) = follower.watched(cursor);
        assert!(changes.is_sorted_by(|one, next| one.0 < next.0) && up_to == leader.head());
        let (stored, _) = leader.ledger.changes_of(Kind::Node, cursor, up_to, usize::MAX).unwrap();
        let stored: Vec<_> = stored.iter().map(|(at, it)| (*at, it.deleted, it.previous > 0)).collect();
        assert_eq!(changes, stored, "watchers get exactly what history has");
        cursor = up_to;
    }
    assert!(leader.memory.read().unwrap().compacted() > 0);
    let follower = TestWriter::going_on(follower.ledger, follower.store.memory().clone(), 30);
    for at in follower.memory.read().unwrap().compacted() + 1..=leader.head() {
        assert_eq!(follower.nodes_at(at), leader.nodes_at(at), "a list at {at}");
    }
}

#[test]
fn a_follower_that_takes_over_goes_on_without_loading_and_so_does_the_next_one() {
    let etcd = Arc::new(FakeEtcd::default());
    let mut writer = new_leader(&etcd, 5);
    let followers = [Follower::of(&etcd), Follower::of(&etcd)];
    for (round, steps) in commits().into_iter().enumerate() {
        writer.commit(&steps).unwrap();
        if round % 9 == 8 {
            let next = &followers[round / 9 % 2];
            let mut old = std::mem::replace(&mut writer, next.lead());
            let refused = old.commit(&[write("late", 1)]).unwrap_err();
            assert!(matches!(refused, LedgerError::Deposed(_)), "{refused:?}");
            let other = &followers[1 - round / 9 % 2];
            other.ledger.follow();
            other.catch_up();
            assert_eq!(summary(other.store.memory()), summary(&writer.memory), "round {round}");
        }
    }
    writer.ledger.check().unwrap();
    // What history does not need is deleted, by one leader or the next.
    let keys = etcd.keys();
    let (records, head) = {
        let memory = writer.memory.read().unwrap();
        (memory.scan(Kind::Node, std::ops::Bound::Unbounded).count(), memory.head())
    };
    let changes = keys.iter().filter(|key| key.contains("/c/")).count();
    assert!(changes <= records + 2 + 2 * 6, "{changes} changes for {records} records");
    let packs = keys.iter().filter(|key| key.contains("/r/")).count();
    assert!(packs <= 3, "{packs} packs for two leases");
    let loaded = Follower::of(&etcd);
    assert_eq!(summary(loaded.store.memory()), summary(&writer.memory));
    assert_eq!(loaded.store.log().head(), head);
}

#[test]
fn a_commit_that_was_not_finished_is_never_seen_and_its_revisions_are_used_again() {
    let etcd = Arc::new(FakeEtcd::default());
    let mut leader = new_leader(&etcd, 100);
    leader.commit(&[write("a", 1)]).unwrap();
    let early = Follower::of(&etcd);
    let many: Vec<_> = (0..300).map(|number| write(&format!("lost-{number}"), 1)).collect();
    // The last transaction is refused: two of three are there.
    etcd.inject([Fault::Pass, Fault::Pass, Fault::Refused(muster_etcd::EtcdError::NotDone("busy".into()))]);
    leader.commit(&many).unwrap_err();
    let late = Follower::of(&etcd);
    early.catch_up();
    for follower in [&early, &late] {
        assert_eq!(follower.store.log().head(), 1);
    }
    // One of them takes over, and writes at these revisions.
    let mut writer = early.lead();
    writer.commit(&[write("b", 1), write("c", 1)]).unwrap();
    late.catch_up();
    assert_eq!(summary(late.store.memory()), summary(&writer.memory));
    assert_eq!(late.watched(1).0, [(2, false, false), (3, false, false)]);
    let names: Vec<_> = writer.nodes_at(3).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn a_change_that_the_watch_left_out_is_noticed_before_anybody_sees_the_commit() {
    let etcd = Arc::new(FakeEtcd::default());
    let mut leader = new_leader(&etcd, 100);
    leader.commit(&[write("a", 1), Step::PutLease { name: "l".into() }]).unwrap();
    let steps =
        [vec![write("b", 1), write("a", 2)], vec![Step::Renew { name: "l".into() }], vec![remove("a")]];
    let start = Follower::of(&etcd).ledger.position() + 1;
    for steps in &steps {
        leader.commit(steps).unwrap();
    }
    let all = etcd.events_from(start);
    let late = Follower::of(&etcd);
    for left_out in 0..all.len() {
        // As if it had begun before all of them.
        let other = Arc::new(FakeEtcd::default());
        let mut again = new_leader(&other, 100);
        again.commit(&[write("a", 1), Step::PutLease { name: "l".into() }]).unwrap();
        let follower = Follower::of(&other);
        for steps in &steps {
            again.commit(steps).unwrap();
        }
        let mut events = follower.news();
        assert_eq!(events.len(), all.len());
        events.remove(left_out);
        let head = follower.store.log().head();
        let is_last_head = left_out == all.len() - 1;
        let taken = follower.take_in(&events);
        if is_last_head {
            taken.unwrap();
        } else {
            let error = taken.unwrap_err();
            assert!(matches!(error, FollowError::Gap { .. } | FollowError::Mismatch { .. }), "{error}");
        }
        // What it shows is a state that the leader had.
        let shown = follower.store.log().head();
        assert!(shown >= head && follower.store.read().head() == shown);
        assert_eq!(follower.watched(head).1, shown);
    }
    assert_eq!(summary(late.store.memory()), summary(&leader.memory));
}

#[test]
fn changes_that_etcd_shows_again_are_not_applied_again() {
    let etcd = Arc::new(FakeEtcd::default());
    let mut leader = new_leader(&etcd, 100);
    let follower = Follower::of(&etcd);
    let start = follower.ledger.position() + 1;
    for round in 0..3 {
        leader.commit(&[write("a", round), write("b", round)]).unwrap();
        follower.take_in(&etcd.events_from(start)).unwrap();
    }
    assert_eq!(follower.watched(0).0.len(), 6);
    assert_eq!(summary(follower.store.memory()), summary(&leader.memory));
}

#[test]
fn a_leader_whose_last_answer_was_lost_follows_with_or_without_that_commit() {
    for fault in [Fault::DoneThenDeposed { commits: 2 }, Fault::LostThenDeposed { commits: 2 }] {
        let etcd = Arc::new(FakeEtcd::default());
        let first = Follower::of(&etcd);
        let mut writer = first.lead();
        writer.commit(&[write("a", 1)]).unwrap();
        let other = etcd.clone();
        etcd.on_takeover(move |commits| {
            let mut successor = new_leader(&other, 100);
            for number in 0..commits {
                successor.commit(&[write(&format!("successor-{number}"), 1)]).unwrap();
            }
        });
        etcd.inject([fault.clone()]);
        let is_done = matches!(fault, Fault::DoneThenDeposed { .. });
        assert_eq!(writer.commit(&[write("b", 1)]).is_ok(), is_done);
        first.ledger.follow();
        first.catch_up();
        let loaded = Follower::of(&etcd);
        assert_eq!(summary(first.store.memory()), summary(loaded.store.memory()), "{fault:?}");
    }
}

#[test]
fn a_store_that_has_missed_the_last_commit_does_not_lead() {
    let etcd = Arc::new(FakeEtcd::default());
    let mut leader = new_leader(&etcd, 100);
    let behind = Follower::of(&etcd);
    leader.commit(&[write("a", 1)]).unwrap();
    let term = claim(&etcd);
    let refused = behind.ledger.lead(&term).unwrap_err();
    assert!(matches!(refused, LedgerError::Altered(_)), "{refused:?}");
}

#[test]
fn a_store_knows_who_leads_and_when_the_format_is_not_its_own() {
    let etcd = Arc::new(FakeEtcd::default());
    let follower = Follower::of(&etcd);
    assert_eq!(follower.ledger.leader(), None);
    let term = claim(&etcd);
    follower.catch_up();
    let leader = Leader { address: "10.0.0.1:7400".to_owned(), revision: term.leader_revision };
    assert_eq!(follower.ledger.leader(), Some(leader.clone()));
    assert_eq!(Follower::of(&etcd).ledger.leader(), Some(leader));
    etcd.delete(keys().leader());
    follower.catch_up();
    assert_eq!(follower.ledger.leader(), None);
    etcd.put(keys().format(), "muster-store format 2 id x");
    assert!(matches!(follower.take_in(&follower.news()), Err(FollowError::Format)));
}

#[test]
fn after_a_compaction_of_etcd_a_store_goes_on_only_if_it_missed_nothing_but_deletions() {
    let etcd = Arc::new(FakeEtcd::default());
    let mut leader = new_leader(&etcd, 100);
    leader.commit(&[write("a", 1)]).unwrap();
    let follower = Follower::of(&etcd);
    etcd.put("/somebody-else", "moves etcd's revision");
    assert!(follower.ledger.skip_compacted().unwrap());
    assert!(follower.news().is_empty(), "its position is etcd's");
    etcd.inject([Fault::Pass, Fault::Pass, Fault::Refused(muster_etcd::EtcdError::NotDone("busy".into()))]);
    let many: Vec<_> = (0..300).map(|number| write(&format!("n{number}"), 1)).collect();
    leader.commit(&many).unwrap_err();
    assert!(!follower.ledger.skip_compacted().unwrap(), "a commit is being written");
    leader.commit(&[write("b", 1)]).unwrap();
    assert!(!follower.ledger.skip_compacted().unwrap());
}

#[tokio::test]
async fn a_leader_that_was_deposed_gives_no_answer_from_memory_either() {
    let etcd = Arc::new(FakeEtcd::default());
    let store = Follower::of(&etcd);
    let term = claim(&etcd);
    store.catch_up();
    store.ledger.lead(&term).unwrap();
    let writer = store.store.start_writer().unwrap();
    // It writes nothing, like a refusal.
    let look = || {
        let class = WriteClass::new(Lane::Others, &Caller::Admin, 0);
        store.store.write(String::new(), class, |draft| Ok(draft.revision()))
    };
    assert_eq!(look().await, Ok(0));
    claim(&etcd);
    assert_eq!(look().await, Err(StoreError::NotLeader { leader: None }), "another store may have written");
    store.store.stop();
    tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
}
