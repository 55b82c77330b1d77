//! The loop: hear, decide, perform, sleep. It holds all the waiting and none of the thinking.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Fuse};
use futures_util::stream::{self, FuturesUnordered, Stream, StreamExt};
use muster_proto::event::Event;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use muster_store_client::{StoreClient, WatchOptions};
use tokio::sync::{mpsc, watch};

use crate::cloud::client::CloudClient;
use crate::executor::Hands;
use crate::leader_election::{Leadership, Refusals};
use crate::node_trace::{self, NodeTraces};
use muster_controller_core::plan::{ControllerName, Failure, Outcome, Plan, PlannedAction, Subject};
use muster_controller_core::reconciler::{Observation, Reconciler};
use muster_controller_core::world::Revisions;
use muster_proto::time::Now;

/// Deeds under way at once: enough to use the store's group commit, few enough that a fleet's worth of them does not
/// crowd out its heartbeats.
const UNDER_WAY: usize = 128;
/// Observation folded in at once.
const BATCH: usize = 512;
/// How often that is done before the next decision, at most: news that never stops must not keep us from acting.
const BATCHES: usize = 128;
/// The longest sleep: whoever forgot to ask to be woken is looked at all the same.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// The pause before the store is asked again how far it has come.
const HORIZON_AGAIN: Duration = Duration::from_millis(200);
/// Events that wait to be recorded; more than that are dropped, since nothing may depend on them.
const EVENTS: usize = 4096;

/// The core as the loop and those who ask share it.
#[derive(Clone)]
pub struct Shared {
    reconciler: Arc<Mutex<Reconciler>>,
    clock: SharedClock,
    /// Counts decisions, so that whoever follows knows when to look.
    decided: watch::Sender<u64>,
}

impl Shared {
    pub fn new(reconciler: Reconciler, clock: SharedClock) -> Shared {
        Shared { reconciler: Arc::new(Mutex::new(reconciler)), clock, decided: watch::Sender::new(0) }
    }

    pub fn reconciler(&self) -> MutexGuard<'_, Reconciler> {
        self.reconciler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Changes whenever a decision was made.
    pub fn decided(&self) -> watch::Receiver<u64> {
        self.decided.subscribe()
    }
}

/// The loop and what it works with.
pub struct Drive {
    pub shared: Shared,
    pub client: StoreClient,
    pub cloud: Option<CloudClient>,
    pub leadership: watch::Receiver<Leadership>,
    /// Whom to tell that the store refused us; `None` without an election.
    pub refusals: Option<Refusals>,
    pub stories: NodeTraces,
    pub shutdown: Shutdown,
}

