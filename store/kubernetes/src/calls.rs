//! The calls of the store that requests become, alike for all kinds. Records stay encoded.

use bytes::Bytes;
use http::uri::PathAndQuery;
use muster_grpc::codec::SmallCodec;
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::DRY_RUN_KEY;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::watch::WatchFrame;
use muster_rpc::server::Calls;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Status, Streaming};

/// A frame may hold all that accumulated while the watch was not read.
const MAX_MESSAGE: usize = 64 << 20;

/// The calls of one caller.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    calls: Calls,
    /// The trace of the caller's request.
    traceparent: Option<MetadataValue<Ascii>>,
}

/// Which records to list or watch, alike for all kinds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) namespace: String,
    pub(crate) label_selector: String,
    pub(crate) field_selector: String,
    pub(crate) resource_version: u64,
    pub(crate) resource_version_match: String,
}

/// What must hold for a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions {
    pub(crate) uid: String,
    pub(crate) resource_version: u64,
}

/// One change, with its record encoded.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) record: Option<Bytes>,
}

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Create,
    Update,
    UpdateStatus,
}

impl Store {
    pub(crate) fn new(calls: Calls, traceparent: Option<&http::HeaderValue>) -> Store {
        let traceparent = traceparent.and_then(|value| MetadataValue::try_from(value.as_bytes()).ok());
        Store { calls, traceparent }
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    fn request<Q>(&self, message: Q, dry_run: bool) -> Request<Q> {
        let mut request = Request::new(message);
        if let Some(traceparent) = &self.traceparent {
            request.metadata_mut().insert("traceparent", traceparent.clone());
        }
        if dry_run {
            request.metadata_mut().insert(DRY_RUN_KEY, MetadataValue::from_static("true"));
        }
        request
    }

    async fn unary<Q, A>(&self, path: &'static str, message: Q, dry_run: bool) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let request = self.request(message, dry_run);
        let mut grpc = Grpc::new(self.calls.clone()).max_decoding_message_size(MAX_MESSAGE);
        let codec = SmallCodec::<Q, A>::default();
        grpc.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let answer = grpc.unary(request, PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    async fn record<Q: Message + Send + Sync + 'static>(
        &self,
        path: &'static str,
        message: Q,
        dry_run: bool,
    ) -> Result<Bytes, Status> {
        Ok(self.unary::<Q, EncodedRecord>(path, message, dry_run).await?.into())
    }

    /// One record.
    pub(crate) async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Bytes, Status> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        match kind {
            Kind::Node => {
                self.record("/muster.v1.NodeService/GetNode", pb::GetNodeRequest { name }, false).await
            }
            Kind::Pod => {
                self.record("/muster.v1.PodService/GetPod", pb::GetPodRequest { namespace, name }, false)
                    .await
            }
            Kind::Lease => {
                let message = pb::GetLeaseRequest { namespace, name };
                self.record("/muster.v1.LeaseService/GetLease", message, false).await
            }
            Kind::DisruptionBudget => {
                let message = pb::GetDisruptionBudgetRequest { namespace, name };
                self.record("/muster.v1.DisruptionBudgetService/GetDisruptionBudget", message, false).await
            }
            Kind::Event => {
                let field_selector = format!("metadata.name={name}");
                let selection = Selection { namespace, field_selector, ..Selection::default() };
                let found = self.list(kind, selection, 1, "").await?;
                found.records.into_iter().next().ok_or_else(|| Status::not_found("there is no such event"))
            }
            other => Err(unserved(other)),
        }
    }

    /// A page of records.
    pub(crate) async fn list(
        &self,
        kind: Kind,
        selection: Selection,
        page_size: u32,
        page_token: &str,
    ) -> Result<RecordList, Status> {
        let page_token = page_token.to_owned();
        let Selection { namespace, label_selector, field_selector, resource_version, resource_version_match } =
            selection;
        macro_rules! list {
            ($path:literal, $request:ident $(, $namespace:ident)?) => {{
                let message = pb::$request {
                    $($namespace,)?
                    label_selector, field_selector, resource_version, resource_version_match, page_size, page_token,
                };
                self.unary($path, message, false).await
            }};
        }
        match kind {
            Kind::Node => list!("/muster.v1.NodeService/ListNodes", ListNodesRequest),
            Kind::Pod => list!("/muster.v1.PodService/ListPods", ListPodsRequest, namespace),
            Kind::Lease => list!("/muster.v1.LeaseService/ListLeases", ListLeasesRequest, namespace),
            Kind::DisruptionBudget => list!(
                "/muster.v1.DisruptionBudgetService/ListDisruptionBudgets",
                ListDisruptionBudgetsRequest,
                namespace
            ),
            Kind::Event => list!("/muster.v1.EventService/ListEvents", ListEventsRequest, namespace),
            other => Err(unserved(other)),
        }
    }

    /// The changes after the selection's version, or the existing records first.
    pub(crate) async fn watch(
        &self,
        kind: Kind,
        selection: Selection,
        send_initial_events: bool,
        allow_bookmarks: bool,
        timeout_seconds: u32,
    ) -> Result<Streaming<WatchFrame<Event>>, Status> {
        let Selection { namespace, label_selector, field_selector, resource_version, resource_version_match } =
            selection;
        macro_rules! watch {
            ($path:literal, $request:ident $(, $namespace:ident)?) => {{
                let message = pb::$request {
                    $($namespace,)?
                    label_selector, field_selector, resource_version, resource_version_match, send_initial_events,
                    allow_bookmarks, timeout_seconds,
                };
                self.open($path, message).await
            }};
        }
        match kind {
            Kind::Node => watch!("/muster.v1.NodeService/WatchNodes", WatchNodesRequest),
            Kind::Pod => watch!("/muster.v1.PodService/WatchPods", WatchPodsRequest, namespace),
            Kind::Lease => watch!("/muster.v1.LeaseService/WatchLeases", WatchLeasesRequest, namespace),
            Kind::DisruptionBudget => watch!(
                "/muster.v1.DisruptionBudgetService/WatchDisruptionBudgets",
                WatchDisruptionBudgetsRequest,
                namespace
            ),
            Kind::Event => watch!("/muster.v1.EventService/WatchEvents", WatchEventsRequest, namespace),
            other => Err(unserved(other)),
        }
    }

    async fn open<Q: Message + Send + Sync + 'static>(
        &self,
        path: &'static str,
        message: Q,
    ) -> Result<Streaming<WatchFrame<Event>>, Status> {
        let mut grpc = Grpc::new(self.calls.clone()).max_decoding_message_size(MAX_MESSAGE);
        grpc.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let codec = SmallCodec::<Q, WatchFrame<Event>>::default();
        let request = self.request(message, false);
        Ok(grpc.server_streaming(request, PathAndQuery::from_static(path), codec).await?.into_inner())
    }

