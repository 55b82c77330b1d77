//! The story of each node that falls, told as one trace: from the last renewal that was seen to the end of its pods.
//!
//! The controllers write [`TraceEvent`]s and actions; here they become spans. What was waited for is told when it happens, with
//! the time it took, so a story can be read while it goes on. A story begins when a deadline passes and ends when the
//! node is Ready again or gone; whether it is recorded is drawn at its beginning like that of any other trace, and one
//! that is not is forgotten at once. Every deed is a span, in a story or not, and links to the write that made its
//! record what it is.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::trace::{self, Draft, Span, Traceparent};

use muster_controller_core::node_lifecycle::liveness::SignOfLife;
use muster_controller_core::plan::{Action, Failure, Outcome, PlannedAction, Subject};
use muster_controller_core::reconciler::Observation;
use muster_controller_core::trace_event::TraceEvent;
use muster_controller_core::world::World;
use muster_proto::time::Now;

/// NodeTraces told at once. Where a whole fleet falls, the first of it tell enough.
const OPEN: usize = 1024;
/// Steps begin at least this far apart, so that whoever sorts them by time, as viewers do, keeps their order.
const APART: Duration = Duration::from_micros(1);

/// The stories under way.
#[derive(Debug, Default)]
pub struct NodeTraces {
    leading: bool,
    open: HashMap<Name, Story>,
}

#[derive(Debug)]
struct Story {
    /// The last renewal; everything else lies below it.
    root: Traceparent,
    /// When the latest step of the node itself began.
    last: Timestamp,
    queued_at: Option<Timestamp>,
    /// The next write of the node's record gives it up.
    gives_up: bool,
    /// When that write began; before that, the beginning.
    tainted_at: Timestamp,
    /// Since when each pod whose time is over was tolerated.
    tolerated: HashMap<Key, Timestamp>,
}

impl NodeTraces {
    pub fn new() -> NodeTraces {
        NodeTraces::default()
    }

    /// Takes in what is heard, before it is folded in.
    pub fn observe(&mut self, news: &Observation, now: Now) {
        if !trace::is_on() {
            return;
        }
        match news {
            Observation::Pod(WatchEvent::Gone { key, traceparent, .. }) if self.leading => {
                record_gone(key, traceparent.as_deref(), now);
            }
            Observation::Leading(leading) => {
                // Whoever leads next tells stories of their own.
                self.leading = *leading;
                self.open.clear();
            }
            Observation::Node(_)
            | Observation::Pod(_)
            | Observation::Lease(_)
            | Observation::RequiredRevisions(_)
            | Observation::Outcome(_) => {}
        }
    }

    /// Tells what a decision was made of.
    pub fn tell(&mut self, trace_events: Vec<TraceEvent>, now: Now) {
        if !trace::is_on() {
            return;
        }
        for note in trace_events {
            self.tell_one(note, now);
        }
    }

    fn tell_one(&mut self, note: TraceEvent, now: Now) {
        match note {
            TraceEvent::DeadlinePassed { node, seen_at, seen_by } => {
                if self.open.len() < OPEN
                    && let Some(story) = Story::begin(&node, now.wall_of(seen_at), seen_by, now)
                {
                    self.open.insert(node, story);
                }
            }
            TraceEvent::TaintQueued { node, zone } => self.with(&node, |story| {
                let span = story.step("taint.queued", &node, now.wall);
                span.set("muster.zone", zone.to_string());
                span.end_at(story.last);
                story.queued_at = Some(story.last);
            }),
            TraceEvent::TokenTaken { node, zone } => self.with(&node, |story| {
                let since = story.queued_at.take().unwrap_or(now.wall);
                let span = story.step("taint.token", &node, since);
                span.set("muster.zone", zone.to_string());
                span.end_at(now.wall.max(story.last));
            }),
            TraceEvent::NoExecuteTainted { node, .. } => self.with(&node, |story| story.gives_up = true),
            TraceEvent::TolerationOver { pod, node, taint, since, over } => self.with(&node, |story| {
                // Pods have their own times: they do not wait for each other, only for the taint.
                let since = now.wall_of(since).max(after(story.tainted_at));
                let span = trace::span("toleration.over").below(story.root).since(since).begin();
                span.set("muster.node", node.to_string());
                span.set("muster.pod", pod.to_string());
                span.set("muster.taint", taint);
                span.end_at(now.wall_of(over).max(since));
                story.tolerated.insert(pod, since);
            }),
            TraceEvent::Recovered { node } => self.end("node.ready", &node, now),
            TraceEvent::Gone { node } => self.end("node.gone", &node, now),
        }
    }

