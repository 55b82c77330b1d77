//! The `grpc.health.v1` service: a view of the process's [`Readiness`] per service and, under the empty name, as a
//! whole.
//!
//! A health watch lives as long as its client wishes and would hold every graceful stop open. So when the server
//! drains, each watch sends the last status once more and ends.

use std::pin::Pin;

use futures_util::{Stream, StreamExt, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::readiness::{Readiness, State};
use crate::shutdown::Shutdown;

/// The service to be routed; its watches end when `drain` is requested.
pub(super) fn service(
    readiness: &Readiness,
    drain: &Shutdown,
) -> HealthServer<impl health_server::Health + use<>> {
    HealthServer::new(ReadinessHealth { readiness: readiness.clone(), drain: drain.clone() })
}

struct ReadinessHealth {
    readiness: Readiness,
    drain: Shutdown,
}

fn status(state: &State, service: &str) -> Result<HealthCheckResponse, Status> {
    let serves = state.serves(service).ok_or_else(|| Status::not_found("service not registered"))?;
    let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
    Ok(HealthCheckResponse { status: status.into() })
}

/// The status of a service, now and whenever it changes.
fn changes(
    state: watch::Receiver<State>,
    service: String,
) -> impl Stream<Item = Result<HealthCheckResponse, Status>> + Send {
    stream::unfold((state, None), move |(mut state, sent)| {
        let service = service.clone();
        async move {
            loop {
                let status = status(&state.borrow_and_update(), &service).ok()?;
                if sent != Some(status) {
                    return Some((Ok(status), (state, Some(status))));
                }
                state.changed().await.ok()?;
            }
        }
    })
}

#[tonic::async_trait]
impl health_server::Health for ReadinessHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let state = self.readiness.subscribe();
        let status = status(&state.borrow(), &request.get_ref().service)?;
        Ok(Response::new(status))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = request.into_inner().service;
        let state = self.readiness.subscribe();
        status(&state.borrow(), &service)?;
        let (at_end, watched) = (state.clone(), service.clone());
        let last = async move { status(&at_end.borrow(), &watched) };
        let watch = changes(state, service).take_until(self.drain.requested()).chain(stream::once(last));
        Ok(Response::new(Box::pin(watch)))
    }
}
