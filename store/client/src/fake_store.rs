//! A fake store for tests: nodes only, scripted responses, over a real socket.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use muster_grpc::node_service_server::{NodeService, NodeServiceServer};
use muster_grpc::records::{EncodedRecord, RecordList};
use muster_proto::fence::{FENCE_KEY, Fence};
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::watch::WatchFrame;
use muster_rpc::layers::store_id::StoreIdLayer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codegen::http::HeaderValue;
use tonic::{Request, Response, Status};

use crate::client::StoreClient;
use crate::endpoints::StoreEndpoints;

/// Longer than anything here takes; only a failing test waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A request that the store received.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    Get(String, Option<Duration>),
    List(pb::ListNodesRequest),
    Watch(pb::WatchNodesRequest),
    Write(Box<Node>),
}

impl Asked {
    pub(crate) fn watch_after(version: u64) -> Asked {
        let resource_version = version;
        Asked::Watch(pb::WatchNodesRequest { resource_version, allow_bookmarks: true, ..Default::default() })
    }
}

/// What it answers, in the order it is asked.
pub(crate) enum Answer {
    Node(Box<Node>),
    Nodes {
        nodes: Vec<pb::Node>,
        version: u64,
        next: &'static str,
    },
    /// The frames, then the stream ends without an error.
    Frames(Vec<Frame>),
    /// The frames, then the stream stays open.
    Open(Vec<Frame>),
    Refuse(Status),
    /// No answer at all.
    Silence,
}

pub(crate) type Frame = Result<WatchFrame<pb::NodeWatchEvent>, Status>;

impl Answer {
    pub(crate) fn node(node: Node) -> Answer {
        Answer::Node(Box::new(node))
    }

    pub(crate) fn nodes(nodes: &[Node], version: u64) -> Answer {
        Answer::Nodes { nodes: nodes.iter().cloned().map(Into::into).collect(), version, next: "" }
    }
}

/// A frame of changes.
pub(crate) fn frame(changes: &[(&str, Node)]) -> Frame {
    let event = |(kind, node): &(&str, Node)| pb::NodeWatchEvent {
        r#type: (*kind).to_owned(),
        node: Some(node.clone().into()),
        traceparent: format!("trace-{}", node.meta.resource_version),
    };
    Ok(WatchFrame::of(changes.iter().map(event).collect()))
}

/// A bookmark has a version and nothing else.
pub(crate) fn bookmark(version: u64) -> Frame {
    let metadata = pb::Metadata { resource_version: version, ..Default::default() };
    Ok(WatchFrame::of(vec![pb::NodeWatchEvent {
        r#type: "BOOKMARK".into(),
        node: Some(pb::Node { metadata: Some(metadata), ..Default::default() }),
        traceparent: String::new(),
    }]))
}

/// A scripted store that serves until the test's runtime ends.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    pub(crate) asked: mpsc::UnboundedReceiver<Asked>,
    fences: Arc<Mutex<Vec<Option<Fence>>>>,
}

impl Fake {
    /// A store without an id.
    pub(crate) async fn start(script: impl IntoIterator<Item = Answer>) -> Fake {
        Fake::start_as(None, script).await
    }

    /// A store with this id.
    pub(crate) async fn start_as(id: Option<&'static str>, script: impl IntoIterator<Item = Answer>) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (calls, asked) = mpsc::unbounded_channel();
        let script = Mutex::new(script.into_iter().collect());
        let fences = Arc::default();
        let service = NodeServiceServer::new(Service { script, calls, fences: Arc::clone(&fences) });
        let layer = StoreIdLayer::new(id.map(HeaderValue::from_static));
        let server = tonic::transport::Server::builder().layer(layer).add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Fake { address, asked, fences }
    }

    pub(crate) fn client(&self) -> StoreClient {
        StoreClient::connect(StoreEndpoints::new([format!("http://{}", self.address)])).unwrap()
    }

