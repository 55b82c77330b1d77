//! A way to the store on which chosen calls are refused or held up; all others pass.

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

/// What the whole record of a node is reported with, where the stream does not do.
const UPDATE_STATUS: &str = "/muster.v1.NodeService/UpdateNodeStatus";

/// A gate before a store that lets everything through, but for what it was told to refuse.
#[derive(Clone, Debug)]
pub struct Gate {
    store: Channel,
    url: String,
    orders: Arc<Mutex<Orders>>,
    /// Whole records of nodes pass while nobody has it for himself.
    passage: Arc<RwLock<()>>,
}

#[derive(Debug, Default)]
struct Orders {
    renewals_to_refuse: usize,
    statuses_to_refuse: usize,
    records: usize,
    renewals: Vec<Renewal>,
}

/// A renewal that an agent sent.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    pub at: Instant,
    pub is_refused: bool,
}

impl Gate {
    /// A gate before the store at that URL.
    pub async fn before(store: &str) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port for a gate");
        let url = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let gate = Gate { store: channel(store), url, orders: Arc::default(), passage: Arc::default() };
        let heartbeats = Routes::new(HeartbeatServiceServer::new(gate.clone()));
        let routes = Routes::from(heartbeats.into_axum_router().fallback_service(gate.clone()));
        tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(TcpIncoming::from(listener)));
        gate
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Refuses so many renewals from now on.
    pub fn refuse_renewals(&self, count: usize) {
        self.orders().renewals_to_refuse = count;
    }

    /// Refuses so many statuses of nodes from now on, however they come.
    pub fn refuse_statuses(&self, count: usize) {
        self.orders().statuses_to_refuse = count;
    }

    /// How many statuses are still to be refused.
    pub fn statuses_to_refuse(&self) -> usize {
        self.orders().statuses_to_refuse
    }

    /// Holds up whole records of nodes until what comes back is dropped.
    pub async fn hold_records(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.passage).write_owned().await
    }

    /// How many whole records of nodes have come so far.
    pub fn records(&self) -> usize {
        self.orders().records
    }

    /// Every renewal that came, in order.
    pub fn renewals(&self) -> Vec<Renewal> {
        self.orders().renewals.clone()
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Orders {
    fn judge(&mut self, message: Option<&Message>) -> Result<(), Status> {
        let is_refused = match message {
            Some(Message::Renewal(_)) => {
                let is_refused = spend(&mut self.renewals_to_refuse);
                self.renewals.push(Renewal { at: Instant::now(), is_refused });
                is_refused
            }
            Some(Message::Status(_)) => spend(&mut self.statuses_to_refuse),
            Some(Message::Hello(_)) | None => false,
        };
        if is_refused { Err(Status::unavailable("refused at the gate")) } else { Ok(()) }
    }
}

fn spend(left: &mut usize) -> bool {
    let is_left = *left > 0;
    *left = left.saturating_sub(1);
    is_left
}

#[tonic::async_trait]
impl HeartbeatService for Gate {
    type HeartbeatStream = Pin<Box<dyn Stream<Item = Result<pb::HeartbeatResponse, Status>> + Send>>;

    async fn heartbeat(
        &self,
        request: Request<Streaming<pb::HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let (passed_on, onward) = mpsc::unbounded_channel();
        let (refused, refusals) = mpsc::unbounded_channel();
        let (gate, mut said) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Some(Ok(request)) = said.next().await {
                let judged = gate.orders().judge(request.message.as_ref());
                // Nobody listens any more when the stream is over.
                if let Err(status) = judged {
                    let _ = refused.send(Err(status));
                    return;
                }
                if passed_on.send(request).is_err() {
                    return;
                }
            }
        });
        let mut store = HeartbeatServiceClient::new(self.store.clone());
        let answers = store.heartbeat(UnboundedReceiverStream::new(onward)).await?.into_inner();
        // A refusal is the stream's last word, whatever the store may still have to say.
        let all = futures_util::stream::select(UnboundedReceiverStream::new(refusals), answers);
        let mut is_over = false;
        let until_refused = all.take_while(move |answer| {
            let goes_on = !is_over;
            is_over = answer.is_err();
            std::future::ready(goes_on)
        });
        Ok(Response::new(Box::pin(until_refused)))
    }
}

/// All other calls.
impl<B> Service<http::Request<B>> for Gate
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
        let is_refused = is_record && spend(&mut self.orders().statuses_to_refuse);
        self.orders().records += usize::from(is_record);
        let passage = Arc::clone(&self.passage);
        let (mut store, request) = (self.store.clone(), request.map(tonic::body::Body::new));
        Box::pin(async move {
            if is_refused {
                return Ok(Status::unavailable("refused at the gate").into_http());
            }
            if is_record {
                drop(passage.read().await);
            }
            let answered = match poll_fn(|cx| store.poll_ready(cx)).await {
                Ok(()) => store.call(request).await,
                Err(error) => Err(error),
            };
            Ok(answered.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http()))
        })
    }
}
