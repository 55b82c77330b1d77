//! Why a pod has no node yet.

use std::fmt;

use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use crate::plan::uid;
use crate::scheduler::stage::{Entry, Stage};
use crate::scheduler::verdict::Verdict;
use crate::scheduler::{Scheduler, seeks_node};

/// Where a pod stands on its way to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has a node.
    Placed { node: Name },
    /// It is ending or has ended: no node is looked for.
    Over,
    /// It is not to be placed before these gates are gone.
    Gated { gates: Vec<String> },
    /// It is tried at the next decision, in its turn.
    Queued,
    /// No node will do.
    Unschedulable {
        verdict: Verdict,
        /// When all nodes were last looked at.
        tried_at: Mono,
        again_at: Mono,
    },
    /// The store is being asked to bind it.
    Binding { node: Name },
    /// It is not known whether the store has bound it.
    Doubted { node: Name, why: String, again_at: Mono },
    /// The store would not bind it.
    TurnedAway { why: String, again_at: Mono },
}

impl Standing {
    /// When it is looked at again even if nothing changes before.
    pub fn again_at(&self) -> Option<Mono> {
        match self {
            Standing::Unschedulable { again_at, .. }
            | Standing::Doubted { again_at, .. }
            | Standing::TurnedAway { again_at, .. } => Some(*again_at),
            _ => None,
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Placed { node } => write!(f, "it is on node {node}"),
            Standing::Over => f.write_str("it is ending or has ended, so no node is looked for"),
            Standing::Gated { gates } => write!(f, "it has scheduling gates: {}", gates.join(", ")),
            Standing::Queued => f.write_str("it is about to be tried"),
            Standing::Unschedulable { verdict, .. } => verdict.fmt(f),
            Standing::Binding { node } => write!(f, "it is being bound to node {node}"),
            Standing::Doubted { node, why, .. } => {
                write!(f, "it is not known whether it is bound to node {node}: {why}")
            }
            Standing::TurnedAway { why, .. } => write!(f, "it could not be bound: {why}"),
        }
    }
}

impl Scheduler {
    /// Why the pod waits for a node, if it does.
    pub fn explain_pod(&self, pod: &Pod) -> Standing {
        if let Some(node) = &pod.spec.node_name {
            return Standing::Placed { node: node.clone() };
        }
        if !pod.spec.scheduling_gates.is_empty() {
            return Standing::Gated { gates: pod.spec.scheduling_gates.clone() };
        }
        if !seeks_node(pod) {
            return Standing::Over;
        }
        self.waiting.get(&Key::of(pod), uid(&pod.meta)).map_or(Standing::Queued, |entry| self.standing(entry))
    }

    fn standing(&self, entry: &Entry) -> Standing {
        match &entry.stage {
            Stage::Lined { line, .. } | Stage::Telling { line } => {
                self.queue.why(*line).map_or(Standing::Queued, |failed| Standing::Unschedulable {
                    verdict: failed.verdict.clone(),
                    tried_at: failed.at,
                    again_at: self.queue.again_at(*line).unwrap_or(failed.at),
                })
            }
            Stage::Binding { node, .. } => Standing::Binding { node: node.clone() },
            Stage::Doubted { node, again_at, why, .. } => {
                Standing::Doubted { node: node.clone(), why: why.clone(), again_at: *again_at }
            }
            Stage::Bound { node, .. } => Standing::Placed { node: node.clone() },
            Stage::Resting { until, why } => Standing::TurnedAway { why: why.clone(), again_at: *until },
        }
    }
}
