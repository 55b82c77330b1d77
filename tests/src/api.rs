//! The store's API for one caller, over one connection.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::Future;

use muster_grpc::event_service_client::EventServiceClient;
use muster_grpc::heartbeat_service_client::HeartbeatServiceClient;
use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_proto::pb;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::audit_log::AuditLog;
use crate::resource::{
    Deletion, Frames, ListQuery, Page, ReceivedEvent, Resource, ResourceWithStatus, WatchQuery,
    WritableResource,
};
use crate::rpc_error::RpcError;
use crate::{fixtures, in_time};

/// The store's API for one caller.
#[derive(Debug, Clone)]
pub struct Api {
    channel: Channel,
    /// An administrator's connection, to check that a failed call changed nothing.
    admin: Channel,
    /// The store's audit log, to check that every denial is in it.
    audit: Option<AuditLog>,
}

impl Api {
    pub(crate) fn new(channel: Channel, admin: Channel) -> Self {
        Self { channel, admin, audit: None }
    }

    /// Expects every denial in this log.
    pub(crate) fn audited(self, log: &AuditLog) -> Self {
        Self { audit: Some(log.clone()), ..self }
    }

    /// The API for an administrator who uses that connection.
    pub fn of(channel: Channel) -> Self {
        Self::new(channel.clone(), channel)
    }

    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub async fn create<R: WritableResource>(&self, record: R) -> Result<R, Status> {
        in_time("a creation", R::create(self.channel(), record)).await
    }

    /// Reads by name: `namespace/name`, or the bare name of a node.
    pub async fn get<R: WritableResource>(&self, path: &str) -> Result<R, Status> {
        let (namespace, name) = split(path);
        in_time("a read", R::get(self.channel(), namespace, name)).await
    }

    pub async fn update<R: WritableResource>(&self, record: R) -> Result<R, Status> {
        in_time("an update", R::update(self.channel(), record)).await
    }

    pub async fn update_status<R: ResourceWithStatus>(&self, record: R) -> Result<R, Status> {
        in_time("an update of the status", R::update_status(self.channel(), record)).await
    }

    pub async fn delete<R: WritableResource>(&self, path: &str) -> Result<R, Status> {
        self.delete_with(path, Deletion::default()).await
    }

    pub async fn delete_with<R: WritableResource>(
        &self,
        path: &str,
        deletion: Deletion,
    ) -> Result<R, Status> {
        let (namespace, name) = split(path);
        in_time("a deletion", R::delete(self.channel(), namespace, name, deletion)).await
    }

    pub async fn list<R: Resource>(&self, query: ListQuery) -> Result<Page<R>, Status> {
        in_time("a list", R::list(self.channel(), query)).await
    }

    pub async fn watch<R: Resource>(&self, query: WatchQuery) -> Result<Watch<R>, Status> {
        let frames = in_time("the start of a watch", R::watch(self.channel(), query)).await?;
        Ok(Watch { frames, waiting: VecDeque::new() })
    }

    pub async fn bind(&self, path: &str, node: &str, still: Deletion) -> Result<pb::Pod, Status> {
        let (namespace, name) = split(path);
        let (node_name, preconditions) = (node.to_owned(), Some(still.preconditions()));
        let request = pb::BindPodRequest { namespace, name, node_name, preconditions };
        let mut pods = PodServiceClient::new(self.channel());
        Ok(in_time("a bind", pods.bind_pod(request)).await?.into_inner().pod.unwrap_or_default())
    }

    pub async fn evict(&self, path: &str) -> Result<pb::Pod, Status> {
        self.evict_with(path, Deletion::default(), false).await
    }

    pub async fn evict_with(&self, path: &str, how: Deletion, dry_run: bool) -> Result<pb::Pod, Status> {
        let (namespace, name) = split(path);
        let delete_options = Some(pb::PodDeleteOptions {
            preconditions: Some(how.preconditions()),
            grace_period_seconds: how.grace,
        });
        let request = pb::EvictPodRequest { namespace, name, delete_options, dry_run };
        let mut pods = PodServiceClient::new(self.channel());
        Ok(in_time("an eviction", pods.evict_pod(request)).await?.into_inner().pod.unwrap_or_default())
    }

    pub async fn renew(&self, path: &str, holder: &str) -> Result<pb::RenewLeaseResponse, Status> {
        let (namespace, name) = split(path);
        let request = pb::RenewLeaseRequest { namespace, name, holder_identity: holder.to_owned() };
        let mut leases = LeaseServiceClient::new(self.channel());
        Ok(in_time("a renewal", leases.renew_lease(request)).await?.into_inner())
    }

    pub async fn record(&self, event: pb::Event) -> Result<pb::Event, Status> {
        let mut events = EventServiceClient::new(self.channel());
        let recorded = events.record_event(pb::RecordEventRequest { event: Some(event) });
        Ok(in_time("an event", recorded).await?.into_inner().event.unwrap_or_default())
    }

    /// Opens a heartbeat stream, without a hello.
    pub async fn heartbeat(&self) -> HeartbeatStream {
        let (sender, said) = mpsc::unbounded_channel();
        let mut hearts = HeartbeatServiceClient::new(self.channel());
        let opened = hearts.heartbeat(UnboundedReceiverStream::new(said));
        let responses = in_time("a heartbeat stream", opened).await.expect("a stream can be opened");
        HeartbeatStream { sender, responses: responses.into_inner(), sequence: 0 }
    }

