//! A gRPC proxy to the store that fails or delays chosen calls and forwards all others.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::{Stream, StreamExt};
use muster_grpc::heartbeat_service_client::HeartbeatServiceClient;
use muster_grpc::heartbeat_service_server::{HeartbeatService, HeartbeatServiceServer};
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use tokio::net::TcpListener;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codegen::{Body, BoxFuture, Bytes, Service, StdError, http};
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::transport::server::{Server, TcpIncoming};
use tonic::{Request, Response, Status, Streaming};

use crate::store_process::channel;

/// The call for status updates that do not fit the heartbeat stream, such as a changed label.
const UPDATE_STATUS: &str = "/muster.v1.NodeService/UpdateNodeStatus";

/// A proxy to a store that forwards every call, except those it was asked to fail.
#[derive(Clone, Debug)]
pub struct FaultProxy {
    store: Channel,
    url: String,
    plan: Arc<Mutex<FaultPlan>>,
    /// `UpdateNodeStatus` calls pass while no test holds it for writing.
    update_gate: Arc<RwLock<()>>,
}

#[derive(Debug, Default)]
struct FaultPlan {
    renewals_to_fail: usize,
    statuses_to_fail: usize,
    status_updates: usize,
    renewals: Vec<Renewal>,
}

/// A renewal that an agent sent.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    pub at: Instant,
    pub is_failed: bool,
}

impl FaultProxy {
    /// Starts a proxy to the store at that URL.
    pub async fn to(store: &str) -> FaultProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port for a proxy");
        let url = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let proxy =
            FaultProxy { store: channel(store), url, plan: Arc::default(), update_gate: Arc::default() };
        let heartbeats = Routes::new(HeartbeatServiceServer::new(proxy.clone()));
        let routes = Routes::from(heartbeats.into_axum_router().fallback_service(proxy.clone()));
        tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(TcpIncoming::from(listener)));
        proxy
    }

    /// The URL of the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Fails the next `count` renewals.
    pub fn fail_renewals(&self, count: usize) {
        self.plan().renewals_to_fail = count;
    }

    /// Fails the next `count` node statuses, on the stream or as calls.
    pub fn fail_statuses(&self, count: usize) {
        self.plan().statuses_to_fail = count;
    }

    /// How many statuses are still to be failed.
    pub fn statuses_to_fail(&self) -> usize {
        self.plan().statuses_to_fail
    }

    /// Delays `UpdateNodeStatus` calls until the returned guard is dropped.
    pub async fn hold_status_updates(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.update_gate).write_owned().await
    }

    /// How many `UpdateNodeStatus` calls have arrived so far.
    pub fn status_updates(&self) -> usize {
        self.plan().status_updates
    }

    /// All renewals that have arrived, in order.
    pub fn renewals(&self) -> Vec<Renewal> {
        self.plan().renewals.clone()
    }

    fn plan(&self) -> MutexGuard<'_, FaultPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultPlan {
    fn check(&mut self, message: Option<&Message>) -> Result<(), Status> {
        let is_failed = match message {
            Some(Message::Renewal(_)) => {
                let is_failed = spend(&mut self.renewals_to_fail);
                self.renewals.push(Renewal { at: Instant::now(), is_failed });
                is_failed
            }
            Some(Message::Status(_)) => spend(&mut self.statuses_to_fail),
            Some(Message::Hello(_)) | None => false,
        };
        if is_failed { Err(Status::unavailable("failed by the fault proxy")) } else { Ok(()) }
    }
}

fn spend(left: &mut usize) -> bool {
    let is_left = *left > 0;
    *left = left.saturating_sub(1);
    is_left
}

#[tonic::async_trait]
impl HeartbeatService for FaultProxy {
    type HeartbeatStream = Pin<Box<dyn Stream<Item = Result<pb::HeartbeatResponse, Status>> + Send>>;

    async fn heartbeat(
        &self,
        request: Request<Streaming<pb::HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let (forwarded, outgoing) = mpsc::unbounded_channel();
        let (errors, injected) = mpsc::unbounded_channel();
        let (proxy, mut requests) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Some(Ok(request)) = requests.next().await {
                let checked = proxy.plan().check(request.message.as_ref());
                // Sending fails only when the stream has ended.
                if let Err(status) = checked {
                    let _ = errors.send(Err(status));
                    return;
                }
                if forwarded.send(request).is_err() {
                    return;
                }
            }
        });
        let mut store = HeartbeatServiceClient::new(self.store.clone());
        let answers = store.heartbeat(UnboundedReceiverStream::new(outgoing)).await?.into_inner();
        // The stream ends with the injected error, even when more responses of the store follow.
        let all = futures_util::stream::select(UnboundedReceiverStream::new(injected), answers);
        let mut is_over = false;
        let until_error = all.take_while(move |answer| {
            let goes_on = !is_over;
            is_over = answer.is_err();
            std::future::ready(goes_on)
        });
        Ok(Response::new(Box::pin(until_error)))
    }
}

/// All other calls.
impl<B> Service<http::Request<B>> for FaultProxy
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let is_record = request.uri().path() == UPDATE_STATUS;
        let is_failed = is_record && spend(&mut self.plan().statuses_to_fail);
        self.plan().status_updates += usize::from(is_record);
        let update_gate = Arc::clone(&self.update_gate);
        let (mut store, request) = (self.store.clone(), request.map(tonic::body::Body::new));
        Box::pin(async move {
            if is_failed {
                return Ok(Status::unavailable("failed by the fault proxy").into_http());
            }
            if is_record {
                drop(update_gate.read().await);
            }
            let answered = match poll_fn(|cx| store.poll_ready(cx)).await {
                Ok(()) => store.call(request).await,
                Err(error) => Err(error),
            };
            Ok(answered.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http()))
        })
    }
}
