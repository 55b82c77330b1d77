//! Metadata: the identity and version of a record.

use jiff::Timestamp;

use crate::label::{Annotations, Labels};
use crate::name::{Name, Namespace, Uid};

/// What every record has. Fields that only the store writes are empty in a
/// record that was never stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata {
    pub name: Name,
    /// `None` for nodes, always set for the other kinds.
    pub namespace: Option<Namespace>,
    pub uid: Option<Uid>,
    /// The revision of the last write to the record; 0 if it was never stored.
    pub resource_version: u64,
    pub generation: i64,
    pub creation_timestamp: Option<Timestamp>,
    pub deletion_timestamp: Option<Timestamp>,
    pub deletion_grace_period_seconds: Option<i64>,
    pub labels: Labels,
    pub annotations: Annotations,
    pub finalizers: Vec<String>,
    pub owner_references: Vec<OwnerReference>,
    /// The traceparent of the last write to the record, if that write was recorded in a trace.
    pub traceparent: Option<String>,
}

/// The owner of a record.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    /// Compared as text: owners may live in systems whose uids are not UUIDs.
    pub uid: String,
    pub controller: bool,
    pub block_owner_deletion: bool,
}

impl Metadata {
    /// The metadata of a record that was never stored.
    pub fn new(namespace: Option<Namespace>, name: Name) -> Self {
        Self {
            name,
            namespace,
            uid: None,
            resource_version: 0,
            generation: 0,
            creation_timestamp: None,
            deletion_timestamp: None,
            deletion_grace_period_seconds: None,
            labels: Labels::new(),
            annotations: Annotations::new(),
            finalizers: Vec::new(),
            owner_references: Vec::new(),
            traceparent: None,
        }
    }

    /// Whether a deletion was requested.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The owner that manages the record.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }
}
