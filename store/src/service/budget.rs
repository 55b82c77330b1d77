//! DisruptionBudgetService.

use muster_grpc::disruption_budget_service_server::DisruptionBudgetService;
use muster_proto::budget::DisruptionBudget;
use muster_proto::name::Uid;
use muster_proto::pb;
use muster_proto::record::Kind;
use tonic::{Request, Response, Status};

use muster_store_core::authz::Content;

use super::{
    AuthzRecord, Services, WatchStream, caller, decode_page, preconditions, record_id, write_context,
};

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
    ) -> Result<Response<pb::CreateDisruptionBudgetResponse>, Status> {
        let created = self
            .create::<DisruptionBudget>(write_context(&request)?, request.into_inner().disruption_budget)
            .await?;
        Ok(Response::new(pb::CreateDisruptionBudgetResponse { disruption_budget: Some(created) }))
    }

    async fn get_disruption_budget(
        &self,
        request: Request<pb::GetDisruptionBudgetRequest>,
    ) -> Result<Response<pb::GetDisruptionBudgetResponse>, Status> {
        let caller = caller(&request);
        let pb::GetDisruptionBudgetRequest { namespace, name } = request.into_inner();
        let found =
            self.get::<DisruptionBudget>(&caller, &record_id(Kind::DisruptionBudget, &namespace, &name)?)?;
        Ok(Response::new(pb::GetDisruptionBudgetResponse { disruption_budget: Some(found) }))
    }

    async fn list_disruption_budgets(
        &self,
        request: Request<pb::ListDisruptionBudgetsRequest>,
    ) -> Result<Response<pb::ListDisruptionBudgetsResponse>, Status> {
        let caller = caller(&request);
        let page = self.list(Kind::DisruptionBudget, &caller, request.into_inner().into()).await?;
        Ok(Response::new(pb::ListDisruptionBudgetsResponse {
            disruption_budgets: decode_page(Kind::DisruptionBudget, page.records)?,
            resource_version: page.revision,
            next_page_token: page.next.map(|token| token.to_string()).unwrap_or_default(),
        }))
    }

    async fn update_disruption_budget(
        &self,
        request: Request<pb::UpdateDisruptionBudgetRequest>,
    ) -> Result<Response<pb::UpdateDisruptionBudgetResponse>, Status> {
        let updated = self
            .update::<DisruptionBudget>(write_context(&request)?, request.into_inner().disruption_budget)
            .await?;
        Ok(Response::new(pb::UpdateDisruptionBudgetResponse { disruption_budget: Some(updated) }))
    }

    async fn delete_disruption_budget(
        &self,
        request: Request<pb::DeleteDisruptionBudgetRequest>,
    ) -> Result<Response<pb::DeleteDisruptionBudgetResponse>, Status> {
        let context = write_context(&request)?;
        let pb::DeleteDisruptionBudgetRequest { namespace, name, preconditions: wanted } =
            request.into_inner();
        let key = record_id(Kind::DisruptionBudget, &namespace, &name)?;
        let deleted = self.delete::<DisruptionBudget>(context, key, preconditions(wanted)?).await?;
        Ok(Response::new(pb::DeleteDisruptionBudgetResponse { disruption_budget: Some(deleted) }))
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
