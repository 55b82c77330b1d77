//! Sends reads to the records of this process, and writes to the store that leads.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use muster_proto::ERROR_DOMAIN;
use muster_proto::invalid::Invalid;
use muster_rpc::audit;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::service::Routes;
use tonic_types::StatusExt;
use tower::Service;

use super::forward::{Dialer, Link, REVISION, is_forwarded, refusal};
use crate::change_log::ChangeLog;
use crate::error::StoreError;
use crate::leadership::Confirmed;
use crate::ledger::etcd::Leader;

/// How long a write waits for a store that leads. Nothing of it has been sent by then.
const ELECTION: Duration = Duration::from_secs(3);
/// The wait before a write that a store has refused is sent to it again.
const AGAIN: Duration = Duration::from_millis(100);
/// The largest request, which is kept until it is answered: somewhat more than the services take.
const MAX_REQUEST: usize = (2 << 20) + (64 << 10);

/// Who takes writes.
#[derive(Clone)]
enum Writes {
    /// This process, as long as its lease lasts.
    Here(Routes, Confirmed),
    /// The store that leads.
    There(Link),
    /// Nobody, as far as known.
    Nowhere,
}

/// The records of this process, for reads.
#[derive(Clone)]
pub(super) struct Reads {
    pub(super) routes: Routes,
    pub(super) log: Arc<ChangeLog>,
}

/// The services of one of several stores. Clones share their targets.
#[derive(Clone)]
pub(super) struct Switch {
    /// `None` while nothing is loaded.
    reads: Arc<RwLock<Option<Reads>>>,
    writes: Arc<watch::Sender<Writes>>,
    dialer: Arc<Dialer>,
    /// Where others reach this process.
    own_address: Arc<str>,
}

impl Switch {
    /// Nothing is loaded, and no store leads as far as known.
    pub(super) fn new(dialer: Dialer, own_address: &str) -> Self {
        let writes = Arc::new(watch::Sender::new(Writes::Nowhere));
        Self { reads: Arc::default(), writes, dialer: Arc::new(dialer), own_address: own_address.into() }
    }

    /// All calls, for a server.
    pub(super) fn routes(&self) -> Routes {
        Routes::from(Router::new().fallback_service(self.clone()))
    }

    /// Serves reads from here on, or none.
    pub(super) fn serve_reads(&self, reads: Option<Reads>) {
        *self.reads.write().unwrap_or_else(PoisonError::into_inner) = reads;
    }

