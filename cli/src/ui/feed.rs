//! The feed of all open pages: one watch of the nodes, one of their leases and one of the fleet, whatever the number of
//! pages.
//!
//! One task owns the model. It reads from the servers only while a page is open, so a page that nobody looks at costs
//! nothing. What has changed is encoded once and sent to all pages; one that falls behind, as a hidden tab does, starts
//! again with a snapshot instead of filling memory.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::time::Mono;
use muster_proto::watch_event::WatchEvent;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::clock::{Clock, SystemClock};
use muster_store_client::{Watch, WatchOptions};
use serde_json::Value;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::frames::{self, Frame, Source, Sources};
use super::model::{Changes, DrawnNode, FleetModel};
use super::tile::TraceId;
use crate::connection::Connection;
use crate::failure::Failure;

/// Changes within this time are sent together.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// How often a page hears that this process is alive.
const ALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// How often the controller sends the fleet, and the pause before it is asked again after a failure.
const FLEET_INTERVAL: Duration = Duration::from_secs(1);
/// How long the watches stay open without a page: a reload of the page is not a new start.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// Frames that a page may be behind before it starts again.
const BACKLOG: usize = 64;
/// With more new nodes than this a snapshot is shorter to make than the difference.
const MANY_NEW_NODES: usize = 4096;

/// The feed. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Feed {
    requests: mpsc::Sender<Request>,
}

/// What a page asks of the feed.
#[derive(Debug)]
enum Request {
    Subscribe(oneshot::Sender<Subscription>),
    Trace(String, oneshot::Sender<Option<TraceId>>),
}

/// The frames of the present, and those that follow.
#[derive(Debug)]
struct Subscription {
    frames: VecDeque<Frame>,
    updates: broadcast::Receiver<Update>,
}

#[derive(Clone, Debug)]
enum Update {
    Frame(Frame),
    /// The page is to subscribe again.
    Restart,
}

impl Feed {
    /// A feed from these servers. It ends when the last clone of it is dropped.
    pub(super) fn start(connection: Connection, tasks: &mut JoinSet<()>) -> Feed {
        let (sender, requests) = mpsc::channel(16);
        tasks.spawn(answer(connection, requests));
        Feed { requests: sender }
    }

