//! The pods' loop: decide, perform, observe, wait. What takes the store, and every start, is only begun here and goes on
//! beside the loop: no pod's end waits for a store or a disk that does not answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use muster_agent_core::admission::Site;
use muster_agent_core::pod_lifecycle::{Action, Ledger, NodeState, Outcome, PodReport, decide};
use muster_agent_core::pressure::Shortages;
use muster_agent_core::pressure::eviction_ranking::Evictor;
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::node::{AddressType, Node};
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::clock::SharedClock;
use muster_rpc::trace::Span;
use muster_store_client::{Cache, StoreClient, Watch, WatchOptions};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::metrics::Metrics;
use crate::pod_stop_traces::Stops;
use crate::runtime::Runtime;
use crate::shared_state::Board;
use crate::shutdown::{Departure, Leave, Next};
use executor::{Hands, HookEnded};
use muster_proto::time::Now;
use store_calls::{Answered, call};

mod eviction;
pub mod executor;
mod runtime_report;
mod store_calls;

/// The loop wakes at least this often, in case a signal was missed.
const SAFETY_NET: Duration = Duration::from_secs(30);

/// What the loop works with.
pub struct Supervisor {
    pub client: StoreClient,
    pub name: Name,
    pub hands: Arc<Hands>,
    pub hooks: mpsc::UnboundedReceiver<HookEnded>,
    pub evictor: Evictor,
    pub board: Arc<Board>,
    pub clock: SharedClock,
    pub leave: Leave,
}

impl Supervisor {
    /// Runs until the agent's time is over. What runs then goes on running.
    pub async fn run(mut self) {
        let over = self.leave.over();
        tokio::select! {
            () = over.requested() => {}
            () = self.live() => {}
        }
    }

