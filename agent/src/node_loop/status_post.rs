//! The node's status: computed at an interval, and posted when the reporter says so.

use muster_agent_core::registration;
use muster_agent_core::renewal_schedule::jittered;
use muster_agent_core::status::ready;
use muster_agent_core::status_report::{Decision, PostReason, StatusComparison, digest};
use muster_proto::label::Labels;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_proto::time::Mono;
use muster_store_client::ClientError;

use super::draw;
use super::heartbeat::{HeartbeatLoop, LatestStatus, STARTUP_INTERVAL};

impl HeartbeatLoop<'_> {
    /// Computes the status, and posts it if it has to be.
    pub(super) async fn compute_and_post(&mut self) {
        let frequency = self.node_loop.config.status.update_frequency;
        self.compute_at = self.now() + jittered(frequency, draw());
        if std::mem::take(&mut self.is_stale)
            && let Err(error) = self.read_record().await
        {
            return self.observe_post_failed(&error);
        }
        let Some(node) = self.node.clone() else { return };
        let emitted = self.emitted;
        let latest = self.compute(&node).await;
        if latest.is_ready {
            self.startup_until = Mono::ZERO;
        } else if self.now() < self.startup_until {
            self.compute_at = self.compute_at.min(self.now() + STARTUP_INTERVAL);
        }
        if let Err(error) = self.post_if_needed(&node, latest).await {
            // The events of a status that was not posted are not recorded; the next status has them again.
            self.emitted = emitted;
            self.observe_post_failed(&error);
        }
    }

    fn observe_post_failed(&mut self, error: &ClientError) {
        if self.reporter.observe_failed() {
            tracing::debug!(%error, "the status could not be posted; trying again");
            (self.is_stale, self.compute_at) = (true, self.now());
        } else {
            tracing::warn!(%error, "the status could not be posted");
        }
    }

    async fn read_record(&mut self) -> Result<(), ClientError> {
        let client = self.node_loop.client.with_deadline(self.answer_deadline);
        let read = client.get(&self.node_loop.key()).await;
        self.observe_answer(&read);
        self.set_record(read?);
        Ok(())
    }

    async fn compute(&mut self, node: &Node) -> LatestStatus {
        let says_shutdown = self.node_loop.machine_shutdown.is_shutting_down();
        let computed = self.node_loop.compute(Some(node), &mut self.emitted).await;
        let status = computed.status.clone();
        self.node_loop.shared.status().computed = Some((status, self.node_loop.clock.wall()));
        // A problem is logged when it appears, not with every status that has it.
        let before = self.latest.as_ref().map_or(&[][..], |latest| &latest.computed.problems);
        for problem in computed.problems.iter().filter(|problem| !before.contains(problem)) {
            tracing::warn!(problem, "the status is incomplete");
        }
        let is_ready = ready::is_ready(&computed.status);
        LatestStatus { digest: digest(&computed.status), computed, at: self.now(), is_ready, says_shutdown }
    }

    async fn post_if_needed(&mut self, node: &Node, latest: LatestStatus) -> Result<(), ClientError> {
        let latest = self.latest.insert(latest);
        let mut labels = node.meta.labels.clone();
        let labels_repaired = registration::repair_labels(&mut labels, &self.node_loop.system);
        let comparison = StatusComparison {
            stored: &node.status,
            computed: &latest.computed.status,
            pod_cidrs: &node.spec.pod_cidrs,
            labels_repaired,
        };
        let events = latest.computed.events.clone();
        if let Decision::Post(reason) = self.reporter.decide(comparison, self.node_loop.clock.mono()) {
            self.post(node, labels_repaired.then_some(labels), reason).await?;
        }
        // Also without a post: a cordon is an event, though nothing of it is in the status.
        self.node_loop.record_events(node, events);
        Ok(())
    }

    async fn post(
        &mut self,
        node: &Node,
        labels: Option<Labels>,
        reason: PostReason,
    ) -> Result<(), ClientError> {
        let Some(LatestStatus { computed, says_shutdown, .. }) = &self.latest else { return Ok(()) };
        let (status, says_shutdown) = (computed.status.clone(), *says_shutdown);
        // At the version that the status was computed from: a later write of another writer is read, not undone.
        let mut wanted = node.clone();
        wanted.meta.labels = labels.unwrap_or(wanted.meta.labels);
        wanted.meta.annotations = computed.annotations.clone();
        wanted.status = status.clone();
        let sent = self.send(node, wanted).await;
        self.observe_answer(&sent);
        let version = sent?;
        self.reporter.observe_posted(reason, &node.spec.pod_cidrs, draw(), self.now());
        self.node_loop.shared.status().status = Some((status, self.node_loop.clock.wall(), version));
        self.node_loop.shared.metrics.status_posts.inc();
        if says_shutdown {
            self.node_loop.machine_shutdown.observe_posted();
        }
        if reason != PostReason::Due {
            tracing::info!(?reason, version, "status posted");
        }
        Ok(())
    }

    /// Sends the status to the store; returns the version that the node then has.
    async fn send(&mut self, known: &Node, wanted: Node) -> Result<u64, ClientError> {
        // A repaired label or annotation needs an update of the whole record; a status alone goes over the stream.
        let is_whole =
            (&wanted.meta.labels, &wanted.meta.annotations) != (&known.meta.labels, &known.meta.annotations);
        match self.status_stream().await? {
            Some(mut stream) if !is_whole => {
                let resource_version = wanted.meta.resource_version;
                let message = pb::HeartbeatStatus { status: Some(wanted.status.into()), resource_version };
                let answer = stream.send(Message::Status(message), self.answer_deadline).await?;
                self.stream = Some(stream);
                Ok(answer.resource_version)
            }
            stream => {
                self.stream = stream;
                let client = self.node_loop.client.with_deadline(self.answer_deadline);
                Ok(client.update_status(wanted).await?.meta.resource_version)
            }
        }
    }
}