    /// The frames for one page.
    pub(super) fn frames(&self) -> impl Stream<Item = Frame> + use<> {
        stream::unfold((self.clone(), None), |(feed, subscription)| async move {
            let mut subscription: Option<Subscription> = subscription;
            loop {
                let mut current = match subscription.take() {
                    Some(current) => current,
                    None => feed.subscribe().await?,
                };
                if let Some(frame) = current.frames.pop_front() {
                    return Some((frame, (feed, Some(current))));
                }
                match current.updates.recv().await {
                    Ok(Update::Frame(frame)) => return Some((frame, (feed, Some(current)))),
                    Ok(Update::Restart) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        })
    }

    async fn subscribe(&self) -> Option<Subscription> {
        let (sender, subscription) = oneshot::channel();
        self.requests.send(Request::Subscribe(sender)).await.ok()?;
        subscription.await.ok()
    }

    /// The trace of the write that gave a node its present state, as far as that was seen while a page was open.
    pub(super) async fn trace(&self, node: &str) -> Option<TraceId> {
        let (sender, trace) = oneshot::channel();
        self.requests.send(Request::Trace(node.to_owned(), sender)).await.ok()?;
        trace.await.ok()?
    }
}

/// Waits for the first page, and follows the fleet while pages are open; again and again.
async fn answer(connection: Connection, mut requests: mpsc::Receiver<Request>) {
    while let Some(request) = requests.recv().await {
        if let Request::Subscribe(page) = request {
            Follower::new().run(&connection, page, &mut requests).await;
        }
    }
}

/// The fleet as it is followed while pages are open.
struct Follower {
    clock: SystemClock,
    model: FleetModel,
    sources: Sources,
    /// The controller's last answer, and when it came.
    fleet: Option<(Value, Mono)>,
    updates: broadcast::Sender<Update>,
}

/// The watches of the store.
struct Watches {
    nodes: Watch<Node>,
    leases: Watch<Lease>,
}

impl Watches {
    fn open(connection: &Connection) -> Result<Watches, Failure> {
        let client = connection.store()?.client;
        let namespace = NODE_LEASE_NAMESPACE.parse().expect("a valid name");
        let leases = WatchOptions { namespace: Some(namespace), ..WatchOptions::default() };
        Ok(Watches { nodes: client.watch(WatchOptions::default()), leases: client.watch(leases) })
    }
}

impl Follower {
    fn new() -> Follower {
        Follower {
            clock: SystemClock::new(),
            model: FleetModel::default(),
            sources: Sources::default(),
            fleet: None,
            updates: broadcast::Sender::new(BACKLOG),
        }
    }

    /// Follows the fleet until no page has been open for a while.
    async fn run(
        mut self,
        connection: &Connection,
        first: oneshot::Sender<Subscription>,
        requests: &mut mpsc::Receiver<Request>,
    ) {
        self.subscribe(first);
        let mut watches = match Watches::open(connection) {
            Ok(watches) => watches,
            Err(failure) => {
                // The page says so, and its browser asks again.
                self.set_store(Source::Lost(failure.into_text().0));
                return;
            }
        };
        let mut fleets = Fleets::follow(connection);
        let mut publish = tokio::time::interval(PUBLISH_INTERVAL);
        publish.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut alive = tokio::time::interval(ALIVE_INTERVAL);
        let mut last_page = self.clock.mono();
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(Request::Subscribe(page)) => self.subscribe(page),
                    Some(Request::Trace(node, answer)) => {
                        let _ = answer.send(self.model.trace(&node));
                    }
                    None => return,
                },
                Some(event) = watches.nodes.next() => self.observe_node(event),
                Some(event) = watches.leases.next() => self.model.observe_lease(event, self.clock.mono()),
                Some(fleet) = fleets.answers.recv() => self.observe_fleet(fleet),
                _ = publish.tick() => self.publish(),
                _ = alive.tick() => {
                    let now = self.clock.mono();
                    if self.updates.send(Update::Frame(frames::alive(self.model.lease()))).is_ok() {
                        last_page = now;
                    } else if now - last_page > IDLE_LIMIT {
                        return;
                    }
                }
            }
        }
    }

    fn subscribe(&mut self, page: oneshot::Sender<Subscription>) {
        // What is about to be published belongs into the snapshot, and must not come again behind it.
        self.publish();
        let now = self.clock.mono();
        let mut frames = VecDeque::from([frames::sources(&self.sources)]);
        frames.extend(self.fleet.as_ref().map(|(fleet, at)| frames::fleet(fleet, now - *at)));
        if self.model.is_synced() {
            frames.extend(frames::snapshot(&self.model.drawn(now).collect::<Vec<DrawnNode>>()));
        }
        // The page may be gone already.
        let _ = page.send(Subscription { frames, updates: self.updates.subscribe() });
    }

    fn observe_node(&mut self, event: WatchEvent<Node>) {
        match &event {
            WatchEvent::Synced { .. } => self.set_store(Source::Heard),
            WatchEvent::Lost(failure) => self.set_store(Source::Lost(failure.message.clone())),
            WatchEvent::Applied { .. } | WatchEvent::Gone { .. } => {}
        }
        let was_synced = self.model.is_synced();
        self.model.observe_node(event);
        if !was_synced && self.model.is_synced() {
            self.restart_pages();
        }
    }

    fn observe_fleet(&mut self, answer: Result<pb::Fleet, String>) {
        match answer {
            Ok(fleet) => {
                let json = frames::fleet_json(fleet);
                self.send(frames::fleet(&json, Duration::ZERO));
                self.fleet = Some((json, self.clock.mono()));
                self.set_sources(Sources { controller: Source::Heard, ..self.sources.clone() });
            }
            Err(reason) => {
                self.set_sources(Sources { controller: Source::Lost(reason), ..self.sources.clone() });
            }
        }
    }

    fn set_store(&mut self, store: Source) {
        self.set_sources(Sources { store, ..self.sources.clone() });
    }

    fn set_sources(&mut self, sources: Sources) {
        if self.sources != sources {
            self.send(frames::sources(&sources));
            self.sources = sources;
        }
    }

    /// Sends what has changed to the pages.
    fn publish(&mut self) {
        // A list that is half read is not a fleet.
        if !self.model.is_synced() {
            return;
        }
        let now = self.clock.mono();
        self.model.advance(now);
        let changes: Changes = self.model.take_changes(now);
        if changes.added.len() > MANY_NEW_NODES {
            self.restart_pages();
        } else if !changes.is_empty() {
            self.send(frames::changes(&changes));
        }
    }

    /// All pages take a new snapshot.
    fn restart_pages(&mut self) {
        let now = self.clock.mono();
        self.model.take_changes(now);
        let _ = self.updates.send(Update::Restart);
    }

    fn send(&self, frame: Frame) {
        // There may be no page for a moment.
        let _ = self.updates.send(Update::Frame(frame));
    }
}

/// The answers of the controller that leads, or why there is none. Ends when it is dropped.
struct Fleets {
    answers: mpsc::Receiver<Result<pb::Fleet, String>>,
    _task: JoinSet<()>,
}

impl Fleets {
    fn follow(connection: &Connection) -> Fleets {
        let (sender, answers) = mpsc::channel(1);
        let mut task = JoinSet::new();
        let connection = connection.clone();
        task.spawn(async move {
            // Of several controllers, the leader is found again after each interruption.
            while !sender.is_closed() {
                let outcome = follow_leader(&connection, &sender).await;
                if let Err(reason) = outcome
                    && sender.send(Err(reason)).await.is_err()
                {
                    return;
                }
                tokio::time::sleep(FLEET_INTERVAL).await;
            }
        });
        Fleets { answers, _task: task }
    }
}

/// Passes on the answers of the controller that leads, until the stream breaks or it is a standby.
async fn follow_leader(
    connection: &Connection,
    answers: &mpsc::Sender<Result<pb::Fleet, String>>,
) -> Result<(), String> {
    let controller = connection.controller().await.map_err(|failure| failure.into_text().0)?;
    let mut client = controller.client.clone();
    let request = pb::WatchFleetRequest { min_interval: FLEET_INTERVAL.try_into().ok() };
    let opened = controller.open_stream(client.watch_fleet(request)).await;
    let mut stream = opened.map_err(|failure| failure.into_text().0)?;
    while let Some(answer) = stream.message().await.map_err(|status| status.message().to_owned())? {
        let fleet = answer.fleet.unwrap_or_default();
        let is_standby = fleet.state() == pb::FleetState::Standby;
        if answers.send(Ok(fleet)).await.is_err() || is_standby {
            return Ok(());
        }
    }
    Err("the controller has ended the stream".to_owned())
}
