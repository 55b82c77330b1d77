//! Why something is done, waits or is refused, as the room that decides it would say.

use std::collections::BTreeMap;
use std::fmt;

use muster_proto::time::Mono;

pub mod cloud;
pub mod fleet;
pub mod ipam;
pub mod node;
pub mod pod;
pub mod scheduling;

/// One thing that is done, waits or is refused for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What: `AssignCidr`, `DeleteNode` and so on, as the schema lists them.
    pub action: &'static str,
    /// Done, Due, Waiting, Queued, Slowed, Paused, Refused or None.
    pub state: &'static str,
    /// Why, in a sentence.
    pub reason: String,
    /// What the decision was made from, by name.
    pub inputs: BTreeMap<String, String>,
    /// The earliest time it can happen; `None` when it will not by itself.
    pub earliest: Option<Mono>,
}

impl Explanation {
    pub fn new(action: &'static str, state: &'static str, reason: impl Into<String>) -> Explanation {
        Explanation { action, state, reason: reason.into(), inputs: BTreeMap::new(), earliest: None }
    }

    /// With something the decision was made from.
    #[must_use]
    pub fn input(mut self, name: &str, value: impl fmt::Display) -> Explanation {
        self.inputs.insert(name.to_owned(), value.to_string());
        self
    }

    /// With the earliest time it can happen.
    #[must_use]
    pub fn earliest(self, at: impl Into<Option<Mono>>) -> Explanation {
        Explanation { earliest: at.into(), ..self }
    }
}