    /// Creates or replaces a record; the answer is the record as it is stored.
    pub(crate) async fn write(
        &self,
        kind: Kind,
        write: Write,
        record: Bytes,
        dry_run: bool,
    ) -> Result<Bytes, Status> {
        let path = match (kind, write) {
            (Kind::Node, Write::Create) => "/muster.v1.NodeService/CreateNode",
            (Kind::Node, Write::Update) => "/muster.v1.NodeService/UpdateNode",
            (Kind::Node, Write::UpdateStatus) => "/muster.v1.NodeService/UpdateNodeStatus",
            (Kind::Pod, Write::Create) => "/muster.v1.PodService/CreatePod",
            (Kind::Pod, Write::Update) => "/muster.v1.PodService/UpdatePod",
            (Kind::Pod, Write::UpdateStatus) => "/muster.v1.PodService/UpdatePodStatus",
            (Kind::Lease, Write::Create) => "/muster.v1.LeaseService/CreateLease",
            (Kind::Lease, Write::Update) => "/muster.v1.LeaseService/UpdateLease",
            (Kind::DisruptionBudget, Write::Create) => {
                "/muster.v1.DisruptionBudgetService/CreateDisruptionBudget"
            }
            (Kind::DisruptionBudget, Write::Update) => {
                "/muster.v1.DisruptionBudgetService/UpdateDisruptionBudget"
            }
            (Kind::Event, Write::Create) => "/muster.v1.EventService/RecordEvent",
            (other, _) => return Err(unserved(other)),
        };
        // The requests of all kinds have only the record, and its number is that of the answers.
        self.record(path, EncodedRecord::from(record), dry_run).await
    }

    /// Deletes a record; the answer is its last content, or what it is until its finalizers are gone.
    pub(crate) async fn delete(
        &self,
        kind: Kind,
        (namespace, name): (&str, &str),
        conditions: Conditions,
        grace_period_seconds: Option<i64>,
        dry_run: bool,
    ) -> Result<Bytes, Status> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let preconditions = Some(conditions.into());
        match kind {
            Kind::Node => {
                let message = pb::DeleteNodeRequest { name, preconditions };
                self.record("/muster.v1.NodeService/DeleteNode", message, dry_run).await
            }
            Kind::Pod => {
                let message = pb::DeletePodRequest { namespace, name, preconditions, grace_period_seconds };
                self.record("/muster.v1.PodService/DeletePod", message, dry_run).await
            }
            Kind::Lease => {
                let message = pb::DeleteLeaseRequest { namespace, name, preconditions };
                self.record("/muster.v1.LeaseService/DeleteLease", message, dry_run).await
            }
            Kind::DisruptionBudget => {
                let message = pb::DeleteDisruptionBudgetRequest { namespace, name, preconditions };
                let path = "/muster.v1.DisruptionBudgetService/DeleteDisruptionBudget";
                self.record(path, message, dry_run).await
            }
            other => Err(unserved(other)),
        }
    }

    /// Deletes a pod if its disruption budgets allow it.
    pub(crate) async fn evict(
        &self,
        (namespace, name): (&str, &str),
        conditions: Conditions,
        grace_period_seconds: Option<i64>,
        dry_run: bool,
    ) -> Result<Bytes, Status> {
        let delete_options =
            pb::PodDeleteOptions { preconditions: Some(conditions.into()), grace_period_seconds };
        let message = pb::EvictPodRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            delete_options: Some(delete_options),
            dry_run,
        };
        self.record("/muster.v1.PodService/EvictPod", message, false).await
    }

    /// Assigns a pod to a node.
    pub(crate) async fn bind(
        &self,
        (namespace, name): (&str, &str),
        node_name: String,
        conditions: Conditions,
        dry_run: bool,
    ) -> Result<Bytes, Status> {
        let message = pb::BindPodRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            node_name,
            preconditions: Some(conditions.into()),
        };
        self.record("/muster.v1.PodService/BindPod", message, dry_run).await
    }
}

impl From<Conditions> for pb::Preconditions {
    fn from(Conditions { uid, resource_version }: Conditions) -> Self {
        pb::Preconditions { uid, resource_version }
    }
}

fn unserved(kind: Kind) -> Status {
    Status::unimplemented(format!("{kind} records are not served as objects of Kubernetes"))
}
