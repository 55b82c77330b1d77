//! The shared: what the agent's loops tell each other, and what `AgentService` reads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use muster_agent_core::pressure::PressureState;
use muster_proto::name::Uid;
use muster_proto::node::{Node, NodeStatus};
use muster_proto::pb;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// What the store has acknowledged, and what was last found out.
#[derive(Clone, Debug, Default)]
pub struct AgentStatus {
    pub registered: bool,
    /// The node's record, whether or not it is ours to act for.
    pub node_uid: Option<Uid>,
    /// The store spoken to, or why there is none.
    pub store: String,
    pub computed: Option<(NodeStatus, Timestamp)>,
    /// With the version the node got.
    pub status: Option<(NodeStatus, Timestamp, u64)>,
    /// By the store's clock, with the lease's version.
    pub renewal: Option<(prost_types::Timestamp, u64)>,
    pub workloads: Vec<pb::Workload>,
}

/// Shared by the agent's loops.
pub struct SharedState {
    pub metrics: Metrics,
    status: Mutex<AgentStatus>,
    node: watch::Sender<Option<Arc<Node>>>,
    pressure: watch::Sender<PressureState>,
}

impl Default for SharedState {
    fn default() -> Self {
        Self {
            metrics: Metrics::default(),
            status: Mutex::default(),
            node: watch::Sender::new(None),
            pressure: watch::Sender::new(PressureState::default()),
        }
    }
}

impl SharedState {
    pub fn status(&self) -> MutexGuard<'_, AgentStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node as the store last told of it; `None` while there is none, or another agent has it.
    pub fn node(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.node.subscribe()
    }

    pub fn see_node(&self, node: Option<Node>) {
        self.node.send_replace(node.map(Arc::new));
    }

    /// How short the machine is of what.
    pub fn pressure(&self) -> watch::Receiver<PressureState> {
        self.pressure.subscribe()
    }

    /// While a threshold is met every look counts, even one that finds the same: it is another round's.
    pub fn set_pressure(&self, pressure: PressureState) {
        self.pressure.send_if_modified(|known| {
            let is_news = *known != pressure || pressure.most_urgent().is_some();
            *known = pressure;
            is_news
        });
    }
}
