//! The ledger on an etcd in memory that loses answers, and on a real one.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use muster_etcd::{Client, TlsFiles};
use muster_store_core::fingerprint::Fingerprint;
use muster_store_core::history::StoredRenewal;
use tokio::runtime::Runtime;

use super::fake::{FakeEtcd, Fault};
use super::*;
use crate::ledger::conformance::{self, Step, TestWriter, delete as remove, put as write};

fn keys() -> Keys {
    Keys::below("/muster").unwrap()
}

/// Takes the leader's key, as a store that was elected.
fn claim(etcd: &FakeEtcd) -> Term {
    etcd.delete(keys().leader());
    Term { leader_revision: etcd.put(keys().leader(), "a store") }
}

fn open(etcd: &Arc<FakeEtcd>) -> EtcdLedger {
    let identity = prepare(&**etcd, &keys()).unwrap();
    EtcdLedger::open(etcd.clone(), keys(), identity, &claim(etcd)).unwrap()
}

fn loaded(etcd: &Arc<FakeEtcd>) -> (Fingerprint, Revision) {
    let writer = TestWriter::on(open(etcd));
    (writer.memory.read().unwrap().fingerprint(), writer.head())
}

/// A writer with one record on an etcd in memory.
fn writer() -> (Arc<FakeEtcd>, TestWriter<EtcdLedger>) {
    let etcd = Arc::new(FakeEtcd::default());
    let mut writer = TestWriter::on(open(&etcd));
    writer.commit(&[write("a", 1), Step::PutLease { name: "l".into() }]).unwrap();
    (etcd, writer)
}

fn deposed(ledger: &EtcdLedger) -> bool {
    ledger.follow_deposed().borrow().is_some()
}

#[test]
fn the_conformance_suite_passes_on_an_etcd_in_memory() {
    let reopened = std::cell::RefCell::new(Arc::new(FakeEtcd::default()));
    let fresh = || {
        *reopened.borrow_mut() = Arc::new(FakeEtcd::default());
        open(&reopened.borrow())
    };
    conformance::check(&fresh, &|ledger| {
        drop(ledger);
        open(&reopened.borrow())
    });
}

#[test]
fn a_lost_answer_is_looked_up_before_anybody_gets_the_outcome() {
    for faults in [
        vec![Fault::LostAnswer],
        vec![Fault::LostRequest],
        vec![Fault::LostRequest, Fault::LostRequest, Fault::LostAnswer],
        // The first attempt is done while the second is under way, or between them, or long after.
        vec![Fault::Late(1), Fault::LostRequest],
        vec![Fault::Late(2)],
        vec![Fault::Late(3), Fault::LostRequest],
        vec![Fault::Late(40)],
        vec![Fault::LostRequest, Fault::Refused(EtcdError::NotDone("busy".into()))],
    ] {
        let (etcd, mut writer) = writer();
        etcd.inject(faults.clone());
        writer.commit(&[write("b", 1), Step::Renew { name: "l".into() }]).unwrap();
        writer.commit(&[write("a", 2)]).unwrap();
        for _ in 0..50 {
            writer.ledger.kv.pause(Duration::ZERO);
        }
        writer.commit(&[write("c", 2)]).unwrap();
        assert!(!deposed(&writer.ledger), "{faults:?}");
        let kept = (writer.memory.read().unwrap().fingerprint(), writer.head());
        assert_eq!(loaded(&etcd), kept, "{faults:?}");
    }
}

#[test]
fn what_was_not_done_is_refused_and_the_next_commit_goes_on() {
    let (etcd, mut writer) = writer();
    etcd.inject([Fault::Refused(EtcdError::NotPermitted("denied".into()))]);
    let refused = writer.commit(&[write("b", 1)]).unwrap_err();
    assert!(refused.to_string().contains("denied"), "{refused}");
    writer.ledger.recover().unwrap();
    writer.commit(&[write("c", 1)]).unwrap();
    let kept = (writer.memory.read().unwrap().fingerprint(), writer.head());
    assert_eq!(loaded(&etcd), kept);
}

