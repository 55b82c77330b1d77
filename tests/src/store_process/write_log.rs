//! Writers that record which writes the store acknowledged, to check that none is lost.
//!
//! Each writer has its own records and sends one write at a time. So it knows the state of each of its records, except
//! after a write that a crash left without an answer: either the state before or the state after it is right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_grpc::heartbeat_service_client::HeartbeatServiceClient;
use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::SeededRandom;

/// The annotation that holds the value that a writer wrote.
const VALUE_ANNOTATION: &str = "example.com/value";
/// The namespace of the writers' pods and leases.
pub const NAMESPACE: &str = "crash";
const NODE_LEASES: &str = "kube-node-lease";

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Node,
    Pod,
    Lease,
}

/// Kind and name of a record.
pub type RecordKey = (Kind, String);

/// The version of a record and the value that its writer wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordState {
    pub version: u64,
    pub value: String,
}

/// The effect of a write. The value is `None` where only the store knows it, such as the time of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Put(Option<String>),
    Gone,
}

/// One change of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `None` for a deletion whose answer was lost.
    pub version: Option<u64>,
    /// `None` for a deletion.
    pub value: Option<String>,
    /// Whether it is a renewal. Watches may skip renewals that a newer one replaced.
    pub renewal: bool,
}

/// The acknowledged writes of a writer, and the one without an answer.
#[derive(Debug, Default)]
pub struct WriteLog {
    known: BTreeMap<RecordKey, Option<RecordState>>,
    /// The write without an answer. It was committed as a whole or not at all.
    unanswered: Vec<(RecordKey, Outcome)>,
    changes: Vec<(RecordKey, Change)>,
    pub renewals: u64,
    /// How many writes without an answer were committed, and how many were not.
    pub unanswered_outcomes: (u64, u64),
}

impl WriteLog {
    fn current(&self, key: &RecordKey) -> Option<&RecordState> {
        self.known.get(key).and_then(Option::as_ref)
    }

    /// The newest version of a kind in this log.
    pub fn newest(&self, kind: Kind) -> u64 {
        let of_kind = self.changes.iter().filter(|(key, _)| key.0 == kind);
        of_kind.filter_map(|(_, change)| change.version).max().unwrap_or(0)
    }

    fn record(&mut self, key: RecordKey, version: Option<u64>, value: Option<String>, renewal: bool) {
        self.renewals += u64::from(renewal);
        let seen = value.clone().map(|value| RecordState { version: version.unwrap_or_default(), value });
        self.known.insert(key.clone(), seen);
        self.changes.push((key, Change { version, value, renewal }));
    }

    /// All changes in order.
    pub fn changes(&self) -> &[(RecordKey, Change)] {
        &self.changes
    }

    /// Compares with the records in the store, and finds out whether the write without an answer was committed.
    pub fn check(&mut self, found: &BTreeMap<RecordKey, RecordState>) {
        let unanswered = std::mem::take(&mut self.unanswered);
        for (key, known) in self.known.iter().filter(|(key, _)| unanswered.iter().all(|(k, _)| k != *key)) {
            assert_eq!(found.get(key), known.as_ref(), "{key:?} is not as it was acknowledged");
        }
        if unanswered.is_empty() {
            return;
        }
        let committed: Vec<bool> =
            unanswered.iter().map(|(key, outcome)| self.is_committed(key, outcome, found)).collect();
        assert!(
            committed.iter().all(|it| *it == committed[0]),
            "a write was committed in part: {unanswered:?}: {committed:?}"
        );
        if !committed[0] {
            self.unanswered_outcomes.1 += 1;
            return;
        }
        self.unanswered_outcomes.0 += 1;
        for (key, _) in unanswered {
            let seen = found.get(&key);
            let renewal = key.0 == Kind::Lease && self.current(&key).is_some() && seen.is_some();
            self.record(key, seen.map(|seen| seen.version), seen.map(|seen| seen.value.clone()), renewal);
        }
    }

    fn is_committed(
        &self,
        key: &RecordKey,
        outcome: &Outcome,
        found: &BTreeMap<RecordKey, RecordState>,
    ) -> bool {
        let (known, found) = (self.current(key), found.get(key));
        if found == known {
            // Only existing records are deleted, so an unchanged record means that nothing was committed.
            return false;
        }
        let fits = match (outcome, found) {
            (Outcome::Gone, None) => true,
            (Outcome::Put(value), Some(seen)) => {
                seen.version > known.map_or(0, |known| known.version)
                    && value.as_ref().is_none_or(|value| *value == seen.value)
            }
            _ => false,
        };
        assert!(fits, "{key:?} was {known:?}, the write was {outcome:?}, the store has {found:?}");
        true
    }
}

