//! HeartbeatService: one stream per agent, which processes one request at a time.
//!
//! The response stream is implemented by hand: it polls the inbound stream and a slot that the writer fills, so an idle
//! agent costs neither a task nor a channel.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use muster_grpc::heartbeat_service_server::HeartbeatService;
use muster_proto::identity::Caller;
use muster_proto::invalid::Invalid;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_proto::record::Kind;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::audit;
use muster_rpc::layers::bad_message::bad_message;
use prost::Message as _;
use tokio::time::{Sleep, sleep};
use tonic::{Request, Response, Status, Streaming};

use muster_store_core::authz::{Call, Content, Verb, authorize};
use muster_store_core::heartbeat::contested_streams::Takeover;
use muster_store_core::heartbeat::{Hello, acquire_lease};
use muster_store_core::lease_table::{Claim, Renewal};
use muster_store_core::namespaced_name::NamespacedName;
use muster_store_core::rules::{self, RecordId, Refusal};

use super::{Services, authorize_record, authz_result, caller, timestamp, write_class};
use crate::error::StoreError;
use crate::heartbeat_streams::{StreamEnd, StreamPlace};
use crate::queue::AckSlot;

/// How long a stream may be open without a hello. An agent sends it with the first bytes of the stream.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// A write whose commit is awaited.
type PendingWrite<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// An agent that holds its node's lease.
struct Agent {
    hello: Hello,
    claim: Claim,
    place: StreamPlace,
}

/// What the stream waits for.
enum Phase {
    /// The agent's next request.
    Receiving,
    /// The answer to a hello: the write that gives the agent its node's lease.
    AcquiringLease(u64, PendingWrite<(Agent, u64)>),
    /// The commit of a renewal.
    Renewing(u64),
    /// The commit of a node status.
    UpdatingStatus(u64, PendingWrite<u64>),
    Ended,
}

/// The response stream of one agent.
pub struct HeartbeatStream {
    services: Services,
    caller: Caller,
    /// The stream's call, if it is audited. Hellos and statuses are audited one by one; renewals are not.
    audit: Option<Arc<audit::Call>>,
    inbound: Streaming<pb::HeartbeatRequest>,
    agent: Option<Agent>,
    phase: Phase,
    /// Runs until the agent's hello is received.
    hello_timer: Option<Pin<Box<Sleep>>>,
    slot: Arc<AckSlot<Renewal>>,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
}

#[tonic::async_trait]
impl HeartbeatService for Services {
    type HeartbeatStream = HeartbeatStream;

    async fn heartbeat(
        &self,
        request: Request<Streaming<pb::HeartbeatRequest>>,
    ) -> Result<Response<HeartbeatStream>, Status> {
        let caller = caller(&request);
        self.store.metrics().heartbeats.inc();
        Ok(Response::new(HeartbeatStream {
            services: self.clone(),
            caller,
            audit: audit::current(),
            inbound: request.into_inner(),
            agent: None,
            phase: Phase::Receiving,
            hello_timer: Some(Box::pin(sleep(HELLO_TIMEOUT))),
            slot: Arc::default(),
            stopping: Box::pin(self.shutdown.requested()),
        }))
    }
}

impl HeartbeatStream {
    /// Starts to process a request; returns the phase that awaits its result.
    fn begin(&mut self, request: pb::HeartbeatRequest) -> Result<Phase, Status> {
        let sequence = request.sequence;
        let message = request.message.ok_or_else(|| malformed("message", "is required"))?;
        match (message, &self.agent) {
            (Message::Hello(hello), None) => {
                self.hello_timer = None;
                let hello = Hello::try_from(hello).map_err(StoreError::from)?;
                let (services, caller) = (self.services.clone(), self.caller.clone());
                let (stream, node) = (self.audit.clone(), hello.node.clone());
                let accepted = async move {
                    let record = (Kind::Lease, NODE_LEASE_NAMESPACE, node.as_str());
                    audit::message(stream, "hello", record, services.accept_hello(caller, hello)).await
                };
                Ok(Phase::AcquiringLease(sequence, Box::pin(accepted)))
            }
            (Message::Hello(_), Some(_)) => Err(malformed("hello", "was sent already")),
            (_, None) => Err(malformed("hello", "must be the first message of the stream")),
            (Message::Renewal(renewal), Some(agent)) => {
                let pb::HeartbeatRenewal { status_digest, status_age_millis } = renewal;
                let slot = Arc::clone(&self.slot);
                let status = Some((status_digest, status_age_millis));
                self.services.store.renew(agent.claim, status, slot)?;
                Ok(Phase::Renewing(sequence))
            }
            (Message::Status(status), Some(agent)) => {
                let (services, caller, hello, claim) =
                    (self.services.clone(), self.caller.clone(), agent.hello.clone(), agent.claim);
                let end = Arc::clone(agent.place.end());
                let (stream, node) = (self.audit.clone(), hello.node.clone());
                let report = async move {
                    let report = services.report_status(caller, hello, claim, end, status);
                    audit::message(stream, "update_status", (Kind::Node, "", node.as_str()), report).await
                };
                Ok(Phase::UpdatingStatus(sequence, Box::pin(report)))
            }
        }
    }

