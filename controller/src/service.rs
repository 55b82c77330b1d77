//! FleetService: each handler decodes, asks the core or writes intent to the store, and encodes.

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use muster_proto::name::Name;
use muster_proto::pb;
use muster_proto::pb::fleet_service_server::FleetService;
use muster_rpc::ERROR_DOMAIN;
use muster_rpc::identity::Caller;
use muster_rpc::shutdown::Shutdown;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::account;
use crate::drive::Shared;

/// The names of the services, for health.
pub const NAMES: [&str; 1] = ["muster.v1.FleetService"];

/// How often a follower of the fleet is told if it does not say.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// A follower is told this often even if nothing was decided: countdowns go on.
const MAX_INTERVAL: Duration = Duration::from_secs(5);

pub struct Service {
    pub shared: Shared,
    pub identity: String,
    pub leader: tokio::sync::watch::Receiver<String>,
    pub shutdown: Shutdown,
}

type FleetStream = Pin<Box<dyn Stream<Item = Result<pb::WatchFleetResponse, Status>> + Send>>;
type DrainStream = Pin<Box<dyn Stream<Item = Result<pb::DrainNodeResponse, Status>> + Send>>;

impl Service {
    fn fleet(&self) -> pb::Fleet {
        fleet(&self.shared, &self.identity, &self.leader)
    }
}

fn fleet(shared: &Shared, identity: &str, leader: &tokio::sync::watch::Receiver<String>) -> pb::Fleet {
    let now = shared.now();
    let fleet = account::fleet(&shared.core(), now);
    pb::Fleet { controller: identity.to_owned(), leader: leader.borrow().clone(), ..fleet }
}

#[tonic::async_trait]
impl FleetService for Service {
    async fn get_fleet(
        &self,
        request: Request<pb::GetFleetRequest>,
    ) -> Result<Response<pb::GetFleetResponse>, Status> {
        may_read(&request, "read the fleet")?;
        Ok(Response::new(pb::GetFleetResponse { fleet: Some(self.fleet()) }))
    }

    type WatchFleetStream = FleetStream;

    async fn watch_fleet(
        &self,
        request: Request<pb::WatchFleetRequest>,
    ) -> Result<Response<FleetStream>, Status> {
        may_read(&request, "watch the fleet")?;
        let interval = request.into_inner().min_interval;
        let interval = match interval.map(Duration::try_from) {
            None => MIN_INTERVAL,
            Some(Ok(interval)) => interval,
            Some(Err(_)) => return Err(invalid("minInterval", "must not be negative")),
        };
        let (shared, identity, leader) = (self.shared.clone(), self.identity.clone(), self.leader.clone());
        let (decided, shutdown) = (self.shared.decided(), self.shutdown.clone());
        let told = stream::unfold((None, decided), move |(last, mut decided)| {
            let (shared, identity, leader) = (shared.clone(), identity.clone(), leader.clone());
            let stop = shutdown.requested();
            async move {
                let next = async {
                    if last.is_some() {
                        tokio::time::sleep(interval).await;
                        // Nothing decided is no reason to say nothing for long: countdowns go on.
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
        Ok(Response::new(Box::pin(told)))
    }

    async fn explain_node(
        &self,
        request: Request<pb::ExplainNodeRequest>,
    ) -> Result<Response<pb::ExplainNodeResponse>, Status> {
        let name = node_name(&request.get_ref().name)?;
        match Caller::of(request.extensions()) {
            Caller::Node(own) if own == name.as_str() => {}
            _ => may_read(&request, "explain a node")?,
        }
        let now = self.shared.now();
        let account = account::node::explain(&self.shared.core(), &name, now);
        account.map(Response::new).ok_or_else(|| not_found(&name))
    }

    async fn cordon_node(
        &self,
        _request: Request<pb::CordonNodeRequest>,
    ) -> Result<Response<pb::CordonNodeResponse>, Status> {
        Err(Status::unimplemented("comes with drains"))
    }

    async fn uncordon_node(
        &self,
        _request: Request<pb::UncordonNodeRequest>,
    ) -> Result<Response<pb::UncordonNodeResponse>, Status> {
        Err(Status::unimplemented("comes with drains"))
    }

    type DrainNodeStream = DrainStream;

    async fn drain_node(
        &self,
        _request: Request<pb::DrainNodeRequest>,
    ) -> Result<Response<DrainStream>, Status> {
        Err(Status::unimplemented("comes with drains"))
    }
}

fn may_read<T>(request: &Request<T>, what: &str) -> Result<(), Status> {
    match Caller::of(request.extensions()) {
        Caller::Admin | Caller::Viewer | Caller::Controller | Caller::Scheduler => Ok(()),
        caller => Err(denied(&caller, what)),
    }
}

fn node_name(text: &str) -> Result<Name, Status> {
    text.parse().map_err(|error: muster_proto::name::NameError| invalid("name", &error.to_string()))
}

fn invalid(field: &str, reason: &str) -> Status {
    let mut details =
        ErrorDetails::with_error_info("INVALID", ERROR_DOMAIN, std::collections::HashMap::new());
    details.add_bad_request_violation(field, reason);
    Status::with_error_details(Code::InvalidArgument, format!("{field}: {reason}"), details)
}

fn denied(caller: &Caller, what: &str) -> Status {
    let details = ErrorDetails::with_error_info("DENIED", ERROR_DOMAIN, std::collections::HashMap::new());
    Status::with_error_details(Code::PermissionDenied, format!("{caller} may not {what}"), details)
}

fn not_found(name: &Name) -> Status {
    let mut details =
        ErrorDetails::with_error_info("NOT_FOUND", ERROR_DOMAIN, std::collections::HashMap::new());
    details.set_resource_info("Node", name.as_str(), "", "the controller knows no node of that name");
    Status::with_error_details(Code::NotFound, format!("Node {name} does not exist"), details)
}
