//! What is to be done: proposals for the shell to perform, and what came of them.
//!
//! A room proposes an action once and remembers that it did; the [`Outcome`] comes back to the same controller, which then
//! knows whether to forget the matter, wait for the record's next version, or try again later. So nothing is proposed
//! twice for one state, and nothing is forgotten.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use muster_proto::event::{Event, EventType, ObjectReference};
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::meta::Metadata;
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::{Kind, Record};
use muster_proto::time::Mono;

use crate::trace_event::TraceEvent;

/// Who tells of events.
const COMPONENT: &str = "muster-controller";

/// Who proposes, and hears what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControllerName {
    /// Silent nodes turn Unknown; their pods are marked.
    NodeLifecycle,
    /// Taints, labels, address blocks: what a node's record should say.
    NodeRecords,
    /// Pods that a taint drives off.
    TaintEviction,
    /// Pods that nobody else will ever remove.
    PodGc,
    /// Pods that want a node.
    Scheduler,
    /// Nodes that are to be emptied.
    Drain,
    /// Machines that a cloud knows of.
    CloudNodes,
}

impl ControllerName {
    /// The name as logs, traces and documents write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            ControllerName::NodeLifecycle => "node-lifecycle",
            ControllerName::NodeRecords => "node-records",
            ControllerName::TaintEviction => "taint-eviction",
            ControllerName::PodGc => "pod-gc",
            ControllerName::Scheduler => "scheduler",
            ControllerName::Drain => "drain",
            ControllerName::CloudNodes => "cloud-nodes",
        }
    }
}

/// Which record an action is about: this bearer of the name and no other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    Node(Name, Uid),
    Pod(Key, Uid),
    /// A lease of our own, which has no namesakes.
    Lease(Key),
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write metadata and spec, at the version the record carries.
    UpdateNode(Box<Node>),
    /// Write the status, at the version the record carries.
    UpdateNodeStatus(Box<Node>),
    /// Delete it, unless it has been written since that version.
    DeleteNode {
        version: u64,
    },
    /// Write the status, at the version the record carries.
    UpdatePodStatus(Box<Pod>),
    /// TraceEvent in the pod's status why it ends, then delete it.
    EndPod {
        mark: Option<EndMark>,
        /// `None` leaves it to the pod; 0 removes it at once.
        grace_period_seconds: Option<i64>,
    },
    /// Ask for the pod to be evicted, if its budget allows it.
    EvictPod {
        grace_period_seconds: Option<i64>,
    },
    BindPod {
        node: Name,
    },
    /// Read the node from the store itself, past everything we remember.
    ReadNode,
    ReadLease,
    /// Write it at the version it carries, or create it if it has none.
    WriteLease(Box<Lease>),
    /// Ask the cloud about the node's machine.
    AskCloud {
        question: CloudQuestion,
        provider_id: String,
    },
}

/// What a pod's status says about its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndMark {
    /// Of the condition DisruptionTarget.
    pub reason: String,
    pub message: String,
    /// Whether the phase becomes Failed unless the pod is finished: nobody is left who could report.
    pub fail: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloudQuestion {
    Exists,
    Shutdown,
    Metadata,
}

/// An action, who wants it, and what made them want it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedAction {
    pub controller: ControllerName,
    pub subject: Subject,
    pub action: Action,
    /// Why, in a few words, for the log and the trace.
    pub why: Cow<'static, str>,
}

/// What came of a proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub controller: ControllerName,
    pub subject: Subject,
    pub result: Result<Answer, Failure>,
}

/// A success.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The record as it now is.
    Node(Box<Node>),
    Pod(Box<Pod>),
    Lease(Box<Lease>),
    /// The cloud's yes or no.
    Cloud(bool),
    Machine(Box<CloudMachine>),
}

/// What the cloud knows of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudMachine {
    pub provider_id: String,
    pub instance_type: String,
    pub zone: String,
    pub region: String,
    pub addresses: Vec<muster_proto::node::NodeAddress>,
}

/// A failure, as far as the proposer cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The record has moved on: its next version is on its way.
    Conflict,
    /// There is no such record, or it is another one by now.
    Gone,
    /// A budget is in the way; the text names it.
    Budget { message: String, retry_after: Option<Duration> },
    /// It will not work however often it is tried.
    Refused(String),
    /// It may work later.
    Later(String),
    /// Nobody knows whether it happened.
    Unknown(String),
}

/// What to do now, and when to look again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<PlannedAction>,
    pub events: Vec<Event>,
    /// What the proposals come from.
    pub trace_events: Vec<TraceEvent>,
    pub wake_at: Option<Mono>,
}

impl Plan {
    pub fn act(
        &mut self,
        controller: ControllerName,
        subject: Subject,
        action: Action,
        why: impl Into<Cow<'static, str>>,
    ) {
        self.actions.push(PlannedAction { controller, subject, action, why: why.into() });
    }

    /// Tells of something that happened. Nothing depends on its being heard.
    pub fn tell(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Notes a step of a story. Nothing depends on its being told.
    pub fn trace(&mut self, event: TraceEvent) {
        self.trace_events.push(event);
    }

    /// Looks again at that moment at the latest.
    pub fn wake_by(&mut self, moment: Mono) {
        self.wake_at = Some(self.wake_at.map_or(moment, |at| at.min(moment)));
    }
}

impl Subject {
    pub fn of_node(node: &Node) -> Subject {
        Subject::Node(node.meta.name.clone(), uid(&node.meta))
    }

    pub fn of_pod(pod: &Pod) -> Subject {
        Subject::Pod(Key::of(pod), uid(&pod.meta))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Node(name, _) => write!(f, "Node {name}"),
            Subject::Pod(key, _) => write!(f, "Pod {key}"),
            Subject::Lease(key) => write!(f, "Lease {key}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Conflict => f.write_str("the record has moved on"),
            Failure::Gone => f.write_str("the record is gone"),
            Failure::Budget { message, .. } => f.write_str(message),
            Failure::Refused(message) | Failure::Later(message) | Failure::Unknown(message) => {
                f.write_str(message)
            }
        }
    }
}

/// The identity of a record that the world holds.
///
/// # Panics
/// If it has none: the world takes in no such record.
pub fn uid(meta: &Metadata) -> Uid {
    meta.uid.expect("the world holds no record without a uid")
}

/// Something that happened to a record.
pub fn event<R: Record>(record: &R, kind: EventType, reason: &str, message: impl Into<String>) -> Event {
    Event::about(ObjectReference::to(record), kind, reason, message, COMPONENT)
}

/// Something that happened to a node of which only the name is left.
pub fn node_event(name: &Name, uid: Uid, kind: EventType, reason: &str, message: impl Into<String>) -> Event {
    let involved = ObjectReference { kind: Kind::Node, namespace: None, name: name.clone(), uid: Some(uid) };
    Event::about(involved, kind, reason, message, COMPONENT)
}
