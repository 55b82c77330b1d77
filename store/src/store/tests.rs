use std::sync::mpsc;

use futures_util::FutureExt;
use muster_rpc::clock::SystemClock;
use prometheus_client::registry::Registry;

use super::*;
use crate::engine::sled::SledEngine;
use crate::memory::Retention;
use crate::queue::BATCH;
use crate::rules::Defaults;

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
async fn whoever_waits_for_a_writer_that_has_failed_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (store, writer) = open(directory.path());
    let (go, gone) = mpsc::channel::<()>();
    let fatal = store.write(String::new(), move |_| -> Result<(), _> {
        gone.recv().ok();
        panic!("told to")
    });
    // More than one batch waits behind it.
    let waiting = (0..2 * BATCH + 1).map(|_| store.write(String::new(), |_| Ok(())));
    let waiting = futures_util::future::join_all(waiting);
    let told = futures_util::future::join(fatal, waiting);
    tokio::pin!(told);
    // Everything is queued once it was asked for.
    assert!(told.as_mut().now_or_never().is_none());
    drop(go);
    let (fatal, told) = timeout(Duration::from_secs(30), told).await.expect("somebody is still waiting");
    assert_eq!(fatal, Err(StoreError::Stopping));
    assert!(told.into_iter().all(|told| told == Err(StoreError::Stopping)));
    assert!(writer.join().is_err());
}
