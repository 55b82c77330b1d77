use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use jiff::Timestamp;
use muster_proto::identity::Caller;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::time::Mono;
use muster_rpc::clock::{Clock, SystemClock};
use prometheus_client::registry::Registry;

use muster_store_core::fair_queue::QueueFull;
use muster_store_core::lanes::Lane;
use muster_store_core::limits::EVENTS;
use muster_store_core::memory::Retention;
use muster_store_core::rules::Defaults;

use super::*;
use crate::ledger::embedded::EmbeddedLedger;
use crate::queue::BATCH;

const MIB: usize = 1 << 20;

fn open(directory: &std::path::Path) -> (Arc<Store>, std::thread::JoinHandle<()>) {
    open_with(directory, SystemClock::shared())
}

fn open_with(directory: &std::path::Path, clock: SharedClock) -> (Arc<Store>, std::thread::JoinHandle<()>) {
    let policy = Policy {
        defaults: Defaults::default(),
        retention: Retention { min_age_millis: 0, min_changes: 0, max_bytes: u64::MAX },
        event_ttl_millis: 0,
        event_limit: EVENTS,
    };
    let ledger = EmbeddedLedger::open(directory, 1 << 20).unwrap();
    let metrics = Metrics::register(&mut Registry::default());
    Store::open(Arc::new(ledger), policy, clock, metrics).unwrap()
}

/// A write in the lane of all that are not the parts'.
fn class(caller: &str, bytes: usize) -> WriteClass {
    WriteClass::new(Lane::Others, &Caller::Node(caller.to_owned()), bytes)
}

/// Queues a request that holds the writer until the sender is dropped, and waits until the writer evaluates it. It fills
/// its commit, so what is queued meanwhile is for the next batch.
async fn hold(store: &Arc<Store>) -> (tokio::task::JoinHandle<Result<u64, StoreError>>, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel::<()>();
    let (begin, begun) = oneshot::channel::<()>();
    let store = Arc::clone(store);
    let held = tokio::spawn(async move {
        let request = move |draft: &mut Draft<'_>| {
            drop(begin);
            released.recv().ok();
            Ok(draft.put(node("held", 1_100_000))?.version)
        };
        store.write(String::new(), class("holder", 0), request).await
    });
    begun.await.unwrap_err();
    (held, release)
}

fn node(name: &str, bytes: usize) -> Node {
    let metadata = pb::Metadata { name: name.to_owned(), ..Default::default() };
    let mut node = Node::try_from(pb::Node { metadata: Some(metadata), ..Default::default() }).unwrap();
    node.meta.annotations.insert("a".to_owned(), "x".repeat(bytes));
    node
}

async fn put(store: &Store, class: WriteClass, node: Node) -> Result<u64, StoreError> {
    store.write(String::new(), class, move |draft| Ok(draft.put(node)?.version)).await
}

/// Creates a lease, and returns the claim of its holder.
async fn claim(store: &Store) -> Claim {
    let metadata =
        pb::Metadata { name: "l".to_owned(), namespace: "kube-system".to_owned(), ..Default::default() };
    let lease = Lease::try_from(pb::Lease { metadata: Some(metadata), spec: None }).unwrap();
    store.write(String::new(), class("holder", 0), move |draft| Ok(draft.put(lease)?)).await.unwrap();
    let memory = store.read();
    let lease = memory.get(Kind::Lease, &NamespacedName::new("kube-system", "l")).unwrap();
    memory.leases.claim(lease.lease_id).unwrap()
}

async fn renew(store: &Store, claim: Claim) -> Result<Renewal, StoreError> {
    let slot = Arc::new(AckSlot::default());
    store.renew(claim, None, Arc::clone(&slot))?;
    poll_fn(|cx| slot.poll(cx)).await
}

/// A clock that panics on request.
struct BrokenClock {
    clock: SharedClock,
    is_broken: AtomicBool,
}

impl BrokenClock {
    fn check(&self) -> &SharedClock {
        assert!(!self.is_broken.load(Ordering::Relaxed), "as the test wants");
        &self.clock
    }
}

impl Clock for BrokenClock {
    fn wall(&self) -> Timestamp {
        self.check().wall()
    }

    fn mono(&self) -> Mono {
        self.check().mono()
    }
}

#[tokio::test]
async fn requests_waiting_for_a_writer_that_panicked_fail() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(BrokenClock { clock: SystemClock::shared(), is_broken: AtomicBool::new(false) });
    let (store, writer) = open_with(directory.path(), Arc::clone(&clock) as SharedClock);
    let (release, released) = mpsc::channel::<()>();
    let first = store.write(String::new(), class("a", 0), move |_| {
        released.recv().ok();
        clock.is_broken.store(true, Ordering::Relaxed);
        Ok(())
    });
    // More than one batch is queued behind it.
    let waiting = (0..2 * BATCH + 1).map(|_| store.write(String::new(), class("a", 0), |_| Ok(())));
    let mut results = pin!(join(first, join_all(waiting)));
    // The first poll queues all requests.
    assert!(results.as_mut().now_or_never().is_none());
    drop(release);
    let (first, results) =
        timeout(Duration::from_secs(30), results).await.expect("a request is still waiting");
    assert_eq!(first, Err(StoreError::Stopping));
    assert!(results.into_iter().all(|result| result == Err(StoreError::Stopping)));
    assert!(writer.join().is_err());
}