/// What a writer writes.
#[derive(Clone, Copy, Debug)]
pub enum WriterKind {
    Nodes,
    Pods,
    Heartbeats,
    Leases,
}

/// A writer with its own records.
#[derive(Debug)]
pub struct Writer {
    pub name: String,
    kind: WriterKind,
    random: SeededRandom,
    written: u64,
    pub log: WriteLog,
}

/// Counts the acknowledged writes of all writers.
pub type AckCounter = Arc<AtomicU64>;

/// The error of a call without an answer.
pub type Interrupted = Status;

impl Writer {
    pub fn new(name: &str, kind: WriterKind, random: SeededRandom) -> Writer {
        Writer { name: name.to_owned(), kind, random, written: 0, log: WriteLog::default() }
    }

    /// Writers of every kind, sorted by name.
    pub fn fleet(random: &mut SeededRandom) -> Vec<Writer> {
        let counts = [
            (WriterKind::Heartbeats, 2),
            (WriterKind::Leases, 2),
            (WriterKind::Nodes, 3),
            (WriterKind::Pods, 2),
        ];
        let all = counts.into_iter().flat_map(|(kind, count)| (0..count).map(move |i| (kind, i)));
        all.map(|(kind, i)| Writer::new(&format!("{kind:?}-{i}").to_lowercase(), kind, random.fork()))
            .collect()
    }

    /// Writes until a call fails because the store is gone.
    pub async fn write_on(&mut self, channel: Channel, acks: &AckCounter) -> Interrupted {
        let stopped = loop {
            if let Err(status) = self.step(&channel, acks).await {
                break status;
            }
        };
        let lost = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
        assert!(lost.contains(&stopped.code()), "{}: unexpected error {stopped:?}", self.name);
        stopped
    }

    /// Writes `times` times. One time of a heartbeat writer is a whole stream.
    ///
    /// # Errors
    /// The error of the first call that fails.
    pub async fn write(&mut self, channel: Channel, times: usize) -> Result<(), Interrupted> {
        for _ in 0..times {
            self.step(&channel, &AckCounter::default()).await?;
        }
        Ok(())
    }

