//! The gRPC services: each handler decodes the request, calls the store, and encodes the response.
//!
//! The generic calls of all kinds are in this file; the files below implement each kind's service with them. Every read
//! and write is authorized first: reads in the handler, writes in the writer, where the current record is known.

mod budget;
mod certificate_request;
mod decision;
mod event;
mod heartbeat;
mod join;
mod join_token;
mod lease;
mod node;
mod pod;
mod priority_class;
mod query;
mod request_record;
mod revocation;
mod status;
mod write_context;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{self, Stream};
use jiff::Timestamp;
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::fence::Fence;
use muster_proto::identity::Caller;
use muster_proto::invalid::Invalid;
use muster_proto::name::{Name, Namespace, Uid};
use muster_proto::pb;
use muster_proto::record::{Kind, Record};
use muster_proto::watch::WatchFrame;
use muster_rpc::audit;
use muster_rpc::layers::trace::current_traceparent;
use muster_rpc::shutdown::Shutdown;
use prost::Message;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use muster_store_core::authz::{Call, Content, Refused, Verb, authorize};
use muster_store_core::draft::{Draft, Stored};
use muster_store_core::lanes::lane_of;
use muster_store_core::list_page::{ListVersion, Page};
use muster_store_core::namespaced_name::NamespacedName;
use muster_store_core::rules::{self, DeletedWithoutGrace, Preconditions, RecordId, Refusal, Rules};
use muster_store_core::selectors::Selectors;

use self::query::{ListQuery, WatchQuery};
use self::request_record::{parse_record, required_record};
use self::write_context::{WriteContext, write_context};
use crate::decision_log::DecisionLog;
use crate::error::StoreError;
use crate::heartbeat_streams::HeartbeatStreams;
use crate::queue::WriteClass;
use crate::read_index::ReadIndex;
use crate::store::Store;
use crate::watch_feed::WatchFeed;

/// Larger than the largest record and the message around it. Larger messages are refused before they are decoded.
const MAX_MESSAGE: usize = 2 << 20;

/// The names of the services, for health checks.
pub const NAMES: [&str; 13] = [
    "muster.v1.NodeService",
    "muster.v1.LeaseService",
    "muster.v1.PodService",
    "muster.v1.DisruptionBudgetService",
    "muster.v1.PriorityClassService",
    "muster.v1.EventService",
    "muster.v1.DecisionService",
    "muster.v1.JoinTokenService",
    "muster.v1.CertificateRequestService",
    "muster.v1.RevocationService",
    "muster.v1.JoinService",
    "muster.v1.StoreService",
    HEARTBEAT,
];

/// The calls of machines that have no certificate yet.
pub const OPEN_TO_ANONYMOUS: [&str; 2] =
    ["/muster.v1.JoinService/GetAuthorities", "/muster.v1.JoinService/Join"];

/// The service that needs the disk for all of its calls.
pub const HEARTBEAT: &str = "muster.v1.HeartbeatService";

/// All services of the store.
#[derive(Clone)]
pub struct Services {
    store: Arc<Store>,
    streams: Arc<HeartbeatStreams>,
    /// The file of --tls-client-ca; `None` without TLS.
    authorities: Option<Arc<PathBuf>>,
    /// `None` where decisions are not kept.
    decisions: Option<Arc<DecisionLog>>,
    /// Of one of several stores. A single store's memory is always current.
    reads: Option<ReadIndex>,
    /// Since when this process leads.
    leading_since: Timestamp,
    shutdown: Shutdown,
}

type WatchStream<E> = Pin<Box<dyn Stream<Item = Result<WatchFrame<E>, Status>> + Send>>;

impl Services {
    /// The services of a store that leads from now on.
    pub fn new(store: Arc<Store>, shutdown: Shutdown) -> Self {
        let leading_since = store.clock().wall();
        let streams = Arc::default();
        Self { store, streams, authorities: None, decisions: None, reads: None, leading_since, shutdown }
    }

    /// Answers with the certificates of this file to those who ask for the authorities.
    #[must_use]
    pub fn with_authorities(self, file: Option<PathBuf>) -> Self {
        Self { authorities: file.map(Arc::new), ..self }
    }

    /// Keeps decisions in that log. Without it its service says that they are not kept.
    #[must_use]
    pub fn with_decisions(self, log: Arc<DecisionLog>) -> Self {
        Self { decisions: Some(log), ..self }
    }

    /// Confirms reads by these heads.
    #[must_use]
    pub fn confirming_reads(self, reads: ReadIndex) -> Self {
        Self { reads: Some(reads), ..self }
    }

