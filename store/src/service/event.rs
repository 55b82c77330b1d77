//! EventService.

use muster_grpc::event_service_server::EventService;
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::event::{Event, ObjectReference};
use muster_proto::identity::Caller;
use muster_proto::name::{Namespace, Uid};
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use prost::Message;
use tonic::{Request, Response, Status};

use muster_store_core::authz::{Call, Content, Denial, Refused, Rule, Verb, authorize};
use muster_store_core::draft::Draft;
use muster_store_core::rules::{self, RecordId};

use super::{
    AuthzRecord, Services, WatchStream, WriteContext, answer, authz_result, caller, current_record,
    note_in_audit, required_record, write_class, write_context,
};
use crate::error::StoreError;

impl AuthzRecord for Event {
    fn authz_content<'a>(_: Option<&'a Self>, _: Option<&'a Self>, _: Option<&'a Uid>) -> Content<'a> {
        Content::None
    }
}

const RECORD: Call<'static> =
    Call { verb: Verb::Record, kind: Kind::Event, namespace: None, name: None, field_selector: None };

/// Authorizes the call without its event, so that a caller without rights learns nothing about what is valid.
fn authorize_unparsed(caller: &Caller) -> Result<(), StoreError> {
    match authorize(caller, &RECORD, &Content::None) {
        Err(Refused::Denied(Denial { rule: Rule::MissingContent, .. })) => Ok(()),
        verdict => authz_result(verdict),
    }
}

/// Authorizes an event with the pod that it is about, as of the batch so far.
fn authorize_event(draft: &Draft<'_>, caller: &Caller, event: &Event) -> Result<(), StoreError> {
    let ObjectReference { kind, namespace, name, .. } = &event.involved;
    // Only for nodes does authorization depend on the pod.
    let pod: Option<Pod> = match (caller, kind) {
        (Caller::Node(_), Kind::Pod) => {
            draft.get(namespace.as_ref().map_or("", Namespace::as_str), name.as_str())?
        }
        _ => None,
    };
    authz_result(authorize(caller, &RECORD, &Content::Event { event, pod: pod.as_ref() }))
}

#[tonic::async_trait]
impl EventService for Services {
    type WatchEventsStream = WatchStream<pb::EventWatchEvent>;

    async fn record_event(
        &self,
        request: Request<pb::RecordEventRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let WriteContext { caller, fence, dry_run } = write_context(&request)?;
        authorize_unparsed(&caller)?;
        let event = required_record::<Event>(request.into_inner().event)?;
        let class = write_class(&caller, Kind::Event, fence.as_ref(), event.encoded_len());
        let mut event = Event::try_from(event).map_err(StoreError::from)?;
        rules::validate_event(&event).map_err(StoreError::from)?;
        event.source_host = match &caller {
            Caller::Node(name) => name.clone(),
            _ => String::new(),
        };
        // Equal events have equal names, so that they are counted in one record.
        event.meta.name = rules::event_name(&event);
        note_in_audit(&RecordId::of(&event));
        let recorded = self.write(class, fence, move |draft| {
            authorize_event(draft, &caller, &event)?;
            let known: Option<Event> = current_record(draft, &event)?;
            let recorded = rules::record_event(known.as_ref(), event, &draft.context());
            WriteContext::put(dry_run, draft, recorded)
        });
        Ok(answer(recorded.await?))
    }

    async fn list_events(
        &self,
        request: Request<pb::ListEventsRequest>,
    ) -> Result<Response<RecordList>, Status> {
        let caller = caller(&request);
        self.list(Kind::Event, &caller, request.into_inner().into()).await
    }

    async fn watch_events(
        &self,
        request: Request<pb::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let caller = caller(&request);
        let stream = self.watch(Kind::Event, &caller, request.into_inner().into()).await?;
        Ok(Response::new(stream))
    }
}
