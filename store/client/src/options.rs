//! Options of calls: which records, how many, and preconditions.

use muster_proto::invalid::Invalid;
use muster_proto::key::Key;
use muster_proto::name::{Namespace, Uid};
use muster_proto::pb;
use muster_proto::record::Record;

fn text(namespace: Option<&Namespace>) -> String {
    namespace.map(|namespace| namespace.as_str().to_owned()).unwrap_or_default()
}

/// Which records to list, at which revision, and the page size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Only records of this namespace; nodes have none.
    pub namespace: Option<Namespace>,
    /// Such as `zone=a,tier in (x,y),!old`; empty means all.
    pub label_selector: String,
    /// Such as `spec.nodeName=a`; empty means all.
    pub field_selector: String,
    /// The revision to read at, by `version_match`; 0 means the newest.
    pub resource_version: u64,
    pub version_match: VersionMatch,
    /// The maximum number of records per page; 0 means the client's default.
    pub page_size: u32,
    /// The page to read, for `list_page`; empty means the first.
    pub page_token: String,
}

impl ListOptions {
    pub(crate) fn namespace_text(&self) -> String {
        text(self.namespace.as_ref())
    }

    /// The schema's text; empty is its default.
    pub(crate) fn version_match_text(&self) -> String {
        match self.version_match {
            VersionMatch::Exact => "Exact".to_owned(),
            VersionMatch::NotOlderThan => String::new(),
        }
    }
}

/// How a list uses its requested version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionMatch {
    /// As of that version or later.
    #[default]
    NotOlderThan,
    /// As of exactly that version, while the history includes it.
    Exact,
}

/// The result of a list: all records or one page of them, as of one revision.
#[derive(Clone, Debug, PartialEq)]
pub struct List<R> {
    /// Ordered by namespace and name.
    pub records: Vec<R>,
    /// Records that this client cannot validate: they exist, but only their keys are known. Only a store of another
    /// release sends them.
    pub unreadable: Vec<Unreadable>,
    /// The revision that was read; a watch from here misses no change.
    pub resource_version: u64,
    /// Not empty when one page was requested and there are more.
    pub next_page_token: String,
}

/// A record that could not be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Unreadable {
    /// `None` when not even its name could be read.
    pub key: Option<Key>,
    pub resource_version: u64,
    pub reason: Invalid,
}

/// Conditions for a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// The record must have this uid; `None` means any.
    pub uid: Option<Uid>,
    /// The record must have this version; `None` means any.
    pub resource_version: Option<u64>,
}

impl Preconditions {
    /// This record, at any version.
    pub fn uid_of<R: Record>(record: &R) -> Preconditions {
        Preconditions { uid: record.meta().uid, resource_version: None }
    }

    /// This record, unchanged.
    pub fn unchanged<R: Record>(record: &R) -> Preconditions {
        let meta = record.meta();
        let resource_version = (meta.resource_version > 0).then_some(meta.resource_version);
        Preconditions { uid: meta.uid, resource_version }
    }
}

impl From<Preconditions> for pb::Preconditions {
    fn from(preconditions: Preconditions) -> Self {
        Self {
            uid: preconditions.uid.map(|uid| uid.to_string()).unwrap_or_default(),
            resource_version: preconditions.resource_version.unwrap_or_default(),
        }
    }
}

/// How to delete a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub preconditions: Preconditions,
    /// For pods: the grace period. `None` means the pod's own, 0 removes the pod at once.
    pub grace_period_seconds: Option<i64>,
}

/// How to evict a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictOptions {
    pub delete: DeleteOptions,
    /// Check everything and write nothing.
    pub dry_run: bool,
}
