//! The actions that the shell performs, and their outcomes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::pod::{Pod, PodStatus};
use muster_proto::time::Mono;

use crate::admission::Rejection;

/// One action. The actions of a plan are performed in order; those that may take long run beside the rest once
/// [`PodStates::begin`](super::PodStates::begin) was called for them.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Read the node's record again and observe it before the outcome: its labels may be newer than ours.
    ReadNode { uid: Uid },
    /// Start a container; `attempt` counts from 0.
    Start { pod: Arc<Pod>, container: String, attempt: u32 },
    /// Start the container's stop hook and leave it running; [`PodStates::hook_ended`](super::PodStates::hook_ended)
    /// reports its end.
    RunPreStop { pod: Arc<Pod>, container: String, within: Duration },
    /// Send TERM to the container.
    Term { uid: Uid, container: String },
    /// Kill the container.
    Kill { uid: Uid, container: String },
    /// Release what the pod has besides processes: cgroups, processors, files. A container without files is not listed
    /// any more.
    Release { uid: Uid, keeps_files: bool },
    /// Post a status, if the record is still at that version.
    Report { key: Key, uid: Uid, if_version: u64, status: Box<PodStatus> },
    /// Create the record that shows a static pod of this node.
    CreateMirror { uid: Uid, mirror: Box<Pod> },
    /// Delete a mirror that shows no pod of this node any more: with grace period 0, and only if it still has this uid.
    DeleteMirror { key: Key, uid: Uid },
    /// Delete the record of a pod that has stopped: with grace period 0, and only if it still has this uid.
    Delete { key: Key, uid: Uid },
}

/// The outcome of an action.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It was done. Of a Delete: accepted, but the record stays for now. Of a Start: accepted, and the runtime lists
    /// the container from now on.
    Done,
    /// The container runs.
    Started { pid: u32, at: Timestamp },
    /// The status was stored; this is the record now.
    Stored(Box<Pod>),
    /// The record is at another version; the watch will deliver it.
    Conflict,
    /// The store has no such pod, or another pod with that name.
    Gone,
    /// The pod is rejected for good.
    Refused(Rejection),
    /// It failed this time.
    Failed { message: String },
}

/// The node's own decision to stop a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTermination {
    pub reason: String,
    pub message: String,
    /// The grace period; it replaces the pod's own.
    pub grace: Duration,
    /// Whether the pod is stopped through no fault of its own: it gets the condition DisruptionTarget.
    pub is_disruption: bool,
}

/// What to do now, and when to decide again at the latest.
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
    /// Whether it is a call of the store.
    pub fn is_call(&self) -> bool {
        match self {
            Self::ReadNode { .. }
            | Self::Report { .. }
            | Self::CreateMirror { .. }
            | Self::DeleteMirror { .. }
            | Self::Delete { .. } => true,
            Self::Start { .. }
            | Self::RunPreStop { .. }
            | Self::Term { .. }
            | Self::Kill { .. }
            | Self::Release { .. } => false,
        }
    }

    /// Whether it may take long: the store may not answer, and a program may lie on a disk that does not.
    pub fn is_long(&self) -> bool {
        self.is_call() || matches!(self, Self::Start { .. })
    }

    /// The mirror that it creates or deletes.
    pub(super) fn mirror_key(&self) -> Option<Key> {
        match self {
            Self::CreateMirror { mirror, .. } => Some(Key::of(mirror.as_ref())),
            Self::DeleteMirror { key, .. } => Some(key.clone()),
            _ => None,
        }
    }

    /// The uid of the pod that it is about; `None` for a mirror that shows no pod.
    pub fn uid(&self) -> Option<Uid> {
        match self {
            Self::Start { pod, .. } | Self::RunPreStop { pod, .. } => pod.meta.uid,
            Self::DeleteMirror { .. } => None,
            Self::ReadNode { uid }
            | Self::CreateMirror { uid, .. }
            | Self::Term { uid, .. }
            | Self::Kill { uid, .. }
            | Self::Release { uid, .. }
            | Self::Report { uid, .. }
            | Self::Delete { uid, .. } => Some(*uid),
        }
    }
}

/// The action and its object, for the log.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadNode { uid } => write!(f, "read the node for pod {uid}"),
            Self::Start { pod, container, attempt } => {
                write!(f, "start {}/{container}, attempt {attempt}", pod.meta.name)
            }
            Self::RunPreStop { pod, container, .. } => {
                write!(f, "run the stop hook of {}/{container}", pod.meta.name)
            }
            Self::Term { uid, container } => write!(f, "send TERM to {uid}/{container}"),
            Self::Kill { uid, container } => write!(f, "send KILL to {uid}/{container}"),
            Self::Release { uid, .. } => write!(f, "release the resources of pod {uid}"),
            Self::Report { key, status, .. } => write!(f, "report pod {key} as {}", status.phase),
            Self::CreateMirror { mirror, .. } => write!(f, "create mirror pod {}", Key::of(mirror.as_ref())),
            Self::DeleteMirror { key, .. } => write!(f, "delete mirror pod {key}"),
            Self::Delete { key, .. } => write!(f, "delete pod {key}"),
        }
    }
}
