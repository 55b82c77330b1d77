//! The node loop: registers the node, renews its lease and posts its status.
//!
//! The loop waits and calls; `registration`, `renewal_schedule`, `status` and `status_report` of the core decide.

use std::sync::Arc;
use std::time::Duration;

use muster_agent_core::registration::{self, Created, Next};
use muster_agent_core::renewal_schedule;
use muster_agent_core::status::{self, Computed, EmittedEvents, NodeEvent, Previous, Settings};
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_rpc::clock::SharedClock;
use muster_store_client::{ClientError, StoreClient};
use tokio::time::sleep;

use crate::config::Config;
use crate::events::EventRecorder;
use crate::identity::{Identity, StateDir};
use crate::machine::System;
use crate::machine_probe::{MachineProbe, MachineReading};
use crate::runtime_probe::RuntimeProbe;
use crate::shared_state::SharedState;
use crate::shutdown::MachineShutdown;

mod heartbeat;
mod hello;
mod lease;
mod status_post;

use heartbeat::HeartbeatLoop;
pub use hello::HelloState;

/// What the loop works with.
pub struct NodeLoop {
    pub client: StoreClient,
    pub config: Config,
    pub settings: Settings,
    pub system: System,
    pub machine_probe: MachineProbe,
    pub runtime_probe: RuntimeProbe,
    pub runtime_version: String,
    pub limitations: Vec<String>,
    pub state: Arc<StateDir>,
    pub identity: Identity,
    pub shared: Arc<SharedState>,
    pub events: EventRecorder,
    pub clock: SharedClock,
    pub machine_shutdown: MachineShutdown,
    pub hello_state: HelloState,
}

impl NodeLoop {
    /// Runs until the agent stops.
    pub async fn run(mut self) {
        let stop = self.machine_shutdown.stop_signal();
        tokio::select! {
            () = stop.requested() => {}
            () = self.register_and_heartbeat() => {}
        }
    }

    async fn register_and_heartbeat(&mut self) {
        let mut node = None;
        if self.config.node.register {
            let registered = self.register().await;
            self.adopt(&registered);
            self.shared.status().registered = true;
            node = Some(registered);
        }
        HeartbeatLoop::new(self, node).run().await;
    }

    /// Registers the node, however long it takes.
    async fn register(&mut self) -> Node {
        let mut emitted = EmittedEvents::default();
        let mut attempt = 0;
        loop {
            sleep(renewal_schedule::registration_delay(attempt)).await;
            attempt = attempt.saturating_add(1);
            let computed = self.compute(None, &mut emitted).await;
            let events = computed.events.clone();
            let initial = registration::initial_node(&self.settings, &self.system, computed);
            match self.try_register(&initial).await {
                Ok(Some(node)) => {
                    tracing::info!(node = %self.settings.name, "registered");
                    self.record_events(&node, events);
                    return node;
                }
                Ok(None) => {}
                Err(error) => {
                    self.shared.status().store = error.to_string();
                    // A refusal was logged when it came.
                    if !self.is_refused() {
                        tracing::warn!(%error, attempt, "the node could not be registered yet");
                    }
                }
            }
        }
    }

    async fn try_register(&mut self, initial: &Node) -> Result<Option<Node>, ClientError> {
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
                // The name may belong to another agent: a node is corrected only by the agent that the store accepts.
                if let Some(uid) = existing.meta.uid
                    && let Err(error) = self.say_hello(uid, self.answer_deadline()).await
                    && self.is_refused()
                {
                    return Err(error);
                }
                match registration::reconcile(&existing, initial, self.identity.node_uid) {
                    Some(corrected) => self.client.update_status(corrected).await.map(Some),
                    None => Ok(Some(existing)),
                }
            }
        }
    }

    fn key(&self) -> Key {
        Key::node(self.settings.name.clone())
    }

    /// How long the store may take to answer a call.
    fn answer_deadline(&self) -> Duration {
        renewal_schedule::answer_deadline(self.config.status.update_frequency, self.config.lease_duration)
    }

    /// Keeps the uid of the node's record.
    fn adopt(&mut self, node: &Node) {
        self.shared.status().node_uid = node.meta.uid;
        if self.identity.node_uid != node.meta.uid {
            self.identity.node_uid = node.meta.uid;
            if let Err(error) = self.state.save(&self.identity) {
                tracing::warn!(%error, "the node's uid could not be written to the state directory");
            }
        }
    }

    /// Reads the machine and computes the node's status.
    async fn compute(&self, node: Option<&Node>, emitted: &mut EmittedEvents) -> Computed {
        let MachineReading { mut observed, problems } = self.machine_probe.read().await;
        observed.runtime_version = self.runtime_version.clone();
        observed.pressures = self.shared.pressure().borrow().conditions;
        observed.health.runtime = self.runtime_probe.errors().await;
        observed.health.shutting_down = self.machine_shutdown.is_shutting_down();
        // The Ready message joins them with full stops.
        let warnings = self.limitations.iter().map(|text| text.trim_end_matches('.').to_owned());
        observed.health.warnings = warnings.collect();
        let nothing = (Default::default(), Default::default(), Default::default());
        let previous = match node {
            Some(node) => Previous::from(node),
            None => Previous { status: &nothing.0, spec: &nothing.1, annotations: &nothing.2 },
        };
        let mut computed = status::compute(previous, &self.settings, &observed, emitted, self.clock.wall());
        computed.problems.extend(problems);
        computed
    }

    fn record_events(&self, node: &Node, events: Vec<NodeEvent>) {
        for event in events {
            self.events.record_node(&self.settings.name, node.meta.uid, event);
        }
    }
}

/// A random uid.
pub fn fresh_uid() -> Uid {
    Uid::new(uuid::Uuid::new_v4())
}

/// A random number in 0..1, which spreads the renewals and posts of many nodes over time.
fn draw() -> f64 {
    f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX)
}