    async fn live(&mut self) {
        let selector = format!("spec.nodeName={}", self.name);
        let mut pods: Watch<Pod> =
            self.client.watch(WatchOptions { field_selector: selector, ..Default::default() });
        let mut cache = Cache::<Pod>::new();
        let (mut ledger, mut stops) = (Ledger::new(), Stops::default());
        let mut containers = self.hands.runtime.changes();
        let (mut node, mut standing) = (self.board.node(), self.board.standing());
        let mut calls = JoinSet::new();
        let mut is_fresh_look = false;
        let mut course = self.leave.course();
        let mut departure: Option<Departure> = None;
        ledger.see_containers(self.reports(), self.now());
        loop {
            let heading = *course.borrow_and_update();
            // Before the node is seen to shut down: whoever is not among these is rejected from then on. Should the
            // machine stay up after all, those whose turn had come end all the same.
            departure =
                departure.filter(|_| heading.since.is_some()).or_else(|| self.leave.departure(&ledger));
            let looked = standing.borrow_and_update().clone();
            self.see_node(&mut ledger, node.borrow_and_update().as_deref(), looked.shortages);
            // A machine that goes down ends its pods anyway.
            if std::mem::take(&mut is_fresh_look) && departure.is_none() && ledger.is_complete() {
                self.relieve(&looked, &mut ledger).await;
            }
            let mut wake_in = self.act(&mut ledger, &mut calls, &mut stops).await;
            // Pods of a list are not in the ledger before all of it is there.
            if cache.is_synced() {
                stops.retain(|uid| ledger.pod(uid).is_some());
            }
            let shown = workloads(&ledger, self.now());
            let running = shown.iter().filter(|workload| !workload.pids.is_empty()).count();
            self.board.metrics.pods.set(i64::try_from(running).unwrap_or(i64::MAX));
            self.board.beliefs().workloads = shown;
            if let Some(departure) = &mut departure {
                match departure.step(&mut ledger, heading.is_announced, self.now()) {
                    Next::Act => continue,
                    Next::Wait { until } => wake_in = wake_in.min(until - self.clock.mono()),
                    Next::Over if heading.is_last => return self.leave.finish().await,
                    // The rest is the platform's: it takes the power, or thinks better of it.
                    Next::Over => {}
                }
            }
            tokio::select! {
                _ = course.changed() => {}
                event = pods.next() => {
                    let Some(event) = event else { return };
                    // While cut off from the store what is missing says nothing.
                    let complete = !matches!(event, WatchEvent::Lost(_));
                    stops.observe(&event, self.clock.wall());
                    cache.observe(event);
                    if complete && cache.is_synced() {
                        ledger.see_pods(cache.iter(), self.now());
                    }
                }
                Some(answered) = calls.join_next() => {
                    // A call that panicked takes the loop along: what is known of its pod would be wrong for ever.
                    self.take_in(answered.expect("a call does not panic"), &mut ledger, &stops);
                }
                _ = containers.changed() => ledger.see_containers(self.reports(), self.now()),
                Some((uid, container)) = self.hooks.recv() => {
                    stops.hook_ended(uid, &container);
                    ledger.hook_ended(uid, &container);
                }
                _ = node.changed() => {}
                _ = standing.changed() => is_fresh_look = true,
                () = sleep(wake_in) => ledger.see_containers(self.reports(), self.now()),
            }
        }
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    /// Performs plans until there is nothing to do but to wait for answers; returns how long that will be so.
    async fn act(&self, ledger: &mut Ledger, calls: &mut JoinSet<Answered>, stops: &mut Stops) -> Duration {
        loop {
            let plan = decide(ledger, self.now());
            if plan.actions.is_empty() {
                let wake_at = plan.wake_at.map_or(SAFETY_NET, |at| at - self.clock.mono());
                return wake_at.min(SAFETY_NET);
            }
            for action in plan.actions {
                let span = stops.begin(&action);
                if action.is_long() {
                    ledger.begin(&action, self.now());
                    self.begin(action, &span, ledger, calls);
                    continue;
                }
                let outcome = span.around(self.hands.perform(&action)).await;
                self.note(&action, &outcome, &span);
                stops.end(&span, &action, &outcome);
                ledger.observe(&action, outcome, self.now());
            }
            ledger.see_containers(self.reports(), self.now());
        }
    }

    /// Begins what may take long.
    fn begin(&self, action: Action, span: &Span, ledger: &Ledger, calls: &mut JoinSet<Answered>) {
        if action.is_call() {
            let pod = action.uid().and_then(|uid| ledger.pod(uid).cloned());
            let node = Key::node(self.name.clone());
            calls.spawn(span.around(call(self.client.clone(), action, pod, node)));
        } else {
            let hands = Arc::clone(&self.hands);
            calls.spawn(span.around(async move {
                let outcome = hands.perform(&action).await;
                Answered { action, outcome, node: None }
            }));
        }
    }

    fn take_in(&self, Answered { action, outcome, node }: Answered, ledger: &mut Ledger, stops: &Stops) {
        if let Some(node) = node {
            let shortages = self.board.standing().borrow().shortages;
            self.see_node(ledger, Some(&node), shortages);
        }
        self.note(&action, &outcome, &stops.scope(action.uid()));
        ledger.observe(&action, outcome, self.now());
        // What became of the container meanwhile was not looked at.
        if !action.is_call() {
            ledger.see_containers(self.reports(), self.now());
        }
    }

    /// Logs and counts a deed, within its span.
    fn note(&self, action: &Action, outcome: &Outcome, span: &Span) {
        let _in_span = span.enter();
        note(action, outcome, &self.board.metrics);
    }

    fn see_node(&self, ledger: &mut Ledger, node: Option<&Node>, pressure: Shortages) {
        // Without a record there is nothing to admit by, and what runs keeps running.
        let Some(node) = node else { return ledger.see_node(None, self.now()) };
        let internal = node.status.addresses.iter().find(|address| address.kind == AddressType::InternalIp);
        let site = Site {
            name: self.name.clone(),
            labels: node.meta.labels.clone(),
            taints: node.spec.taints.clone(),
            allocatable: node.status.allocatable.clone(),
            pressure,
            shutting_down: self.leave.is_shutting_down(),
        };
        let host_ip = internal.and_then(|address| address.address.parse().ok());
        ledger.see_node(Some(NodeState { site, host_ip }), self.now());
    }

    fn reports(&self) -> BTreeMap<Uid, PodReport> {
        runtime_report::of(self.hands.runtime.list())
    }
}

/// A deed is logged and counted once, here.
fn note(action: &Action, outcome: &Outcome, metrics: &Metrics) {
    match (action, outcome) {
        (_, Outcome::Failed { message }) => tracing::warn!(%action, message, "could not be done yet"),
        (Action::Start { pod, container, attempt }, Outcome::Started { pid, .. }) => {
            metrics.started.inc();
            tracing::info!(pod = %pod.meta.name, container, attempt, pid, "started");
        }
        (Action::Term { uid, container } | Action::Kill { uid, container }, _) => {
            let is_kill = matches!(action, Action::Kill { .. });
            metrics.killed.inc_by(u64::from(is_kill));
            let how = if is_kill { "KILL" } else { "TERM" };
            tracing::info!(pod = %uid, container, how, "stopping");
        }
        (Action::Delete { key, .. }, Outcome::Gone) => tracing::info!(pod = %key, "ended and removed"),
        _ => tracing::debug!(%action, "done"),
    }
}

fn workloads(ledger: &Ledger, now: Now) -> Vec<pb::Workload> {
    let shown = ledger.workloads(now).map(|workload| {
        let meta = workload.pod.map(|pod| &pod.meta);
        let wire: pb::PodStatus = workload.status.clone().into();
        pb::Workload {
            namespace: meta
                .and_then(|meta| meta.namespace.as_ref())
                .map(ToString::to_string)
                .unwrap_or_default(),
            name: meta.map(|meta| meta.name.to_string()).unwrap_or_default(),
            uid: workload.uid.to_string(),
            phase: wire.phase,
            reason: wire.reason,
            stopping: workload.is_stopping,
            containers: wire.container_statuses,
            pids: workload.pids.into_iter().map(|(name, pid)| (name.to_owned(), i64::from(pid))).collect(),
        }
    });
    shown.collect()
}
