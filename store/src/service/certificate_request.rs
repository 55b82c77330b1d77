//! CertificateRequestService.

use muster_grpc::certificate_request_service_server::CertificateRequestService;
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::certificate_request::CertificateRequest;
use muster_proto::name::Uid;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::revocation::Revocation;
use muster_rpc::identity::requester;
use prost::Message;
use tonic::{Request, Response, Status};

use muster_store_core::authz::{Content, Verb};
use muster_store_core::draft::Draft;
use muster_store_core::rules::{self, RecordId};

use super::{
    AuthzRecord, Services, WatchStream, WriteContext, answer, authorize_named, authorize_record, caller,
    current_record, parse_record, preconditions, record_id, write_class, write_context,
};
use crate::error::StoreError;

impl AuthzRecord for CertificateRequest {
    fn authz_content<'a>(_: Option<&'a Self>, _: Option<&'a Self>, _: Option<&'a Uid>) -> Content<'a> {
        Content::None
    }
}

/// The request that an administrator decides about, and the revocation of its node.
fn to_decide(
    draft: &Draft<'_>,
    caller: &muster_proto::identity::Caller,
    key: &RecordId,
) -> Result<(Option<CertificateRequest>, Option<Revocation>), StoreError> {
    let current: Option<CertificateRequest> = draft.get("", key.name.as_str())?;
    authorize_named(draft, caller, Verb::Approve, key, current.as_ref(), None)?;
    let revocation = current.as_ref().map(|request| draft.revocation_of_node(&request.spec.node_name));
    Ok((current, revocation.transpose()?.flatten()))
}

#[tonic::async_trait]
impl CertificateRequestService for Services {
    type WatchCertificateRequestsStream = WatchStream<pb::CertificateRequestWatchEvent>;

    async fn get_certificate_request(
        &self,
        request: Request<pb::GetCertificateRequestRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let caller = caller(&request);
        let pb::GetCertificateRequestRequest { name } = request.into_inner();
        self.get::<CertificateRequest>(&caller, &record_id(Kind::CertificateRequest, "", &name)?).await
    }

    async fn list_certificate_requests(
        &self,
        request: Request<pb::ListCertificateRequestsRequest>,
    ) -> Result<Response<RecordList>, Status> {
        let caller = caller(&request);
        self.list(Kind::CertificateRequest, &caller, request.into_inner().into()).await
    }

    async fn approve_certificate_request(
        &self,
        request: Request<pb::ApproveCertificateRequestRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, .. } = write_context(&request)?.without_dry_run()?;
        let by = requester(request.extensions());
        let pb::ApproveCertificateRequestRequest { name, preconditions: wanted } = request.into_inner();
        let (key, wanted) = (record_id(Kind::CertificateRequest, "", &name)?, preconditions(wanted)?);
        let class = write_class(&caller, Kind::CertificateRequest, fence.as_ref(), 0);
        let approved = self.write(class, fence, move |draft| {
            let (current, revocation) = to_decide(draft, &caller, &key)?;
            let (current, revocation) = (current.as_ref(), revocation.as_ref());
            let outcome = rules::approve_request(&key, current, &wanted, revocation, &by, &draft.context())?;
            Ok(draft.apply(outcome)?)
        });
        Ok(answer(approved.await?))
    }

    async fn deny_certificate_request(
        &self,
        request: Request<pb::DenyCertificateRequestRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, .. } = write_context(&request)?.without_dry_run()?;
        let by = requester(request.extensions());
        let pb::DenyCertificateRequestRequest { name, reason, preconditions: wanted } = request.into_inner();
        let (key, wanted) = (record_id(Kind::CertificateRequest, "", &name)?, preconditions(wanted)?);
        let class = write_class(&caller, Kind::CertificateRequest, fence.as_ref(), reason.len());
        let denied = self.write(class, fence, move |draft| {
            let (current, _) = to_decide(draft, &caller, &key)?;
            let outcome =
                rules::deny_request(&key, current.as_ref(), &wanted, &reason, &by, &draft.context())?;
            Ok(draft.apply(outcome)?)
        });
        Ok(answer(denied.await?))
    }

    async fn update_certificate_request_status(
        &self,
        request: Request<pb::UpdateCertificateRequestStatusRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, .. } = write_context(&request)?.without_dry_run()?;
        let wire = request.into_inner().certificate_request;
        let size = wire.as_ref().map_or(0, Message::encoded_len);
        let class = write_class(&caller, Kind::CertificateRequest, fence.as_ref(), size);
        let wanted = parse_record::<CertificateRequest>(wire)?;
        let updated = self.write(class, fence, move |draft| {
            let wanted = wanted.map_err(|invalid| {
                invalid.into_error::<CertificateRequest>(draft, &caller, Verb::UpdateStatus)
            })?;
            let current: Option<CertificateRequest> = current_record(draft, &wanted)?;
            authorize_record(draft, &caller, Verb::UpdateStatus, current.as_ref(), Some(&wanted))?;
            let revocation =
                current.as_ref().map(|request| draft.revocation_of_node(&request.spec.node_name));
            let revocation = revocation.transpose()?.flatten();
            let outcome =
                rules::record_outcome(current.as_ref(), wanted, revocation.as_ref(), &draft.context())?;
            Ok(draft.apply(outcome)?)
        });
        Ok(answer(updated.await?))
    }

    async fn delete_certificate_request(
        &self,
        request: Request<pb::DeleteCertificateRequestRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let context = write_context(&request)?;
        let pb::DeleteCertificateRequestRequest { name, preconditions: wanted } = request.into_inner();
        let key = record_id(Kind::CertificateRequest, "", &name)?;
        self.delete::<CertificateRequest>(context, key, preconditions(wanted)?).await
    }

    async fn watch_certificate_requests(
        &self,
        request: Request<pb::WatchCertificateRequestsRequest>,
    ) -> Result<Response<Self::WatchCertificateRequestsStream>, Status> {
        let caller = caller(&request);
        let stream = self.watch(Kind::CertificateRequest, &caller, request.into_inner().into()).await?;
        Ok(Response::new(stream))
    }
}