#[test]
fn without_space_nothing_is_written_unless_etcd_noticed_too_late() {
    let (etcd, mut writer) = writer();
    etcd.inject([Fault::NoSpaceAfterwards]);
    writer.commit(&[write("b", 1)]).unwrap();
    let refused = writer.commit(&[write("c", 1)]).unwrap_err();
    assert!(matches!(refused, LedgerError::ReadOnly(_)), "{refused:?}");
    assert!(matches!(writer.ledger.check(), Err(LedgerError::ReadOnly(text)) if text.contains("NOSPACE")));
    assert!(!deposed(&writer.ledger), "it keeps its lease");
    etcd.set_full(false);
    writer.ledger.check().unwrap();
    writer.commit(&[write("c", 1)]).unwrap();
    let kept = (writer.memory.read().unwrap().fingerprint(), writer.head());
    assert_eq!(loaded(&etcd), kept);
}

/// Has another store take over at the next fault that says so; it writes a node per commit.
fn successor(etcd: &Arc<FakeEtcd>) {
    let other = etcd.clone();
    etcd.on_takeover(move |commits| {
        let mut writer = TestWriter::on(open(&other));
        for number in 0..commits {
            writer.commit(&[write(&format!("successor-{number}"), 1)]).unwrap();
        }
    });
}

#[test]
fn a_deposed_leader_learns_whether_its_last_commit_is_below_its_successors() {
    for commits in [0, 1, 2, 5] {
        let (etcd, mut writer) = writer();
        successor(&etcd);
        etcd.inject([Fault::DoneThenDeposed { commits }]);
        writer.commit(&[write("b", 1)]).unwrap();
        assert_eq!(deposed(&writer.ledger), commits > 0, "{commits}: with none the head is its own");
        let refused = writer.commit(&[write("c", 1)]).unwrap_err();
        assert!(matches!(refused, LedgerError::Deposed(_)), "{commits}: {refused:?}");

        let (etcd, mut writer) = self::writer();
        successor(&etcd);
        etcd.inject([Fault::LostThenDeposed { commits }]);
        let refused = writer.commit(&[write("b", 1)]).unwrap_err();
        assert!(matches!(refused, LedgerError::Deposed(_)), "{commits}: {refused:?}");
        assert!(deposed(&writer.ledger));
    }
}

#[test]
fn a_leader_that_lost_its_key_writes_nothing() {
    // A comparison that is left out of `compares` makes this fail: the head alone does not change with the leader.
    let (etcd, mut writer) = writer();
    let before = etcd.keys();
    claim(&etcd);
    let refused = writer.commit(&[write("b", 1)]).unwrap_err();
    assert!(matches!(refused, LedgerError::Deposed(_)), "{refused:?}");
    assert_eq!(etcd.keys(), before);
    assert!(matches!(writer.ledger.check(), Err(LedgerError::Deposed(_))));
}

#[test]
fn a_newer_format_ends_the_writing_of_older_versions() {
    let (etcd, mut writer) = writer();
    etcd.put(keys().format(), format!("muster-store format 2 id {}\n", uuid::Uuid::new_v4()));
    let refused = writer.commit(&[write("b", 1)]).unwrap_err();
    assert!(matches!(&refused, LedgerError::Deposed(why) if why.contains("format")), "{refused:?}");
    let refused = prepare(&*etcd, &keys()).unwrap_err().to_string();
    assert!(refused.contains("format 2") && refused.contains("--etcd-prefix"), "{refused}");
}

#[test]
fn a_prefix_with_other_keys_is_refused_and_nothing_is_written() {
    let etcd = FakeEtcd::default();
    etcd.put("/muster/registry", "somebody's");
    etcd.put("/musterer", "not below the prefix");
    let refused = prepare(&etcd, &keys()).unwrap_err().to_string();
    assert!(refused.contains("such as /muster/registry"), "{refused}");
    assert_eq!(etcd.keys(), ["/muster/registry", "/musterer"]);
    etcd.delete("/muster/registry");
    let identity = prepare(&etcd, &keys()).unwrap();
    assert_eq!(prepare(&etcd, &keys()).unwrap(), identity, "it is created once");
}