    async fn step(&mut self, channel: &Channel, acks: &AckCounter) -> Result<(), Interrupted> {
        match self.kind {
            WriterKind::Nodes => self.node(channel.clone()).await,
            WriterKind::Pods => self.pod(channel.clone()).await,
            WriterKind::Leases => self.lease(channel.clone()).await,
            WriterKind::Heartbeats => self.heartbeat(channel.clone(), acks).await,
        }?;
        acks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn next_value(&mut self) -> String {
        self.written += 1;
        format!("{}-{}", self.name, self.written)
    }

    fn unanswered(&mut self, key: &RecordKey, outcome: Outcome) {
        self.log.unanswered.push((key.clone(), outcome));
    }

    fn acknowledged(&mut self, key: RecordKey, version: u64, value: Option<String>, renewal: bool) {
        let before = self.log.current(&key).map_or(0, |seen| seen.version);
        assert!(version > before, "{key:?}: version {version} after {before}");
        self.log.unanswered.clear();
        self.log.record(key, Some(version), value, renewal);
    }

    async fn node(&mut self, channel: Channel) -> Result<(), Interrupted> {
        let mut nodes = NodeServiceClient::new(channel);
        let name = format!("{}-{}", self.name, self.random.below(8));
        let key = (Kind::Node, name.clone());
        let exists = self.log.current(&key).is_some();
        if exists && self.random.one_in(4) {
            self.unanswered(&key, Outcome::Gone);
            let gone =
                nodes.delete_node(pb::DeleteNodeRequest { name, preconditions: None }).await?.into_inner();
            self.acknowledged(key, version(gone.node.and_then(|node| node.metadata)), None, false);
            return Ok(());
        }
        let value = self.next_value();
        let node = Some(node(&name, &value));
        let value = format!("{value}/");
        self.unanswered(&key, Outcome::Put(Some(value.clone())));
        let stored = if exists {
            nodes.update_node(pb::UpdateNodeRequest { node }).await?.into_inner().node
        } else {
            nodes.create_node(pb::CreateNodeRequest { node }).await?.into_inner().node
        };
        self.acknowledged(key, version(stored.and_then(|node| node.metadata)), Some(value), false);
        Ok(())
    }

    async fn pod(&mut self, channel: Channel) -> Result<(), Interrupted> {
        let mut pods = PodServiceClient::new(channel);
        let name = format!("{}-{}", self.name, self.random.below(8));
        let key = (Kind::Pod, name.clone());
        let namespace = NAMESPACE.to_owned();
        let exists = self.log.current(&key).is_some();
        if exists && self.random.one_in(4) {
            self.unanswered(&key, Outcome::Gone);
            let grace_period_seconds = Some(0);
            let request = pb::DeletePodRequest { namespace, name, preconditions: None, grace_period_seconds };
            let gone = pods.delete_pod(request).await?.into_inner();
            self.acknowledged(key, version(gone.pod.and_then(|pod| pod.metadata)), None, false);
            return Ok(());
        }
        let value = self.next_value();
        let pod = pod(&name, &value);
        self.unanswered(&key, Outcome::Put(Some(value.clone())));
        let stored = if exists {
            // Everything except the annotation must stay as it is.
            let get = pb::GetPodRequest { namespace, name };
            let current = pods.get_pod(get).await?.into_inner().pod.unwrap_or_default();
            let pod = Some(pb::Pod { metadata: pod.metadata, ..current });
            pods.update_pod(pb::UpdatePodRequest { pod }).await?.into_inner().pod
        } else {
            pods.create_pod(pb::CreatePodRequest { pod: Some(pod) }).await?.into_inner().pod
        };
        self.acknowledged(key, version(stored.and_then(|pod| pod.metadata)), Some(value), false);
        Ok(())
    }

    async fn lease(&mut self, channel: Channel) -> Result<(), Interrupted> {
        let mut leases = LeaseServiceClient::new(channel);
        let name = format!("{}-{}", self.name, self.random.below(4));
        let key = (Kind::Lease, name.clone());
        let namespace = NAMESPACE.to_owned();
        if self.log.current(&key).is_none() {
            self.unanswered(&key, Outcome::Put(None));
            let metadata = Some(metadata(&name, NAMESPACE, ""));
            let spec = pb::LeaseSpec { holder_identity: self.name.clone(), ..Default::default() };
            let lease = Some(pb::Lease { metadata, spec: Some(spec) });
            let created = leases.create_lease(pb::CreateLeaseRequest { lease }).await?.into_inner().lease;
            let seen = lease_state(&created.unwrap_or_default());
            self.acknowledged(key, seen.version, Some(seen.value), false);
        } else if self.random.one_in(50) {
            self.unanswered(&key, Outcome::Gone);
            let request = pb::DeleteLeaseRequest { namespace, name, preconditions: None };
            let gone = leases.delete_lease(request).await?.into_inner();
            self.acknowledged(key, version(gone.lease.and_then(|lease| lease.metadata)), None, false);
        } else {
            self.unanswered(&key, Outcome::Put(None));
            let request = pb::RenewLeaseRequest { namespace, name, holder_identity: self.name.clone() };
            let renewed = leases.renew_lease(request).await?.into_inner();
            let value = renewal_value(0, renewed.renew_time.as_ref());
            self.acknowledged(key, renewed.resource_version, Some(value), true);
        }
        Ok(())
    }

    /// Acts as a node's agent: registers, sends renewals and sometimes a status over one stream, then deletes the node.
    async fn heartbeat(&mut self, channel: Channel, acks: &AckCounter) -> Result<(), Interrupted> {
        let node_name = self.name.clone();
        let (key, lease) = ((Kind::Node, node_name.clone()), (Kind::Lease, node_name.clone()));
        let mut nodes = NodeServiceClient::new(channel.clone());
        if self.log.current(&key).is_none() {
            let value = self.next_value();
            self.unanswered(&key, Outcome::Put(Some(format!("{value}/"))));
            let request = pb::CreateNodeRequest { node: Some(node(&node_name, &value)) };
            let created = nodes.create_node(request).await?.into_inner().node;
            let version = version(created.and_then(|node| node.metadata));
            self.acknowledged(key, version, Some(format!("{value}/")), false);
            return Ok(());
        }
        let request = pb::GetNodeRequest { name: node_name.clone() };
        let found =
            nodes.get_node(request).await?.into_inner().node.unwrap_or_default().metadata.unwrap_or_default();
        let (requests, outgoing) = mpsc::channel(1);
        let hello = pb::HeartbeatHello {
            node_name: node_name.clone(),
            node_uid: found.uid,
            incarnation: node_name.clone(),
            lease_duration: None,
        };
        let known = self.log.current(&lease).cloned();
        if known.is_none() {
            self.unanswered(&lease, Outcome::Put(None));
        }
        let first = pb::HeartbeatRequest { sequence: 1, message: Some(Message::Hello(hello)) };
        requests.send(first).await.expect("the receiver is still here");
        let mut responses = HeartbeatServiceClient::new(channel.clone())
            .heartbeat(ReceiverStream::new(outgoing))
            .await?
            .into_inner();
        let answer = next(&mut responses).await?;
        match known {
            Some(known) => {
                assert_eq!(answer.resource_version, known.version, "the agent still holds the lease");
            }
            None => {
                // The value is the store's time at the hello.
                let request =
                    pb::GetLeaseRequest { namespace: NODE_LEASES.to_owned(), name: node_name.clone() };
                let created = LeaseServiceClient::new(channel).get_lease(request).await?.into_inner().lease;
                let seen = lease_state(&created.unwrap_or_default());
                assert_eq!(answer.resource_version, seen.version);
                self.acknowledged(lease.clone(), seen.version, Some(seen.value), false);
            }
        }
        for sequence in 2..200 {
            self.written += 1;
            if sequence % 32 == 0 {
                let was = self.log.current(&key).map(|seen| seen.value.clone()).unwrap_or_default();
                let (annotation, _) = was.split_once('/').unwrap_or_default();
                let (value, phase) = (format!("{annotation}/{}", self.written), self.written.to_string());
                self.unanswered(&key, Outcome::Put(Some(value.clone())));
                let status = Some(pb::NodeStatus { phase, ..Default::default() });
                let message = Some(Message::Status(pb::HeartbeatStatus { status, resource_version: 0 }));
                let answer =
                    request_response(&requests, &mut responses, pb::HeartbeatRequest { sequence, message })
                        .await?;
                self.acknowledged(key.clone(), answer.resource_version, Some(value), false);
            } else {
                let status_digest = self.written;
                self.unanswered(&lease, Outcome::Put(None));
                let message =
                    Some(Message::Renewal(pb::HeartbeatRenewal { status_digest, status_age_millis: 0 }));
                let answer =
                    request_response(&requests, &mut responses, pb::HeartbeatRequest { sequence, message })
                        .await?;
                let value = renewal_value(status_digest, answer.renew_time.as_ref());
                self.acknowledged(lease.clone(), answer.resource_version, Some(value), true);
            }
            acks.fetch_add(1, Ordering::Relaxed);
        }
        // The node owns the lease: both are deleted together.
        self.unanswered(&key, Outcome::Gone);
        self.unanswered(&lease, Outcome::Gone);
        let gone = nodes
            .delete_node(pb::DeleteNodeRequest { name: node_name, preconditions: None })
            .await?
            .into_inner();
        self.acknowledged(key, version(gone.node.and_then(|node| node.metadata)), None, false);
        self.log.record(lease, None, None, false);
        Ok(())
    }
}

type Responses = tonic::Streaming<pb::HeartbeatResponse>;

async fn request_response(
    requests: &mpsc::Sender<pb::HeartbeatRequest>,
    responses: &mut Responses,
    request: pb::HeartbeatRequest,
) -> Result<pb::HeartbeatResponse, Interrupted> {
    let sequence = request.sequence;
    if requests.send(request).await.is_err() {
        return Err(next(responses)
            .await
            .err()
            .unwrap_or_else(|| Status::unavailable("the stream is closed")));
    }
    let answer = next(responses).await?;
    assert_eq!(answer.sequence, sequence);
    Ok(answer)
}

async fn next(responses: &mut Responses) -> Result<pb::HeartbeatResponse, Interrupted> {
    responses.message().await?.ok_or_else(|| Status::unavailable("the stream ended"))
}

fn version(metadata: Option<pb::Metadata>) -> u64 {
    metadata.unwrap_or_default().resource_version
}

/// The metadata of a request.
pub fn metadata(name: &str, namespace: &str, value: &str) -> pb::Metadata {
    let annotations =
        [(VALUE_ANNOTATION.to_owned(), value.to_owned())].into_iter().filter(|(_, value)| !value.is_empty());
    pb::Metadata {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        annotations: annotations.collect(),
        ..Default::default()
    }
}

/// A node for a request.
pub fn node(name: &str, value: &str) -> pb::Node {
    pb::Node { metadata: Some(metadata(name, "", value)), ..Default::default() }
}

/// A pod for a request.
pub fn pod(name: &str, value: &str) -> pb::Pod {
    let container = pb::Container { name: "main".into(), image: "web:1".into(), ..Default::default() };
    let spec = pb::PodSpec { containers: vec![container], ..Default::default() };
    pb::Pod { metadata: Some(metadata(name, NAMESPACE, value)), spec: Some(spec), status: None }
}

fn renewal_value(digest: u64, at: Option<&prost_types::Timestamp>) -> String {
    at.map_or_else(|| format!("{digest}@never"), |at| format!("{digest}@{}.{:09}", at.seconds, at.nanos))
}

fn state_of(metadata: &pb::Metadata) -> RecordState {
    let value = metadata.annotations.get(VALUE_ANNOTATION).cloned().unwrap_or_default();
    RecordState { version: metadata.resource_version, value }
}

pub fn node_state(node: &pb::Node) -> RecordState {
    let RecordState { version, value } = state_of(&node.metadata.clone().unwrap_or_default());
    let phase = node.status.as_ref().map_or("", |status| &status.phase);
    RecordState { version, value: format!("{value}/{phase}") }
}

pub fn pod_state(pod: &pb::Pod) -> RecordState {
    state_of(&pod.metadata.clone().unwrap_or_default())
}

pub fn lease_state(lease: &pb::Lease) -> RecordState {
    let version = lease.metadata.as_ref().map_or(0, |metadata| metadata.resource_version);
    let spec = lease.spec.clone().unwrap_or_default();
    RecordState { version, value: renewal_value(spec.status_digest, spec.renew_time.as_ref()) }
}

/// All nodes, pods and leases, and the store's revision.
pub async fn read_all(channel: &Channel) -> Result<(BTreeMap<RecordKey, RecordState>, u64), Status> {
    const MAX: usize = 64 << 20;
    let name = |metadata: &Option<pb::Metadata>| metadata.clone().unwrap_or_default().name;
    let mut all = BTreeMap::new();
    let mut nodes = NodeServiceClient::new(channel.clone()).max_decoding_message_size(MAX);
    let listed = nodes.list_nodes(pb::ListNodesRequest::default()).await?.into_inner();
    all.extend(listed.nodes.iter().map(|node| ((Kind::Node, name(&node.metadata)), node_state(node))));
    let mut pods = PodServiceClient::new(channel.clone()).max_decoding_message_size(MAX);
    let listed = pods.list_pods(pb::ListPodsRequest::default()).await?.into_inner();
    all.extend(listed.pods.iter().map(|pod| ((Kind::Pod, name(&pod.metadata)), pod_state(pod))));
    let mut leases = LeaseServiceClient::new(channel.clone()).max_decoding_message_size(MAX);
    let listed = leases.list_leases(pb::ListLeasesRequest::default()).await?.into_inner();
    all.extend(listed.leases.iter().map(|lease| ((Kind::Lease, name(&lease.metadata)), lease_state(lease))));
    Ok((all, listed.resource_version))
}

/// Checks that the store has exactly the records in the writers' logs. Returns the store's revision.
pub async fn check_all(writers: &mut [Writer], channel: &Channel) -> u64 {
    let (found, head) = read_all(channel).await.expect("the store answers");
    for writer in writers.iter_mut() {
        writer.log.check(&found);
    }
    for key in found.keys() {
        let known = writers.iter().any(|writer| writer.log.current(key).is_some());
        assert!(known, "{key:?} exists, but no writer wrote it");
    }
    let kinds = [Kind::Node, Kind::Pod, Kind::Lease];
    let logs = writers.iter().map(|writer| &writer.log);
    let newest = logs.flat_map(|log| kinds.map(|kind| log.newest(kind))).max().unwrap_or(0);
    assert!(newest <= head, "version {newest} was acknowledged, but the store is at {head}");
    head
}
