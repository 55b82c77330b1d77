//! The store as one caller sees it, over one connection.

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

use crate::patiently;
use crate::resource::{Deletion, Follow, Frames, Kept, Page, Query, Reported, Seen, Wire};
use crate::rpc_error::Refusal;

/// The store as one caller sees it.
#[derive(Debug, Clone)]
pub struct Api {
    channel: Channel,
    /// An administrator's connection, to see what a refused call has left behind.
    overseer: Channel,
}

impl Api {
    pub(crate) fn new(channel: Channel, overseer: Channel) -> Self {
        Self { channel, overseer }
    }

    /// The store as its administrator sees it over that connection.
    pub fn of(channel: Channel) -> Self {
        Self::new(channel.clone(), channel)
    }

    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub async fn create<R: Kept>(&self, record: R) -> Result<R, Status> {
        patiently("a creation", R::create(self.channel(), record)).await
    }

    /// Reads by name: `namespace/name`, or the bare name of a node.
    pub async fn get<R: Kept>(&self, path: &str) -> Result<R, Status> {
        let (namespace, name) = split(path);
        patiently("a read", R::get(self.channel(), namespace, name)).await
    }

    pub async fn update<R: Kept>(&self, record: R) -> Result<R, Status> {
        patiently("an update", R::update(self.channel(), record)).await
    }

    pub async fn update_status<R: Reported>(&self, record: R) -> Result<R, Status> {
        patiently("an update of the status", R::update_status(self.channel(), record)).await
    }

    pub async fn delete<R: Kept>(&self, path: &str) -> Result<R, Status> {
        self.delete_with(path, Deletion::default()).await
    }

    pub async fn delete_with<R: Kept>(&self, path: &str, deletion: Deletion) -> Result<R, Status> {
        let (namespace, name) = split(path);
        patiently("a deletion", R::delete(self.channel(), namespace, name, deletion)).await
    }

    pub async fn list<R: Wire>(&self, query: Query) -> Result<Page<R>, Status> {
        patiently("a list", R::list(self.channel(), query)).await
    }

    pub async fn watch<R: Wire>(&self, follow: Follow) -> Result<Watch<R>, Status> {
        let frames = patiently("the start of a watch", R::watch(self.channel(), follow)).await?;
        Ok(Watch { frames, waiting: VecDeque::new() })
    }

    pub async fn bind(&self, path: &str, node: &str, still: Deletion) -> Result<pb::Pod, Status> {
        let (namespace, name) = split(path);
        let (node_name, preconditions) = (node.to_owned(), Some(still.preconditions()));
        let request = pb::BindPodRequest { namespace, name, node_name, preconditions };
        let mut pods = PodServiceClient::new(self.channel());
        Ok(patiently("a bind", pods.bind_pod(request)).await?.into_inner().pod.unwrap_or_default())
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
        Ok(patiently("an eviction", pods.evict_pod(request)).await?.into_inner().pod.unwrap_or_default())
    }

    pub async fn renew(&self, path: &str, holder: &str) -> Result<pb::RenewLeaseResponse, Status> {
        let (namespace, name) = split(path);
        let request = pb::RenewLeaseRequest { namespace, name, holder_identity: holder.to_owned() };
        let mut leases = LeaseServiceClient::new(self.channel());
        Ok(patiently("a renewal", leases.renew_lease(request)).await?.into_inner())
    }

    pub async fn record(&self, event: pb::Event) -> Result<pb::Event, Status> {
        let mut events = EventServiceClient::new(self.channel());
        let recorded = events.record_event(pb::RecordEventRequest { event: Some(event) });
        Ok(patiently("an event", recorded).await?.into_inner().event.unwrap_or_default())
    }

    /// Opens a heartbeat stream on which nothing was said yet.
    pub async fn heartbeat(&self) -> Heart {
        let (says, said) = mpsc::unbounded_channel();
        let mut hearts = HeartbeatServiceClient::new(self.channel());
        let opened = hearts.heartbeat(UnboundedReceiverStream::new(said));
        let hears = patiently("a heartbeat stream", opened).await.expect("a stream can be opened");
        Heart { says, hears: hears.into_inner(), sequence: 0 }
    }

