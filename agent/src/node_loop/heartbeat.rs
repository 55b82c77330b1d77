//! A node on the roll: its lease is renewed and its status posted, for ever.
//!
//! One turn does at most one thing about the status and one about the lease, so that neither waits long for the
//! other when the store does not answer.

use std::time::Duration;

use futures_util::StreamExt;
use muster_agent_core::registration;
use muster_agent_core::renewal_schedule::{self, Cadence, Doubt, Step};
use muster_agent_core::status::{Computed, Told, ready};
use muster_agent_core::status_report::{Decision, Reporter, View, Why, digest};
use muster_proto::label::Labels;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_proto::time::Mono;
use muster_proto::watch_event::WatchEvent;
use muster_store_client::{ClientError, Watch, WatchOptions};
use tokio::time::sleep;

use super::{Link, draw};
use crate::heartbeat_stream::Heartbeat;

/// A status that others wrote over is put right at most this often.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// A node that is not ready when its agent starts is looked at this often, for this long: what it lacks comes soon, and
/// pods wait for it.
const EAGER_EVERY: Duration = Duration::from_millis(100);
const EAGER_FOR: Duration = Duration::from_secs(120);

/// The last status that was computed.
struct Latest {
    computed: Computed,
    digest: u64,
    at: Mono,
    is_ready: bool,
    /// Whether it says that the node is shutting down.
    is_farewell: bool,
}

/// What is known from one turn to the next.
pub(super) struct Beat<'a> {
    link: &'a mut Link,
    /// The record, as new as it is known; `None` while there is none.
    node: Option<Node>,
    /// Whether the record is read anew before anything is said of it.
    is_stale: bool,
    cadence: Cadence,
    reporter: Reporter,
    doubt: Doubt,
    told: Told,
    stream: Option<Heartbeat>,
    latest: Option<Latest>,
    compute_at: Mono,
    /// Until when a node that was not ready yet is looked at more often.
    eager_until: Mono,
    /// How long an answer may take.
    patience: Duration,
}