#[test]
fn a_large_commit_is_written_in_pieces_that_etcd_takes_and_is_whole_or_not_there() {
    let etcd = Arc::new(FakeEtcd::default());
    let mut writer = TestWriter::on(open(&etcd));
    let names: Vec<_> = (0..300).map(|i| format!("n{i}")).collect();
    let many: Vec<_> = names.iter().map(|name| write(name, 10)).collect();
    writer.commit(&many).unwrap();
    let large: Vec<_> = (0..4).map(|i| write(&format!("n{i}"), 250_000)).collect();
    writer.commit(&large).unwrap();
    for (operations, bytes) in etcd.sent() {
        assert!(operations <= 120 && bytes <= 1_572_864, "{operations} operations, {bytes} bytes");
    }
    assert!(etcd.sent().len() >= 7, "{:?}", etcd.sent());
    let kept = (writer.memory.read().unwrap().fingerprint(), writer.head());
    assert_eq!(loaded(&etcd), kept);

    // The process ends, or etcd refuses, before the head has moved.
    for faults in
        [vec![Fault::Pass, Fault::Refused(EtcdError::NoSpace)], vec![Fault::Pass, Fault::LostRequest]]
    {
        let mut writer = TestWriter::on(open(&etcd));
        writer.ledger.stop_waiting();
        etcd.inject(faults);
        let other: Vec<_> = names.iter().map(|name| write(name, 20)).collect();
        writer.commit(&other[..200]).unwrap_err();
        assert_eq!(loaded(&etcd), kept);
    }
    // A leader that goes on removes what it left, so that renewals may take these revisions.
    let mut writer = TestWriter::on(open(&etcd));
    etcd.inject([Fault::Pass, Fault::Refused(EtcdError::NotDone("busy".into()))]);
    writer.commit(&many[..200]).unwrap_err();
    assert_eq!(loaded(&etcd), kept);
}

/// The largest record that there may be, and many renewals, as the first commit of a store.
fn large_commit() -> Commit {
    let mut name = 0;
    let mut change = |bytes: usize| {
        name += 1;
        StoredChange {
            kind: Kind::Lease,
            namespace: "leases".into(),
            name: format!("l{name}"),
            record: vec![0; bytes].into(),
            deleted: false,
            previous: 0,
            previous_record: None,
            at_millis: 0,
            traceparent: String::new(),
            lease_id: name - 1,
        }
    };
    let changes = vec![(1, change(1_500_000)), (2, change(10)), (3, change(1_500_000))];
    let renewal = |lease_id| StoredRenewal { lease_id, status_age_millis: 0, status_digest: 0, at_micros: 0 };
    let renewals = vec![(4, (0..4096).map(|number| renewal(number % 3)).collect())];
    let mut commit = Commit { head: 3 + 4096, changes, renewals, ..Default::default() };
    let mut memory = Memory::at(0, 0);
    memory.apply_commit(&commit);
    commit.fingerprint = memory.fingerprint();
    commit
}

#[test]
fn the_largest_record_fits_beside_the_most_renewals() {
    let etcd = Arc::new(FakeEtcd::default());
    let (ledger, commit) = (open(&etcd), large_commit());
    ledger.load(&mut |_| ()).unwrap();
    ledger.commit(&commit).unwrap();
    let sent = etcd.sent();
    assert!(sent.iter().all(|(_, bytes)| *bytes <= 1_572_864), "{sent:?}");
    // The format, two large records, a small one, and the renewals with the head.
    assert_eq!(sent.len(), 1 + 4, "{sent:?}");
    assert_eq!(loaded(&etcd), (commit.fingerprint, commit.head));
}

