//! One generic interface to the generated clients: create, get, list, update, delete and watch for every kind.

use std::fmt::Debug;
use std::future::Future;

use muster_grpc::disruption_budget_service_client::DisruptionBudgetServiceClient;
use muster_grpc::event_service_client::EventServiceClient;
use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_grpc::priority_class_service_client::PriorityClassServiceClient;
use muster_proto::pb;
use muster_proto::watch::WatchFrame;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// Parameters of a list; by default it lists everything.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    pub namespace: &'static str,
    pub labels: &'static str,
    pub fields: &'static str,
    pub version: u64,
    pub version_match: &'static str,
    pub page_size: u32,
    pub page_token: String,
}

/// Parameters of a watch; by default it sends all current records and all later changes.
#[derive(Debug, Clone, Default)]
pub struct WatchQuery {
    pub namespace: &'static str,
    pub labels: &'static str,
    pub fields: &'static str,
    pub version: u64,
    pub version_match: &'static str,
    pub initial_events: bool,
    pub bookmarks: bool,
    pub seconds: u32,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<R> {
    pub records: Vec<R>,
    pub version: u64,
    pub next: String,
}

/// Options of a deletion.
#[derive(Debug, Clone, Default)]
pub struct Deletion {
    pub uid: String,
    pub version: u64,
    /// Pods only.
    pub grace: Option<i64>,
}

impl Deletion {
    pub fn preconditions(&self) -> pb::Preconditions {
        pb::Preconditions { uid: self.uid.clone(), resource_version: self.version }
    }
}

/// One event that a watch received.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedEvent<R> {
    pub kind: String,
    pub record: R,
}

pub type Frames<E> = Streaming<WatchFrame<E>>;

/// A kind of record that can be listed and watched.
pub trait Resource: Clone + Debug + PartialEq + Send + Sync + 'static {
    type Event: prost::Message + Default + 'static;

    fn metadata_mut(&mut self) -> &mut Option<pb::Metadata>;

    fn metadata(&self) -> Option<&pb::Metadata>;

    fn list(channel: Channel, query: ListQuery) -> impl Future<Output = Result<Page<Self>, Status>> + Send;

    fn watch(
        channel: Channel,
        query: WatchQuery,
    ) -> impl Future<Output = Result<Frames<Self::Event>, Status>> + Send;

    fn received(event: Self::Event) -> ReceivedEvent<Self>;

    fn name(&self) -> &str {
        self.metadata().map_or("", |metadata| &metadata.name)
    }

    fn namespace(&self) -> &str {
        self.metadata().map_or("", |metadata| &metadata.namespace)
    }

    fn uid(&self) -> &str {
        self.metadata().map_or("", |metadata| &metadata.uid)
    }

    fn version(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.resource_version)
    }
}

/// A kind of record that is created, read, updated and deleted by name.
pub trait WritableResource: Resource {
    fn create(channel: Channel, record: Self) -> impl Future<Output = Result<Self, Status>> + Send;

    fn get(
        channel: Channel,
        namespace: String,
        name: String,
    ) -> impl Future<Output = Result<Self, Status>> + Send;

    fn update(channel: Channel, record: Self) -> impl Future<Output = Result<Self, Status>> + Send;

    fn delete(
        channel: Channel,
        namespace: String,
        name: String,
        deletion: Deletion,
    ) -> impl Future<Output = Result<Self, Status>> + Send;
}

/// A kind of record that has a separate update of its status.
pub trait ResourceWithStatus: WritableResource {
    fn update_status(channel: Channel, record: Self) -> impl Future<Output = Result<Self, Status>> + Send;
}