    /// Returns once memory has everything that was acknowledged before now, by any store.
    async fn confirm_current(&self) -> Result<(), StoreError> {
        match &self.reads {
            None => Ok(()),
            Some(reads) => reads.confirm(&self.store).await,
        }
    }

    /// The services as routes of a server.
    pub fn routes(self) -> Routes {
        macro_rules! limited {
            ($server:ty) => {
                <$server>::new(self.clone()).max_decoding_message_size(MAX_MESSAGE)
            };
        }
        Routes::new(limited!(muster_grpc::node_service_server::NodeServiceServer<Self>))
            .add_service(limited!(muster_grpc::lease_service_server::LeaseServiceServer<Self>))
            .add_service(limited!(muster_grpc::pod_service_server::PodServiceServer<Self>))
            .add_service(limited!(
                muster_grpc::disruption_budget_service_server::DisruptionBudgetServiceServer<Self>
            ))
            .add_service(limited!(
                muster_grpc::priority_class_service_server::PriorityClassServiceServer<Self>
            ))
            .add_service(limited!(muster_grpc::event_service_server::EventServiceServer<Self>))
            .add_service(limited!(muster_grpc::decision_service_server::DecisionServiceServer<Self>))
            .add_service(limited!(muster_grpc::join_token_service_server::JoinTokenServiceServer<Self>))
            .add_service(limited!(
                muster_grpc::certificate_request_service_server::CertificateRequestServiceServer<Self>
            ))
            .add_service(limited!(muster_grpc::revocation_service_server::RevocationServiceServer<Self>))
            .add_service(limited!(muster_grpc::join_service_server::JoinServiceServer<Self>))
            .add_service(limited!(muster_grpc::store_service_server::StoreServiceServer<Self>))
            .add_service(limited!(muster_grpc::heartbeat_service_server::HeartbeatServiceServer<Self>))
            .prepare()
    }

    /// Has the writer evaluate a request. A fenced request is refused if its lease has another holder.
    async fn write<T: Send + 'static>(
        &self,
        class: WriteClass,
        fence: Option<Fence>,
        request: impl FnOnce(&mut Draft<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Status> {
        let traceparent = current_traceparent().unwrap_or_default();
        // Checked in the same draft as the write, so that the lease cannot change hands in between.
        let fenced = move |draft: &mut Draft<'_>| {
            fence.map_or(Ok(()), |fence| draft.check_fence(&fence))?;
            let next = draft.revision() + 1;
            let answer = request(draft)?;
            // The first change is the one of the request's own record.
            Ok((answer, (draft.revision() >= next).then_some(next)))
        };
        let (answer, written) = self.store.write(traceparent, class, fenced).await?;
        if let Some(revision) = written {
            audit::note_revision(revision);
        }
        Ok(answer)
    }

