//! Clients that write, read and list the same few records at any of the stores, and record what they asked and learned.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::pb;
use muster_tests::RpcError;
use muster_tests::history::register::{Answer, Call, Operation};
use muster_tests::store_process::SeededRandom;
use muster_tests::store_process::write_log::{node, node_state};
use tonic::transport::{Channel, Endpoint};
use tonic::{ConnectError, Request, Status};

/// How long a client waits for an answer. Then it does not know whether a write was done.
const DEADLINE: Duration = Duration::from_millis(2500);
/// Between two calls of a client: the machine has other things to do as well.
const PACE: Duration = Duration::from_millis(6);

/// What is done to one record.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) name: String,
    pub(super) operation: Operation,
}

/// All records of one revision, as a list showed them.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    pub(super) version: u64,
    pub(super) records: BTreeMap<String, (u64, u64)>,
}

/// What all clients share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) epoch: Instant,
    pub(super) stop: AtomicBool,
    /// How many calls were answered.
    pub(super) answered: AtomicU64,
    values: AtomicU64,
}

impl Shared {
    #[allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]
    pub(super) fn new() -> Arc<Shared> {
        let (stop, answered, values) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Shared { epoch: Instant::now(), stop, answered, values })
    }

    /// Microseconds since the test began.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).expect("a test ends")
    }
}

/// A connection to each store.
pub(super) fn channels(urls: &[String]) -> Vec<Channel> {
    urls.iter().map(|url| channel(url)).collect()
}

/// A connection that notices soon that nobody is at the other end.
pub(super) fn channel(url: &str) -> Channel {
    let endpoint = Endpoint::from_shared(url.to_owned()).expect("a store has an address");
    endpoint
        .tcp_nodelay(true)
        .connect_timeout(Duration::from_secs(1))
        .http2_keep_alive_interval(Duration::from_secs(1))
        .keep_alive_timeout(Duration::from_secs(2))
        .initial_stream_window_size(1 << 20)
        .connect_lazy()
}

/// One client.
pub(super) struct Client {
    number: usize,
    channels: Vec<Channel>,
    current: usize,
    random: SeededRandom,
    shared: Arc<Shared>,
    /// The version of each record that it saw last; 0 if there was none.
    known: HashMap<String, u64>,
    pub(super) log: Vec<Recorded>,
    pub(super) listings: Vec<Listing>,
}

/// Why a call has no answer.
enum Failure {
    /// It was not done, and never will be.
    NotDone,
    Unknown,
}

impl Client {
    pub(super) fn new(number: usize, urls: &[String], random: SeededRandom, shared: &Arc<Shared>) -> Client {
        let (channels, current) = (channels(urls), number % urls.len());
        let shared = Arc::clone(shared);
        Client {
            number,
            channels,
            current,
            random,
            shared,
            known: HashMap::new(),
            log: vec![],
            listings: vec![],
        }
    }

    /// Calls until it is stopped.
    pub(super) async fn run(mut self, names: Arc<[String]>) -> Client {
        while !self.shared.stop.load(Ordering::Relaxed) {
            if self.random.one_in(12) {
                // Any store may be asked at any time.
                self.current = self.random.below(self.channels.len() as u64) as usize;
            }
            let name = names[self.random.below(names.len() as u64) as usize].clone();
            let is_answered = if self.random.one_in(20) {
                self.list(&names).await
            } else {
                let call = self.next_call(&name);
                self.call(&name, call).await
            };
            match is_answered {
                true => drop(self.shared.answered.fetch_add(1, Ordering::Relaxed)),
                false => self.current = (self.current + 1) % self.channels.len(),
            }
            tokio::time::sleep(PACE).await;
        }
        self
    }

    /// Reads every record at one store; whether it answered.
    pub(super) async fn read_all_at(&mut self, store: usize, names: &[String]) -> bool {
        self.current = store;
        for name in names {
            if !self.call(name, Call::Read).await {
                return false;
            }
        }
        self.list(names).await
    }

    /// Creates a record if there is none.
    pub(super) async fn create(&mut self, name: &str) {
        let value = self.next_value();
        if !self.call(name, Call::Create { value }).await {
            self.current = (self.current + 1) % self.channels.len();
        }
    }

    /// Deletes a record, whatever its version; whether there was an answer.
    pub(super) async fn clear(&mut self, name: &str) -> bool {
        if self.call(name, Call::Delete { expected: 0 }).await {
            return true;
        }
        self.current = (self.current + 1) % self.channels.len();
        false
    }

    fn next_call(&mut self, name: &str) -> Call {
        let known = self.known.get(name).copied().unwrap_or_default();
        // Mostly the version that it saw last, which may be old by now.
        let expected = if self.random.one_in(5) { 0 } else { known };
        match self.random.below(10) {
            0..4 => Call::Read,
            4 => Call::Delete { expected },
            5 => Call::Create { value: self.next_value() },
            _ if known == 0 => Call::Create { value: self.next_value() },
            _ => Call::Update { expected, value: self.next_value() },
        }
    }

