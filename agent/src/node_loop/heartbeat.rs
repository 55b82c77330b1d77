//! A node on the roll: its lease is renewed and its status posted, for ever.
//!
//! One turn does at most one thing about the status and one about the lease, so that neither waits long for the
//! other when the store does not answer.

use std::time::Duration;

use futures_util::StreamExt;
use muster_agent_core::registration;
use muster_agent_core::renewal_schedule::{self, ConnectionHealth, LeaseStep, RenewalSchedule};
use muster_agent_core::status::{Computed, EmittedEvents, ready};
use muster_agent_core::status_report::{Decision, PostReason, StatusComparison, StatusReporter, digest};
use muster_proto::label::Labels;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_proto::time::Mono;
use muster_proto::watch_event::WatchEvent;
use muster_store_client::{ClientError, Watch, WatchOptions};
use tokio::time::sleep;

use super::{NodeLoop, draw};
use crate::heartbeat_stream::HeartbeatStream;

/// A status that others wrote over is put right at most this often.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// A node that is not ready when its agent starts is looked at this often, for this long: what it lacks comes soon, and
/// pods wait for it.
const EAGER_EVERY: Duration = Duration::from_millis(100);
const EAGER_FOR: Duration = Duration::from_secs(120);

/// The last status that was computed.
struct LatestStatus {
    computed: Computed,
    digest: u64,
    at: Mono,
    is_ready: bool,
    /// Whether it says that the node is shutting down.
    says_shutdown: bool,
}

