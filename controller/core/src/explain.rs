//! The answers to "why": the state of each action that a controller decides, with its reason.
//!
//! Everything is computed on request from the state of the controllers that decide, so an explanation cannot differ
//! from what will be done. [`convert`] turns the types into messages.

use std::collections::BTreeMap;
use std::fmt;

use muster_proto::time::Mono;

pub mod cloud;
pub mod convert;
pub mod eviction;
pub mod fleet;
pub mod ipam;
pub mod node;
pub mod pod;
pub mod scheduling;

/// The summary of an explanation while the controller decides nothing.
const NOTHING_DECIDED: &str = "This controller decides nothing now; the state of the fleet says why.";

/// What an explanation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExplanationAction {
    /// Setting a node's Ready to Unknown because the node is silent.
    MarkUnknown,
    /// Adding a taint to a node.
    Taint,
    /// Removing a taint from a node.
    Untaint,
    /// Scheduling pods onto a node, or a pod onto a node.
    Schedule,
    /// Allocating an address block to a node.
    AssignCidr,
    Drain,
    /// Deleting a node because its machine does not exist.
    DeleteNode,
    /// Removing pods whose node is gone or out of service.
    PodGc,
    /// Displacing a pod for one of higher priority.
    Preempt,
}

/// How far an action has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExplanationState {
    /// Nothing is planned.
    None,
    /// The store has it.
    Done,
    /// It is being performed.
    Due,
    /// It is performed after a time or an event that the reason names.
    Waiting,
    Queued,
    /// It is in a queue that moves at a reduced rate.
    Slowed,
    /// It is suspended until the condition that the reason names has changed.
    Paused,
    /// It is not allowed.
    Refused,
}

/// Whether a pod may stay on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvictionDecision {
    Keep,
    Evict,
    /// The pod is already being deleted.
    Terminating,
}

/// One action for a node or a pod, and the reason for its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub action: ExplanationAction,
    pub state: ExplanationState,
    /// The reason, in a sentence.
    pub reason: String,
    /// The values that the decision was made from, by name.
    pub inputs: BTreeMap<String, String>,
    /// The earliest time of the action; `None` when no time is known.
    pub earliest: Option<Mono>,
    /// The newest recorded decision that this follows from; 0 if there is none.
    pub decision: u64,
}

impl Explanation {
    pub fn new(action: ExplanationAction, state: ExplanationState, reason: impl Into<String>) -> Explanation {
        Explanation {
            action,
            state,
            reason: reason.into(),
            inputs: BTreeMap::new(),
            earliest: None,
            decision: 0,
        }
    }

    /// Adds a value that the decision was made from.
    #[must_use]
    pub fn input(mut self, name: &str, value: impl fmt::Display) -> Explanation {
        self.inputs.insert(name.to_owned(), value.to_string());
        self
    }

    /// Sets the decision that this follows from.
    #[must_use]
    pub fn following(self, decision: u64) -> Explanation {
        Explanation { decision, ..self }
    }

    /// Sets the earliest time of the action.
    #[must_use]
    pub fn earliest(self, at: impl Into<Option<Mono>>) -> Explanation {
        Explanation { earliest: at.into(), ..self }
    }
}
