//! FleetService: each handler decodes, reads the reconciler or calls [`Operations`], and encodes.

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use muster_grpc::fleet_service_server::FleetService;
use muster_proto::ERROR_DOMAIN;
use muster_proto::drain::DrainOptions;
use muster_proto::event::DEFAULT_NAMESPACE;
use muster_proto::identity::Caller;
use muster_proto::key::Key;
use muster_proto::name::{Name, NameError};
use muster_proto::pb;
use muster_rpc::audit;
use muster_rpc::identity::requester;
use muster_rpc::shutdown::Shutdown;
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::event_loop::Shared;
use crate::leader_election::Leadership;
use muster_controller_core::explain;

mod operations;

pub use operations::Operations;

/// The names of the services, for gRPC health.
pub const NAMES: [&str; 1] = ["muster.v1.FleetService"];

/// The shortest time between two responses of WatchFleet if the caller names none.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest interval that a caller gets: a shorter one costs more than it shows.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time without a response after the interval, also if nothing was decided: countdowns run on.
const MAX_INTERVAL: Duration = Duration::from_secs(5);

pub struct Service {
    pub shared: Shared,
    pub operations: Operations,
    pub identity: String,
    pub leadership: watch::Receiver<Leadership>,
    /// What the controller was started with.
    pub settings: pb::ControllerSettings,
    pub shutdown: Shutdown,
}

type FleetStream = Pin<Box<dyn Stream<Item = Result<pb::WatchFleetResponse, Status>> + Send>>;
type DrainStream = Pin<Box<dyn Stream<Item = Result<pb::DrainNodeResponse, Status>> + Send>>;

impl Service {
    fn fleet(&self) -> pb::Fleet {
        fleet(&self.shared, &self.identity, &self.leadership)
    }
}

fn fleet(shared: &Shared, identity: &str, leadership: &watch::Receiver<Leadership>) -> pb::Fleet {
    let now = shared.now();
    let mut fleet = explain::fleet::fleet(&shared.reconciler(), now);
    identity.clone_into(&mut fleet.controller);
    fleet.leader.clone_from(&leadership.borrow().holder);
    if fleet.state() == pb::FleetState::Standby {
        fleet.reason = explain::fleet::standby(&fleet.controller, &fleet.leader);
    }
    fleet
}

#[tonic::async_trait]
impl FleetService for Service {
    async fn get_fleet(
        &self,
        request: Request<pb::GetFleetRequest>,
    ) -> Result<Response<pb::GetFleetResponse>, Status> {
        may_read(&request, "read the fleet")?;
        let settings = Some(self.settings);
        Ok(Response::new(pb::GetFleetResponse { fleet: Some(self.fleet()), settings }))
    }

    type WatchFleetStream = FleetStream;

    async fn watch_fleet(
        &self,
        request: Request<pb::WatchFleetRequest>,
    ) -> Result<Response<FleetStream>, Status> {
        may_read(&request, "watch the fleet")?;
        let interval = request.into_inner().min_interval;
        let interval = match interval.map(Duration::try_from) {
            None => DEFAULT_INTERVAL,
            Some(Ok(interval)) => interval.max(SHORTEST_INTERVAL),
            Some(Err(_)) => return Err(invalid("minInterval", "must not be negative")),
        };
        let (shared, identity, leader) =
            (self.shared.clone(), self.identity.clone(), self.leadership.clone());
        let (decided, shutdown) = (self.shared.decided(), self.shutdown.clone());
        let responses = stream::unfold((None, decided), move |(last, mut decided)| {
            let (shared, identity, leader) = (shared.clone(), identity.clone(), leader.clone());
            let stop = shutdown.requested();
            async move {
                let next = async {
                    if last.is_some() {
                        tokio::time::sleep(interval).await;
                        let _ = tokio::time::timeout(MAX_INTERVAL, decided.changed()).await;
                    }
                    decided.borrow_and_update();
                    fleet(&shared, &identity, &leader)
                };
                let fleet = tokio::select! {
                    () = stop => return None,
                    fleet = next => fleet,
                };
                Some((Ok(pb::WatchFleetResponse { fleet: Some(fleet) }), (Some(()), decided)))
            }
        });
        Ok(Response::new(Box::pin(responses)))
    }

    async fn explain_node(
        &self,
        request: Request<pb::ExplainNodeRequest>,
    ) -> Result<Response<pb::ExplainNodeResponse>, Status> {
        let name = node_name(&request.get_ref().name)?;
        match muster_rpc::identity::caller(request.extensions()) {
            Caller::Node(own) if own == name.as_str() => {}
            _ => may_read(&request, "explain a node")?,
        }
        let now = self.shared.now();
        let explanation = explain::node::explain(&self.shared.reconciler(), &name, now);
        explanation.map(Response::new).ok_or_else(|| not_found(&name))
    }

    async fn explain_pod(
        &self,
        request: Request<pb::ExplainPodRequest>,
    ) -> Result<Response<pb::ExplainPodResponse>, Status> {
        may_read(&request, "explain a pod")?;
        let key = pod_key(&request.get_ref().namespace, &request.get_ref().name)?;
        let now = self.shared.now();
        let explanation = explain::pod::explain(&self.shared.reconciler(), &key, now);
        explanation.map(Response::new).ok_or_else(|| missing("Pod", &key.to_string()))
    }

