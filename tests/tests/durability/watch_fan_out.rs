//! Many watchers, and watchers that do not read.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::pb;
use muster_proto::watch::WatchFrame;
use muster_tests::store_process::write_log::node;
use muster_tests::store_process::{StoreLaunch, StoreProcess, TIMEOUT, channel, until};
use muster_tests::within;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::{Code, Status, Streaming};

const WATCHERS: usize = 100;
const WRITERS: usize = 20;
const MAX_MESSAGE: usize = 64 << 20;

type Frames = Streaming<WatchFrame<pb::NodeWatchEvent>>;
/// Version and node name of an event.
type Step = (u64, String);

/// A watch of all nodes after a version, on a new connection.
async fn watch(store: &StoreProcess, after: u64) -> Frames {
    let mut nodes = NodeServiceClient::new(channel(&store.url())).max_decoding_message_size(MAX_MESSAGE);
    let request = pb::WatchNodesRequest { resource_version: after, ..Default::default() };
    nodes.watch_nodes(request).await.unwrap().into_inner()
}

async fn next(frames: &mut Frames) -> Result<Vec<Step>, Status> {
    let frame = timeout(TIMEOUT, frames.message()).await.expect("a watcher that is behind receives events");
    let frame = frame?.ok_or_else(|| Status::unavailable("the stream ended"))?;
    let step = |event: pb::NodeWatchEvent| {
        let metadata = event.node.unwrap_or_default().metadata.unwrap_or_default();
        (metadata.resource_version, metadata.name)
    };
    Ok(frame.events.into_iter().map(step).collect())
}

/// Creates the nodes that the writers change; returns the version of the last one.
async fn create_records(store: &StoreProcess) -> u64 {
    let mut nodes = NodeServiceClient::new(store.channel());
    let mut version = 0;
    for writer in 0..WRITERS {
        let request = pb::CreateNodeRequest { node: Some(node(&format!("node-{writer}"), "0")) };
        let created = nodes.create_node(request).await.unwrap().into_inner().node;
        version = created.unwrap().metadata.unwrap().resource_version;
    }
    version
}

/// Each writer changes its node `times` times, all writers at once; `pace` is the time between two changes of a writer.
/// Returns the acknowledged changes in order.
async fn change(store: &StoreProcess, times: usize, bytes: usize, pace: Option<Duration>) -> Vec<Step> {
    // Every value is new: an update without a change would get no version.
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let all = Arc::new(Mutex::new(Vec::new()));
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (mut nodes, all) = (NodeServiceClient::new(store.channel()), Arc::clone(&all));
        writers.spawn(async move {
            let mut ticks = pace.map(interval);
            if let Some(ticks) = &mut ticks {
                ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            }
            let name = format!("node-{writer}");
            for time in 0..times {
                if let Some(ticks) = &mut ticks {
                    ticks.tick().await;
                }
                let value = format!("{call}-{time:0bytes$}");
                let request = pb::UpdateNodeRequest { node: Some(node(&name, &value)) };
                let stored = nodes.update_node(request).await.unwrap().into_inner().node;
                let version = stored.unwrap().metadata.unwrap().resource_version;
                all.lock().unwrap().push((version, name.clone()));
            }
        });
    }
    writers.join_all().await;
    let mut all = std::mem::take(&mut *all.lock().unwrap());
    all.sort();
    all.dedup();
    assert_eq!(all.len(), WRITERS * times, "every change has a unique version");
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_watchers_receive_all_of_a_thousand_changes_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let store = block_in_place(|| StoreLaunch::on(directory.path()).start());
    let after = create_records(&store).await;
    let expected_count = WRITERS * 250;
    let done = Arc::new(AtomicU64::new(0));
    let mut watchers = JoinSet::new();
    for _ in 0..WATCHERS {
        let (mut frames, done) = (watch(&store, after).await, Arc::clone(&done));
        watchers.spawn(async move {
            let mut received: Vec<Step> = Vec::new();
            while received.len() < expected_count {
                received.extend(next(&mut frames).await.unwrap());
            }
            done.fetch_add(1, Ordering::Relaxed);
            (received, frames)
        });
    }
    let began = Instant::now();
    // 20 writers with 50 changes a second each. On few cores the rate is lower; the checks are the same.
    let happened = change(&store, 250, 1, Some(Duration::from_millis(20))).await;
    let wrote = began.elapsed();
    until("every watcher has received everything", || done.load(Ordering::Relaxed) == WATCHERS as u64).await;
    let notified_after = began.elapsed() - wrote;
    // The next event is the next change: no event was sent twice.
    let last = change(&store, 1, 1, None).await;
    for (received, mut frames) in watchers.join_all().await {
        assert!(received == happened, "a watcher received other events than the changes");
        let mut more = Vec::new();
        while more.len() < last.len() {
            more.extend(next(&mut frames).await.unwrap());
        }
        assert_eq!(more, last);
    }
    println!(
        "{expected_count} changes in {:.2} s ({:.0} a second) to {WATCHERS} watchers; the last change reached the last watcher \
         {} ms after its acknowledgement",
        wrote.as_secs_f64(),
        expected_count as f64 / wrote.as_secs_f64(),
        notified_after.as_millis(),
    );
}

