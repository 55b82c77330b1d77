//! Writers that write down what the store acknowledged, to hold it to its word.
//!
//! Each writer has records of its own and one write under way at a time. So it
//! knows what every one of them must look like, but for the write that a crash
//! left without an answer: of that one either both sides of it are right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_grpc::heartbeat_service_client::HeartbeatServiceClient;
use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message as Say;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::SeededRandom;

/// Where a writer leaves its value on a record.
const VALUE_ANNOTATION: &str = "example.com/value";
/// The namespace of all but nodes and their leases.
pub const NAMESPACE: &str = "crash";
const NODE_LEASES: &str = "kube-node-lease";

/// What kind a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Node,
    Pod,
    Lease,
}

/// Which record is meant.
pub type Key = (Kind, String);

/// A record, as far as a writer cares: what it wrote, and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordState {
    pub version: u64,
    pub value: String,
}

/// What a write makes of a record; a value that only the store knows is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Put(Option<String>),
    Gone,
}

/// One change that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `None` for a deletion that nobody answered.
    pub version: Option<u64>,
    /// `None` if it is gone.
    pub value: Option<String>,
    /// Whether it is a renewal, which watchers need not hear of one by one.
    pub renewal: bool,
}

/// What a writer was told, and what it was not.
#[derive(Debug, Default)]
pub struct WriteLog {
    known: BTreeMap<Key, Option<RecordState>>,
    /// The write without an answer: all of it happened, or none.
    unanswered: Vec<(Key, Outcome)>,
    changes: Vec<(Key, Change)>,
    pub renewals: u64,
    /// Doubts that turned out to have happened, and not.
    pub unanswered_outcomes: (u64, u64),
}

impl WriteLog {
    fn current(&self, key: &Key) -> Option<&RecordState> {
        self.known.get(key).and_then(Option::as_ref)
    }

    /// The newest version of a kind that is known.
    pub fn newest(&self, kind: Kind) -> u64 {
        let of_kind = self.changes.iter().filter(|(key, _)| key.0 == kind);
        of_kind.filter_map(|(_, change)| change.version).max().unwrap_or(0)
    }

    fn record(&mut self, key: Key, version: Option<u64>, value: Option<String>, renewal: bool) {
        self.renewals += u64::from(renewal);
        let seen = value.clone().map(|value| RecordState { version: version.unwrap_or_default(), value });
        self.known.insert(key.clone(), seen);
        self.changes.push((key, Change { version, value, renewal }));
    }

    /// Everything that happened, by record and in order.
    pub fn changes(&self) -> &[(Key, Change)] {
        &self.changes
    }

