//! AgentService: the agent's status, its workloads, and the machine's shutdown.

use std::sync::Arc;

use jiff::Timestamp;
use muster_grpc::agent_service_server::AgentService;
use muster_proto::identity::Caller;
use muster_proto::pb;
use muster_rpc::clock::SharedClock;
use muster_rpc::identity::{caller, denied};
use tonic::{Extensions, Request, Response, Status};

use crate::identity::Identity;
use crate::shared_state::SharedState;
use crate::shutdown::{MachineShutdown, ShutdownError};

/// The names of the services, for health.
pub const NAMES: [&str; 1] = ["muster.v1.AgentService"];

/// Answers from the shared state, and begins or cancels the machine's shutdown.
pub struct Service {
    pub shared: Arc<SharedState>,
    pub identity: Identity,
    pub limitations: Vec<String>,
    pub machine_shutdown: MachineShutdown,
    pub clock: SharedClock,
}

impl Service {
    /// Whether the caller may begin or cancel a shutdown: all pods of the machine depend on it.
    fn ensure_may_steer(&self, extensions: &Extensions) -> Result<(), Status> {
        let own = &self.identity.name;
        match caller(extensions) {
            Caller::Admin => Ok(()),
            Caller::Node(name) if name == own.as_str() => Ok(()),
            other => Err(denied(format!(
                "{other} may not begin or cancel the shutdown of node {own}: only an administrator or the node \
                 itself may"
            ))),
        }
    }

    /// Whether the caller may read the agent's state: it shows which pods run on the machine, of every namespace.
    fn ensure_may_read(&self, extensions: &Extensions) -> Result<(), Status> {
        let own = &self.identity.name;
        match caller(extensions) {
            Caller::Admin | Caller::Viewer => Ok(()),
            Caller::Node(name) if name == own.as_str() => Ok(()),
            other => Err(denied(format!(
                "{other} may not read the state of the agent of node {own}: only an administrator, a viewer or the \
                 node itself may"
            ))),
        }
    }
}

impl From<ShutdownError> for Status {
    fn from(error: ShutdownError) -> Status {
        Status::failed_precondition(error.to_string())
    }
}

#[tonic::async_trait]
impl AgentService for Service {
    async fn get_agent(
        &self,
        request: Request<pb::GetAgentRequest>,
    ) -> Result<Response<pb::GetAgentResponse>, Status> {
        self.ensure_may_read(request.extensions())?;
        let agent = self.shared.status().clone();
        let (computed, computed_at) = agent.computed.unzip();
        let (status, status_at, status_version) = match agent.status {
            Some((status, at, version)) => (Some(status), Some(at), version),
            None => (None, None, 0),
        };
        let (renewal_at, renewal_version) = agent.renewal.unzip();
        Ok(Response::new(pb::GetAgentResponse {
            node_name: self.identity.name.to_string(),
            node_uid: agent.node_uid.map(|uid| uid.to_string()).unwrap_or_default(),
            incarnation: self.identity.incarnation.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            registered: agent.registered,
            computed_status: computed.map(Into::into),
            computed_at: computed_at.map(timestamp),
            acknowledged_status: status.map(Into::into),
            acknowledged_status_at: status_at.map(timestamp),
            acknowledged_status_version: status_version,
            acknowledged_renewal_at: renewal_at,
            acknowledged_renewal_version: renewal_version.unwrap_or_default(),
            store: agent.store,
            limitations: self.limitations.clone(),
            shutting_down_since: self.machine_shutdown.state().borrow().since.map(timestamp),
        }))
    }

    async fn list_workloads(
        &self,
        request: Request<pb::ListWorkloadsRequest>,
    ) -> Result<Response<pb::ListWorkloadsResponse>, Status> {
        self.ensure_may_read(request.extensions())?;
        let workloads = self.shared.status().workloads.clone();
        Ok(Response::new(pb::ListWorkloadsResponse { workloads }))
    }

    async fn begin_shutdown(
        &self,
        request: Request<pb::BeginShutdownRequest>,
    ) -> Result<Response<pb::BeginShutdownResponse>, Status> {
        self.ensure_may_steer(request.extensions())?;
        let (since, longest) = self.machine_shutdown.begin(self.clock.wall())?;
        tracing::info!(%since, "the machine is about to shut down");
        let (began_at, longest) = (Some(timestamp(since)), longest.try_into().ok());
        Ok(Response::new(pb::BeginShutdownResponse { began_at, longest }))
    }

    async fn cancel_shutdown(
        &self,
        request: Request<pb::CancelShutdownRequest>,
    ) -> Result<Response<pb::CancelShutdownResponse>, Status> {
        self.ensure_may_steer(request.extensions())?;
        let began_at = self.machine_shutdown.cancel()?;
        if began_at.is_some() {
            tracing::info!("the shutdown was cancelled; pods that are stopping still stop");
        }
        Ok(Response::new(pb::CancelShutdownResponse { began_at: began_at.map(timestamp) }))
    }
}

fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}
