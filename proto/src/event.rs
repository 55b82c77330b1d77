//! Events: something that happened to a record, and why.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

use crate::meta::Metadata;
use crate::name::{Name, Namespace, Uid};
use crate::record::{Kind, Record};

/// The namespace of events about records that have none.
pub const DEFAULT_NAMESPACE: &str = "default";

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The namespace is the involved record's, or [`DEFAULT_NAMESPACE`]. An event that was not stored yet
    /// may have the involved record's name; the store sets the event's own.
    pub meta: Metadata,
    pub involved: ObjectReference,
    pub kind: EventType,
    /// What happened, as one CamelCase word.
    pub reason: String,
    /// What happened, as a sentence.
    pub message: String,
    /// The part that recorded the event, such as `controller`.
    pub source_component: String,
    /// The node whose agent recorded the event; empty if another part did. The store sets it.
    pub source_host: String,
    /// How often it happened; 0 before it was stored.
    pub count: i32,
    pub first_timestamp: Option<Timestamp>,
    pub last_timestamp: Option<Timestamp>,
}

/// A reference to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectReference {
    /// A node, lease, pod or budget.
    pub kind: Kind,
    /// `None` for nodes.
    pub namespace: Option<Namespace>,
    pub name: Name,
    /// `None` for any record of that name.
    pub uid: Option<Uid>,
}

/// The severity of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventType {
    #[default]
    Normal,
    Warning,
}

/// The text is not an event type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be Normal or Warning")]
pub struct EventTypeError;

impl Event {
    /// A new event, to be recorded.
    pub fn about(
        involved: ObjectReference,
        kind: EventType,
        reason: impl Into<String>,
        message: impl Into<String>,
        source_component: impl Into<String>,
    ) -> Self {
        let default = || DEFAULT_NAMESPACE.parse().expect("the default namespace is a namespace");
        let namespace = involved.namespace.clone().unwrap_or_else(default);
        Self {
            meta: Metadata::new(Some(namespace), involved.name.clone()),
            involved,
            kind,
            reason: reason.into(),
            message: message.into(),
            source_component: source_component.into(),
            source_host: String::new(),
            count: 0,
            first_timestamp: None,
            last_timestamp: None,
        }
    }
}

impl ObjectReference {
    /// A reference to this record, with its uid.
    pub fn to<R: Record>(record: &R) -> Self {
        let meta = record.meta();
        Self { kind: R::KIND, namespace: meta.namespace.clone(), name: meta.name.clone(), uid: meta.uid }
    }
}

impl FromStr for EventType {
    type Err = EventTypeError;

    /// Empty text is Normal, the default.
    fn from_str(text: &str) -> Result<Self, EventTypeError> {
        match text {
            "" | "Normal" => Ok(Self::Normal),
            "Warning" => Ok(Self::Warning),
            _ => Err(EventTypeError),
        }
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        })
    }
}
