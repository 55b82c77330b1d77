//! DecisionService. Decisions are not records: they have a log of their own and pass by the writer.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{self, Stream};
use muster_grpc::decision_service_server::DecisionService;
use muster_proto::fence::Fence;
use muster_proto::invalid::Invalid;
use muster_proto::lease::Lease;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_store_core::authz::{DecisionVerb, authorize_decisions};
use muster_store_core::decision_filter::{DecisionFilter, check_batch};
use muster_store_core::namespaced_name::NamespacedName;
use muster_store_core::rules;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{Services, WriteContext, authz_result, caller, decode_stored, namespace_of, write_context};
use crate::decision_log::DecisionLog;
use crate::error::StoreError;

/// Decisions of a page without a size.
const PAGE_SIZE: usize = 100;
/// The most of a page, and of a message of a watch.
const MAX_PAGE_SIZE: usize = 1000;

type DecisionStream = Pin<Box<dyn Stream<Item = Result<pb::WatchDecisionsResponse, Status>> + Send>>;

impl Services {
    fn decisions(&self) -> Result<Arc<DecisionLog>, StoreError> {
        self.decisions.clone().ok_or(StoreError::NoDecisions)
    }

    /// Whether the lease of a fence still has its holder.
    fn check_fence(&self, fence: &Fence) -> Result<(), StoreError> {
        let key = rules::fenced_lease(fence);
        let found = self.store.get(Kind::Lease, &NamespacedName::new(namespace_of(&key), key.name.as_str()));
        let lease = found.map(|record| decode_stored::<Lease>(&key, &record)).transpose()?;
        Ok(rules::check_fence(fence, lease.as_ref())?)
    }
}

#[tonic::async_trait]
impl DecisionService for Services {
    type WatchDecisionsStream = DecisionStream;

    async fn record_decisions(
        &self,
        request: Request<pb::RecordDecisionsRequest>,
    ) -> Result<Response<pb::RecordDecisionsResponse>, Status> {
        let WriteContext { caller, fence, .. } = write_context(&request)?.without_dry_run()?;
        authz_result(authorize_decisions(&caller, DecisionVerb::Record))?;
        let log = self.decisions()?;
        let batch = request.into_inner().decisions;
        check_batch(&batch).map_err(StoreError::from)?;
        let services = self.clone();
        let appended = tokio::task::spawn_blocking(move || {
            let permitted = || fence.map_or(Ok(()), |fence| services.check_fence(&fence));
            log.append(batch, services.store.clock().wall(), permitted)
        });
        let last_id = appended.await.map_err(|e| StoreError::Storage(e.to_string()))??;
        Ok(Response::new(pb::RecordDecisionsResponse { last_id }))
    }

    async fn list_decisions(
        &self,
        request: Request<pb::ListDecisionsRequest>,
    ) -> Result<Response<pb::ListDecisionsResponse>, Status> {
        authz_result(authorize_decisions(&caller(&request), DecisionVerb::List))?;
        let log = self.decisions()?;
        let pb::ListDecisionsRequest { filter, page_size, page_token } = request.into_inner();
        let filter = DecisionFilter::try_from(filter.unwrap_or_default()).map_err(StoreError::from)?;
        let size = match page_size as usize {
            0 => PAGE_SIZE,
            size if size <= MAX_PAGE_SIZE => size,
            _ => {
                let reason = format!("must be at most {MAX_PAGE_SIZE}");
                return Err(StoreError::from(Invalid::of("pageSize", reason)).into());
            }
        };
        let before =
            match page_token.as_str() {
                "" => None,
                token => {
                    let parsed = token.parse::<u64>();
                    Some(parsed.map_err(|_| {
                        StoreError::from(Invalid::of("pageToken", "is not one of ListDecisions"))
                    })?)
                }
            };
        let listed = tokio::task::spawn_blocking(move || log.list(&filter, before, size));
        let page = listed.await.map_err(|e| StoreError::Storage(e.to_string()))?.map_err(StoreError::from)?;
        Ok(Response::new(pb::ListDecisionsResponse {
            decisions: page.decisions,
            last_id: page.last_id,
            next_page_token: page.next_before.map(|id| id.to_string()).unwrap_or_default(),
        }))
    }

    async fn watch_decisions(
        &self,
        request: Request<pb::WatchDecisionsRequest>,
    ) -> Result<Response<Self::WatchDecisionsStream>, Status> {
        authz_result(authorize_decisions(&caller(&request), DecisionVerb::Watch))?;
        let log = self.decisions()?;
        let pb::WatchDecisionsRequest { filter, after_id } = request.into_inner();
        let filter = DecisionFilter::try_from(filter.unwrap_or_default()).map_err(StoreError::from)?;
        let head = log.head();
        let after = after_id.unwrap_or(*head.borrow());
        let feed = Feed { log, filter, head, after, is_new: true, shutdown: self.shutdown.clone() };
        // What cannot be read is an error of the call, and not of its stream.
        let (first, feed) = feed.next().await?;
        let rest = stream::try_unfold(Some(feed), async |feed| {
            let Some(feed) = feed else { return Ok(None) };
            let (message, feed) = feed.next().await?;
            Ok(message.map(|message| (message, Some(feed))))
        });
        let first = stream::iter(first.map(Ok));
        Ok(Response::new(Box::pin(futures_util::StreamExt::chain(first, rest))))
    }
}

/// A watch: how far it has read.
struct Feed {
    log: Arc<DecisionLog>,
    filter: DecisionFilter,
    head: watch::Receiver<u64>,
    after: u64,
    /// Nothing was sent: the first message says where the watch begins.
    is_new: bool,
    shutdown: muster_rpc::shutdown::Shutdown,
}

impl Feed {
    /// The next message, once there is something to send; `None` when the store stops.
    async fn next(mut self) -> Result<(Option<pb::WatchDecisionsResponse>, Feed), Status> {
        loop {
            drop(self.head.borrow_and_update());
            let (log, filter, after) = (Arc::clone(&self.log), self.filter.clone(), self.after);
            let read = tokio::task::spawn_blocking(move || log.read_after(after, &filter, MAX_PAGE_SIZE));
            let read = read.await.map_err(|e| StoreError::Storage(e.to_string()))?;
            let (decisions, last_id) = read.map_err(StoreError::from)?;
            self.after = last_id;
            if !decisions.is_empty() || std::mem::take(&mut self.is_new) {
                self.is_new = false;
                return Ok((Some(pb::WatchDecisionsResponse { decisions, last_id }), self));
            }
            tokio::select! {
                () = self.shutdown.requested() => return Ok((None, self)),
                changed = self.head.changed() => if changed.is_err() { return Ok((None, self)) },
            }
        }
    }
}
