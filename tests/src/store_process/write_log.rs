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

use super::Dice;

/// Where a writer leaves its mark on a record.
const MARK: &str = "example.com/mark";
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
pub struct Seen {
    pub version: u64,
    pub mark: String,
}

/// What a write makes of a record; a mark that only the store knows is `None`.
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
    pub mark: Option<String>,
    /// Whether it is a renewal, which watchers need not hear of one by one.
    pub renewal: bool,
}

/// What a writer was told, and what it was not.
#[derive(Debug, Default)]
pub struct Journal {
    known: BTreeMap<Key, Option<Seen>>,
    /// The write without an answer: all of it happened, or none.
    doubt: Vec<(Key, Outcome)>,
    changes: Vec<(Key, Change)>,
    pub renewals: u64,
    /// Doubts that turned out to have happened, and not.
    pub doubts: (u64, u64),
}

impl Journal {
    fn present(&self, key: &Key) -> Option<&Seen> {
        self.known.get(key).and_then(Option::as_ref)
    }

    /// The newest version of a kind that is known.
    pub fn newest(&self, kind: Kind) -> u64 {
        let of_kind = self.changes.iter().filter(|(key, _)| key.0 == kind);
        of_kind.filter_map(|(_, change)| change.version).max().unwrap_or(0)
    }

    fn note(&mut self, key: Key, version: Option<u64>, mark: Option<String>, renewal: bool) {
        self.renewals += u64::from(renewal);
        let seen = mark.clone().map(|mark| Seen { version: version.unwrap_or_default(), mark });
        self.known.insert(key.clone(), seen);
        self.changes.push((key, Change { version, mark, renewal }));
    }

    /// Everything that happened, by record and in order.
    pub fn changes(&self) -> &[(Key, Change)] {
        &self.changes
    }

    /// Compares with what the store has, and clears the doubt up.
    pub fn check(&mut self, found: &BTreeMap<Key, Seen>) {
        let doubt = std::mem::take(&mut self.doubt);
        for (key, known) in self.known.iter().filter(|(key, _)| doubt.iter().all(|(k, _)| k != *key)) {
            assert_eq!(found.get(key), known.as_ref(), "{key:?} is not as it was acknowledged");
        }
        if doubt.is_empty() {
            return;
        }
        let happened: Vec<bool> =
            doubt.iter().map(|(key, outcome)| self.happened(key, outcome, found)).collect();
        assert!(
            happened.iter().all(|it| *it == happened[0]),
            "half of a write happened: {doubt:?}: {happened:?}"
        );
        if !happened[0] {
            self.doubts.1 += 1;
            return;
        }
        self.doubts.0 += 1;
        for (key, _) in doubt {
            let seen = found.get(&key);
            let renewal = key.0 == Kind::Lease && self.present(&key).is_some() && seen.is_some();
            self.note(key, seen.map(|seen| seen.version), seen.map(|seen| seen.mark.clone()), renewal);
        }
    }

    fn happened(&self, key: &Key, outcome: &Outcome, found: &BTreeMap<Key, Seen>) -> bool {
        let (known, found) = (self.present(key), found.get(key));
        if found == known {
            // A deletion of what is not there is never asked for.
            return false;
        }
        let fits = match (outcome, found) {
            (Outcome::Gone, None) => true,
            (Outcome::Put(mark), Some(seen)) => {
                seen.version > known.map_or(0, |known| known.version)
                    && mark.as_ref().is_none_or(|mark| *mark == seen.mark)
            }
            _ => false,
        };
        assert!(fits, "{key:?} was {known:?}, {outcome:?} was asked for, and it is {found:?}");
        true
    }
}

/// What a writer does.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    Nodes,
    Pods,
    Heartbeats,
    Leases,
}

/// A writer with records of its own.
#[derive(Debug)]
pub struct Writer {
    pub name: String,
    work: Work,
    dice: Dice,
    written: u64,
    pub journal: Journal,
}

/// Acknowledgements of all writers.
pub type Pulse = Arc<AtomicU64>;

/// Why a call was left without a record.
pub type Interrupted = Status;

impl Writer {
    pub fn new(name: &str, work: Work, dice: Dice) -> Writer {
        Writer { name: name.to_owned(), work, dice, written: 0, journal: Journal::default() }
    }

