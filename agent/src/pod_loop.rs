//! The pod loop: decides, performs, observes, waits.
//!
//! Calls of the store and starts of containers run beside the loop, so that no pod's stop waits for a store or a disk
//! that does not answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use muster_agent_core::admission::NodeFacts;
use muster_agent_core::pod_lifecycle::{Action, NodeState, Outcome, PodReport, PodStates, decide};
use muster_agent_core::pod_security::PodSecurityPolicy;
use muster_agent_core::pressure::PressureConditions;
use muster_agent_core::pressure::eviction_ranking::Evictor;
use muster_agent_core::shutdown_order::{NodeShutdown, ShutdownStep};
use muster_proto::key::Key;
use muster_proto::label::Labels;
use muster_proto::name::{Name, Uid};
use muster_proto::node::{AddressType, Node};
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::quantity::Resources;
use muster_proto::time::Now;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::clock::SharedClock;
use muster_rpc::trace::Span;
use muster_store_client::{Cache, StoreClient, Watch, WatchOptions};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::events::EventRecorder;
use crate::metrics::Metrics;
use crate::pod_stop_traces::PodStopTraces;
use crate::runtime::Runtime;
use crate::shared_state::SharedState;
use crate::shutdown::MachineShutdown;
use crate::static_pods;

mod eviction;
pub mod executor;
mod runtime_report;
mod store_calls;

use executor::{Executor, HookEnded};
use store_calls::{CallResult, call};

/// The loop wakes at least this often, in case a change was not signalled.
const MAX_SLEEP: Duration = Duration::from_secs(30);

/// What the loop works with.
pub struct PodLoop {
    pub client: StoreClient,
    pub name: Name,
    pub executor: Arc<Executor>,
    pub hooks: mpsc::UnboundedReceiver<HookEnded>,
    pub evictor: Evictor,
    /// What pods may ask for.
    pub security: PodSecurityPolicy,
    pub shared: Arc<SharedState>,
    pub events: EventRecorder,
    pub clock: SharedClock,
    pub machine_shutdown: MachineShutdown,
    /// The pods of --pod-manifest-path.
    pub static_pods: watch::Receiver<static_pods::Pods>,
    /// What pods may use of this machine, as far as the agent knows without the store.
    pub local_allocatable: Resources,
    /// The labels that the node has, or will have.
    pub local_labels: Labels,
}

impl PodLoop {
    /// Runs until the agent stops. Containers keep running after that.
    pub async fn run(mut self) {
        let stop = self.machine_shutdown.stop_signal();
        tokio::select! {
            () = stop.requested() => {}
            () = self.run_pods() => {}
        }
    }