    /// Fails when another stream has taken the lease's place.
    fn poll_replaced(&self, cx: &Context<'_>) -> Result<(), StoreError> {
        self.agent.as_ref().map_or(Ok(()), |agent| agent.place.end().poll(cx))
    }

    /// Ready when the agent has not said hello in time.
    fn poll_hello_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.hello_timer.as_mut().map_or(Poll::Pending, |timer| timer.as_mut().poll(cx))
    }

    fn response(&self, sequence: u64, version: u64, renewal: Option<Renewal>) -> pb::HeartbeatResponse {
        let next = self.agent.as_ref().map(|agent| agent.hello.next_renewal());
        pb::HeartbeatResponse {
            sequence,
            resource_version: version,
            next_renewal: next.and_then(|next| next.try_into().ok()),
            renew_time: renewal.map(|renewal| timestamp(renewal.at_micros)),
        }
    }

    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<pb::HeartbeatResponse, Status>>> {
        loop {
            match &mut self.phase {
                Phase::Ended => return Poll::Ready(None),
                Phase::Receiving => match ready!(Pin::new(&mut self.inbound).poll_next(cx)) {
                    Some(Ok(request)) => self.phase = self.begin(request)?,
                    // The agent disconnected, or its message was refused. Only the latter is an answer to give; the
                    // controller detects a dead agent by its lease.
                    Some(Err(status)) => return Poll::Ready(refusal(status).map(Err)),
                    None => return Poll::Ready(None),
                },
                Phase::AcquiringLease(sequence, work) => {
                    let sequence = *sequence;
                    let (agent, version) = ready!(work.as_mut().poll(cx))?;
                    let agent = self.agent.insert(agent);
                    // Registers this task for the end of the stream.
                    agent.place.end().poll(cx)?;
                    self.phase = Phase::Receiving;
                    return Poll::Ready(Some(Ok(self.response(sequence, version, None))));
                }
                Phase::Renewing(sequence) => {
                    let sequence = *sequence;
                    let renewal = ready!(self.slot.poll(cx))?;
                    self.phase = Phase::Receiving;
                    return Poll::Ready(Some(Ok(self.response(sequence, renewal.revision, Some(renewal)))));
                }
                Phase::UpdatingStatus(sequence, work) => {
                    let sequence = *sequence;
                    let version = ready!(work.as_mut().poll(cx))?;
                    self.phase = Phase::Receiving;
                    return Poll::Ready(Some(Ok(self.response(sequence, version, None))));
                }
            }
        }
    }
}

/// The answer to a message that was refused before it got here: it is too large, cannot be decoded, or was one too many
/// at once. `None` when the stream broke.
fn refusal(status: Status) -> Option<Status> {
    // A status with a reason was made by this server, not by a connection that broke.
    bad_message(&status).or_else(|| (!status.details().is_empty()).then_some(status))
}

impl Stream for HeartbeatStream {
    type Item = Result<pb::HeartbeatResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Before the response: a renewal of a stream that was replaced is not acknowledged.
        let response = match self.poll_replaced(cx) {
            Ok(()) => self.poll_response(cx),
            Err(error) => Poll::Ready(Some(Err(error.into()))),
        };
        let response = match response {
            Poll::Pending if self.stopping.as_mut().poll(cx).is_ready() => {
                Poll::Ready(Some(Err(StoreError::Stopping.into())))
            }
            Poll::Pending if self.poll_hello_timer(cx).is_ready() => {
                Poll::Ready(Some(Err(StoreError::NoHello { timeout: HELLO_TIMEOUT }.into())))
            }
            other => other,
        };
        // The stream ends after an error.
        if let Poll::Ready(None | Some(Err(_))) = &response {
            let ended = std::mem::replace(&mut self.phase, Phase::Ended);
            if matches!(ended, Phase::Ended) {
                return Poll::Ready(None);
            }
        }
        response
    }
}

impl Drop for HeartbeatStream {
    fn drop(&mut self) {
        self.services.store.metrics().heartbeats.dec();
    }
}

