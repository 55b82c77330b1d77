//! StoreService: the state of the store itself.

use muster_grpc::store_service_server::StoreService;
use muster_proto::identity::Caller;
use muster_proto::pb;
use muster_rpc::identity::denied;
use tonic::{Request, Response, Status};

use super::{Services, caller, timestamp};

#[tonic::async_trait]
impl StoreService for Services {
    async fn get_store_status(
        &self,
        request: Request<pb::GetStoreStatusRequest>,
    ) -> Result<Response<pb::GetStoreStatusResponse>, Status> {
        may_read_status(&caller(&request))?;
        let store = &self.store;
        let ledger = store.shared_ledger();
        let engine = ledger.engine();
        // A disk that hangs must not hold a thread that serves calls.
        let space = tokio::task::spawn_blocking(move || ledger.space()).await.ok().flatten();
        let (space, unreadable) = match space {
            Some(Ok(space)) => (Some(space), None),
            Some(Err(error)) => (None, Some(format!("the data directory cannot be read: {error}"))),
            None => (None, None),
        };
        let problem = store.commit_health().check(store.clock().mono()).err().or(unreadable);
        let defaults = &store.policy().defaults;
        Ok(Response::new(pb::GetStoreStatusResponse {
            engine: engine.to_owned(),
            revision: store.log().head(),
            leading_since: Some(timestamp(self.leading_since.as_microsecond())),
            write_problem: problem.unwrap_or_default(),
            disk: space.map(|space| pb::StoreDisk {
                total_bytes: space.total,
                available_bytes: space.available,
                reserve_bytes: space.reserve,
            }),
            default_not_ready_toleration_seconds: defaults.not_ready_toleration_seconds,
            default_unreachable_toleration_seconds: defaults.unreachable_toleration_seconds,
        }))
    }
}

fn may_read_status(caller: &Caller) -> Result<(), Status> {
    match caller {
        Caller::Admin | Caller::Viewer | Caller::Controller => Ok(()),
        caller => Err(denied(format!(
            "{caller} may not read the store's status: it is for administrators, viewers and controllers"
        ))),
    }
}