    /// Creates a node, and opens the heartbeat stream of its agent.
    pub async fn agent(&self, name: &str) -> HeartbeatStream {
        let created = self.create(fixtures::node(name)).await.expect("a node is created");
        let mut stream = self.heartbeat().await;
        let hello = pb::HeartbeatHello {
            node_name: name.to_owned(),
            node_uid: created.metadata.unwrap_or_default().uid,
            incarnation: "test".to_owned(),
            lease_duration: None,
        };
        stream.send(pb::heartbeat_request::Message::Hello(hello)).await.expect("the hello is accepted");
        stream
    }

    /// The store's current revision.
    pub async fn revision(&self) -> u64 {
        let nothing = ListQuery { page_size: 1, ..ListQuery::default() };
        let page = in_time("a list", pb::Node::list(self.admin.clone(), nothing)).await;
        page.expect("an administrator may list").version
    }

    /// The error of a call. The call must fail and must not change the store's revision. A denial must be in the
    /// audit log.
    pub async fn expect_error<T: Debug>(&self, call: impl Future<Output = Result<T, Status>>) -> RpcError {
        let before = self.revision().await;
        let status = match call.await {
            Ok(answer) => panic!("the call succeeded: {answer:?}"),
            Err(status) => status,
        };
        assert_eq!(self.revision().await, before, "a failed call changed the store's revision: {status:?}");
        if let Some(audit) = &self.audit {
            audit.expect_denial(&status).await;
        }
        RpcError::from(&status)
    }

    /// The answer of a call that must not change the store's revision.
    pub async fn without_a_write<T>(&self, call: impl Future<Output = Result<T, Status>>) -> T {
        let before = self.revision().await;
        let answer = call.await.expect("the call succeeds");
        assert_eq!(self.revision().await, before, "nothing should have been written");
        answer
    }
}

fn split(path: &str) -> (String, String) {
    let (namespace, name) = path.split_once('/').unwrap_or(("", path));
    (namespace.to_owned(), name.to_owned())
}

/// A watch being read.
pub struct Watch<R: Resource> {
    frames: Frames<R::Event>,
    waiting: VecDeque<R::Event>,
}

impl<R: Resource> Watch<R> {
    /// The next event.
    ///
    /// # Panics
    /// When none comes in time, or the stream ends.
    pub async fn next(&mut self) -> ReceivedEvent<R> {
        match in_time("the next event", self.try_next()).await {
            Ok(Some(seen)) => seen,
            Ok(None) => panic!("the watch ended"),
            Err(status) => panic!("the watch failed: {status:?}"),
        }
    }

    /// The next `count` events.
    pub async fn take(&mut self, count: usize) -> Vec<ReceivedEvent<R>> {
        let mut seen = Vec::new();
        for _ in 0..count {
            seen.push(self.next().await);
        }
        seen
    }

    /// Type, name and version of the next `count` events: `ADDED a 7`.
    pub async fn summaries(&mut self, count: usize) -> Vec<String> {
        self.take(count).await.iter().map(ReceivedEvent::summary).collect()
    }

    /// The error that the stream ends with; `None` when it ends without one.
    pub async fn end(&mut self) -> Option<RpcError> {
        match in_time("the end of the watch", self.try_next()).await {
            Ok(Some(seen)) => panic!("another event came: {seen:?}"),
            Ok(None) => None,
            Err(status) => Some(RpcError::from(&status)),
        }
    }

    async fn try_next(&mut self) -> Result<Option<ReceivedEvent<R>>, Status> {
        while self.waiting.is_empty() {
            match self.frames.message().await? {
                Some(frame) => self.waiting.extend(frame.events),
                None => return Ok(None),
            }
        }
        Ok(self.waiting.pop_front().map(R::received))
    }
}

impl<R: Resource> Debug for Watch<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a watch")
    }
}

impl<R: Resource> ReceivedEvent<R> {
    /// Type, name and version: `ADDED a 7`.
    pub fn summary(&self) -> String {
        format!("{} {} {}", self.kind, self.record.name(), self.record.version())
    }
}

/// The heartbeat stream of one agent.
pub struct HeartbeatStream {
    sender: mpsc::UnboundedSender<pb::HeartbeatRequest>,
    responses: Streaming<pb::HeartbeatResponse>,
    sequence: u64,
}

impl HeartbeatStream {
    /// Sends a message and waits for its response.
    pub async fn send(
        &mut self,
        message: pb::heartbeat_request::Message,
    ) -> Result<pb::HeartbeatResponse, Status> {
        in_time("an answer to a heartbeat", self.send_patiently(message)).await
    }

    /// Renews the lease, however long the response takes.
    pub async fn renew_patiently(&mut self) -> Result<pb::HeartbeatResponse, Status> {
        let renewal = pb::HeartbeatRenewal { status_digest: 7, status_age_millis: 100 };
        self.send_patiently(pb::heartbeat_request::Message::Renewal(renewal)).await
    }

    async fn send_patiently(
        &mut self,
        message: pb::heartbeat_request::Message,
    ) -> Result<pb::HeartbeatResponse, Status> {
        self.sequence += 1;
        let request = pb::HeartbeatRequest { sequence: self.sequence, message: Some(message) };
        // If the stream has ended, reading from it below returns the reason.
        let _ = self.sender.send(request);
        loop {
            match self.responses.message().await? {
                Some(answer) if answer.sequence < self.sequence => {}
                Some(answer) => return Ok(answer),
                None => panic!("the heartbeat stream ended without an error"),
            }
        }
    }

    /// The error that the stream ends with, without a further message.
    ///
    /// # Panics
    /// When it does not end in time, or ends without an error.
    pub async fn end(&mut self) -> RpcError {
        loop {
            match in_time("the end of a heartbeat stream", self.responses.message()).await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the heartbeat stream ended without an error"),
                Err(status) => return RpcError::from(&status),
            }
        }
    }
}
