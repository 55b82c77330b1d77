//! The node's own loop: registers it, keeps its lease, reports its status.
//!
//! The waiting is here, the thinking in `registration`, `cadence`, `status` and
//! `report`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_rpc::clock::{Mono, SharedClock};
use muster_store_client::{ClientError, Event, Key, StoreClient, Watch, WatchOptions};
use tokio::time::sleep;

use crate::board::Board;
use crate::cadence::{self, Cadence, Ensured, Step};
use crate::config::Config;
use crate::identity::{Identity, StateDir};
use crate::leave::Leave;
use crate::machine::{Machine, System};
use crate::pulse::Pulse;
use crate::registration::{self, Created, Next};
use crate::report::{Decision, Reporter, View, Why, digest};
use crate::status::{self, Computed, Notice, Previous, Settings, Told};
use crate::stream::Heartbeat;
use crate::survey::{Survey, survey};
use crate::tell;

/// A status that others wrote over is put right at most this often.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// What the loop works with.
pub struct Link {
    pub client: StoreClient,
    pub config: Config,
    pub settings: Settings,
    pub system: System,
    pub machine: Arc<dyn Machine>,
    pub storage: PathBuf,
    pub pulse: Pulse,
    pub runtime_version: String,
    pub limitations: Vec<String>,
    pub state: Arc<StateDir>,
    pub identity: Identity,
    pub board: Arc<Board>,
    pub clock: SharedClock,
    pub leave: Leave,
}

/// The last status that was computed.
struct Latest {
    computed: Computed,
    digest: u64,
    at: Mono,
    /// Whether it says that the node is shutting down.
    is_farewell: bool,
}

impl Link {
    /// Runs until the agent's time is over.
    pub async fn run(mut self) {
        let over = self.leave.over();
        tokio::select! {
            () = over.requested() => {}
            () = self.live() => {}
        }
    }

    async fn live(&mut self) {
        if self.config.node.register {
            let node = self.register().await;
            self.adopt(&node);
            self.board.beliefs().registered = true;
            self.board.see_node(Some(node));
        }
        self.beat().await;
    }

    /// Puts the node on the roll, however long it takes.
    async fn register(&mut self) -> Node {
        let mut told = Told::default();
        let mut attempt = 0;
        loop {
            sleep(cadence::registration_delay(attempt)).await;
            attempt = attempt.saturating_add(1);
            let computed = self.compute(None, &mut told).await;
            let notices = computed.notices.clone();
            let initial = registration::initial_node(&self.settings, &self.system, computed);
            match self.try_register(&initial).await {
                Ok(Some(node)) => {
                    tracing::info!(node = %self.settings.name, "registered");
                    self.tell(&node, notices).await;
                    return node;
                }
                Ok(None) => {}
                Err(error) => {
                    self.board.beliefs().store = error.to_string();
                    tracing::warn!(%error, attempt, "the node could not be registered yet");
                }
            }
        }
    }

    async fn try_register(&self, initial: &Node) -> Result<Option<Node>, ClientError> {
        let (created, answer) = match self.client.create(initial.clone()).await {
            Ok(node) => return Ok(Some(node)),
            Err(error @ ClientError::AlreadyExists(_)) => (Created::AlreadyExists, error),
            Err(error @ ClientError::Denied(_)) => (Created::Forbidden, error),
            Err(error) => (Created::Failed, error),
        };
        match registration::after_create(created) {
            Next::Registered => Ok(None),
            Next::Retry => Err(answer),
            Next::Read => {
                let existing: Node = self.client.get(&self.key()).await.map_err(|_| answer)?;
                match registration::reconcile(&existing, initial, false) {
                    Some(mended) => self.client.update_status(mended).await.map(Some),
                    None => Ok(Some(existing)),
                }
            }
        }
    }

    fn key(&self) -> Key {
        Key::node(self.settings.name.clone())
    }

    /// Remembers which record is ours.
    fn adopt(&mut self, node: &Node) {
        if self.identity.node_uid != node.meta.uid {
            self.identity.node_uid = node.meta.uid;
            if let Err(error) = self.state.save(&self.identity) {
                tracing::warn!(%error, "the node's uid could not be kept");
            }
        }
    }

    /// Looks at the machine and computes what to say of it.
    async fn compute(&self, node: Option<&Node>, told: &mut Told) -> Computed {
        let (machine, settings, system, storage) =
            (Arc::clone(&self.machine), self.settings.clone(), self.system.clone(), self.storage.clone());
        let looked =
            tokio::task::spawn_blocking(move || survey(&*machine, &settings, &system, &storage)).await;
        let Survey { mut observed, problems } = looked.unwrap_or_default();
        let shortages = self.board.standing().borrow().shortages;
        observed.runtime_version = self.runtime_version.clone();
        observed.pressures = status::conditions::Pressures {
            memory: shortages.memory,
            disk: shortages.disk,
            pid: shortages.pid,
        };
        observed.health.runtime = self.pulse.feel().await;
        observed.health.shutting_down = self.leave.is_shutting_down();
        // The message joins them with full stops of its own.
        let warnings = self.limitations.iter().map(|text| text.trim_end_matches('.').to_owned());
        observed.health.warnings = warnings.collect();
        let nothing = (Default::default(), Default::default(), Default::default());
        let previous = match node {
            Some(node) => Previous::from(node),
            None => Previous { status: &nothing.0, spec: &nothing.1, annotations: &nothing.2 },
        };
        let mut computed = status::compute(previous, &self.settings, &observed, told, self.clock.now());
        computed.problems.extend(problems);
        computed
    }

