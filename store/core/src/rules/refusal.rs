//! Refusals: why a request changes nothing, in words for the user who sent it.
//!
//! Each names the record it is about. Their gRPC codes and details stand in `error.rs`.

use std::fmt;

use muster_proto::fence::Fence;
use muster_proto::invalid::Invalid;
use muster_proto::name::{Name, Namespace, Uid};
use muster_proto::record::{Kind, Record};

/// Which record is meant; shown as `Pod default/web-0` or `Node n1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    pub kind: Kind,
    /// `None` for nodes.
    pub namespace: Option<Namespace>,
    pub name: Name,
}

impl RecordId {
    /// The key of a record.
    pub fn of<R: Record>(record: &R) -> Self {
        let meta = record.meta();
        Self { kind: R::KIND, namespace: meta.namespace.clone(), name: meta.name.clone() }
    }

    /// The key without its kind: `default/web-0` or `n1`.
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

/// Why a request changes nothing.
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
    /// The record's state does not allow it; `why` reads on after the key.
    #[error("{key} {why}")]
    Conflict { key: RecordId, why: String },
    #[error("{key} cannot be evicted: {budget} needs {needed} healthy, has {healthy}")]
    BudgetExhausted { key: RecordId, budget: RecordId, needed: i32, healthy: i32, retry_after_seconds: u64 },
    #[error("{key} cannot be evicted: it may be in one disruption budget only, and is in {}", Shortened(.budgets))]
    SeveralBudgets { key: RecordId, budgets: Vec<Name> },
    /// `why` reads on after the key.
    #[error("{key} {why}")]
    Denied { key: RecordId, why: String },
    /// The writer's claim on a lease does not hold any more. `found` is who holds it, and at which transition.
    #[error("{key} {}, not by {:?} at transition {}: the write is refused", Holder(.found), .fence.holder(), .fence.transitions())]
    Fenced { key: RecordId, fence: Box<Fence>, found: Option<(String, i32)> },
}

/// Who holds a lease.
struct Holder<'a>(&'a Option<(String, i32)>);

impl fmt::Display for Holder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((holder, transition)) if holder.is_empty() => {
                write!(f, "is held by nobody at transition {transition}")
            }
            Some((holder, transition)) => write!(f, "is held by {holder:?} at transition {transition}"),
            None => f.write_str("does not exist, and so is held by nobody"),
        }
    }
}

/// Who is there instead of the one that was meant.
struct Found<'a>(&'a Option<Uid>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(uid) => write!(f, "has uid {uid}"),
            None => f.write_str("does not exist"),
        }
    }
}

/// The first few of a list: an error has to fit the headers it travels in.
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