impl Drive {
    /// Runs until the shutdown is asked for. What is under way then is let go: it will be decided anew.
    pub async fn run(mut self) {
        let mut news = Box::pin(follow(&self.client).ready_chunks(BATCH));
        let mut under_way: FuturesUnordered<BoxFuture<'static, Outcome>> = FuturesUnordered::new();
        let mut waiting = Waiting::default();
        let events = recorder(self.client.clone());
        let (mut hands, mut horizon) = self.take_office();
        loop {
            // Nobody is judged by what lies unread.
            let outcomes: Vec<Outcome> = arrived(&mut under_way, UNDER_WAY).collect();
            self.observe(outcomes.into_iter().map(Observation::Outcome));
            for chunk in arrived(&mut news, BATCHES) {
                self.observe(chunk);
            }
            let Plan { actions, events: told, trace_events, wake_at } = self.decide();
            self.stories.tell(trace_events, self.shared.now());
            for event in told {
                // A store that is slow to record loses some: they are for people, and the log has the deeds.
                let _ = events.try_send(event);
            }
            waiting.extend(actions);
            while under_way.len() < UNDER_WAY
                && let Some(proposal) = waiting.next()
            {
                match self.obsolete(&proposal) {
                    None => under_way.push(Box::pin(self.deed(&hands, proposal))),
                    Some(why) => {
                        let PlannedAction { controller, subject, .. } = proposal;
                        let result = Err(Failure::Later(why.to_owned()));
                        self.observe([Observation::Outcome(Outcome { controller, subject, result })]);
                    }
                }
            }
            let now = self.shared.now().mono;
            let sleep = wake_at.map_or(LONGEST_SLEEP, |at| at - now).min(LONGEST_SLEEP);
            tokio::select! {
                () = self.shutdown.requested() => return,
                Some(outcome) = under_way.next() => self.observe([Observation::Outcome(outcome)]),
                Some(chunk) = news.next() => self.observe(chunk),
                changed = self.leadership.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    // What we meant to do is decided anew, by us or by another; what is under way is let go.
                    waiting = Waiting::default();
                    under_way.clear();
                    (hands, horizon) = self.take_office();
                }
                reach = &mut horizon => self.observe([Observation::RequiredRevisions(reach)]),
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Acts from now on as the leadership stands: each term of office begins anew. One that follows another begins when it
    /// is known how far the world must have come for it.
    fn take_office(&mut self) -> (Arc<Hands>, Fuse<BoxFuture<'static, Revisions>>) {
        let Leadership { leading, fence, .. } = self.leadership.borrow_and_update().clone();
        self.observe([Observation::Leading(false), Observation::Leading(leading)]);
        let is_first = fence.as_ref().is_none_or(|fence| fence.transitions() == 0);
        let horizon = if leading && !is_first {
            self.observe([Observation::RequiredRevisions(Revisions::MAX)]);
            horizon(self.client.clone(), self.shared.clone()).boxed().fuse()
        } else {
            Fuse::terminated()
        };
        let client = self.client.with_fence(fence.as_ref());
        let fence = fence.zip(self.refusals.clone());
        let (cloud, clock) = (self.cloud.clone(), self.shared.clock.clone());
        (Arc::new(Hands { client, fence, cloud, clock }), horizon)
    }

    /// Why a proposal that had to wait is not to be performed any more.
    fn obsolete(&self, proposal: &PlannedAction) -> Option<&'static str> {
        self.shared.reconciler().obsolete(proposal, self.shared.now())
    }

    /// A deed within its span.
    fn deed(&mut self, hands: &Arc<Hands>, proposal: PlannedAction) -> impl Future<Output = Outcome> + use<> {
        let span = self.stories.begin(&proposal, self.shared.reconciler().world(), self.shared.now());
        let doing = span.around(Arc::clone(hands).perform(proposal));
        async move {
            let outcome = doing.await;
            node_trace::end(&span, &outcome);
            outcome
        }
    }

    fn observe(&mut self, news: impl IntoIterator<Item = Observation>) {
        let now = self.shared.now();
        let stories = &mut self.stories;
        self.shared
            .reconciler()
            .observe_all(news.into_iter().inspect(|news| stories.observe(news, now)), now);
    }

    fn decide(&self) -> Plan {
        let plan = self.shared.reconciler().decide(self.shared.now());
        self.shared.decided.send_modify(|count| *count += 1);
        plan
    }
}

/// What is to be done when there is room for it. Lanes take turns, so that a fleet's worth of one matter does not hold up
/// another, and within a lane it is first come first served.
#[derive(Default)]
struct Waiting {
    /// None of them is empty.
    lanes: BTreeMap<Lane, VecDeque<PlannedAction>>,
    /// Whose turn it was last.
    last: Option<Lane>,
}

/// Each room has a lane, and so have the marks of pods: a node that falls silent brings many of them, and they are not
/// to stand before the nodes that fall silent next.
type Lane = (ControllerName, bool);

impl Waiting {
    fn extend(&mut self, actions: Vec<PlannedAction>) {
        for proposal in actions {
            let is_pod_mark = proposal.controller == ControllerName::NodeLifecycle
                && matches!(proposal.subject, Subject::Pod(..));
            self.lanes.entry((proposal.controller, is_pod_mark)).or_default().push_back(proposal);
        }
    }

    fn next(&mut self) -> Option<PlannedAction> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let lane = self.lanes.range((after, Bound::Unbounded)).next().or_else(|| self.lanes.iter().next());
        let lane = *lane?.0;
        self.last = Some(lane);
        let actions = self.lanes.get_mut(&lane)?;
        let next = actions.pop_front();
        if actions.is_empty() {
            self.lanes.remove(&lane);
        }
        next
    }
}

/// Everything the store tells.
fn follow(client: &StoreClient) -> impl Stream<Item = Observation> + use<> {
    let leases = WatchOptions {
        namespace: Some(NODE_LEASE_NAMESPACE.parse().expect("the namespace of leases is a namespace")),
        ..WatchOptions::default()
    };
    let all = || WatchOptions { progress: true, ..WatchOptions::default() };
    stream::select(
        client.watch(all()).map(Observation::Node),
        stream::select(
            client.watch(all()).map(Observation::Pod),
            client.watch(leases).map(Observation::Lease),
        ),
    )
}

/// What a stream holds ready, so many items at most.
fn arrived<S: Stream + Unpin>(stream: &mut S, most: usize) -> impl Iterator<Item = S::Item> {
    std::iter::from_fn(move || stream.next().now_or_never().flatten()).take(most)
}

