//! Decisions as records: what a controller did or waits for, by which rule, from which values, and what came of it.
//!
//! [`causes`] is the one place where the rule and the inputs of an action are made. A controller adds a [`Cause`] to the
//! action that it plans, or a [`Note`] when it waits or saw something. The [`Recorder`] turns both into [`Decision`]s: it
//! links each to the one it follows from, drops unchanged reasons, completes actions with their outcomes, and sums up
//! what exceeds its budget. [`takeover`] continues the log of the leader before. [`convert`] has the messages.
//!
//! Nothing here knows the store: a simulation gets the same values.

use std::fmt;

use jiff::Timestamp;
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};

use crate::node_lifecycle::zone_state::ZoneKey;
use crate::plan::{ControllerName, Subject};

mod budget;
pub mod causes;
pub mod convert;
mod outcome;
mod recorder;
mod repetition;
pub mod rule;
mod sums;
pub mod takeover;
#[cfg(test)]
mod tests;

pub use recorder::{Completion, Recorder};
pub use rule::Rule;

/// What a decision is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecisionSubject {
    Node(Name),
    Pod(Key),
    Zone(ZoneKey),
    Fleet,
    /// The address blocks of a node.
    Block(Name),
    /// The drain of a node.
    Drain(Name),
}

/// Whether a controller acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecisionState {
    Acted,
    /// It does not act yet.
    Waiting,
    /// It noted a fact that later decisions rest on.
    Observed,
}

/// A value that a decision was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    pub name: &'static str,
    pub value: String,
    /// What it was held against; empty if it was held against nothing.
    pub threshold: String,
    pub unit: &'static str,
}

/// Why: a rule, the values it was applied to, and both in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub rule: Rule,
    pub reason: String,
    pub inputs: Vec<Input>,
}

/// Something that a controller waits for or saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub controller: ControllerName,
    pub subject: DecisionSubject,
    /// The uid of the record, where one is meant.
    pub uid: Option<Uid>,
    pub state: DecisionState,
    pub cause: Cause,
    /// The subject whose newest decision this follows from; `None` for its own, or that of its node.
    pub follows: Option<DecisionSubject>,
}

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionOutcome {
    pub result: DecisionResult,
    /// The version of the record after the write; 0 if nothing was written.
    pub revision: u64,
    /// Why, unless it was simply written.
    pub reason: String,
    /// When the outcome was known.
    pub at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecisionResult {
    Written,
    Conflict,
    Refused,
    Superseded,
    Failed,
    Unknown,
}

/// How many decisions one record stands for, and some of their subjects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    pub count: u64,
    pub names: Vec<String>,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its number in the log.
    pub id: u64,
    pub at: Timestamp,
    pub controller: ControllerName,
    pub subject: DecisionSubject,
    pub uid: Option<Uid>,
    /// The node of the subject, if it has one.
    pub node: Option<Name>,
    pub zone: Option<ZoneKey>,
    pub state: DecisionState,
    /// The action in a few words; empty without one.
    pub action: &'static str,
    pub cause: Cause,
    pub outcome: Option<DecisionOutcome>,
    /// Empty if the action is in no trace.
    pub trace_id: String,
    /// The decision that it follows from; 0 if from none.
    pub follows: u64,
    pub aggregate: Option<Aggregate>,
}

impl Cause {
    /// Adds a value that was held against nothing.
    #[must_use]
    pub fn input(mut self, name: &'static str, value: impl fmt::Display) -> Cause {
        self.inputs.push(Input { name, value: value.to_string(), threshold: String::new(), unit: "" });
        self
    }

    /// Adds a value with a unit.
    #[must_use]
    pub fn quantity(mut self, name: &'static str, value: impl fmt::Display, unit: &'static str) -> Cause {
        self.inputs.push(Input { name, value: value.to_string(), threshold: String::new(), unit });
        self
    }

    /// Adds a value and what it was held against.
    #[must_use]
    pub fn against(
        mut self,
        name: &'static str,
        value: impl fmt::Display,
        threshold: impl fmt::Display,
        unit: &'static str,
    ) -> Cause {
        let (value, threshold) = (value.to_string(), threshold.to_string());
        self.inputs.push(Input { name, value, threshold, unit });
        self
    }

    /// A controller waits because of this.
    pub fn waiting(self, controller: ControllerName, subject: DecisionSubject) -> Note {
        let state = DecisionState::Waiting;
        Note { controller, subject, uid: None, state, cause: self, follows: None }
    }

    /// A controller saw this.
    pub fn observed(self, controller: ControllerName, subject: DecisionSubject) -> Note {
        let state = DecisionState::Observed;
        Note { controller, subject, uid: None, state, cause: self, follows: None }
    }
}

impl Note {
    /// It follows from the newest decision about that subject.
    #[must_use]
    pub fn following(self, subject: DecisionSubject) -> Note {
        Note { follows: Some(subject), ..self }
    }

    /// It is about the record with this uid.
    #[must_use]
    pub fn of(self, uid: Option<Uid>) -> Note {
        Note { uid, ..self }
    }
}

impl DecisionSubject {
    /// What an action by this rule is about; `None` for leases, which are no subject.
    pub fn of_action(subject: &Subject, rule: Rule) -> Option<(DecisionSubject, Uid)> {
        match subject {
            Subject::Node(name, uid) => {
                let name = name.clone();
                let about = match rule {
                    Rule::AddressBlock | Rule::AddressBlockCondition => DecisionSubject::Block(name),
                    Rule::DrainResult => DecisionSubject::Drain(name),
                    _ => DecisionSubject::Node(name),
                };
                Some((about, *uid))
            }
            Subject::Pod(key, uid) => Some((DecisionSubject::Pod(key.clone()), *uid)),
            Subject::Lease(_) => None,
        }
    }
}
