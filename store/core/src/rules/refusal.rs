//! Refusals: why a request is not carried out, in words for the user who sent it.
//!
//! Each names its record. The store's `error.rs` maps them to gRPC codes and details.

use std::fmt;

use muster_proto::fence::Fence;
use muster_proto::invalid::Invalid;
use muster_proto::meta::Metadata;
use muster_proto::name::{Name, Namespace, Uid};
use muster_proto::record::{Kind, Record};

/// Identifies a record; displayed as `Pod default/web-0` or `Node n1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    pub kind: Kind,
    /// `None` for nodes.
    pub namespace: Option<Namespace>,
    pub name: Name,
}

impl RecordId {
    /// The id of a record.
    pub fn of<R: Record>(record: &R) -> Self {
        Self::new(R::KIND, record.meta())
    }

    /// The id of the record with this metadata.
    pub fn new(kind: Kind, meta: &Metadata) -> Self {
        Self { kind, namespace: meta.namespace.clone(), name: meta.name.clone() }
    }

    /// The id without its kind: `default/web-0` or `n1`.
    pub fn path(&self) -> impl fmt::Display + '_ {
        Path(self)
    }
}

struct Path<'a>(&'a RecordId);

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.0.namespace {
            write!(f, "{namespace}/")?;
        }
        write!(f, "{}", self.0.name)
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.path())
    }
}

/// Why a request is not carried out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error("{key} is not valid: {invalid}")]
    Invalid { key: RecordId, invalid: Invalid },
    #[error("{key} does not exist")]
    NotFound { key: RecordId },
    #[error("{key} already exists")]
    AlreadyExists { key: RecordId },
    #[error("{key} is at resource version {found}, the request was made for {expected}; read it again")]
    Stale { key: RecordId, expected: u64, found: u64 },
    #[error("{key} {}, the request was made for uid {expected}", Found(.found))]
    UidMismatch { key: RecordId, expected: Uid, found: Option<Uid> },
    /// The record's state does not allow the request; `why` continues the sentence that the key begins.
    #[error("{key} {why}")]
    Conflict { key: RecordId, why: String },
    #[error("{key} cannot be evicted: {budget} needs {needed} healthy, has {healthy}")]
    BudgetExhausted { key: RecordId, budget: RecordId, needed: i32, healthy: i32, retry_after_seconds: u64 },
    #[error("{key} cannot be evicted: it may be in one disruption budget only, and is in {}", Shortened(.budgets))]
    SeveralBudgets { key: RecordId, budgets: Vec<Name> },
    /// `why` continues the sentence that the key begins.
    #[error("{key} {why}")]
    Denied { key: RecordId, why: String },
    /// The fence of a write names a former holder. `found` is the current holder and transition, if the lease exists.
    #[error("{key} {}; the write is refused: it was fenced for holder {:?} at transition {}", Holder(.found), .fence.holder(), .fence.transitions())]
    Fenced { key: RecordId, fence: Box<Fence>, found: Option<(String, i32)> },
}

/// Displays the holder of a lease.
struct Holder<'a>(&'a Option<(String, i32)>);

impl fmt::Display for Holder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((holder, transition)) if holder.is_empty() => {
                write!(f, "has no holder at transition {transition}")
            }
            Some((holder, transition)) => write!(f, "is held by {holder:?} at transition {transition}"),
            None => f.write_str("does not exist"),
        }
    }
}

/// Displays the uid that was found, if the record exists.
struct Found<'a>(&'a Option<Uid>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(uid) => write!(f, "has uid {uid}"),
            None => f.write_str("does not exist"),
        }
    }
}

/// Displays the first items of a list: an error must fit into gRPC's headers.
pub(super) struct Shortened<'a, T>(pub(super) &'a [T]);

impl<T: fmt::Display> fmt::Display for Shortened<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        for (i, item) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
