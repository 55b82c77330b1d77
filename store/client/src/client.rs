//! Typed calls to the store on domain types, always with a deadline.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use jiff::Timestamp;
use muster_grpc::event_service_client::EventServiceClient;
use muster_grpc::heartbeat_service_client::HeartbeatServiceClient;
use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_proto::event::Event;
use muster_proto::fence::{FENCE_KEY, Fence};
use muster_proto::name::Name;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_rpc::clock::SharedClock;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Response, Status, Streaming};

use crate::endpoints::{EndpointError, Ring, StoreEndpoints, Transport};
use crate::error::{ClientError, found_its_connection_closed, is_other_store, was_never_sent};
use crate::options::{DeleteOptions, EvictOptions, List, ListOptions, Preconditions, Unreadable};
use crate::resource::{HasStatus, Named, Page, Resource, Stored, unwrap_record};
use crate::watch::{Watch, WatchOptions};
use muster_proto::key::Key;

/// The default page size: small enough for one response, large enough that 100,000 nodes take 200 calls.
const PAGE_SIZE: u32 = 500;

/// A client of the store. Clones share their connections.
#[derive(Clone)]
pub struct StoreClient {
    ring: Arc<Ring>,
    deadline: Duration,
    clock: SharedClock,
    fence: Option<AsciiMetadataValue>,
}

impl StoreClient {
    /// A client of these stores; connections are made when first needed. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When there is no address or one cannot be used.
    pub fn connect(endpoints: StoreEndpoints) -> Result<StoreClient, EndpointError> {
        let ring = Arc::new(Ring::new(&endpoints)?);
        Ok(StoreClient { ring, deadline: endpoints.deadline, clock: endpoints.clock, fence: None })
    }