    async fn create<R: AuthzRecord + Rules>(
        &self,
        context: WriteContext,
        wire: Option<R::Pb>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run } = context;
        let class =
            write_class(&caller, R::KIND, fence.as_ref(), wire.as_ref().map_or(0, Message::encoded_len));
        let wanted = parse_record::<R>(wire)?;
        let created = self.write(class, fence, move |draft| {
            let wanted = wanted.map_err(|invalid| invalid.into_error::<R>(draft, &caller, Verb::Create))?;
            let current: Option<R> = current_record(draft, &wanted)?;
            authorize_record(draft, &caller, Verb::Create, None, Some(&wanted))?;
            let created = rules::create(current.as_ref(), wanted, &draft.context())?;
            WriteContext::put(dry_run, draft, created)
        });
        Ok(answer(created.await?))
    }

    async fn update<R: AuthzRecord + Rules>(
        &self,
        context: WriteContext,
        wire: Option<R::Pb>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run } = context;
        let class =
            write_class(&caller, R::KIND, fence.as_ref(), wire.as_ref().map_or(0, Message::encoded_len));
        let wanted = parse_record::<R>(wire)?;
        let updated = self.write(class, fence, move |draft| {
            let wanted = wanted.map_err(|invalid| invalid.into_error::<R>(draft, &caller, Verb::Update))?;
            let current: Option<R> = current_record(draft, &wanted)?;
            authorize_record(draft, &caller, Verb::Update, current.as_ref(), Some(&wanted))?;
            let outcome = rules::update(current.as_ref(), wanted, &draft.context())?;
            WriteContext::apply(dry_run, draft, outcome)
        });
        Ok(answer(updated.await?))
    }

    async fn update_status<R: AuthzRecord + rules::HasStatus>(
        &self,
        context: WriteContext,
        wire: Option<R::Pb>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run } = context;
        let class =
            write_class(&caller, R::KIND, fence.as_ref(), wire.as_ref().map_or(0, Message::encoded_len));
        let wanted = parse_record::<R>(wire)?;
        let updated = self.write(class, fence, move |draft| {
            let wanted =
                wanted.map_err(|invalid| invalid.into_error::<R>(draft, &caller, Verb::UpdateStatus))?;
            let current: Option<R> = current_record(draft, &wanted)?;
            authorize_record(draft, &caller, Verb::UpdateStatus, current.as_ref(), Some(&wanted))?;
            let outcome = rules::update_status(current.as_ref(), wanted, &draft.context())?;
            WriteContext::apply(dry_run, draft, outcome)
        });
        Ok(answer(updated.await?))
    }

    async fn delete<R: AuthzRecord + DeletedWithoutGrace>(
        &self,
        context: WriteContext,
        key: RecordId,
        preconditions: Preconditions,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run } = context;
        let class = write_class(&caller, R::KIND, fence.as_ref(), 0).deleting();
        let deleted = self.write(class, fence, move |draft| {
            let current: Option<R> = draft.get(namespace_of(&key), key.name.as_str())?;
            authorize_named(draft, &caller, Verb::Delete, &key, current.as_ref(), None)?;
            let outcome = rules::delete(&key, current.as_ref(), &preconditions, &draft.context())?;
            WriteContext::apply(dry_run, draft, outcome)
        });
        Ok(answer(deleted.await?))
    }

    async fn get<R: AuthzRecord>(
        &self,
        caller: &Caller,
        key: &RecordId,
    ) -> Result<Response<EncodedRecord>, Status> {
        self.confirm_current().await?;
        let namespace = namespace_of(key);
        let found = self.store.get(R::KIND, &NamespacedName::new(namespace, key.name.as_str()));
        let call = Call {
            verb: Verb::Get,
            kind: R::KIND,
            namespace: key.namespace.as_ref().map(Namespace::as_str),
            name: Some(key.name.as_str()),
            field_selector: None,
        };
        // Only for nodes does authorization depend on the record's content.
        let known: Option<R> = match (caller, &found) {
            (Caller::Node(_), Some(record)) => Some(decode_stored(key, record)?),
            _ => None,
        };
        authz_result(authorize(caller, &call, &R::authz_content(known.as_ref(), None, None)))?;
        let record = found.ok_or_else(|| StoreError::from(Refusal::NotFound { key: key.clone() }))?;
        Ok(Response::new(record.into()))
    }

    async fn list(
        &self,
        kind: Kind,
        caller: &Caller,
        query: ListQuery,
    ) -> Result<Response<RecordList>, Status> {
        let list = query.check(kind)?;
        self.authorize_selectors(caller, Verb::List, kind, &list.selectors)?;
        match &list.version {
            ListVersion::Latest => self.confirm_current().await?,
            // The page before may be from another store, which is further. If the wait fails, the list says why.
            ListVersion::Continue(token) if self.reads.is_some() => {
                let _ = self.store.wait_for_revision(token.revision()).await;
            }
            // They wait for their revision at every store.
            _ => {}
        }
        let Page { records, revision, next, .. } = self.store.list(list).await?;
        let next_page_token = next.map(|token| token.to_string()).unwrap_or_default();
        Ok(Response::new(RecordList { records, resource_version: revision, next_page_token }))
    }

    async fn watch<E: Message + Default + 'static>(
        &self,
        kind: Kind,
        caller: &Caller,
        query: WatchQuery,
    ) -> Result<WatchStream<E>, Status> {
        let (request, at_least) = query.check(kind)?;
        self.authorize_selectors(caller, Verb::Watch, kind, &request.selectors)?;
        if at_least == 0 {
            self.confirm_current().await?;
        }
        self.store.check_own_history(at_least)?;
        self.store.wait_for_revision(at_least).await?;
        let feed = WatchFeed::open(Arc::clone(&self.store), request, self.shutdown.clone())?;
        let frames = stream::unfold(feed, async |mut feed| {
            let frame = feed.next().await?;
            Some((frame.map(WatchFrame::joined).map_err(Status::from), feed))
        });
        Ok(Box::pin(frames))
    }

    fn authorize_selectors(
        &self,
        caller: &Caller,
        verb: Verb,
        kind: Kind,
        selectors: &Selectors,
    ) -> Result<(), StoreError> {
        let namespace = (!selectors.namespace.is_empty()).then_some(selectors.namespace.as_str());
        audit::note_record(&selectors.namespace, "");
        let field_selector = Some(&selectors.fields);
        let call = Call { verb, kind, namespace, name: None, field_selector };
        authz_result(authorize(caller, &call, &Content::None))
    }
}

