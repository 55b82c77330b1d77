//! Callers that mean harm: each takes as much as it gets on one connection, and holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use futures_util::{Stream, stream};
use muster_proto::pb;
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::raw_client::RawClient;

/// The largest deadline that gRPC can express.
const FOREVER: &str = "99999999H";
/// Garbage is sent by so many at once.
const AT_ONCE: usize = 64;

/// What the caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Calls whose requests never arrive, with the largest deadline.
    HalfOpenCalls,
    /// Heartbeat streams without a hello.
    SilentStreams,
    /// Watches of all nodes, which are not read.
    Watches,
    /// Requests that are not protobuf.
    Garbage,
}

/// How the server has answered so far.
#[derive(Debug, Default)]
pub struct Answers {
    /// Streams that were opened.
    pub opened: AtomicUsize,
    /// PERMISSION_DENIED.
    pub denied: AtomicUsize,
    /// RESOURCE_EXHAUSTED.
    pub exhausted: AtomicUsize,
    /// INVALID_ARGUMENT.
    pub invalid: AtomicUsize,
    /// Everything else.
    pub others: AtomicUsize,
}

impl Answers {
    fn count(&self, result: &Result<(), Status>) {
        let counter = match result.as_ref().map_err(Status::code) {
            Ok(()) => &self.opened,
            Err(Code::PermissionDenied) => &self.denied,
            Err(Code::ResourceExhausted) => &self.exhausted,
            Err(Code::InvalidArgument) => &self.invalid,
            Err(_) => &self.others,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls were answered.
    pub fn all(&self) -> usize {
        let counters = [&self.opened, &self.denied, &self.exhausted, &self.invalid, &self.others];
        counters.into_iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

/// An attack that goes on until it is stopped, on a thread of its own, so that it delays no other task of the process.
#[derive(Debug)]
pub struct Attacker {
    pub answers: Arc<Answers>,
    stop: Arc<Notify>,
    thread: JoinHandle<()>,
}

impl Attacker {
    /// Makes so many calls over one connection to this endpoint.
    pub fn start(endpoint: Endpoint, attack: Attack, calls: usize) -> Attacker {
        let (answers, stop) = (Arc::<Answers>::default(), Arc::<Notify>::default());
        let thread = std::thread::spawn({
            let (answers, stop) = (Arc::clone(&answers), Arc::clone(&stop));
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime for the attack").block_on(async {
                    let channel = endpoint.connect().await.expect("the server listens");
                    let _held = begin(&channel, attack, calls, &answers);
                    stop.notified().await;
                });
            }
        });
        Attacker { answers, stop, thread }
    }

    /// Closes the connection.
    pub async fn stop(self) {
        self.stop.notify_one();
        let ended = tokio::task::spawn_blocking(|| self.thread.join()).await;
        ended.expect("the thread is joined").expect("the attack does not panic");
    }
}

/// The calls, which go on until they are dropped.
fn begin(channel: &Channel, attack: Attack, calls: usize, answers: &Arc<Answers>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let tasks_count = if attack == Attack::Garbage { AT_ONCE } else { calls };
    for index in 0..tasks_count {
        let (channel, answers) = (channel.clone(), Arc::clone(answers));
        match attack {
            Attack::HalfOpenCalls => tasks.spawn(async move {
                let mut client = RawClient::new(channel, "/muster.v1.NodeService/GetNode");
                answers.count(&client.half_open(FOREVER).await.map(|_| ()));
            }),
            Attack::SilentStreams => {
                tasks.spawn(hold(RawClient::new(channel, super::HEARTBEAT), stream::pending(), answers))
            }
            Attack::Watches => {
                let client = RawClient::new(channel, "/muster.v1.NodeService/WatchNodes");
                let request = Bytes::from(pb::WatchNodesRequest::default().encode_to_vec());
                tasks.spawn(hold(client, stream::iter([request]), answers))
            }
            Attack::Garbage => tasks.spawn(async move {
                let mut client = RawClient::new(channel, "/muster.v1.NodeService/CreateNode");
                for _ in (index..calls).step_by(AT_ONCE) {
                    // A field of 127 bytes, of which one follows.
                    answers.count(&client.call(vec![0x0a, 0x7f, b'x']).await.map(|_| ()));
                }
            }),
        };
    }
    tasks
}

/// Opens a stream with these messages and does not read it.
async fn hold(
    mut client: RawClient,
    messages: impl Stream<Item = Bytes> + Send + 'static,
    answers: Arc<Answers>,
) {
    let opened = client.stream(messages).await;
    answers.count(&opened.as_ref().map(|_| ()).map_err(Clone::clone));
    let Ok(_opened) = opened else { return };
    std::future::pending::<()>().await;
}