#[tokio::test]
async fn a_request_that_panics_fails_alone_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (store, writer) = open(directory.path());
    let claim = claim(&store).await;
    let head = store.read().head();
    let (held, release) = hold(&store).await;
    let before = put(&store, class("a", 0), node("before", 0));
    let fatal = store.write(String::new(), class("a", 0), |draft| -> Result<(), _> {
        draft.put(node("half", 0))?;
        panic!("as the test wants")
    });
    let mut all = pin!(join(join(before, fatal), renew(&store, claim)));
    assert!(all.as_mut().now_or_never().is_none());
    drop(release);
    let ((before, fatal), renewal) = all.await;
    assert_eq!(fatal, Err(StoreError::Panicked));
    assert_eq!(held.await.unwrap(), Ok(head + 1), "the batch before");
    assert_eq!(before, Err(StoreError::Discarded), "it was evaluated in the same batch");
    assert_eq!(renewal.unwrap().revision, head + 2, "a renewal is evaluated again");
    let is_stored = |name| store.get(Kind::Node, &NamespacedName::new("", name)).is_some();
    assert!(!is_stored("half") && !is_stored("before"));
    assert_eq!(put(&store, class("a", 0), node("after", 0)).await, Ok(head + 3));
    assert_eq!(store.metrics().panics.get(), 1);
    store.stop();
    writer.join().unwrap();
}

#[tokio::test]
async fn large_writes_that_come_at_once_are_committed_a_few_at_a_time() {
    const WRITES: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let (store, writer) = open(directory.path());
    let (held, release) = hold(&store).await;
    let writes = (0..WRITES).map(|i| put(&store, class("a", 1_000_000), node(&format!("n{i}"), 1_000_000)));
    let mut all = pin!(join_all(writes));
    assert!(all.as_mut().now_or_never().is_none());
    drop(release);
    held.await.unwrap().unwrap();
    let versions: Vec<u64> = all.await.into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(versions, (2..WRITES as u64 + 2).collect::<Vec<_>>(), "in the order they were queued");
    let commits = store.metrics().commits.get();
    assert!(commits >= 20, "{commits} commits of 40 MB, no more than two writes each");
    store.stop();
    writer.join().unwrap();
}

#[tokio::test]
async fn a_renewal_waits_for_the_commit_under_way_only_and_a_part_is_next() {
    const WRITES: usize = 30;
    let directory = tempfile::tempdir().unwrap();
    let (store, writer) = open(directory.path());
    let claim = claim(&store).await;
    let (held, release) = hold(&store).await;
    let flood =
        (0..WRITES).map(|i| put(&store, class("flood", 1_000_000), node(&format!("n{i}"), 1_000_000)));
    let part = put(&store, WriteClass::new(Lane::Parts, &Caller::Controller, 10), node("part", 0));
    let mut all = pin!(join(join_all(flood), join(part, renew(&store, claim))));
    assert!(all.as_mut().now_or_never().is_none());
    drop(release);
    held.await.unwrap().unwrap();
    let (flood, (part, renewal)) = all.await;
    let flood: Vec<u64> = flood.into_iter().collect::<Result<_, _>>().unwrap();
    let (part, renewal) = (part.unwrap(), renewal.unwrap().revision);
    assert!(renewal < part, "the renewal {renewal} is before the part {part}");
    assert!(flood.iter().all(|version| *version > part), "the part {part} is before {flood:?}");
    store.stop();
    writer.join().unwrap();
}

#[tokio::test]
async fn a_write_whose_caller_is_gone_is_not_evaluated() {
    let directory = tempfile::tempdir().unwrap();
    let (store, writer) = open(directory.path());
    let (held, release) = hold(&store).await;
    let payload = Arc::new(());
    let copy = Arc::clone(&payload);
    {
        let mut gone = pin!(store.write(String::new(), class("a", MIB), move |draft| {
            let _in_request = &copy;
            Ok(draft.put(node("gone", 0))?)
        }));
        assert!(gone.as_mut().now_or_never().is_none());
        assert_eq!(store.metrics().queued_bytes.get(), MIB as i64);
    }
    drop(release);
    held.await.unwrap().unwrap();
    put(&store, class("a", 0), node("after", 0)).await.unwrap();
    assert!(store.get(Kind::Node, &NamespacedName::new("", "gone")).is_none());
    assert_eq!(Arc::strong_count(&payload), 1, "the memory of the request is free");
    let metrics = store.metrics();
    assert_eq!((metrics.abandoned.get(), metrics.queued_bytes.get(), metrics.queued.get()), (1, 0, 0));
    store.stop();
    writer.join().unwrap();
}

#[tokio::test]
async fn a_caller_that_floods_the_queue_does_not_keep_others_out() {
    let directory = tempfile::tempdir().unwrap();
    let (store, writer) = open(directory.path());
    let (held, release) = hold(&store).await;
    let small =
        |caller: &'static str, i: usize| put(&store, class(caller, MIB), node(&format!("{caller}{i}"), 0));
    let mut flood = pin!(join_all((0..65).map(|i| small("flood", i))));
    assert!(flood.as_mut().now_or_never().is_none());
    assert_eq!(store.metrics().queued_bytes.get(), 64 * MIB as i64);
    let mut other = pin!(small("other", 0));
    assert!(other.as_mut().now_or_never().is_none(), "it is queued");
    assert_eq!(store.metrics().queued_bytes.get(), 64 * MIB as i64, "in place of one of the flood");
    drop(release);
    held.await.unwrap().unwrap();
    other.await.unwrap();
    let flood = flood.await;
    let refused: Vec<_> = flood.iter().filter_map(|result| result.as_ref().err()).collect();
    let share = StoreError::Overloaded { limit: QueueFull::Share(16 * MIB) };
    let all = StoreError::Overloaded { limit: QueueFull::Bytes(64 * MIB) };
    assert_eq!(
        refused,
        [&share, &all],
        "the newest that was queued, and one that came when the queue was full"
    );
    store.stop();
    writer.join().unwrap();
}
