//! The traces in which pods are stopped: each begins with the write that stops the pod, and is kept until the pod is
//! gone.
//!
//! That write carries the trace of its caller. Everything that the agent does to stop the pod belongs to that trace,
//! however long it takes, and also if the agent was not running and finds the pod in a list. A write that is not
//! sampled carries no trace.

use std::collections::HashMap;

use jiff::Timestamp;
use muster_agent_core::pod_lifecycle::{Action, Outcome};
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::pod::Pod;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::trace::{self, Draft, Part, Span, Traceparent};

/// The pods that are stopped in a trace.
#[derive(Debug, Default)]
pub struct PodStopTraces {
    pods: HashMap<Uid, PodStopTrace>,
}

#[derive(Debug)]
struct PodStopTrace {
    pod: String,
    /// The write that stops the pod.
    cause: Traceparent,
    seen_at: Timestamp,
    /// Begins with the first action on the pod's processes, and ends when none is left.
    stopping: Option<Span>,
    /// By container.
    hooks: HashMap<String, Span>,
}

impl PodStopTraces {
    /// Observes an event of the pod watch.
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
            // The first write is the cause; later ones change nothing.
            self.pods.entry(uid).or_insert_with(|| PodStopTrace {
                pod: key.to_string(),
                cause,
                seen_at: now,
                stopping: None,
                hooks: HashMap::new(),
            });
        }
    }

    /// The span for an action.
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
                span("pod.released").below(trace.cause).begin()
            }
            Action::Report { .. } | Action::Delete { .. } => Span::of(trace.cause),
            Action::ReadNode { .. }
            | Action::CreateMirror { .. }
            | Action::DeleteMirror { .. }
            | Action::Start { .. } => Span::NONE,
        }
    }

    /// An action has ended. A hook has only started, and its span stays open.
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

    /// The span for logs and calls about a pod that is being stopped.
    pub fn scope(&self, uid: Option<Uid>) -> Span {
        uid.and_then(|uid| self.pods.get(&uid)).map_or(Span::NONE, |trace| Span::of(trace.cause))
    }

    /// Forgets pods that are gone.
    pub fn retain(&mut self, is_left: impl Fn(Uid) -> bool) {
        self.pods.retain(|uid, _| is_left(*uid));
    }
}

impl PodStopTrace {
    fn stopping(&mut self) -> &Span {
        self.stopping.get_or_insert_with(|| {
            let span = span("process.stopped").below(self.cause).since(self.seen_at).begin();
            span.set("muster.pod", self.pod.clone());
            span
        })
    }

    /// The span of an action that stops a container.
    fn action_span(&mut self, name: &'static str, container: &str) -> Span {
        let parent = self.stopping().place().unwrap_or(self.cause);
        let span = span(name).below(parent).begin();
        span.set("muster.container", container.to_owned());
        span
    }
}

fn span(name: &'static str) -> Draft {
    trace::span(name).of(Part::AGENT)
}

#[cfg(test)]
mod tests;
