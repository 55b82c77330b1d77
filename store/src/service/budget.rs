//! DisruptionBudgetService.

use muster_grpc::disruption_budget_service_server::DisruptionBudgetService;
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::budget::DisruptionBudget;
use muster_proto::name::Uid;
use muster_proto::pb;
use muster_proto::record::Kind;
use tonic::{Request, Response, Status};

use muster_store_core::authz::Content;

use super::{AuthzRecord, Services, WatchStream, caller, preconditions, record_id, write_context};

impl AuthzRecord for DisruptionBudget {
    fn authz_content<'a>(_: Option<&'a Self>, _: Option<&'a Self>, _: Option<&'a Uid>) -> Content<'a> {
        Content::None
    }
}

#[tonic::async_trait]
impl DisruptionBudgetService for Services {
    type WatchDisruptionBudgetsStream = WatchStream<pb::DisruptionBudgetWatchEvent>;

    async fn create_disruption_budget(
        &self,
        request: Request<pb::CreateDisruptionBudgetRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        self.create::<DisruptionBudget>(write_context(&request)?, request.into_inner().disruption_budget)
            .await
    }

    async fn get_disruption_budget(
        &self,
        request: Request<pb::GetDisruptionBudgetRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let caller = caller(&request);
        let pb::GetDisruptionBudgetRequest { namespace, name } = request.into_inner();
        self.get::<DisruptionBudget>(&caller, &record_id(Kind::DisruptionBudget, &namespace, &name)?).await
    }

    async fn list_disruption_budgets(
        &self,
        request: Request<pb::ListDisruptionBudgetsRequest>,
    ) -> Result<Response<RecordList>, Status> {
        let caller = caller(&request);
        self.list(Kind::DisruptionBudget, &caller, request.into_inner().into()).await
    }

    async fn update_disruption_budget(
        &self,
        request: Request<pb::UpdateDisruptionBudgetRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        self.update::<DisruptionBudget>(write_context(&request)?, request.into_inner().disruption_budget)
            .await
    }

    async fn delete_disruption_budget(
        &self,
        request: Request<pb::DeleteDisruptionBudgetRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let context = write_context(&request)?;
        let pb::DeleteDisruptionBudgetRequest { namespace, name, preconditions: wanted } =
            request.into_inner();
        let key = record_id(Kind::DisruptionBudget, &namespace, &name)?;
        self.delete::<DisruptionBudget>(context, key, preconditions(wanted)?).await
    }

    async fn watch_disruption_budgets(
        &self,
        request: Request<pb::WatchDisruptionBudgetsRequest>,
    ) -> Result<Response<Self::WatchDisruptionBudgetsStream>, Status> {
        let caller = caller(&request);
        let stream = self.watch(Kind::DisruptionBudget, &caller, request.into_inner().into()).await?;
        Ok(Response::new(stream))
    }
}
