//! The traces that pods end in: taken from the change that ends a pod, kept until nothing of it is left.
//!
//! Whoever ended the pod did so in a trace of theirs, and the store's change carries it here. All that the agent then
//! does about the pod belongs to that trace, however long it takes, and also if the agent was away and finds the pod on a
//! list. A change that is not recorded carries none.

use std::collections::HashMap;

use jiff::Timestamp;
use muster_agent_core::pod_lifecycle::{Action, Outcome};
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::pod::Pod;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::trace::{self, Span, Traceparent};

/// The pods that end in a trace.
#[derive(Debug, Default)]
pub struct PodStopTraces {
    pods: HashMap<Uid, PodStopTrace>,
}

#[derive(Debug)]
struct PodStopTrace {
    pod: String,
    /// The write that ends the pod.
    cause: Traceparent,
    seen_at: Timestamp,
    /// Begun with the first thing that is done to its processes, ended when none is left.
    stopping: Option<Span>,
    /// By container.
    hooks: HashMap<String, Span>,
}

impl PodStopTraces {
    /// Takes in what the store tells of a pod.
    pub fn observe(&mut self, event: &WatchEvent<Pod>, now: Timestamp) {
        let (uid, key, traceparent) = match event {
            WatchEvent::Applied { record } if record.meta.is_deleting() => {
                (record.meta.uid, Key::of(record), &record.meta.traceparent)
            }
            WatchEvent::Gone { key, uid, traceparent, .. } => (*uid, key.clone(), traceparent),
            _ => return,
        };
        let cause = traceparent.as_deref().and_then(Traceparent::parse).filter(|cause| cause.is_sampled());
        if let (Some(uid), Some(cause)) = (uid, cause) {
            // What comes after the first word changes nothing: the pod ends because of that.
            self.pods.entry(uid).or_insert_with(|| PodStopTrace {
                pod: key.to_string(),
                cause,
                seen_at: now,
                stopping: None,
                hooks: HashMap::new(),
            });
        }
    }

    /// The span to perform an action in.
    pub fn begin(&mut self, action: &Action) -> Span {
        let Some(trace) = action.uid().and_then(|uid| self.pods.get_mut(&uid)) else { return Span::NONE };
        match action {
            Action::RunPreStop { container, .. } => {
                let span = trace.action_span("hook.run", container);
                trace.hooks.insert(container.clone(), span.clone());
                span
            }
            Action::Term { container, .. } => trace.action_span("process.term", container),
            Action::Kill { container, .. } => trace.action_span("process.kill", container),
            Action::Release { .. } => {
                trace.stopping().end();
                trace::span("pod.released").below(trace.cause).begin()
            }
            Action::Report { .. } | Action::Delete { .. } => Span::of(trace.cause),
            Action::ReadNode { .. } | Action::Start { .. } => Span::NONE,
        }
    }

    /// An action came to its end, but for a hook: that goes on.
    pub fn end(&mut self, span: &Span, action: &Action, outcome: &Outcome) {
        if let Outcome::Failed { message } = outcome {
            span.fail(message.clone());
        } else if matches!(action, Action::RunPreStop { .. }) {
            return;
        }
        span.end();
    }

    pub fn hook_ended(&mut self, uid: Uid, container: &str) {
        let hook = self.pods.get_mut(&uid).and_then(|trace| trace.hooks.remove(container));
        hook.unwrap_or_default().end();
    }

    /// What is said of a pod from now on is said in its trace.
    pub fn scope(&self, uid: Option<Uid>) -> Span {
        uid.and_then(|uid| self.pods.get(&uid)).map_or(Span::NONE, |trace| Span::of(trace.cause))
    }

    /// Forgets the pods of which nothing is left.
    pub fn retain(&mut self, is_left: impl Fn(Uid) -> bool) {
        self.pods.retain(|uid, _| is_left(*uid));
    }
}

impl PodStopTrace {
    fn stopping(&mut self) -> &Span {
        self.stopping.get_or_insert_with(|| {
            let span = trace::span("process.stopped").below(self.cause).since(self.seen_at).begin();
            span.set("muster.pod", self.pod.clone());
            span
        })
    }

    /// Something that is done to a container to trace it.
    fn action_span(&mut self, name: &'static str, container: &str) -> Span {
        let parent = self.stopping().place().unwrap_or(self.cause);
        let span = trace::span(name).below(parent).begin();
        span.set("muster.container", container.to_owned());
        span
    }
}

#[cfg(test)]
mod tests;
