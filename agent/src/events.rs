//! Records events about the node and its pods in the store.
//!
//! Events explain what the agent did; nothing depends on them. So they are recorded beside everything else, by one task
//! with a bounded queue: a store that cannot be reached costs events, and never delays a pod or a heartbeat.

use std::time::Duration;

use muster_agent_core::EVENT_SOURCE;
use muster_agent_core::status::NodeEvent;
use muster_proto::event::{Event, ObjectReference};
use muster_proto::name::{Name, Uid};
use muster_proto::record::Kind;
use muster_rpc::shutdown::Shutdown;
use muster_store_client::StoreClient;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Events that wait to be recorded. A full queue drops the newest.
const QUEUE: usize = 256;
/// How long the store may take for one event.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stopping agent takes for the events that are still queued.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Where the agent's loops leave their events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    queue: mpsc::Sender<Event>,
}

/// The task that sends the queued events to the store.
pub struct EventWriter {
    client: StoreClient,
    queue: mpsc::Receiver<Event>,
}

/// A recorder, and the task that must run for it.
pub fn recorder(client: &StoreClient) -> (EventRecorder, EventWriter) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let client = client.with_deadline(RECORD_TIMEOUT);
    (EventRecorder { queue: sender }, EventWriter { client, queue: receiver })
}

impl EventRecorder {
    /// Queues an event. Returns at once; a full queue drops the event.
    pub fn record(&self, event: Event) {
        if let Err(error) = self.queue.try_send(event) {
            tracing::debug!(%error, "an event was dropped");
        }
    }

    /// Queues what happened to the node of that name and uid.
    pub fn record_node(&self, name: &Name, uid: Option<Uid>, event: NodeEvent) {
        let NodeEvent { kind, reason, message } = event;
        self.record(Event::about(node_reference(name, uid), kind, reason, message, EVENT_SOURCE));
    }
}

impl EventWriter {
    /// Runs until every recorder is gone, or until a short time after the agent was told to stop.
    pub async fn run(mut self, stop: Shutdown) {
        let too_late = async {
            stop.requested().await;
            sleep(DRAIN_TIMEOUT).await;
        };
        tokio::select! {
            () = self.write_all() => {}
            () = too_late => tracing::debug!("the agent stops; events that are still queued are dropped"),
        }
    }

    async fn write_all(&mut self) {
        while let Some(event) = self.queue.recv().await {
            if let Err(error) = self.client.record_event(event).await {
                tracing::debug!(%error, "an event was not recorded");
            }
        }
    }
}

fn node_reference(name: &Name, uid: Option<Uid>) -> ObjectReference {
    ObjectReference { kind: Kind::Node, namespace: None, name: name.clone(), uid }
}

#[cfg(test)]
mod tests {
    use muster_agent_core::testing::pod;
    use muster_proto::event::EventType;
    use muster_rpc::clock::SystemClock;
    use muster_store_client::StoreEndpoints;

    use super::*;

    #[tokio::test]
    async fn a_store_that_cannot_be_reached_delays_neither_the_caller_nor_the_end_of_the_agent() {
        // Nothing listens on the discard port of this machine.
        let client = StoreClient::connect(StoreEndpoints::new(["http://127.0.0.1:9".to_owned()])).unwrap();
        let (recorder, writer) = recorder(&client);
        let stop = Shutdown::new();
        let writing = tokio::spawn(writer.run(stop.clone()));
        let clock = SystemClock::shared();
        let began = clock.mono();
        let about = ObjectReference::to(&pod("a").build());
        for number in 0..2 * QUEUE {
            let message = format!("event {number}");
            recorder.record(Event::about(about.clone(), EventType::Normal, "Test", message, EVENT_SOURCE));
        }
        assert!(clock.mono() - began < RECORD_TIMEOUT, "a full queue drops events");
        stop.trigger();
        let stopped = tokio::time::timeout(Duration::from_secs(60), writing).await;
        stopped.expect("the queue is not waited for").unwrap();
    }
}
