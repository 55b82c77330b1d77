//! Implements the generic calls of [`StoreClient`] for each kind, with its messages and its service.
//!
//! The kinds differ only in names, so macros implement them all.

use std::future::Future;

use muster_grpc::certificate_request_service_client::CertificateRequestServiceClient;
use muster_grpc::disruption_budget_service_client::DisruptionBudgetServiceClient;
use muster_grpc::event_service_client::EventServiceClient;
use muster_grpc::join_token_service_client::JoinTokenServiceClient;
use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_grpc::priority_class_service_client::PriorityClassServiceClient;
use muster_grpc::revocation_service_client::RevocationServiceClient;
use muster_proto::budget::DisruptionBudget;
use muster_proto::certificate_request::CertificateRequest;
use muster_proto::event::Event;
use muster_proto::invalid::Invalid;
use muster_proto::join_token::JoinToken;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::priority_class::PriorityClass;
use muster_proto::record::Record;
use muster_proto::revocation::Revocation;
use muster_proto::watch::WatchFrame;
use tonic::Streaming;

use crate::client::StoreClient;
use crate::error::ClientError;
use crate::options::{DeleteOptions, ListOptions};
use crate::watch::WatchOptions;
use muster_proto::key::Key;

/// A frame may hold all that accumulated while the watch was not read; 500 busy nodes exceed tonic's limit of 4 MiB.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;

/// A kind that can be listed and watched. Its functions are the single calls beneath those of [`StoreClient`].
pub trait Resource: Record {
    /// The schema's message of a change.
    type WatchEvent: Send + 'static;

    /// The metadata of a message that was not validated yet.
    fn metadata(record: &Self::Pb) -> Option<&pb::Metadata>;

    /// The parts of a change.
    fn into_parts(event: Self::WatchEvent) -> WatchEventParts<Self::Pb>;

    fn call_list(
        client: &StoreClient,
        options: ListOptions,
    ) -> impl Future<Output = Result<Page<Self::Pb>, ClientError>> + Send;

    fn call_watch(
        client: &StoreClient,
        options: &WatchOptions,
        after: u64,
    ) -> impl Future<Output = Result<Streaming<WatchFrame<Self::WatchEvent>>, ClientError>> + Send;
}

/// A kind whose records can be read and deleted by name: all but events.
pub trait Named: Resource {
    fn call_get(client: &StoreClient, key: &Key) -> impl Future<Output = Result<Self, ClientError>> + Send;

    fn call_delete(
        client: &StoreClient,
        key: &Key,
        options: DeleteOptions,
    ) -> impl Future<Output = Result<Self, ClientError>> + Send;
}

/// A kind that clients can create and update as they like.
pub trait Stored: Named {
    fn call_create(
        client: &StoreClient,
        record: Self::Pb,
    ) -> impl Future<Output = Result<Self, ClientError>> + Send;

    fn call_update(
        client: &StoreClient,
        record: Self::Pb,
    ) -> impl Future<Output = Result<Self, ClientError>> + Send;
}

/// A kind whose status is updated separately from its spec.
pub trait HasStatus: Named {
    fn call_update_status(
        client: &StoreClient,
        record: Self::Pb,
    ) -> impl Future<Output = Result<Self, ClientError>> + Send;
}

/// A page of messages.
#[derive(Clone, Debug)]
pub struct Page<P> {
    pub records: Vec<P>,
    pub resource_version: u64,
    pub next_page_token: String,
}

/// A change as a message.
#[derive(Clone, Debug)]
pub struct WatchEventParts<P> {
    /// ADDED, MODIFIED, DELETED or BOOKMARK.
    pub kind: String,
    pub record: Option<P>,
    pub traceparent: String,
}

/// The record of a response, validated.
pub(crate) fn unwrap_record<R: Record>(record: Option<R::Pb>) -> Result<R, ClientError> {
    let record = record.ok_or_else(|| Invalid::of("", format_args!("the response has no {}", R::KIND)));
    record.and_then(R::try_from).map_err(ClientError::Unreadable)
}

/// Calls one rpc of a kind's service.
macro_rules! call {
    ($how:ident, $client:expr, $service:ident.$rpc:ident, $request:expr) => {
        $client
            .$how($request, |transport, request| async move {
                $service::new(transport).max_decoding_message_size(MAX_MESSAGE).$rpc(request).await
            })
            .await
    };
}

