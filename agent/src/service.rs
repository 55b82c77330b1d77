//! AgentService: what the agent believes and what runs here. Read only.

use std::sync::Arc;

use jiff::Timestamp;
use muster_proto::pb;
use muster_proto::pb::agent_service_server::AgentService;
use tonic::{Request, Response, Status};

use crate::board::Board;
use crate::identity::Identity;

/// The names of the services, for health.
pub const NAMES: [&str; 1] = ["muster.v1.AgentService"];

/// Answers from the board.
pub struct Service {
    pub board: Arc<Board>,
    pub identity: Identity,
    pub limitations: Vec<String>,
}

#[tonic::async_trait]
impl AgentService for Service {
    async fn get_agent(
        &self,
        _: Request<pb::GetAgentRequest>,
    ) -> Result<Response<pb::GetAgentResponse>, Status> {
        let beliefs = self.board.beliefs().clone();
        let node_uid = self.board.node().borrow().as_ref().and_then(|node| node.meta.uid);
        let (computed, computed_at) = beliefs.computed.unzip();
        let (status, status_at, status_version) = match beliefs.status {
            Some((status, at, version)) => (Some(status), Some(at), version),
            None => (None, None, 0),
        };
        let (renewal_at, renewal_version) = beliefs.renewal.unzip();
        Ok(Response::new(pb::GetAgentResponse {
            node_name: self.identity.name.to_string(),
            node_uid: node_uid.map(|uid| uid.to_string()).unwrap_or_default(),
            incarnation: self.identity.incarnation.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            registered: beliefs.registered,
            computed_status: computed.map(Into::into),
            computed_at: computed_at.map(timestamp),
            acknowledged_status: status.map(Into::into),
            acknowledged_status_at: status_at.map(timestamp),
            acknowledged_status_version: status_version,
            acknowledged_renewal_at: renewal_at,
            acknowledged_renewal_version: renewal_version.unwrap_or_default(),
            store: beliefs.store,
            limitations: self.limitations.clone(),
        }))
    }

    async fn list_workloads(
        &self,
        _: Request<pb::ListWorkloadsRequest>,
    ) -> Result<Response<pb::ListWorkloadsResponse>, Status> {
        let workloads = self.board.beliefs().workloads.clone();
        Ok(Response::new(pb::ListWorkloadsResponse { workloads }))
    }
}

fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}