    /// Compares with what the store has, and clears the unanswered up.
    pub fn check(&mut self, found: &BTreeMap<Key, RecordState>) {
        let unanswered = std::mem::take(&mut self.unanswered);
        for (key, known) in self.known.iter().filter(|(key, _)| unanswered.iter().all(|(k, _)| k != *key)) {
            assert_eq!(found.get(key), known.as_ref(), "{key:?} is not as it was acknowledged");
        }
        if unanswered.is_empty() {
            return;
        }
        let happened: Vec<bool> =
            unanswered.iter().map(|(key, outcome)| self.happened(key, outcome, found)).collect();
        assert!(
            happened.iter().all(|it| *it == happened[0]),
            "half of a write happened: {unanswered:?}: {happened:?}"
        );
        if !happened[0] {
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

    fn happened(&self, key: &Key, outcome: &Outcome, found: &BTreeMap<Key, RecordState>) -> bool {
        let (known, found) = (self.current(key), found.get(key));
        if found == known {
            // A deletion of what is not there is never asked for.
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
        assert!(fits, "{key:?} was {known:?}, {outcome:?} was asked for, and it is {found:?}");
        true
    }
}

/// What a writer does.
#[derive(Clone, Copy, Debug)]
pub enum WriterKind {
    Nodes,
    Pods,
    Heartbeats,
    Leases,
}

/// A writer with records of its own.
#[derive(Debug)]
pub struct Writer {
    pub name: String,
    kind: WriterKind,
    random: SeededRandom,
    written: u64,
    pub log: WriteLog,
}

/// Acknowledgements of all writers.
pub type AckCounter = Arc<AtomicU64>;

/// Why a call was left without a record.
pub type Interrupted = Status;

impl Writer {
    pub fn new(name: &str, kind: WriterKind, random: SeededRandom) -> Writer {
        Writer { name: name.to_owned(), kind, random, written: 0, log: WriteLog::default() }
    }

    /// A fleet of them, of every event_type, by name.
    pub fn fleet(random: &mut SeededRandom) -> Vec<Writer> {
        let works = [
            (WriterKind::Heartbeats, 2),
            (WriterKind::Leases, 2),
            (WriterKind::Nodes, 3),
            (WriterKind::Pods, 2),
        ];
        let all = works.into_iter().flat_map(|(kind, count)| (0..count).map(move |i| (kind, i)));
        all.map(|(kind, i)| Writer::new(&format!("{kind:?}-{i}").to_lowercase(), kind, random.fork()))
            .collect()
    }

    /// Writes until the store does not answer.
    pub async fn write_on(&mut self, channel: Channel, acks: &AckCounter) -> Interrupted {
        let stopped = loop {
            if let Err(status) = self.step(&channel, acks).await {
                break status;
            }
        };
        let lost = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
        assert!(lost.contains(&stopped.code()), "{} was refused: {stopped:?}", self.name);
        stopped
    }

    /// Writes a few times; a heartbeat writer's time is a whole stream.
    ///
    /// # Errors
    /// The store's answer, if it is not the record.
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

    fn unanswered(&mut self, key: &Key, outcome: Outcome) {
        self.log.unanswered.push((key.clone(), outcome));
    }

    fn acknowledged(&mut self, key: Key, version: u64, value: Option<String>, renewal: bool) {
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
            // All but the annotation has to be as it is.
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

    /// A node's agent: registers, then beats over one stream, now and then with a
    /// status; sometimes the node leaves the fleet.
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
        let (say, said) = mpsc::channel(1);
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
        let first = pb::HeartbeatRequest { sequence: 1, message: Some(Say::Hello(hello)) };
        say.send(first).await.expect("the other end is here");
        let mut heard = HeartbeatServiceClient::new(channel.clone())
            .heartbeat(ReceiverStream::new(said))
            .await?
            .into_inner();
        let answer = next(&mut heard).await?;
        match known {
            Some(known) => {
                assert_eq!(answer.resource_version, known.version, "the lease is the agent's own still");
            }
            None => {
                // Its value is the store's clock at the greeting.
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
                let message = Some(Say::Status(pb::HeartbeatStatus { status, resource_version: 0 }));
                let answer = ask(&say, &mut heard, pb::HeartbeatRequest { sequence, message }).await?;
                self.acknowledged(key.clone(), answer.resource_version, Some(value), false);
            } else {
                let status_digest = self.written;
                self.unanswered(&lease, Outcome::Put(None));
                let message =
                    Some(Say::Renewal(pb::HeartbeatRenewal { status_digest, status_age_millis: 0 }));
                let answer = ask(&say, &mut heard, pb::HeartbeatRequest { sequence, message }).await?;
                let value = renewal_value(status_digest, answer.renew_time.as_ref());
                self.acknowledged(lease.clone(), answer.resource_version, Some(value), true);
            }
            acks.fetch_add(1, Ordering::Relaxed);
        }
        // The lease belongs to the node and goes with it.
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

type Heard = tonic::Streaming<pb::HeartbeatResponse>;

async fn ask(
    say: &mpsc::Sender<pb::HeartbeatRequest>,
    heard: &mut Heard,
    request: pb::HeartbeatRequest,
) -> Result<pb::HeartbeatResponse, Interrupted> {
    let sequence = request.sequence;
    if say.send(request).await.is_err() {
        return Err(next(heard).await.err().unwrap_or_else(|| Status::unavailable("the stream is closed")));
    }
    let answer = next(heard).await?;
    assert_eq!(answer.sequence, sequence);
    Ok(answer)
}

async fn next(heard: &mut Heard) -> Result<pb::HeartbeatResponse, Interrupted> {
    heard.message().await?.ok_or_else(|| Status::unavailable("the stream ended"))
}

fn version(metadata: Option<pb::Metadata>) -> u64 {
    metadata.unwrap_or_default().resource_version
}

/// Metadata as a caller sends it.
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

/// A node as a caller sends it.
pub fn node(name: &str, value: &str) -> pb::Node {
    pb::Node { metadata: Some(metadata(name, "", value)), ..Default::default() }
}

/// A pod as a caller sends it.
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

/// All records of these kinds, and the newest version there is.
pub async fn read_all(channel: &Channel) -> Result<(BTreeMap<Key, RecordState>, u64), Status> {
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

/// Checks a store against what writers know; nothing else may be there.
/// Returns the newest version.
pub async fn check_all(writers: &mut [Writer], channel: &Channel) -> u64 {
    let (found, head) = read_all(channel).await.expect("a store that is ready answers");
    for writer in writers.iter_mut() {
        writer.log.check(&found);
    }
    for key in found.keys() {
        let known = writers.iter().any(|writer| writer.log.current(key).is_some());
        assert!(known, "nobody wrote {key:?}, and it is there");
    }
    let kinds = [Kind::Node, Kind::Pod, Kind::Lease];
    let logs = writers.iter().map(|writer| &writer.log);
    let newest = logs.flat_map(|log| kinds.map(|kind| log.newest(kind))).max().unwrap_or(0);
    assert!(newest <= head, "{newest} was acknowledged, and the store is at {head}");
    head
}