/// A record that can be passed to [`authorize`].
trait AuthzRecord: Record {
    fn authz_content<'a>(
        old: Option<&'a Self>,
        new: Option<&'a Self>,
        node_uid: Option<&'a Uid>,
    ) -> Content<'a>;
}

/// The current version of a request's record, as of the batch so far.
fn current_record<R: Record>(draft: &Draft<'_>, wanted: &R) -> Result<Option<R>, StoreError> {
    let meta = wanted.meta();
    Ok(draft.get(meta.namespace.as_ref().map_or("", Namespace::as_str), meta.name.as_str())?)
}

fn authorize_record<R: AuthzRecord>(
    draft: &Draft<'_>,
    caller: &Caller,
    verb: Verb,
    old: Option<&R>,
    new: Option<&R>,
) -> Result<(), StoreError> {
    match new.or(old) {
        Some(record) => authorize_named(draft, caller, verb, &RecordId::of(record), old, new),
        None => Ok(()),
    }
}

fn authorize_named<R: AuthzRecord>(
    draft: &Draft<'_>,
    caller: &Caller,
    verb: Verb,
    key: &RecordId,
    old: Option<&R>,
    new: Option<&R>,
) -> Result<(), StoreError> {
    // A mirror pod's owner reference must have the current uid of its node.
    let node_uid = match caller {
        Caller::Node(name) if R::KIND == Kind::Pod => draft.node_uid(name)?,
        _ => None,
    };
    let call = Call {
        verb,
        kind: R::KIND,
        namespace: key.namespace.as_ref().map(Namespace::as_str),
        name: Some(key.name.as_str()),
        field_selector: None,
    };
    authz_result(authorize(caller, &call, &R::authz_content(old, new, node_uid.as_ref())))
}

/// Where a write waits. `bytes` is the size of its record, and 0 for a request without one.
fn write_class(caller: &Caller, kind: Kind, fence: Option<&Fence>, bytes: usize) -> WriteClass {
    WriteClass::new(lane_of(caller, kind, fence.is_some(), bytes), caller, bytes)
}

fn namespace_of(key: &RecordId) -> &str {
    key.namespace.as_ref().map_or("", Namespace::as_str)
}

/// The id of the record that a request names, validated.
fn record_id(kind: Kind, namespace: &str, name: &str) -> Result<RecordId, StoreError> {
    let mut check = muster_proto::invalid::Check::new();
    let root = muster_proto::invalid::Path::ROOT;
    let name = check.field(&root.key("name"), name.parse::<Name>());
    let namespace = if kind.is_namespaced() {
        check.field(&root.key("namespace"), namespace.parse::<Namespace>()).map(Some)
    } else {
        Some(None)
    };
    let key = || Some(RecordId { kind, namespace: namespace?, name: name? });
    let key = check.finish_some(key())?;
    note_in_audit(&key);
    Ok(key)
}

/// Notes the record of a request for the audit log.
fn note_in_audit(key: &RecordId) {
    audit::note_record(namespace_of(key), key.name.as_str());
}

fn preconditions(wire: Option<pb::Preconditions>) -> Result<Preconditions, StoreError> {
    let pb::Preconditions { uid, resource_version } = wire.unwrap_or_default();
    let uid = match uid.as_str() {
        "" => None,
        uid => Some(uid.parse().map_err(|e| Invalid::of("preconditions.uid", e))?),
    };
    Ok(Preconditions { uid, resource_version: (resource_version > 0).then_some(resource_version) })
}

fn caller<T>(request: &Request<T>) -> Caller {
    muster_rpc::identity::caller(request.extensions())
}

/// Maps a denial to the error of the call.
fn authz_result(verdict: Result<(), Refused>) -> Result<(), StoreError> {
    verdict.map_err(|refused| match refused {
        Refused::Denied(denial) => denial.into(),
        Refused::MissingNode(name) => record_id(Kind::Node, "", &name)
            .map_or_else(|invalid| invalid, |key| Refusal::NotFound { key }.into()),
    })
}

/// The response to a write: the record as it is stored.
fn answer(stored: Stored) -> Response<EncodedRecord> {
    Response::new(stored.record.into())
}

/// A stored record as its domain type.
fn decode_stored<R: Record>(key: &RecordId, record: &[u8]) -> Result<R, StoreError> {
    let damaged = |reason: String| StoreError::Storage(format!("{key} cannot be read: {reason}"));
    let wire = R::Pb::decode(record).map_err(|e| damaged(e.to_string()))?;
    R::try_from(wire).map_err(|e| damaged(e.to_string()))
}

/// Microseconds since 1970 as a protobuf timestamp.
fn timestamp(micros: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: (micros.rem_euclid(1_000_000) * 1000) as i32,
    }
}
