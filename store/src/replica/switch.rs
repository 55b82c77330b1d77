//! Sends calls to the store while this process leads, and answers them itself while it stands by.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures_util::future::Either;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

use crate::error::StoreError;
use crate::leadership::Confirmed;

/// Who answers calls.
#[derive(Clone)]
enum Target {
    /// The store of this process, as long as its lease lasts.
    Here(Routes, Confirmed),
    /// The store at this address, if one leads.
    Elsewhere(Option<String>),
}

/// The services of a process that leads at times. Clones share their target.
#[derive(Clone)]
pub(super) struct Switch {
    target: Arc<RwLock<Target>>,
}

impl Switch {
    /// No store leads as far as known.
    pub(super) fn new() -> Self {
        Self { target: Arc::new(RwLock::new(Target::Elsewhere(None))) }
    }

    /// All calls, for a server.
    pub(super) fn routes(&self) -> Routes {
        Routes::from(Router::new().fallback_service(self.clone()))
    }

    /// This process leads.
    pub(super) fn lead(&self, routes: Routes, confirmed: Confirmed) {
        self.set(Target::Here(routes, confirmed));
    }

    /// Another process leads, or none.
    pub(super) fn stand_by(&self, leader: Option<String>) {
        self.set(Target::Elsewhere(leader));
    }

    fn set(&self, target: Target) {
        *self.target.write().unwrap_or_else(PoisonError::into_inner) = target;
    }

    fn store(&self) -> Result<Routes, StoreError> {
        match &*self.target.read().unwrap_or_else(PoisonError::into_inner) {
            Target::Here(routes, confirmed) if confirmed.is_current() => Ok(routes.clone()),
            Target::Here(..) => Err(StoreError::NotLeader { leader: None }),
            Target::Elsewhere(leader) => Err(StoreError::NotLeader { leader: leader.clone() }),
        }
    }
}

type Answer = Result<Response, Infallible>;
type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Service<Request> for Switch {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Pending, Ready<Answer>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match self.store() {
            Ok(mut routes) => {
                let answer = routes.call(request);
                Either::Left(Box::pin(async move { answer.await.map(IntoResponse::into_response) }))
            }
            Err(error) => {
                let refusal: tonic::codegen::http::Response<Body> = Status::from(error).into_http();
                Either::Right(ready(Ok(refusal.into_response())))
            }
        }
    }
}