    /// Keeps the lease and the status, for ever.
    async fn beat(&mut self) {
        let selector = format!("metadata.name={}", self.settings.name);
        let mut watch: Watch<Node> =
            self.client.watch(WatchOptions { field_selector: selector, ..Default::default() });
        let mut node = self.board.node().borrow().as_deref().cloned();
        let mut cadence = Cadence::new(self.config.lease_duration, self.clock.mono());
        let mut reporter = Reporter::new(self.config.status.report_frequency);
        let mut told = Told::default();
        let mut stream: Option<Heartbeat> = None;
        let mut latest: Option<Latest> = None;
        let mut compute_at = self.clock.mono();
        let mut course = self.leave.course();
        loop {
            let now = self.clock.mono();
            if let Some(known) = &node
                && now >= compute_at
            {
                compute_at = now + cadence::jittered(self.config.status.update_frequency, draw());
                let is_farewell = self.leave.is_shutting_down();
                let computed = self.compute(Some(known), &mut told).await;
                let at = self.clock.mono();
                self.board.beliefs().computed = Some((computed.status.clone(), self.clock.now()));
                let digest = digest(&computed.status);
                // Said when they come up, not at every turn.
                let before = latest.as_ref().map_or(&[][..], |latest| &latest.computed.problems);
                for problem in computed.problems.iter().filter(|problem| !before.contains(problem)) {
                    tracing::warn!(problem, "the status is incomplete");
                }
                latest = Some(Latest { computed, digest, at, is_farewell });
                if let Some(latest) = &latest {
                    self.post(known, latest, &mut reporter, &mut stream).await;
                }
            }
            let wait_until = self.keep_lease(&node, &latest, &mut cadence, &mut stream).await;
            // Without a node there is nothing to compute, only a lease to ask for again.
            let wake = if node.is_some() { wait_until.min(compute_at) } else { wait_until };
            let is_farewell = latest.as_ref().is_some_and(|latest| latest.is_farewell);
            tokio::select! {
                _ = course.changed() => {
                    if course.borrow_and_update().since.is_some() != is_farewell {
                        compute_at = self.clock.mono();
                    }
                }
                event = watch.next() => match event {
                    Some(Event::Applied { record, .. }) => {
                        // Somebody wrote over our status: it is put right at once, not at the next turn.
                        let differs = latest.as_ref().is_some_and(|latest| digest(&record.status) != latest.digest);
                        let assigned = node.as_ref().is_some_and(|node| node.spec.pod_cidrs != record.spec.pod_cidrs);
                        if node.is_none() || differs || assigned {
                            // Not at once if we just spoke: two writers must not drive each other round.
                            let spoke = latest.as_ref().map_or(Mono::ZERO, |latest| latest.at);
                            compute_at = compute_at.min(self.clock.mono().max(spoke + AT_MOST_EVERY));
                        }
                        self.adopt(&record);
                        self.board.see_node(Some(record.clone()));
                        node = Some(record);
                    }
                    Some(Event::Gone { .. }) => {
                        tracing::warn!(node = %self.settings.name, "the node was deleted; a running agent does not create it again");
                        self.board.see_node(None);
                        (node, stream) = (None, None);
                    }
                    Some(Event::Lost(failure)) => tracing::debug!(?failure, "the store is out of reach"),
                    Some(Event::Synced { .. }) | None => {}
                },
                () = sleep(wake - self.clock.mono()) => {}
            }
        }
    }

    /// Does what the cadence asks for now; returns when it asks again.
    async fn keep_lease(
        &self,
        node: &Option<Node>,
        latest: &Option<Latest>,
        cadence: &mut Cadence,
        stream: &mut Option<Heartbeat>,
    ) -> Mono {
        let patience =
            cadence::answer_deadline(self.config.status.update_frequency, self.config.lease_duration);
        loop {
            match (cadence.step(self.clock.mono()), stream.as_mut()) {
                (Step::Wait { until }, _) => return until,
                (Step::Renew, Some(heartbeat)) => {
                    let age = latest.as_ref().map(|latest| self.clock.mono() - latest.at).unwrap_or_default();
                    let renewal = pb::HeartbeatRenewal {
                        status_digest: latest.as_ref().map_or(0, |latest| latest.digest),
                        status_age_millis: u32::try_from(age.as_millis()).unwrap_or(u32::MAX),
                    };
                    match heartbeat.say(Message::Renewal(renewal), patience).await {
                        Ok(answer) => {
                            let wished =
                                answer.next_renewal.and_then(|wished| Duration::try_from(wished).ok());
                            cadence.observe_renewed(wished, draw(), self.clock.mono());
                            self.board.metrics.renewals.inc();
                            let mut beliefs = self.board.beliefs();
                            beliefs.renewal = answer.renew_time.map(|at| (at, answer.resource_version));
                            beliefs.store = self.config.stores.join(",");
                        }
                        Err(error) => self.lose(&error, cadence, stream),
                    }
                }
                (Step::Renew, None) => cadence.observe_disconnected(draw(), self.clock.mono()),
                (Step::Ensure, _) => match self.open(node, patience).await {
                    Ok(opened) => {
                        *stream = Some(opened);
                        cadence.observe_ensured(Ensured::Found, draw(), self.clock.mono());
                    }
                    Err(error) => {
                        *stream = None;
                        self.board.beliefs().store = error.clone();
                        tracing::debug!(error, "no heartbeat stream yet");
                        cadence.observe_ensure_failed(draw(), self.clock.mono());
                    }
                },
            }
        }
    }

