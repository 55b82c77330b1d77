//! The pods' loop: decide, perform, observe, wait. What takes the store, and every start, is only begun here and goes on
//! beside the loop: no pod's end waits for a store or a disk that does not answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use muster_agent_core::admission::NodeFacts;
use muster_agent_core::pod_lifecycle::{Action, NodeState, Outcome, PodReport, PodStates, decide};
use muster_agent_core::pressure::PressureConditions;
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
use crate::pod_stop_traces::PodStopTraces;
use crate::runtime::Runtime;
use crate::shared_state::SharedState;
use crate::shutdown::{Departure, MachineShutdown, Next};
use executor::{Executor, HookEnded};
use muster_proto::time::Now;
use store_calls::{CallResult, call};

mod eviction;
pub mod executor;
mod runtime_report;
mod store_calls;

/// The loop wakes at least this often, in case a signal was missed.
const SAFETY_NET: Duration = Duration::from_secs(30);

/// What the loop works with.
pub struct PodLoop {
    pub client: StoreClient,
    pub name: Name,
    pub executor: Arc<Executor>,
    pub hooks: mpsc::UnboundedReceiver<HookEnded>,
    pub evictor: Evictor,
    pub shared: Arc<SharedState>,
    pub clock: SharedClock,
    pub machine_shutdown: MachineShutdown,
}