impl Services {
    /// Handles a hello: the node must exist, and the agent holds the node's lease afterwards.
    async fn accept_hello(&self, caller: Caller, hello: Hello) -> Result<(Agent, u64), Status> {
        let call = Call {
            verb: Verb::Renew,
            kind: Kind::Lease,
            namespace: Some(NODE_LEASE_NAMESPACE),
            name: Some(hello.node.as_str()),
            field_selector: None,
        };
        authz_result(authorize(&caller, &call, &Content::None))?;
        let wanted = hello.clone();
        let commit_health = Arc::clone(self.store.commit_health());
        let class = write_class(&caller, Kind::Lease, None, 0);
        let version = self.write(class, None, move |draft| {
            let node: Option<Node> = draft.get("", wanted.node.as_str())?;
            let lease: Option<Lease> = draft.get(NODE_LEASE_NAMESPACE, wanted.node.as_str())?;
            let now = draft.now();
            let renewable_since = commit_health.renewable_since(now);
            let next = acquire_lease(&wanted, node.as_ref(), lease.as_ref(), now, renewable_since)?;
            let cx = draft.context();
            match (lease, next) {
                (None, Some(new)) => Ok(draft.put(rules::create(None, new, &cx)?)?.version),
                (Some(_), Some(changed)) => Ok(draft.put(changed)?.version),
                (Some(lease), None) => Ok(lease.meta.resource_version),
                (None, None) => Err(StoreError::Stopping),
            }
        });
        let version = version.await?;
        let claim = self.claim(&hello)?;
        let place = self.open_stream(&hello, claim);
        Ok((Agent { hello, claim, place }, version))
    }

    /// Opens the lease's stream and ends its older one.
    fn open_stream(&self, hello: &Hello, claim: Claim) -> StreamPlace {
        let now = self.store.clock().mono();
        let (place, takeover) = self.streams.open(claim, now, hello.lease_duration);
        if let Some(Takeover::Contested { warn }) = takeover {
            self.store.metrics().contested_heartbeats.inc();
            if warn {
                tracing::warn!(
                    node = %hello.node,
                    incarnation = hello.incarnation,
                    "heartbeat streams of one agent incarnation replace each other again and again: two agents may run \
                     with copies of one state directory, as on a cloned machine"
                );
            }
        }
        place
    }

    /// The claim on the node's lease, if this incarnation of the agent holds it.
    fn claim(&self, hello: &Hello) -> Result<Claim, StoreError> {
        let memory = self.store.read();
        let key = NamespacedName::new(NODE_LEASE_NAMESPACE, hello.node.as_str());
        let lease = memory.get(Kind::Lease, &key);
        let own = lease.filter(|lease| {
            memory.leases.is_held_by(lease.lease_id, hello.node.as_str(), &hello.incarnation)
        });
        let claim = own.and_then(|lease| memory.leases.claim(lease.lease_id));
        claim.ok_or(StoreError::ClaimLost)
    }

    /// Stores the node status that an agent reports.
    async fn report_status(
        &self,
        caller: Caller,
        hello: Hello,
        claim: Claim,
        end: Arc<StreamEnd>,
        report: pb::HeartbeatStatus,
    ) -> Result<u64, Status> {
        let status = report.status.ok_or_else(|| malformed("status", "is required"))?;
        let version = report.resource_version;
        let metadata = pb::Metadata { name: hello.node.to_string(), ..Default::default() };
        let wire = pb::Node { metadata: Some(metadata), spec: None, status: Some(status) };
        let class = write_class(&caller, Kind::Node, None, wire.encoded_len());
        let reported = Node::try_from(wire).map_err(StoreError::from)?;
        self.write(class, None, move |draft| {
            let current: Option<Node> = draft.get("", hello.node.as_str())?;
            let mut wanted = match &current {
                Some(current) => {
                    let (meta, spec) = (current.meta.clone(), current.spec.clone());
                    Node { meta, spec, status: reported.status }
                }
                None => reported,
            };
            wanted.meta.resource_version = version;
            authorize_record(draft, &caller, Verb::UpdateStatus, current.as_ref(), Some(&wanted))?;
            if let Some(current) = &current
                && current.meta.uid != Some(hello.node_uid)
            {
                let (key, expected, found) = (RecordId::of(current), hello.node_uid, current.meta.uid);
                return Err(Refusal::UidMismatch { key, expected, found }.into());
            }
            // An agent that lost the lease to another incarnation, or to another stream, must not report for the node.
            end.check()?;
            if !draft.is_claim_valid(claim) {
                return Err(StoreError::ClaimLost);
            }
            let outcome = rules::update_status(current.as_ref(), wanted, &draft.context())?;
            Ok(draft.apply(outcome)?.version)
        })
        .await
    }
}

fn malformed(field: &str, reason: &str) -> Status {
    StoreError::from(Invalid::of(field, reason)).into()
}
