//! Callers that mean harm: each takes as much as it gets on one connection, and holds it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use futures_util::{Stream, stream};
use muster_proto::pb;
use muster_rpc::tls::Target;
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::flood::FloodMessage;
use super::raw_client::RawClient;

/// The largest deadline that gRPC can express.
const FOREVER: &str = "99999999H";
/// Garbage, and writes of 1.4 MB, are sent so many at once.
const AT_ONCE: usize = 64;
/// The node that writes of 1.4 MB are about. It must exist, and they need its agent's certificate.
pub const FLOODED: &str = "flooded";

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
    /// Statuses of 1.4 MB of the node [`FLOODED`].
    LargeStatuses,
    /// Events of 1.4 MB about the node [`FLOODED`].
    LargeEvents,
}

/// How the server has answered so far.
#[derive(Debug, Default)]
pub struct Answers {
    /// Streams that were opened, and calls that succeeded.
    pub opened: AtomicUsize,
    /// PERMISSION_DENIED.
    pub denied: AtomicUsize,
    /// RESOURCE_EXHAUSTED.
    pub exhausted: AtomicUsize,
    /// INVALID_ARGUMENT.
    pub invalid: AtomicUsize,
    /// Everything else.
    pub others: AtomicUsize,
    /// The first of the others.
    pub first_other: OnceLock<Status>,
}

impl Answers {
    fn count(&self, result: &Result<(), Status>) {
        let counter = match result.as_ref().map_err(Status::code) {
            Ok(()) => &self.opened,
            Err(Code::PermissionDenied) => &self.denied,
            Err(Code::ResourceExhausted) => &self.exhausted,
            Err(Code::InvalidArgument) => &self.invalid,
            Err(_) => {
                if let Err(status) = result {
                    let _ = self.first_other.set(status.clone());
                }
                &self.others
            }
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
    /// Makes so many calls over one connection to this target.
    pub fn start(target: Target, attack: Attack, calls: usize) -> Attacker {
        let (answers, stop) = (Arc::<Answers>::default(), Arc::<Notify>::default());
        let thread = std::thread::spawn({
            let (answers, stop) = (Arc::clone(&answers), Arc::clone(&stop));
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime for the attack").block_on(async {
                    let channel = target.connect().await.expect("the server listens");
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
    let at_once = match attack {
        Attack::HalfOpenCalls | Attack::SilentStreams | Attack::Watches => calls,
        Attack::Garbage | Attack::LargeStatuses | Attack::LargeEvents => AT_ONCE,
    };
    let statuses = Arc::new(FloodMessage::large_statuses(FLOODED));
    let events = Arc::new(FloodMessage::large_events(FLOODED));
    for index in 0..at_once {
        let (channel, answers) = (channel.clone(), Arc::clone(answers));
        let number_of_calls = (index..calls).step_by(AT_ONCE).len();
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
            Attack::Garbage => {
                let client = RawClient::new(channel, "/muster.v1.NodeService/CreateNode");
                // A field of 127 bytes, of which one follows.
                tasks.spawn(repeat(client, number_of_calls, || vec![0x0a, 0x7f, b'x'], answers))
            }
            Attack::LargeStatuses | Attack::LargeEvents => {
                let flood = Arc::clone(if attack == Attack::LargeStatuses { &statuses } else { &events });
                let client = RawClient::new(channel, flood.method);
                tasks.spawn(repeat(client, number_of_calls, move || flood.message.next(), answers))
            }
        };
    }
    tasks
}

/// Makes so many calls, one after the other.
async fn repeat(
    mut client: RawClient,
    calls: usize,
    message: impl Fn() -> Vec<u8> + Send + 'static,
    answers: Arc<Answers>,
) {
    for _ in 0..calls {
        answers.count(&client.call(message()).await.map(|_| ()));
    }
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