impl PodLoop {
    /// Runs until the agent's time is over. What runs then goes on running.
    pub async fn run(mut self) {
        let over = self.machine_shutdown.stop_signal();
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
        let (mut pod_states, mut stop_traces) = (PodStates::new(), PodStopTraces::default());
        let mut containers = self.executor.runtime.changes();
        let (mut node, mut pressure) = (self.shared.node(), self.shared.pressure());
        let mut calls = JoinSet::new();
        let mut is_fresh_look = false;
        let mut course = self.machine_shutdown.state();
        let mut departure: Option<Departure> = None;
        pod_states.observe_containers(self.reports(), self.now());
        loop {
            let heading = *course.borrow_and_update();
            // Before the node is seen to shut down: whoever is not among these is rejected from then on. Should the
            // machine stay up after all, those whose turn had come end all the same.
            departure = departure
                .filter(|_| heading.since.is_some())
                .or_else(|| self.machine_shutdown.departure(&pod_states));
            let looked = pressure.borrow_and_update().clone();
            self.observe_node(&mut pod_states, node.borrow_and_update().as_deref(), looked.conditions);
            // A machine that goes down ends its pods anyway.
            if std::mem::take(&mut is_fresh_look) && departure.is_none() && pod_states.is_complete() {
                self.relieve_pressure(&looked, &mut pod_states).await;
            }
            let mut wake_in = self.act(&mut pod_states, &mut calls, &mut stop_traces).await;
            // Pods of a list are not in the pod_states before all of it is there.
            if cache.is_synced() {
                stop_traces.retain(|uid| pod_states.pod(uid).is_some());
            }
            let shown = workloads(&pod_states, self.now());
            let running = shown.iter().filter(|workload| !workload.pids.is_empty()).count();
            self.shared.metrics.pods.set(i64::try_from(running).unwrap_or(i64::MAX));
            self.shared.status().workloads = shown;
            if let Some(departure) = &mut departure {
                match departure.step(&mut pod_states, heading.is_posted, self.now()) {
                    Next::Act => continue,
                    Next::Wait { until } => wake_in = wake_in.min(until - self.clock.mono()),
                    Next::Over if heading.ends_agent => return self.machine_shutdown.finish().await,
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
                    stop_traces.observe(&event, self.clock.wall());
                    cache.observe(event);
                    if complete && cache.is_synced() {
                        pod_states.observe_pods(cache.iter(), self.now());
                    }
                }
                Some(answered) = calls.join_next() => {
                    // A call that panicked takes the loop along: what is known of its pod would be wrong for ever.
                    self.observe_result(answered.expect("a call does not panic"), &mut pod_states, &stop_traces);
                }
                _ = containers.changed() => pod_states.observe_containers(self.reports(), self.now()),
                Some((uid, container)) = self.hooks.recv() => {
                    stop_traces.hook_ended(uid, &container);
                    pod_states.hook_ended(uid, &container);
                }
                _ = node.changed() => {}
                _ = pressure.changed() => is_fresh_look = true,
                () = sleep(wake_in) => pod_states.observe_containers(self.reports(), self.now()),
            }
        }
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    /// Performs plans until there is nothing to do but to wait for answers; returns how long that will be so.
    async fn act(
        &self,
        pod_states: &mut PodStates,
        calls: &mut JoinSet<CallResult>,
        stop_traces: &mut PodStopTraces,
    ) -> Duration {
        loop {
            let plan = decide(pod_states, self.now());
            if plan.actions.is_empty() {
                let wake_at = plan.wake_at.map_or(SAFETY_NET, |at| at - self.clock.mono());
                return wake_at.min(SAFETY_NET);
            }
            for action in plan.actions {
                let span = stop_traces.begin(&action);
                if action.is_long() {
                    pod_states.begin(&action, self.now());
                    self.begin(action, &span, pod_states, calls);
                    continue;
                }
                let outcome = span.around(self.executor.perform(&action)).await;
                self.record_outcome(&action, &outcome, &span);
                stop_traces.end(&span, &action, &outcome);
                pod_states.observe(&action, outcome, self.now());
            }
            pod_states.observe_containers(self.reports(), self.now());
        }
    }

    /// Begins what may take long.
    fn begin(&self, action: Action, span: &Span, pod_states: &PodStates, calls: &mut JoinSet<CallResult>) {
        if action.is_call() {
            let pod = action.uid().and_then(|uid| pod_states.pod(uid).cloned());
            let node = Key::node(self.name.clone());
            calls.spawn(span.around(call(self.client.clone(), action, pod, node)));
        } else {
            let executor = Arc::clone(&self.executor);
            calls.spawn(span.around(async move {
                let outcome = executor.perform(&action).await;
                CallResult { action, outcome, node: None }
            }));
        }
    }

    fn observe_result(
        &self,
        CallResult { action, outcome, node }: CallResult,
        pod_states: &mut PodStates,
        stop_traces: &PodStopTraces,
    ) {
        if let Some(node) = node {
            let conditions = self.shared.pressure().borrow().conditions;
            self.observe_node(pod_states, Some(&node), conditions);
        }
        self.record_outcome(&action, &outcome, &stop_traces.scope(action.uid()));
        pod_states.observe(&action, outcome, self.now());
        // What became of the container meanwhile was not looked at.
        if !action.is_call() {
            pod_states.observe_containers(self.reports(), self.now());
        }
    }

    /// Logs and counts a action_span, within its span.
    fn record_outcome(&self, action: &Action, outcome: &Outcome, span: &Span) {
        let _in_span = span.enter();
        record_outcome(action, outcome, &self.shared.metrics);
    }

    fn observe_node(&self, pod_states: &mut PodStates, node: Option<&Node>, pressure: PressureConditions) {
        // Without a record there is nothing to admit by, and what runs keeps running.
        let Some(node) = node else { return pod_states.observe_node(None, self.now()) };
        let internal = node.status.addresses.iter().find(|address| address.kind == AddressType::InternalIp);
        let facts = NodeFacts {
            name: self.name.clone(),
            labels: node.meta.labels.clone(),
            taints: node.spec.taints.clone(),
            allocatable: node.status.allocatable.clone(),
            pressure,
            shutting_down: self.machine_shutdown.is_shutting_down(),
        };
        let host_ip = internal.and_then(|address| address.address.parse().ok());
        pod_states.observe_node(Some(NodeState { facts, host_ip }), self.now());
    }

    fn reports(&self) -> BTreeMap<Uid, PodReport> {
        runtime_report::of(self.executor.runtime.list())
    }
}

/// A action_span is logged and counted once, here.
fn record_outcome(action: &Action, outcome: &Outcome, metrics: &Metrics) {
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

fn workloads(pod_states: &PodStates, now: Now) -> Vec<pb::Workload> {
    let shown = pod_states.workloads(now).map(|workload| {
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
