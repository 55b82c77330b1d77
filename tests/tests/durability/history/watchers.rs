//! Watchers that follow all records at any of the stores, and record what they receive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::pb;
use muster_proto::watch::WatchFrame;
use muster_tests::RpcError;
use muster_tests::history::watches::{Event, EventType, Received, position};
use muster_tests::store_process::SeededRandom;
use tokio::task::JoinHandle;
use tonic::{Status, Streaming};

use super::clients::{Shared, channel, content_of, name_of};

/// How long a store may take to open a watch.
const OPENING: Duration = Duration::from_secs(3);
/// The wait before the next store is asked.
const PAUSE: Duration = Duration::from_millis(20);

/// A watcher, which resumes at another store when its stream ends, and now and then without a reason.
pub(super) struct Watcher {
    received: Arc<Mutex<Vec<Received>>>,
    /// Why it cannot go on: what it would have to receive next is gone.
    failed: Arc<Mutex<Option<String>>>,
    task: JoinHandle<()>,
}

impl Watcher {
    /// Follows all changes after a version, which all stores have.
    pub(super) fn after(
        version: u64,
        urls: &[String],
        first: usize,
        mut random: SeededRandom,
        shared: &Arc<Shared>,
    ) -> Watcher {
        let received = Arc::new(Mutex::new(vec![Received::Bookmark(version)]));
        let failed = Arc::new(Mutex::new(None));
        let (log, failure, urls) = (Arc::clone(&received), Arc::clone(&failed), urls.to_vec());
        let shared = Arc::clone(shared);
        let task = tokio::spawn(async move {
            for url in urls.iter().cycle().skip(first) {
                let last = position(&lock(&log));
                let most = 100 + random.below(400);
                let ended = match open(url, last).await {
                    Ok(stream) => read(stream, most, &log, &shared).await,
                    Err(status) => Err(status),
                };
                if let Err(status) = ended
                    && RpcError::from(&status).reason == "EXPIRED"
                {
                    *lock(&failure) = Some(format!("{url} cannot resume after version {last}: {status:?}"));
                    return;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        Watcher { received, failed, task }
    }

    /// How far it has come.
    pub(super) fn position(&self) -> u64 {
        if let Some(failure) = &*lock(&self.failed) {
            panic!("a watch has a gap: {failure}");
        }
        assert!(!self.task.is_finished(), "a watcher has ended");
        position(&self.received())
    }

    pub(super) fn received(&self) -> MutexGuard<'_, Vec<Received>> {
        lock(&self.received)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn open(url: &str, after: u64) -> Result<Streaming<WatchFrame<pb::NodeWatchEvent>>, Status> {
    let mut nodes = NodeServiceClient::new(channel(url)).max_decoding_message_size(64 << 20);
    let request =
        pb::WatchNodesRequest { resource_version: after, allow_bookmarks: true, ..Default::default() };
    match tokio::time::timeout(OPENING, nodes.watch_nodes(request)).await {
        Ok(opened) => Ok(opened?.into_inner()),
        Err(_) => Err(Status::deadline_exceeded("no watch in time")),
    }
}

/// Records what comes, up to some events.
async fn read(
    mut stream: Streaming<WatchFrame<pb::NodeWatchEvent>>,
    most: u64,
    log: &Mutex<Vec<Received>>,
    shared: &Shared,
) -> Result<(), Status> {
    let mut count = 0;
    while count < most {
        let Some(message) = stream.message().await? else { return Ok(()) };
        let at = shared.now();
        count += message.events.len() as u64;
        lock(log).extend(message.events.into_iter().map(|event| received(event, at)));
    }
    Ok(())
}

fn received(event: pb::NodeWatchEvent, at: u64) -> Received {
    let node = event.node.unwrap_or_default();
    let (version, value) = content_of(&node);
    let event_type = match &*event.r#type {
        "ADDED" => EventType::Added,
        "MODIFIED" => EventType::Modified,
        "DELETED" => EventType::Deleted,
        _ => return Received::Bookmark(version),
    };
    // What was written before the first round is of no interest.
    if !name_of(&node).starts_with('r') {
        return Received::Bookmark(version);
    }
    Received::Event(Event { version, name: name_of(&node), event_type, value, at })
}
