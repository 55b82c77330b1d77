//! One caller that has far more writes in flight than any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use muster_proto::pb;
use tokio::task::JoinSet;
use tonic::Code;

use super::raw_client::{NUMBER, NumberedMessage, RawClient, connect};
use crate::fixtures::{NodeBuilder, event, node};

/// The size of a status close to the limit of a record.
const LARGE_STATUS: usize = 1_400_000;

/// What a caller floods the store with.
#[derive(Clone, Debug)]
pub struct FloodMessage {
    pub(super) method: &'static str,
    pub(super) message: NumberedMessage,
}

impl FloodMessage {
    /// Statuses of 1.4 MB of one node, which must exist.
    pub fn large_statuses(node_name: &str) -> FloodMessage {
        // Few long names: the load shall be that of the bytes, not of checking many images.
        let image = || pb::ContainerImage { names: vec!["x".repeat(LARGE_STATUS / 100)], size_bytes: 1 };
        let flooded = node(node_name).ready("True").status(|status| {
            status.images = (0..100).map(|_| image()).collect();
            NUMBER.clone_into(&mut status.conditions[0].message);
        });
        let request = pb::UpdateNodeStatusRequest { node: Some(flooded) };
        let method = "/muster.v1.NodeService/UpdateNodeStatus";
        FloodMessage { method, message: NumberedMessage::of(&request) }
    }

    /// Events of 1.4 MB about one node, which the store does not accept.
    pub fn large_events(node_name: &str) -> FloodMessage {
        let message = format!("{NUMBER}{}", "x".repeat(LARGE_STATUS));
        FloodMessage::recording(event(node_name, "Flood", &message))
    }

    /// Events about one node, all different.
    pub fn events(node_name: &str) -> FloodMessage {
        FloodMessage::recording(event(node_name, "Flood", NUMBER))
    }

    fn recording(event: pb::Event) -> FloodMessage {
        let request = pb::RecordEventRequest { event: Some(event) };
        FloodMessage { method: "/muster.v1.EventService/RecordEvent", message: NumberedMessage::of(&request) }
    }
}

/// Writes of one caller over one connection, on a thread of their own, so that they delay no other task of the process.
#[derive(Debug)]
pub struct Flood {
    progress: Arc<Progress>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Progress {
    answered: AtomicUsize,
    refused: AtomicUsize,
    stopped: AtomicBool,
}

impl Flood {
    /// Sends `total` writes, `in_flight` at a time.
    pub fn start(url: String, message: FloodMessage, in_flight: usize, total: usize) -> Flood {
        let progress = Arc::<Progress>::default();
        let thread = std::thread::spawn({
            let progress = Arc::clone(&progress);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.expect("a runtime for the flood");
                runtime.block_on(send(&url, &message, in_flight, total, &progress));
            }
        });
        Flood { progress, thread }
    }

    /// How many writes were answered.
    pub fn answered(&self) -> usize {
        self.progress.answered.load(Ordering::Relaxed)
    }

    /// How many of them the store refused because it had too many.
    pub fn refused(&self) -> usize {
        self.progress.refused.load(Ordering::Relaxed)
    }

    /// Whether all writes were answered.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Sends no more, and waits for the answers to those in flight; returns how many were answered in all.
    pub async fn stop(self) -> usize {
        self.progress.stopped.store(true, Ordering::Relaxed);
        // Elsewhere: other connections of this runtime must still answer the store's keepalive probes.
        let ended = tokio::task::spawn_blocking(|| self.thread.join()).await;
        ended.expect("the thread is joined").expect("the flood does not panic");
        self.progress.answered.load(Ordering::Relaxed)
    }
}

async fn send(url: &str, flood: &FloodMessage, in_flight: usize, total: usize, progress: &Arc<Progress>) {
    let channel = connect(url, 1).await.remove(0);
    let mut tasks = JoinSet::new();
    for index in 0..in_flight {
        let mut client = RawClient::new(channel.clone(), flood.method);
        let (message, progress) = (flood.message.clone(), Arc::clone(progress));
        tasks.spawn(async move {
            for _ in (index..total).step_by(in_flight) {
                if progress.stopped.load(Ordering::Relaxed) {
                    break;
                }
                match client.call(message.next()).await {
                    Ok(_) => {}
                    // A store may protect other callers in this way.
                    Err(status) if status.code() == Code::ResourceExhausted => {
                        progress.refused.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(status) => return Err(status),
                }
                progress.answered.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task panics").expect("every write of the flood is answered");
    }
}
