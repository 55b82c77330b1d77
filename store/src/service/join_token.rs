//! JoinTokenService.

use muster_grpc::join_token_service_server::JoinTokenService;
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::join_token::JoinToken;
use muster_proto::name::Uid;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_rpc::identity::requester;
use prost::Message;
use tonic::{Request, Response, Status};

use muster_store_core::authz::{Content, Verb};
use muster_store_core::rules;

use super::{
    AuthzRecord, Services, WatchStream, WriteContext, answer, authorize_record, caller, current_record,
    parse_record, preconditions, record_id, write_class, write_context,
};

impl AuthzRecord for JoinToken {
    fn authz_content<'a>(_: Option<&'a Self>, _: Option<&'a Self>, _: Option<&'a Uid>) -> Content<'a> {
        Content::None
    }
}

#[tonic::async_trait]
impl JoinTokenService for Services {
    type WatchJoinTokensStream = WatchStream<pb::JoinTokenWatchEvent>;

    async fn create_join_token(
        &self,
        request: Request<pb::CreateJoinTokenRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, .. } = write_context(&request)?.without_dry_run()?;
        let by = requester(request.extensions());
        let wire = request.into_inner().join_token;
        let size = wire.as_ref().map_or(0, Message::encoded_len);
        let class = write_class(&caller, Kind::JoinToken, fence.as_ref(), size);
        let wanted = parse_record::<JoinToken>(wire)?;
        let created = self.write(class, fence, move |draft| {
            let wanted =
                wanted.map_err(|invalid| invalid.into_error::<JoinToken>(draft, &caller, Verb::Create))?;
            let current: Option<JoinToken> = current_record(draft, &wanted)?;
            authorize_record(draft, &caller, Verb::Create, None, Some(&wanted))?;
            let created = rules::create_join_token(current.as_ref(), wanted, by, &draft.context())?;
            Ok(draft.put(created)?)
        });
        Ok(answer(created.await?))
    }

    async fn get_join_token(
        &self,
        request: Request<pb::GetJoinTokenRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let caller = caller(&request);
        let pb::GetJoinTokenRequest { name } = request.into_inner();
        self.get::<JoinToken>(&caller, &record_id(Kind::JoinToken, "", &name)?).await
    }

    async fn list_join_tokens(
        &self,
        request: Request<pb::ListJoinTokensRequest>,
    ) -> Result<Response<RecordList>, Status> {
        let caller = caller(&request);
        self.list(Kind::JoinToken, &caller, request.into_inner().into()).await
    }

    async fn delete_join_token(
        &self,
        request: Request<pb::DeleteJoinTokenRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let context = write_context(&request)?;
        let pb::DeleteJoinTokenRequest { name, preconditions: wanted } = request.into_inner();
        let key = record_id(Kind::JoinToken, "", &name)?;
        self.delete::<JoinToken>(context, key, preconditions(wanted)?).await
    }

    async fn watch_join_tokens(
        &self,
        request: Request<pb::WatchJoinTokensRequest>,
    ) -> Result<Response<Self::WatchJoinTokensStream>, Status> {
        let caller = caller(&request);
        let stream = self.watch(Kind::JoinToken, &caller, request.into_inner().into()).await?;
        Ok(Response::new(stream))
    }
}
