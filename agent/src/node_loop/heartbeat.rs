//! The loop of a registered node: renews its lease and posts its status until the agent stops.
//!
//! One turn makes at most one call for the lease (`lease`) and one for the status (`status_post`), so that neither waits
//! long for the other while the store does not answer.

use std::time::Duration;

use futures_util::StreamExt;
use muster_agent_core::renewal_schedule::{ConnectionHealth, RenewalSchedule};
use muster_agent_core::status::{Computed, EmittedEvents};
use muster_agent_core::status_report::{StatusReporter, digest};
use muster_proto::node::Node;
use muster_proto::time::Mono;
use muster_proto::watch_event::WatchEvent;
use muster_store_client::{ClientError, Watch, WatchOptions};
use tokio::time::sleep;

use super::NodeLoop;
use crate::heartbeat_stream::HeartbeatStream;
use crate::readiness::Acknowledged;

/// A status that another writer replaced is posted again at most this often.
const REPOST_INTERVAL: Duration = Duration::from_secs(1);
/// A node that is not ready when its agent starts computes its status this often, for this long: what it lacks comes
/// soon, and pods wait for it.
pub(super) const STARTUP_INTERVAL: Duration = Duration::from_millis(100);
const STARTUP_PERIOD: Duration = Duration::from_secs(120);

/// The last status that was computed.
pub(super) struct LatestStatus {
    pub(super) computed: Computed,
    pub(super) digest: u64,
    pub(super) at: Mono,
    pub(super) is_ready: bool,
    /// Whether it says that the node is shutting down.
    pub(super) says_shutdown: bool,
}

/// The state that one turn leaves to the next.
pub(super) struct HeartbeatLoop<'a> {
    pub(super) node_loop: &'a mut NodeLoop,
    /// The node's record, as new as it is known; `None` while there is none.
    pub(super) node: Option<Node>,
    /// Whether the record is read again before the next post.
    pub(super) is_stale: bool,
    pub(super) schedule: RenewalSchedule,
    pub(super) reporter: StatusReporter,
    connection: ConnectionHealth,
    pub(super) emitted: EmittedEvents,
    pub(super) stream: Option<HeartbeatStream>,
    pub(super) latest: Option<LatestStatus>,
    /// When the status is computed next.
    pub(super) compute_at: Mono,
    /// Until when a node that is not ready yet computes its status at the startup interval.
    pub(super) startup_until: Mono,
    /// How long the store may take to answer.
    pub(super) answer_deadline: Duration,
}

impl<'a> HeartbeatLoop<'a> {
    pub(super) fn new(node_loop: &'a mut NodeLoop, node: Option<Node>) -> HeartbeatLoop<'a> {
        let (now, config) = (node_loop.clock.mono(), &node_loop.config);
        HeartbeatLoop {
            node,
            is_stale: false,
            schedule: RenewalSchedule::new(config.lease_duration, now),
            reporter: StatusReporter::new(config.status.report_frequency),
            connection: ConnectionHealth::default(),
            emitted: EmittedEvents::default(),
            stream: None,
            latest: None,
            compute_at: now,
            startup_until: now + STARTUP_PERIOD,
            answer_deadline: node_loop.answer_deadline(),
            node_loop,
        }
    }

    pub(super) async fn run(mut self) {
        let selector = format!("metadata.name={}", self.node_loop.settings.name);
        let options = WatchOptions { field_selector: selector, ..Default::default() };
        let mut watch: Watch<Node> = self.node_loop.client.watch(options);
        let mut shutdown = self.node_loop.machine_shutdown.state();
        self.publish_node();
        loop {
            // The lease first: only an agent that the store accepted posts a status.
            let was_accepted = self.node_loop.is_accepted();
            let lease_at = self.keep_lease().await;
            if self.may_post() && self.now() >= self.compute_at {
                self.compute_and_post().await;
            }
            if self.node_loop.is_accepted() != was_accepted {
                self.publish_node();
            }
            let wake_at = if self.may_post() { lease_at.min(self.compute_at) } else { lease_at };
            tokio::select! {
                _ = shutdown.changed() => {
                    let says_shutdown = self.latest.as_ref().is_some_and(|latest| latest.says_shutdown);
                    if shutdown.borrow_and_update().since.is_some() != says_shutdown {
                        self.compute_at = self.now();
                    }
                }
                event = watch.next() => match event {
                    Some(WatchEvent::Applied { record }) => self.observe_record(record),
                    Some(WatchEvent::Gone { .. }) => self.observe_deleted(),
                    Some(WatchEvent::Lost(failure)) => tracing::debug!(?failure, "the store is out of reach"),
                    Some(WatchEvent::Synced { .. }) | None => {}
                },
                () = sleep(wake_at - self.now()) => {}
            }
        }
    }

    pub(super) fn now(&self) -> Mono {
        self.node_loop.clock.mono()
    }

    /// Whether there is a record to post a status to, and the store accepted this agent for it.
    fn may_post(&self) -> bool {
        self.node.is_some() && self.node_loop.is_accepted()
    }

    /// Shows the other loops the node, as long as the store accepts this agent for it.
    fn publish_node(&self) {
        self.node_loop.shared.set_node(self.node.clone().filter(|_| self.node_loop.is_accepted()));
    }

    fn observe_record(&mut self, record: Node) {
        // A record that was read may be newer than what the watch has delivered.
        let is_newer = |known: &Node| {
            known.meta.uid == record.meta.uid && known.meta.resource_version > record.meta.resource_version
        };
        if self.node.as_ref().is_some_and(is_newer) {
            return;
        }
        // Another writer replaced our status: it is posted again at once, not at the next interval.
        let differs = self.latest.as_ref().is_some_and(|latest| digest(&record.status) != latest.digest);
        let assigned = self.node.as_ref().is_some_and(|node| node.spec.pod_cidrs != record.spec.pod_cidrs);
        if self.node.is_none() || differs || assigned {
            // Not right after our last post: two writers must not overwrite each other in a tight loop.
            let last = self.latest.as_ref().map_or(Mono::ZERO, |latest| latest.at);
            self.compute_at = self.compute_at.min(self.now().max(last + REPOST_INTERVAL));
        }
        self.set_record(record);
    }

    pub(super) fn set_record(&mut self, record: Node) {
        self.node_loop.adopt(&record);
        self.node = Some(record);
        self.publish_node();
    }

    fn observe_deleted(&mut self) {
        let node = &self.node_loop.settings.name;
        tracing::warn!(%node, "the node was deleted; a running agent does not create it again");
        self.node_loop.shared.status().node_uid = None;
        self.node_loop.shared.set_acknowledged(Acknowledged::Never);
        (self.node, self.stream) = (None, None);
        self.publish_node();
    }

    /// Drops the connection when calls in a row were not answered.
    pub(super) fn observe_answer<T>(&mut self, answer: &Result<T, ClientError>) {
        let Err(error) = answer else { return self.connection.observe_answer() };
        self.node_loop.shared.status().store = error.to_string();
        match error {
            ClientError::Unavailable(_) | ClientError::DeadlineExceeded
                if self.connection.observe_timeout() =>
            {
                self.node_loop.client.redial();
                self.stream = None;
            }
            ClientError::Unavailable(_) | ClientError::DeadlineExceeded => {}
            _ => self.connection.observe_answer(),
        }
    }
}
