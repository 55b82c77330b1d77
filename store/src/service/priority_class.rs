//! PriorityClassService.

use muster_grpc::priority_class_service_server::PriorityClassService;
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::name::Uid;
use muster_proto::pb;
use muster_proto::priority_class::PriorityClass;
use muster_proto::record::Kind;
use prost::Message;
use tonic::{Request, Response, Status};

use muster_store_core::authz::{Content, Verb};
use muster_store_core::rules;

use super::{
    AuthzRecord, Services, WatchStream, WriteContext, answer, authorize_record, caller, current_record,
    parse_record, preconditions, record_id, write_class, write_context,
};

impl AuthzRecord for PriorityClass {
    fn authz_content<'a>(_: Option<&'a Self>, _: Option<&'a Self>, _: Option<&'a Uid>) -> Content<'a> {
        Content::None
    }
}

#[tonic::async_trait]
impl PriorityClassService for Services {
    type WatchPriorityClassesStream = WatchStream<pb::PriorityClassWatchEvent>;

    async fn create_priority_class(
        &self,
        request: Request<pb::CreatePriorityClassRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run } = write_context(&request)?;
        let wire = request.into_inner().priority_class;
        let size = wire.as_ref().map_or(0, Message::encoded_len);
        let class = write_class(&caller, Kind::PriorityClass, fence.as_ref(), size);
        let wanted = parse_record::<PriorityClass>(wire)?;
        let created = self.write(class, fence, move |draft| {
            let wanted = wanted
                .map_err(|invalid| invalid.into_error::<PriorityClass>(draft, &caller, Verb::Create))?;
            let current: Option<PriorityClass> = current_record(draft, &wanted)?;
            authorize_record(draft, &caller, Verb::Create, None, Some(&wanted))?;
            let default = draft.default_priority_class()?;
            let cx = draft.context();
            let created = rules::create_priority_class(current.as_ref(), wanted, default.as_ref(), &cx)?;
            WriteContext::put(dry_run, draft, created)
        });
        Ok(answer(created.await?))
    }

    async fn get_priority_class(
        &self,
        request: Request<pb::GetPriorityClassRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let caller = caller(&request);
        let pb::GetPriorityClassRequest { name } = request.into_inner();
        self.get::<PriorityClass>(&caller, &record_id(Kind::PriorityClass, "", &name)?).await
    }

    async fn list_priority_classes(
        &self,
        request: Request<pb::ListPriorityClassesRequest>,
    ) -> Result<Response<RecordList>, Status> {
        let caller = caller(&request);
        self.list(Kind::PriorityClass, &caller, request.into_inner().into()).await
    }

    async fn update_priority_class(
        &self,
        request: Request<pb::UpdatePriorityClassRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run } = write_context(&request)?;
        let wire = request.into_inner().priority_class;
        let size = wire.as_ref().map_or(0, Message::encoded_len);
        let class = write_class(&caller, Kind::PriorityClass, fence.as_ref(), size);
        let wanted = parse_record::<PriorityClass>(wire)?;
        let updated = self.write(class, fence, move |draft| {
            let wanted = wanted
                .map_err(|invalid| invalid.into_error::<PriorityClass>(draft, &caller, Verb::Update))?;
            let current: Option<PriorityClass> = current_record(draft, &wanted)?;
            authorize_record(draft, &caller, Verb::Update, current.as_ref(), Some(&wanted))?;
            let default = draft.default_priority_class()?;
            let cx = draft.context();
            let outcome = rules::update_priority_class(current.as_ref(), wanted, default.as_ref(), &cx)?;
            WriteContext::apply(dry_run, draft, outcome)
        });
        Ok(answer(updated.await?))
    }

    async fn delete_priority_class(
        &self,
        request: Request<pb::DeletePriorityClassRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let context = write_context(&request)?;
        let pb::DeletePriorityClassRequest { name, preconditions: wanted } = request.into_inner();
        let key = record_id(Kind::PriorityClass, "", &name)?;
        self.delete::<PriorityClass>(context, key, preconditions(wanted)?).await
    }

    async fn watch_priority_classes(
        &self,
        request: Request<pb::WatchPriorityClassesRequest>,
    ) -> Result<Response<Self::WatchPriorityClassesStream>, Status> {
        let caller = caller(&request);
        let stream = self.watch(Kind::PriorityClass, &caller, request.into_inner().into()).await?;
        Ok(Response::new(stream))
    }
}
