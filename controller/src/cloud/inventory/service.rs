//! CloudProviderService, answered from an inventory.

use muster_grpc::cloud_provider_service_server::CloudProviderService;
use muster_proto::pb;
use tonic::{Request, Response, Status};

use super::Machine;
use super::file::{FileError, InventoryFile};

/// The names of the services, for health.
pub(super) const NAMES: [&str; 1] = ["muster.v1.CloudProviderService"];

pub(super) struct Service {
    pub(super) file: InventoryFile,
}

impl Service {
    /// The machine, if it is in the inventory.
    async fn find(&self, node_name: &str, provider_id: &str) -> Result<Option<Machine>, Status> {
        let inventory = self.file.read().await.map_err(|error| unavailable(&error))?;
        Ok(inventory.find(node_name, provider_id).cloned())
    }
}

#[tonic::async_trait]
impl CloudProviderService for Service {
    async fn exists(
        &self,
        request: Request<pb::ExistsRequest>,
    ) -> Result<Response<pb::ExistsResponse>, Status> {
        let pb::ExistsRequest { node_name, provider_id } = request.into_inner();
        let exists = self.find(&node_name, &provider_id).await?.is_some();
        Ok(Response::new(pb::ExistsResponse { exists }))
    }

    async fn shutdown(
        &self,
        request: Request<pb::ShutdownRequest>,
    ) -> Result<Response<pb::ShutdownResponse>, Status> {
        let pb::ShutdownRequest { node_name, provider_id } = request.into_inner();
        let machine = self.find(&node_name, &provider_id).await?.ok_or_else(|| unlisted(&node_name))?;
        Ok(Response::new(pb::ShutdownResponse { shut_down: machine.is_off }))
    }

    async fn metadata(
        &self,
        request: Request<pb::MetadataRequest>,
    ) -> Result<Response<pb::MetadataResponse>, Status> {
        let pb::MetadataRequest { node_name, provider_id } = request.into_inner();
        let machine = self.find(&node_name, &provider_id).await?.ok_or_else(|| unlisted(&node_name))?;
        let Machine { name: _, provider_id, instance_type, zone, region, addresses, is_off: _ } = machine;
        let addresses = addresses.into_iter().map(Into::into).collect();
        Ok(Response::new(pb::MetadataResponse { provider_id, instance_type, zone, region, addresses }))
    }
}

fn unlisted(node_name: &str) -> Status {
    Status::not_found(format!("the machine of node {node_name} is not in the inventory"))
}

/// Never NOT_FOUND: that would say that the machine does not exist, while only the file cannot be read.
fn unavailable(error: &FileError) -> Status {
    Status::unavailable(error.to_string())
}
