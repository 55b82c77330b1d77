//! LeaseService.

use std::future::poll_fn;
use std::sync::Arc;

use muster_grpc::lease_service_server::LeaseService;
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::fence::Fence;
use muster_proto::identity::Caller;
use muster_proto::lease::Lease;
use muster_proto::name::Uid;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use tonic::{Request, Response, Status};

use muster_store_core::authz::{Call, Content, Verb, authorize};
use muster_store_core::lanes::Lane;
use muster_store_core::lease_table::{Claim, Renewal};
use muster_store_core::namespaced_name::NamespacedName;
use muster_store_core::rules::{self, RecordId, Refusal};

use super::{
    AuthzRecord, Services, WatchStream, WriteContext, authz_result, caller, namespace_of, preconditions,
    record_id, timestamp, write_class, write_context,
};
use crate::error::StoreError;
use crate::queue::{AckSlot, WriteClass};

impl AuthzRecord for Lease {
    fn authz_content<'a>(_: Option<&'a Self>, _: Option<&'a Self>, _: Option<&'a Uid>) -> Content<'a> {
        Content::None
    }
}

#[tonic::async_trait]
impl LeaseService for Services {
    type WatchLeasesStream = WatchStream<pb::LeaseWatchEvent>;

    async fn create_lease(
        &self,
        request: Request<pb::CreateLeaseRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        self.create::<Lease>(write_context(&request)?, request.into_inner().lease).await
    }

    async fn get_lease(
        &self,
        request: Request<pb::GetLeaseRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let caller = caller(&request);
        let pb::GetLeaseRequest { namespace, name } = request.into_inner();
        self.get::<Lease>(&caller, &record_id(Kind::Lease, &namespace, &name)?).await
    }

    async fn list_leases(
        &self,
        request: Request<pb::ListLeasesRequest>,
    ) -> Result<Response<RecordList>, Status> {
        let caller = caller(&request);
        self.list(Kind::Lease, &caller, request.into_inner().into()).await
    }

    async fn update_lease(
        &self,
        request: Request<pb::UpdateLeaseRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        self.update::<Lease>(write_context(&request)?, request.into_inner().lease).await
    }

    async fn renew_lease(
        &self,
        request: Request<pb::RenewLeaseRequest>,
    ) -> Result<Response<pb::RenewLeaseResponse>, Status> {
        let context = write_context(&request)?;
        let pb::RenewLeaseRequest { namespace, name, holder_identity } = request.into_inner();
        let namespace = if namespace.is_empty() { NODE_LEASE_NAMESPACE } else { &namespace };
        let key = record_id(Kind::Lease, namespace, &name)?;
        let renewal = self.renew(context, key, holder_identity).await?;
        Ok(Response::new(pb::RenewLeaseResponse {
            resource_version: renewal.revision,
            renew_time: Some(timestamp(renewal.at_micros)),
        }))
    }

    async fn delete_lease(
        &self,
        request: Request<pb::DeleteLeaseRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let context = write_context(&request)?;
        let pb::DeleteLeaseRequest { namespace, name, preconditions: wanted } = request.into_inner();
        let key = record_id(Kind::Lease, &namespace, &name)?;
        self.delete::<Lease>(context, key, preconditions(wanted)?).await
    }

    async fn watch_leases(
        &self,
        request: Request<pb::WatchLeasesRequest>,
    ) -> Result<Response<Self::WatchLeasesStream>, Status> {
        let caller = caller(&request);
        let stream = self.watch(Kind::Lease, &caller, request.into_inner().into()).await?;
        Ok(Response::new(stream))
    }
}

impl Services {
    /// Renews a lease for its holder.
    async fn renew(&self, context: WriteContext, key: RecordId, holder: String) -> Result<Renewal, Status> {
        let WriteContext { caller, fence, .. } = context.without_dry_run()?;
        let call = Call {
            verb: Verb::Renew,
            kind: Kind::Lease,
            namespace: Some(namespace_of(&key)),
            name: Some(key.name.as_str()),
            field_selector: None,
        };
        authz_result(authorize(&caller, &call, &Content::None))?;
        let claim = match self.claim_to_renew(&key, &holder) {
            Ok(claim) => claim,
            // Refused by what is in memory, which may not be current.
            Err(_) => {
                self.confirm_current().await?;
                self.claim_to_renew(&key, &holder)?
            }
        };
        let Some(claim) = claim else { return self.acquire_lease(caller, fence, key, holder).await };
        if fence.is_some() {
            let class = WriteClass::new(Lane::Renewals, &caller, 0);
            return self.write(class, fence, move |draft| Ok(draft.renew(claim, None)?)).await;
        }
        let slot = Arc::new(AckSlot::default());
        self.store.renew(claim, None, Arc::clone(&slot))?;
        Ok(poll_fn(|cx| slot.poll(cx)).await?)
    }

    /// The claim of this holder; `None` if nobody holds the lease yet.
    fn claim_to_renew(&self, key: &RecordId, holder: &str) -> Result<Option<Claim>, StoreError> {
        let memory = self.store.read();
        let lease = memory.get(Kind::Lease, &NamespacedName::new(namespace_of(key), key.name.as_str()));
        let lease = lease.ok_or_else(|| StoreError::from(Refusal::NotFound { key: key.clone() }))?;
        match memory.leases.holder(lease.lease_id) {
            Some(current) if !current.is_empty() && current != holder => {
                let why = format!("is held by {current:?}, not by {holder:?}");
                Err(StoreError::from(Refusal::Conflict { key: key.clone(), why }))
            }
            Some("") if !holder.is_empty() => Ok(None),
            _ => Ok(memory.leases.claim(lease.lease_id)),
        }
    }

    /// Renews a lease without a holder: the caller acquires it.
    async fn acquire_lease(
        &self,
        caller: Caller,
        fence: Option<Fence>,
        key: RecordId,
        holder: String,
    ) -> Result<Renewal, Status> {
        // Another holder is more than a renewal.
        muster_rpc::audit::note_write();
        let class = write_class(&caller, Kind::Lease, fence.as_ref(), holder.len());
        let acquired = self.write(class, fence, move |draft| {
            let current: Option<Lease> = draft.get(namespace_of(&key), key.name.as_str())?;
            let renewal = rules::Renewal { holder: &holder, status: None };
            let lease = rules::renew_lease(&key, current.as_ref(), renewal, &draft.context())?;
            let at = lease.spec.renew_time.unwrap_or(draft.now());
            let (status_digest, status_age_millis) = (lease.spec.status_digest, lease.spec.status_age_millis);
            let revision = draft.put(lease)?.version;
            Ok(Renewal { revision, at_micros: at.as_microsecond(), status_digest, status_age_millis })
        });
        acquired.await
    }
}