    fn lose(&self, error: &ClientError, cadence: &mut Cadence, stream: &mut Option<Heartbeat>) {
        tracing::warn!(%error, "the heartbeat stream was lost");
        self.board.beliefs().store = error.to_string();
        *stream = None;
        cadence.observe_disconnected(draw(), self.clock.mono());
    }

    async fn open(&self, node: &Option<Node>, patience: Duration) -> Result<Heartbeat, String> {
        let uid = node.as_ref().and_then(|node| node.meta.uid);
        let uid = uid.ok_or_else(|| format!("Node {} does not exist", self.settings.name))?;
        let hello = pb::HeartbeatHello {
            node_name: self.settings.name.to_string(),
            node_uid: uid.to_string(),
            incarnation: self.identity.incarnation.to_string(),
            lease_duration: self.config.lease_duration.try_into().ok(),
        };
        Heartbeat::open(&self.client, hello, patience).await.map_err(|error| error.to_string())
    }

    /// Posts the status if it is time to.
    async fn post(
        &self,
        node: &Node,
        latest: &Latest,
        reporter: &mut Reporter,
        stream: &mut Option<Heartbeat>,
    ) {
        let mut labels = node.meta.labels.clone();
        let labels_repaired = registration::repair_labels(&mut labels, &self.system);
        let view = View {
            stored: &node.status,
            computed: &latest.computed.status,
            pod_cidrs: &node.spec.pod_cidrs,
            labels_repaired,
        };
        let Decision::Post(why) = reporter.decide(view, self.clock.mono()) else {
            // A cordon is worth telling though nothing of it is in the status.
            return self.tell(node, latest.computed.notices.clone()).await;
        };
        match self.send_status(node, latest, labels_repaired.then_some(labels), stream).await {
            Ok(version) => {
                reporter.observe_posted(why, &node.spec.pod_cidrs, draw(), self.clock.mono());
                let status = latest.computed.status.clone();
                self.board.beliefs().status = Some((status, self.clock.now(), version));
                self.board.metrics.status_posts.inc();
                if latest.is_farewell {
                    self.leave.announce();
                }
                if why != Why::Due {
                    tracing::info!(?why, version, "status posted");
                }
                self.tell(node, latest.computed.notices.clone()).await;
            }
            Err(error) => tracing::warn!(%error, ?why, "the status could not be posted"),
        }
    }

    /// Over the stream; a repaired label or annotation needs the whole record.
    async fn send_status(
        &self,
        node: &Node,
        latest: &Latest,
        labels: Option<muster_proto::label::Labels>,
        stream: &mut Option<Heartbeat>,
    ) -> Result<u64, ClientError> {
        let patience =
            cadence::answer_deadline(self.config.status.update_frequency, self.config.lease_duration);
        let whole = labels.is_some() || latest.computed.annotations != node.meta.annotations;
        if let Some(heartbeat) = stream.as_mut().filter(|_| !whole) {
            let status = pb::HeartbeatStatus { status: Some(latest.computed.status.clone().into()) };
            let answer = heartbeat.say(Message::Status(status), patience).await;
            if answer.is_err() {
                *stream = None;
            }
            return answer.map(|answer| answer.resource_version);
        }
        let mut wanted = node.clone();
        wanted.meta.resource_version = 0;
        wanted.meta.labels = labels.unwrap_or(wanted.meta.labels);
        wanted.meta.annotations = latest.computed.annotations.clone();
        wanted.status = latest.computed.status.clone();
        Ok(self.client.update_status(wanted).await?.meta.resource_version)
    }

    /// Records what happened to the node.
    async fn tell(&self, node: &Node, notices: Vec<Notice>) {
        for Notice { kind, reason, message } in notices {
            let about = tell::node(self.settings.name.clone(), node.meta.uid);
            tell::record(&self.client, tell::event(about, kind, reason, message)).await;
        }
    }
}

/// A fresh uid.
pub fn fresh_uid() -> Uid {
    Uid::new(uuid::Uuid::new_v4())
}

/// A number in 0..1, to spread a fleet's turns.
fn draw() -> f64 {
    f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX)
}
