//! Why a request cannot be evaluated against the records.

use crate::history::Revision;
use crate::limits::LimitExceeded;
use crate::rules::{JoinRefusal, RecordId, Refusal};

/// Why a request is not written into a draft.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DraftError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{key} is too large: {bytes} bytes, and a record may have {limit}")]
    TooLarge { key: RecordId, bytes: usize, limit: usize },
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
    #[error(transparent)]
    JoinRefused(#[from] JoinRefusal),
    /// The claim of a renewal is no longer valid.
    #[error("the lease was deleted, or another holder acquired it")]
    ClaimLost,
    /// A stored record cannot be decoded.
    #[error("{0}")]
    Unreadable(String),
}

/// The requested revision is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("changes are kept from revision {oldest} on, and {requested} was requested")]
pub struct Expired {
    pub requested: Revision,
    pub oldest: Revision,
}