impl<'a> Beat<'a> {
    pub(super) fn new(link: &'a mut Link, node: Option<Node>) -> Beat<'a> {
        let (now, config) = (link.clock.mono(), &link.config);
        Beat {
            node,
            is_stale: false,
            cadence: Cadence::new(config.lease_duration, now),
            reporter: Reporter::new(config.status.report_frequency),
            doubt: Doubt::default(),
            told: Told::default(),
            stream: None,
            latest: None,
            compute_at: now,
            eager_until: now + EAGER_FOR,
            patience: link.patience(),
            link,
        }
    }

    pub(super) async fn run(mut self) {
        let selector = format!("metadata.name={}", self.link.settings.name);
        let options = WatchOptions { field_selector: selector, ..Default::default() };
        let mut watch: Watch<Node> = self.link.client.watch(options);
        let mut course = self.link.leave.course();
        self.show();
        loop {
            // The lease first: a status is said only by whom the store let in.
            let was_welcome = self.link.is_welcome();
            let lease_at = self.keep_lease().await;
            if self.may_report() && self.now() >= self.compute_at {
                self.report().await;
            }
            if self.link.is_welcome() != was_welcome {
                self.show();
            }
            let wake_at = if self.may_report() { lease_at.min(self.compute_at) } else { lease_at };
            tokio::select! {
                _ = course.changed() => {
                    let is_farewell = self.latest.as_ref().is_some_and(|latest| latest.is_farewell);
                    if course.borrow_and_update().since.is_some() != is_farewell {
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
        self.link.clock.mono()
    }

    /// Without a node there is nothing to compute, only a lease to ask for again; nor is there for who is not let in.
    fn may_report(&self) -> bool {
        self.node.is_some() && self.link.is_welcome()
    }

    /// Shows the other loops the node, as long as it is ours to act for.
    fn show(&self) {
        self.link.board.see_node(self.node.clone().filter(|_| self.link.is_welcome()));
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
        self.link.adopt(&record);
        self.node = Some(record);
        self.show();
    }

    fn see_gone(&mut self) {
        let node = &self.link.settings.name;
        tracing::warn!(%node, "the node was deleted; a running agent does not create it again");
        self.link.board.beliefs().node_uid = None;
        (self.node, self.stream) = (None, None);
        self.show();
    }

    /// Drops what led to a call that nobody answered, if that happens again and again.
    fn judge<T>(&mut self, answer: &Result<T, ClientError>) {
        let Err(error) = answer else { return self.doubt.observe_answer() };
        self.link.board.beliefs().store = error.to_string();
        match error {
            ClientError::Unavailable(_) | ClientError::DeadlineExceeded if self.doubt.observe_silence() => {
                self.link.client.redial();
                self.stream = None;
            }
            ClientError::Unavailable(_) | ClientError::DeadlineExceeded => {}
            _ => self.doubt.observe_answer(),
        }
    }
}

/// The lease.
impl Beat<'_> {
    /// Does what the cadence asks for now; returns when it asks again.
    async fn keep_lease(&mut self) -> Mono {
        match self.cadence.step(self.now()) {
            Step::Wait { until } => return until,
            Step::Ensure => {
                let opened = self.open().await;
                self.judge(&opened);
                match opened {
                    Ok(opened) => {
                        self.stream = Some(opened);
                        self.cadence.observe_ensured(self.now());
                    }
                    Err(error) => {
                        tracing::debug!(%error, "no heartbeat stream yet");
                        self.cadence.observe_ensure_failed(draw(), self.now());
                    }
                }
            }
            Step::Renew => {
                let was_open = self.stream.is_some();
                let renewed = self.renew().await;
                self.judge(&renewed);
                match renewed {
                    Ok(answer) => self.observe_renewed(answer),
                    Err(error) => {
                        if was_open {
                            tracing::warn!(%error, "the heartbeat stream was lost");
                        } else {
                            tracing::debug!(%error, "no heartbeat stream yet");
                        }
                        self.cadence.observe_renew_failed(draw());
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
        let wished = answer.next_renewal.and_then(|wished| Duration::try_from(wished).ok());
        self.cadence.observe_renewed(wished, draw());
        self.link.board.metrics.renewals.inc();
        let mut beliefs = self.link.board.beliefs();
        beliefs.renewal = answer.renew_time.map(|at| (at, answer.resource_version));
        beliefs.store = self.link.config.stores.join(",");
    }

    async fn open(&mut self) -> Result<Heartbeat, ClientError> {
        let name = &self.link.settings.name;
        let uid = self.node.as_ref().and_then(|node| node.meta.uid);
        let uid = uid.ok_or_else(|| ClientError::NotFound(format!("Node {name} does not exist")))?;
        self.link.greet(uid, self.patience).await
    }

    /// A stream to speak on, opened if there is none: another agent may have come while we had no word of the store.
    /// `None` to whom may report but not beat.
    async fn voice(&mut self) -> Result<Option<Heartbeat>, ClientError> {
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
impl Beat<'_> {
    /// Computes the status, and posts it if it is time to.
    async fn report(&mut self) {
        let frequency = self.link.config.status.update_frequency;
        self.compute_at = self.now() + renewal_schedule::jittered(frequency, draw());
        if std::mem::take(&mut self.is_stale)
            && let Err(error) = self.read_anew().await
        {
            return self.observe_failed(&error);
        }
        let Some(node) = self.node.clone() else { return };
        let told = self.told;
        let latest = self.look(&node).await;
        if latest.is_ready {
            self.eager_until = Mono::ZERO;
        } else if self.now() < self.eager_until {
            self.compute_at = self.compute_at.min(self.now() + EAGER_EVERY);
        }
        if let Err(error) = self.post(&node, latest).await {
            // What was not said is still to be told.
            self.told = told;
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
        let client = self.link.client.with_deadline(self.patience);
        let read = client.get(&self.link.key()).await;
        self.judge(&read);
        self.take(read?);
        Ok(())
    }

    async fn look(&mut self, node: &Node) -> Latest {
        let is_farewell = self.link.leave.is_shutting_down();
        let computed = self.link.compute(Some(node), &mut self.told).await;
        let status = computed.status.clone();
        self.link.board.beliefs().computed = Some((status, self.link.clock.wall()));
        // Said when they come up, not at every turn.
        let before = self.latest.as_ref().map_or(&[][..], |latest| &latest.computed.problems);
        for problem in computed.problems.iter().filter(|problem| !before.contains(problem)) {
            tracing::warn!(problem, "the status is incomplete");
        }
        let is_ready = ready::is_ready(&computed.status);
        Latest { digest: digest(&computed.status), computed, at: self.now(), is_ready, is_farewell }
    }

    async fn post(&mut self, node: &Node, latest: Latest) -> Result<(), ClientError> {
        let latest = self.latest.insert(latest);
        let mut labels = node.meta.labels.clone();
        let labels_repaired = registration::repair_labels(&mut labels, &self.link.system);
        let view = View {
            stored: &node.status,
            computed: &latest.computed.status,
            pod_cidrs: &node.spec.pod_cidrs,
            labels_repaired,
        };
        let notices = latest.computed.notices.clone();
        // A cordon is worth telling though nothing of it is in the status.
        if let Decision::Post(why) = self.reporter.decide(view, self.link.clock.mono()) {
            self.send(node, labels_repaired.then_some(labels), why).await?;
        }
        self.link.tell(node, notices);
        Ok(())
    }

    async fn send(&mut self, node: &Node, labels: Option<Labels>, why: Why) -> Result<(), ClientError> {
        let Some(Latest { computed, is_farewell, .. }) = &self.latest else { return Ok(()) };
        let (status, is_farewell) = (computed.status.clone(), *is_farewell);
        // At the version that was looked at: what others wrote since is not undone but read.
        let mut wanted = node.clone();
        wanted.meta.labels = labels.unwrap_or(wanted.meta.labels);
        wanted.meta.annotations = computed.annotations.clone();
        wanted.status = status.clone();
        let sent = self.put(node, wanted).await;
        self.judge(&sent);
        let version = sent?;
        self.reporter.observe_posted(why, &node.spec.pod_cidrs, draw(), self.now());
        self.link.board.beliefs().status = Some((status, self.link.clock.wall(), version));
        self.link.board.metrics.status_posts.inc();
        if is_farewell {
            self.link.leave.announce();
        }
        if why != Why::Due {
            tracing::info!(?why, version, "status posted");
        }
        Ok(())
    }

    /// Has the store take the status of a record; the version that the node then has comes back.
    async fn put(&mut self, known: &Node, wanted: Node) -> Result<u64, ClientError> {
        // A repaired label or annotation needs the whole record; the rest goes over the stream.
        let is_whole =
            (&wanted.meta.labels, &wanted.meta.annotations) != (&known.meta.labels, &known.meta.annotations);
        match self.voice().await? {
            Some(mut heartbeat) if !is_whole => {
                let resource_version = wanted.meta.resource_version;
                let message = pb::HeartbeatStatus { status: Some(wanted.status.into()), resource_version };
                let answer = heartbeat.say(Message::Status(message), self.patience).await?;
                self.stream = Some(heartbeat);
                Ok(answer.resource_version)
            }
            voice => {
                self.stream = voice;
                let client = self.link.client.with_deadline(self.patience);
                Ok(client.update_status(wanted).await?.meta.resource_version)
            }
        }
    }
}