    /// The same client with another deadline for its calls.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> StoreClient {
        StoreClient { deadline, ..self.clone() }
    }

    /// The same client for the holder of a lease: its writes are refused with [`ClientError::Fenced`] once the lease
    /// has another holder. Reads, watches and heartbeats are not affected.
    #[must_use]
    pub fn with_fence(&self, fence: Option<&Fence>) -> StoreClient {
        let value = |fence: &Fence| fence.to_string().parse().expect("a fence is visible ASCII");
        StoreClient { fence: fence.map(value), ..self.clone() }
    }

    /// Drops the connection to the store in use and begins with the next one; all clones do.
    ///
    /// For callers that get no answers although the connection looks healthy: a dead connection may not be detected for
    /// long.
    pub fn redial(&self) {
        self.ring.redial();
    }

    /// # Errors
    /// [`ClientError::AlreadyExists`] when the name is taken; any [`ClientError`].
    pub async fn create<R: Stored>(&self, record: R) -> Result<R, ClientError> {
        R::call_create(self, record.into()).await
    }

    /// # Errors
    /// [`ClientError::NotFound`]; any [`ClientError`].
    pub async fn get<R: Named>(&self, key: &Key) -> Result<R, ClientError> {
        R::call_get(self, key).await
    }

    /// Replaces metadata and spec. A record that carries a version is written only while that is current.
    ///
    /// # Errors
    /// [`ClientError::Conflict`] when it is not; any [`ClientError`].
    pub async fn update<R: Stored>(&self, record: R) -> Result<R, ClientError> {
        R::call_update(self, record.into()).await
    }

    /// Replaces status, labels and annotations. A record that carries a version is written only while that is current.
    ///
    /// # Errors
    /// [`ClientError::Conflict`] when it is not; any [`ClientError`].
    pub async fn update_status<R: HasStatus>(&self, record: R) -> Result<R, ClientError> {
        R::call_update_status(self, record.into()).await
    }

    /// Deletes a record, or begins its deletion; returns the record after that.
    ///
    /// # Errors
    /// [`ClientError::Conflict`] when a precondition does not hold; any [`ClientError`].
    pub async fn delete<R: Named>(&self, key: &Key, options: DeleteOptions) -> Result<R, ClientError> {
        R::call_delete(self, key, options).await
    }

    /// All records that match, as of one revision; reads all pages.
    ///
    /// # Errors
    /// Any [`ClientError`]; [`ClientError::Expired`] when reading took longer than the store keeps history.
    pub async fn list<R: Resource>(&self, options: ListOptions) -> Result<List<R>, ClientError> {
        let page_size = if options.page_size == 0 { PAGE_SIZE } else { options.page_size };
        let mut options = ListOptions { page_size, ..options };
        let mut list: List<R> = self.list_page(options.clone()).await?;
        while !list.next_page_token.is_empty() {
            options.page_token = std::mem::take(&mut list.next_page_token);
            let page = self.list_page(options.clone()).await?;
            list.records.extend(page.records);
            list.unreadable.extend(page.unreadable);
            list.next_page_token = page.next_page_token;
        }
        Ok(list)
    }

    /// One page of the records that match; `next_page_token` of the result asks for the next one.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn list_page<R: Resource>(&self, options: ListOptions) -> Result<List<R>, ClientError> {
        R::call_list(self, options).await.map(check_page)
    }

    /// Watches the records that match: a stream of events that never ends and reconnects after any loss of the store.
    pub fn watch<R: Resource>(&self, options: WatchOptions) -> Watch<R> {
        Watch::new(self.clone(), options)
    }

    /// Assigns a pod to a node.
    ///
    /// # Errors
    /// [`ClientError::Conflict`] when it has one already; any [`ClientError`].
    pub async fn bind(&self, pod: &Key, node: &Name, still: Preconditions) -> Result<Pod, ClientError> {
        let request = pb::BindPodRequest {
            namespace: pod.namespace_text(),
            name: pod.name_text(),
            node_name: node.as_str().to_owned(),
            preconditions: Some(still.into()),
        };
        let answer = self.call(request, |transport, request| async move {
            PodServiceClient::new(transport).bind_pod(request).await
        });
        unwrap_record(answer.await?.pod)
    }

    /// Deletes a pod gracefully if its disruption budgets allow it.
    ///
    /// # Errors
    /// [`ClientError::BudgetExhausted`] when a budget does not allow it now; any [`ClientError`].
    pub async fn evict(&self, pod: &Key, options: EvictOptions) -> Result<Pod, ClientError> {
        let delete_options = pb::PodDeleteOptions {
            preconditions: Some(options.delete.preconditions.into()),
            grace_period_seconds: options.delete.grace_period_seconds,
        };
        let request = pb::EvictPodRequest {
            namespace: pod.namespace_text(),
            name: pod.name_text(),
            delete_options: Some(delete_options),
            dry_run: options.dry_run,
        };
        let answer = self.call(request, |transport, request| async move {
            PodServiceClient::new(transport).evict_pod(request).await
        });
        unwrap_record(answer.await?.pod)
    }

    /// Renews a lease, by the store's clock.
    ///
    /// # Errors
    /// [`ClientError::Conflict`] when the lease has another holder; any [`ClientError`].
    pub async fn renew(&self, lease: &Key, holder: &str) -> Result<Renewal, ClientError> {
        let request = pb::RenewLeaseRequest {
            namespace: lease.namespace_text(),
            name: lease.name_text(),
            holder_identity: holder.to_owned(),
        };
        let answer = self.call(request, |transport, request| async move {
            LeaseServiceClient::new(transport).renew_lease(request).await
        });
        let answer = answer.await?;
        let renew_time = answer.renew_time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok());
        Ok(Renewal { resource_version: answer.resource_version, renew_time })
    }

    /// Records that something happened, or that it happened again.
    ///
    /// # Errors
    /// Any [`ClientError`]; no action may depend on it.
    pub async fn record_event(&self, event: Event) -> Result<Event, ClientError> {
        let request = pb::RecordEventRequest { event: Some(event.into()) };
        let answer = self.call(request, |transport, request| async move {
            EventServiceClient::new(transport).record_event(request).await
        });
        unwrap_record(answer.await?.event)
    }

    /// Opens a heartbeat stream: sends `requests`, returns the responses. It lasts until either side ends it.
    ///
    /// # Errors Any [`ClientError`]. An unreachable store fails this call, without a second store: `requests` can be
    /// sent only once.
    pub async fn heartbeat(
        &self,
        requests: impl Stream<Item = pb::HeartbeatRequest> + Send + 'static,
    ) -> Result<Streaming<pb::HeartbeatResponse>, ClientError> {
        let (index, transport) = self.ring.in_order().next().expect("a ring has at least one store");
        let mut client = HeartbeatServiceClient::new(transport);
        let opened = match tokio::time::timeout(self.deadline, client.heartbeat(requests)).await {
            Ok(opened) => opened,
            Err(_) => Err(Status::deadline_exceeded("no heartbeat stream in time")),
        };
        opened.map(Response::into_inner).map_err(|status| self.fail(index, status))
    }

    /// One unary call: sent with the deadline, to another store if the one in use cannot be connected to.
    pub(crate) async fn call<Q, A, F, Fut>(&self, message: Q, send: F) -> Result<A, ClientError>
    where
        Q: Clone + Send + Sync,
        F: Fn(Transport, Request<Q>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<Response<A>, Status>> + Send,
    {
        self.reach(|transport| {
            let mut request = Request::new(message.clone());
            request.set_timeout(self.deadline);
            if let Some(fence) = &self.fence {
                request.metadata_mut().insert(FENCE_KEY, fence.clone());
            }
            send(transport, request)
        })
        .await
    }

    /// Opens a response stream. The deadline applies to its opening only and is not sent to the store, which would end
    /// the stream by it.
    pub(crate) async fn open<Q, A, F, Fut>(&self, message: Q, send: F) -> Result<Streaming<A>, ClientError>
    where
        Q: Clone + Send + Sync,
        F: Fn(Transport, Request<Q>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<Response<Streaming<A>>, Status>> + Send,
    {
        self.reach(|transport| send(transport, Request::new(message.clone()))).await
    }

    async fn reach<A, F, Fut>(&self, send: F) -> Result<A, ClientError>
    where
        F: Fn(Transport) -> Fut + Send + Sync,
        Fut: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let attempts = async {
            let mut unreachable = Status::unavailable("no store could be reached");
            for (index, transport) in self.ring.in_order() {
                let mut answer = send(transport.clone()).await;
                if answer.as_ref().is_err_and(found_its_connection_closed) {
                    answer = send(transport).await;
                }
                match answer {
                    Ok(answer) => {
                        self.ring.settle_on(index);
                        return Ok(answer.into_inner());
                    }
                    // An address of another store is the operator's mistake; that the others are down may not be.
                    Err(status) if was_never_sent(&status) && is_other_store(&unreachable) => drop(status),
                    Err(status) if was_never_sent(&status) => unreachable = status,
                    Err(status) => {
                        self.ring.settle_on(index);
                        return Err(self.fail(index, status));
                    }
                }
            }
            Err(unreachable.into())
        };
        // The store also enforces the deadline; this timeout includes the time to connect.
        match tokio::time::timeout(self.deadline, attempts).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::DeadlineExceeded),
        }
    }

    /// Converts the error of a call that is not repeated. After `Unavailable` the next call goes to the next store.
    fn fail(&self, index: usize, status: Status) -> ClientError {
        let error = ClientError::from(status);
        if matches!(error, ClientError::Unavailable(_)) {
            self.ring.move_on_from(index);
        }
        error
    }

    /// How often the store at the only address was replaced by another one.
    pub(crate) fn store_changes(&self) -> u64 {
        self.ring.identity().changes()
    }

    pub(crate) fn clock(&self) -> &SharedClock {
        &self.clock
    }
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClient").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A renewal that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The lease's new version.
    pub resource_version: u64,
    /// The time of the renewal, by the store's clock.
    pub renew_time: Option<Timestamp>,
}

fn check_page<R: Resource>(page: Page<R::Pb>) -> List<R> {
    let mut records = Vec::with_capacity(page.records.len());
    let mut unreadable = Vec::new();
    for record in page.records {
        match read(record) {
            Ok(record) => records.push(record),
            Err(it) => unreadable.push(it),
        }
    }
    let Page { resource_version, next_page_token, .. } = page;
    List { records, unreadable, resource_version, next_page_token }
}

/// Converts a message to a record, or returns what could be read of an invalid one.
pub(crate) fn read<R: Resource>(record: R::Pb) -> Result<R, Unreadable> {
    let metadata = R::metadata(&record);
    let key = metadata.and_then(Key::of_unchecked);
    let resource_version = metadata.map_or(0, |metadata| metadata.resource_version);
    R::try_from(record).map_err(|reason| Unreadable { key, resource_version, reason })
}

#[cfg(test)]
mod tests;