    pub(crate) async fn next_asked(&mut self) -> Asked {
        tokio::time::timeout(PATIENCE, self.asked.recv())
            .await
            .expect("asked in time")
            .expect("the store runs")
    }

    /// The fences of node updates.
    pub(crate) fn fences(&self) -> Vec<Option<Fence>> {
        self.fences.lock().unwrap().clone()
    }

    /// The requests so far that were not read.
    pub(crate) fn all_asked(&mut self) -> Vec<Asked> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).collect()
    }
}

struct Service {
    script: Mutex<VecDeque<Answer>>,
    calls: mpsc::UnboundedSender<Asked>,
    fences: Arc<Mutex<Vec<Option<Fence>>>>,
}

impl Service {
    /// Notes the request and takes the next response; after the end of the script there is none.
    async fn answer(&self, asked: Asked) -> Result<Answer, Status> {
        let _ = self.calls.send(asked);
        let next = self.script.lock().unwrap().pop_front();
        match next.unwrap_or(Answer::Silence) {
            Answer::Silence => std::future::pending().await,
            Answer::Refuse(status) => Err(status),
            answer => Ok(answer),
        }
    }

    async fn node(&self, asked: Asked) -> Result<EncodedRecord, Status> {
        match self.answer(asked).await? {
            Answer::Node(node) => Ok(EncodedRecord::of(&pb::Node::from(*node))),
            _ => Err(Status::internal("the script has no node here")),
        }
    }
}

fn sent(node: Option<pb::Node>) -> Asked {
    Asked::Write(Box::new(node.unwrap().try_into().unwrap()))
}

#[tonic::async_trait]
impl NodeService for Service {
    type WatchNodesStream = Pin<Box<dyn Stream<Item = Frame> + Send>>;

    async fn create_node(
        &self,
        request: Request<pb::CreateNodeRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let node = self.node(sent(request.into_inner().node)).await?;
        Ok(Response::new(node))
    }

    async fn get_node(
        &self,
        request: Request<pb::GetNodeRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let timeout = request.metadata().get("grpc-timeout").map(|value| value.as_bytes().to_vec());
        let timeout = timeout.and_then(|value| muster_rpc::layers::deadline::parse_grpc_timeout(&value));
        let node = self.node(Asked::Get(request.into_inner().name, timeout)).await?;
        Ok(Response::new(node))
    }

    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<RecordList>, Status> {
        match self.answer(Asked::List(request.into_inner())).await? {
            Answer::Nodes { nodes, version, next } => {
                let (resource_version, next_page_token) = (version, next.to_owned());
                Ok(Response::new(RecordList::of(&nodes, resource_version, next_page_token)))
            }
            _ => Err(Status::internal("the script has no list here")),
        }
    }

    async fn update_node(
        &self,
        request: Request<pb::UpdateNodeRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let fence = request.metadata().get(FENCE_KEY).map(|fence| fence.to_str().unwrap().parse().unwrap());
        self.fences.lock().unwrap().push(fence);
        let node = self.node(sent(request.into_inner().node)).await?;
        Ok(Response::new(node))
    }

    async fn update_node_status(
        &self,
        request: Request<pb::UpdateNodeStatusRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let node = self.node(sent(request.into_inner().node)).await?;
        Ok(Response::new(node))
    }

    async fn delete_node(
        &self,
        request: Request<pb::DeleteNodeRequest>,
    ) -> Result<Response<EncodedRecord>, Status> {
        let node = self.node(Asked::Get(request.into_inner().name, None)).await?;
        Ok(Response::new(node))
    }

    async fn watch_nodes(
        &self,
        request: Request<pb::WatchNodesRequest>,
    ) -> Result<Response<Self::WatchNodesStream>, Status> {
        let frames = match self.answer(Asked::Watch(request.into_inner())).await? {
            Answer::Frames(frames) => stream::iter(frames).boxed(),
            Answer::Open(frames) => stream::iter(frames).chain(stream::pending()).boxed(),
            _ => return Err(Status::internal("the script has no watch here")),
        };
        Ok(Response::new(frames))
    }
}
