//! One trace per failed node: from its last renewal that was seen to the deletion of its pods.
//!
//! The controllers emit [`TraceEvent`]s and planned actions; here they become spans. A wait becomes a span when it is
//! over, with its duration, so a trace can be read before the node has recovered. A node trace begins when the node's
//! deadline passes and ends when the node is Ready again or gone. Sampling is decided at its beginning, and a trace that
//! is not sampled is dropped at once. Every action is a span, in a node trace or in a trace of its own, and links to the
//! write that produced the record it acts on.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::trace::{self, Draft, Part, Span, Traceparent};

use muster_controller_core::node_lifecycle::liveness::SignOfLife;
use muster_controller_core::plan::{Action, Failure, Outcome, PlannedAction, Subject};
use muster_controller_core::reconciler::Observation;
use muster_controller_core::trace_event::{TokenWait, TraceEvent};
use muster_controller_core::world::World;
use muster_proto::time::Now;

/// Node traces open at once. When a whole fleet fails, the first ones show enough.
const MAX_OPEN: usize = 1024;
/// Spans of a node begin at least this far apart: viewers sort by time, and the order must stay.
const MIN_GAP: Duration = Duration::from_micros(1);

/// The open node traces.
#[derive(Debug, Default)]
pub struct NodeTraces {
    leading: bool,
    open: HashMap<Name, NodeTrace>,
}

#[derive(Debug)]
struct NodeTrace {
    /// The span of the last renewal, the parent of all others.
    root: Traceparent,
    /// When the latest span of the node itself began.
    last: Timestamp,
    queued_at: Option<Timestamp>,
    /// Whether the next write of the node's record adds the NoExecute taint.
    writes_taint: bool,
    /// When that write began; before it, when the trace began.
    tainted_at: Timestamp,
    /// When the toleration time of each evicted pod began.
    tolerated: HashMap<Key, Timestamp>,
}

impl NodeTraces {
    pub fn new() -> NodeTraces {
        NodeTraces::default()
    }

    /// Observes what the reconciler is about to fold in.
    pub fn observe(&mut self, observation: &Observation, now: Now) {
        if !trace::is_on() {
            return;
        }
        match observation {
            Observation::Pod(WatchEvent::Gone { key, traceparent, .. }) if self.leading => {
                record_gone(key, traceparent.as_deref(), now);
            }
            Observation::Leading(leading) => {
                // The next leader opens its own traces.
                self.leading = *leading;
                self.open.clear();
            }
            Observation::Node(_)
            | Observation::Pod(_)
            | Observation::Lease(_)
            | Observation::Budget(_)
            | Observation::RequiredRevisions(_)
            | Observation::DecisionLog(_)
            | Observation::Completed(..)
            | Observation::Outcome(_) => {}
        }
    }

    /// The trace of a node's failure, if there is one.
    pub fn trace_id(&self, node: &Name) -> Option<String> {
        self.open.get(node).map(|node_trace| node_trace.root.trace_id().to_string())
    }

    /// Records the trace events of a decision as spans.
    pub fn record(&mut self, trace_events: Vec<TraceEvent>, now: Now) {
        if !trace::is_on() {
            return;
        }
        for event in trace_events {
            self.record_one(event, now);
        }
    }

    fn record_one(&mut self, event: TraceEvent, now: Now) {
        match event {
            TraceEvent::DeadlinePassed { node, seen_at, seen_by } => {
                if self.open.len() < MAX_OPEN
                    && let Some(node_trace) = NodeTrace::begin(&node, now.wall_of(seen_at), seen_by, now)
                {
                    self.open.insert(node, node_trace);
                }
            }
            TraceEvent::TaintQueued { node, zone } => self.with(&node, |node_trace| {
                let span = node_trace.step("taint.queued", &node, now.wall);
                span.set("muster.zone", zone.to_string());
                span.end_at(node_trace.last);
                node_trace.queued_at = Some(node_trace.last);
            }),
            TraceEvent::TokenTaken { node, zone, waited_for } => self.with(&node, |node_trace| {
                let since = node_trace.queued_at.take().unwrap_or(now.wall);
                let span = node_trace.step("taint.token", &node, since);
                span.set("muster.zone", zone.to_string());
                let reason = match waited_for {
                    None => "it did not wait",
                    Some(TokenWait::EvictionHold) => "the eviction hold had to end",
                    Some(TokenWait::Rate) => "the rate of the zone had no token before",
                };
                span.set("muster.wait_reason", reason.to_owned());
                span.end_at(now.wall.max(node_trace.last));
            }),
            TraceEvent::NoExecuteTainted { node, .. } => {
                self.with(&node, |node_trace| node_trace.writes_taint = true);
            }
            TraceEvent::TolerationOver { pod, node, taint, since, over } => self.with(&node, |node_trace| {
                // Toleration times run side by side: each begins with the taint, not after another pod's.
                let since = now.wall_of(since).max(after(node_trace.tainted_at));
                let span = span("toleration.over").below(node_trace.root).since(since).begin();
                span.set("muster.node", node.to_string());
                span.set("muster.pod", pod.to_string());
                span.set("muster.taint", taint);
                span.end_at(now.wall_of(over).max(since));
                node_trace.tolerated.insert(pod, since);
            }),
            TraceEvent::Recovered { node } => self.end("node.ready", &node, now),
            TraceEvent::Gone { node } => self.end("node.gone", &node, now),
        }
    }

    fn with(&mut self, node: &Name, record: impl FnOnce(&mut NodeTrace)) {
        if let Some(node_trace) = self.open.get_mut(node) {
            record(node_trace);
        }
    }