/// Implements a kind that can be listed and watched; `in namespace` for those that have one.
macro_rules! resource {
    ($kind:ty, $service:ident, $record:ident $(in $namespace:ident)?,
     list: $list:ident($List:ident) -> $records:ident, watch: $watch:ident($Watch:ident) -> $Event:ident) => {
        impl Resource for $kind {
            type WatchEvent = pb::$Event;

            fn metadata(record: &Self::Pb) -> Option<&pb::Metadata> {
                record.metadata.as_ref()
            }

            fn into_parts(event: pb::$Event) -> WatchEventParts<Self::Pb> {
                let pb::$Event { r#type: kind, $record: record, traceparent } = event;
                WatchEventParts { kind, record, traceparent }
            }

            async fn call_list(
                client: &StoreClient,
                options: ListOptions,
            ) -> Result<Page<Self::Pb>, ClientError> {
                let request = pb::$List {
                    $($namespace: options.namespace_text(),)?
                    resource_version_match: options.version_match_text(),
                    label_selector: options.label_selector,
                    field_selector: options.field_selector,
                    resource_version: options.resource_version,
                    page_size: options.page_size,
                    page_token: options.page_token,
                };
                let answer = call!(call, client, $service.$list, request)?;
                Ok(Page {
                    records: answer.$records,
                    resource_version: answer.resource_version,
                    next_page_token: answer.next_page_token,
                })
            }

            async fn call_watch(
                client: &StoreClient,
                options: &WatchOptions,
                after: u64,
            ) -> Result<Streaming<WatchFrame<pb::$Event>>, ClientError> {
                let request = pb::$Watch {
                    $($namespace: options.namespace_text(),)?
                    label_selector: options.label_selector.clone(),
                    field_selector: options.field_selector.clone(),
                    resource_version: after,
                    // Without a version the watch begins with the existing records, and a bookmark must end them.
                    send_initial_events: after == 0,
                    resource_version_match: if after == 0 { "NotOlderThan".to_owned() } else { String::new() },
                    allow_bookmarks: true,
                    timeout_seconds: options.timeout_seconds,
                };
                call!(open, client, $service.$watch, request)
            }
        }
    };
}

/// Implements a kind with names; `grace` for those with a grace period.
macro_rules! named {
    ($kind:ty, $service:ident, $record:ident $(in $namespace:ident)? $(with $grace:ident)?,
     get: $get:ident($Get:ident), delete: $delete:ident($Delete:ident)) => {
        impl Named for $kind {
            async fn call_get(client: &StoreClient, key: &Key) -> Result<Self, ClientError> {
                let request = pb::$Get { $($namespace: key.namespace_text(),)? name: key.name_text() };
                unwrap_record(call!(call, client, $service.$get, request)?.$record)
            }

            async fn call_delete(
                client: &StoreClient,
                key: &Key,
                options: DeleteOptions,
            ) -> Result<Self, ClientError> {
                let request = pb::$Delete {
                    $($namespace: key.namespace_text(),)?
                    name: key.name_text(),
                    preconditions: Some(options.preconditions.into()),
                    $($grace: options.grace_period_seconds,)?
                };
                unwrap_record(call!(call, client, $service.$delete, request)?.$record)
            }
        }
    };
}

/// Implements a kind that clients write.
macro_rules! stored {
    ($kind:ty, $service:ident, $record:ident $(in $namespace:ident)? $(with $grace:ident)?,
     create: $create:ident($Create:ident), get: $get:ident($Get:ident), update: $update:ident($Update:ident),
     delete: $delete:ident($Delete:ident)) => {
        named!(
            $kind, $service, $record $(in $namespace)? $(with $grace)?, get: $get($Get), delete: $delete($Delete)
        );

        impl Stored for $kind {
            async fn call_create(client: &StoreClient, record: Self::Pb) -> Result<Self, ClientError> {
                let request = pb::$Create { $record: Some(record) };
                unwrap_record(call!(call, client, $service.$create, request)?.$record)
            }

            async fn call_update(client: &StoreClient, record: Self::Pb) -> Result<Self, ClientError> {
                let request = pb::$Update { $record: Some(record) };
                unwrap_record(call!(call, client, $service.$update, request)?.$record)
            }
        }
    };
}

macro_rules! has_status {
    ($kind:ty, $service:ident, $record:ident, $update:ident($Update:ident)) => {
        impl HasStatus for $kind {
            async fn call_update_status(client: &StoreClient, record: Self::Pb) -> Result<Self, ClientError> {
                let request = pb::$Update { $record: Some(record) };
                unwrap_record(call!(call, client, $service.$update, request)?.$record)
            }
        }
    };
}

resource!(
    Node, NodeServiceClient, node,
    list: list_nodes(ListNodesRequest) -> nodes,
    watch: watch_nodes(WatchNodesRequest) -> NodeWatchEvent
);
stored!(
    Node, NodeServiceClient, node,
    create: create_node(CreateNodeRequest), get: get_node(GetNodeRequest),
    update: update_node(UpdateNodeRequest), delete: delete_node(DeleteNodeRequest)
);
has_status!(Node, NodeServiceClient, node, update_node_status(UpdateNodeStatusRequest));

resource!(
    Lease, LeaseServiceClient, lease in namespace,
    list: list_leases(ListLeasesRequest) -> leases,
    watch: watch_leases(WatchLeasesRequest) -> LeaseWatchEvent
);
stored!(
    Lease, LeaseServiceClient, lease in namespace,
    create: create_lease(CreateLeaseRequest), get: get_lease(GetLeaseRequest),
    update: update_lease(UpdateLeaseRequest), delete: delete_lease(DeleteLeaseRequest)
);

resource!(
    Pod, PodServiceClient, pod in namespace,
    list: list_pods(ListPodsRequest) -> pods,
    watch: watch_pods(WatchPodsRequest) -> PodWatchEvent
);
stored!(
    Pod, PodServiceClient, pod in namespace with grace_period_seconds,
    create: create_pod(CreatePodRequest), get: get_pod(GetPodRequest),
    update: update_pod(UpdatePodRequest), delete: delete_pod(DeletePodRequest)
);
has_status!(Pod, PodServiceClient, pod, update_pod_status(UpdatePodStatusRequest));

resource!(
    DisruptionBudget, DisruptionBudgetServiceClient, disruption_budget in namespace,
    list: list_disruption_budgets(ListDisruptionBudgetsRequest) -> disruption_budgets,
    watch: watch_disruption_budgets(WatchDisruptionBudgetsRequest) -> DisruptionBudgetWatchEvent
);
stored!(
    DisruptionBudget, DisruptionBudgetServiceClient, disruption_budget in namespace,
    create: create_disruption_budget(CreateDisruptionBudgetRequest),
    get: get_disruption_budget(GetDisruptionBudgetRequest),
    update: update_disruption_budget(UpdateDisruptionBudgetRequest),
    delete: delete_disruption_budget(DeleteDisruptionBudgetRequest)
);

resource!(
    PriorityClass, PriorityClassServiceClient, priority_class,
    list: list_priority_classes(ListPriorityClassesRequest) -> priority_classes,
    watch: watch_priority_classes(WatchPriorityClassesRequest) -> PriorityClassWatchEvent
);
stored!(
    PriorityClass, PriorityClassServiceClient, priority_class,
    create: create_priority_class(CreatePriorityClassRequest),
    get: get_priority_class(GetPriorityClassRequest),
    update: update_priority_class(UpdatePriorityClassRequest),
    delete: delete_priority_class(DeletePriorityClassRequest)
);

resource!(
    Event, EventServiceClient, event in namespace,
    list: list_events(ListEventsRequest) -> events,
    watch: watch_events(WatchEventsRequest) -> EventWatchEvent
);

resource!(
    JoinToken, JoinTokenServiceClient, join_token,
    list: list_join_tokens(ListJoinTokensRequest) -> join_tokens,
    watch: watch_join_tokens(WatchJoinTokensRequest) -> JoinTokenWatchEvent
);
named!(
    JoinToken, JoinTokenServiceClient, join_token,
    get: get_join_token(GetJoinTokenRequest), delete: delete_join_token(DeleteJoinTokenRequest)
);

resource!(
    CertificateRequest, CertificateRequestServiceClient, certificate_request,
    list: list_certificate_requests(ListCertificateRequestsRequest) -> certificate_requests,
    watch: watch_certificate_requests(WatchCertificateRequestsRequest) -> CertificateRequestWatchEvent
);
named!(
    CertificateRequest, CertificateRequestServiceClient, certificate_request,
    get: get_certificate_request(GetCertificateRequestRequest),
    delete: delete_certificate_request(DeleteCertificateRequestRequest)
);
has_status!(
    CertificateRequest,
    CertificateRequestServiceClient,
    certificate_request,
    update_certificate_request_status(UpdateCertificateRequestStatusRequest)
);

resource!(
    Revocation, RevocationServiceClient, revocation,
    list: list_revocations(ListRevocationsRequest) -> revocations,
    watch: watch_revocations(WatchRevocationsRequest) -> RevocationWatchEvent
);
named!(
    Revocation, RevocationServiceClient, revocation,
    get: get_revocation(GetRevocationRequest), delete: delete_revocation(DeleteRevocationRequest)
);