/// How far the store has come by now, in changes that the streams will tell of.
///
/// Asked after the lease was taken: whoever led before us writes nothing any more, so what they wrote lies before the
/// horizon. Without it a block that they gave away last, and of which we were not told yet, could be given away again.
async fn horizon(client: StoreClient, shared: Shared) -> Revisions {
    let mut decided = shared.decided();
    loop {
        let told = {
            Some(shared.reconciler())
                .filter(|reconciler| reconciler.is_synced())
                .map(|reconciler| reconciler.world().applied())
        };
        let Some(told) = told else {
            // The streams are in step only after news, and each piece of news is followed by a decision.
            let _ = decided.changed().await;
            continue;
        };
        match tokio::try_join!(
            client.latest_version::<Node>(told.nodes),
            client.latest_version::<Pod>(told.pods)
        ) {
            Ok((nodes, pods)) => return Revisions { nodes, pods },
            Err(error) => {
                tracing::warn!(%error, "cannot tell how far the store has come; nothing is judged until it can");
                tokio::time::sleep(HORIZON_AGAIN).await;
            }
        }
    }
}

/// Records events beside the loop, a few at a time.
fn recorder(client: StoreClient) -> mpsc::Sender<Event> {
    let (sender, receiver) = mpsc::channel::<Event>(EVENTS);
    tokio::spawn(async move {
        tokio_stream::wrappers::ReceiverStream::new(receiver)
            .for_each_concurrent(8, |event| {
                let client = client.clone();
                async move {
                    if let Err(error) = client.record_event(event).await {
                        tracing::debug!(%error, "an event was not recorded");
                    }
                }
            })
            .await;
    });
    sender
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;
    use muster_controller_core::fixtures::{node, pod};
    use muster_controller_core::plan::Action;

    fn about_node(controller: ControllerName, name: &str) -> PlannedAction {
        let subject = Subject::of_node(&node(name).build());
        PlannedAction { controller, subject, action: Action::ReadNode, why: "".into() }
    }

    fn about_pod(controller: ControllerName, name: &str) -> PlannedAction {
        let subject = Subject::of_pod(&pod(name).build());
        let action = Action::EvictPod { grace_period_seconds: None };
        PlannedAction { controller, subject, action, why: "".into() }
    }

    /// The next so many, by name.
    fn next(waiting: &mut Waiting, count: usize) -> Vec<String> {
        let next = std::iter::from_fn(|| waiting.next()).take(count);
        next.map(|proposal| match proposal.subject {
            Subject::Node(name, _) => name.to_string(),
            Subject::Pod(key, _) | Subject::Lease(key) => key.name.to_string(),
        })
        .collect()
    }

    #[test]
    fn a_fleets_worth_of_one_matter_does_not_hold_up_another() {
        let mut waiting = Waiting::default();
        waiting.extend(
            (0..200).map(|i| about_pod(ControllerName::NodeLifecycle, &format!("mark{i}"))).collect(),
        );
        waiting.extend(["e1", "e2"].map(|name| about_pod(ControllerName::TaintEviction, name)).to_vec());
        waiting.extend(["r1", "r2"].map(|name| about_node(ControllerName::NodeRecords, name)).to_vec());
        // A node's own mark does not queue behind those of pods either.
        waiting.extend(["n1", "n2"].map(|name| about_node(ControllerName::NodeLifecycle, name)).to_vec());
        assert_eq!(next(&mut waiting, 8), ["n1", "mark0", "r1", "e1", "n2", "mark1", "r2", "e2"]);
        assert_eq!(next(&mut waiting, 2), ["mark2", "mark3"], "who is alone waits for nobody");
        waiting.extend(vec![about_pod(ControllerName::Drain, "d1")]);
        assert_eq!(next(&mut waiting, 3), ["d1", "mark4", "mark5"], "nor does who comes later wait for all");
        assert_eq!(next(&mut waiting, 1000).len(), 194, "nothing is lost");
        assert!(waiting.next().is_none());
    }

    #[test]
    fn all_that_has_arrived_is_taken_but_no_more_than_may_be() {
        let arrives = |count: usize| stream::iter(0..count).chain(stream::pending());
        for (arrived_by_now, most, taken) in [(0, 3, 0), (2, 3, 2), (3, 3, 3), (1000, 3, 3)] {
            let mut stream = arrives(arrived_by_now);
            assert_eq!(arrived(&mut stream, most).count(), taken, "{arrived_by_now} with {most} at most");
        }
        let mut ended = FuturesUnordered::<BoxFuture<'static, ()>>::new();
        assert_eq!(arrived(&mut ended, 3).count(), 0, "nothing is under way");
    }
}