/// Changes nodes as fast as possible; also returns the rate per second.
async fn rush(store: &StoreProcess, times: usize) -> (Vec<Step>, f64) {
    let began = Instant::now();
    let happened = change(store, times, 4096, None).await;
    let rate = happened.len() as f64 / began.elapsed().as_secs_f64();
    (happened, rate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watchers_that_do_not_read_do_not_slow_writers_and_can_catch_up() {
    let directory = tempfile::tempdir().unwrap();
    let store = block_in_place(|| StoreLaunch::on(directory.path()).start());
    create_records(&store).await;
    // Fill the store's change log before its memory is measured.
    let (warm, alone) = rush(&store, 250).await;
    let (after, _) = warm.last().unwrap().clone();
    let before = store.resident();

    let mut idle = Vec::new();
    for _ in 0..10 {
        idle.push(watch(&store, after).await);
    }
    // Writers do not wait for watchers: this returns although no watcher reads.
    let (happened, watched) = within(5 * TIMEOUT, "all is written", rush(&store, 500)).await;
    let grown = store.resident().saturating_sub(before);
    println!(
        "{alone:.0} changes a second alone, {watched:.0} with {} watchers that do not read (ratio {:.2}); {} MiB \
         written, the store grew by {} MiB",
        idle.len(),
        watched / alone,
        (happened.len() * 4096) >> 20,
        grown >> 20,
    );
    assert!(grown < 150 << 20, "the store grew by {} MiB", grown >> 20);
    // Other load on the machine does not explain a factor of ten.
    assert!(watched > alone / 10.0, "writers were slowed from {alone:.0} to {watched:.0} changes a second");
    for mut frames in idle {
        let mut received = Vec::new();
        while received.len() < happened.len() {
            received.extend(next(&mut frames).await.unwrap());
        }
        assert!(received == happened, "a watcher that caught up missed an event");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_watcher_that_falls_behind_history_gets_an_error_and_skips_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let launch = StoreLaunch::on(directory.path())
        .flag("--history-min-age", "1s")
        .flag("--history-min-changes", "100");
    let store = block_in_place(|| launch.start());
    let after = create_records(&store).await;
    let mut frames = watch(&store, after).await;
    // More than the change log in memory, which does not depend on the history settings.
    let (mut happened, _) = rush(&store, 400).await;
    // History is removed with later changes, when it is old enough.
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut nodes = NodeServiceClient::new(store.channel());
    loop {
        happened.extend(change(&store, 1, 1, None).await);
        let request = pb::WatchNodesRequest { resource_version: after, ..Default::default() };
        let expired = match nodes.watch_nodes(request).await {
            Ok(answer) => next(&mut answer.into_inner()).await.err(),
            Err(status) => Some(status),
        };
        if let Some(status) = expired {
            assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
            break;
        }
        assert!(Instant::now() < deadline, "history is never removed");
    }
    let mut received = Vec::new();
    let ended = loop {
        match next(&mut frames).await {
            Ok(steps) => received.extend(steps),
            Err(status) => break status,
        }
        assert!(received.len() < happened.len(), "it received everything, but no error");
    };
    assert!(received[..] == happened[..received.len()], "the received events are not the first changes");
    assert_eq!(ended.code(), Code::OutOfRange, "{ended:?}");
    println!("received {} of {} changes in order, then: {}", received.len(), happened.len(), ended.message());
}