#[test]
fn what_is_left_of_an_unfinished_commit_is_removed_before_its_revisions_are_used() {
    let (etcd, mut writer) = writer();
    let many: Vec<_> = (0..200).map(|i| write(&format!("n{i}"), 10)).collect();
    etcd.inject([Fault::Pass, Fault::Refused(EtcdError::NotDone("busy".into()))]);
    writer.commit(&many).unwrap_err();
    let above = keys().numbered(Section::Changes, 3);
    assert!(etcd.keys().contains(&String::from_utf8_lossy(&above).into_owned()));
    writer.ledger.recover().unwrap();
    writer.commit(&[Step::Renew { name: "l".into() }]).unwrap();
    let kept = (writer.memory.read().unwrap().fingerprint(), writer.head());
    assert_eq!(loaded(&etcd), kept);
}

#[test]
fn history_that_is_not_kept_is_deleted_and_deleted_records_do_not_come_back() {
    let etcd = Arc::new(FakeEtcd::default());
    let mut writer = TestWriter::keeping(open(&etcd), 5);
    for round in 0..60 {
        let names = [format!("a{}", round % 3), format!("b{round}")];
        writer.commit(&[write(&names[0], round), write(&names[1], 1)]).unwrap();
        writer.commit(&[remove(&names[1])]).unwrap();
        // Whatever was deleted so far, a new leader loads the same.
        if round % 7 == 0 {
            let kept = (writer.memory.read().unwrap().fingerprint(), writer.head());
            writer = TestWriter::keeping(open(&etcd), 5);
            assert_eq!((writer.memory.read().unwrap().fingerprint(), writer.head()), kept, "{round}");
        }
    }
    writer.commit(&[write("a0", 1)]).unwrap();
    writer.ledger.check().unwrap();
    let changes = etcd.keys().into_iter().filter(|key| key.contains("/c/")).count();
    assert!(changes <= 3 + 2 * 6, "{changes} changes are kept for three records and five changes");
    let kept = (writer.memory.read().unwrap().fingerprint(), writer.head());
    assert_eq!(loaded(&etcd), kept);
}

#[test]
fn renewals_take_no_more_keys_than_there_are_leases() {
    let etcd = Arc::new(FakeEtcd::default());
    let mut writer = TestWriter::on(open(&etcd));
    let leases: Vec<_> = (0..10).map(|i| format!("l{i}")).collect();
    let create: Vec<_> = leases.iter().map(|name| Step::PutLease { name: name.clone() }).collect();
    writer.commit(&create).unwrap();
    for round in 0..100 {
        let name = leases[round % leases.len()].clone();
        writer.commit(&[Step::Renew { name }]).unwrap();
    }
    writer.ledger.check().unwrap();
    let packs = etcd.keys().into_iter().filter(|key| key.contains("/r/")).count();
    assert_eq!(packs, leases.len());
    let kept = (writer.memory.read().unwrap().fingerprint(), writer.head());
    assert_eq!(loaded(&etcd), kept);
}

#[test]
fn a_value_that_was_changed_or_is_missing_is_found_and_named() {
    let (etcd, mut writer) = writer();
    writer.commit(&[write("b", 1)]).unwrap();
    drop(writer);
    let load = || TestWriter::try_keeping(open(&etcd), 10).map(drop).unwrap_err().to_string();
    let third = keys().numbered(Section::Changes, 3);
    etcd.put(third.clone(), "nonsense");
    assert!(load().contains("/muster/c/0000000000000003"), "{}", load());
    etcd.delete(third);
    assert!(load().contains("1 of 2 records of kind Node"), "{}", load());
}

/// The first of two free ports, outside of the kernel's range for outgoing connections.
fn free_ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 12_000 + (std::process::id() % 3000) as u16 * 2;
    loop {
        let port = start + 2 * NEXT.fetch_add(1, Ordering::Relaxed);
        if [port, port + 1].into_iter().all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return port;
        }
    }
}

/// A real etcd of one member, which is killed when it is dropped.
struct RealEtcd {
    child: Child,
    kv: Arc<dyn Kv>,
    _runtime: Runtime,
    _files: tempfile::TempDir,
}

impl RealEtcd {
    /// Debian's.
    fn start() -> RealEtcd {
        RealEtcd::start_program("etcd".as_ref())
    }