    fn reads(&self) -> Option<Reads> {
        self.reads.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This process leads.
    pub(super) fn lead(&self, routes: Routes, confirmed: Confirmed) {
        self.set(Writes::Here(routes, confirmed));
    }

    /// Another process leads, or none.
    pub(super) fn follow(&self, leader: Option<Leader>) {
        // What is known of this process's own lead is older than its end.
        let leader = leader.filter(|leader| *leader.address != *self.own_address);
        let is_known = match (&*self.writes.borrow(), &leader) {
            (Writes::There(link), Some(leader)) => link.leader == *leader,
            (Writes::Nowhere, None) => true,
            _ => false,
        };
        if is_known {
            return;
        }
        self.set(match leader.map(|leader| self.dialer.link(leader)) {
            Some(Ok(link)) => Writes::There(link),
            Some(Err(reason)) => {
                tracing::error!(
                    reason,
                    "the address of the store that leads cannot be used: see its --advertise"
                );
                Writes::Nowhere
            }
            None => Writes::Nowhere,
        });
    }

    fn set(&self, writes: Writes) {
        if let Writes::There(link) = self.writes.send_replace(writes) {
            link.lose();
        }
    }

    async fn answer(self, request: Request) -> Response {
        if is_read(request.uri().path()) {
            return match self.reads() {
                Some(mut reads) => local(&mut reads.routes, request).await,
                None => {
                    let reason = "it is loading the records from etcd".to_owned();
                    refusal(StoreError::Unconfirmed { reason }.into())
                }
            };
        }
        if is_forwarded(&request) {
            // Who forwarded it waits and asks again, not this process.
            let target = self.writes.borrow().clone();
            let mut answer = match target {
                Writes::There(link) => refused(Some(link.leader.address)),
                here => self.attempt(here, request).await,
            };
            if let Some(reads) = self.reads() {
                answer.headers_mut().insert(REVISION, HeaderValue::from(reads.log.head()));
            }
            return answer;
        }
        let mut writes = self.writes.subscribe();
        let mut election = pin!(sleep(ELECTION));
        if sends_a_stream(request.uri().path()) {
            let target = leader(&mut writes, election.as_mut()).await;
            return self.attempt(target, request).await;
        }
        let (parts, body) = request.into_parts();
        let body = match to_bytes(body, MAX_REQUEST).await {
            Ok(body) => body,
            Err(error) => return refusal(StoreError::from(Invalid::of("", error)).into()),
        };
        loop {
            let target = leader(&mut writes, election.as_mut()).await;
            let request = Request::from_parts(parts.clone(), Body::from(body.clone()));
            let answer = self.attempt(target, request).await;
            if !is_not_leader(&answer) {
                return answer;
            }
            // Nothing of it was done: it may be sent again, to the next leader, or to the same one, which may only have
            // waited for etcd.
            tokio::select! {
                _ = writes.changed() => {}
                () = sleep(AGAIN) => {}
                () = &mut election => return answer,
            }
        }
    }

    /// Has one target answer a write.
    async fn attempt(&self, target: Writes, request: Request) -> Response {
        match target {
            Writes::Here(mut routes, confirmed) if confirmed.is_current() => {
                audit::note_forwarded(false);
                local(&mut routes, request).await
            }
            Writes::There(link) => {
                let applied = self.reads().map(|reads| reads.log.follow_head());
                link.forward(request, applied).await
            }
            Writes::Here(..) | Writes::Nowhere => refused(None),
        }
    }
}

/// Who takes writes, once somebody does.
async fn leader(writes: &mut watch::Receiver<Writes>, election: Pin<&mut Sleep>) -> Writes {
    tokio::select! {
        known = writes.wait_for(|writes| !matches!(writes, Writes::Nowhere)) => {
            known.map_or(Writes::Nowhere, |target| target.clone())
        }
        () = election => Writes::Nowhere,
    }
}

fn refused(leader: Option<String>) -> Response {
    refusal(StoreError::NotLeader { leader }.into())
}

/// Whether the answer is that of a store that does not lead, which has done nothing.
fn is_not_leader(answer: &Response) -> bool {
    let status = answer.headers().get("grpc-status").and_then(|_| Status::from_header_map(answer.headers()));
    let info = status.and_then(|status| status.get_details_error_info());
    info.is_some_and(|info| info.domain == ERROR_DOMAIN && info.reason == "NOT_LEADER")
}

/// Whether the caller goes on sending while the call is answered.
fn sends_a_stream(path: &str) -> bool {
    path.starts_with("/muster.v1.HeartbeatService/")
}

async fn local(routes: &mut Routes, request: Request) -> Response {
    match routes.call(request).await {
        Ok(answer) => answer.into_response(),
        Err(never) => match never {},
    }
}

/// Whether every store answers this method from its own records.
fn is_read(path: &str) -> bool {
    let method = path.rsplit('/').next().unwrap_or_default();
    ["Get", "List", "Watch"].iter().any(|verb| method.starts_with(verb))
}

impl Service<Request> for Switch {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let answering = self.clone().answer(request);
        Box::pin(async move { Ok(answering.await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_of_a_store_that_does_not_lead_permits_another_attempt() {
        for (error, expected) in [
            (StoreError::NotLeader { leader: None }, true),
            (StoreError::NotLeader { leader: Some("b:7400".into()) }, true),
            (StoreError::ForwardingFailed { reason: "cut".into() }, false),
            (StoreError::Storage("lost".into()), false),
            (StoreError::Stopping, false),
        ] {
            assert_eq!(is_not_leader(&refusal(error.clone().into())), expected, "{error:?}");
        }
        assert!(!is_not_leader(&refusal(Status::unavailable("NOT_LEADER"))));
        assert!(!is_not_leader(&Response::new(Body::empty())));
    }

    #[test]
    fn every_call_that_can_write_goes_to_the_leader() {
        for (path, expected) in [
            ("/muster.v1.NodeService/GetNode", true),
            ("/muster.v1.PodService/ListPods", true),
            ("/muster.v1.LeaseService/WatchLeases", true),
            ("/muster.v1.JoinService/GetAuthorities", true),
            ("/muster.v1.JoinService/Join", false),
            ("/muster.v1.LeaseService/RenewLease", false),
            ("/muster.v1.HeartbeatService/Heartbeat", false),
            ("/muster.v1.PodService/EvictPod", false),
            ("/muster.v1.GetService/Evict", false),
        ] {
            assert_eq!(is_read(path), expected, "{path}");
        }
    }
}
