//! What a decision returns: actions for the shell to perform, events, and when to decide again; and the actions'
//! outcomes.
//!
//! A controller plans an action once and remembers that it is in flight. The [`Outcome`] comes back to the same
//! controller, which then drops the work, waits for the record's next version, or retries later. So no action is
//! planned twice for one state, and none is lost.

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

use crate::decision::{Cause, Decision, Note};
use crate::trace_event::TraceEvent;

/// The source of the events.
const COMPONENT: &str = "muster-controller";

/// The controller that planned an action and gets its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControllerName {
    /// Marks silent nodes Unknown and their pods not ready.
    NodeLifecycle,
    /// Writes what all controllers want of a node's metadata and spec: taints, labels, address blocks.
    NodeRecords,
    /// Evicts pods that do not tolerate a NoExecute taint of their node.
    TaintEviction,
    /// Removes pods that no agent and no client will remove.
    PodGc,
    /// Says in a node's status whether it waits for an address block.
    Ipam,
    /// Binds pods to nodes.
    Scheduler,
    /// Evicts the pods of nodes that are drained.
    Drain,
    /// Asks a cloud about the machines of nodes.
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
            ControllerName::Ipam => "ipam",
            ControllerName::Scheduler => "scheduler",
            ControllerName::Drain => "drain",
            ControllerName::CloudNodes => "cloud-nodes",
        }
    }
}

/// The record that an action is about, with its uid: not another one that has the same name later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    Node(Name, Uid),
    Pod(Key, Uid),
    /// A lease of the controller itself, which is never created a second time.
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
    /// Write the reason into the pod's status, then delete the pod.
    EndPod {
        mark: Option<EndMark>,
        /// `None` uses the pod's own; 0 removes it at once.
        grace_period_seconds: Option<i64>,
    },
    /// Ask for the pod to be evicted, if its budget allows it.
    EvictPod {
        grace_period_seconds: Option<i64>,
    },
    BindPod {
        node: Name,
    },
    /// Read the node from the store, not from the world.
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

impl Action {
    /// What it does, in a few words.
    pub const fn name(&self) -> &'static str {
        match self {
            Action::UpdateNode(_) => "update the node",
            Action::UpdateNodeStatus(_) => "update the node's status",
            Action::DeleteNode { .. } => "delete the node",
            Action::UpdatePodStatus(_) => "update the pod's status",
            Action::EndPod { .. } => "delete the pod",
            Action::EvictPod { .. } => "evict the pod",
            Action::BindPod { .. } => "bind the pod",
            Action::ReadNode => "read the node",
            Action::ReadLease => "read the lease",
            Action::WriteLease(_) => "write the lease",
            Action::AskCloud { .. } => "ask the cloud plug-in",
        }
    }
}

/// What a pod's status says about its deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndMark {
    /// The reason of the condition DisruptionTarget.
    pub reason: String,
    pub message: String,
    /// Whether the phase becomes Failed unless the pod is finished: no agent is left to report it.
    pub fail: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloudQuestion {
    Exists,
    Shutdown,
    Metadata,
}

/// An action, the controller that planned it, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedAction {
    pub controller: ControllerName,
    pub subject: Subject,
    pub action: Action,
    /// Why, in a few words, for the log and the trace.
    pub why: Cow<'static, str>,
    /// Why, for the log of decisions: one for each rule that it follows from. Empty if it only reads something.
    pub causes: Vec<Cause>,
}

/// A queue of planned actions. The shell performs the actions of a lane in order, and lanes take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    controller: ControllerName,
    of_pods: bool,
}

impl PlannedAction {
    /// Each controller has a lane, and the readiness of pods has its own: a node that becomes Unknown brings many such
    /// writes, which must not delay the nodes that become Unknown next.
    pub fn lane(&self) -> Lane {
        let is_readiness =
            self.controller == ControllerName::NodeLifecycle && matches!(self.subject, Subject::Pod(..));
        Lane { controller: self.controller, of_pods: is_readiness }
    }
}

/// The result of a planned action.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub controller: ControllerName,
    pub subject: Subject,
    pub result: Result<Answer, Failure>,
}

/// The result of an action that succeeded.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The record after the action.
    Node(Box<Node>),
    Pod(Box<Pod>),
    Lease(Box<Lease>),
    /// The cloud's answer to a yes-or-no question.
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

/// Why an action failed, as far as controllers distinguish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The record has a newer version, which the watch will deliver.
    Conflict,
    /// There is no such record, or the name belongs to another one now.
    Gone,
    /// A disruption budget does not allow it; the text names the budget.
    Budget { message: String, retry_after: Option<Duration> },
    /// A retry would fail too.
    Refused(String),
    /// A retry may succeed.
    Later(String),
    /// It is not known whether it was done.
    Unknown(String),
}

/// What to do now, and when to decide again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<PlannedAction>,
    pub events: Vec<Event>,
    /// The steps that led to the actions.
    pub trace_events: Vec<TraceEvent>,
    /// What controllers wait for and saw, until it is among the decisions.
    pub notes: Vec<PlannedNote>,
    /// The decisions that can be recorded now: those of actions with a known outcome, and the notes.
    pub decisions: Vec<Decision>,
    pub wake_at: Option<Mono>,
}

/// A note, and how many actions were planned before it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedNote {
    pub after: usize,
    pub note: Note,
}

impl Plan {
    pub fn act(
        &mut self,
        controller: ControllerName,
        subject: Subject,
        action: Action,
        why: impl Into<Cow<'static, str>>,
        causes: impl IntoIterator<Item = Cause>,
    ) {
        let causes = causes.into_iter().collect();
        self.actions.push(PlannedAction { controller, subject, action, why: why.into(), causes });
    }

    /// Adds what a controller waits for or saw.
    pub fn note(&mut self, note: Note) {
        self.notes.push(PlannedNote { after: self.actions.len(), note });
    }

    /// Adds an event. Events may be lost, so nothing depends on them.
    pub fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Adds a trace event. Nothing depends on trace events.
    pub fn trace(&mut self, event: TraceEvent) {
        self.trace_events.push(event);
    }

    /// Asks for another decision at that time at the latest.
    pub fn wake_by(&mut self, at: Mono) {
        self.wake_at = Some(self.wake_at.map_or(at, |earliest| earliest.min(at)));
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
            Failure::Conflict => f.write_str("the record has a newer version"),
            Failure::Gone => f.write_str("the record is gone"),
            Failure::Budget { message, .. } => f.write_str(message),
            Failure::Refused(message) | Failure::Later(message) | Failure::Unknown(message) => {
                f.write_str(message)
            }
        }
    }
}

/// The uid of a record of the world.
///
/// # Panics
/// If it has none. The world applies no such record.
pub fn uid(meta: &Metadata) -> Uid {
    meta.uid.expect("the world holds no record without a uid")
}

/// An event about a record.
pub fn event<R: Record>(record: &R, kind: EventType, reason: &str, message: impl Into<String>) -> Event {
    Event::about(ObjectReference::to(record), kind, reason, message, COMPONENT)
}

/// An event about a node whose record is gone.
pub fn node_event(name: &Name, uid: Uid, kind: EventType, reason: &str, message: impl Into<String>) -> Event {
    let involved = ObjectReference { kind: Kind::Node, namespace: None, name: name.clone(), uid: Some(uid) };
    Event::about(involved, kind, reason, message, COMPONENT)
}