    fn start_program(program: &Path) -> RealEtcd {
        let files = tempfile::tempdir().unwrap();
        let port = free_ports();
        let (clients, peers) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", port + 1));
        let child = Command::new(program)
            .args(["--name", "test", "--data-dir"])
            .arg(files.path().join("data"))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("test={peers}"), "--unsafe-no-fsync"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd is installed: .ci/tools etcd etcd36");
        let runtime = Runtime::new().unwrap();
        let client = {
            let _entered = runtime.enter();
            Arc::new(Client::new(&[clients], &TlsFiles::default()).unwrap())
        };
        let kv: Arc<dyn Kv> = {
            let _entered = runtime.enter();
            Arc::new(BlockingClient::new(client))
        };
        let etcd = RealEtcd { child, kv, _runtime: runtime, _files: files };
        for _ in 0..600 {
            if etcd.kv.range(get("ready"), DEADLINE).is_ok() {
                return etcd;
            }
            etcd.kv.pause(Duration::from_millis(50));
        }
        panic!("etcd does not answer");
    }

    fn write(&self, operation: pb::RequestOp) -> i64 {
        let request = pb::TxnRequest { success: vec![operation], ..Default::default() };
        self.kv.txn(request, DEADLINE).unwrap().revision()
    }

    /// The ledger of a new leader below this prefix.
    fn open(&self, prefix: &str) -> EtcdLedger {
        let keys = Keys::below(prefix).unwrap();
        let identity = prepare(&*self.kv, &keys).unwrap();
        self.write(delete(keys.leader()));
        let leader_revision = self.write(put(keys.leader(), "a store"));
        EtcdLedger::open(self.kv.clone(), keys, identity, &Term { leader_revision }).unwrap()
    }
}

impl Drop for RealEtcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn check_conformance(etcd: &RealEtcd) {
    let count = std::cell::Cell::new(0);
    let prefix = || format!("/suite-{}", count.get());
    let fresh = || {
        count.set(count.get() + 1);
        etcd.open(&prefix())
    };
    conformance::check(&fresh, &|ledger| {
        drop(ledger);
        etcd.open(&prefix())
    });
}

#[test]
fn the_conformance_suite_passes_on_a_real_etcd_3_4() {
    check_conformance(&RealEtcd::start());
}

#[test]
fn the_conformance_suite_passes_on_a_real_etcd_3_6() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin/etcd-3.6");
    check_conformance(&RealEtcd::start_program(&program));
}

#[test]
fn a_real_etcd_takes_the_largest_commits_and_fences_a_deposed_leader() {
    let etcd = RealEtcd::start();
    let (ledger, largest) = (etcd.open("/largest"), large_commit());
    ledger.load(&mut |_| ()).unwrap();
    ledger.commit(&largest).unwrap();
    assert_eq!(etcd.open("/largest").load(&mut |_| ()).unwrap().fingerprint(), largest.fingerprint);

    let mut writer = TestWriter::keeping(etcd.open("/muster"), 10);
    let many: Vec<_> = (0..1500).map(|i| write(&format!("n{i}"), 10)).collect();
    writer.commit(&many).unwrap();
    let large: Vec<_> = (0..3).map(|i| write(&format!("n{i}"), 250_000)).collect();
    writer.commit(&large).unwrap();
    for round in 0..200 {
        writer.commit(&[write("n7", round)]).unwrap();
    }
    writer.ledger.check().unwrap();
    let kept = (writer.memory.read().unwrap().fingerprint(), writer.head());

    // Another store takes over.
    let revision = writer.ledger.etcd_revision();
    let mut successor = TestWriter::keeping(etcd.open("/muster"), 10);
    assert_eq!((successor.memory.read().unwrap().fingerprint(), successor.head()), kept);
    let refused = writer.commit(&[write("late", 1)]).unwrap_err();
    assert!(matches!(refused, LedgerError::Deposed(_)), "{refused:?}");
    successor.commit(&[write("n8", 1)]).unwrap();
    assert!(successor.ledger.etcd_revision() > revision);
    assert!(successor.nodes_at(successor.head()).iter().all(|(name, _)| name != "late"));
}