    fn with(&mut self, node: &Name, tell: impl FnOnce(&mut Story)) {
        if let Some(story) = self.open.get_mut(node) {
            tell(story);
        }
    }

    fn end(&mut self, how: &'static str, node: &Name, now: Now) {
        if let Some(mut story) = self.open.remove(node) {
            let span = story.step(how, node, now.wall);
            span.end_at(story.last);
        }
    }

    /// Begins the span of a deed.
    pub fn begin(&mut self, proposal: &PlannedAction, world: &World, now: Now) -> Span {
        if !trace::is_on() {
            return Span::NONE;
        }
        let PlannedAction { controller, subject, action, why } = proposal;
        let (node, meta) = match subject {
            Subject::Node(name, _) => (Some(name), world.node(name.as_str()).map(|node| &node.meta)),
            Subject::Pod(key, _) => {
                let pod = world.pod(key);
                (pod.and_then(|pod| pod.spec.node_name.as_ref()), pod.map(|pod| &pod.meta))
            }
            Subject::Lease(_) => (None, None),
        };
        let story = node.and_then(|node| self.open.get_mut(node));
        let origin = meta.and_then(|meta| recorded(meta.traceparent.as_deref()));
        let draft = trace::span(name(action)).linked_to(origin);
        let span = match (story, subject) {
            (None, _) | (_, Subject::Lease(_)) => draft.begin(),
            (Some(story), Subject::Node(..)) => story.node_deed(draft, action, now).begin(),
            (Some(story), Subject::Pod(key, _)) => story.pod_deed(draft, key, now).begin(),
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

/// Ends the span of a deed as it went.
pub fn end(span: &Span, outcome: &Outcome) {
    match &outcome.result {
        Ok(_) => {}
        // Somebody else was faster: that is no failure, and nothing was done.
        Err(Failure::Conflict | Failure::Gone) => span.set("muster.obsolete", true),
        Err(failure) => span.fail(failure.to_string()),
    }
    span.end();
}

impl Story {
    fn begin(node: &Name, heard_at: Timestamp, heard_by: Option<SignOfLife>, now: Now) -> Option<Story> {
        let root = trace::span("renewal.last").since(heard_at).begin();
        let place = root.place().filter(|_| root.is_recorded())?;
        root.set("muster.node", node.to_string());
        root.set(
            "muster.heard_by",
            heard_by.map_or("grace".to_owned(), |sign| format!("{sign:?}").to_lowercase()),
        );
        root.end_at(heard_at);
        let mut story = Story {
            root: place,
            last: heard_at,
            queued_at: None,
            gives_up: false,
            tainted_at: heard_at,
            tolerated: HashMap::new(),
        };
        story.step("deadline.passed", node, heard_at).end_at(now.wall.max(story.last));
        Some(story)
    }

    /// A deed to the node itself.
    fn node_deed(&mut self, draft: Draft, action: &Action, now: Now) -> Draft {
        self.last = now.wall.max(after(self.last));
        let draft = draft.below(self.root).since(self.last);
        if matches!(action, Action::UpdateNode(_)) && std::mem::take(&mut self.gives_up) {
            self.tainted_at = self.last;
            return draft.named("taint.written");
        }
        draft
    }

    /// A deed to one of its pods.
    fn pod_deed(&mut self, draft: Draft, pod: &Key, now: Now) -> Draft {
        let earliest = self.tolerated.get(pod).copied().map_or(Timestamp::MIN, after);
        draft.below(self.root).since(now.wall.max(earliest))
    }

    /// The next step of the node itself, from then on if that is not before the one before it.
    fn step(&mut self, name: &'static str, node: &Name, since: Timestamp) -> Span {
        self.last = since.max(after(self.last));
        let span = trace::span(name).below(self.root).since(self.last).begin();
        span.set("muster.node", node.to_string());
        span
    }
}

/// The controller has seen a pod go, whoever removed it.
fn record_gone(key: &Key, traceparent: Option<&str>, now: Now) {
    if let Some(removal) = recorded(traceparent) {
        let span = trace::span("record.gone").below(removal).since(now.wall).begin();
        span.set("muster.pod", key.to_string());
        span.end_at(now.wall);
    }
}

/// The place of a write, if anybody can see it there.
fn recorded(traceparent: Option<&str>) -> Option<Traceparent> {
    traceparent.and_then(Traceparent::parse).filter(|place| place.is_sampled())
}

fn after(moment: Timestamp) -> Timestamp {
    moment.checked_add(APART).unwrap_or(Timestamp::MAX)
}

/// What a deed is called.
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