    fn next_value(&self) -> u64 {
        self.shared.values.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channels[self.current].clone()).max_decoding_message_size(64 << 20)
    }

    /// Makes a call and records it; whether there was an answer.
    async fn call(&mut self, name: &str, call: Call) -> bool {
        let invoked = self.shared.now();
        let sending = self.send(name, call);
        let answer = match tokio::time::timeout(DEADLINE, sending).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(status)) => match answer_of(&status) {
                Ok(answer) => answer,
                Err(Failure::NotDone) => return false,
                Err(Failure::Unknown) => Answer::Unknown,
            },
            Err(_) => Answer::Unknown,
        };
        let returned = self.shared.now();
        match answer {
            Answer::Found { version, .. } => drop(self.known.insert(name.to_owned(), version)),
            Answer::Written(version) => {
                let is_there = !matches!(call, Call::Delete { .. });
                self.known.insert(name.to_owned(), if is_there { version } else { 0 });
            }
            Answer::Absent => drop(self.known.insert(name.to_owned(), 0)),
            Answer::Exists | Answer::Conflict | Answer::Unknown => {}
        }
        let operation = Operation { client: self.number, call, answer, invoked, returned };
        self.log.push(Recorded { name: name.to_owned(), operation });
        answer != Answer::Unknown
    }

    async fn send(&self, name: &str, call: Call) -> Result<Answer, Status> {
        let mut nodes = self.nodes();
        let written = |stored: Option<pb::Node>| {
            Answer::Written(stored.and_then(|node| node.metadata).unwrap_or_default().resource_version)
        };
        let content = |value: u64, expected: u64| {
            let mut node = node(name, &value.to_string());
            node.metadata.get_or_insert_default().resource_version = expected;
            Some(node)
        };
        Ok(match call {
            Call::Create { value } => {
                let request = pb::CreateNodeRequest { node: content(value, 0) };
                written(nodes.create_node(request).await?.into_inner().node)
            }
            Call::Update { expected, value } => {
                let request = pb::UpdateNodeRequest { node: content(value, expected) };
                written(nodes.update_node(request).await?.into_inner().node)
            }
            Call::Delete { expected } => {
                let preconditions =
                    Some(pb::Preconditions { resource_version: expected, ..Default::default() });
                let request = pb::DeleteNodeRequest { name: name.to_owned(), preconditions };
                written(nodes.delete_node(request).await?.into_inner().node)
            }
            Call::Read => {
                let request = pb::GetNodeRequest { name: name.to_owned() };
                let (version, value) =
                    content_of(&nodes.get_node(request).await?.into_inner().node.unwrap_or_default());
                Answer::Found { version, value }
            }
        })
    }

    /// Lists all records, which is a read of each.
    async fn list(&mut self, names: &[String]) -> bool {
        let invoked = self.shared.now();
        let mut nodes = self.nodes();
        let listing = nodes.list_nodes(Request::new(pb::ListNodesRequest::default()));
        let Ok(Ok(listed)) = tokio::time::timeout(DEADLINE, listing).await else { return false };
        let returned = self.shared.now();
        let pb::ListNodesResponse { nodes, resource_version: version, .. } = listed.into_inner();
        let found = nodes.iter().map(|node| (name_of(node), content_of(node)));
        let records: BTreeMap<String, (u64, u64)> = found.filter(|(name, _)| names.contains(name)).collect();
        for name in names {
            let answer = match records.get(name) {
                Some((version, value)) => Answer::Found { version: *version, value: *value },
                None => Answer::Absent,
            };
            let operation = Operation { client: self.number, call: Call::Read, answer, invoked, returned };
            self.log.push(Recorded { name: name.clone(), operation });
        }
        self.listings.push(Listing { version, records });
        true
    }
}

pub(super) fn name_of(node: &pb::Node) -> String {
    node.metadata.as_ref().map(|metadata| metadata.name.clone()).unwrap_or_default()
}

/// Version and value of a record.
pub(super) fn content_of(node: &pb::Node) -> (u64, u64) {
    let state = node_state(node);
    let (value, _) = state.value.split_once('/').unwrap_or_default();
    (state.version, value.parse().unwrap_or_default())
}

/// What an error says about the record, if it says anything.
fn answer_of(status: &Status) -> Result<Answer, Failure> {
    let causes = std::iter::successors(std::error::Error::source(status), |&cause| cause.source());
    if causes.into_iter().any(<dyn std::error::Error>::is::<ConnectError>) {
        return Err(Failure::NotDone);
    }
    match &*RpcError::from(status).reason {
        "NOT_FOUND" => Ok(Answer::Absent),
        "ALREADY_EXISTS" => Ok(Answer::Exists),
        "CONFLICT" => Ok(Answer::Conflict),
        "NOT_LEADER" => Err(Failure::NotDone),
        "INVALID" => panic!("the test sends what is not valid: {status:?}"),
        _ => Err(Failure::Unknown),
    }
}
