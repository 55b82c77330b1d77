//! Why a pod has no node yet.

use std::fmt;

use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use crate::plan::uid;
use crate::scheduler::fit_error::FitError;
use crate::scheduler::nomination::listed;
use crate::scheduler::pending_pods::{PendingPod, PendingState};
use crate::scheduler::{Scheduler, needs_node};

/// How far the scheduler has come with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulingStatus {
    Bound {
        node: Name,
    },
    /// The pod is terminating or finished: it is not scheduled.
    Finished,
    /// The pod is not scheduled before these gates are removed.
    Gated {
        gates: Vec<String>,
    },
    /// The pod is tried at the next decision, in the order of the queue.
    Queued,
    /// No node fits.
    Unschedulable {
        verdict: FitError,
        /// When all nodes were last checked.
        tried_at: Mono,
        again_at: Mono,
    },
    /// The request to bind the pod was sent to the store.
    Binding {
        node: Name,
    },
    /// It is not known whether the store has bound the pod.
    BindUnconfirmed {
        node: Name,
        why: String,
        again_at: Mono,
    },
    /// Pods of lower priority are being displaced for the pod.
    Nominated {
        node: Name,
        victims: String,
        again_at: Mono,
    },
    /// The store refused to bind the pod.
    BindRefused {
        why: String,
        again_at: Mono,
    },
}

impl SchedulingStatus {
    /// When the pod is tried again even if nothing changes before.
    pub fn again_at(&self) -> Option<Mono> {
        match self {
            SchedulingStatus::Unschedulable { again_at, .. }
            | SchedulingStatus::BindUnconfirmed { again_at, .. }
            | SchedulingStatus::BindRefused { again_at, .. }
            | SchedulingStatus::Nominated { again_at, .. } => Some(*again_at),
            _ => None,
        }
    }
}

/// The reason, in sentences.
impl fmt::Display for SchedulingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchedulingStatus::Bound { node } => write!(f, "The pod is bound to node {node}."),
            SchedulingStatus::Finished => {
                f.write_str("The pod is terminating or finished, so it is not scheduled.")
            }
            SchedulingStatus::Gated { gates } => {
                let gates = gates.join(", ");
                write!(f, "The pod is not scheduled before its scheduling gates are removed: {gates}.")
            }
            SchedulingStatus::Queued => f.write_str("The pod is queued and tried at the next decision."),
            SchedulingStatus::Unschedulable { verdict, .. } => verdict.fmt(f),
            SchedulingStatus::Binding { node } => write!(f, "The pod is being bound to node {node}."),
            SchedulingStatus::BindUnconfirmed { node, why, .. } => {
                write!(f, "It is not known whether the pod was bound to node {node}: {why}.")
            }
            SchedulingStatus::Nominated { node, victims, .. } => write!(
                f,
                "The pod displaces {victims} on node {node}, and is bound there when they have left."
            ),
            SchedulingStatus::BindRefused { why, .. } => write!(f, "The pod could not be bound: {why}."),
        }
    }
}

impl Scheduler {
    /// How far the scheduler has come with the pod.
    pub fn explain_pod(&self, pod: &Pod) -> SchedulingStatus {
        if let Some(node) = &pod.spec.node_name {
            return SchedulingStatus::Bound { node: node.clone() };
        }
        if !pod.spec.scheduling_gates.is_empty() {
            return SchedulingStatus::Gated { gates: pod.spec.scheduling_gates.clone() };
        }
        if !needs_node(pod) {
            return SchedulingStatus::Finished;
        }
        self.pending_pod(&Key::of(pod), uid(&pod.meta))
            .map_or(SchedulingStatus::Queued, |pending| self.status(&Key::of(pod), pending))
    }

    fn status(&self, key: &Key, pod: &PendingPod) -> SchedulingStatus {
        match &pod.state {
            PendingState::Queued { class, .. } | PendingState::Reporting { class } => self
                .queue()
                .failure(*class)
                .map_or(SchedulingStatus::Queued, |failed| SchedulingStatus::Unschedulable {
                    verdict: failed.fit_error.clone(),
                    tried_at: failed.at,
                    again_at: self.queue().retry_at(*class).unwrap_or(failed.at),
                }),
            PendingState::Binding { node, .. } => SchedulingStatus::Binding { node: node.clone() },
            PendingState::Uncertain { node, retry_at, why, .. } => SchedulingStatus::BindUnconfirmed {
                node: node.clone(),
                why: why.clone(),
                again_at: *retry_at,
            },
            PendingState::Assumed { node, .. } => SchedulingStatus::Bound { node: node.clone() },
            PendingState::Nominated(nomination) => SchedulingStatus::Nominated {
                node: nomination.node.clone(),
                victims: listed(&nomination.victims, key),
                again_at: nomination.look_at,
            },
            PendingState::Withdrawn => SchedulingStatus::Queued,
            PendingState::BackingOff { until, why } => {
                SchedulingStatus::BindRefused { why: why.clone(), again_at: *until }
            }
        }
    }
}
