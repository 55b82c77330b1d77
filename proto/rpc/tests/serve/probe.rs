//! A hand-written test service, and a running server around it.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use muster_rpc::readiness::Readiness;
use muster_rpc::server::{ServeError, Server, ServerConfig, Stopped, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::Security;
use prost::Message;
use prost_types::{
    DescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService};
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

pub(crate) const PROBE: &str = "test.v1.Probe";
/// A service that is reported by health and not called.
pub(crate) const OTHER: &str = "test.v1.Other";
/// Anything in these tests that takes longer than this has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

type Codec = ProstCodec<String, String>;
type Answer<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;
type Words = Pin<Box<dyn Stream<Item = Result<String, Status>> + Send>>;

/// `WhoAmI` names the caller; `Wait` answers when the gate opens; `Panic` panics; `Talk` streams one word, and a second
/// one when the gate opens.
#[derive(Clone)]
pub(crate) struct Probe {
    /// One permit for each call of `Wait` that has reached its handler.
    pub(crate) entered: Arc<Semaphore>,
    /// One permit lets one waiting call or stream continue.
    pub(crate) gate: Arc<Semaphore>,
    /// One permit for each stream of `Talk` that was dropped.
    pub(crate) dropped: Arc<Semaphore>,
}

impl Probe {
    fn new() -> Probe {
        let closed = || Arc::new(Semaphore::new(0));
        Probe { entered: closed(), gate: closed(), dropped: closed() }
    }

    fn unary(self, method: &str, request: &Request<String>) -> Answer<String> {
        match method {
            "WhoAmI" => {
                let caller = muster_rpc::identity::caller(request.extensions()).to_string();
                Box::pin(async move { Ok(Response::new(caller)) })
            }
            "Wait" => Box::pin(async move {
                self.entered.add_permits(1);
                self.gate.acquire().await.unwrap().forget();
                Ok(Response::new("waited".to_owned()))
            }),
            "Panic" => Box::pin(async { panic!("as requested by the test") }),
            other => panic!("{other} is not a method of the probe"),
        }
    }

    fn talk(self) -> Words {
        let farewell = Farewell(self.dropped);
        let gate = self.gate;
        let second = stream::once(async move {
            let _farewell = farewell;
            gate.acquire().await.unwrap().forget();
            Ok("second".to_owned())
        });
        Box::pin(stream::iter([Ok("first".to_owned())]).chain(second))
    }
}

/// Counts that its stream was dropped.
struct Farewell(Arc<Semaphore>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

impl NamedService for Probe {
    const NAME: &'static str = PROBE;
}

impl Service<http::Request<Body>> for Probe {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let probe = self.clone();
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        Box::pin(async move {
            let mut grpc = Grpc::new(Codec::default());
            Ok(if method == "Talk" {
                let talk = service_fn(move |_: Request<String>| {
                    let probe = probe.clone();
                    async move { Ok::<_, Status>(Response::new(probe.talk())) }
                });
                grpc.server_streaming(talk, request).await
            } else {
                let answer = service_fn(move |request| probe.clone().unary(&method, &request));
                grpc.unary(answer, request).await
            })
        })
    }
}

/// A server that runs, with the probe behind it.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) probe: Probe,
    pub(crate) readiness: Readiness,
    pub(crate) shutdown: Shutdown,
    serving: JoinHandle<Result<Stopped, ServeError>>,
}

pub(crate) async fn start(config: ServerConfig, security: Security) -> Running {
    start_server(config, security, |server| server).await
}

/// A server with more settings than those of its flags.
pub(crate) async fn start_server(
    config: ServerConfig,
    security: Security,
    change: impl FnOnce(Server) -> Server,
) -> Running {
    let (probe, shutdown) = (Probe::new(), Shutdown::new());
    let readiness = Readiness::new([PROBE, OTHER]);
    let listener = bind("--listen", "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.address();
    let server = change(Server::new(config, security, shutdown.clone()));
    let serving = {
        let (routes, readiness) = (Routes::new(probe.clone()), readiness.clone());
        tokio::spawn(async move { server.serve(listener, routes, &descriptors(), readiness).await })
    };
    Running { address, probe, readiness, shutdown, serving }
}

pub(crate) async fn start_plain(config: ServerConfig) -> Running {
    start(config, Security::plain()).await
}

/// The schema of the probe: enough for reflection to list it, and to know which method streams.
fn descriptors() -> Vec<u8> {
    let (package, name) = PROBE.rsplit_once('.').unwrap();
    let talk = MethodDescriptorProto {
        name: Some("Talk".to_owned()),
        input_type: Some(".test.v1.Word".to_owned()),
        output_type: Some(".test.v1.Word".to_owned()),
        server_streaming: Some(true),
        ..Default::default()
    };
    let word = DescriptorProto { name: Some("Word".to_owned()), ..Default::default() };
    let service =
        ServiceDescriptorProto { name: Some(name.to_owned()), method: vec![talk], ..Default::default() };
    let file = FileDescriptorProto {
        name: Some("test/v1/probe.proto".to_owned()),
        package: Some(package.to_owned()),
        message_type: vec![word],
        service: vec![service],
        ..Default::default()
    };
    FileDescriptorSet { file: vec![file] }.encode_to_vec()
}

impl Running {
    pub(crate) async fn connect(&self) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        Client { channel: endpoint.connect().await.unwrap() }
    }

    /// How the server stopped, once it has.
    pub(crate) async fn stopped(self) -> Stopped {
        patiently(self.serving).await.unwrap().unwrap()
    }
}

/// A client of the probe.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) channel: Channel,
}

impl Client {
    pub(crate) async fn call(&self, method: &'static str) -> Result<String, Status> {
        self.call_path(path(method)).await
    }

    /// Calls a method of any service.
    pub(crate) async fn call_path(&self, path: http::uri::PathAndQuery) -> Result<String, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let call = grpc.unary(Request::new(String::new()), path, Codec::default());
        patiently(call).await.map(Response::into_inner)
    }

    /// Calls a method and never sends its request.
    pub(crate) async fn half_open(
        &self,
        method: &'static str,
        timeout: &'static str,
    ) -> Result<String, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut request = Request::new(stream::pending::<String>());
        request.metadata_mut().insert("grpc-timeout", timeout.parse().unwrap());
        let call = grpc.client_streaming(request, path(method), Codec::default());
        call.await.map(Response::into_inner)
    }

    pub(crate) async fn talk(&self) -> Result<Streaming<String>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let call = grpc.server_streaming(Request::new(String::new()), path("Talk"), Codec::default());
        patiently(call).await.map(Response::into_inner)
    }
}

fn path(method: &str) -> http::uri::PathAndQuery {
    format!("/{PROBE}/{method}").parse().unwrap()
}

/// Waits with a time limit.
pub(crate) async fn patiently<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it happens in time")
}
