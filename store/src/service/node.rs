//! NodeService.

use muster_grpc::node_service_server::NodeService;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::record::Kind;
use tonic::{Request, Response, Status};

use muster_store_core::authz::Content;

use super::{
    AuthzRecord, Services, WatchStream, caller, decode_page, preconditions, record_id, write_context,
};

impl AuthzRecord for Node {
    fn authz_content<'a>(old: Option<&'a Self>, new: Option<&'a Self>, _: Option<&'a Uid>) -> Content<'a> {
        Content::Node { old, new }
    }
}

#[tonic::async_trait]
impl NodeService for Services {
    type WatchNodesStream = WatchStream<pb::NodeWatchEvent>;

    async fn create_node(
        &self,
        request: Request<pb::CreateNodeRequest>,
    ) -> Result<Response<pb::CreateNodeResponse>, Status> {
        let created = self.create::<Node>(write_context(&request)?, request.into_inner().node).await?;
        Ok(Response::new(pb::CreateNodeResponse { node: Some(created) }))
    }

    async fn get_node(
        &self,
        request: Request<pb::GetNodeRequest>,
    ) -> Result<Response<pb::GetNodeResponse>, Status> {
        let caller = caller(&request);
        let pb::GetNodeRequest { name } = request.into_inner();
        let found = self.get::<Node>(&caller, &record_id(Kind::Node, "", &name)?)?;
        Ok(Response::new(pb::GetNodeResponse { node: Some(found) }))
    }

    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<pb::ListNodesResponse>, Status> {
        let caller = caller(&request);
        let page = self.list(Kind::Node, &caller, request.into_inner().into()).await?;
        Ok(Response::new(pb::ListNodesResponse {
            nodes: decode_page(Kind::Node, page.records)?,
            resource_version: page.revision,
            next_page_token: page.next.map(|token| token.to_string()).unwrap_or_default(),
        }))
    }

    async fn update_node(
        &self,
        request: Request<pb::UpdateNodeRequest>,
    ) -> Result<Response<pb::UpdateNodeResponse>, Status> {
        let updated = self.update::<Node>(write_context(&request)?, request.into_inner().node).await?;
        Ok(Response::new(pb::UpdateNodeResponse { node: Some(updated) }))
    }

    async fn update_node_status(
        &self,
        request: Request<pb::UpdateNodeStatusRequest>,
    ) -> Result<Response<pb::UpdateNodeStatusResponse>, Status> {
        let updated = self.update_status::<Node>(write_context(&request)?, request.into_inner().node).await?;
        Ok(Response::new(pb::UpdateNodeStatusResponse { node: Some(updated) }))
    }

    async fn delete_node(
        &self,
        request: Request<pb::DeleteNodeRequest>,
    ) -> Result<Response<pb::DeleteNodeResponse>, Status> {
        let context = write_context(&request)?;
        let pb::DeleteNodeRequest { name, preconditions: wanted } = request.into_inner();
        let key = record_id(Kind::Node, "", &name)?;
        let deleted = self.delete::<Node>(context, key, preconditions(wanted)?).await?;
        Ok(Response::new(pb::DeleteNodeResponse { node: Some(deleted) }))
    }

    async fn watch_nodes(
        &self,
        request: Request<pb::WatchNodesRequest>,
    ) -> Result<Response<Self::WatchNodesStream>, Status> {
        let caller = caller(&request);
        let stream = self.watch(Kind::Node, &caller, request.into_inner().into()).await?;
        Ok(Response::new(stream))
    }
}
