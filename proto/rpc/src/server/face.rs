//! Pages of HTTP beside gRPC, which make calls of the same server on behalf of their callers.
//!
//! A call of a page passes all layers like a call from outside, with the connection and the certificate of the page's
//! own caller: it is admitted, audited, traced and authorized as if the caller had made it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Extensions, Request, Response};
use hyper::body::Bytes;
use muster_proto::identity::Caller;
use tonic::body::Body;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

use super::listener::Listener;
use crate::admission::connection::Peer;
use crate::identity;
use crate::tls::Security;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The answer to a request for a page.
pub type Answer = Response<axum::body::Body>;

/// Answers requests.
pub trait Pages: Send + Sync + 'static {
    /// The answer to one request. `calls` are made on behalf of its caller.
    fn answer(self: Arc<Self>, request: Request<Body>, calls: Calls) -> BoxFuture<'static, Answer>;
}

/// Pages, and where they are served.
pub struct Face {
    pub listener: Listener,
    pub security: Security,
    pub pages: Arc<dyn Pages>,
}

impl fmt::Debug for Face {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Face").field("listener", &self.listener).finish_non_exhaustive()
    }
}

/// The calls of a server, made on behalf of one caller.
#[derive(Clone, Debug)]
pub struct Calls {
    service: BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>,
    peer: Option<Peer>,
}

impl Calls {
    /// The caller's role.
    pub fn caller(&self) -> Caller {
        identity::caller(&self.extensions())
    }

    /// The caller's name: that in the certificate, or without one the role.
    pub fn requester(&self) -> String {
        identity::requester(&self.extensions())
    }

    fn extensions(&self) -> Extensions {
        let mut extensions = Extensions::new();
        if let Some(peer) = &self.peer {
            extensions.insert(peer.clone());
        }
        extensions
    }
}

impl Service<Request<Body>> for Calls {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(peer) = &self.peer {
            request.extensions_mut().insert(peer.clone());
        }
        // A clone of its own for each call: the service may keep state between readiness and call.
        self.service.clone().oneshot(request).boxed()
    }
}

/// Pages as a service of a connection.
#[derive(Clone)]
pub(super) struct PagesService {
    pages: Arc<dyn Pages>,
    service: BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>,
}

impl Face {
    /// The pages with the service that their calls are made of.
    pub(super) fn pages<S, B>(&self, service: S) -> PagesService
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError> + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let service = service.map_response(|response: Response<B>| response.map(Body::new));
        let service = BoxCloneSyncService::new(service.map_err(Into::into));
        PagesService { pages: Arc::clone(&self.pages), service }
    }
}

impl Service<Request<Body>> for PagesService {
    type Response = Answer;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, std::convert::Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().cloned();
        let calls = Calls { service: self.service.clone(), peer };
        let answer = Arc::clone(&self.pages).answer(request, calls);
        Box::pin(answer.map(Ok))
    }
}