    async fn cordon_node(
        &self,
        request: Request<pb::CordonNodeRequest>,
    ) -> Result<Response<pb::CordonNodeResponse>, Status> {
        let caller = may_write(&request, &request.get_ref().name, "cordon a node")?;
        let pb::CordonNodeRequest { name, reason, duration } = request.into_inner();
        let (name, reason) = (node_name(&name)?, required_reason(reason)?);
        let duration = match duration.map(Duration::try_from) {
            None => None,
            Some(Ok(duration)) if !duration.is_zero() => Some(duration),
            Some(_) => {
                return Err(invalid(
                    "duration",
                    "must be more than 0; leave it out for a cordon without end",
                ));
            }
        };
        let node = self.operations.cordon(&name, &caller, &reason, duration).await?;
        Ok(Response::new(pb::CordonNodeResponse { node: Some(node.into()) }))
    }

    async fn uncordon_node(
        &self,
        request: Request<pb::UncordonNodeRequest>,
    ) -> Result<Response<pb::UncordonNodeResponse>, Status> {
        let caller = may_write(&request, &request.get_ref().name, "uncordon a node")?;
        let pb::UncordonNodeRequest { name, reason, all } = request.into_inner();
        let (name, reason) = (node_name(&name)?, required_reason(reason)?);
        let node = self.operations.uncordon(&name, &caller, &reason, all).await?;
        Ok(Response::new(pb::UncordonNodeResponse { node: Some(node.into()) }))
    }

    type DrainNodeStream = DrainStream;

    async fn drain_node(
        &self,
        request: Request<pb::DrainNodeRequest>,
    ) -> Result<Response<DrainStream>, Status> {
        let caller = may_write(&request, &request.get_ref().name, "drain a node")?;
        let pb::DrainNodeRequest { name, reason, options, timeout, plan_only } = request.into_inner();
        let name = node_name(&name)?;
        let options = DrainOptions::try_from(options.unwrap_or_default())
            .map_err(|wrong| invalid("options", &wrong.to_string()))?;
        let timeout = timeout.map(Duration::try_from).transpose();
        let timeout = timeout.map_err(|_| invalid("timeout", "must not be negative"))?;
        if plan_only {
            let plan = self.operations.preview(&name, &options).await?;
            return Ok(Response::new(Box::pin(stream::iter([Ok(plan)]))));
        }
        self.operations.check_leads(&self.leadership.borrow().holder)?;
        let reason = required_reason(reason)?;
        self.operations.request_drain(&name, caller, reason, options, timeout).await?;
        let progress = self.operations.follow_drain(name, self.shutdown.clone());
        Ok(Response::new(Box::pin(progress)))
    }
}

/// The requester's name, if it may change this node.
fn may_write<T>(request: &Request<T>, node: &str, what: &str) -> Result<String, Status> {
    audit::note_record("", node);
    match muster_rpc::identity::caller(request.extensions()) {
        Caller::Admin => Ok(requester(request.extensions())),
        caller => Err(denied(&caller, what)),
    }
}

fn required_reason(reason: String) -> Result<String, Status> {
    if reason.trim().is_empty() {
        return Err(invalid(
            "reason",
            "is required: it is stored with the change, so that others can see why",
        ));
    }
    Ok(reason)
}

fn may_read<T>(request: &Request<T>, what: &str) -> Result<(), Status> {
    match muster_rpc::identity::caller(request.extensions()) {
        Caller::Admin | Caller::Viewer | Caller::Controller | Caller::Scheduler => Ok(()),
        caller => Err(denied(&caller, what)),
    }
}

fn node_name(text: &str) -> Result<Name, Status> {
    let name: Name = text.parse().map_err(|error: NameError| invalid("name", &error.to_string()))?;
    audit::note_record("", name.as_str());
    Ok(name)
}

fn pod_key(namespace: &str, name: &str) -> Result<Key, Status> {
    let wrong = |field, error: NameError| invalid(field, &error.to_string());
    let namespace = if namespace.is_empty() { DEFAULT_NAMESPACE } else { namespace };
    let namespace = namespace.parse().map_err(|error| wrong("namespace", error))?;
    Ok(Key { namespace: Some(namespace), name: name.parse().map_err(|error| wrong("name", error))? })
}

fn invalid(field: &str, reason: &str) -> Status {
    let mut details =
        ErrorDetails::with_error_info("INVALID", ERROR_DOMAIN, std::collections::HashMap::new());
    details.add_bad_request_violation(field, reason);
    Status::with_error_details(Code::InvalidArgument, format!("{field}: {reason}"), details)
}

fn denied(caller: &Caller, what: &str) -> Status {
    muster_rpc::identity::denied(format!(
        "{caller} may not {what}: no rule allows this for the caller's role"
    ))
}

fn not_found(name: &Name) -> Status {
    missing("Node", name.as_str())
}

fn missing(kind: &str, name: &str) -> Status {
    let mut details =
        ErrorDetails::with_error_info("NOT_FOUND", ERROR_DOMAIN, std::collections::HashMap::new());
    details.set_resource_info(kind, name, "", "the controller knows no such record");
    Status::with_error_details(Code::NotFound, format!("{kind} {name} does not exist"), details)
}