    async fn run_pods(&mut self) {
        let selector = format!("spec.nodeName={}", self.name);
        let mut pods: Watch<Pod> =
            self.client.watch(WatchOptions { field_selector: selector, ..Default::default() });
        let mut cache = Cache::<Pod>::new();
        let (mut pod_states, mut stop_traces) = (PodStates::new(), PodStopTraces::default());
        let mut containers = self.executor.runtime.changes();
        let (mut node, mut pressure) = (self.shared.node(), self.shared.pressure());
        let mut calls = JoinSet::new();
        let mut has_new_pressure = false;
        let mut shutdown_changes = self.machine_shutdown.state();
        let mut node_shutdown: Option<NodeShutdown> = None;
        pod_states.observe_containers(self.reports(), self.now());
        let mut known: static_pods::Pods = None;
        loop {
            self.observe_static_pods(&mut known, &mut pod_states);
            let shutdown = *shutdown_changes.borrow_and_update();
            // Before the node's state says that it shuts down: from then on every other pod is rejected. If the shutdown
            // is cancelled, pods that were told to terminate still do.
            node_shutdown = node_shutdown
                .filter(|_| shutdown.since.is_some())
                .or_else(|| self.machine_shutdown.node_shutdown(&pod_states));
            let observed = pressure.borrow_and_update().clone();
            self.observe_node(&mut pod_states, node.borrow_and_update().as_deref(), observed.conditions);
            // No evictions during a shutdown, which stops all pods anyway.
            let may_evict = node_shutdown.is_none() && pod_states.is_complete();
            if std::mem::take(&mut has_new_pressure) && may_evict {
                self.relieve_pressure(&observed, &mut pod_states).await;
            }
            let mut wake_in = self.act(&mut pod_states, &mut calls, &mut stop_traces).await;
            // Not before the list is complete: until then the pod states lack pods that the traces have.
            if cache.is_synced() {
                stop_traces.retain(|uid| pod_states.pod(uid).is_some());
            }
            pod_states.take_events().into_iter().for_each(|event| self.events.record(event));
            self.publish_workloads(&pod_states);
            if let Some(node_shutdown) = &mut node_shutdown {
                match node_shutdown.step(&mut pod_states, shutdown.is_posted, self.now()) {
                    ShutdownStep::Act { pods } => {
                        tracing::info!(pods, "the machine shuts down; a group of pods is stopped");
                        continue;
                    }
                    ShutdownStep::Wait { until } => wake_in = wake_in.min(until - self.clock.mono()),
                    ShutdownStep::Done if shutdown.ends_agent => return self.machine_shutdown.finish().await,
                    // The platform switches the machine off, or cancels the shutdown.
                    ShutdownStep::Done => {}
                }
            }
            tokio::select! {
                _ = shutdown_changes.changed() => {}
                event = pods.next() => {
                    let Some(event) = event else { return };
                    // While the watch is lost, a pod that is missing has not vanished.
                    let is_connected = !matches!(event, WatchEvent::Lost(_));
                    stop_traces.observe(&event, self.clock.wall());
                    cache.observe(event);
                    if is_connected && cache.is_synced() {
                        pod_states.observe_pods(cache.iter(), self.now());
                    }
                }
                Some(result) = calls.join_next() => {
                    // A call that panicked ends the loop: the state of its pod would be wrong from then on.
                    self.observe_result(result.expect("a call does not panic"), &mut pod_states, &stop_traces);
                }
                _ = containers.changed() => pod_states.observe_containers(self.reports(), self.now()),
                Some((uid, container)) = self.hooks.recv() => {
                    stop_traces.hook_ended(uid, &container);
                    pod_states.hook_ended(uid, &container);
                }
                _ = node.changed() => {}
                Ok(()) = self.static_pods.changed() => {}
                _ = pressure.changed() => has_new_pressure = true,
                () = sleep(wake_in) => pod_states.observe_containers(self.reports(), self.now()),
            }
        }
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    /// Performs plans until there is nothing to do but to wait; returns for how long.
    async fn act(
        &self,
        pod_states: &mut PodStates,
        calls: &mut JoinSet<CallResult>,
        stop_traces: &mut PodStopTraces,
    ) -> Duration {
        loop {
            let plan = decide(pod_states, self.now());
            if plan.actions.is_empty() {
                let wake_in = plan.wake_at.map_or(MAX_SLEEP, |at| at - self.clock.mono());
                return wake_in.min(MAX_SLEEP);
            }
            for action in plan.actions {
                let span = stop_traces.begin(&action);
                if action.is_long() {
                    pod_states.begin(&action, self.now());
                    self.begin(action, &span, pod_states, calls);
                    continue;
                }
                let outcome = span.around(self.executor.perform(&action)).await;
                self.log_outcome(&action, &outcome, &span);
                stop_traces.end(&span, &action, &outcome);
                pod_states.observe(&action, outcome, self.now());
            }
            pod_states.observe_containers(self.reports(), self.now());
        }
    }

    /// Begins an action that may take long, beside the loop.
    fn begin(&self, action: Action, span: &Span, pod_states: &PodStates, calls: &mut JoinSet<CallResult>) {
        if action.is_call() {
            let pod = action.uid().and_then(|uid| pod_states.record(uid).cloned());
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
        self.log_outcome(&action, &outcome, &stop_traces.scope(action.uid()));
        pod_states.observe(&action, outcome, self.now());
        // Reports of a container are ignored while its start is under way, so they are observed now.
        if !action.is_call() {
            pod_states.observe_containers(self.reports(), self.now());
        }
    }

    /// Logs and counts the outcome of an action, within the action's span.
    fn log_outcome(&self, action: &Action, outcome: &Outcome, span: &Span) {
        let _in_span = span.enter();
        log_outcome(action, outcome, &self.shared.metrics);
    }

    fn observe_node(&self, pod_states: &mut PodStates, node: Option<&Node>, pressure: PressureConditions) {
        let local = NodeFacts {
            name: self.name.clone(),
            labels: self.local_labels.clone(),
            taints: Vec::new(),
            allocatable: self.local_allocatable.clone(),
            pressure,
            shutting_down: self.machine_shutdown.is_shutting_down(),
            security: self.security.clone(),
        };
        let local = NodeState { facts: local, uid: None, host_ip: None };
        pod_states.observe_local_node(local, self.now());
        // Without a record no other pod can be admitted; containers keep running.
        let Some(node) = node else { return pod_states.observe_node(None, self.now()) };
        let internal = node.status.addresses.iter().find(|address| address.kind == AddressType::InternalIp);
        let facts = NodeFacts {
            name: self.name.clone(),
            labels: node.meta.labels.clone(),
            taints: node.spec.taints.clone(),
            allocatable: node.status.allocatable.clone(),
            pressure,
            shutting_down: self.machine_shutdown.is_shutting_down(),
            security: self.security.clone(),
        };
        let host_ip = internal.and_then(|address| address.address.parse().ok());
        pod_states.observe_node(Some(NodeState { facts, uid: node.meta.uid, host_ip }), self.now());
    }

    /// Observes the static pods if they were read anew.
    fn observe_static_pods(&mut self, known: &mut static_pods::Pods, pod_states: &mut PodStates) {
        let Some(pods) = self.static_pods.borrow_and_update().clone() else { return };
        if !known.as_ref().is_some_and(|known| Arc::ptr_eq(known, &pods)) {
            pod_states.observe_static_pods(pods.iter(), self.now());
            *known = Some(pods);
        }
    }

    fn reports(&self) -> BTreeMap<Uid, PodReport> {
        runtime_report::of(self.executor.runtime.list())
    }

    fn publish_workloads(&self, pod_states: &PodStates) {
        let workloads = workloads(pod_states, self.now());
        let running = workloads.iter().filter(|workload| !workload.pids.is_empty()).count();
        self.shared.metrics.pods.set(i64::try_from(running).unwrap_or(i64::MAX));
        self.shared.status().workloads = workloads;
    }
}

/// Every action is logged and counted once, here.
fn log_outcome(action: &Action, outcome: &Outcome, metrics: &Metrics) {
    match (action, outcome) {
        (_, Outcome::Failed { message }) => tracing::warn!(%action, message, "could not be done yet"),
        (Action::Start { pod, container, attempt }, Outcome::Started { pid, .. }) => {
            metrics.started.inc();
            tracing::info!(pod = %pod.meta.name, container, attempt, pid, "started");
        }
        (Action::Term { uid, container } | Action::Kill { uid, container }, _) => {
            let is_kill = matches!(action, Action::Kill { .. });
            metrics.killed.inc_by(u64::from(is_kill));
            let signal = if is_kill { "KILL" } else { "TERM" };
            tracing::info!(pod = %uid, container, signal, "stopping");
        }
        (Action::Delete { key, .. }, Outcome::Gone) => tracing::info!(pod = %key, "stopped and deleted"),
        _ => tracing::debug!(%action, "done"),
    }
}

fn workloads(pod_states: &PodStates, now: Now) -> Vec<pb::Workload> {
    let workloads = pod_states.workloads(now).map(|workload| {
        let meta = workload.pod.map(|pod| &pod.meta);
        let status: pb::PodStatus = workload.status.clone().into();
        pb::Workload {
            namespace: meta
                .and_then(|meta| meta.namespace.as_ref())
                .map(ToString::to_string)
                .unwrap_or_default(),
            name: meta.map(|meta| meta.name.to_string()).unwrap_or_default(),
            uid: workload.uid.to_string(),
            phase: status.phase,
            reason: status.reason,
            stopping: workload.is_stopping,
            containers: status.container_statuses,
            pids: workload.pids.into_iter().map(|(name, pid)| (name.to_owned(), i64::from(pid))).collect(),
        }
    });
    workloads.collect()
}
