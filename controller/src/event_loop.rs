//! The event loop: fold in what arrived, decide, perform, sleep. It waits for everything and decides nothing itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Fuse};
use futures_util::stream::{self, FuturesUnordered, Stream, StreamExt};
use muster_proto::budget::DisruptionBudget;
use muster_proto::event::Event;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use muster_store_client::{StoreClient, WatchOptions};
use tokio::sync::{mpsc, watch};

use crate::cloud::client::CloudClient;
use crate::decision_recorder::{DecisionRecorder, read_seed};
use crate::executor::Executor;
use crate::leader_election::{Leadership, Refusals};
use crate::node_trace::{self, NodeTraces};
use muster_controller_core::decision::takeover::Seed;
use muster_controller_core::decision::{Completion, Decision};
use muster_controller_core::plan::{Failure, Outcome, Plan, PlannedAction};
use muster_controller_core::reconciler::{Observation, Reconciler};
use muster_controller_core::world::Revisions;
use muster_proto::time::Now;

mod action_queue;

use action_queue::ActionQueue;

/// Actions performed at once: enough to use the store's group commit, few enough that the actions of a whole fleet do
/// not delay its heartbeats.
const MAX_IN_FLIGHT: usize = 128;
/// Observations folded in under one lock.
const BATCH: usize = 512;
/// Batches folded in before the next decision, at most: a stream that never pauses must not keep us from acting.
const MAX_BATCHES: usize = 128;
/// The longest sleep. It bounds the harm of a controller that forgot to ask for a wake-up.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// The pause before the store's newest revisions are requested again.
const REVISIONS_RETRY: Duration = Duration::from_millis(200);
/// Events that wait to be recorded. More are dropped: nothing depends on them.
const EVENT_BUFFER: usize = 4096;

/// The reconciler, shared by the event loop, the service and the metrics.
#[derive(Clone)]
pub struct Shared {
    reconciler: Arc<Mutex<Reconciler>>,
    clock: SharedClock,
    /// Counts decisions, so that a stream knows when to read the reconciler again.
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

    /// Changes with each decision.
    pub fn decided(&self) -> watch::Receiver<u64> {
        self.decided.subscribe()
    }
}

/// The event loop and what it works with.
pub struct EventLoop {
    pub shared: Shared,
    pub client: StoreClient,
    pub cloud: Option<CloudClient>,
    pub leadership: watch::Receiver<Leadership>,
    /// Takes reports of writes that the store refused because of their fence; `None` without an election.
    pub refusals: Option<Refusals>,
    pub traces: NodeTraces,
    pub shutdown: Shutdown,
}

