//! gRPC health: a status per service and, under the empty name, for the whole process.
//!
//! tonic-health keeps the statuses. What is added is the end: a health watch lives as long as its client wishes and
//! would hold every graceful stop open, so watches tell the last status once more and end when the server drains.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::{HealthReporter, HealthService};

use crate::shutdown::Shutdown;

/// The whole process, in the words of the health protocol.
const OVERALL: &str = "";

/// What a process reports about its services. Clones share the statuses.
#[derive(Clone, Debug)]
pub struct Health {
    reporter: HealthReporter,
    serving: Arc<Mutex<BTreeMap<String, bool>>>,
}

impl Health {
    /// All these services (full names, such as `muster.v1.NodeService`) serve from the start.
    pub async fn serving<N: Into<String>>(services: impl IntoIterator<Item = N>) -> Health {
        Health::starting(services, true).await
    }

    /// None of these services serves until [`Health::set`] says so.
    pub async fn not_serving<N: Into<String>>(services: impl IntoIterator<Item = N>) -> Health {
        Health::starting(services, false).await
    }

    async fn starting<N: Into<String>>(services: impl IntoIterator<Item = N>, serves: bool) -> Health {
        let statuses: BTreeMap<String, bool> =
            services.into_iter().map(|name| (name.into(), serves)).collect();
        let health = Health { reporter: HealthReporter::new(), serving: Arc::new(Mutex::new(statuses)) };
        health.set_all(serves).await;
        health
    }

    /// Says whether one service serves. The process as a whole serves while all its services do.
    pub async fn set(&self, service: &str, serves: bool) {
        let overall = {
            let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
            serving.insert(service.to_owned(), serves);
            serving.values().all(|serves| *serves)
        };
        self.report(service, serves).await;
        self.report(OVERALL, overall).await;
    }

    /// Says whether the process serves, and with it every service.
    pub async fn set_all(&self, serves: bool) {
        let names: Vec<String> = {
            let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
            serving.values_mut().for_each(|status| *status = serves);
            serving.keys().cloned().collect()
        };
        self.report(OVERALL, serves).await;
        for name in names {
            self.report(&name, serves).await;
        }
    }

    async fn report(&self, service: &str, serves: bool) {
        let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status(service, status).await;
    }

    /// The service to be routed; its watches end when `drain` is asked for.
    pub(super) fn service(&self, drain: &Shutdown) -> HealthServer<impl health_server::Health + use<>> {
        let statuses = Arc::new(HealthService::from_health_reporter(self.reporter.clone()));
        HealthServer::new(EndingHealth { statuses, drain: drain.clone() })
    }
}

/// [`HealthService`] whose watches end at the drain.
struct EndingHealth {
    statuses: Arc<HealthService>,
    drain: Shutdown,
}

#[tonic::async_trait]
impl health_server::Health for EndingHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.statuses.check(request).await
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = request.get_ref().clone();
        let changes = self.statuses.watch(request).await?.into_inner();
        let statuses = Arc::clone(&self.statuses);
        let last = async move { statuses.check(Request::new(service)).await.map(Response::into_inner) };
        let watch = changes.take_until(self.drain.requested()).chain(stream::once(last));
        Ok(Response::new(Box::pin(watch)))
    }
}
