use std::sync::mpsc;

use futures_util::FutureExt;
use muster_proto::lease::Lease;
use muster_proto::pb;
use muster_rpc::clock::SystemClock;
use prometheus_client::registry::Registry;

use muster_store_core::memory::Retention;
use muster_store_core::rules::Defaults;

use super::*;
use crate::engine::sled::SledEngine;
use crate::queue::BATCH;

fn open(directory: &std::path::Path) -> (Arc<Store>, std::thread::JoinHandle<()>) {
    let policy = Policy {
        defaults: Defaults::default(),
        retention: Retention { min_age_millis: 0, min_changes: 0 },
        event_ttl_millis: 0,
    };
    let engine = SledEngine::open(directory, 1 << 20).unwrap();
    let metrics = Metrics::register(&mut Registry::default());
    Store::open(Arc::new(engine), policy, SystemClock::shared(), metrics).unwrap()
}

#[tokio::test]
async fn requests_waiting_for_a_writer_that_panicked_fail() {
    let directory = tempfile::tempdir().unwrap();
    let (store, writer) = open(directory.path());
    let (release, released) = mpsc::channel::<()>();
    let fatal = store.write(String::new(), move |_| -> Result<(), _> {
        released.recv().ok();
        panic!("as the test wants")
    });
    // More than one batch is queued behind it.
    let waiting = (0..2 * BATCH + 1).map(|_| store.write(String::new(), |_| Ok(())));
    let waiting = futures_util::future::join_all(waiting);
    let results = futures_util::future::join(fatal, waiting);
    tokio::pin!(results);
    // The first poll queues all requests.
    assert!(results.as_mut().now_or_never().is_none());
    drop(release);
    let (fatal, results) =
        timeout(Duration::from_secs(30), results).await.expect("a request is still waiting");
    assert_eq!(fatal, Err(StoreError::Stopping));
    assert!(results.into_iter().all(|result| result == Err(StoreError::Stopping)));
    assert!(writer.join().is_err());
}

#[tokio::test]
async fn large_writes_that_come_at_once_are_committed_a_few_at_a_time() {
    const WRITES: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let (store, writer) = open(directory.path());
    let (release, released) = mpsc::channel::<()>();
    let first = store.write(String::new(), move |_| {
        released.recv().ok();
        Ok(())
    });
    let writes = (0..WRITES).map(|i| {
        let name = format!("l{i}");
        let metadata = pb::Metadata { name, namespace: "kube-system".to_owned(), ..Default::default() };
        let mut lease = Lease::try_from(pb::Lease { metadata: Some(metadata), spec: None }).unwrap();
        lease.meta.annotations.insert("a".to_owned(), "x".repeat(1_000_000));
        store.write(String::new(), move |draft| Ok(draft.put(lease)?.meta.resource_version))
    });
    let all = futures_util::future::join(first, futures_util::future::join_all(writes));
    tokio::pin!(all);
    assert!(all.as_mut().now_or_never().is_none());
    drop(release);
    let (_, all) = all.await;
    let versions: Vec<u64> = all.into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(versions, (1..=WRITES as u64).collect::<Vec<_>>(), "in the order they were queued");
    let commits = store.metrics().commits.get();
    assert!((20..=22).contains(&commits), "{commits} commits of 40 MB, no more than two writes each");
    store.stop();
    writer.join().unwrap();
}
