//! A record as its callers see it: a register with versions, which can be created, updated, deleted and read.

use std::collections::HashMap;
use std::fmt;

/// What was asked of a record. Each value is written by one call only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Create {
        value: u64,
    },
    /// With the version that the record must have; 0 is any.
    Update {
        expected: u64,
        value: u64,
    },
    Delete {
        expected: u64,
    },
    /// Also the part of a list that is about this record.
    Read,
}

/// What the caller learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write was done at this version.
    Written(u64),
    Found {
        version: u64,
        value: u64,
    },
    /// There is no such record.
    Absent,
    /// A record that was to be created exists.
    Exists,
    /// The record has another version than the expected one.
    Conflict,
    /// The write was done, or was not, or will be.
    Unknown,
}

/// One call, with the times at which its caller began and ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub client: usize,
    pub call: Call,
    pub answer: Answer,
    pub invoked: u64,
    pub returned: u64,
}

/// The time of what has not ended.
pub const NEVER: u64 = u64::MAX;

impl Operation {
    /// The value that it writes.
    pub fn value(&self) -> Option<u64> {
        match self.call {
            Call::Create { value } | Call::Update { value, .. } => Some(value),
            Call::Delete { .. } | Call::Read => None,
        }
    }

    /// The version that it wrote.
    pub fn version(&self) -> Option<u64> {
        match self.answer {
            Answer::Written(version) => Some(version),
            _ => None,
        }
    }

    /// Whether it may never have been done.
    pub fn is_open(&self) -> bool {
        self.answer == Answer::Unknown
    }

    /// Whether it leaves every record as it is.
    pub fn is_read_only(&self) -> bool {
        !matches!(self.answer, Answer::Written(_) | Answer::Unknown)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |micros: u64| micros as f64 / 1000.0;
        match self.returned {
            NEVER => write!(f, "{:>11.3} ..         ms", millis(self.invoked))?,
            returned => write!(f, "{:>11.3} .. {:>11.3} ms", millis(self.invoked), millis(returned))?,
        }
        write!(f, "  client {}: ", self.client)?;
        let expecting = |f: &mut fmt::Formatter<'_>, expected: u64| match expected {
            0 => Ok(()),
            expected => write!(f, " if its version is {expected}"),
        };
        match self.call {
            Call::Create { value } => write!(f, "create it with {value}")?,
            Call::Update { expected, value } => {
                write!(f, "update it to {value}")?;
                expecting(f, expected)?;
            }
            Call::Delete { expected } => {
                f.write_str("delete it")?;
                expecting(f, expected)?;
            }
            Call::Read => f.write_str("read it")?,
        }
        match self.answer {
            Answer::Written(version) => write!(f, " -> done at version {version}"),
            Answer::Found { version, value } => write!(f, " -> {value} at version {version}"),
            Answer::Absent => f.write_str(" -> there is none"),
            Answer::Exists => f.write_str(" -> it exists"),
            Answer::Conflict => f.write_str(" -> it has another version"),
            Answer::Unknown => f.write_str(" -> no answer"),
        }
    }
}

/// A record at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// Not known: the history begins in the middle.
    Any,
    Absent,
    /// Without a version if nobody ever saw it.
    Present {
        version: Option<u64>,
        value: u64,
    },
}

/// A record, and the newest version that was seen so far: versions only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub content: Content,
    pub newest: u64,
}

impl State {
    /// Before anything was written.
    pub const NEW: State = State { content: Content::Absent, newest: 0 };
    /// In the middle of a history.
    pub const ANY: State = State { content: Content::Any, newest: 0 };

    /// The state after an operation, if it can be the next one.
    pub fn after(self, operation: &Operation) -> Option<State> {
        let content = match (operation.call, operation.answer) {
            (Call::Create { value }, Answer::Written(_) | Answer::Unknown) => match self.content {
                Content::Absent | Content::Any => Content::Present { version: operation.version(), value },
                Content::Present { .. } => return None,
            },
            (Call::Update { expected, value }, Answer::Written(_) | Answer::Unknown) => {
                if !self.may_have(expected) {
                    return None;
                }
                Content::Present { version: operation.version(), value }
            }
            (Call::Delete { expected }, Answer::Written(_) | Answer::Unknown) => {
                if !self.may_have(expected) {
                    return None;
                }
                Content::Absent
            }
            (Call::Create { .. }, Answer::Exists) => match self.content {
                Content::Absent => return None,
                content => content,
            },
            (Call::Update { expected, .. } | Call::Delete { expected }, Answer::Conflict) => {
                match self.content {
                    Content::Absent => return None,
                    Content::Present { version, .. } if version == Some(expected) => return None,
                    content => content,
                }
            }
            (Call::Update { .. } | Call::Delete { .. } | Call::Read, Answer::Absent) => match self.content {
                Content::Present { .. } => return None,
                Content::Absent | Content::Any => Content::Absent,
            },
            (Call::Read, Answer::Found { version, value }) => {
                let found = Content::Present { version: Some(version), value };
                if self.content != Content::Any && self.content != found {
                    return None;
                }
                found
            }
            // No store gives such an answer.
            _ => return None,
        };
        let newest = match operation.version() {
            Some(version) if version <= self.newest => return None,
            Some(version) => version,
            None => self.newest,
        };
        Some(State { content, newest })
    }

    /// Whether the record may exist with this version; 0 is any.
    fn may_have(self, expected: u64) -> bool {
        match self.content {
            Content::Any => true,
            Content::Absent => false,
            Content::Present { version, .. } => expected == 0 || version == Some(expected),
        }
    }
}

/// When somebody first saw a value, and at which version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    pub version: u64,
    pub at: u64,
}

/// Completes operations by what others saw of them: a write whose value was seen was done, before it was seen. Reads without
/// an answer are left out. `sightings` has those of watchers, by value.
pub fn complete(operations: &[Operation], sightings: &HashMap<u64, Sighting>) -> Vec<Operation> {
    let mut first: HashMap<u64, Sighting> = sightings.clone();
    for operation in operations {
        if let Answer::Found { version, value } = operation.answer {
            let seen = Sighting { version, at: operation.returned };
            let known = first.entry(value).or_insert(seen);
            known.at = known.at.min(seen.at);
        }
    }
    let is_known = |operation: &&Operation| !(operation.call == Call::Read && operation.is_open());
    let mut completed: Vec<Operation> = operations
        .iter()
        .filter(is_known)
        .map(|operation| {
            let seen = operation.value().and_then(|value| first.get(&value));
            match (operation.answer, seen) {
                (Answer::Unknown, Some(seen)) => {
                    Operation { answer: Answer::Written(seen.version), returned: seen.at, ..*operation }
                }
                // Its caller has stopped waiting, and it may be done later.
                (Answer::Unknown, None) => Operation { returned: NEVER, ..*operation },
                (Answer::Written(_), Some(seen)) => {
                    Operation { returned: operation.returned.min(seen.at), ..*operation }
                }
                _ => *operation,
            }
        })
        .collect();
    completed.sort_by_key(|operation| (operation.invoked, operation.returned));
    completed
}