/// What is known from one turn to the next.
pub(super) struct HeartbeatLoop<'a> {
    node_loop: &'a mut NodeLoop,
    /// The record, as new as it is known; `None` while there is none.
    node: Option<Node>,
    /// Whether the record is read anew before anything is said of it.
    is_stale: bool,
    schedule: RenewalSchedule,
    reporter: StatusReporter,
    connection: ConnectionHealth,
    emitted: EmittedEvents,
    stream: Option<HeartbeatStream>,
    latest: Option<LatestStatus>,
    compute_at: Mono,
    /// Until when a node that was not ready yet is looked at more often.
    eager_until: Mono,
    /// How long an answer may take.
    patience: Duration,
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
            eager_until: now + EAGER_FOR,
            patience: node_loop.patience(),
            node_loop,
        }
    }

    pub(super) async fn run(mut self) {
        let selector = format!("metadata.name={}", self.node_loop.settings.name);
        let options = WatchOptions { field_selector: selector, ..Default::default() };
        let mut watch: Watch<Node> = self.node_loop.client.watch(options);
        let mut course = self.node_loop.machine_shutdown.state();
        self.show();
        loop {
            // The lease first: a status is said only by whom the store let in.
            let was_accepted = self.node_loop.is_accepted();
            let lease_at = self.keep_lease().await;
            if self.may_report() && self.now() >= self.compute_at {
                self.report().await;
            }
            if self.node_loop.is_accepted() != was_accepted {
                self.show();
            }
            let wake_at = if self.may_report() { lease_at.min(self.compute_at) } else { lease_at };
            tokio::select! {
                _ = course.changed() => {
                    let says_shutdown = self.latest.as_ref().is_some_and(|latest| latest.says_shutdown);
                    if course.borrow_and_update().since.is_some() != says_shutdown {
                        self.compute_at = self.now();
                    }
                }
                event = watch.next() => match event {
                    Some(WatchEvent::Applied { record }) => self.see(record),
                    Some(WatchEvent::Gone { .. }) => self.see_gone(),
                    Some(WatchEvent::Lost(failure)) => tracing::debug!(?failure, "the store is out of reach"),
                    Some(WatchEvent::Synced { .. }) | None => {}
                },
                () = sleep(wake_at - self.now()) => {}
            }
        }
    }

    fn now(&self) -> Mono {
        self.node_loop.clock.mono()
    }

    /// Without a node there is nothing to compute, only a lease to ask for again; nor is there for who is not let in.
    fn may_report(&self) -> bool {
        self.node.is_some() && self.node_loop.is_accepted()
    }

    /// Shows the other loops the node, as long as it is ours to act for.
    fn show(&self) {
        self.node_loop.shared.see_node(self.node.clone().filter(|_| self.node_loop.is_accepted()));
    }

    fn see(&mut self, record: Node) {
        // What was read anew may be newer than the watch is.
        let is_newer = |known: &Node| {
            known.meta.uid == record.meta.uid && known.meta.resource_version > record.meta.resource_version
        };
        if self.node.as_ref().is_some_and(is_newer) {
            return;
        }
        // Somebody wrote over our status: it is put right at once, not at the next turn.
        let differs = self.latest.as_ref().is_some_and(|latest| digest(&record.status) != latest.digest);
        let assigned = self.node.as_ref().is_some_and(|node| node.spec.pod_cidrs != record.spec.pod_cidrs);
        if self.node.is_none() || differs || assigned {
            // Not at once if we just spoke: two writers must not drive each other round.
            let spoke = self.latest.as_ref().map_or(Mono::ZERO, |latest| latest.at);
            self.compute_at = self.compute_at.min(self.now().max(spoke + AT_MOST_EVERY));
        }
        self.take(record);
    }

    fn take(&mut self, record: Node) {
        self.node_loop.adopt(&record);
        self.node = Some(record);
        self.show();
    }

    fn see_gone(&mut self) {
        let node = &self.node_loop.settings.name;
        tracing::warn!(%node, "the node was deleted; a running agent does not create it again");
        self.node_loop.shared.status().node_uid = None;
        (self.node, self.stream) = (None, None);
        self.show();
    }

    /// Drops what led to a call that nobody answered, if that happens again and again.
    fn observe_answer<T>(&mut self, answer: &Result<T, ClientError>) {
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

/// The lease.
impl HeartbeatLoop<'_> {
    /// Does what the schedule asks for now; returns when it asks again.
    async fn keep_lease(&mut self) -> Mono {
        match self.schedule.step(self.now()) {
            LeaseStep::Wait { until } => return until,
            LeaseStep::Ensure => {
                let opened = self.open().await;
                self.observe_answer(&opened);
                match opened {
                    Ok(opened) => {
                        self.stream = Some(opened);
                        self.schedule.observe_ensured(self.now());
                    }
                    Err(error) => {
                        tracing::debug!(%error, "no heartbeat stream yet");
                        self.schedule.observe_ensure_failed(draw(), self.now());
                    }
                }
            }
            LeaseStep::Renew => {
                let was_open = self.stream.is_some();
                let renewed = self.renew().await;
                self.observe_answer(&renewed);
                match renewed {
                    Ok(answer) => self.observe_renewed(answer),
                    Err(error) => {
                        if was_open {
                            tracing::warn!(%error, "the heartbeat stream was lost");
                        } else {
                            tracing::debug!(%error, "no heartbeat stream yet");
                        }
                        self.schedule.observe_renew_failed(draw());
                    }
                }
            }
        }
        self.now()
    }

    /// One try of a round. A stream is lost with its first error, so another try opens another.
    async fn renew(&mut self) -> Result<pb::HeartbeatResponse, ClientError> {
        let mut heartbeat = match self.stream.take() {
            Some(open) => open,
            None => self.open().await?,
        };
        let age = self.latest.as_ref().map(|latest| self.now() - latest.at).unwrap_or_default();
        let renewal = pb::HeartbeatRenewal {
            status_digest: self.latest.as_ref().map_or(0, |latest| latest.digest),
            status_age_millis: u32::try_from(age.as_millis()).unwrap_or(u32::MAX),
        };
        let answer = heartbeat.say(Message::Renewal(renewal), self.patience).await?;
        self.stream = Some(heartbeat);
        Ok(answer)
    }

    fn observe_renewed(&mut self, answer: pb::HeartbeatResponse) {
        let requested = answer.next_renewal.and_then(|requested| Duration::try_from(requested).ok());
        self.schedule.observe_renewed(requested, draw());
        self.node_loop.shared.metrics.renewals.inc();
        let mut status = self.node_loop.shared.status();
        status.renewal = answer.renew_time.map(|at| (at, answer.resource_version));
        status.store = self.node_loop.config.stores.join(",");
    }

    async fn open(&mut self) -> Result<HeartbeatStream, ClientError> {
        let name = &self.node_loop.settings.name;
        let uid = self.node.as_ref().and_then(|node| node.meta.uid);
        let uid = uid.ok_or_else(|| ClientError::NotFound(format!("Node {name} does not exist")))?;
        self.node_loop.say_hello(uid, self.patience).await
    }

    /// A stream to speak on, opened if there is none: another agent may have come while we had no word of the store.
    /// `None` to whom may report but not beat.
    async fn status_stream(&mut self) -> Result<Option<HeartbeatStream>, ClientError> {
        if let Some(open) = self.stream.take() {
            return Ok(Some(open));
        }
        match self.open().await {
            Ok(opened) => Ok(Some(opened)),
            Err(ClientError::Denied(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The status.
impl HeartbeatLoop<'_> {
    /// Computes the status, and posts it if it is time to.
    async fn report(&mut self) {
        let frequency = self.node_loop.config.status.update_frequency;
        self.compute_at = self.now() + renewal_schedule::jittered(frequency, draw());
        if std::mem::take(&mut self.is_stale)
            && let Err(error) = self.read_anew().await
        {
            return self.observe_failed(&error);
        }
        let Some(node) = self.node.clone() else { return };
        let emitted = self.emitted;
        let latest = self.look(&node).await;
        if latest.is_ready {
            self.eager_until = Mono::ZERO;
        } else if self.now() < self.eager_until {
            self.compute_at = self.compute_at.min(self.now() + EAGER_EVERY);
        }
        if let Err(error) = self.post(&node, latest).await {
            // What was not said is still to be emitted.
            self.emitted = emitted;
            self.observe_failed(&error);
        }
    }

    fn observe_failed(&mut self, error: &ClientError) {
        if self.reporter.observe_failed() {
            tracing::debug!(%error, "the status could not be posted; once more");
            (self.is_stale, self.compute_at) = (true, self.now());
        } else {
            tracing::warn!(%error, "the status could not be posted");
        }
    }

    async fn read_anew(&mut self) -> Result<(), ClientError> {
        let client = self.node_loop.client.with_deadline(self.patience);
        let read = client.get(&self.node_loop.key()).await;
        self.observe_answer(&read);
        self.take(read?);
        Ok(())
    }

    async fn look(&mut self, node: &Node) -> LatestStatus {
        let says_shutdown = self.node_loop.machine_shutdown.is_shutting_down();
        let computed = self.node_loop.compute(Some(node), &mut self.emitted).await;
        let status = computed.status.clone();
        self.node_loop.shared.status().computed = Some((status, self.node_loop.clock.wall()));
        // Said when they come up, not at every turn.
        let before = self.latest.as_ref().map_or(&[][..], |latest| &latest.computed.problems);
        for problem in computed.problems.iter().filter(|problem| !before.contains(problem)) {
            tracing::warn!(problem, "the status is incomplete");
        }
        let is_ready = ready::is_ready(&computed.status);
        LatestStatus { digest: digest(&computed.status), computed, at: self.now(), is_ready, says_shutdown }
    }

    async fn post(&mut self, node: &Node, latest: LatestStatus) -> Result<(), ClientError> {
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
        // A cordon is worth telling though nothing of it is in the status.
        if let Decision::Post(reason) = self.reporter.decide(comparison, self.node_loop.clock.mono()) {
            self.send(node, labels_repaired.then_some(labels), reason).await?;
        }
        self.node_loop.tell(node, events);
        Ok(())
    }

    async fn send(
        &mut self,
        node: &Node,
        labels: Option<Labels>,
        reason: PostReason,
    ) -> Result<(), ClientError> {
        let Some(LatestStatus { computed, says_shutdown, .. }) = &self.latest else { return Ok(()) };
        let (status, says_shutdown) = (computed.status.clone(), *says_shutdown);
        // At the version that was looked at: what others wrote since is not undone but read.
        let mut wanted = node.clone();
        wanted.meta.labels = labels.unwrap_or(wanted.meta.labels);
        wanted.meta.annotations = computed.annotations.clone();
        wanted.status = status.clone();
        let sent = self.put(node, wanted).await;
        self.observe_answer(&sent);
        let version = sent?;
        self.reporter.observe_posted(reason, &node.spec.pod_cidrs, draw(), self.now());
        self.node_loop.shared.status().status = Some((status, self.node_loop.clock.wall(), version));
        self.node_loop.shared.metrics.status_posts.inc();
        if says_shutdown {
            self.node_loop.machine_shutdown.announce();
        }
        if reason != PostReason::Due {
            tracing::info!(?reason, version, "status posted");
        }
        Ok(())
    }

    /// Has the store take the status of a record; the version that the node then has comes back.
    async fn put(&mut self, known: &Node, wanted: Node) -> Result<u64, ClientError> {
        // A repaired label or annotation needs the whole record; the rest goes over the stream.
        let is_whole =
            (&wanted.meta.labels, &wanted.meta.annotations) != (&known.meta.labels, &known.meta.annotations);
        match self.status_stream().await? {
            Some(mut heartbeat) if !is_whole => {
                let resource_version = wanted.meta.resource_version;
                let message = pb::HeartbeatStatus { status: Some(wanted.status.into()), resource_version };
                let answer = heartbeat.say(Message::Status(message), self.patience).await?;
                self.stream = Some(heartbeat);
                Ok(answer.resource_version)
            }
            status_stream => {
                self.stream = status_stream;
                let client = self.node_loop.client.with_deadline(self.patience);
                Ok(client.update_status(wanted).await?.meta.resource_version)
            }
        }
    }
}
