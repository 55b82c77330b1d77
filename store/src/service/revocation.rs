//! RevocationService.

use muster_grpc::records::{EncodedRecord, RecordList};
use muster_grpc::revocation_service_server::RevocationService;
use muster_proto::name::Uid;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::revocation::Revocation;
use muster_rpc::identity::requester;
use prost::Message;
use tonic::{Request, Response, Status};

use muster_store_core::authz::{Content, Verb};
use muster_store_core::rules;

use super::{
    AuthzRecord, Services, WatchStream, WriteContext, answer, authorize_record, caller, current_record,
    parse_record, preconditions, record_id, write_class, write_context,
};

impl AuthzRecord for Revocation {
    fn authz_content<'a>(_: Option<&'a Self>, _: Option<&'a Self>, _: Option<&'a Uid>) -> Content<'a> {
        Content::None
    }
}

#[tonic::async_trait]
impl RevocationService for Services {
    type WatchRevocationsStream = WatchStream<pb::RevocationWatchEvent>;

    async fn create_revocation(
        &self,
        request: Request<pb::CreateRevocationRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, .. } = write_context(&request)?.without_dry_run()?;
        let by = requester(request.extensions());
        let wire = request.into_inner().revocation;
        let size = wire.as_ref().map_or(0, Message::encoded_len);
        let class = write_class(&caller, Kind::Revocation, fence.as_ref(), size);
        let wanted = parse_record::<Revocation>(wire)?;
        let created = self.write(class, fence, move |draft| {
            let wanted =
                wanted.map_err(|invalid| invalid.into_error::<Revocation>(draft, &caller, Verb::Create))?;
            let current: Option<Revocation> = current_record(draft, &wanted)?;
            authorize_record(draft, &caller, Verb::Create, None, Some(&wanted))?;
            let revoked = rules::revoke(current.as_ref(), wanted, by, &draft.context())?;
            Ok(draft.put(revoked)?)
        });
        Ok(answer(created.await?))
    }

    async fn get_revocation(
        &self,
        request: Request<pb::GetRevocationRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let caller = caller(&request);
        let pb::GetRevocationRequest { name } = request.into_inner();
        self.get::<Revocation>(&caller, &record_id(Kind::Revocation, "", &name)?).await
    }

    async fn list_revocations(
        &self,
        request: Request<pb::ListRevocationsRequest>,
    ) -> Result<Response<RecordList>, Status> {
        let caller = caller(&request);
        self.list(Kind::Revocation, &caller, request.into_inner().into()).await
    }

    async fn delete_revocation(
        &self,
        request: Request<pb::DeleteRevocationRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let context = write_context(&request)?;
        let pb::DeleteRevocationRequest { name, preconditions: wanted } = request.into_inner();
        let key = record_id(Kind::Revocation, "", &name)?;
        self.delete::<Revocation>(context, key, preconditions(wanted)?).await
    }

    async fn watch_revocations(
        &self,
        request: Request<pb::WatchRevocationsRequest>,
    ) -> Result<Response<Self::WatchRevocationsStream>, Status> {
        let caller = caller(&request);
        let stream = self.watch(Kind::Revocation, &caller, request.into_inner().into()).await?;
        Ok(Response::new(stream))
    }
}
