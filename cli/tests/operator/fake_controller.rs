//! A fake controller with fixed responses that records its calls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use muster_grpc::fleet_service_server::{FleetService, FleetServiceServer};
use muster_proto::pb;
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

/// The responses of the fake controller.
#[derive(Clone, Default)]
pub(crate) struct Responses {
    pub(crate) fleet: pb::Fleet,
    pub(crate) settings: Option<pb::ControllerSettings>,
    pub(crate) explanation: pb::ExplainNodeResponse,
    pub(crate) pod: pb::ExplainPodResponse,
    pub(crate) drain: Vec<pb::DrainNodeResponse>,
    /// The error that ends the stream of a drain.
    pub(crate) stream_error: Option<Status>,
    /// The error that every call returns.
    pub(crate) error: Option<Status>,
}

/// A call that the fake controller received.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Fleet,
    Watch(pb::WatchFleetRequest),
    Explain(String),
    ExplainPod(pb::ExplainPodRequest),
    Cordon(pb::CordonNodeRequest),
    Uncordon(pb::UncordonNodeRequest),
    Drain(pb::DrainNodeRequest),
}

/// A fake controller on a socket; it stops on drop.
pub(crate) struct FakeController {
    pub(crate) url: String,
    calls: Arc<Mutex<Vec<Call>>>,
    _stop: oneshot::Sender<()>,
}

impl FakeController {
    pub(crate) async fn start(responses: Responses) -> FakeController {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let service = FakeFleetService { responses, calls: Arc::clone(&calls) };
        let (stop, stopped) = oneshot::channel::<()>();
        let (_, health) = tonic_health::server::health_reporter();
        let server = tonic::transport::Server::builder()
            .add_service(FleetServiceServer::new(service))
            .add_service(health);
        tokio::spawn(server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
            let _ = stopped.await;
        }));
        FakeController { url: format!("http://{address}"), calls, _stop: stop }
    }

    /// The calls since the last time.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

struct FakeFleetService {
    responses: Responses,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl FakeFleetService {
    fn record(&self, call: Call) -> Result<(), Status> {
        self.calls.lock().unwrap().push(call);
        self.responses.error.clone().map_or(Ok(()), Err)
    }
}

fn answers<T>(answers: impl IntoIterator<Item = T>) -> Answers<T> {
    tokio_stream::iter(answers.into_iter().map(Ok).collect::<Vec<_>>())
}

#[tonic::async_trait]
impl FleetService for FakeFleetService {
    type WatchFleetStream = Answers<pb::WatchFleetResponse>;
    type DrainNodeStream = Answers<pb::DrainNodeResponse>;

    async fn get_fleet(&self, _: Request<pb::GetFleetRequest>) -> Answer<pb::GetFleetResponse> {
        self.record(Call::Fleet)?;
        let fleet = Some(self.responses.fleet.clone());
        Ok(Response::new(pb::GetFleetResponse { fleet, settings: self.responses.settings }))
    }

    async fn watch_fleet(&self, request: Request<pb::WatchFleetRequest>) -> Answer<Self::WatchFleetStream> {
        self.record(Call::Watch(request.into_inner()))?;
        let mut later = self.responses.fleet.clone();
        later.set_state(pb::FleetState::Standby);
        let responses = [self.responses.fleet.clone(), later];
        Ok(Response::new(answers(responses.map(|fleet| pb::WatchFleetResponse { fleet: Some(fleet) }))))
    }

    async fn explain_node(
        &self,
        request: Request<pb::ExplainNodeRequest>,
    ) -> Answer<pb::ExplainNodeResponse> {
        self.record(Call::Explain(request.into_inner().name))?;
        Ok(Response::new(self.responses.explanation.clone()))
    }

    async fn explain_pod(&self, request: Request<pb::ExplainPodRequest>) -> Answer<pb::ExplainPodResponse> {
        self.record(Call::ExplainPod(request.into_inner()))?;
        Ok(Response::new(self.responses.pod.clone()))
    }

    async fn cordon_node(&self, request: Request<pb::CordonNodeRequest>) -> Answer<pb::CordonNodeResponse> {
        self.record(Call::Cordon(request.into_inner()))?;
        Ok(Response::new(pb::CordonNodeResponse::default()))
    }

    async fn uncordon_node(
        &self,
        request: Request<pb::UncordonNodeRequest>,
    ) -> Answer<pb::UncordonNodeResponse> {
        self.record(Call::Uncordon(request.into_inner()))?;
        Ok(Response::new(pb::UncordonNodeResponse::default()))
    }

    async fn drain_node(&self, request: Request<pb::DrainNodeRequest>) -> Answer<Self::DrainNodeStream> {
        self.record(Call::Drain(request.into_inner()))?;
        let responses = self.responses.drain.iter().cloned().map(Ok);
        let responses: Vec<_> = responses.chain(self.responses.stream_error.clone().map(Err)).collect();
        Ok(Response::new(tokio_stream::iter(responses)))
    }
}