impl EventLoop {
    /// Runs until shutdown is requested. Actions in flight are abandoned then: the next leader plans them again.
    pub async fn run(mut self) {
        let mut observations = Box::pin(watch_all(&self.client).ready_chunks(BATCH));
        let mut in_flight: FuturesUnordered<BoxFuture<'static, (Outcome, Completion)>> =
            FuturesUnordered::new();
        let mut queue = ActionQueue::default();
        let events = event_recorder(self.client.clone());
        let Term { mut executor, mut required_revisions, mut seed, mut recorder } = self.begin_term();
        loop {
            // Everything that has arrived is folded in before the next decision.
            let outcomes: Vec<_> = take_ready(&mut in_flight, MAX_IN_FLIGHT).collect();
            self.observe(outcomes.into_iter().map(completed));
            for chunk in take_ready(&mut observations, MAX_BATCHES) {
                self.observe(chunk);
            }
            let Plan { actions, events: happened, trace_events, decisions, wake_at, .. } = self.decide();
            self.traces.record(trace_events, self.shared.now());
            if let Some(recorder) = &recorder {
                recorder.record(self.with_traces(decisions));
            }
            for event in happened {
                // A full buffer drops events: they are for operators, and the log has every action.
                let _ = events.try_send(event);
            }
            queue.extend(actions);
            while in_flight.len() < MAX_IN_FLIGHT
                && let Some(action) = queue.next()
            {
                match self.obsolete(&action) {
                    None => in_flight.push(Box::pin(self.perform(&executor, action))),
                    Some(why) => {
                        let PlannedAction { controller, subject, .. } = action;
                        let result = Err(Failure::Later(why.to_owned()));
                        let completion = Completion { is_superseded: true, ..Completion::default() };
                        self.observe([completed((Outcome { controller, subject, result }, completion))]);
                    }
                }
            }
            let now = self.shared.now().mono;
            let sleep = wake_at.map_or(LONGEST_SLEEP, |at| at - now).min(LONGEST_SLEEP);
            tokio::select! {
                () = self.shutdown.requested() => {
                    if let Some(recorder) = recorder {
                        recorder.finish().await;
                    }
                    return;
                }
                Some(outcome) = in_flight.next() => self.observe([completed(outcome)]),
                Some(chunk) = observations.next() => self.observe(chunk),
                changed = self.leadership.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    // Queued actions are planned again, by this controller or another; those in flight are abandoned.
                    queue = ActionQueue::default();
                    in_flight.clear();
                    // The writes of the recorder before would be refused now.
                    Term { executor, required_revisions, seed, recorder } = self.begin_term();
                }
                seed = &mut seed => self.observe([Observation::DecisionLog(seed)]),
                required = &mut required_revisions => self.observe([Observation::RequiredRevisions(required)]),
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Starts a term as leader or as standby, from nothing. A leader that follows another one decides nothing before its
    /// world has the newest revisions that the store had when the term began.
    fn begin_term(&mut self) -> Term {
        let leadership = self.leadership.borrow_and_update().clone();
        let Leadership { leading, fence, .. } = leadership.clone();
        self.observe([Observation::Leading(false), Observation::Leading(leading)]);
        let is_first = fence.as_ref().is_none_or(|fence| fence.transitions() == 0);
        let required_revisions = if leading && !is_first {
            self.observe([Observation::RequiredRevisions(Revisions::MAX)]);
            newest_revisions(self.client.clone(), self.shared.clone()).boxed().fuse()
        } else {
            Fuse::terminated()
        };
        let client = self.client.with_fence(fence.as_ref());
        let fence = fence.zip(self.refusals.clone());
        let (cloud, clock) = (self.cloud.clone(), self.shared.clock.clone());
        let (seed, recorder) = match leading {
            true => {
                let recorder = DecisionRecorder::start(client.clone(), &leadership);
                (read_seed(client.clone()).boxed().fuse(), Some(recorder))
            }
            false => (Fuse::terminated(), None),
        };
        let executor = Arc::new(Executor { client, fence, cloud, clock });
        Term { executor, required_revisions, seed, recorder }
    }

    /// The decisions about a node's failure are part of its trace, also those that are no action.
    fn with_traces(&self, decisions: Vec<Decision>) -> Vec<Decision> {
        let with_trace = |mut decision: Decision| {
            if decision.trace_id.is_empty()
                && let Some(trace_id) = decision.node.as_ref().and_then(|node| self.traces.trace_id(node))
            {
                decision.trace_id = trace_id;
            }
            decision
        };
        decisions.into_iter().map(with_trace).collect()
    }

    /// Why a queued action is not to be performed any more.
    fn obsolete(&self, action: &PlannedAction) -> Option<&'static str> {
        self.shared.reconciler().obsolete(action, self.shared.now())
    }

    /// Performs an action within its span.
    fn perform(
        &mut self,
        executor: &Arc<Executor>,
        action: PlannedAction,
    ) -> impl Future<Output = (Outcome, Completion)> + use<> {
        let span = self.traces.begin(&action, self.shared.reconciler().world(), self.shared.now());
        let performing = span.around(Arc::clone(executor).perform(action));
        let trace = span.place().filter(|_| span.is_recorded()).map(|place| place.trace_id().to_string());
        let completion = Completion { trace_id: trace.unwrap_or_default(), is_superseded: false };
        async move {
            let outcome = performing.await;
            node_trace::end(&span, &outcome);
            (outcome, completion)
        }
    }

    fn observe(&mut self, observations: impl IntoIterator<Item = Observation>) {
        let now = self.shared.now();
        let traces = &mut self.traces;
        let observations = observations.into_iter().inspect(|observation| traces.observe(observation, now));
        self.shared.reconciler().observe_all(observations, now);
    }

    fn decide(&self) -> Plan {
        let plan = self.shared.reconciler().decide(self.shared.now());
        self.shared.decided.send_modify(|count| *count += 1);
        plan
    }
}

/// What a term works with.
struct Term {
    executor: Arc<Executor>,
    required_revisions: Fuse<BoxFuture<'static, Revisions>>,
    /// The newest decisions of the log, which a leader continues.
    seed: Fuse<BoxFuture<'static, Seed>>,
    /// `None` on a standby.
    recorder: Option<DecisionRecorder>,
}

fn completed((outcome, completion): (Outcome, Completion)) -> Observation {
    Observation::Completed(outcome, completion)
}

/// The watches of nodes, pods, node leases and disruption budgets, as one stream.
fn watch_all(client: &StoreClient) -> impl Stream<Item = Observation> + use<> {
    let leases = WatchOptions {
        namespace: Some(NODE_LEASE_NAMESPACE.parse().expect("the namespace of leases is a namespace")),
        ..WatchOptions::default()
    };
    let all = || WatchOptions { progress: true, ..WatchOptions::default() };
    stream::select(
        client.watch(all()).map(Observation::Node),
        stream::select(
            client.watch(all()).map(Observation::Pod),
            stream::select(
                client.watch(leases).map(Observation::Lease),
                client.watch::<DisruptionBudget>(all()).map(Observation::Budget),
            ),
        ),
    )
}

/// The items that a stream has ready, `most` at most.
fn take_ready<S: Stream + Unpin>(stream: &mut S, most: usize) -> impl Iterator<Item = S::Item> {
    std::iter::from_fn(move || stream.next().now_or_never().flatten()).take(most)
}

/// The newest revisions of nodes and pods in the store.
///
/// They are requested after the lease was acquired. The previous leader writes nothing any more, so all its writes are
/// at or before these revisions. If we decided before that, an address block that the previous leader allocated last, and that our watch has
/// not delivered yet, could be allocated again.
async fn newest_revisions(client: StoreClient, shared: Shared) -> Revisions {
    let mut decided = shared.decided();
    loop {
        let applied = {
            Some(shared.reconciler())
                .filter(|reconciler| reconciler.is_synced())
                .map(|reconciler| reconciler.world().applied())
        };
        let Some(applied) = applied else {
            // The watches become synced with an observation, and each observation is followed by a decision.
            let _ = decided.changed().await;
            continue;
        };
        match tokio::try_join!(
            client.latest_version::<Node>(applied.nodes),
            client.latest_version::<Pod>(applied.pods)
        ) {
            Ok((nodes, pods)) => return Revisions { nodes, pods },
            Err(error) => {
                tracing::warn!(%error, "cannot read the store's newest revisions; nothing is decided before that");
                tokio::time::sleep(REVISIONS_RETRY).await;
            }
        }
    }
}

/// Records events beside the loop, a few at a time.
fn event_recorder(client: StoreClient) -> mpsc::Sender<Event> {
    let (sender, receiver) = mpsc::channel::<Event>(EVENT_BUFFER);
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

    #[test]
    fn all_ready_items_are_taken_up_to_the_limit() {
        let with_ready = |count: usize| stream::iter(0..count).chain(stream::pending());
        for (ready, most, taken) in [(0, 3, 0), (2, 3, 2), (3, 3, 3), (1000, 3, 3)] {
            let mut stream = with_ready(ready);
            assert_eq!(take_ready(&mut stream, most).count(), taken, "{ready} ready, {most} at most");
        }
        let mut ended = FuturesUnordered::<BoxFuture<'static, ()>>::new();
        assert_eq!(take_ready(&mut ended, 3).count(), 0, "nothing is in flight");
    }
}
