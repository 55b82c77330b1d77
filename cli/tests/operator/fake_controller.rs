//! A controller that says what it is told to, and remembers what it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use muster_grpc::fleet_service_server::{FleetService, FleetServiceServer};
use muster_proto::pb;
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

/// What a controller would answer.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(crate) fleet: pb::Fleet,
    pub(crate) explanation: pb::ExplainNodeResponse,
    pub(crate) pod: pb::ExplainPodResponse,
    pub(crate) drain: Vec<pb::DrainNodeResponse>,
    /// What it breaks a drain off with, instead of ending it.
    pub(crate) ending: Option<Status>,
    /// What it refuses every call with.
    pub(crate) refusal: Option<Status>,
}

/// What a controller was asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Asked {
    Fleet,
    Watch(pb::WatchFleetRequest),
    Explain(String),
    ExplainPod(pb::ExplainPodRequest),
    Cordon(pb::CordonNodeRequest),
    Uncordon(pb::UncordonNodeRequest),
    Drain(pb::DrainNodeRequest),
}

/// A controller on a socket; it goes when this goes.
pub(crate) struct Controller {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    _stop: oneshot::Sender<()>,
}

impl Controller {
    pub(crate) async fn start(script: Script) -> Controller {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let actor = Actor { script, asked: Arc::clone(&asked) };
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tonic::transport::Server::builder().add_service(FleetServiceServer::new(actor));
        tokio::spawn(server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
            let _ = stopped.await;
        }));
        Controller { url: format!("http://{address}"), asked, _stop: stop }
    }

    /// What it was asked since the last look.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

struct Actor {
    script: Script,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Actor {
    fn note(&self, asked: Asked) -> Result<(), Status> {
        self.asked.lock().unwrap().push(asked);
        self.script.refusal.clone().map_or(Ok(()), Err)
    }
}

fn answers<T>(answers: impl IntoIterator<Item = T>) -> Answers<T> {
    tokio_stream::iter(answers.into_iter().map(Ok).collect::<Vec<_>>())
}

#[tonic::async_trait]
impl FleetService for Actor {
    type WatchFleetStream = Answers<pb::WatchFleetResponse>;
    type DrainNodeStream = Answers<pb::DrainNodeResponse>;

    async fn get_fleet(&self, _: Request<pb::GetFleetRequest>) -> Answer<pb::GetFleetResponse> {
        self.note(Asked::Fleet)?;
        Ok(Response::new(pb::GetFleetResponse { fleet: Some(self.script.fleet.clone()) }))
    }

    async fn watch_fleet(&self, request: Request<pb::WatchFleetRequest>) -> Answer<Self::WatchFleetStream> {
        self.note(Asked::Watch(request.into_inner()))?;
        let mut later = self.script.fleet.clone();
        later.state = "Later".to_owned();
        let told = [self.script.fleet.clone(), later];
        Ok(Response::new(answers(told.map(|fleet| pb::WatchFleetResponse { fleet: Some(fleet) }))))
    }

    async fn explain_node(
        &self,
        request: Request<pb::ExplainNodeRequest>,
    ) -> Answer<pb::ExplainNodeResponse> {
        self.note(Asked::Explain(request.into_inner().name))?;
        Ok(Response::new(self.script.explanation.clone()))
    }

    async fn explain_pod(&self, request: Request<pb::ExplainPodRequest>) -> Answer<pb::ExplainPodResponse> {
        self.note(Asked::ExplainPod(request.into_inner()))?;
        Ok(Response::new(self.script.pod.clone()))
    }

    async fn cordon_node(&self, request: Request<pb::CordonNodeRequest>) -> Answer<pb::CordonNodeResponse> {
        self.note(Asked::Cordon(request.into_inner()))?;
        Ok(Response::new(pb::CordonNodeResponse::default()))
    }

    async fn uncordon_node(
        &self,
        request: Request<pb::UncordonNodeRequest>,
    ) -> Answer<pb::UncordonNodeResponse> {
        self.note(Asked::Uncordon(request.into_inner()))?;
        Ok(Response::new(pb::UncordonNodeResponse::default()))
    }

    async fn drain_node(&self, request: Request<pb::DrainNodeRequest>) -> Answer<Self::DrainNodeStream> {
        self.note(Asked::Drain(request.into_inner()))?;
        let told = self.script.drain.iter().cloned().map(Ok);
        let told: Vec<_> = told.chain(self.script.ending.clone().map(Err)).collect();
        Ok(Response::new(tokio_stream::iter(told)))
    }
}
