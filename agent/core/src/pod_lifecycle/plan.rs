//! What the shell is asked to do, and what it answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::pod::{Pod, PodStatus};
use muster_proto::time::Mono;

use crate::admission::Rejection;

/// One thing to do. Actions of a plan are performed in their order; those that may take long go on beside the rest once
/// [`PodStates::begin`](super::PodStates::begin) knows of them.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Read the node's record again and show it to the pod_states before the outcome: its labels may be newer
    /// than ours.
    ReadNode { uid: Uid },
    /// Start a container; `attempt` counts from 0.
    Start { pod: Arc<Pod>, container: String, attempt: u32 },
    /// Begin the container's stop hook and leave it running; [`PodStates::hook_ended`](super::PodStates::hook_ended)
    /// tells of its end.
    RunPreStop { pod: Arc<Pod>, container: String, within: Duration },
    /// Ask the container to stop.
    Term { uid: Uid, container: String },
    /// Stop the container.
    Kill { uid: Uid, container: String },
    /// Give back what the pod held besides processes: groups, processors, files. Without its files its containers are
    /// not listed any more.
    Release { uid: Uid, keeps_files: bool },
    /// Post a status, if the record is still at that version.
    Report { key: Key, uid: Uid, if_version: u64, status: Box<PodStatus> },
    /// Remove the record of a pod that has ended: grace 0, and only if it still has this uid.
    Delete { key: Key, uid: Uid },
}

/// What came of an action.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It was done. Of a Delete: accepted, but the record stays for now. Of a Start: accepted, and the
    /// runtime lists the container from now on.
    Done,
    /// The container runs.
    Started { pid: u32, at: Timestamp },
    /// The status was stored; this is the record now.
    Stored(Box<Pod>),
    /// The record is at another version by now; it will be seen in time.
    Conflict,
    /// The store has no such pod, or another one of that name.
    Gone,
    /// The pod must not run here, ever.
    Refused(Rejection),
    /// It could not be done this time.
    Failed { message: String },
}

/// The node's own decision to end a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTermination {
    pub reason: String,
    pub message: String,
    /// The longest it may take; the pod's own grace is not consulted any more.
    pub grace: Duration,
    /// Whether the pod ends through no fault of its own: it gets the condition DisruptionTarget.
    pub is_disruption: bool,
}

/// What to do now, and when to look again at the latest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub wake_at: Option<Mono>,
}

impl Plan {
    pub(super) fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn wake_by(&mut self, at: Mono) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}

impl Action {
    /// Whether it takes the store to do it.
    pub fn is_call(&self) -> bool {
        matches!(self, Self::ReadNode { .. } | Self::Report { .. } | Self::Delete { .. })
    }

    /// Whether it may take long: the store need not answer, and a program may lie on a disk that does not.
    pub fn is_long(&self) -> bool {
        self.is_call() || matches!(self, Self::Start { .. })
    }

    /// The pod this is about; `None` only for a record that no store ever held.
    pub fn uid(&self) -> Option<Uid> {
        match self {
            Self::Start { pod, .. } | Self::RunPreStop { pod, .. } => pod.meta.uid,
            Self::ReadNode { uid }
            | Self::Term { uid, .. }
            | Self::Kill { uid, .. }
            | Self::Release { uid, .. }
            | Self::Report { uid, .. }
            | Self::Delete { uid, .. } => Some(*uid),
        }
    }
}

/// The deed and what it is done to, for the log.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadNode { uid } => write!(f, "read the node for pod {uid}"),
            Self::Start { pod, container, attempt } => {
                write!(f, "start {}/{container}, attempt {attempt}", pod.meta.name)
            }
            Self::RunPreStop { pod, container, .. } => {
                write!(f, "run the hook of {}/{container}", pod.meta.name)
            }
            Self::Term { uid, container } => write!(f, "send TERM to {uid}/{container}"),
            Self::Kill { uid, container } => write!(f, "send KILL to {uid}/{container}"),
            Self::Release { uid, .. } => write!(f, "release what pod {uid} held"),
            Self::Report { key, status, .. } => write!(f, "report pod {key} as {}", status.phase),
            Self::Delete { key, .. } => write!(f, "delete pod {key}"),
        }
    }
}
