//! NodeService.

use muster_grpc::node_service_server::NodeService;
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::record::Kind;
use tonic::{Request, Response, Status};

use muster_store_core::authz::Content;

use super::{AuthzRecord, Services, WatchStream, caller, preconditions, record_id, write_context};

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
    ) -> Result<Response<EncodedRecord>, Status> {
        self.create::<Node>(write_context(&request)?, request.into_inner().node).await
    }

    async fn get_node(
        &self,
        request: Request<pb::GetNodeRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let caller = caller(&request);
        let pb::GetNodeRequest { name } = request.into_inner();
        self.get::<Node>(&caller, &record_id(Kind::Node, "", &name)?).await
    }

    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<RecordList>, Status> {
        let caller = caller(&request);
        self.list(Kind::Node, &caller, request.into_inner().into()).await
    }

    async fn update_node(
        &self,
        request: Request<pb::UpdateNodeRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        self.update::<Node>(write_context(&request)?, request.into_inner().node).await
    }

    async fn update_node_status(
        &self,
        request: Request<pb::UpdateNodeStatusRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        self.update_status::<Node>(write_context(&request)?, request.into_inner().node).await
    }

    async fn delete_node(
        &self,
        request: Request<pb::DeleteNodeRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let context = write_context(&request)?;
        let pb::DeleteNodeRequest { name, preconditions: wanted } = request.into_inner();
        let key = record_id(Kind::Node, "", &name)?;
        self.delete::<Node>(context, key, preconditions(wanted)?).await
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
