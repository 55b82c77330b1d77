//! What a call may say besides its record: which records, how many, and what must still hold.

use muster_proto::invalid::Invalid;
use muster_proto::key::Key;
use muster_proto::name::{Namespace, Uid};
use muster_proto::pb;
use muster_proto::record::Record;

fn text(namespace: Option<&Namespace>) -> String {
    namespace.map(|namespace| namespace.as_str().to_owned()).unwrap_or_default()
}

/// Which records to list, as of when, and in what portions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Only records of this namespace; nodes have none.
    pub namespace: Option<Namespace>,
    /// Such as `zone=a,tier in (x,y),!old`; empty means all.
    pub label_selector: String,
    /// Such as `spec.nodeName=a`; empty means all.
    pub field_selector: String,
    /// The moment to read at, by `version_match`; 0 means now.
    pub resource_version: u64,
    pub version_match: VersionMatch,
    /// The most records the store may put into one answer; 0 leaves it to the client.
    pub page_size: u32,
    /// Where to go on, for `list_page`; empty means from the start.
    pub page_token: String,
}

impl ListOptions {
    pub(crate) fn namespace_text(&self) -> String {
        text(self.namespace.as_ref())
    }

    /// As the schema writes it; empty is its default.
    pub(crate) fn version_match_text(&self) -> String {
        match self.version_match {
            VersionMatch::Exact => "Exact".to_owned(),
            VersionMatch::NotOlderThan => String::new(),
        }
    }
}

/// How exactly a list keeps to the version it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionMatch {
    /// As of that version or later.
    #[default]
    NotOlderThan,
    /// As of that very version, while history still holds it.
    Exact,
}

/// The answer to a list: all records, or one page of them, from one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct List<R> {
    /// By namespace and name.
    pub records: Vec<R>,
    /// Records that break a rule this client knows: they exist, and that is all that can be said of them. Only a store
    /// of another release sends any.
    pub unreadable: Vec<Unreadable>,
    /// The moment they were read at; a watch from here misses nothing.
    pub resource_version: u64,
    /// Not empty when a page was asked for and there are more.
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

/// What must still hold for a write to go ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// The record meant, if not just any bearer of the name.
    pub uid: Option<Uid>,
    /// The version the caller saw.
    pub resource_version: Option<u64>,
}

impl Preconditions {
    /// This very record, at whatever version.
    pub fn uid_of<R: Record>(record: &R) -> Preconditions {
        Preconditions { uid: record.meta().uid, resource_version: None }
    }

    /// This very record, unchanged.
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
    /// For pods: seconds to end in. `None` means the pod's own grace, 0 removes at once.
    pub grace_period_seconds: Option<i64>,
}

/// How to evict a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictOptions {
    pub delete: DeleteOptions,
    /// Check everything, write nothing.
    pub dry_run: bool,
}
