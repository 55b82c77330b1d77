//! PodService.

use muster_grpc::pod_service_server::PodService;
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::invalid::Invalid;
use muster_proto::name::{Name, Uid};
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use prost::Message;
use tonic::{Request, Response, Status};

use muster_store_core::authz::{Content, Verb};
use muster_store_core::rules::{self, PodDeletion};

use super::{
    AuthzRecord, Services, WatchStream, WriteContext, answer, authorize_named, authorize_record, caller,
    current_record, namespace_of, parse_record, preconditions, record_id, write_class, write_context,
};
use crate::error::StoreError;

impl AuthzRecord for Pod {
    fn authz_content<'a>(
        old: Option<&'a Self>,
        new: Option<&'a Self>,
        node_uid: Option<&'a Uid>,
    ) -> Content<'a> {
        Content::Pod { old, new, node_uid }
    }
}

#[tonic::async_trait]
impl PodService for Services {
    type WatchPodsStream = WatchStream<pb::PodWatchEvent>;

    async fn create_pod(
        &self,
        request: Request<pb::CreatePodRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run } = write_context(&request)?;
        let wire = request.into_inner().pod;
        let size = wire.as_ref().map_or(0, Message::encoded_len);
        let class = write_class(&caller, Kind::Pod, fence.as_ref(), size);
        let wanted = parse_record::<Pod>(wire)?;
        let created = self.write(class, fence, move |draft| {
            let mut wanted =
                wanted.map_err(|invalid| invalid.into_error::<Pod>(draft, &caller, Verb::Create))?;
            let current: Option<Pod> = current_record(draft, &wanted)?;
            authorize_record(draft, &caller, Verb::Create, None, Some(&wanted))?;
            if current.is_none() {
                draft.set_priority(&mut wanted)?;
            }
            let created = rules::create(current.as_ref(), wanted, &draft.context())?;
            WriteContext::put(dry_run, draft, created)
        });
        Ok(answer(created.await?))
    }

    async fn get_pod(&self, request: Request<pb::GetPodRequest>) -> Result<Response<EncodedRecord>, Status> {
        let caller = caller(&request);
        let pb::GetPodRequest { namespace, name } = request.into_inner();
        self.get::<Pod>(&caller, &record_id(Kind::Pod, &namespace, &name)?).await
    }

    async fn list_pods(&self, request: Request<pb::ListPodsRequest>) -> Result<Response<RecordList>, Status> {
        let caller = caller(&request);
        self.list(Kind::Pod, &caller, request.into_inner().into()).await
    }

    async fn update_pod(
        &self,
        request: Request<pb::UpdatePodRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        self.update::<Pod>(write_context(&request)?, request.into_inner().pod).await
    }

    async fn update_pod_status(
        &self,
        request: Request<pb::UpdatePodStatusRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        self.update_status::<Pod>(write_context(&request)?, request.into_inner().pod).await
    }

    async fn bind_pod(
        &self,
        request: Request<pb::BindPodRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run } = write_context(&request)?;
        let pb::BindPodRequest { namespace, name, node_name, preconditions: wanted } = request.into_inner();
        let key = record_id(Kind::Pod, &namespace, &name)?;
        let node: Name = node_name.parse().map_err(|e| StoreError::from(Invalid::of("nodeName", e)))?;
        let wanted = preconditions(wanted)?;
        let class = write_class(&caller, Kind::Pod, fence.as_ref(), 0);
        let bound = self.write(class, fence, move |draft| {
            let current: Option<Pod> = draft.get(namespace_of(&key), key.name.as_str())?;
            authorize_named(draft, &caller, Verb::Bind, &key, current.as_ref(), None)?;
            let outcome = rules::bind(&key, current.as_ref(), node, &wanted, &draft.context())?;
            WriteContext::apply(dry_run, draft, outcome)
        });
        Ok(answer(bound.await?))
    }

    async fn evict_pod(
        &self,
        request: Request<pb::EvictPodRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run: by_metadata } = write_context(&request)?;
        let pb::EvictPodRequest { namespace, name, delete_options, dry_run } = request.into_inner();
        let dry_run = dry_run || by_metadata;
        let key = record_id(Kind::Pod, &namespace, &name)?;
        let pb::PodDeleteOptions { preconditions: wanted, grace_period_seconds } =
            delete_options.unwrap_or_default();
        let deletion = PodDeletion { preconditions: preconditions(wanted)?, grace_period_seconds };
        let class = write_class(&caller, Kind::Pod, fence.as_ref(), 0);
        let evicted = self.write(class, fence, move |draft| {
            let current: Option<Pod> = draft.get(namespace_of(&key), key.name.as_str())?;
            authorize_named(draft, &caller, Verb::Evict, &key, current.as_ref(), None)?;
            let budgets = draft.budgets(namespace_of(&key))?;
            let outcome = rules::evict(&key, current.as_ref(), &budgets, &deletion, &draft.context())?;
            WriteContext::apply(dry_run, draft, outcome)
        });
        Ok(answer(evicted.await?))
    }

    async fn delete_pod(
        &self,
        request: Request<pb::DeletePodRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run } = write_context(&request)?;
        let pb::DeletePodRequest { namespace, name, preconditions: wanted, grace_period_seconds } =
            request.into_inner();
        let key = record_id(Kind::Pod, &namespace, &name)?;
        let deletion = PodDeletion { preconditions: preconditions(wanted)?, grace_period_seconds };
        let class = write_class(&caller, Kind::Pod, fence.as_ref(), 0).deleting();
        let deleted = self.write(class, fence, move |draft| {
            let current: Option<Pod> = draft.get(namespace_of(&key), key.name.as_str())?;
            authorize_named(draft, &caller, Verb::Delete, &key, current.as_ref(), None)?;
            let outcome = rules::delete_pod(&key, current.as_ref(), &deletion, &draft.context())?;
            WriteContext::apply(dry_run, draft, outcome)
        });
        Ok(answer(deleted.await?))
    }

    async fn watch_pods(
        &self,
        request: Request<pb::WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        let caller = caller(&request);
        let stream = self.watch(Kind::Pod, &caller, request.into_inner().into()).await?;
        Ok(Response::new(stream))
    }
}