    /// Where the store's history stands.
    pub async fn head(&self) -> u64 {
        let nothing = Query { page_size: 1, ..Query::default() };
        let page = patiently("a list", pb::Node::list(self.overseer.clone(), nothing)).await;
        page.expect("an administrator may list").version
    }

    /// What a call is refused with; it must be, and must leave the store's version where it was.
    pub async fn refused<T: Debug>(&self, call: impl Future<Output = Result<T, Status>>) -> Refusal {
        let before = self.head().await;
        let status = match call.await {
            Ok(answer) => panic!("it was granted: {answer:?}"),
            Err(status) => status,
        };
        assert_eq!(self.head().await, before, "a refused call moved the store's version: {status:?}");
        Refusal::from(&status)
    }

    /// What a call comes to that must not move the store's version.
    pub async fn without_a_write<T>(&self, call: impl Future<Output = Result<T, Status>>) -> T {
        let before = self.head().await;
        let answer = call.await.expect("the call is granted");
        assert_eq!(self.head().await, before, "nothing should have been written");
        answer
    }
}

fn split(path: &str) -> (String, String) {
    let (namespace, name) = path.split_once('/').unwrap_or(("", path));
    (namespace.to_owned(), name.to_owned())
}

/// A watch being read.
pub struct Watch<R: Wire> {
    frames: Frames<R::Event>,
    waiting: VecDeque<R::Event>,
}

impl<R: Wire> Watch<R> {
    /// The next event.
    ///
    /// # Panics
    /// When none comes in time, or the stream ends.
    pub async fn next(&mut self) -> Seen<R> {
        match patiently("the next event", self.try_next()).await {
            Ok(Some(seen)) => seen,
            Ok(None) => panic!("the watch ended"),
            Err(status) => panic!("the watch failed: {status:?}"),
        }
    }

    /// The next so many events.
    pub async fn take(&mut self, count: usize) -> Vec<Seen<R>> {
        let mut seen = Vec::new();
        for _ in 0..count {
            seen.push(self.next().await);
        }
        seen
    }

    /// The next so many events, told in short: `ADDED a 7`.
    pub async fn told(&mut self, count: usize) -> Vec<String> {
        self.take(count).await.iter().map(Seen::told).collect()
    }

    /// What the stream ends with instead of a further event; `None` for a good end.
    pub async fn end(&mut self) -> Option<Refusal> {
        match patiently("the end of the watch", self.try_next()).await {
            Ok(Some(seen)) => panic!("the watch goes on: {seen:?}"),
            Ok(None) => None,
            Err(status) => Some(Refusal::from(&status)),
        }
    }

    async fn try_next(&mut self) -> Result<Option<Seen<R>>, Status> {
        while self.waiting.is_empty() {
            match self.frames.message().await? {
                Some(frame) => self.waiting.extend(frame.events),
                None => return Ok(None),
            }
        }
        Ok(self.waiting.pop_front().map(R::seen))
    }
}

impl<R: Wire> Debug for Watch<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a watch")
    }
}

impl<R: Wire> Seen<R> {
    /// In short: `ADDED a 7`.
    pub fn told(&self) -> String {
        format!("{} {} {}", self.kind, self.record.name(), self.record.version())
    }
}

/// One agent's stream.
pub struct Heart {
    says: mpsc::UnboundedSender<pb::HeartbeatRequest>,
    hears: Streaming<pb::HeartbeatResponse>,
    sequence: u64,
}

impl Heart {
    /// Says something and waits for the answer to it.
    pub async fn say(
        &mut self,
        message: pb::heartbeat_request::Message,
    ) -> Result<pb::HeartbeatResponse, Status> {
        self.sequence += 1;
        let request = pb::HeartbeatRequest { sequence: self.sequence, message: Some(message) };
        // A stream that is over says why when it is listened to.
        let _ = self.says.send(request);
        loop {
            match patiently("an answer to a heartbeat", self.hears.message()).await? {
                Some(answer) if answer.sequence < self.sequence => {}
                Some(answer) => return Ok(answer),
                None => panic!("the heartbeat stream ended without a word"),
            }
        }
    }
}