macro_rules! wire {
    (
        $kind:ident, $event:ident, $client:ident, $field:ident, $many:ident,
        list: $list:ident $list_request:ident, watch: $watch:ident $watch_request:ident
        $(, $namespace:ident)?
    ) => {
        impl Resource for pb::$kind {
            type Event = pb::$event;

            fn metadata_mut(&mut self) -> &mut Option<pb::Metadata> {
                &mut self.metadata
            }

            fn metadata(&self) -> Option<&pb::Metadata> {
                self.metadata.as_ref()
            }

            async fn list(channel: Channel, query: ListQuery) -> Result<Page<Self>, Status> {
                let request = pb::$list_request {
                    $($namespace: query.namespace.to_owned(),)?
                    label_selector: query.labels.to_owned(),
                    field_selector: query.fields.to_owned(),
                    resource_version: query.version,
                    resource_version_match: query.version_match.to_owned(),
                    page_size: query.page_size,
                    page_token: query.page_token,
                };
                let answer = $client::new(channel).$list(request).await?.into_inner();
                let (version, next) = (answer.resource_version, answer.next_page_token);
                Ok(Page { records: answer.$many, version, next })
            }

            async fn watch(channel: Channel, query: WatchQuery) -> Result<Frames<Self::Event>, Status> {
                let request = pb::$watch_request {
                    $($namespace: query.namespace.to_owned(),)?
                    label_selector: query.labels.to_owned(),
                    field_selector: query.fields.to_owned(),
                    resource_version: query.version,
                    resource_version_match: query.version_match.to_owned(),
                    send_initial_events: query.initial_events,
                    allow_bookmarks: query.bookmarks,
                    timeout_seconds: query.seconds,
                };
                Ok($client::new(channel).$watch(request).await?.into_inner())
            }

            fn received(event: Self::Event) -> ReceivedEvent<Self> {
                ReceivedEvent { kind: event.r#type, record: event.$field.unwrap_or_default() }
            }
        }
    };
}

macro_rules! kept {
    (
        $kind:ident, $client:ident, $field:ident,
        $create:ident $create_request:ident, $get:ident $get_request:ident,
        $update:ident $update_request:ident, $delete:ident $delete_request:ident,
        [$($namespace:ident)?], [$($grace:ident)?]
    ) => {
        impl WritableResource for pb::$kind {
            async fn create(channel: Channel, record: Self) -> Result<Self, Status> {
                let request = pb::$create_request { $field: Some(record) };
                Ok($client::new(channel).$create(request).await?.into_inner().$field.unwrap_or_default())
            }

            #[allow(unused_variables)]
            async fn get(channel: Channel, space: String, name: String) -> Result<Self, Status> {
                let request = pb::$get_request { $($namespace: space,)? name };
                Ok($client::new(channel).$get(request).await?.into_inner().$field.unwrap_or_default())
            }

            async fn update(channel: Channel, record: Self) -> Result<Self, Status> {
                let request = pb::$update_request { $field: Some(record) };
                Ok($client::new(channel).$update(request).await?.into_inner().$field.unwrap_or_default())
            }

            #[allow(unused_variables)]
            async fn delete(
                channel: Channel,
                space: String,
                name: String,
                deletion: Deletion,
            ) -> Result<Self, Status> {
                let request = pb::$delete_request {
                    $($namespace: space,)?
                    name,
                    preconditions: Some(deletion.preconditions()),
                    $($grace: deletion.grace,)?
                };
                Ok($client::new(channel).$delete(request).await?.into_inner().$field.unwrap_or_default())
            }
        }
    };
}

wire!(Node, NodeWatchEvent, NodeServiceClient, node, nodes,
    list: list_nodes ListNodesRequest, watch: watch_nodes WatchNodesRequest);
wire!(Lease, LeaseWatchEvent, LeaseServiceClient, lease, leases,
    list: list_leases ListLeasesRequest, watch: watch_leases WatchLeasesRequest, namespace);
wire!(Pod, PodWatchEvent, PodServiceClient, pod, pods,
    list: list_pods ListPodsRequest, watch: watch_pods WatchPodsRequest, namespace);
wire!(DisruptionBudget, DisruptionBudgetWatchEvent, DisruptionBudgetServiceClient, disruption_budget,
    disruption_budgets, list: list_disruption_budgets ListDisruptionBudgetsRequest,
    watch: watch_disruption_budgets WatchDisruptionBudgetsRequest, namespace);
wire!(PriorityClass, PriorityClassWatchEvent, PriorityClassServiceClient, priority_class, priority_classes,
    list: list_priority_classes ListPriorityClassesRequest,
    watch: watch_priority_classes WatchPriorityClassesRequest);
wire!(Event, EventWatchEvent, EventServiceClient, event, events,
    list: list_events ListEventsRequest, watch: watch_events WatchEventsRequest, namespace);

kept!(
    Node, NodeServiceClient, node,
    create_node CreateNodeRequest, get_node GetNodeRequest,
    update_node UpdateNodeRequest, delete_node DeleteNodeRequest, [], []
);
kept!(
    Lease, LeaseServiceClient, lease,
    create_lease CreateLeaseRequest, get_lease GetLeaseRequest,
    update_lease UpdateLeaseRequest, delete_lease DeleteLeaseRequest, [namespace], []
);
kept!(
    Pod, PodServiceClient, pod,
    create_pod CreatePodRequest, get_pod GetPodRequest,
    update_pod UpdatePodRequest, delete_pod DeletePodRequest, [namespace], [grace_period_seconds]
);
kept!(
    DisruptionBudget, DisruptionBudgetServiceClient, disruption_budget,
    create_disruption_budget CreateDisruptionBudgetRequest,
    get_disruption_budget GetDisruptionBudgetRequest,
    update_disruption_budget UpdateDisruptionBudgetRequest,
    delete_disruption_budget DeleteDisruptionBudgetRequest, [namespace], []
);
kept!(
    PriorityClass, PriorityClassServiceClient, priority_class,
    create_priority_class CreatePriorityClassRequest,
    get_priority_class GetPriorityClassRequest,
    update_priority_class UpdatePriorityClassRequest,
    delete_priority_class DeletePriorityClassRequest, [], []
);

impl ResourceWithStatus for pb::Node {
    async fn update_status(channel: Channel, record: Self) -> Result<Self, Status> {
        let request = pb::UpdateNodeStatusRequest { node: Some(record) };
        let answer = NodeServiceClient::new(channel).update_node_status(request).await?;
        Ok(answer.into_inner().node.unwrap_or_default())
    }
}

impl ResourceWithStatus for pb::Pod {
    async fn update_status(channel: Channel, record: Self) -> Result<Self, Status> {
        let request = pb::UpdatePodStatusRequest { pod: Some(record) };
        let answer = PodServiceClient::new(channel).update_pod_status(request).await?;
        Ok(answer.into_inner().pod.unwrap_or_default())
    }
}