    fn end(&mut self, how: &'static str, node: &Name, now: Now) {
        if let Some(mut node_trace) = self.open.remove(node) {
            let span = node_trace.step(how, node, now.wall);
            span.end_at(node_trace.last);
        }
    }

    /// Begins the span of an action.
    pub fn begin(&mut self, planned: &PlannedAction, world: &World, now: Now) -> Span {
        if !trace::is_on() {
            return Span::NONE;
        }
        let PlannedAction { controller, subject, action, why, causes: _ } = planned;
        let (node, meta) = match subject {
            Subject::Node(name, _) => (Some(name), world.node(name.as_str()).map(|node| &node.meta)),
            Subject::Pod(key, _) => {
                let pod = world.pod(key);
                (pod.and_then(|pod| pod.spec.node_name.as_ref()), pod.map(|pod| &pod.meta))
            }
            Subject::Lease(_) => (None, None),
        };
        let node_trace = node.and_then(|node| self.open.get_mut(node));
        let origin = meta.and_then(|meta| sampled(meta.traceparent.as_deref()));
        let draft = span(name(action)).linked_to(origin);
        let span = match (node_trace, subject) {
            (None, _) | (_, Subject::Lease(_)) => draft.begin(),
            (Some(node_trace), Subject::Node(..)) => node_trace.node_action(draft, action, now).begin(),
            (Some(node_trace), Subject::Pod(key, _)) => node_trace.pod_action(draft, key, now).begin(),
        };
        if span.is_recorded() {
            if let Some(node) = node {
                span.set("muster.node", node.to_string());
            }
            if let Subject::Pod(key, _) = subject {
                span.set("muster.pod", key.to_string());
            }
            span.set("muster.controller", controller.as_str());
            span.set("muster.why", why.clone());
        }
        span
    }
}

/// Ends the span of an action with its outcome.
pub fn end(span: &Span, outcome: &Outcome) {
    match &outcome.result {
        Ok(_) => {}
        // Another writer was faster: the action was not performed, which is no failure.
        Err(Failure::Conflict | Failure::Gone) => span.set("muster.obsolete", true),
        Err(failure) => span.fail(failure.to_string()),
    }
    span.end();
}

impl NodeTrace {
    fn begin(node: &Name, seen_at: Timestamp, seen_by: Option<SignOfLife>, now: Now) -> Option<NodeTrace> {
        let root = span("renewal.last").since(seen_at).begin();
        let place = root.place().filter(|_| root.is_recorded())?;
        root.set("muster.node", node.to_string());
        root.set(
            "muster.seen_by",
            seen_by.map_or("grace".to_owned(), |sign| format!("{sign:?}").to_lowercase()),
        );
        root.end_at(seen_at);
        let mut node_trace = NodeTrace {
            root: place,
            last: seen_at,
            queued_at: None,
            writes_taint: false,
            tainted_at: seen_at,
            tolerated: HashMap::new(),
        };
        node_trace.step("deadline.passed", node, seen_at).end_at(now.wall.max(node_trace.last));
        Some(node_trace)
    }

    /// The span of an action on the node.
    fn node_action(&mut self, draft: Draft, action: &Action, now: Now) -> Draft {
        self.last = now.wall.max(after(self.last));
        let draft = draft.below(self.root).since(self.last);
        if matches!(action, Action::UpdateNode(_)) && std::mem::take(&mut self.writes_taint) {
            self.tainted_at = self.last;
            return draft.named("taint.written");
        }
        draft
    }

    /// The span of an action on one of the node's pods.
    fn pod_action(&mut self, draft: Draft, pod: &Key, now: Now) -> Draft {
        let earliest = self.tolerated.get(pod).copied().map_or(Timestamp::MIN, after);
        draft.below(self.root).since(now.wall.max(earliest))
    }

    /// The next span of the node itself, from `since` on or from just after the one before, if that is later.
    fn step(&mut self, name: &'static str, node: &Name, since: Timestamp) -> Span {
        self.last = since.max(after(self.last));
        let span = span(name).below(self.root).since(self.last).begin();
        span.set("muster.node", node.to_string());
        span
    }
}

fn span(name: &'static str) -> Draft {
    trace::span(name).of(Part::CONTROLLER)
}

/// Records that the controller saw the deletion of a pod, in the trace of that deletion.
fn record_gone(key: &Key, traceparent: Option<&str>, now: Now) {
    if let Some(removal) = sampled(traceparent) {
        let span = span("record.gone").below(removal).since(now.wall).begin();
        span.set("muster.pod", key.to_string());
        span.end_at(now.wall);
    }
}

/// The span context of a write, if it is sampled.
fn sampled(traceparent: Option<&str>) -> Option<Traceparent> {
    traceparent.and_then(Traceparent::parse).filter(|place| place.is_sampled())
}

fn after(moment: Timestamp) -> Timestamp {
    moment.checked_add(MIN_GAP).unwrap_or(Timestamp::MAX)
}

/// The name of an action's span.
fn name(action: &Action) -> &'static str {
    match action {
        Action::UpdateNodeStatus(node) => match node.condition(types::READY).map(|ready| ready.status) {
            Some(ConditionStatus::Unknown) => "node.unknown",
            _ => "node.status",
        },
        Action::UpdateNode(_) => "node.written",
        Action::DeleteNode { .. } => "node.deleted",
        Action::ReadNode => "node.read",
        Action::ReadLease => "lease.read",
        Action::WriteLease(_) => "lease.written",
        Action::UpdatePodStatus(_) => "pod.status",
        Action::EndPod { .. } => "pod.deleted",
        Action::EvictPod { .. } => "pod.evicted",
        Action::BindPod { .. } => "pod.bound",
        Action::AskCloud { .. } => "cloud.asked",
    }
}

#[cfg(test)]
pub(crate) mod tests;
