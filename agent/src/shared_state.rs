//! The state that the agent's loops share, and that `AgentService` shows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use muster_agent_core::pressure::PressureState;
use muster_proto::name::Uid;
use muster_proto::node::{Node, NodeStatus};
use muster_proto::pb;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::readiness::Acknowledged;

/// What the store has acknowledged, and what the agent last computed. `GetAgent` shows it.
#[derive(Clone, Debug, Default)]
pub struct AgentStatus {
    pub registered: bool,
    /// The uid of the node's record, whether or not the store accepts this agent for it.
    pub node_uid: Option<Uid>,
    /// The stores in use, or the last error of a call.
    pub store: String,
    pub computed: Option<(NodeStatus, Timestamp)>,
    /// The last acknowledged status, with the version that the node got.
    pub status: Option<(NodeStatus, Timestamp, u64)>,
    /// The last acknowledged renewal by the store's clock, with the lease's version.
    pub renewal: Option<(prost_types::Timestamp, u64)>,
    pub workloads: Vec<pb::Workload>,
}

/// State that the agent's loops share.
pub struct SharedState {
    pub metrics: Metrics,
    status: Mutex<AgentStatus>,
    node: watch::Sender<Option<Arc<Node>>>,
    pressure: watch::Sender<PressureState>,
    acknowledged: watch::Sender<Acknowledged>,
}

impl Default for SharedState {
    fn default() -> Self {
        Self {
            metrics: Metrics::default(),
            status: Mutex::default(),
            node: watch::Sender::new(None),
            pressure: watch::Sender::new(PressureState::default()),
            acknowledged: watch::Sender::default(),
        }
    }
}

impl SharedState {
    pub fn status(&self) -> MutexGuard<'_, AgentStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node's record; `None` while there is none, or the store accepts another agent for it.
    pub fn node(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.node.subscribe()
    }

    pub fn set_node(&self, node: Option<Node>) {
        self.node.send_replace(node.map(Arc::new));
    }

    /// What the store answered to the last heartbeat.
    pub fn acknowledged(&self) -> watch::Receiver<Acknowledged> {
        self.acknowledged.subscribe()
    }

    pub fn set_acknowledged(&self, acknowledged: Acknowledged) {
        self.acknowledged.send_replace(acknowledged);
    }

    /// Which resources of the machine are short.
    pub fn pressure(&self) -> watch::Receiver<PressureState> {
        self.pressure.subscribe()
    }

    /// Wakes the readers when the state changed, and after every observation while a threshold is met: each observation
    /// is one round of eviction.
    pub fn set_pressure(&self, pressure: PressureState) {
        self.pressure.send_if_modified(|known| {
            let is_news = *known != pressure || pressure.most_urgent().is_some();
            *known = pressure;
            is_news
        });
    }
}