    /// A fleet of them, of every sort, by name.
    pub fn fleet(dice: &mut Dice) -> Vec<Writer> {
        let works = [(Work::Heartbeats, 2), (Work::Leases, 2), (Work::Nodes, 3), (Work::Pods, 2)];
        let all = works.into_iter().flat_map(|(work, count)| (0..count).map(move |i| (work, i)));
        all.map(|(work, i)| Writer::new(&format!("{work:?}-{i}").to_lowercase(), work, dice.fork())).collect()
    }

    /// Writes until the store does not answer.
    pub async fn write_on(&mut self, channel: Channel, pulse: &Pulse) -> Interrupted {
        let stopped = loop {
            if let Err(status) = self.step(&channel, pulse).await {
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
            self.step(&channel, &Pulse::default()).await?;
        }
        Ok(())
    }

    async fn step(&mut self, channel: &Channel, pulse: &Pulse) -> Result<(), Interrupted> {
        match self.work {
            Work::Nodes => self.node(channel.clone()).await,
            Work::Pods => self.pod(channel.clone()).await,
            Work::Leases => self.lease(channel.clone()).await,
            Work::Heartbeats => self.heartbeat(channel.clone(), pulse).await,
        }?;
        pulse.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn next_mark(&mut self) -> String {
        self.written += 1;
        format!("{}-{}", self.name, self.written)
    }

    fn doubt(&mut self, key: &Key, outcome: Outcome) {
        self.journal.doubt.push((key.clone(), outcome));
    }

    fn settled(&mut self, key: Key, version: u64, mark: Option<String>, renewal: bool) {
        let before = self.journal.present(&key).map_or(0, |seen| seen.version);
        assert!(version > before, "{key:?}: version {version} after {before}");
        self.journal.doubt.clear();
        self.journal.note(key, Some(version), mark, renewal);
    }

    async fn node(&mut self, channel: Channel) -> Result<(), Interrupted> {
        let mut nodes = NodeServiceClient::new(channel);
        let name = format!("{}-{}", self.name, self.dice.below(8));
        let key = (Kind::Node, name.clone());
        let exists = self.journal.present(&key).is_some();
        if exists && self.dice.one_in(4) {
            self.doubt(&key, Outcome::Gone);
            let gone =
                nodes.delete_node(pb::DeleteNodeRequest { name, preconditions: None }).await?.into_inner();
            self.settled(key, version(gone.node.and_then(|node| node.metadata)), None, false);
            return Ok(());
        }
        let mark = self.next_mark();
        let node = Some(node(&name, &mark));
        let mark = format!("{mark}/");
        self.doubt(&key, Outcome::Put(Some(mark.clone())));
        let stored = if exists {
            nodes.update_node(pb::UpdateNodeRequest { node }).await?.into_inner().node
        } else {
            nodes.create_node(pb::CreateNodeRequest { node }).await?.into_inner().node
        };
        self.settled(key, version(stored.and_then(|node| node.metadata)), Some(mark), false);
        Ok(())
    }

    async fn pod(&mut self, channel: Channel) -> Result<(), Interrupted> {
        let mut pods = PodServiceClient::new(channel);
        let name = format!("{}-{}", self.name, self.dice.below(8));
        let key = (Kind::Pod, name.clone());
        let namespace = NAMESPACE.to_owned();
        let exists = self.journal.present(&key).is_some();
        if exists && self.dice.one_in(4) {
            self.doubt(&key, Outcome::Gone);
            let grace_period_seconds = Some(0);
            let request = pb::DeletePodRequest { namespace, name, preconditions: None, grace_period_seconds };
            let gone = pods.delete_pod(request).await?.into_inner();
            self.settled(key, version(gone.pod.and_then(|pod| pod.metadata)), None, false);
            return Ok(());
        }
        let mark = self.next_mark();
        let pod = pod(&name, &mark);
        self.doubt(&key, Outcome::Put(Some(mark.clone())));
        let stored = if exists {
            // All but the annotation has to be as it is.
            let get = pb::GetPodRequest { namespace, name };
            let current = pods.get_pod(get).await?.into_inner().pod.unwrap_or_default();
            let pod = Some(pb::Pod { metadata: pod.metadata, ..current });
            pods.update_pod(pb::UpdatePodRequest { pod }).await?.into_inner().pod
        } else {
            pods.create_pod(pb::CreatePodRequest { pod: Some(pod) }).await?.into_inner().pod
        };
        self.settled(key, version(stored.and_then(|pod| pod.metadata)), Some(mark), false);
        Ok(())
    }

    async fn lease(&mut self, channel: Channel) -> Result<(), Interrupted> {
        let mut leases = LeaseServiceClient::new(channel);
        let name = format!("{}-{}", self.name, self.dice.below(4));
        let key = (Kind::Lease, name.clone());
        let namespace = NAMESPACE.to_owned();
        if self.journal.present(&key).is_none() {
            self.doubt(&key, Outcome::Put(None));
            let metadata = Some(metadata(&name, NAMESPACE, ""));
            let spec = pb::LeaseSpec { holder_identity: self.name.clone(), ..Default::default() };
            let lease = Some(pb::Lease { metadata, spec: Some(spec) });
            let created = leases.create_lease(pb::CreateLeaseRequest { lease }).await?.into_inner().lease;
            let seen = see_lease(&created.unwrap_or_default());
            self.settled(key, seen.version, Some(seen.mark), false);
        } else if self.dice.one_in(50) {
            self.doubt(&key, Outcome::Gone);
            let request = pb::DeleteLeaseRequest { namespace, name, preconditions: None };
            let gone = leases.delete_lease(request).await?.into_inner();
            self.settled(key, version(gone.lease.and_then(|lease| lease.metadata)), None, false);
        } else {
            self.doubt(&key, Outcome::Put(None));
            let request = pb::RenewLeaseRequest { namespace, name, holder_identity: self.name.clone() };
            let renewed = leases.renew_lease(request).await?.into_inner();
            let mark = renewal_mark(0, renewed.renew_time.as_ref());
            self.settled(key, renewed.resource_version, Some(mark), true);
        }
        Ok(())
    }

    /// A node's agent: registers, then beats over one stream, now and then with a
    /// status; sometimes the node leaves the fleet.
    async fn heartbeat(&mut self, channel: Channel, pulse: &Pulse) -> Result<(), Interrupted> {
        let node_name = self.name.clone();
        let (key, lease) = ((Kind::Node, node_name.clone()), (Kind::Lease, node_name.clone()));
        let mut nodes = NodeServiceClient::new(channel.clone());
        if self.journal.present(&key).is_none() {
            let mark = self.next_mark();
            self.doubt(&key, Outcome::Put(Some(format!("{mark}/"))));
            let request = pb::CreateNodeRequest { node: Some(node(&node_name, &mark)) };
            let created = nodes.create_node(request).await?.into_inner().node;
            let version = version(created.and_then(|node| node.metadata));
            self.settled(key, version, Some(format!("{mark}/")), false);
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
        let known = self.journal.present(&lease).cloned();
        if known.is_none() {
            self.doubt(&lease, Outcome::Put(None));
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
                // Its mark is the store's clock at the greeting.
                let request =
                    pb::GetLeaseRequest { namespace: NODE_LEASES.to_owned(), name: node_name.clone() };
                let created = LeaseServiceClient::new(channel).get_lease(request).await?.into_inner().lease;
                let seen = see_lease(&created.unwrap_or_default());
                assert_eq!(answer.resource_version, seen.version);
                self.settled(lease.clone(), seen.version, Some(seen.mark), false);
            }
        }
        for sequence in 2..200 {
            self.written += 1;
            if sequence % 32 == 0 {
                let was = self.journal.present(&key).map(|seen| seen.mark.clone()).unwrap_or_default();
                let (annotation, _) = was.split_once('/').unwrap_or_default();
                let (mark, phase) = (format!("{annotation}/{}", self.written), self.written.to_string());
                self.doubt(&key, Outcome::Put(Some(mark.clone())));
                let status = Some(pb::NodeStatus { phase, ..Default::default() });
                let message = Some(Say::Status(pb::HeartbeatStatus { status, resource_version: 0 }));
                let answer = ask(&say, &mut heard, pb::HeartbeatRequest { sequence, message }).await?;
                self.settled(key.clone(), answer.resource_version, Some(mark), false);
            } else {
                let status_digest = self.written;
                self.doubt(&lease, Outcome::Put(None));
                let message =
                    Some(Say::Renewal(pb::HeartbeatRenewal { status_digest, status_age_millis: 0 }));
                let answer = ask(&say, &mut heard, pb::HeartbeatRequest { sequence, message }).await?;
                let mark = renewal_mark(status_digest, answer.renew_time.as_ref());
                self.settled(lease.clone(), answer.resource_version, Some(mark), true);
            }
            pulse.fetch_add(1, Ordering::Relaxed);
        }
        // The lease belongs to the node and goes with it.
        self.doubt(&key, Outcome::Gone);
        self.doubt(&lease, Outcome::Gone);
        let gone = nodes
            .delete_node(pb::DeleteNodeRequest { name: node_name, preconditions: None })
            .await?
            .into_inner();
        self.settled(key, version(gone.node.and_then(|node| node.metadata)), None, false);
        self.journal.note(lease, None, None, false);
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
pub fn metadata(name: &str, namespace: &str, mark: &str) -> pb::Metadata {
    let annotations = [(MARK.to_owned(), mark.to_owned())].into_iter().filter(|(_, mark)| !mark.is_empty());
    pb::Metadata {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        annotations: annotations.collect(),
        ..Default::default()
    }
}

/// A node as a caller sends it.
pub fn node(name: &str, mark: &str) -> pb::Node {
    pb::Node { metadata: Some(metadata(name, "", mark)), ..Default::default() }
}

/// A pod as a caller sends it.
pub fn pod(name: &str, mark: &str) -> pb::Pod {
    let container = pb::Container { name: "main".into(), image: "web:1".into(), ..Default::default() };
    let spec = pb::PodSpec { containers: vec![container], ..Default::default() };
    pb::Pod { metadata: Some(metadata(name, NAMESPACE, mark)), spec: Some(spec), status: None }
}

fn renewal_mark(digest: u64, at: Option<&prost_types::Timestamp>) -> String {
    at.map_or_else(|| format!("{digest}@never"), |at| format!("{digest}@{}.{:09}", at.seconds, at.nanos))
}

fn marked(metadata: &pb::Metadata) -> Seen {
    let mark = metadata.annotations.get(MARK).cloned().unwrap_or_default();
    Seen { version: metadata.resource_version, mark }
}

pub fn see_node(node: &pb::Node) -> Seen {
    let Seen { version, mark } = marked(&node.metadata.clone().unwrap_or_default());
    let phase = node.status.as_ref().map_or("", |status| &status.phase);
    Seen { version, mark: format!("{mark}/{phase}") }
}

pub fn see_pod(pod: &pb::Pod) -> Seen {
    marked(&pod.metadata.clone().unwrap_or_default())
}

pub fn see_lease(lease: &pb::Lease) -> Seen {
    let version = lease.metadata.as_ref().map_or(0, |metadata| metadata.resource_version);
    let spec = lease.spec.clone().unwrap_or_default();
    Seen { version, mark: renewal_mark(spec.status_digest, spec.renew_time.as_ref()) }
}

/// All records of these kinds, and the newest version there is.
pub async fn read_all(channel: &Channel) -> Result<(BTreeMap<Key, Seen>, u64), Status> {
    const MAX: usize = 64 << 20;
    let name = |metadata: &Option<pb::Metadata>| metadata.clone().unwrap_or_default().name;
    let mut all = BTreeMap::new();
    let mut nodes = NodeServiceClient::new(channel.clone()).max_decoding_message_size(MAX);
    let listed = nodes.list_nodes(pb::ListNodesRequest::default()).await?.into_inner();
    all.extend(listed.nodes.iter().map(|node| ((Kind::Node, name(&node.metadata)), see_node(node))));
    let mut pods = PodServiceClient::new(channel.clone()).max_decoding_message_size(MAX);
    let listed = pods.list_pods(pb::ListPodsRequest::default()).await?.into_inner();
    all.extend(listed.pods.iter().map(|pod| ((Kind::Pod, name(&pod.metadata)), see_pod(pod))));
    let mut leases = LeaseServiceClient::new(channel.clone()).max_decoding_message_size(MAX);
    let listed = leases.list_leases(pb::ListLeasesRequest::default()).await?.into_inner();
    all.extend(listed.leases.iter().map(|lease| ((Kind::Lease, name(&lease.metadata)), see_lease(lease))));
    Ok((all, listed.resource_version))
}

/// Checks a store against what writers know; nothing else may be there.
/// Returns the newest version.
pub async fn check_all(writers: &mut [Writer], channel: &Channel) -> u64 {
    let (found, head) = read_all(channel).await.expect("a store that is ready answers");
    for writer in writers.iter_mut() {
        writer.journal.check(&found);
    }
    for key in found.keys() {
        let known = writers.iter().any(|writer| writer.journal.present(key).is_some());
        assert!(known, "nobody wrote {key:?}, and it is there");
    }
    let kinds = [Kind::Node, Kind::Pod, Kind::Lease];
    let journals = writers.iter().map(|writer| &writer.journal);
    let newest = journals.flat_map(|journal| kinds.map(|kind| journal.newest(kind))).max().unwrap_or(0);
    assert!(newest <= head, "{newest} was acknowledged, and the store is at {head}");
    head
}
